"""The preflight against real servers and against faults: what it chooses, what it blames."""

from __future__ import annotations

import time

import pytest

from kvferry_server.adapters.s3_credentials import Resolved
from kvferry_server.adapters.s3_preflight import S3Preflight
from kvferry_server.adapters.s3_types import (
    Credentials,
    Dialect,
    PreflightResult,
    RoundTrip,
    S3Settings,
)
from kvferry_server.core.ports import Preflight
from tests.support.fault_server import Fault, FaultServer, full_backlog
from tests.support.preflights import run_preflight, with_store
from tests.support.processes import free_ports


def test_a_right_store_is_ready(preflight, localbucket):
    result = preflight(localbucket)
    assert result.report.problem == ""
    assert result.report.ready
    assert result.report.settings == "path addressing, checksum required"
    assert result.dialect.words == result.report.settings
    assert [step.name for step in result.report.steps] == [
        "endpoint",
        "credentials",
        "bucket",
        "round trip",
        "clean-up",
    ]
    assert all(step.passed for step in result.report.steps)


def test_nothing_stays_behind(preflight, fault_server):
    assert preflight(fault_server).report.ready
    assert fault_server.keys() == []
    puts = fault_server.requests(method="PUT")
    assert puts
    assert all(put.key.startswith("some/prefix/.kvferry-preflight/") for put in puts)


def test_S05_a_missing_bucket_is_named(preflight, moto):
    result = preflight(moto, bucket="no-such-bucket")
    assert not result.report.ready
    assert "no-such-bucket" in result.report.problem
    assert result.report.problem.startswith("bucket: ")
    assert "create it" in result.report.problem


def test_S05_a_404_for_every_made_up_key_does_not_hide_a_missing_bucket(preflight, fault_server):
    fault_server.add(Fault(method="HEAD", status=404))
    result = preflight(fault_server)
    assert result.report.problem.startswith("bucket: 'kvferry-test' does not exist")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_S07_with_an_endpoint_the_bucket_is_in_the_path(preflight, fault_server, host):
    address = f"{host}:{fault_server.port}"
    result = preflight(fault_server, AWS_ENDPOINT_URL_S3=f"http://{address}")
    assert result.report.settings == "path addressing, checksum required"
    requests = fault_server.requests()
    assert len(requests) >= 5
    for request in requests:
        assert request.bucket == fault_server.bucket
        assert request.headers["host"] == address


@pytest.mark.parametrize("status", [301, 307])
def test_S08_a_redirect_names_the_region(preflight, fault_server, status):
    code = "PermanentRedirect" if status == 301 else "TemporaryRedirect"
    headers = {"x-amz-bucket-region": "eu-west-1"}
    fault_server.add(Fault(status=status, code=code, headers=headers))
    result = preflight(fault_server)
    assert result.report.problem == (
        "region: 'kvferry-test' is in eu-west-1, not in us-east-1: set AWS_REGION=eu-west-1"
    )
    assert len(fault_server.requests()) == 1


def test_S08_a_server_that_takes_the_redirected_request_does_not_hide_it(preflight, fault_server):
    headers = {"x-amz-bucket-region": "eu-west-1"}
    fault_server.add(Fault(status=301, code="PermanentRedirect", headers=headers, times=1))
    assert "set AWS_REGION=eu-west-1" in preflight(fault_server).report.problem


def test_S08_a_bad_request_that_names_another_region_means_the_region(preflight, fault_server):
    fault_server.add(Fault(status=400, headers={"x-amz-bucket-region": "eu-west-1"}))
    assert "set AWS_REGION=eu-west-1" in preflight(fault_server).report.problem
    assert len(fault_server.requests()) <= 2


def test_S09_an_endpoint_that_accepts_nothing_is_given_up_soon():
    def round_trip(*_: object) -> bool:
        raise AssertionError("nothing to talk to")

    keys = Resolved(Credentials("key", "secret"), "the test")
    with full_backlog() as port:
        settings = S3Settings("bucket", "pre", f"http://127.0.0.1:{port}")
        began = time.monotonic()
        report = S3Preflight(settings, round_trip, lambda: keys).run().report
        seconds = time.monotonic() - began
    assert report.problem.startswith(f"endpoint: 127.0.0.1 port {port} does not accept")
    assert "AWS_ENDPOINT_URL_S3" in report.problem
    assert seconds <= 3


def test_a_closed_port_is_named(preflight, localbucket):
    port = free_ports(1)[0]
    result = preflight(localbucket, AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{port}")
    assert result.report.problem == (
        f"endpoint: nothing listens on 127.0.0.1 port {port}: "
        "start it or correct AWS_ENDPOINT_URL_S3"
    )


def test_an_unknown_host_is_named(preflight, localbucket):
    result = preflight(localbucket, AWS_ENDPOINT_URL_S3="http://no-such-host.invalid:9000")
    assert result.report.problem.startswith("endpoint: the host name 'no-such-host.invalid'")


def test_https_on_a_plain_port_is_explained(preflight, localbucket):
    url = f"https://127.0.0.1:{localbucket.port}"
    result = preflight(localbucket, AWS_ENDPOINT_URL_S3=url)
    assert result.report.problem.startswith("endpoint: ")
    assert "http://" in result.report.problem


def test_a_server_that_accepts_and_says_nothing_is_given_up(preflight, fault_server):
    fault_server.add(Fault(hang="start"))
    began = time.monotonic()
    result = preflight(fault_server)
    assert time.monotonic() - began < 20
    assert result.report.problem.startswith("endpoint: ")
    assert "does not answer in time" in result.report.problem


def test_a_proxy_of_the_environment_is_not_used(preflight, localbucket, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert preflight(localbucket).report.ready


def test_missing_credentials_are_named(preflight, localbucket):
    result = preflight(localbucket, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert result.report.problem.startswith("credentials: no AWS credentials found: set ")
    assert [step.name for step in result.report.steps] == ["endpoint", "credentials"]


def test_a_wrong_secret_is_told_from_a_wrong_key(preflight, strict_moto):
    wrong_secret = preflight(strict_moto, AWS_SECRET_ACCESS_KEY="not-the-secret")
    wrong_key = preflight(strict_moto, AWS_ACCESS_KEY_ID="AKIANOTTHEKEY0000000")
    assert "secret key does not fit" in wrong_secret.report.problem
    assert "access key is not known" in wrong_key.report.problem


def test_a_real_refusal_to_write_is_named(preflight, strict_moto):
    result = preflight(strict_moto)
    assert [step.passed for step in result.report.steps] == [True, True, True, False]
    assert "s3:PutObject" in result.report.problem


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("InvalidAccessKeyId", "access key is not known"),
        ("SignatureDoesNotMatch", "secret key does not fit"),
        ("ExpiredToken", "session token has expired"),
        ("RequestTimeTooSkewed", "clock"),
    ],
)
def test_refused_credentials_are_explained(preflight, fault_server, code, hint):
    fault_server.add(Fault(status=403, code=code))
    result = preflight(fault_server)
    assert result.report.problem.startswith("credentials: ")
    assert hint in result.report.problem


def test_a_bucket_that_may_not_be_listed_is_no_obstacle(preflight, fault_server):
    fault_server.add(Fault(key="", status=403, code="AccessDenied"))
    result = preflight(fault_server)
    assert result.report.ready
    assert "s3:ListBucket" in result.report.steps[2].detail


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_missing_right_is_named(preflight, fault_server, method):
    fault_server.add(Fault(method=method, key="some/*", status=403, code="AccessDenied"))
    result = preflight(fault_server)
    assert result.report.problem.startswith("credentials: ")
    assert "s3:GetObject, s3:PutObject" in result.report.problem


def test_a_missing_right_to_delete_is_no_obstacle(preflight, fault_server):
    fault_server.add(Fault(method="DELETE", status=403, code="AccessDenied"))
    result = preflight(fault_server)
    assert result.report.ready
    assert "delete failed" in result.report.steps[-1].detail


def test_a_busy_server_is_no_wrong_setting(preflight, fault_server):
    fault_server.add(Fault(status=503, code="SlowDown"))
    assert "answers 503" in preflight(fault_server).report.problem


def test_H01_a_server_without_the_newer_checksums_works(preflight):
    with FaultServer(refuse_checksums=True) as server:
        result = preflight(server)
        assert result.report.ready
        assert result.report.settings == "path addressing, checksum required"
        assert result.dialect is not None
        assert not result.dialect.tells_checksums
        [refused] = [request for request in server.requests() if request.status >= 300]
        assert refused.method == "HEAD", "asked once whether checksums may be asked for"
        assert "x-amz-checksum-mode" in refused.headers


def test_H01_a_server_that_stores_the_framing_works(preflight):
    with FaultServer(keep_framing=True) as server:
        result = preflight(server)
        assert result.report.ready
        assert result.report.settings == "path addressing, checksum required"


def test_a_server_that_changes_bytes_is_not_used(preflight, fault_server):
    fault_server.add(Fault(method="PUT", mangle=True))
    result = preflight(fault_server)
    assert not result.report.ready
    assert result.report.problem.startswith("checksum: ")
    assert fault_server.keys() == []


def test_a_server_that_stores_nothing_is_not_used(preflight, fault_server):
    fault_server.add(Fault(method="PUT", discard=True))
    assert not preflight(fault_server).report.ready


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"region": "no region"}, "region: 'no region' is not a region's name"),
        ({"bucket": "no/bucket"}, "bucket: 'no/bucket' is not a name that S3 takes"),
    ],
)
def test_settings_that_boto3_refuses_are_a_problem_and_no_crash(fault_server, settings, problem):
    where = {"bucket": fault_server.bucket, "endpoint_url": fault_server.endpoint_url}
    report = run_preflight(S3Settings(**where | settings), "key", "secret").report
    assert report.problem.startswith(problem)


@pytest.mark.parametrize("dialect", [Dialect("path", "required"), Dialect("path", "supported")])
def test_H02_H03_what_is_signed_and_summed(fault_server, dialect):
    settings = S3Settings(fault_server.bucket, "pre", fault_server.endpoint_url)

    def only(round_trip: RoundTrip) -> PreflightResult:
        assert round_trip(dialect, Credentials("key", "secret"), "pre/k", bytes(70_000))
        return PreflightResult(Preflight(ready=False, settings="", problem="", steps=()))

    with_store(settings, only)
    assert {each.method for each in fault_server.requests(key="pre/k")} >= {"PUT", "GET"}
    for each in fault_server.requests(key="pre/k"):
        signed = each.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
        assert "accept-encoding" not in signed.split(";")
        if "x-amz-sdk-checksum-algorithm" in each.headers:
            summed = [name for name in each.headers if name.startswith("x-amz-checksum-")]
            assert summed or "x-amz-trailer" in each.headers


@pytest.mark.parametrize("stored", [b"other", None, "longer"])
def test_what_is_stored_counts_and_not_what_came_back(fault_server, stored):
    """The round trip sees its own bytes, but they are not what is stored."""
    settings = S3Settings(fault_server.bucket, "pre", fault_server.endpoint_url)

    def round_trip(_: Dialect, __: Credentials, key: str, payload: bytes) -> bool:
        if stored is not None:
            fault_server.put(key, payload + b"more" if stored == "longer" else stored)
        return True

    keys = Resolved(Credentials("key", "secret"), "the test")
    report = S3Preflight(settings, round_trip, lambda: keys).run().report
    assert not report.ready


def test_something_that_is_no_s3_is_not_used(preflight, fault_server):
    fault_server.add(Fault(status=418))
    problem = preflight(fault_server).report.problem
    assert problem.startswith("endpoint: ")
    assert "AWS_ENDPOINT_URL_S3" in problem


def test_the_problem_is_one_line_without_keys(preflight, fault_server):
    fault_server.add(Fault(status=403, code="SignatureDoesNotMatch"))
    keys = fault_server.environment()
    text = repr(preflight(fault_server))
    assert keys["AWS_SECRET_ACCESS_KEY"] not in text
    assert keys["AWS_ACCESS_KEY_ID"] not in text
    assert "\n" not in text
