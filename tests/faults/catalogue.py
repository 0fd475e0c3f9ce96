"""The list of faults. A fault is one function that injects it, proves it, and drives the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rig import Scenario


@dataclass(frozen=True)
class FaultCase:
    """One row of the matrix.

    Args:
        ident: `F01` and so on.
        kind: heading of its group in docs/faults.md.
        title: what goes wrong.
        store: `file`, `stub` (the S3 look-alike) or a real server's name.
        run: does it; the runner checks the bytes afterwards.
        started: whether the runner starts the daemon first.
        gate: whether it also runs in `make test`.
    """

    ident: str
    kind: str
    title: str
    store: str
    run: Callable[[Scenario], None]
    started: bool
    gate: bool

    @property
    def what_must_hold(self) -> str:
        """The function's first line."""
        return (self.run.__doc__ or "").strip().splitlines()[0]


FAULTS: dict[str, FaultCase] = {}


def fault(
    ident: str, kind: str, title: str, *, store: str, started: bool = True, gate: bool = False
) -> Callable[[Callable[[Scenario], None]], Callable[[Scenario], None]]:
    """Enter a function into the list."""

    def enter(run: Callable[[Scenario], None]) -> Callable[[Scenario], None]:
        if ident in FAULTS:
            raise ValueError(f"two faults are called {ident}")
        FAULTS[ident] = FaultCase(ident, kind, title, store, run, started, gate)
        return run

    return enter


def all_faults() -> list[FaultCase]:
    """All of them, in order."""
    from . import (  # noqa: F401 - importing enters them
        catalog_faults,
        daemon_faults,
        engine_faults,
        machine_faults,
        network_faults,
        s3_content_faults,
        s3_faults,
    )

    return sorted(FAULTS.values(), key=lambda each: each.ident)
