"""An object store in memory that a test can hold, break or slow down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvferry_server.core.ports import CheckStep, Preflight
from kvferry_server.core.types import JobKind, Presence, TransferStatus


@dataclass
class Held:
    """A transfer or probe that waits for `MemoryStore.release`."""

    name: str
    buffer: memoryview | None
    finish: Callable[[], None]


class MemoryStore:
    """`core.ports.ObjectStore`. While `hold` is set, transfers wait; likewise `hold_probes`."""

    url = "memory://"
    max_active_chunks = 8

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.hold = False
        self.hold_probes = False
        self.held: list[Held] = []
        self.problem = ""
        self.preflight_gate = threading.Event()
        self.preflight_gate.set()
        self.preflights = 0
        self.transfers = 0
        self.refreshes = 0
        self.closed = False
        self._lock = threading.Lock()

    def transfer(
        self,
        kind: JobKind,
        name: str,
        buffer: memoryview,
        done: Callable[[TransferStatus], None],
    ) -> None:
        self.transfers += 1

        def finish() -> None:
            done(self._move(kind, name, buffer))

        self._go(Held(name, buffer, finish), hold=self.hold)

    def probe(
        self, names: Sequence[str], done: Callable[[Sequence[Presence] | None], None]
    ) -> None:
        def finish() -> None:
            done([Presence.PRESENT if each in self.objects else Presence.ABSENT for each in names])

        self._go(Held(names[0], None, finish), hold=self.hold_probes)

    def preflight(self) -> Preflight:
        self.preflights += 1
        self.preflight_gate.wait()
        step = CheckStep("round trip", not self.problem, self.problem or "fine", 0.001)
        return Preflight(not self.problem, "in memory", self.problem, (step,))

    def refresh_credentials(self) -> None:
        self.refreshes += 1

    def close(self) -> None:
        self.closed = True

    def release(self) -> None:
        """Let everything held go, each on a thread of its own, as NIXL's drivers do."""
        with self._lock:
            held, self.held = self.held, []
        for each in held:
            threading.Thread(target=each.finish).start()

    def _move(self, kind: JobKind, name: str, buffer: memoryview) -> TransferStatus:
        if kind is JobKind.STORE:
            self.objects[name] = bytes(buffer)
            return TransferStatus.OK
        data = self.objects.get(name)
        if data is None:
            return TransferStatus.MISSING
        if len(data) != len(buffer):
            return TransferStatus.WRONG_SIZE
        buffer[:] = data
        return TransferStatus.OK

    def _go(self, each: Held, *, hold: bool) -> None:
        if hold:
            with self._lock:
                self.held.append(each)
        else:
            threading.Thread(target=each.finish).start()
