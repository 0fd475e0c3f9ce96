"""Object names and the checks on the one path component that a client contributes.

`<space>/<hhh>/<hh>_g<group>/<hash>.bin`: the fan-out of vLLM's own FileMapper, so that one
directory level never holds more than 4,096 entries per group.
"""

from __future__ import annotations

import re

from .errors import InvalidArgument
from .types import ObjectRef

MIN_KEY_BYTES = 5
"""One byte of hash and the 4-byte group index."""
MAX_NAMESPACE_CHARS = 200
_COMPONENT = re.compile(r"[A-Za-z0-9._-]+")
_GROUP_BYTES = 4


def object_name(ref: ObjectRef) -> str:
    """Name of an object, relative to the store's prefix; characters `[A-Za-z0-9._/-]`."""
    block_hash = ref.key[:-_GROUP_BYTES].hex()
    group = int.from_bytes(ref.key[-_GROUP_BYTES:], "big")
    return f"{ref.space}/{block_hash[:3]}/{block_hash[3:5]}_g{group}/{block_hash}.bin"


def check_namespace(namespace: str) -> None:
    """Refuse a namespace that is not exactly one harmless path component.

    Raises:
        InvalidArgument: naming the field `namespace`.
    """
    if not namespace or len(namespace) > MAX_NAMESPACE_CHARS:
        problem = f"must have 1 to {MAX_NAMESPACE_CHARS} characters, has {len(namespace)}"
    elif not _COMPONENT.fullmatch(namespace):
        problem = "may hold only the characters A-Z a-z 0-9 . _ -"
    elif not namespace.strip("."):
        problem = "must not consist of dots"
    else:
        return
    raise InvalidArgument(f"namespace {problem}", reason="BAD_NAMESPACE", field="namespace")
