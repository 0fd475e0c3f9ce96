"""The compose file says what docs/docker.md says. No Docker has run it here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from kvferry_client import tier_config
from kvferry_server.cli import config
from kvferry_server.cli.store_url import S3Url, parse_store_url

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "compose"
GIB = 1 << 30


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def transfer_config(compose: dict[str, Any]) -> dict[str, Any]:
    words = compose["services"]["vllm"]["command"]
    (argument,) = (each for each in words if each.startswith("--kv-transfer-config="))
    return json.loads(argument.partition("=")[2])


def mounts(service: dict[str, Any]) -> dict[str, str]:
    return {each.split(":")[0]: each.split(":")[1] for each in service.get("volumes", [])}


def test_it_is_a_compose_file_by_the_specification() -> None:
    text = (FOLDER / "compose.yaml").read_text()
    PyCompose.from_yaml(text).validate()
    for known, unknown in (("cap_drop:", "cap_dorp:"), ("restart: always", "restart: sometimes")):
        with pytest.raises(ValueError, match=r"kvferry"):
            PyCompose.from_yaml(text.replace(known, unknown, 1))


def test_M10_the_region_fits_into_shared_memory(compose: dict[str, Any]) -> None:
    region = transfer_config(compose)["kv_connector_extra_config"]["cpu_bytes_to_use"]
    size = compose["services"]["vllm"]["shm_size"]
    assert size.endswith("gb")
    assert int(size[:-2]) * GIB >= region + GIB
    for service in compose["services"].values():
        assert service.get("ipc") is None
        assert service.get("pid") is None


def test_they_share_the_sockets_and_nothing_else(compose: dict[str, Any]) -> None:
    daemon, engine = (mounts(compose["services"][name]) for name in ("kvferry", "vllm"))
    assert daemon.keys() & engine.keys() == {"sockets"}
    (tier,) = transfer_config(compose)["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["socket_dir"] == f"{engine['sockets']}/sockets"
    assert tier.pop("type") == "kvferry"
    assert tier_config.parse(tier)[1] == []


def test_the_engine_has_no_secret_and_no_way_to_the_store(compose: dict[str, Any]) -> None:
    engine = compose["services"]["vllm"]
    assert [name for name in engine["environment"] if name.startswith("AWS_")] == []
    assert "credentials" not in str(engine["volumes"])
    assert "storage" not in engine["networks"]
    assert engine["user"] == "65531:65532"


def test_the_daemon_is_confined(compose: dict[str, Any]) -> None:
    daemon = compose["services"]["kvferry"]
    assert daemon["read_only"] is True
    assert daemon["cap_drop"] == ["ALL"]
    assert daemon["security_opt"] == ["no-new-privileges:true"]
    assert daemon["restart"] == "always"
    assert int(daemon["stop_grace_period"].removesuffix("s")) > 25
    assert "ports" not in daemon


def test_the_daemons_settings_load(compose: dict[str, Any]) -> None:
    environment = compose["services"]["kvferry"]["environment"]
    loaded = config.load({}, environment, uid=65532)
    assert loaded.warnings == ()
    assert parse_store_url(loaded.config.store.url) == S3Url("kvferry", "compose")


def test_everything_that_is_mounted_is_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for source in mounts(service):
            if source.startswith("."):
                assert (FOLDER / source).exists(), source
            else:
                assert source in compose["volumes"]


def test_credentials_are_those_of_the_server() -> None:
    (identity,) = json.loads((FOLDER / "s3.json").read_text())["identities"]
    (pair,) = identity["credentials"]
    text = (FOLDER / "credentials").read_text()
    assert f"aws_access_key_id = {pair['accessKey']}\n" in text
    assert f"aws_secret_access_key = {pair['secretKey']}\n" in text


def test_prometheus_and_grafana_are_provisioned(compose: dict[str, Any]) -> None:
    scrape = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())
    targets = [each["static_configs"][0]["targets"] for each in scrape["scrape_configs"]]
    assert targets == [["kvferry:9477"], ["vllm:8000"]]
    at = "/etc/prometheus/kvferry.rules.yml"
    assert mounts(compose["services"]["prometheus"])["../prometheus/kvferry.rules.yml"] == at
    provider = FOLDER / "grafana" / "provisioning" / "dashboards" / "kvferry.yml"
    path = yaml.safe_load(provider.read_text())["providers"][0]["options"]["path"]
    assert mounts(compose["services"]["grafana"])["../grafana"] == path
