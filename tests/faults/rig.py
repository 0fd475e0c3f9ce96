"""What every fault works with: a store, a daemon on it, an engine that checks, and the evidence.

Owns the processes of one scenario and their end. The daemon is `kvferry serve` as users start it,
the engine a real client in this process, or (`tests.faults.engine_process`) in one of its own.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from kvferry.v1 import admin_pb2, admin_pb2_grpc
from kvferry_client import Client, JobKind, Outcome, Presence
from tests.support.processes import Child, clean_environment

from .content import Ledger, Region, Tally, content_of, key_of
from .stores import PREFIX, FileBacking, ServerBacking, StubBacking, make_backing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.support.fault_server import FaultServer
    from tests.support.s3_server import S3Server
    from tests.support.tcp_proxy import TcpProxy


GUARD_SECONDS = 90.0
NAMESPACE = "faults"
SETTINGS = {
    "limits": {"max_inflight_chunks": 8},
    "timeouts": {"transfer_seconds": 6.0, "hard_deadline_seconds": 30.0, "shutdown_seconds": 20.0},
    "retry": {"max_attempts": 4, "backoff_base_seconds": 0.05, "backoff_cap_seconds": 0.5},
    "breaker": {"failures": 8, "cooldown_seconds": 0.5},
    "presence": {"absent_seconds": 0.2},
    "log": {"level": "debug"},
}


class NotProvenError(AssertionError):
    """The fault did not happen, so that the run proves nothing; or the wait for it was in vain."""


def wait_for(condition: Callable[[], object], what: str, seconds: float = GUARD_SECONDS) -> None:
    """Wait until a condition holds.

    Raises:
        NotProvenError: it did not within `seconds`.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise NotProvenError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(0.02)


def toml_of(settings: Mapping[str, Mapping[str, object]]) -> str:
    """Settings of numbers and strings as TOML."""
    lines = []
    for table, values in settings.items():
        lines.append(f"[{table}]")
        lines += [
            f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
            for name, value in values.items()
        ]
    return "\n".join(lines) + "\n"


class Daemon:
    """`kvferry serve`, restarted at will on the same directories.

    Args:
        root: a short path for sockets, settings, state and the log.
        url: of the store.
        environment: AWS's variables and the like.
        settings: tables over those of `SETTINGS`.
        prefix: a command that ends by executing its arguments.
    """

    def __init__(
        self,
        root: Path,
        url: str,
        environment: Mapping[str, str],
        settings: Mapping[str, Mapping[str, object]] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.sockets = root / "run"
        self.log = root / "serve.log"
        self._prefix = list(prefix)
        self._environment = clean_environment(
            {"HOME": str(root), "XDG_STATE_HOME": str(root / "state"), **environment}
        )
        tables: dict[str, dict[str, object]] = {
            "store": {"url": url},
            "sockets": {"directory": str(self.sockets)},
            "http": {"listen": ""},
        }
        for extra in (SETTINGS, settings or {}):
            for table, values in extra.items():
                tables.setdefault(table, {}).update(values)
        self._config = root / "config.toml"
        self._config.write_text(toml_of(tables))
        self.child: Child | None = None
        self.pids: list[int] = []

    def start(self) -> None:
        """Start it; it need not answer yet."""
        command = [sys.executable, "-m", "kvferry_server.cli", "serve"]
        self.child = Child(
            [*self._prefix, *command, "--config", str(self._config)], self.log, self._environment
        )
        self.pids.append(self.child.pid)

    @property
    def running(self) -> Child:
        """Its process."""
        if self.child is None:
            raise RuntimeError("the daemon was not started")
        return self.child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.running.pid

    @property
    def state(self) -> str:
        """The kernel's letter for the process's state, `T` for stopped; empty if it is gone."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.pid}/stat").read_text()
            return text.rsplit(")", 1)[1].split()[0]
        return ""

    def descriptors(self) -> int:
        """How many it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def maps(self, inode: int) -> bool:
        """Whether it has a file mapped."""
        lines = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        return any(line.split()[4] == str(inode) for line in lines)

    def kill(self) -> int:
        """SIGKILL; the status that it ended with."""
        self.running.signal(signal.SIGCONT)
        self.running.kill()
        return self.running.status

    def ended(self, seconds: float = GUARD_SECONDS) -> int:
        """Wait for its end; the status."""
        wait_for(lambda: not self.running.running, "the daemon's end", seconds)
        return self.running.status

    def admin(self, method: str, request: Any) -> Any:
        """Call AdminService."""
        with grpc.insecure_channel(
            f"unix:{self.sockets}/admin.sock", options=[("grpc.default_authority", "localhost")]
        ) as channel:
            return getattr(admin_pb2_grpc.AdminServiceStub(channel), method)(request, timeout=20)

    def jobs(self) -> list[admin_pb2.JobInfo]:
        """Jobs that are not yet acknowledged."""
        return list(self.admin("ListJobs", admin_pb2.ListJobsRequest()).jobs)


class Engine:
    """A client with its region and its checker."""

    def __init__(
        self, sockets: Path, space: int, region: Region | None = None, **options: Any
    ) -> None:
        self.space = space
        self.region = region or Region()
        self.ledger = Ledger(self.region)
        arguments: dict[str, Any] = {"namespace": NAMESPACE, "engine_id": f"engine-{space}"}
        self.client = Client(sockets, self.region.view, **(arguments | options))
        self._numbers = 0

    def attach(self) -> None:
        """Wait for a session."""
        if not self.client.wait_attached(GUARD_SECONDS):
            raise NotProvenError(f"not attached: {self.client.last_error}")

    def new_keys(self, count: int) -> list[bytes]:
        """Keys that nobody has."""
        self._numbers += count
        return [key_of(n, self.space) for n in range(self._numbers - count, self._numbers)]

    def store(self, count: int = 4, *, jobs: int = 1) -> list[bytes]:
        """Submit stores of new keys; returns the keys."""
        keys: list[bytes] = []
        for _ in range(jobs):
            new = self.new_keys(count)
            self.store_keys(new)
            keys += new
        return keys

    def store_keys(self, keys: Sequence[bytes]) -> int:
        """Submit one store."""
        slots = self.ledger.take_slots(len(keys))
        for key, slot in zip(keys, slots, strict=True):
            self.region.write(slot, content_of(key))
        job = self.client.store(keys, slots)
        self.ledger.submitted(job, JobKind.STORE, keys, slots)
        return job

    def load(self, keys: Sequence[bytes]) -> int:
        """Submit one load."""
        slots = self.ledger.take_slots(len(keys))
        job = self.client.load(keys, slots)
        self.ledger.submitted(job, JobKind.LOAD, keys, slots)
        return job

    def take(self) -> list[Outcome]:
        """Check what was reported meanwhile; the outcomes of its chunks."""
        results = self.client.take_results()
        self.ledger.reported(results)
        return [outcome for result in results for outcome in result.outcomes]

    def settle(self, seconds: float = GUARD_SECONDS) -> list[Outcome]:
        """Wait until every job is reported; the outcomes of all chunks reported meanwhile."""
        outcomes: list[Outcome] = []
        wait_for(
            lambda: outcomes.extend(self.take()) or not self.ledger.open_jobs,
            f"{self.ledger.open_jobs} jobs without a result",
            seconds,
        )
        return outcomes

    def stored(self, count: int = 4) -> list[bytes]:
        """Keys that are stored for certain."""
        keys = self.store(count)
        outcomes = self.settle()
        if outcomes != [Outcome.STORED] * count:
            raise NotProvenError(f"stores before the fault ended with {outcomes}")
        return keys

    def look_up(self, keys: Sequence[bytes]) -> tuple[Presence, ...]:
        """Ask and wait for the verdicts."""
        ticket = self.client.lookup(keys)
        replies = []
        wait_for(lambda: replies.extend(self.client.take_lookups()) or replies, "a lookup's answer")
        return next(each.verdicts for each in replies if each.ticket == ticket)

    def works(self) -> bool:
        """Whether a new chunk goes to the store and comes back whole."""
        [key] = self.new_keys(1)
        self.store_keys([key])
        if self.settle() != [Outcome.STORED]:
            return False
        self.load([key])
        return self.settle() == [Outcome.LOADED]


class Scenario:
    """One fault's stage: started on entry, everything ended on exit."""

    def __init__(self, store: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="kvf"))
        self.backing = make_backing(store, self.root)
        self.proofs: list[str] = []
        self.damaged: set[bytes] = set()
        """Keys whose objects the fault itself damaged."""
        self.exit = contextlib.ExitStack()
        self.engines: list[Engine] = []
        self.other_tallies: list[Tally] = []
        """Of engines in processes of their own."""
        self.spaces = 0
        self.daemon: Daemon | None = None
        self.over_at = 0.0

    def start(self, **options: Any) -> None:
        """Start store, daemon and an engine, and see the whole path work once."""
        self.make_daemon(**options)
        self.daemon.start()
        self.add_engine().attach()
        self.await_ready()

    def make_daemon(
        self,
        *,
        url: str = "",
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Prepare a daemon on the scenario's store; an empty variable is left out."""
        merged = self.backing.environment() | dict(environment or {})
        environment = {name: value for name, value in merged.items() if value}
        self.daemon = Daemon(self.root, url or self.backing.url, environment, settings, prefix)

    def add_engine(self, **options: Any) -> Engine:
        """One more engine; not attached yet."""
        self.engines.append(Engine(self.daemon.sockets, self.new_space(), **options))
        self.engines[-1].client.start()
        return self.engines[-1]

    def new_space(self) -> int:
        """Keys of one engine."""
        self.spaces += 1
        return self.spaces

    @property
    def engine(self) -> Engine:
        """The first engine."""
        return self.engines[0]

    @property
    def stub(self) -> FaultServer:
        """The S3 look-alike."""
        if not isinstance(self.backing, StubBacking):
            raise TypeError("this scenario has no stub")
        return self.backing.server

    @property
    def proxy(self) -> TcpProxy:
        """The daemon's network to the look-alike."""
        if not isinstance(self.backing, StubBacking):
            raise TypeError("this scenario has no proxy")
        return self.backing.proxy

    @property
    def server(self) -> S3Server:
        """The real S3 server."""
        if not isinstance(self.backing, ServerBacking):
            raise TypeError("this scenario has no server")
        return self.backing.server

    @property
    def directory(self) -> FileBacking:
        """The file store."""
        if not isinstance(self.backing, FileBacking):
            raise TypeError("this scenario has no file store")
        return self.backing

    def info(self) -> admin_pb2.GetServerInfoResponse:
        """The daemon's own view."""
        return self.daemon.admin("GetServerInfo", admin_pb2.GetServerInfoRequest())

    def answered(self, method: str, status: int) -> int:
        """How many chunks' requests the look-alike answered so."""
        requests = self.stub.requests(method, f"{PREFIX}/{NAMESPACE}/*")
        return sum(each.status == status for each in requests)

    def await_ready(self) -> None:
        """Wait until the store passed its preflight."""

        def ready() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return bool(self.info().store.ready)
            return False

        wait_for(ready, f"a ready store\n{self.daemon.log.read_text()[-1500:]}")

    def prove(self, condition: object, text: str) -> None:
        """Note what shows that the fault happened.

        Raises:
            NotProvenError: it did not.
        """
        if not condition:
            raise NotProvenError(f"not seen: {text}")
        self.proofs.append(text)

    def over(self) -> None:
        """The fault has ended: recovery counts from now."""
        self.over_at = time.monotonic()

    def recover(self) -> float:
        """Wait until the path works again; seconds since `over`."""
        began = self.over_at or time.monotonic()
        self.engine.attach()
        wait_for(self.engine.works, "the path to work again")
        return time.monotonic() - began

    def close(self) -> None:
        """End everything and leave nothing."""
        for engine in self.engines:
            engine.client.close(timeout_s=0)
        if self.daemon is not None and self.daemon.child is not None:
            self.daemon.child.stop()
        for engine in self.engines:
            engine.client.close(timeout_s=10)
        self.exit.close()
        self.backing.close()
        shutil.rmtree(self.root, ignore_errors=True)
