"""The manifests fit Kubernetes' schemas and say what the design needs. No cluster has run them."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import kubernetes_validate
import pytest

from kvferry_client import tier_config
from kvferry_server.cli import config
from kvferry_server.cli.main import build_parser
from tests.walk.pages import ROOT, blocks

from .manifests import RENDERED, Object, pod_of, render, render_text, the

VERSIONS = ("1.29", "1.31", kubernetes_validate.latest_version())
"""The first with native sidecars, one between, and the newest that the schemas are there for."""
CUSTOM = {"PodMonitor"}
GIB = 1 << 30


@pytest.fixture(params=RENDERED)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(request.param)


@pytest.fixture
def pod(objects: list[Object]) -> Object:
    return pod_of(objects)


@pytest.fixture
def daemon(pod: Object) -> Object:
    (container,) = pod["initContainers"]
    return container


@pytest.fixture
def engine(pod: Object) -> Object:
    (container,) = pod["containers"]
    return container


def containers(pod: Object) -> list[Object]:
    return [*pod["initContainers"], *pod["containers"]]


def bytes_of(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG]i)", quantity).groups()
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


def volume(pod: Object, name: str) -> Any:
    (found,) = (each for each in pod["volumes"] if each["name"] == name)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", RENDERED)
def test_every_object_fits_its_schema(name: str, version: str) -> None:
    checked = [each for each in render(name) if each["kind"] not in CUSTOM]
    assert len(checked) >= 5
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)


def test_O07_the_daemon_is_a_native_sidecar(pod: Object, daemon: Object, engine: Object) -> None:
    assert daemon["name"] == "kvferry"
    assert daemon["restartPolicy"] == "Always"
    assert "restartPolicy" not in engine
    assert daemon["startupProbe"]["exec"]["command"] == ["kvferry", "health"]
    assert daemon["livenessProbe"]["exec"]["command"] == ["kvferry", "health"]
    assert "readinessProbe" not in daemon
    assert pod["terminationGracePeriodSeconds"] > 30


def test_probes_leave_the_health_call_its_time(daemon: Object) -> None:
    from kvferry_server.cli.channel import CALL_SECONDS

    for name in ("startupProbe", "livenessProbe"):
        assert daemon[name]["timeoutSeconds"] > CALL_SECONDS
        assert "httpGet" not in daemon[name]
    assert build_parser().parse_args(daemon["livenessProbe"]["exec"]["command"][1:])


def test_C03_no_credential_is_mounted_by_sub_path(pod: Object) -> None:
    mounts = [mount for each in containers(pod) for mount in each["volumeMounts"]]
    assert [mount for mount in mounts if "subPath" in mount or "subPathExpr" in mount] == []


@pytest.mark.parametrize(
    ("overlay", "volume_name"),
    [("workload-identity", "identity"), ("secret-directory", "credentials")],
)
def test_C03_credentials_reach_the_daemon_only(overlay: str, volume_name: str) -> None:
    pod = pod_of(render(f"overlays/{overlay}"))
    (daemon,), (engine,) = pod["initContainers"], pod["containers"]
    (mount,) = (each for each in daemon["volumeMounts"] if each["name"] == volume_name)
    assert mount["readOnly"] is True
    assert volume_name not in [each["name"] for each in engine["volumeMounts"]]
    assert [each for each in engine["env"] if each["name"].startswith("AWS_")] == []
    files = [each["value"] for each in daemon["env"] if each["name"].endswith("_FILE")]
    assert [each.rpartition("/")[0] for each in files] == [mount["mountPath"]]
    assert pod["automountServiceAccountToken"] is False


def test_no_credential_stands_in_a_manifest(objects: list[Object]) -> None:
    text = json.dumps(objects)
    assert not re.search(r"secretKeyRef|SECRET_ACCESS_KEY|aws_secret|AKIA", text)


def test_M10_the_region_has_a_sized_volume(pod: Object, daemon: Object, engine: Object) -> None:
    shared = volume(pod, "shared-memory")["emptyDir"]
    assert shared["medium"] == "Memory"
    (mount,) = (each for each in engine["volumeMounts"] if each["name"] == "shared-memory")
    assert mount["mountPath"] == "/dev/shm"
    region = transfer_config(engine)["kv_connector_extra_config"]["cpu_bytes_to_use"]
    assert bytes_of(shared["sizeLimit"]) >= region + GIB
    assert bytes_of(engine["resources"]["limits"]["memory"]) >= region + 8 * GIB
    # The daemon gets the region as a descriptor: it needs none of it.
    assert "shared-memory" not in [each["name"] for each in daemon["volumeMounts"]]


def test_both_share_the_socket_volume_and_nothing_else(
    pod: Object, daemon: Object, engine: Object
) -> None:
    mounts = [{each["name"] for each in side["volumeMounts"]} for side in (daemon, engine)]
    assert mounts[0] & mounts[1] == {"sockets"}
    assert "emptyDir" in volume(pod, "sockets")
    at = {each["name"]: each for each in daemon["volumeMounts"]}["sockets"]["mountPath"]
    (tier,) = transfer_config(engine)["kv_connector_extra_config"]["secondary_tiers"]
    # A directory below the volume: the daemon's own, with its mode and group.
    assert tier["socket_dir"] == f"{at}/sockets"
    assert f"KVFERRY_SOCKET_DIR={at}/sockets" in dockerfile()


def test_the_engine_reaches_the_sockets_by_group(pod: Object, engine: Object) -> None:
    assert 65532 in pod["securityContext"]["supplementalGroups"]
    assert engine["securityContext"]["runAsUser"] != 65532


def test_nothing_of_the_host_is_used(pod: Object) -> None:
    for name in ("hostIPC", "hostPID", "hostNetwork", "hostUsers", "shareProcessNamespace"):
        assert not pod.get(name)
    assert [each["name"] for each in pod["volumes"] if "hostPath" in each] == []
    ports = [port for each in containers(pod) for port in each.get("ports", [])]
    assert [port for port in ports if "hostPort" in port] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowPrivilegeEscalation", False),
        ("capabilities", {"drop": ["ALL"]}),
        ("runAsNonRoot", True),
        ("seccompProfile", {"type": "RuntimeDefault"}),
    ],
)
def test_restricted_pod_security_field_by_field(pod: Object, field: str, value: object) -> None:
    for each in containers(pod):
        assert each["securityContext"][field] == value


def test_restricted_pod_security_forbids_the_rest(objects: list[Object], pod: Object) -> None:
    allowed = {"emptyDir", "configMap", "secret", "projected", "downwardAPI"}
    assert {kind for each in pod["volumes"] for kind in each if kind != "name"} <= allowed
    for each in containers(pod):
        context = each["securityContext"]
        assert context["runAsUser"] > 0
        for name in ("privileged", "procMount", "seLinuxOptions", "windowsOptions"):
            assert name not in context
    assert "sysctls" not in pod["securityContext"]
    labels = the("Namespace", objects)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_daemons_root_is_read_only(daemon: Object) -> None:
    assert daemon["securityContext"]["readOnlyRootFilesystem"] is True
    assert daemon["securityContext"]["runAsUser"] == 65532


def test_services_leak_no_variables(pod: Object) -> None:
    assert pod["enableServiceLinks"] is False


def test_the_configuration_loads(objects: list[Object], tmp_path: Any) -> None:
    text = the("ConfigMap", objects)["data"]["config.toml"]
    file = tmp_path / "config.toml"
    file.write_text(text)
    loaded = config.load({"--config": str(file)}, {}, uid=65532)
    assert loaded.warnings == ()
    assert loaded.config.store.url == tomllib.loads(text)["store"]["url"]


def test_the_daemon_stops_within_the_grace_period(objects: list[Object], pod: Object) -> None:
    text = tomllib.loads(the("ConfigMap", objects)["data"]["config.toml"])
    shutdown = text["timeouts"]["shutdown_seconds"]
    assert pod["terminationGracePeriodSeconds"] >= shutdown + 30


def test_the_daemon_has_room_for_its_index(daemon: Object) -> None:
    resources = daemon["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert bytes_of(resources["limits"]["memory"]) >= 1_000_000 * 200 + 512 * (1 << 20)
    assert resources["requests"]["cpu"]
    assert "cpu" not in resources["limits"]


def test_the_tier_is_configured(engine: Object) -> None:
    transfer = transfer_config(engine)
    assert transfer["kv_connector"] == "OffloadingConnector"
    (tier,) = transfer["kv_connector_extra_config"]["secondary_tiers"]
    assert tier.pop("type") == "kvferry"
    _, warnings = tier_config.parse(tier)
    assert warnings == []


def test_prometheus_reaches_the_port_that_the_daemon_has(
    objects: list[Object], daemon: Object
) -> None:
    (port,) = daemon["ports"]
    assert f"KVFERRY_HTTP_LISTEN=0.0.0.0:{port['containerPort']}" in dockerfile()
    monitor = the("PodMonitor", objects)["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    labels = the("Deployment", objects)["spec"]["template"]["metadata"]["labels"]
    policy = the("NetworkPolicy", objects)["spec"]
    for selector in (monitor["selector"], policy["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    from_monitoring = [rule for rule in policy["ingress"] if "from" in rule]
    assert [each["port"] for rule in from_monitoring for each in rule["ports"]] == [9477]
    to_anybody = [rule for rule in policy["ingress"] if "from" not in rule]
    assert [each["port"] for rule in to_anybody for each in rule["ports"]] == [8000]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def transfer_config(engine: Object) -> dict[str, Any]:
    (argument,) = (each for each in engine["args"] if each.startswith("--kv-transfer-config="))
    return json.loads(argument.partition("=")[2])


def dockerfile() -> str:
    from .manifests import FOLDER

    return (FOLDER.parents[1] / "Dockerfile").read_text()


def test_the_overlay_of_the_guide_changes_what_it_says(tmp_path) -> None:
    (sample,) = (each for each in blocks("yaml") if each.name == "docs/kubernetes.md")
    objects = render_text(sample.text, ROOT / "mine")
    for each in objects:
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
    file = tmp_path / "config.toml"
    file.write_text(the("ConfigMap", objects)["data"]["config.toml"])
    loaded = config.load({"--config": str(file)}, {}, uid=65532)
    assert (loaded.warnings, loaded.config.store.url) == ((), "s3://my-bucket/vllm")
    pod = pod_of(objects)
    (daemon,), (engine,) = pod["initContainers"], pod["containers"]
    assert daemon["image"] == "registry.example.com/kvferry:0.1.0"
    assert engine["image"] == "registry.example.com/vllm-kvferry:0.1.0"
    variables = {each["name"]: each.get("value") for each in daemon["env"]}
    assert variables["AWS_REGION"] == "us-east-1"
    assert variables["AWS_ROLE_ARN"] == "arn:aws:iam::210987654321:role/vllm-kv"
    assert daemon["restartPolicy"] == "Always"
