"""Object names and the checks on the path components that a client contributes.

`<space>/<hhh>/<hh>_g<group>/<hash>.bin`: the fan-out of vLLM's own FileMapper, so that one
directory level never holds more than 4,096 entries per group. vLLM's `obj` tier asks NIXL for
`<prefix>//<space>/...`; the AWS SDK below NIXL drops empty parts of a path, so that in the bucket
its objects have one slash there, as those here.
"""

from __future__ import annotations

import re
from enum import StrEnum, unique

from .errors import FailedPrecondition, InvalidArgument
from .types import ObjectRef

MIN_KEY_BYTES = 5
"""One byte of hash and the 4-byte group index."""
MAX_NAMESPACE_CHARS = 200
MAX_VLLM_NAMESPACE_BYTES = 512
_COMPONENT = re.compile(r"[A-Za-z0-9._-]+")
_VLLM_COMPONENT = re.compile(r"[^/\x00-\x1f\x7f]+_[0-9a-f]{12}_r[0-9]{1,9}")
_GROUP_BYTES = 4


@unique
class Naming(StrEnum):
    """Whose names the objects bear; the values are the configuration's."""

    KVFERRY = "kvferry"
    VLLM = "vllm"
    """Byte for byte those of vLLM's in-process `obj` tier, whose digest covers less."""


def object_name(ref: ObjectRef) -> str:
    """Name of an object, relative to the store's prefix.

    Its characters are `[A-Za-z0-9._/-]`, unless vLLM named the space.
    """
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


def check_vllm_namespace(namespace: str) -> None:
    """Refuse what vLLM's FileMapper could not have written; an empty one is fine.

    Raises:
        InvalidArgument: naming the field `vllm_namespace`.
    """
    if not namespace:
        return
    if len(namespace.encode()) > MAX_VLLM_NAMESPACE_BYTES:
        problem = f"must have at most {MAX_VLLM_NAMESPACE_BYTES} bytes"
    elif not _VLLM_COMPONENT.fullmatch(namespace):
        problem = (
            "must be <model>_<12 hexadecimal digits>_r<rank>, without / and control characters"
        )
    else:
        return
    raise InvalidArgument(
        f"vllm_namespace {problem}", reason="BAD_VLLM_NAMESPACE", field="vllm_namespace"
    )


def space_name(naming: Naming, namespace: str, vllm_namespace: str) -> str:
    """The space of a session's objects, from checked components.

    Raises:
        FailedPrecondition: vLLM's names are wanted and the client sent none.
    """
    if naming is Naming.KVFERRY:
        return namespace
    if not vllm_namespace:
        raise FailedPrecondition(
            'store.naming is "vllm", and this client sent no vllm_namespace: it is of an older '
            'release, or its engine\'s weights may have changed; use naming = "kvferry"',
            reason="NO_VLLM_NAMESPACE",
            field="vllm_namespace",
        )
    return vllm_namespace
