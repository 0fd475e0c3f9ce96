"""The Kubernetes manifests as `kubectl apply -k` would send them.

Owns the little of kustomize that deploy/kubernetes and docs/kubernetes.md use: resources,
namespace, labels, images, and strategic-merge patches, whose lists of named things merge by name.
Anything else is refused, so that a manifest can't silently mean something else here than there.
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
KNOWN = {"apiVersion", "kind", "namespace", "resources", "labels", "patches", "images"}
Object = dict[str, Any]


def render(name: str) -> list[Object]:
    """All objects of a kustomization."""
    return _render(FOLDER / name)


def render_text(kustomization: str, folder: Path) -> list[Object]:
    """All objects of a kustomization.yaml that would be in this folder."""
    return _rendered(yaml.safe_load(kustomization), folder)


def the(kind: str, objects: list[Object]) -> Object:
    """The only object of a kind."""
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects: list[Object]) -> Object:
    """The Deployment's pod."""
    return the("Deployment", objects)["spec"]["template"]["spec"]


def _render(folder: Path) -> list[Object]:
    return _rendered(yaml.safe_load((folder / "kustomization.yaml").read_text()), folder)


def _rendered(text: Object, folder: Path) -> list[Object]:
    assert set(text) <= KNOWN, f"{folder.name}: teach render() {set(text) - KNOWN}"
    objects: list[Object] = []
    for resource in text["resources"]:
        path = (folder / resource).resolve()
        objects += _render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in text.get("patches", []):
        shown = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
        _apply(objects, yaml.safe_load(shown))
    for image in text.get("images", []):
        _rename(objects, image)
    for each in objects:
        metadata = each["metadata"]
        if "namespace" in text and each["kind"] != "Namespace":
            metadata["namespace"] = text["namespace"]
        for label in text.get("labels", []):
            metadata.setdefault("labels", {}).update(label["pairs"])
    return objects


def _rename(objects: list[Object], image: Object) -> None:
    """A new name and tag for an image; one that no container has is refused."""
    pod = pod_of(objects)
    containers = [*pod["initContainers"], *pod["containers"]]
    found = [each for each in containers if each["image"].partition(":")[0] == image["name"]]
    assert found, f"no container has the image {image['name']}"
    for container in found:
        container["image"] = f"{image['newName']}:{image['newTag']}"


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
