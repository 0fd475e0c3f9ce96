"""Reads the TOML file: its settings, each with the line it stands in.

Owns the refusal of unknown keys and of credentials. Imports core and `options`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry_server.core.errors import ConfigError

from .names import looks_like_credential, nearest
from .options import all_options

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\-\"' ]+?)\s*=")
_MAX_BYTES = 1 << 20
_AWS_NAMES = {"aws", "s3", "region", "endpoint", "endpoint_url", "profile", "ca_bundle"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it was set: a flag, a variable, or `file:line`."""

    value: Any
    source: str


def read_settings(path: Path) -> dict[str, Setting]:
    """Every setting of the file, by `table.key`.

    Raises:
        ConfigError: the file can't be read or parsed, or holds a key that is not an option.
    """
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _error(f"{path}: not valid TOML: {error}") from None
    except (ValueError, RecursionError):
        raise _error(
            f"{path}: not valid TOML: a number is too long or the nesting too deep"
        ) from None
    lines = _key_lines(text)
    known = {f"{table.name}.{spec.name}" for table, spec, _ in all_options()}
    tables = {name.partition(".")[0] for name in known}
    settings = {}
    for key, value in _flatten(document, tables):
        source = f"{path}:{lines[key]}" if key in lines else str(path)
        if key in tables:
            raise _error(f"{source}: {key}: expected a table: [{key}]", key)
        if key not in known:
            near = [f"[{name}]" for name in tables] if isinstance(value, dict) else known
            raise _unknown(key, source, known, near)
        settings[key] = Setting(value, source)
    return settings


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise _error(f"{path}: more than {_MAX_BYTES >> 20} MiB: this is no configuration file")
        return content.decode()
    except OSError as error:
        raise _error(f"can't read the configuration file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _error(f"{path}: not valid TOML: it is not UTF-8 text") from None


def _flatten(document: dict[str, Any], tables: set[str]) -> list[tuple[str, Any]]:
    """Pairs of `table.key` and value; a key outside a known table stands for itself."""
    pairs: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name in tables and isinstance(value, dict):
            pairs.extend((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            pairs.append((name, value))
    return pairs


def _key_lines(text: str) -> dict[str, int]:
    """Line of each `table.key` and of each table, as far as a glance at the text tells."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = _plain(header[1])
            lines.setdefault(table, number)
            lines.setdefault(table.partition(".")[0], number)
        elif assignment := _ASSIGNMENT.match(line):
            key = _plain(assignment[1])
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _unknown(key: str, source: str, known: set[str], near: Iterable[str]) -> ConfigError:
    if looks_like_credential(key):
        return _error(
            f"{source}: {key}: credentials don't belong here; remove it and use AWS's standard "
            "chain (~/.aws/credentials, AWS_PROFILE, a web identity, ...)",
            key,
        )
    last = key.rpartition(".")[2]
    if last in _AWS_NAMES:
        return _error(
            f"{source}: unknown key {key}; AWS settings come from AWS's own variables: AWS_REGION, "
            "AWS_ENDPOINT_URL_S3, AWS_PROFILE, AWS_CA_BUNDLE",
            key,
        )
    guess = nearest(key, near) or _same_key_elsewhere(last, known)
    advice = (
        f"did you mean {guess}?"
        if guess
        else "`kvferry serve --help` says where all keys are listed"
    )
    return _error(f"{source}: unknown key {key}; {advice}", key)


def _same_key_elsewhere(last: str, known: set[str]) -> str:
    by_key = {name.partition(".")[2]: name for name in sorted(known)}
    return by_key.get(nearest(last, by_key), "")


def _error(message: str, key: str = "") -> ConfigError:
    return ConfigError(message, reason="CONFIG_FILE", field=key)
