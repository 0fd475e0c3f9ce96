"""LoRA adapters by content: vLLM's block hashes name an adapter, kvferry adds what is in it.

vLLM mixes an adapter's name (and path, in newer releases) into the hashes of its blocks, so an
adapter that was trained on and saved under its old name would meet the old one's KV. The tier
never sees a request's adapter; the one place that does is the function that makes those hash
inputs, and it is wrapped here, in the process that hashes. Imports vllm.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
from pathlib import Path
from typing import Any, Final

from vllm.v1.core import kv_cache_utils

from kvferry_client.fingerprint import find_model, weights_fingerprint

HOOK: Final = "_gen_lora_extra_hash_keys"
_UNKNOWN: Final = f"unknown-{secrets.token_hex(8)}"
"""Shares nothing with any other process."""

logger = logging.getLogger("kvferry_client")
_known: dict[tuple[Any, ...], str] = {}


def hash_adapters_by_content() -> None:
    """Make this process's block hashes cover the content of LoRA adapters. Safe to repeat."""
    original = getattr(kv_cache_utils, HOOK, None)
    if original is None:
        logger.error(
            "kvferry can't tell LoRA adapters of one name apart in this vLLM: don't use the tier "
            "with adapters that change"
        )
    elif not hasattr(original, "kvferry"):
        setattr(kv_cache_utils, HOOK, _with_content(original))


def _with_content(original: Any) -> Any:  # noqa: ANN401 - vLLM's function
    @functools.wraps(original)
    def wrapped(request: Any) -> list[Any]:  # noqa: ANN401 - vLLM's Request
        keys: list[Any] = original(request)
        if not keys:
            return keys
        content = getattr(request, "kvferry_adapter", None)
        if content is None:
            content = request.kvferry_adapter = adapter_fingerprint(request.lora_request.lora_path)
        if isinstance(keys[0], tuple):
            return [(*keys[0], content), *keys[1:]]
        return [*keys, content]

    wrapped.kvferry = True  # type: ignore[attr-defined]
    return wrapped


def adapter_fingerprint(path: str) -> str:
    """Return a digest over an adapter's files; one of this process alone if there are none.

    Read anew when a file's size or time changed.
    """
    try:
        found = find_model(path, "", os.environ)
        if found is not None:
            stamp = (str(found), *_stamps(found))
            if stamp not in _known:
                _known[stamp] = weights_fingerprint(found)
            if _known[stamp]:
                return _known[stamp]
    except OSError as error:
        logger.debug("a LoRA adapter can't be read: %s", error)
    if ("unknown", path) not in _known:
        _known["unknown", path] = _UNKNOWN
        logger.warning(
            "kvferry found no weights of the LoRA adapter at %s, so this process shares its KV "
            "with nobody",
            path,
        )
    return _UNKNOWN


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    files = [folder] if folder.is_file() else sorted(folder.iterdir())
    states = [(file.name, file.stat()) for file in files if file.is_file()]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]
