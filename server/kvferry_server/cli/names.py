"""Names in the configuration: the nearest known one, and those that are none of kvferry's business.

Imports the standard library only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SERVICE_VARIABLE = re.compile(
    r"KVFERRY_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes sets in every pod for a Service called `kvferry` or `kvferry-...`."""

_CREDENTIAL = re.compile(
    r"secret|token|passw|credential|access_?key|api_?key|private_?key", re.IGNORECASE
)


def looks_like_credential(name: str) -> bool:
    """Whether a name promises a secret value."""
    return _CREDENTIAL.search(name) is not None


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` most likely stands for; empty if none is near."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else ""
