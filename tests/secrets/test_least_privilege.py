"""The documented S3 policy is enough, each of its actions is needed, and no capability is."""

from __future__ import annotations

import json
import platform
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest

from kvferry_client import Outcome
from kvferry_server.adapters.s3_types import Credentials, S3Settings
from kvferry_server.core.types import Presence, TransferStatus
from tests.cli.harness import Daemon, attached, environment, key, result_of
from tests.stores.subjects import load_bytes, make_s3_store, probe_once, store_bytes
from tests.support.s3_server import BUCKET, REGION
from tests.support.s3_servers import Moto

POLICY = Path(__file__).parents[2] / "docs" / "s3-policy.json"
PREFIX = "some/prefix"
ACTIONS = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"]
NO_CAPABILITIES = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"]


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    running = Moto()
    try:
        running.start()
        running.require_keys("*")
        yield running
    finally:
        running.close()


def keys_with(server: Moto, policy: str) -> Credentials:
    """Keys of a new user of that policy."""
    iam = boto3.session.Session().client(
        "iam",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    name = secrets.token_hex(8)
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="policy", PolicyDocument=policy)
    found = iam.create_access_key(UserName=name)["AccessKey"]
    iam.close()
    return Credentials(found["AccessKeyId"], found["SecretAccessKey"])


def policy_without(action: str = "") -> str:
    document = json.loads(POLICY.read_text())
    for statement in document["Statement"]:
        actions = statement["Action"]
        kept = [
            each for each in ([actions] if isinstance(actions, str) else actions) if each != action
        ]
        statement["Action"] = kept
    document["Statement"] = [each for each in document["Statement"] if each["Action"]]
    return json.dumps(document).replace("BUCKET", BUCKET).replace("PREFIX", PREFIX)


def test_the_policy_names_what_the_refusals_name():
    assert sorted(re.findall(r"s3:\w+", POLICY.read_text())) == sorted(ACTIONS)


def test_the_documented_policy_is_enough(server):
    settings = S3Settings(server.bucket, PREFIX, server.endpoint_url)
    store = make_s3_store(settings, keys_with(server, policy_without()))
    try:
        report = store.preflight()
        assert report.ready, report
        assert report.steps[-1].detail == "scratch objects deleted"
        data = secrets.token_bytes(10_000)
        assert store_bytes(store, "a/b.bin", data) is TransferStatus.OK
        assert load_bytes(store, "a/b.bin", len(data)) == (TransferStatus.OK, data)
        assert probe_once(store, ["a/b.bin", "c"]) == [Presence.PRESENT, Presence.ABSENT]
    finally:
        store.close()


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_is_needed_and_its_lack_is_named(server, action):
    settings = S3Settings(server.bucket, PREFIX, server.endpoint_url)
    store = make_s3_store(settings, keys_with(server, policy_without(action)))
    try:
        report = store.preflight()
    finally:
        store.close()
    text = " ".join([report.problem, *(step.detail for step in report.steps)])
    assert action in text
    needed = action in {"s3:GetObject", "s3:PutObject"}
    assert report.ready is not needed


def test_another_prefix_is_out_of_reach(server):
    settings = S3Settings(server.bucket, "other/prefix", server.endpoint_url)
    store = make_s3_store(settings, keys_with(server, policy_without()))
    try:
        assert not store.preflight().ready
    finally:
        store.close()


x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter's numbers")


@x86_64
@pytest.mark.parametrize("kind", ["s3", "file"])
def test_the_daemon_needs_no_capability_and_no_call_that_runtimes_refuse(tmp_path, kind):
    with ExitStack() as stack:
        server = Moto()
        stack.callback(server.close)
        server.start()
        url = f"s3://{server.bucket}/x" if kind == "s3" else (tmp_path / "store").as_uri()
        daemon = Daemon(
            tmp_path,
            "--store-url",
            url,
            env=environment(**server.environment()),
            prefix=[*NO_CAPABILITIES, "--", sys.executable, "-m", "tests.secrets.confined"],
        )
        stack.callback(daemon.kill)
        daemon.wait_ready()
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        assert re.findall(r"Cap(?:Eff|Prm|Bnd|Amb):\s+(\w+)", status) == ["0" * 16] * 4
        assert re.search(r"NoNewPrivs:\s+1", status)
        assert re.search(r"Seccomp:\s+2", status)
        client = stack.enter_context(attached(daemon.sockets))
        assert result_of(client, client.store([key(1)], [0])).outcomes == (Outcome.STORED,)
        assert result_of(client, client.load([key(1)], [1])).outcomes == (Outcome.LOADED,)
        assert daemon.terminate()[0] == 0


@x86_64
def test_the_filter_refuses_what_it_names():
    command = [sys.executable, "-m", "tests.secrets.confined", "unshare", "--user", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Operation not permitted" in done.stderr
    assert subprocess.run([*command[:3], "true"], check=False).returncode == 0
