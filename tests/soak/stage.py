"""The soak's processes: a real S3 server behind a network, a daemon, three engines; and samples."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

import grpc

from kvferry.v1 import admin_pb2
from tests.faults.content import content_of, damaged, key_in_name
from tests.faults.rig import NAMESPACE, Daemon, wait_for
from tests.faults.stores import PREFIX, ServerBacking
from tests.support.processes import free_ports
from tests.support.tcp_proxy import TcpProxy

REPOSITORY = Path(__file__).parents[2]
SETTINGS = {
    "limits": {"max_inflight_chunks": 16},
    "timeouts": {"transfer_seconds": 10.0, "hard_deadline_seconds": 60.0},
    "log": {"level": "warning"},
}
COUNTED = ("submitted", "reported", "reported_twice", "reported_unknown", "lookups")
WRONG = ("wrong_loads", "damaged_loads", "wrong_slots", "wrong_lookups")


class EngineChild:
    """An engine's process and its latest report."""

    def __init__(self, sockets: Path, space: int, seed: int) -> None:
        self.space = space
        self.latest: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.engine", str(sockets), str(space), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def end(self) -> None:
        """Tell it to end, and wait for its last report."""
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.flush()
        self._process.wait(180)
        self._reader.join(10)
        if not self.latest.get("ended"):
            raise AssertionError(f"engine {self.space} ended without a last report")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL. May be repeated."""
        self._process.kill()
        self._process.wait(30)
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.latest = json.loads(line)


class Stage:
    """Everything that runs; a context manager."""

    def __init__(self, server: str, seed: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="kvf"))
        self.backing = ServerBacking(server)
        self.proxy = TcpProxy(self.backing.server.port).__enter__()
        endpoint = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.proxy.port}"}
        catalog = {"KVFERRY_CATALOG_DIR": str(self.root / "catalog")}
        environment = self.backing.environment() | endpoint | catalog
        (self._metrics_port,) = free_ports(1)
        settings = SETTINGS | {"http": {"listen": f"127.0.0.1:{self._metrics_port}"}}
        self.daemon = Daemon(self.root, self.backing.url, environment, settings)
        self._daemon_since = 0.0
        self.engines: list[EngineChild] = []
        self.ended: list[dict[str, Any]] = []
        self.damaged: dict[str, bytes] = {}
        """Objects that a fault overwrote, and with what."""
        self.damaged_since: dict[str, float] = {}
        """When a fault first overwrote a key's object, by time.time()."""
        self._seed = 1_000 * seed

    def __enter__(self) -> Self:
        self.start_daemon()
        for space in (1, 2, 3):
            self.add_engine(space)
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self.engines:
            engine.kill()
        if self.daemon.child is not None:
            self.daemon.child.stop()
        self.proxy.__exit__()
        self.backing.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def start_daemon(self) -> None:
        """The first one or the next."""
        self._daemon_since = time.time()
        self.daemon.start()

    def add_engine(self, space: int) -> None:
        """One more engine."""
        self._seed += 1
        self.engines.append(EngineChild(self.daemon.sockets, space, self._seed))

    def kill_engine(self, which: int) -> None:
        """Kill one and start another in its place. Its last report is kept."""
        victim = self.engines.pop(which)
        victim.kill()
        self.ended.append(victim.latest)
        self.add_engine(victim.space)

    def info(self) -> admin_pb2.GetServerInfoResponse | None:
        """The daemon's own view; None if it doesn't answer."""
        with contextlib.suppress(grpc.RpcError):
            return self.daemon.admin("GetServerInfo", admin_pb2.GetServerInfoRequest())
        return None

    def nixl_handles(self) -> int | None:
        """What the daemon's metric says; None if it doesn't answer."""
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("kvferry_nixl_handles "):
                    return int(float(line.split()[1]))
        return None

    def sample(self) -> dict[str, Any]:
        """Memory, descriptors and threads of the daemon and of the engines now."""
        info = self.info()
        return {
            "daemon_pid": self.daemon.pid,
            "daemon": _look(self.daemon.pid),
            "engines": [_look(each.pid) for each in self.engines],
            "engine_pids": [each.pid for each in self.engines],
            "active_chunks": info.active_chunks if info else None,
            "nixl_handles": self.nixl_handles(),
            "counts": self.counts(),
        }

    def counts(self) -> dict[str, int]:
        """Sums over all engines, those that ended included."""
        sums: Counter[str] = Counter(dict.fromkeys((*COUNTED, *WRONG), 0))
        for report in self._reports():
            for name in (*COUNTED, *WRONG):
                sums[name] += report.get(name, 0)
        return dict(sums)

    def outcomes(self) -> dict[str, int]:
        """How chunks ended."""
        sums: Counter[str] = Counter()
        for report in self._reports():
            sums.update(report.get("outcomes", {}))
        return dict(sorted(sums.items()))

    def corrupt(self) -> dict[str, int]:
        """Loads reported as CORRUPT: all, those of objects damaged before, and which of these."""
        events = [event for report in self._reports() for event in report.get("corrupt", ())]
        explained = [key for key, at in events if at >= self.damaged_since.get(key, float("inf"))]
        return {
            "loads": len(events),
            "of_damaged_objects": len(explained),
            "damaged_objects_found": len(set(explained)),
            "damaged_objects": len(self.damaged_since),
        }

    def stored_names(self) -> list[str]:
        """Some objects that the present daemon reported as STORED, and so has a checksum of."""
        stored = {
            key
            for report in self._reports()
            for key, at in report.get("stored", {}).items()
            if at > self._daemon_since
        }
        return [name for name in self.names() if _key_text(name) in stored]

    def _reports(self) -> list[dict[str, Any]]:
        return [*self.ended, *(each.latest for each in self.engines)]

    def names(self) -> list[str]:
        """Some objects of the engines."""
        client = self.backing.server.client()
        try:
            answer = client.list_objects_v2(
                Bucket=self.backing.server.bucket, Prefix=f"{PREFIX}/{NAMESPACE}/"
            )
            return [entry["Key"] for entry in answer.get("Contents", ())]
        finally:
            client.close()

    def overwrite(self, name: str) -> None:
        """Damage an object behind the daemon."""
        key = key_in_name(name)
        if key is None:
            return
        data = damaged(content_of(key))
        self.damaged_since.setdefault(key.hex(), time.time())
        client = self.backing.server.client()
        try:
            client.put_object(Bucket=self.backing.server.bucket, Key=name, Body=data)
        finally:
            client.close()
        self.damaged[name] = data

    def delete(self, names: list[str]) -> None:
        """Remove objects behind the daemon."""
        client = self.backing.server.client()
        try:
            for name in names:
                client.delete_object(Bucket=self.backing.server.bucket, Key=name)
        finally:
            client.close()

    def wrong_objects(self) -> tuple[int, int]:
        """How many objects there are, and how many hold other bytes than they must."""
        wrong = 0
        objects = self.backing.objects()
        for name, data in objects.items():
            key = key_in_name(name)
            if key is not None and data not in (content_of(key), self.damaged.get(name)):
                wrong += 1
        return len(objects), wrong

    def quiet(self) -> None:
        """Wait until nothing is in transfer."""

        def idle() -> bool:
            info = self.info()
            return info is not None and not info.active_chunks and not info.sessions

        wait_for(idle, "an idle daemon", 120)


def _key_text(name: str) -> str:
    key = key_in_name(name)
    return "" if key is None else key.hex()


def _look(pid: int) -> dict[str, float]:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return {
            "mebibytes": round(int(status["RssAnon"][0]) / 1024, 2),
            "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
            "threads": int(status["Threads"][0]),
        }
    return {}
