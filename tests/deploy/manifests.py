"""The Kubernetes manifests as `kubectl apply -k` would send them.

Owns the little of kustomize that deploy/kubernetes uses: resources, namespace, labels, and
strategic-merge patches, whose lists of named things merge by name. Anything else is refused, so
that a manifest can't silently mean something else here than there.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
RENDERED = ["base", *(f"overlays/{name}" for name in OVERLAYS)]
MERGE_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "sources": ""}
KNOWN = {"apiVersion", "kind", "namespace", "resources", "labels", "patches"}
Object = dict[str, Any]


def render(name: str) -> list[Object]:
    """All objects of a kustomization."""
    return _render(FOLDER / name)


def the(kind: str, objects: list[Object]) -> Object:
    """The only object of a kind."""
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects: list[Object]) -> Object:
    """The Deployment's pod."""
    return the("Deployment", objects)["spec"]["template"]["spec"]


def _render(folder: Path) -> list[Object]:
    text = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(text) <= KNOWN, f"{folder.name}: teach render() {set(text) - KNOWN}"
    objects: list[Object] = []
    for resource in text["resources"]:
        path = (folder / resource).resolve()
        objects += _render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in text.get("patches", []):
        _apply(objects, yaml.safe_load((folder / patch["path"]).read_text()))
    for each in objects:
        metadata = each["metadata"]
        if "namespace" in text and each["kind"] != "Namespace":
            metadata["namespace"] = text["namespace"]
        for label in text.get("labels", []):
            metadata.setdefault("labels", {}).update(label["pairs"])
    return objects


def _apply(objects: list[Object], patch: Object) -> None:
    target = the(patch["kind"], objects)
    for field in ("name", "namespace"):
        assert patch["metadata"][field] == target["metadata"][field]
    target.update(_merged(target, patch))


def _merged(old: Object, new: Object) -> Object:
    result = dict(old)
    for name, value in new.items():
        before = result.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            result[name] = _merged(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            result[name] = _merged_lists(before, value, MERGE_KEYS.get(name, "name"))
        else:
            result[name] = copy.deepcopy(value)
    return result


def _merged_lists(old: list[Object], new: list[Object], key: str) -> list[Object]:
    result = list(old)
    for value in new:
        at = [index for index, each in enumerate(result) if each[key] == value[key]]
        if at:
            result[at[0]] = _merged(result[at[0]], value)
        else:
            result.append(copy.deepcopy(value))
    return result
