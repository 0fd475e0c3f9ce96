"""What the documents say to start with does start."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.harness import attached, environment, key, kvferry, result_of
from tests.support.fault_server import FaultServer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def aws(tmp_path):
    """A bucket called `bucket` and a profile with keys, as the README takes for granted."""
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = k\naws_secret_access_key = s\n")
    with FaultServer(bucket="bucket") as server:
        yield environment(
            AWS_ENDPOINT_URL_S3=server.endpoint_url, AWS_SHARED_CREDENTIALS_FILE=str(credentials)
        )


def works(daemon) -> None:
    daemon.wait_ready()
    with attached(daemon.sockets) as client:
        assert result_of(client, client.store([key(1)], [0])).success
        assert result_of(client, client.load([key(1)], [1])).success


def test_S11_the_readmes_command_starts_as_it_stands(serve, aws):
    readme = (ROOT / "README.md").read_text()
    [line] = [line for line in readme.splitlines() if " serve --store-url s3://" in line]
    words = shlex.split(line)
    start = next(at for at, word in enumerate(words) if word.endswith("/kvferry"))
    variables = dict(word.split("=", 1) for word in words[:start])
    flags = words[start + 2 :]
    at = flags.index("--socket-dir")
    del flags[at : at + 2]  # the test's own directory
    works(serve(*flags, env=aws | variables))


def test_S11_the_minimal_file_of_the_reference_starts_as_it_stands(serve, aws, tmp_path):
    reference = (ROOT / "docs" / "configuration.md").read_text()
    file = tmp_path / "config.toml"
    file.write_text(re.search(r"```toml\n(.*?)```", reference, re.DOTALL)[1])
    works(serve("--config", str(file), env=aws))


def test_every_command_of_the_help_texts_exists():
    shown = "".join(
        kvferry(*command, "--help").out
        for command in ((), ("serve",), ("check",), ("status",), ("jobs",), ("lifecycle",))
    )
    for line in re.findall(r"^  (?:[A-Z_]+=\S+ )?kvferry (.+)$", shown, re.MULTILINE):
        words = line.split("   ")[0].split("|")[0].split("#")[0].split()
        if words[0] not in {"serve", "demo"}:
            assert kvferry(words[0], "--help").status == 0, line
        for flag in [word for word in words if word.startswith("--")]:
            assert flag in kvferry(words[0], "--help").out, line
