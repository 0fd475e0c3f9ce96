"""Credentials and settings by AWS's standard names: which win, and what a failure says."""

from __future__ import annotations

import ctypes
import os
import socket
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvferry_server.adapters import s3_credentials
from kvferry_server.adapters.s3_credentials import (
    credential_files,
    resolve_credentials,
    settings_from_environment,
)
from kvferry_server.adapters.s3_types import CredentialsUnavailable
from kvferry_server.core.errors import ConfigError
from tests.support.token_service import token_service

SECRET = "kEeP-tHiS-oUt"


@pytest.fixture
def aws_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Writes an AWS config or credentials file."""

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(text)
        variable = "AWS_CONFIG_FILE" if name == "config" else "AWS_SHARED_CREDENTIALS_FILE"
        monkeypatch.setenv(variable, str(path))

    return write


def failure() -> str:
    with pytest.raises(CredentialsUnavailable) as caught:
        resolve_credentials()
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_variables_win(monkeypatch, aws_file):
    aws_file("credentials", "[default]\naws_access_key_id = file\naws_secret_access_key = f\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "variable")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "v")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    credentials, source = resolve_credentials()
    assert credentials.access_key.reveal() == "variable"
    assert credentials.session_token.reveal() == "t"
    assert source == "environment variables"


def test_a_profile_is_read_anew_each_time(monkeypatch, aws_file):
    monkeypatch.setenv("AWS_PROFILE", "store")
    text = "[store]\naws_access_key_id = {}\naws_secret_access_key = f\n"
    aws_file("credentials", text.format("first"))
    assert resolve_credentials().credentials.access_key.reveal() == "first"
    aws_file("credentials", text.format("second"))
    assert resolve_credentials().credentials.access_key.reveal() == "second"


def test_a_secret_shows_in_no_repr(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA" + SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    resolved = resolve_credentials()
    assert resolved.credentials.secret_key.reveal() == SECRET
    assert SECRET not in f"{resolved!r} {resolved} {resolved.credentials}"


def test_no_credentials_at_all():
    assert failure().startswith("no AWS credentials found: set AWS_ACCESS_KEY_ID")


def test_an_unknown_profile_is_named(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "AWS_PROFILE names 'nobody'" in failure()
    with pytest.raises(ConfigError, match="'nobody'"):
        settings_from_environment("bucket")


def test_half_a_pair_is_named(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    assert "AWS_SECRET_ACCESS_KEY" in failure()


def test_a_broken_file_is_named_and_not_shown(aws_file, tmp_path):
    aws_file("credentials", f"aws_secret_access_key = {SECRET}\n[")
    assert str(tmp_path / "credentials") in failure()


@pytest.mark.parametrize("command", ["cat {} >&2; exit 1", "cat {}"])
def test_a_failed_credential_process_is_not_quoted(aws_file, tmp_path, command):
    (tmp_path / "secret").write_text(SECRET)
    script = tmp_path / "process"
    script.write_text("#!/bin/sh\n" + command.format(tmp_path / "secret"))
    script.chmod(0o700)
    aws_file("config", f"[default]\ncredential_process = {script}\n")
    assert "credential" in failure()


def test_a_missing_web_identity_token_is_explained(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/store")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "none"))
    assert "can't be read" in failure()


@pytest.fixture
def sts(monkeypatch, tmp_path):
    """A token service, and the file with the token that is sent there."""
    with token_service() as service:
        for name, value in service.environment(str(tmp_path / "token")).items():
            monkeypatch.setenv(name, value)
        yield service, tmp_path / "token"


def test_C02_a_rotated_web_identity_token_is_read_afresh(sts):
    service, token = sts
    for number in ("first", "second"):
        token.write_text(number)
        resolved = resolve_credentials()
        assert resolved.credentials.session_token.reveal() == "t"
        assert resolved.source == "a web identity"
    assert service.tokens == ["first", "second"]


def test_the_expiry_of_temporary_keys_is_known(sts, monkeypatch):
    service, token = sts
    token.write_text("token")
    service.expiration = "2098-07-06T05:04:03Z"
    expected = datetime(2098, 7, 6, 5, 4, 3, tzinfo=UTC).timestamp()
    assert resolve_credentials().credentials.expires_at == expected
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert resolve_credentials().credentials.expires_at is None


def test_the_files_that_are_watched(sts, monkeypatch, tmp_path):
    _, token = sts
    config = tmp_path / "config"
    config.write_text(f"[default]\nweb_identity_token_file = {tmp_path / 'other'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    expected = {config, token, tmp_path / "other", tmp_path / "no-credentials"}
    assert set(credential_files()) == expected


def test_a_refusal_by_the_token_service_is_told_by_its_code(sts):
    service, token = sts
    service.status, service.error_text = 400, SECRET
    token.write_text(SECRET)
    assert "InvalidIdentityToken" in failure()


def credential_process(aws_file, program: str, profile: str = "default") -> None:
    script = f"import json, os, time; {program}"
    lines = f'credential_process = {sys.executable} -c "{script}"\n'
    aws_file("config", f"[{profile}]\n{lines}")


def test_a_credential_process_that_never_ends_is_ended(aws_file, monkeypatch):
    monkeypatch.setattr(s3_credentials, "PROCESS_SECONDS", 0.5)
    credential_process(aws_file, "time.sleep(600)")
    assert failure() == "credential_process does not end within 0.5 s: try it by hand"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_credential_process_does_not_see_what_is_set_for_nixl(aws_file):
    libc = ctypes.CDLL(None)
    libc.setenv(b"AWS_MAX_ATTEMPTS_OF_TEST", b"1", 1)
    key = "os.environ.get('AWS_MAX_ATTEMPTS_OF_TEST', 'unset')"
    credential_process(
        aws_file,
        f"print(json.dumps(dict(Version=1, AccessKeyId={key}, SecretAccessKey='s')))",
    )
    try:
        found = resolve_credentials()
    finally:
        libc.unsetenv(b"AWS_MAX_ATTEMPTS_OF_TEST")
    assert found.credentials.access_key.reveal() == "unset"
    assert found.source == "credential_process"


def silent_metadata_service(monkeypatch) -> socket.socket:
    """Accepts connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    return listener


def test_C05_with_keys_given_the_metadata_service_is_not_asked(monkeypatch, preflight, localbucket):
    with silent_metadata_service(monkeypatch) as listener:
        result = preflight(localbucket, AWS_EC2_METADATA_DISABLED="")
        assert result.report.ready
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_C05_without_keys_a_silent_metadata_service_is_given_up(monkeypatch):
    with silent_metadata_service(monkeypatch):
        began = time.monotonic()
        assert "no AWS credentials found" in failure()
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({}, "us-east-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-west-2"}, "eu-west-2"),
    ],
)
def test_the_region(monkeypatch, variables, region):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert settings_from_environment("bucket").region == region


def test_a_region_that_cannot_be_right_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "not a region")
    with pytest.raises(ConfigError, match="AWS_REGION: 'not a region'"):
        settings_from_environment("bucket")


def test_a_region_with_a_line_break_at_its_end_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1\n")
    with pytest.raises(ConfigError, match="AWS_REGION"):
        settings_from_environment("bucket")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AWS_ACCESS_KEY_ID", "access key"),
        ("AWS_SECRET_ACCESS_KEY", "secret key"),
        ("AWS_SESSION_TOKEN", "session token"),
    ],
)
@pytest.mark.parametrize("text", [f"{SECRET}\n", f" {SECRET}", f"{SECRET}\r", f"{SECRET} more"])
def test_a_key_with_a_space_or_line_break_is_named_without_echo(monkeypatch, name, words, text):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv(name, text)
    with pytest.raises(CredentialsUnavailable, match=f"{words} .*space or line break") as caught:
        resolve_credentials()
    assert SECRET not in str(caught.value)


def test_a_profile_may_say_where_the_store_is(monkeypatch, aws_file):
    aws_file(
        "config",
        "[profile store]\nregion = eu-west-3\nendpoint_url = http://store.example:9000/\n",
    )
    monkeypatch.setenv("AWS_PROFILE", "store")
    settings = settings_from_environment("bucket", "pre/fix")
    assert settings.region == "eu-west-3"
    assert settings.endpoint_url == "http://store.example:9000"
    assert settings.url == "s3://bucket/pre/fix"


def test_the_endpoint_of_s3_wins_over_that_of_all_services(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all.example")
    assert settings_from_environment("bucket").endpoint_url == "http://all.example"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3.example")
    assert settings_from_environment("bucket").endpoint_url == "http://s3.example"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:9000",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:70000",
        "http://host/bucket",
        "http://host?query",
        f"http://user:{SECRET}@host",
        "http://host:9000\n",
        " http://host:9000",
        "http://ho\tst",
    ],
)
def test_an_endpoint_that_cannot_be_right_is_refused_without_echo(monkeypatch, url):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    with pytest.raises(ConfigError) as caught:
        settings_from_environment("bucket")
    assert "AWS_ENDPOINT_URL_S3" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_ca_bundle_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match="AWS_CA_BUNDLE"):
        settings_from_environment("bucket")


def test_https_needs_no_ca_bundle_and_gets_the_systems(monkeypatch, tmp_path):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    found = settings_from_environment("bucket").ca_bundle
    assert ssl.create_default_context(cafile=found).get_ca_certs()
    monkeypatch.setattr(s3_credentials, "_SYSTEM_BUNDLES", (str(tmp_path / "none"),))
    found = settings_from_environment("bucket").ca_bundle
    assert ssl.create_default_context(cafile=found).get_ca_certs()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://plain.example")
    assert settings_from_environment("bucket").ca_bundle == ""


def test_nothing_of_the_environment_is_changed(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    before = dict(os.environ)
    resolve_credentials()
    settings_from_environment("bucket")
    assert dict(os.environ) == before
