"""https endpoints: which certificates are trusted, and what is said if one is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3_servers import MotoTLS, S3Server


@pytest.fixture(scope="module")
def tls() -> Iterator[S3Server]:
    server = MotoTLS()
    try:
        server.start()
        yield server
    finally:
        server.close()


def test_a_certificate_of_the_ca_bundle_is_trusted(preflight, tls):
    result = preflight(tls)
    assert result.report.problem == ""
    assert result.report.ready
    assert "TLS" in result.report.steps[0].detail


def test_without_a_ca_bundle_boto3_and_nixl_trust_what_the_system_trusts(preflight, tls):
    result = preflight(tls, AWS_CA_BUNDLE="", SSL_CERT_FILE=tls.ca_bundle)
    assert result.report.problem == ""
    assert result.report.ready


def test_a_certificate_that_nobody_vouches_for_is_named(preflight, tls):
    result = preflight(tls, AWS_CA_BUNDLE="")
    assert result.report.problem.startswith("endpoint: the certificate of 127.0.0.1 is not trusted")
    assert "set AWS_CA_BUNDLE" in result.report.problem


def test_http_on_an_https_port_is_explained(preflight, tls):
    result = preflight(tls, AWS_ENDPOINT_URL_S3=tls.endpoint_url.replace("https", "http"))
    assert result.report.problem.startswith("endpoint: ")
    assert "https" in result.report.problem
