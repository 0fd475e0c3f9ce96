"""A fingerprint of a model's weights, from reading little of them. Standard library only.

Two fine-tunes mounted at one path have the same names, sizes and tensor shapes, so pages
out of the tensors are read too. Reads some MiB of a model of any size, once per start.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAGE_BYTES: Final = 4096
MAX_PAGES_PER_FILE: Final = 256
MAX_HEADER_BYTES: Final = 64 << 20
WEIGHT_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
CONFIG_FILES: Final = ("config.json", "adapter_config.json")
_LENGTH_BYTES: Final = 8


def find_model(model: str, revision: str, environment: Mapping[str, str]) -> Path | None:
    """Return where the weights of `model` lie: a path, or a snapshot in Hugging Face's cache."""
    if not model:
        return None
    if Path(model).exists():
        return Path(model)
    if "HF_HUB_CACHE" in environment:
        hub = Path(environment["HF_HUB_CACHE"])
    elif "HF_HOME" in environment:
        hub = Path(environment["HF_HOME"]) / "hub"
    else:
        cache = environment.get("XDG_CACHE_HOME", "~/.cache")
        hub = Path(cache).expanduser() / "huggingface" / "hub"
    repository = hub / f"models--{model.replace('/', '--')}"
    reference = repository / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = repository / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def weights_fingerprint(model: Path) -> str:
    """Return a digest over the config and the weight files; "" if there are no weights.

    Raises OSError if a file can't be read.
    """
    files = [model] if model.is_file() else sorted(_weight_files(model))
    if not files:
        return ""
    digest = hashlib.sha256()
    for name in CONFIG_FILES:
        config = model / name
        if config.is_file():
            digest.update(hashlib.sha256(config.read_bytes()).digest())
    for path in files:
        name = path.name if path == model else str(path.relative_to(model))
        digest.update(json.dumps([name, path.stat().st_size]).encode())
        with path.open("rb") as stream:
            _add_samples(digest.update, stream, path)
    return digest.hexdigest()


def _weight_files(model: Path) -> Iterable[Path]:
    for folder, _, names in os.walk(model):
        for name in names:
            path = Path(folder) / name
            if path.suffix in WEIGHT_SUFFIXES and path.is_file():
                yield path


def _add_samples(add: Any, stream: BinaryIO, path: Path) -> None:  # noqa: ANN401 - a hash's method
    size = path.stat().st_size
    if path.suffix == ".safetensors":
        header, starts = _safetensors_layout(stream, size)
        add(header)
    else:
        starts = list(range(0, size, max(size // MAX_PAGES_PER_FILE, 1)))
    step = max(len(starts) // MAX_PAGES_PER_FILE, 1)
    for start in starts[::step]:
        stream.seek(start)
        add(stream.read(PAGE_BYTES))


def _safetensors_layout(stream: BinaryIO, size: int) -> tuple[bytes, list[int]]:
    """Return the header, and the middle of each tensor as an offset in the file."""
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    if length > min(size, MAX_HEADER_BYTES):
        return b"", list(range(0, size, max(size // MAX_PAGES_PER_FILE, 1)))
    header = stream.read(length)
    try:
        tensors = json.loads(header)
        spans = [value["data_offsets"] for name, value in tensors.items() if name != "__metadata__"]
        middles = [_LENGTH_BYTES + length + (start + end) // 2 for start, end in spans]
    except (ValueError, KeyError, TypeError, AttributeError):
        middles = list(range(0, size, max(size // MAX_PAGES_PER_FILE, 1)))
    return header, sorted(middles)
