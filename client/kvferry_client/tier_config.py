"""The tier's configuration: names, types, and what is refused. Standard library only.

Nothing here ever puts a configured value into a message: it might be a secret.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_SOCKET_DIR: Final = "/run/kvferry"
LOCALITIES: Final = ("LOCAL", "REMOTE")
AFTER_RESET: Final = ("new_epoch", "keep")
_SECRET_WORDS: Final = (
    "secret",
    "password",
    "passwd",
    "credential",
    "accesskey",
    "apikey",
    "privatekey",
    "token",
)


@dataclass(frozen=True, slots=True)
class TierConfig:
    """What an operator may set in the tier's JSON."""

    socket_dir: str = DEFAULT_SOCKET_DIR
    model_revision: str = ""
    cache_epoch: str = ""
    lookup_timeout_s: float = 2.0
    enable_kv_events: bool = False
    locality: str | None = "REMOTE"
    after_reset: str = "new_epoch"


def parse(options: Mapping[str, Any]) -> tuple[TierConfig, list[str]]:
    """Read the tier's options; return them and the warnings to log, one line each.

    Raises ValueError, naming the key and never a value, for credentials, `store_config`
    and values of the wrong type.
    """
    for name in _secret_names(options):
        message = (
            f"the kvferry tier takes no credentials, but its config has {name!r}: move it to "
            "the daemon, which reads credentials from AWS's standard places"
        )
        raise ValueError(message)
    if "store_config" in options:
        message = (
            "the kvferry tier takes no 'store_config': move it to the daemon "
            "(kvferry serve --store-url s3://bucket/prefix)"
        )
        raise ValueError(message)
    known = {field.name for field in fields(TierConfig)}
    warnings = [_warning(name, known) for name in options if name not in known]
    values = {name: options[name] for name in options if name in known}
    return TierConfig(**_checked(values)), warnings


def _warning(name: str, known: set[str]) -> str:
    if name == "io_threads":
        return "the kvferry tier ignores 'io_threads': the daemon moves the data"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]!r}?" if close else f"; it knows {', '.join(sorted(known))}"
    return f"the kvferry tier ignores the unknown option {name!r}{hint}"


def _secret_names(options: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of options that look like credentials, nested ones included."""
    for name, value in options.items():
        flat = "".join(letter for letter in str(name).lower() if letter.isalnum())
        if any(word in flat for word in _SECRET_WORDS):
            yield f"{prefix}{name}"
        elif isinstance(value, dict):
            yield from _secret_names(value, f"{prefix}{name}.")


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    for name in ("socket_dir", "model_revision", "cache_epoch"):
        if not isinstance(values.get(name, ""), str):
            raise ValueError(f"the kvferry tier's {name!r} must be a string")  # noqa: TRY004 - a config error
    if not values.get("socket_dir", DEFAULT_SOCKET_DIR):
        raise ValueError("the kvferry tier's 'socket_dir' is empty: name the daemon's directory")
    timeout = values.get("lookup_timeout_s", 2.0)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 60:  # noqa: PLR2004 - stated in the text
        raise ValueError("the kvferry tier's 'lookup_timeout_s' must be above 0 and at most 60")
    if not isinstance(values.get("enable_kv_events", False), bool):
        raise ValueError("the kvferry tier's 'enable_kv_events' must be true or false")  # noqa: TRY004 - a config error
    if values.get("locality", "REMOTE") not in (*LOCALITIES, None):
        raise ValueError('the kvferry tier\'s \'locality\' must be "LOCAL" or "REMOTE"')
    if values.get("after_reset", "new_epoch") not in AFTER_RESET:
        raise ValueError('the kvferry tier\'s \'after_reset\' must be "new_epoch" or "keep"')
    return values
