"""`uncollected`: keeps Python's cyclic collector out of a short call, whatever other threads do.

The collector is the whole process's. One call at a time switches it off and on again; a call that
comes meanwhile leaves it alone, so that none takes another's "off" for how it was found. Nothing
waits. Standard library only.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Method = TypeVar("_Method", bound="Callable[..., Any]")


class _Switch:
    """Who switches the collector, one at a time."""

    def __init__(self) -> None:
        self.taken = threading.Lock()
        self.found_on = False
        """Whether the one who has it must switch the collector on again."""


_switch = _Switch()


def uncollected(method: _Method) -> _Method:
    """Keep the collector out of a function.

    A pass goes through the young objects of the whole process and takes milliseconds at times.
    One that becomes due begins at the next allocation after the call.
    """

    @functools.wraps(method)
    def call(*args: Any) -> Any:  # noqa: ANN401 - any signature
        switch = _switch
        if not switch.taken.acquire(blocking=False):
            return method(*args)
        switch.found_on = gc.isenabled()
        try:
            gc.disable()
            return method(*args)
        finally:
            if switch.found_on:
                gc.enable()
            switch.taken.release()

    return call  # type: ignore[return-value]


def _switch_on_in_child() -> None:
    """Do in a forked child what a thread that it doesn't have would have done."""
    global _switch  # noqa: PLW0603 - the process has one collector
    if _switch.taken.locked() and _switch.found_on:
        gc.enable()
    _switch = _Switch()


os.register_at_fork(after_in_child=_switch_on_in_child)
