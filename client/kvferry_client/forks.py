"""`in_child`: has an object start over in a forked child, where its process's threads are missing.

Standard library only.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_hooks: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def in_child(owner: object, hook: Callable[[Any], None]) -> None:
    """Have `hook(owner)` called in each forked child, as long as the owner lives."""
    _hooks[owner] = hook


def _call_hooks() -> None:
    for owner, hook in tuple(_hooks.items()):
        hook(owner)


os.register_at_fork(after_in_child=_call_hooks)
