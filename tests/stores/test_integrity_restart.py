"""A real daemon that died knows afterwards what it stored: file store and a real S3 server."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvferry_client import Outcome
from tests.cli.harness import Daemon, attached, environment, key, result_of
from tests.support.s3_servers import started

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = [key(1), key(2)]
CORRUPT, LOADED, STORED = Outcome.CORRUPT, Outcome.LOADED, Outcome.STORED


class Files:
    """Objects of the file store, changed behind the daemon's back."""

    def __init__(self, root: Path) -> None:
        self.variables: dict[str, str] = {}
        self._root = root / "store"
        self.url = self._root.as_uri()

    def damage(self, name: str) -> None:
        [path] = self._root.rglob(f"*{name}.bin")
        path.write_bytes(flipped(path.read_bytes()))


class Bucket:
    """Objects of a bucket, changed behind the daemon's back."""

    def __init__(self, server) -> None:
        self._server = server
        self.url = f"s3://{server.bucket}/p"
        self.variables = server.environment()

    def damage(self, name: str) -> None:
        bucket = self._server.bucket
        with contextlib.closing(self._server.client()) as client:
            listed = client.list_objects_v2(Bucket=bucket)["Contents"]
            [found] = [each["Key"] for each in listed if each["Key"].endswith(f"{name}.bin")]
            body = client.get_object(Bucket=bucket, Key=found)["Body"].read()
            client.put_object(Bucket=bucket, Key=found, Body=flipped(body))


def flipped(data: bytes) -> bytes:
    """The same length, one bit wrong."""
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.fixture(params=["file", "localbucket"])
def objects(request, tmp_path) -> Iterator[Files | Bucket]:
    if request.param == "file":
        yield Files(tmp_path)
    else:
        with started(request.param) as server:
            yield Bucket(server)


@contextlib.contextmanager
def serving(root: Path, objects: Files | Bucket, policy: str, starts: int) -> Iterator[Daemon]:
    config = root / "config.toml"
    config.write_text(
        f'[store]\nurl = "{objects.url}"\n[integrity]\nverify = "{policy}"\n'
        f'catalog_directory = "{root}/catalog"\n[http]\nlisten = ""\n'
    )
    variables = environment(**objects.variables)
    del variables["KVFERRY_CATALOG_DIR"]
    daemon = Daemon(root, "--config", str(config), env=variables)
    try:
        daemon.wait_ready(starts)
        yield daemon
    finally:
        daemon.kill()


def stored(root: Path, objects: Files | Bucket, end: signal.Signals) -> None:
    """Store two chunks and end the daemon."""
    with serving(root, objects, "when-known", 1) as daemon:
        with attached(daemon.sockets) as client:
            result = result_of(client, client.store(KEYS, [0, 1]))
            assert list(result.outcomes) == [STORED, STORED]
        if end is signal.SIGKILL:
            time.sleep(1.0)  # the catalog is written four times a second
        daemon.terminate(end)


def loaded(daemon: Daemon) -> list[Outcome]:
    with attached(daemon.sockets) as client:
        return list(result_of(client, client.load(KEYS, [2, 3])).outcomes)


def test_a_damaged_object_is_corrupt_after_the_daemon_was_killed(tmp_path, objects):
    stored(tmp_path, objects, signal.SIGKILL)
    objects.damage(KEYS[0][:32].hex())
    with serving(tmp_path, objects, "when-known", 2) as daemon:
        assert loaded(daemon) == [CORRUPT, LOADED]


def test_require_after_a_restart_with_and_without_the_catalog(tmp_path):
    objects = Files(tmp_path)
    stored(tmp_path, objects, signal.SIGTERM)
    objects.damage(KEYS[0][:32].hex())
    with serving(tmp_path, objects, "require", 2) as daemon:
        assert loaded(daemon) == [CORRUPT, LOADED]
        daemon.terminate()
    for path in (tmp_path / "catalog").iterdir():
        path.unlink()
    with serving(tmp_path, objects, "require", 3) as daemon:
        assert loaded(daemon) == [CORRUPT, CORRUPT]


def test_off_after_a_restart(tmp_path):
    objects = Files(tmp_path)
    stored(tmp_path, objects, signal.SIGTERM)
    objects.damage(KEYS[0][:32].hex())
    with serving(tmp_path, objects, "off", 2) as daemon:
        assert loaded(daemon) == [LOADED, LOADED]


def test_a_catalog_that_cannot_be_kept_costs_a_line_in_the_log(tmp_path):
    objects = Files(tmp_path)
    (tmp_path / "catalog").write_text("a file in the way")
    with serving(tmp_path, objects, "when-known", 1) as daemon:
        with attached(daemon.sockets) as client:
            assert list(result_of(client, client.store(KEYS, [0, 1])).outcomes) == [STORED] * 2
            assert list(result_of(client, client.load(KEYS, [2, 3])).outcomes) == [LOADED] * 2
        assert daemon.log.count("checksums are in memory only") == 1
    assert (tmp_path / "catalog").read_text() == "a file in the way"
