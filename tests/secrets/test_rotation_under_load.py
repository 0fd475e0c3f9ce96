"""Keys change while chunks move, on a server that refuses the old ones: nothing is lost."""

from __future__ import annotations

import collections
import contextlib
import json
import mmap
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import pytest

from kvferry_client import Client, Outcome
from tests.cli.harness import GUARD_SECONDS, Daemon, environment, wait_for
from tests.support.s3_server import REGION
from tests.support.s3_servers import Moto

SLOT_BYTES, CHUNKS = 16_384, 8
ENGINES = 3
S3_ACTIONS = ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject")


class KeyRing:
    """The keys of one user of the server, and the mounted secret that holds the present ones."""

    def __init__(self, server: Moto, root: Path) -> None:
        self._root = root
        self._number = 0
        server.require_keys("*")
        self._iam = boto3.session.Session().client(
            "iam",
            endpoint_url=server.endpoint_url,
            region_name=REGION,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
        )
        statement = {"Effect": "Allow", "Action": list(S3_ACTIONS), "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self._iam.create_user(UserName="store")
        self._iam.put_user_policy(UserName="store", PolicyName="store", PolicyDocument=policy)
        self._present = ""
        self.change()

    @property
    def file(self) -> Path:
        """What AWS_SHARED_CREDENTIALS_FILE names."""
        return self._root / "credentials"

    def change(self) -> None:
        """Make new keys, mount them, and have the server refuse the old ones at once."""
        keys = self._iam.create_access_key(UserName="store")["AccessKey"]
        self._mount(keys["AccessKeyId"], keys["SecretAccessKey"])
        if self._present:
            self._iam.delete_access_key(UserName="store", AccessKeyId=self._present)
        self._present = keys["AccessKeyId"]

    def _mount(self, access_key: str, secret_key: str) -> None:
        """As Kubernetes does it: a new directory, and a link to it that is replaced by a rename."""
        self._number += 1
        new = self._root / f"..{self._number}"
        new.mkdir(parents=True)
        lines = ["[default]", f"aws_access_key_id = {access_key}"]
        lines.append(f"aws_secret_access_key = {secret_key}\n")
        (new / "credentials").write_text("\n".join(lines))
        (self._root / "..tmp").symlink_to(new.name)
        (self._root / "..tmp").rename(self._root / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to("..data/credentials")

    def close(self) -> None:
        self._iam.close()


@dataclass
class Engine:
    """Stores and loads without a pause, and compares every byte."""

    number: int
    client: Client
    memory: mmap.mmap
    outcomes: collections.Counter[Outcome] = field(default_factory=collections.Counter)
    jobs: int = 0
    wrong: int = 0

    def run(self, ended: threading.Event) -> None:
        rounds = 0
        while not ended.is_set():
            rounds += 1
            data = secrets.token_bytes(CHUNKS * SLOT_BYTES)
            keys = [
                b"%08d%08d%08d" % (self.number, rounds, index) + bytes(4) for index in range(CHUNKS)
            ]
            self.memory[: len(data)] = data
            self._finish(self.client.store(keys, list(range(CHUNKS))))
            self.memory[len(data) :] = bytes(len(data))
            self._finish(self.client.load(keys, list(range(CHUNKS, 2 * CHUNKS))))
            self.wrong += self.memory[len(data) :] != data

    def _finish(self, job: int) -> None:
        self.jobs += 1
        assert self.client.wait_results(GUARD_SECONDS)
        [result] = self.client.take_results()
        assert result.job_id == job
        self.outcomes.update(result.outcomes)


@contextlib.contextmanager
def engine(number: int, sockets: Path) -> Iterator[Engine]:
    descriptor = os.memfd_create("kvferry-rotation-test")
    os.ftruncate(descriptor, 2 * CHUNKS * SLOT_BYTES)
    memory = mmap.mmap(descriptor, 2 * CHUNKS * SLOT_BYTES)
    os.close(descriptor)
    view = memoryview(memory).cast("B", shape=[2 * CHUNKS, SLOT_BYTES])
    client = Client(sockets, view, namespace="test", engine_id=f"engine-{number}")
    try:
        assert client.wait_attached(GUARD_SECONDS), client.last_error
        yield Engine(number, client, memory)
    finally:
        client.close()


def refused_tries(server_log: str) -> collections.Counter[tuple[str, str]]:
    """How often the server refused to store or give each chunk."""
    found = re.findall(r'"(?:\x1b\[[0-9;]*m)*(PUT|GET) (\S+\.bin)\S* HTTP/1.1.*?" 403', server_log)
    return collections.Counter(found)


def rotate_under_load(tmp_path: Path, seconds: float, period: float) -> None:
    with ExitStack() as stack:
        server = Moto()
        stack.callback(server.close)
        server.start()
        keys = KeyRing(server, tmp_path / "secret")
        stack.callback(keys.close)
        variables = server.environment() | {"AWS_SHARED_CREDENTIALS_FILE": str(keys.file)}
        del variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]
        url = f"s3://{server.bucket}/rotation"
        daemon = Daemon(tmp_path, "--store-url", url, env=environment(**variables))
        stack.callback(daemon.kill)
        daemon.wait_ready()
        engines = [stack.enter_context(engine(n, daemon.sockets)) for n in range(ENGINES)]
        ended = threading.Event()
        threads = [threading.Thread(target=each.run, args=(ended,)) for each in engines]
        for thread in threads:
            thread.start()
        changes = int(seconds / period)
        for _ in range(changes):
            time.sleep(period)
            keys.change()
        ended.set()
        for thread in threads:
            thread.join(GUARD_SECONDS)
            assert not thread.is_alive()
        outcomes = sum((each.outcomes for each in engines), collections.Counter[Outcome]())
        jobs = sum(each.jobs for each in engines)
        assert set(outcomes) == {Outcome.STORED, Outcome.LOADED}
        assert outcomes.total() == jobs * CHUNKS
        assert [each.wrong for each in engines] == [0] * ENGINES
        refused = refused_tries((server.directory / "server.log").read_text(errors="replace"))
        assert not refused or max(refused.values()) == 1
        renewals = daemon.log.count("are in use from now on")
        assert renewals == changes
        print(  # noqa: T201 - the figures of `make rotation`
            f"{jobs} jobs, {outcomes.total()} chunks, {changes} changes of keys, "
            f"{refused.total()} chunks refused once, none twice, none lost"
        )


def test_keys_change_under_load_and_no_job_is_lost(tmp_path):
    rotate_under_load(tmp_path, seconds=12, period=4)


@pytest.mark.slow
def test_keys_change_every_ten_seconds_for_three_minutes(tmp_path):
    rotate_under_load(tmp_path, seconds=180, period=10)


def test_sighup_has_credentials_read_anew(tmp_path):
    server = Moto()
    try:
        server.start()
        url = f"s3://{server.bucket}/rotation"
        daemon = Daemon(tmp_path, "--store-url", url, env=environment(**server.environment()))
        try:
            daemon.wait_ready()
            daemon.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "credentials are read anew" in daemon.log)
            status, _ = daemon.terminate()
            assert status == 0
        finally:
            daemon.kill()
    finally:
        server.close()
