"""Where the configuration comes from: flags, then environment, then the TOML file, then defaults.

Owns precedence and the checks of each value. Imports core and `options`. Error texts name the key
and where it was set and never repeat a value, which may be a secret in the wrong place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, replace
from pathlib import Path
from typing import Any

from kvferry_server.core.errors import ConfigError, InvalidArgument
from kvferry_server.core.naming import Naming, check_namespace

from .names import SERVICE_VARIABLE, looks_like_credential, nearest
from .option import Option
from .options import LONGEST_SOCKET_NAME, SOCKET_PATH_BYTES, Config, all_options
from .store_url import FileUrl, parse_store_url
from .tomlfile import Setting, read_settings

CONFIG_VARIABLE = "KVFERRY_CONFIG"
ARGUMENT = "STORE_URL"
"""The positional argument of some commands, in the place of a flag."""
HIGHEST_PORT = 65_535
EMPTY_SAYS_NO = frozenset({"http.listen", "integrity.catalog_directory"})
"""Options that an empty variable or flag switches off; elsewhere it counts as not given."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a user's daemon keeps its things unless told otherwise."""

    sockets: str
    config: str
    state: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration.

    Args:
        config: every option with its value.
        file: the TOML file that was read, if any.
        warnings: what to tell the operator, one line each.
    """

    config: Config
    file: Path | None
    warnings: tuple[str, ...]


def default_paths(environ: Mapping[str, str], uid: int) -> Paths:
    """System directories for root, the XDG base directories for everybody else."""
    if uid == 0:
        return Paths("/run/kvferry", "/etc/kvferry/config.toml", "/var/lib/kvferry")
    home = environ.get("HOME") or "/"
    state = _xdg(environ, "XDG_STATE_HOME", f"{home}/.local/state")
    config = _xdg(environ, "XDG_CONFIG_HOME", f"{home}/.config")
    runtime = _xdg(environ, "XDG_RUNTIME_DIR", "")
    sockets = f"{runtime}/kvferry" if runtime else f"{state}/kvferry/run"
    return Paths(sockets, f"{config}/kvferry/config.toml", f"{state}/kvferry")


def _xdg(environ: Mapping[str, str], name: str, otherwise: str) -> str:
    """The base directory specification has relative paths ignored."""
    value = environ.get(name, "")
    return value if value.startswith("/") else otherwise


def load(flags: Mapping[str, str | None], environ: Mapping[str, str], uid: int) -> Loaded:
    """Read and check the configuration.

    Args:
        flags: value per flag, such as `--store-url`, and of `ARGUMENT`; None if it was not given.
        environ: the environment.
        uid: effective user id, for the default paths.

    Raises:
        ConfigError: a source can't be read, or a value is wrong.
    """
    paths = default_paths(environ, uid)
    file = _config_file(flags, environ, paths)
    settings = read_settings(file) if file else {}
    for table, spec, option in all_options():
        key = f"{table.name}.{spec.name}"
        for source, text in (
            (option.env, environ.get(option.env)),
            (option.flag, flags.get(option.flag)),
            (ARGUMENT, flags.get(ARGUMENT) if key == "store.url" else None),
        ):
            if text is not None and (text or key in EMPTY_SAYS_NO):
                settings[key] = Setting(text, source)
    settings.setdefault("integrity.catalog_directory", Setting(f"{paths.state}/catalog", "default"))
    config = _with_default_paths(_build(settings), paths)
    _check_meaning(config, settings)
    return Loaded(config, file, tuple(_unknown_variables(environ)))


def _config_file(
    flags: Mapping[str, str | None], environ: Mapping[str, str], paths: Paths
) -> Path | None:
    named = flags.get("--config") or environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return Path(paths.config) if os.path.lexists(paths.config) else None


def _build(settings: Mapping[str, Setting]) -> Config:
    tables: dict[str, dict[str, Any]] = {}
    for table, spec, option in all_options():
        setting = settings.get(f"{table.name}.{spec.name}")
        if setting is not None:
            value = _checked(f"{table.name}.{spec.name}", setting, spec, option)
            tables.setdefault(table.name, {})[spec.name] = value
    config = Config()
    return replace(
        config,
        **{name: replace(getattr(config, name), **values) for name, values in tables.items()},
    )


def _checked(key: str, setting: Setting, spec: Field[Any], option: Option) -> object:
    value = setting.value
    if spec.type == "bool":
        if not isinstance(value, bool):
            raise _wrong(key, setting, "expected true or false")
        return value
    if spec.type == "str":
        return _checked_text(key, setting, option)
    if spec.type == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(key, setting, f"expected a whole number{_of(option)}")
        return _in_range(key, setting, option, value)
    if spec.type == "float":
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _wrong(key, setting, f"expected a number{_of(option)}")
        return float(_in_range(key, setting, option, value))
    if spec.type.startswith("tuple[tuple"):
        return _checked_tenants(key, setting, option)
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise _wrong(key, setting, "expected a list of whole numbers")
    return tuple(_in_range(key, setting, option, item) for item in value)


def _checked_tenants(key: str, setting: Setting, option: Option) -> tuple[tuple[int, str], ...]:
    value = setting.value
    if not isinstance(value, dict) or not all(re.fullmatch(r"[0-9]{1,10}", id_) for id_ in value):
        raise _wrong(key, setting, 'expected a table such as { 10001 = "team-a" }')
    pairs = []
    for id_, tenant in value.items():
        number = int(_in_range(key, setting, option, int(id_)))
        try:
            check_namespace(tenant if isinstance(tenant, str) else "")
        except InvalidArgument as error:
            raise _wrong(key, setting, f"a tenant's name: {error.message}") from None
        pairs.append((number, tenant))
    return tuple(pairs)


def _checked_text(key: str, setting: Setting, option: Option) -> str:
    value = setting.value
    if not isinstance(value, str):
        raise _wrong(key, setting, "expected a string")
    if "\0" in value:
        raise _wrong(key, setting, "a NUL character is not allowed")
    if not option.choices:
        return value
    if value.lower() not in option.choices:
        raise _wrong(key, setting, f"must be one of {', '.join(option.choices)}")
    return value.lower()


def _in_range(key: str, setting: Setting, option: Option, value: float) -> float:
    low, high = option.minimum, option.maximum
    if low <= value <= high:
        return value
    raise _wrong(key, setting, f"must be from {low:,} to {high:,}{_of(option)}")


def _of(option: Option) -> str:
    return f" ({option.unit})" if option.unit else ""


def _with_default_paths(config: Config, paths: Paths) -> Config:
    directory = str(Path(config.sockets.directory or paths.sockets).absolute())
    url = config.store.url or (Path(paths.state) / "store").as_uri()
    return replace(
        config,
        sockets=replace(config.sockets, directory=directory),
        store=replace(config.store, url=url),
    )


def _check_meaning(config: Config, settings: Mapping[str, Setting]) -> None:
    def setting(key: str) -> Setting:
        return settings.get(key) or Setting("", "default")

    try:
        parse_store_url(config.store.url)
    except ConfigError as error:
        raise _wrong("store.url", setting("store.url"), error.message) from None
    if config.store.naming == Naming.VLLM and isinstance(
        parse_store_url(config.store.url), FileUrl
    ):
        raise _wrong(
            "store.naming", setting("store.naming"), '"vllm" needs a store.url of the form s3://'
        )
    catalog = config.integrity.catalog_directory
    if catalog and not catalog.startswith("/"):
        raise _wrong(
            "integrity.catalog_directory",
            setting("integrity.catalog_directory"),
            "must be an absolute path, or empty for none",
        )
    path = f"{config.sockets.directory}/{LONGEST_SOCKET_NAME}"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise _wrong(
            "sockets.directory",
            setting("sockets.directory"),
            f"the socket path {path} has {len(os.fsencode(path))} bytes, and the limit is "
            f"{SOCKET_PATH_BYTES}; choose a shorter directory",
        )
    if not re.fullmatch(r"0?[0-7]{3}", config.sockets.mode):
        raise _wrong(
            "sockets.mode", setting("sockets.mode"), 'expected an octal string such as "0660"'
        )
    try:
        parse_listen(config.http.listen)
    except ConfigError as error:
        raise _wrong("http.listen", setting("http.listen"), error.message) from None
    if config.timeouts.hard_deadline_seconds < config.timeouts.transfer_seconds:
        raise _wrong(
            "timeouts.hard_deadline_seconds",
            setting("timeouts.hard_deadline_seconds"),
            "must not be below timeouts.transfer_seconds",
        )


def parse_listen(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port` or `[address]:port`; None if empty.

    Raises:
        ConfigError: it has another form.
    """
    if not text:
        return None
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > HIGHEST_PORT:
        raise ConfigError(
            "expected host:port such as 127.0.0.1:9477, or nothing to switch it off",
            reason="HTTP_LISTEN",
            field="http.listen",
        )
    return match[1] or match[2], int(match[3])


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = {CONFIG_VARIABLE, *(option.env for _, _, option in all_options() if option.env)}
    warnings = []
    for name in sorted(environ):
        if not name.startswith("KVFERRY_") or name in known or SERVICE_VARIABLE.fullmatch(name):
            continue
        warnings.append(f"{name} is not a variable of kvferry and is ignored{_advice(name, known)}")
    return warnings


def _advice(name: str, known: set[str]) -> str:
    if looks_like_credential(name):
        return "; credentials come from AWS's standard chain (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)"
    guess = nearest(name, known)
    return f"; did you mean {guess}?" if guess else f"; known are {', '.join(sorted(known))}"


def _wrong(key: str, setting: Setting, why: str) -> ConfigError:
    place = ARGUMENT if setting.source == ARGUMENT else f"{setting.source}: {key}"
    return ConfigError(f"{place}: {why}", reason="CONFIG_VALUE", field=key)
