"""Builds the image, looks at it, and runs it beside an engine's side: `make image-test`.

Prints what it found; ends with 1 at the first thing that is not as it should be. Needs root,
buildah, debootstrap and bubblewrap.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvferry_server import __version__
from tests.support.s3_servers import started

from . import image
from .bases import make_bases
from .container import Container

ENGINE_UID = 65_531
SOCKETS = "/run/kvferry/sockets"
PYTHON = "/opt/kvferry/bin/python"
GUARD_SECONDS = 120.0
INTERRUPT_AFTER = 32
"""Objects of 256."""
LABELS = ("version", "revision")
OVERFLOW = "[sockets]\nallow_overflow_uid = true\n"
"""Both sides have user namespaces of their own here, so each sees the other as uid 65534."""


class NotAsItShouldBe(Exception):
    """The text says what."""


def require(truth: object, text: str) -> None:
    """Go on only if it is true."""
    if not truth:
        raise NotAsItShouldBe(text)


def inspect() -> None:
    """What a registry and an orchestrator read of the image."""
    config = image.config()
    require(image.user(config) == 65_532, "the image does not run as 65532")
    require(image.command(config) == ["kvferry", "serve"], "the command has a shell in it")
    check = config["Healthcheck"]
    require(check["Test"] == ["CMD", "kvferry", "health"], "no HEALTHCHECK in exec form")
    labels = config["Labels"]
    for name in ("title", "description", "licenses", "version", "revision"):
        require(labels.get(f"org.opencontainers.image.{name}"), f"no OCI label {name}")
    version, revision = (labels[f"org.opencontainers.image.{name}"] for name in LABELS)
    require(version == __version__, f"the label says version {version}")
    print(f"labels    version {version}, revision {revision}")
    print(f"config    user {config['User']}, {image.command(config)}, health {check['Test'][1:]}")


class Pair:
    """The daemon's container and the engine's: they share one directory and nothing else."""

    def __init__(self, root: Path, scratch: Path, store_url: str, *, network: bool) -> None:
        self._environment = image.variables(image.config())
        self._scratch = scratch
        self.shared, self.state, settings = (
            self._folder(scratch / name) for name in ("shared", "state", "settings")
        )
        (settings / "config.toml").write_text(f'[store]\nurl = "{store_url}"\n{OVERFLOW}')
        self._daemon = Container(
            root,
            image.user(image.config()),
            writable={"/run/kvferry": self.shared, "/var/lib/kvferry": self.state},
            readable={"/etc/kvferry": settings},
            host_network=network,
        )
        self._engine = Container(
            root, ENGINE_UID, groups=(65_532,), readable={"/run/kvferry": self.shared}
        )

    @staticmethod
    def _folder(path: Path) -> Path:
        path.mkdir()
        path.chmod(0o777)  # as an emptyDir
        return path

    @contextmanager
    def daemon(self, extra: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """`kvferry serve` as PID 1, until the end of the block at the latest."""
        words = image.command(image.config())
        variables = self._environment | extra
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                self._daemon.command(variables, *words), env=image.path_in({}), stderr=log
            )
        try:
            self._wait_ready(process)
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def log_path(self) -> Path:
        """What the daemon wrote."""
        return self._scratch / "daemon.log"

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + GUARD_SECONDS
        while ": ready: " not in (text := self.log_path.read_text()):
            require(process.poll() is None, f"the daemon ended:\n{text}")
            require(time.monotonic() < end, f"the daemon is not ready:\n{text}")
            time.sleep(0.1)

    def health(self) -> None:
        """The image's own health check, in a container like the daemon's."""
        done = self._run(self._daemon, self._environment, "kvferry", "health")
        require(done.returncode == 0, f"kvferry health: {done.stderr}")

    def engine(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command on the engine's side, to its end."""
        return self._run(self._engine, {"PATH": self._environment["PATH"]}, *words)

    @contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """The demo beside the block; how it ends does not matter."""
        words = [PYTHON, "-m", "kvferry_client.demo", "--socket-dir", SOCKETS]
        command = self._engine.command({"PATH": self._environment["PATH"]}, *words)
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=image.path_in({}), stdout=quiet, stderr=quiet)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def _run(
        container: Container, variables: dict[str, str], *words: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            container.command(variables, *words),
            env=image.path_in({}),
            capture_output=True,
            text=True,
            check=False,
            timeout=GUARD_SECONDS,
        )


def pid_of_daemon(process: subprocess.Popen[bytes]) -> int:
    """The process that is PID 1 in its container: the only child of bubblewrap."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    require(len(children) == 1, f"bubblewrap has the children {children}")
    return int(children[0])


def look_inside(pid: int) -> None:
    """Who it is and what of this machine it shares."""
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    require(status["NSpid"].split()[-1] == "1", "it is not PID 1")
    require(status["Uid"].split() == ["65532"] * 4, f"it runs as {status['Uid']}")
    own = [
        name
        for name in ("user", "mnt", "pid", "ipc", "uts", "net")
        if Path(f"/proc/{pid}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink()
    ]
    root = next(
        line.split()[3]
        for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()
        if line.split()[1] == "/"
    )
    require("ro" in root.split(","), f"its root is mounted {root}")
    print(f"daemon    PID 1, uid 65532, root read-only, own namespaces: {' '.join(own)}")


def stop(process: subprocess.Popen[bytes]) -> float:
    """SIGTERM to PID 1; return how long the end took."""
    began = time.monotonic()
    os.kill(pid_of_daemon(process), signal.SIGTERM)
    status = process.wait(GUARD_SECONDS)
    require(status == 0, f"after SIGTERM it ended with {status}")
    return time.monotonic() - began


def objects(folder: Path) -> dict[str, int]:
    """What a file store keeps, and how many bytes each has."""
    return {path.name: path.stat().st_size for path in folder.rglob("*.bin") if path.stat().st_size}


def run_alone(root: Path, scratch: Path) -> None:
    """All namespaces of its own, a file store: the demo, SIGTERM, and a second life."""
    pair = Pair(root, scratch, "file:///var/lib/kvferry/store", network=False)
    with pair.daemon({}) as process:
        look_inside(pid_of_daemon(process))
        pair.health()
        show_demo(pair)
        before = objects(pair.state)
        require(len(before) == 256, f"{len(before)} objects after 256 stores")
        took = stop(process)
    require(objects(pair.state) == before, "SIGTERM lost objects")
    left = [each for each in pair.state.rglob("*") if ".tmp" in each.parts and each.is_file()]
    require(not left, f"temporary files stayed: {left}")
    print(f"SIGTERM   exit 0 after {took:.2f} s, {len(before)} objects, nothing lost")
    with pair.daemon({}) as process:
        show_demo(pair)
        stop(process)


def run_interrupted(root: Path, scratch: Path) -> None:
    """SIGTERM in the middle of stores: what is there is whole, and the next daemon goes on."""
    pair = Pair(root, scratch, "file:///var/lib/kvferry/store", network=False)
    with pair.daemon({}) as process:
        with pair.engine_at_work():
            end = time.monotonic() + GUARD_SECONDS
            while len(objects(pair.state)) < INTERRUPT_AFTER:
                require(time.monotonic() < end, "the engine's side stores nothing")
            took = stop(process)
        kept = objects(pair.state)
        require(set(kept.values()) == {1 << 20}, f"torn objects: {kept}")
        left = [each for each in pair.state.rglob("*") if ".tmp" in each.parts and each.is_file()]
        require(not left, f"temporary files stayed: {left}")
    with pair.daemon({}) as process:
        show_demo(pair)
        require(objects(pair.state).items() >= kept.items(), "the next daemon lost objects")
        stop(process)
    print(f"SIGTERM   in mid-store: exit 0 after {took:.2f} s, {len(kept)} objects, all whole")


def run_with_s3(root: Path, scratch: Path) -> None:
    """The same over S3, on this machine's loopback network: NIXL's OBJ plugin as trimmed."""
    with started("moto") as server:
        extra = server.environment() | {"KVFERRY_HTTP_LISTEN": "127.0.0.1:0"}
        pair = Pair(root, scratch, f"s3://{server.bucket}/image", network=True)
        with pair.daemon(extra) as process:
            pair.health()
            show_demo(pair)
            took = stop(process)
        print(f"SIGTERM   exit 0 after {took:.2f} s, store s3 (moto)")


def show_demo(pair: Pair) -> None:
    """256 chunks from the engine's container and back."""
    done = pair.engine(PYTHON, "-m", "kvferry_client.demo", "--socket-dir", SOCKETS)
    log = pair.log_path.read_text()
    require(done.returncode == 0, f"the demo failed: {done.stdout}{done.stderr}\n{log}")
    require("256  of 256 chunks are equal" in done.stdout, done.stdout)
    print("\n".join(f"engine    {line}" for line in done.stdout.splitlines()[-4:] if line))


def main() -> int:
    """Everything in order."""
    if os.geteuid():
        sys.exit("make image-test needs root, for other users' namespaces")
    with tempfile.TemporaryDirectory(prefix="kvferry-image-") as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        make_bases()
        image.build(scratch)
        try:
            inspect()
            compressed, root = image.compressed_bytes(scratch), scratch / "root"
            unpacked = image.unpack(root)
            print(
                f"size      {compressed / 1e6:.0f} MB compressed, {unpacked / 1e6:.0f} MB unpacked"
            )
            require(unpacked < image.LIMIT_BYTES, "the image is too big")
            for number, run in enumerate((run_alone, run_interrupted, run_with_s3)):
                folder = scratch / str(number)
                folder.mkdir()
                folder.chmod(0o755)
                run(root, folder)
        except NotAsItShouldBe as problem:
            print(f"image test failed: {problem}", file=sys.stderr)
            return 1
    print("base      Debian bookworm by debootstrap; the published default base was not tried")
    return 0


if __name__ == "__main__":
    sys.exit(main())
