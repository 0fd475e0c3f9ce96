"""Every option of the daemon, once: name, type, default, unit, range, environment variable, flag.

Owns the schema as dataclasses, with `bounds`; `config` fills them, `reference` prints them. A
table of the TOML file is a dataclass, a key is a field. Imports core and the service's settings.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from kvferry_server.core.types import EngineSettings
from kvferry_server.service.settings import OFFLOAD_SOCKET, ServerSettings
from kvferry_server.service.tenants import Tenants

from .bounds import (
    AdmissionOptions,
    BreakerOptions,
    LimitsOptions,
    PresenceOptions,
    RetryOptions,
    TimeoutsOptions,
)
from .option import Option, option, option_of

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""

LONGEST_SOCKET_NAME = OFFLOAD_SOCKET


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where the chunks go."""

    url: str = option(
        "",
        Option(
            "Where the objects are: `file:///directory` or `s3://bucket/prefix`. Never holds "
            "credentials; those come from AWS's standard chain, the endpoint from "
            "`AWS_ENDPOINT_URL_S3`, the region from `AWS_REGION`.",
            env="KVFERRY_STORE_URL",
            flag="--store-url",
            default_doc=(
                "`file:///var/lib/kvferry/store`, or `store` in the state directory of "
                "another user than root"
            ),
        ),
    )
    naming: str = option(
        "kvferry",
        Option(
            "Whose names the objects bear. `vllm` is for sharing a bucket with vLLM's own `obj` "
            "tier while migrating: its names tell neither weights nor KV layouts apart. S3 only.",
            choices=("kvferry", "vllm"),
            server="naming",
        ),
    )


@dataclass(frozen=True, slots=True)
class IntegrityOptions:
    """How loads are verified."""

    verify: str = option(
        "when-known",
        Option(
            "`when-known` compares a load with its checksum where the daemon knows one or the "
            "store keeps one, `require` treats an unknown one as a miss, `off` compares nothing. "
            "A mismatch is a miss.",
            choices=("require", "when-known", "off"),
        ),
    )
    catalog_bytes: int = option(
        128 << 20,
        Option(
            "Bound of what is remembered of objects, length and checksum, at most 384 bytes each. "
            "Objects seen longest ago are forgotten first.",
            unit="bytes",
            minimum=1 << 20,
            maximum=2**40,
        ),
    )
    catalog_directory: str = option(
        "",
        Option(
            "Directory of the files that keep checksums over a restart of the daemon, an absolute "
            "path; one file per store and socket directory, see [integrity](integrity.md). Made "
            "with mode 0700 if missing. Empty keeps them in memory only.",
            env="KVFERRY_CATALOG_DIR",
            default_doc=(
                "`/var/lib/kvferry/catalog`, or `catalog` in the state directory of another "
                "user than root"
            ),
        ),
    )
    catalog_file_entries: int = option(
        4_000_000,
        Option(
            "Checksums in such a file, some 65 bytes of disk each. Those of the objects stored "
            "longest ago go first.",
            unit="objects",
            minimum=1_000,
            maximum=1_000_000_000,
        ),
    )


@dataclass(frozen=True, slots=True)
class SocketsOptions:
    """Who reaches the daemon."""

    directory: str = option(
        "",
        Option(
            "Directory of `kvferry.sock`, `lease.sock` and `admin.sock`; the daemon creates it "
            "with mode 0750. One daemon per directory. The sockets' paths must not exceed "
            "107 bytes.",
            env="KVFERRY_SOCKET_DIR",
            flag="--socket-dir",
            default_doc="`/run/kvferry`; for another user than root `$XDG_RUNTIME_DIR/kvferry`, or "
            "`run` in the state directory without that variable",
        ),
    )
    mode: str = option(
        "0660",
        Option(
            "Mode of `kvferry.sock` and `lease.sock`, as an octal string; set exactly, whatever "
            "the umask. `admin.sock` always has mode 0600.",
        ),
    )
    group: str = option(
        "",
        Option(
            "Group of the directory and the sockets, a name or a number; its members may attach.",
            default_doc="the daemon's own group",
            server="socket_group",
        ),
    )
    allowed_uids: tuple[int, ...] = option(
        (),
        Option(
            "User ids that may attach a region, besides the daemon's own.",
            minimum=0,
            maximum=2**32 - 2,
            default_doc="none",
        ),
    )
    allowed_gids: tuple[int, ...] = option(
        (),
        Option(
            "Group ids whose members may attach a region, besides `group`.",
            minimum=0,
            maximum=2**32 - 2,
            default_doc="none",
        ),
    )
    allow_overflow_uid: bool = option(
        default=False,
        about=Option(
            "Let peers of other user namespaces attach a region. The kernel shows all of them as "
            "uid 65534, so the directory's mode and group are then the only boundary.",
            server="allow_overflow_uid",
        ),
    )


@dataclass(frozen=True, slots=True)
class TenantsOptions:
    """Whose objects are whose. With tenants, each peer must be of exactly one."""

    uids: tuple[tuple[int, str], ...] = option(
        (),
        Option(
            'Tenant by user id, such as `{ 10001 = "team-a" }`. The tenant is the first path '
            "component of its objects' names below the store's prefix. These ids may attach.",
            minimum=0,
            maximum=2**32 - 2,
            default_doc="none",
        ),
    )
    gids: tuple[tuple[int, str], ...] = option(
        (),
        Option(
            "Tenant by group id, for members of the group whose user id has no entry. These "
            "groups may attach.",
            minimum=0,
            maximum=2**32 - 2,
            default_doc="none",
        ),
    )


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is written to standard error."""

    level: str = option(
        "info",
        Option(
            "Least severe level that is written. `SetLogLevel` on the admin socket changes it "
            "until the next start.",
            env="KVFERRY_LOG_LEVEL",
            flag="--log-level",
            choices=("debug", "info", "warning", "error"),
        ),
    )
    format: str = option(
        "text",
        Option(
            "`text` for people, `json` for one JSON object a line.",
            env="KVFERRY_LOG_FORMAT",
            flag="--log-format",
            choices=("text", "json"),
        ),
    )


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The read-only HTTP listener: a status page at `/`, `/metrics`, `/healthz`, `/readyz`."""

    listen: str = option(
        "127.0.0.1:9477",
        Option(
            "`host:port` to listen on, `[address]:port` for IPv6; port 0 takes a free one. "
            "Empty switches it off.",
            env="KVFERRY_HTTP_LISTEN",
            flag="--http-listen",
        ),
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration; each field is a table of the TOML file."""

    store: StoreOptions = field(default_factory=StoreOptions)
    integrity: IntegrityOptions = field(default_factory=IntegrityOptions)
    sockets: SocketsOptions = field(default_factory=SocketsOptions)
    tenants: TenantsOptions = field(default_factory=TenantsOptions)
    limits: LimitsOptions = field(default_factory=LimitsOptions)
    timeouts: TimeoutsOptions = field(default_factory=TimeoutsOptions)
    retry: RetryOptions = field(default_factory=RetryOptions)
    breaker: BreakerOptions = field(default_factory=BreakerOptions)
    presence: PresenceOptions = field(default_factory=PresenceOptions)
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    log: LogOptions = field(default_factory=LogOptions)
    http: HttpOptions = field(default_factory=HttpOptions)

    def engine_settings(self) -> EngineSettings:
        """The engine's bounds as configured."""
        return EngineSettings(
            **{about.engine: value for about, value in self._values() if about.engine}
        )

    def server_settings(self, *, debug_attach_by_name: bool) -> ServerSettings:
        """The sockets and the service's bounds as configured."""
        return ServerSettings(
            socket_dir=Path(self.sockets.directory),
            socket_mode=int(self.sockets.mode, 8),
            allowed_uids=frozenset(self.sockets.allowed_uids),
            allowed_gids=frozenset(self.sockets.allowed_gids),
            tenants=Tenants(dict(self.tenants.uids), dict(self.tenants.gids)),
            debug_attach_by_name=debug_attach_by_name,
            **{about.server: value for about, value in self._values() if about.server},
        )

    def _values(self) -> list[tuple[Option, Any]]:
        return [
            (about, getattr(getattr(self, table.name), spec.name))
            for table, spec, about in all_options()
        ]


def all_options() -> list[tuple[Field[Any], Field[Any], Option]]:
    """Each option with its table's field and its own, in the order of the reference."""
    return [
        (table, spec, option_of(spec))
        for table in fields(Config)
        for spec in fields(_table_type(table))
    ]


def _table_type(table: Field[Any]) -> type[Any]:
    factory: type[Any] = table.default_factory  # type: ignore[assignment]  # always a class here
    return factory
