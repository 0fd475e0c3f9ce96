"""The systemd unit, by systemd's own tools where they are, and field by field."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kvferry_server.cli import config
from kvferry_server.cli.main import build_parser

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "kvferry.service"


def section(name: str) -> list[tuple[str, str]]:
    found, current = [], ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif "=" in line and not line.startswith("#") and current == name:
            key, _, value = line.partition("=")
            found.append((key, value))
    return found


def test_it_parses_and_has_the_three_sections() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(UNIT)
    assert parser.sections() == ["Unit", "Service", "Install"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_knows_every_setting() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", UNIT], capture_output=True, text=True, check=False, timeout=60
    )
    problems = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert [line for line in problems if UNIT.name in line] == []


def test_it_is_confined() -> None:
    service = dict(section("Service"))
    assert service["User"] == "kvferry"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["LimitCORE"] == "0"
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices"):
        assert service[name] == "yes"
    assert service["RestrictAddressFamilies"].split()[0] == "AF_UNIX"


def test_it_waits_for_running_transfers_and_comes_back() -> None:
    service = dict(section("Service"))
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) > 25
    assert dict(section("Unit"))["StartLimitIntervalSec"] == "0"


def test_its_command_and_variables_are_known() -> None:
    words = shlex.split(dict(section("Service"))["ExecStart"])
    assert build_parser().parse_args(words[1:])
    variables = dict(
        value.split("=", 1) for key, value in section("Service") if key == "Environment"
    )
    assert config.load({}, {**variables, "KVFERRY_CONFIG": ""}, uid=1).warnings == ()
    assert variables["KVFERRY_SOCKET_DIR"].startswith("/run/kvferry/")
