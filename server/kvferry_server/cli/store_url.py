"""What a store URL says. Owns its grammar; imports core only.

Error texts never repeat the URL: somebody may have put a key into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from kvferry_server.core.errors import ConfigError

_COMPONENT = re.compile(r"[A-Za-z0-9._-]+")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
MAX_PREFIX_CHARS = 512
_SHAPE = "it must look like file:///directory or s3://bucket/prefix"


@dataclass(frozen=True, slots=True)
class FileUrl:
    """`file:///directory`."""

    directory: str


@dataclass(frozen=True, slots=True)
class S3Url:
    """`s3://bucket/prefix`; the prefix has no slash at its ends and may be empty."""

    bucket: str
    prefix: str


StoreUrl = FileUrl | S3Url


def parse_store_url(text: str) -> StoreUrl:
    """Take a store URL apart.

    Raises:
        ConfigError: it is not one; the text says why, without the URL.
    """
    if not text.isprintable() or text != text.strip():
        raise _wrong("it has a space at an end, or a line break or other control character in it")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise _wrong(_SHAPE) from None
    if "@" in (parts.netloc if parts.scheme == "file" else text):
        raise _wrong(
            "it has an @, and what stands before it may be a key; credentials come from "
            "AWS's standard chain, not from the URL"
        )
    if parts.query or parts.fragment:
        raise _wrong("'?' and '#' have no meaning here; AWS settings come from AWS's own variables")
    if parts.scheme == "file":
        return _file_url(parts)
    if parts.scheme == "s3":
        return _s3_url(parts)
    raise _wrong(_SHAPE)


def _file_url(parts: SplitResult) -> FileUrl:
    if parts.netloc not in {"", "localhost"}:
        raise _wrong("a file URL needs three slashes and an absolute path: file:///directory")
    directory = unquote(parts.path)
    components = directory.split("/")
    if ".." in components or "\0" in directory:
        raise _wrong("the directory must not contain '..'")
    if not directory.strip("/"):
        raise _wrong("it names no directory: file:///directory")
    return FileUrl("/" + "/".join(part for part in components if part not in {"", "."}))


def _s3_url(parts: SplitResult) -> S3Url:
    if not _BUCKET.fullmatch(parts.netloc):
        raise _wrong(
            "the bucket must have 3 to 255 characters out of [A-Za-z0-9._-]: s3://bucket/prefix"
        )
    path = parts.path.removeprefix("/").removesuffix("/")
    if len(path) > MAX_PREFIX_CHARS:
        raise _wrong(
            f"the prefix has {len(path)} characters, and the limit is {MAX_PREFIX_CHARS}: S3 takes "
            "names of 1,024 bytes, and a chunk's own part needs the rest"
        )
    components = path.split("/") if path else []
    for component in components:
        if component in {"", ".", ".."}:
            raise _wrong("the prefix must not have empty parts, '.' or '..'")
        if not _COMPONENT.fullmatch(component):
            raise _wrong("the prefix may have only the characters [A-Za-z0-9._-] between slashes")
    return S3Url(parts.netloc, path)


def _wrong(why: str) -> ConfigError:
    return ConfigError(f"not a usable store URL: {why}", reason="STORE_URL", field="store.url")
