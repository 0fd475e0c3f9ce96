"""`kvferry check` names the right cause of misconfigurations that are put there on purpose."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.cli.harness import COMMAND, Finished, environment, kvferry, works
from tests.support.fault_server import Fault, FaultServer, full_backlog
from tests.support.processes import free_ports
from tests.support.s3_servers import MotoTLS, S3Server

DENIED = {"status": 403, "code": "AccessDenied"}
MOVED = {"x-amz-bucket-region": "eu-west-1"}
LONG_AGO = formatdate(time.time() - 3600, usegmt=True)


@dataclass(frozen=True)
class Seed:
    """What is wrong, and what has to be said."""

    cause: str
    status: int
    said: str
    fault: Fault | None = None
    url: str = "s3://kvferry-test/p"
    variables: dict[str, str] = field(default_factory=dict)


SEEDS = {
    "wrong bucket": Seed("bucket", 15, "'nowhere' does not exist", url="s3://nowhere/p"),
    "wrong region": Seed(
        "region",
        16,
        "set AWS_REGION=eu-west-1",
        Fault(status=301, code="PermanentRedirect", headers=MOVED),
    ),
    "https on a port of http": Seed(
        "tls", 12, "use http:// in AWS_ENDPOINT_URL_S3", variables={"scheme": "https"}
    ),
    "unknown access key": Seed(
        "credentials",
        14,
        "the access key is not known there",
        Fault(status=403, code="InvalidAccessKeyId"),
    ),
    "wrong secret key": Seed(
        "credentials",
        14,
        "the secret key does not fit",
        Fault(status=403, code="SignatureDoesNotMatch"),
    ),
    "expired token": Seed(
        "credentials", 14, "has expired: renew it", Fault(status=403, code="ExpiredToken")
    ),
    "no credentials": Seed(
        "credentials",
        14,
        "set AWS_ACCESS_KEY_ID",
        variables={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
    ),
    "half a pair of keys": Seed(
        "credentials",
        14,
        "AWS_SECRET_ACCESS_KEY is missing",
        variables={"AWS_SECRET_ACCESS_KEY": ""},
    ),
    "clock, by the Date header": Seed(
        "clock",
        13,
        "set this machine's clock",
        Fault(method="HEAD", key="", headers={"Date": LONG_AGO}),
    ),
    "clock, by a refusal": Seed(
        "clock", 13, "clock is off", Fault(status=403, code="RequestTimeTooSkewed")
    ),
    "no right to put": Seed(
        "permission", 17, '"Action": "s3:PutObject"', Fault(method="PUT", **DENIED)
    ),
    "no right to get": Seed(
        "permission", 17, '"Action": "s3:GetObject"', Fault(method="GET", key="p/*", **DENIED)
    ),
    "bytes changed on the way": Seed(
        "dialect", 18, "use another S3 server", Fault(method="PUT", mangle=True)
    ),
    "checksums refused whatever they are": Seed(
        "dialect", 18, "signed or summed", Fault(method="PUT", status=501, code="NotImplemented")
    ),
    "bucket in the endpoint's name": Seed(
        "dialect",
        18,
        "set AWS_ENDPOINT_URL_S3=http://localhost:",
        variables={"host": "kvferry-test.localhost"},
    ),
    "unknown host": Seed(
        "dns", 10, "correct AWS_ENDPOINT_URL_S3", variables={"host": "no.invalid"}
    ),
    "a server that is busy": Seed(
        "endpoint", 19, "answers 503: wait", Fault(status=503, code="SlowDown")
    ),
    "a server that is no S3": Seed("endpoint", 19, "answers 418", Fault(status=418)),
    "a put that never ends": Seed("slow", 20, "answer in time", Fault(method="PUT", delay=60)),
    "an unreadable CA": Seed(
        "tls",
        12,
        "AWS_CA_BUNDLE",
        variables={"scheme": "https", "AWS_CA_BUNDLE": __file__},
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer() as started:
        yield started


def check(url: str, variables: dict[str, str], *flags: str) -> tuple[Finished, dict]:
    done = kvferry("check", url, "--json", *flags, env=environment(**variables))
    assert "Traceback" not in done.err
    return done, json.loads(done.out)


@pytest.mark.parametrize("name", SEEDS)
def test_a_seeded_misconfiguration_is_named(server, name):
    seed = SEEDS[name]
    server.clear()
    if seed.fault:
        server.add(seed.fault)
    given = dict(seed.variables)
    scheme, host = given.pop("scheme", "http"), given.pop("host", "127.0.0.1")
    endpoint = f"{scheme}://{host}:{server.port}"
    merged = server.environment() | {"AWS_ENDPOINT_URL_S3": endpoint} | given
    done, found = check(seed.url, {k: v for k, v in merged.items() if v})
    assert (found["cause"], done.status) == (seed.cause, seed.status), found
    assert seed.said in found["problem"]
    assert not found["ready"]
    assert merged["AWS_SECRET_ACCESS_KEY"] not in done.out or not merged["AWS_SECRET_ACCESS_KEY"]


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        ("s3:ListBucket", Fault(method="HEAD", key="p/.kvferry-preflight/*", **DENIED)),
        ("s3:DeleteObject", Fault(method="DELETE", **DENIED)),
    ],
)
def test_a_right_that_chunks_can_do_without_is_a_warning(server, action, fault):
    server.clear()
    server.add(fault)
    _done, found = check("s3://kvferry-test/p", server.environment())
    [step] = [step for step in found["steps"] if step["name"] == action]
    assert (step["level"], step["cause"]) == ("warn", "permission")
    assert f'"Action": "{action}"' in step["advice"]


def test_a_closed_port_and_one_that_accepts_nothing(server):
    for port, said in ((free_ports(1)[0], "nothing listens"), (None, "within 2 s")):
        with full_backlog() as full:
            endpoint = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port or full}"}
            done, found = check("s3://bucket/p", server.environment() | endpoint)
        assert (found["cause"], done.status) == ("connect", 11)
        assert said in found["problem"]


@pytest.fixture(scope="module")
def tls() -> Iterator[S3Server]:
    started = MotoTLS()
    try:
        started.start()
        yield started
    finally:
        started.close()


def test_certificates_and_schemes_of_a_server_with_tls(tls):
    variables = tls.environment()
    done, found = check(f"s3://{tls.bucket}/p", variables)
    assert done.status == 0, found
    steps = {step["name"]: step for step in found["steps"]}
    assert "TLS" in steps["tls"]["detail"]
    assert steps["tls"]["cause"] == "tls", "a certificate that ends tomorrow is a warning"
    assert "this machine's differs by" in steps["clock"]["detail"]
    untrusted = {key: value for key, value in variables.items() if key != "AWS_CA_BUNDLE"}
    done, found = check(f"s3://{tls.bucket}/p", untrusted)
    assert (found["cause"], done.status) == ("tls", 12)
    assert "set AWS_CA_BUNDLE to its CA's certificate" in found["problem"]
    plain = {"AWS_ENDPOINT_URL_S3": tls.endpoint_url.replace("https", "http")}
    done, found = check(f"s3://{tls.bucket}/p", variables | plain)
    assert (found["cause"], done.status) == ("tls", 12)
    assert "use https:// in AWS_ENDPOINT_URL_S3" in found["problem"]


def test_a_slow_network(server, tmp_path):
    server.clear()
    before = server.keys()
    server.add(Fault(method="GET", key="p/.kvferry-preflight/*", skip=3, slow=2))
    config = tmp_path / "config.toml"
    config.write_text("[timeouts]\ntransfer_seconds = 1\n")
    done, found = check("s3://kvferry-test/p", server.environment(), "--config", str(config))
    assert (found["cause"], done.status) == ("slow", 20), found
    assert "raise timeouts.transfer_seconds" in found["problem"]
    assert server.keys() == before


def test_slow_lookups(server, tmp_path):
    server.clear()
    server.add(Fault(method="HEAD", key="p/.kvferry-preflight/*", skip=1, delay=0.5))
    config = tmp_path / "config.toml"
    config.write_text("[timeouts]\nlookup_seconds = 0.3\n")
    done, found = check("s3://kvferry-test/p", server.environment(), "--config", str(config))
    assert (found["cause"], done.status) == ("slow", 20), found
    assert "raise timeouts.lookup_seconds" in found["problem"]


def test_credentials_that_expire_are_told_by_source_and_time(server, tmp_path):
    server.clear()
    variables = server.environment()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del variables[name]
    for offset, level in ((1000, "ok"), (120, "warn")):
        expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + offset))
        keys = {
            "Version": 1,
            "AccessKeyId": "AKIAEXAMPLE",
            "SecretAccessKey": "s3cretvalue",
            "SessionToken": "t0kenvalue",
            "Expiration": expiry,
        }
        (tmp_path / "keys.json").write_text(json.dumps(keys))
        profile = f"[default]\ncredential_process = cat {tmp_path}/keys.json\n"
        (tmp_path / "aws").write_text(profile)
        done, found = check(
            "s3://kvferry-test/p", variables | {"AWS_CONFIG_FILE": str(tmp_path / "aws")}
        )
        [step] = [step for step in found["steps"] if step["name"] == "credentials"]
        assert step["level"] == level
        assert "found in credential_process, expire in " in step["detail"]
        for value in ("AKIAEXAMPLE", "s3cretvalue", "t0kenvalue"):
            assert value not in done.out + done.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() or not works(mount):
        pytest.skip("a file system can't be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(small_disk):
    done, found = check(f"file://{small_disk}/store", {})
    assert (found["cause"], done.status) == ("disk", 21)
    assert "No space left on device: free some space" in found["problem"]
    assert list(small_disk.iterdir()) == []


def test_a_directory_that_may_not_be_written(tmp_path):
    """Root is held back by the mode too, once it has no right to override it."""
    (tmp_path / "closed").mkdir(mode=0o500)
    held_back = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--"]
    done = subprocess.run(
        [*held_back[: 0 if os.geteuid() else 4], *COMMAND, "check", f"file://{tmp_path}/closed/x"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 17, done.stdout
    assert "Permission denied" in done.stdout
    assert "change its owner or mode" in done.stdout
    assert list((tmp_path / "closed").iterdir()) == []


def test_a_check_changes_nothing(tmp_path):
    typo = tmp_path / "typo" / "store"
    state = tmp_path / "state"
    done, found = check(typo.as_uri(), {"KVFERRY_CATALOG_DIR": str(state)})
    assert (done.status, found["ready"]) == (0, True)
    [step] = [step for step in found["steps"] if step["name"] == "directory"]
    assert step["level"] == "warn"
    assert f"{typo} does not exist; the daemon would make it in {tmp_path}" in step["detail"]
    assert "correct store.url" in step["advice"]
    assert list(tmp_path.iterdir()) == []
    store = tmp_path / "store"
    left_by_a_dead_daemon = store / ".tmp" / f"kvferry-{16 * '0'}" / "1.part"
    left_by_a_dead_daemon.parent.mkdir(parents=True)
    left_by_a_dead_daemon.touch()
    (store / "object.bin").touch()
    before = sorted(store.rglob("*"))
    done, found = check(store.as_uri(), {"KVFERRY_CATALOG_DIR": str(state)})
    assert (done.status, found["ready"]) == (0, True)
    assert sorted(store.rglob("*")) == before
    assert not state.exists()


def test_a_good_store_in_words(server):
    server.clear()
    before = server.keys()
    done = kvferry("check", "s3://kvferry-test/p", env=environment(**server.environment()))
    assert done.status == 0
    found = [line for line in done.out.splitlines()[:-1] if line[0] != " "]  # a slow one has advice
    names = [line[6:].partition("  ")[0] for line in found]
    assert names == [
        "dns",
        "tcp",
        "clock",
        "credentials",
        "bucket",
        "s3:PutObject",
        "s3:GetObject",
        "s3:ListBucket",
        "s3:DeleteObject",
        "round trip",
        "clean-up",
        "lookup",
        "store",
        "load",
    ]
    assert "iB/s on one connection" in done.out
    assert server.keys() == before


def test_C05_without_a_region_nixl_asks_no_metadata_service_for_one():
    """One that does not answer would cost 2 s for each of its agents."""
    with socket.create_server(("127.0.0.1", 0)) as silent, FaultServer() as server:
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = environment(**server.environment(), AWS_EC2_METADATA_SERVICE_ENDPOINT=place)
        for name in ("AWS_REGION", "AWS_EC2_METADATA_DISABLED"):
            env.pop(name, None)
        assert kvferry("check", f"s3://{server.bucket}/p", env=env).status == 0
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
