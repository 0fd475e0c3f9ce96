"""What goes wrong in a soak, and in which order: rounds in which each kind comes once, shuffled."""

from __future__ import annotations

import random
import signal
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .stage import Stage

LIVES = ("daemon killed", "daemon restarted", "engine killed")
"""Faults that end a process of kvferry or an engine."""
OTHERS = (
    "connections reset",
    "daemon frozen",
    "engine frozen",
    "network cut",
    "network silent",
    "network slow",
    "objects damaged",
    "objects deleted",
    "server frozen",
    "server killed",
)
KINDS = (*LIVES, *OTHERS)
DAMAGED_AT_ONCE, DELETED_AT_ONCE = 10, 150


class Order:
    """Which fault comes next; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._round: list[str] = []
        self.done: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    @property
    def all_lives_done(self) -> bool:
        """Whether each fault that ends a process came at least once."""
        return all(self.done[name] for name in LIVES)

    def next(self, *, lives_at_risk: bool) -> str:
        """The next fault's name; it counts as done."""
        allowed: Sequence[str] = KINDS if lives_at_risk else OTHERS
        left = [name for name in self._round if name in allowed]
        if not left:
            left = sorted(allowed)
            self._random.shuffle(left)
        name, *self._round = left
        self.done[name] += 1
        return name


class Faults:
    """Injects them, each to its end.

    Args:
        wait: passes so many seconds.
    """

    def __init__(self, stage: Stage, wait: Callable[[float], None], seed: int) -> None:
        self.stage = stage
        self._wait = wait
        self._random = random.Random(seed)
        self._actions = {
            "network slow": self._slow,
            "network cut": self._cut,
            "connections reset": stage.proxy.reset_connections,
            "network silent": self._silent,
            "server frozen": self._server_frozen,
            "server killed": self._server_killed,
            "daemon frozen": self._daemon_frozen,
            "daemon killed": self._daemon_killed,
            "daemon restarted": self._daemon_restarted,
            "engine frozen": self._engine_frozen,
            "engine killed": self._engine_killed,
            "objects deleted": self._deleted,
            "objects damaged": self._damaged,
        }

    def inject(self, name: str) -> None:
        """One of `KINDS`."""
        self._actions[name]()

    def _slow(self) -> None:
        self.stage.proxy.slow(delay_seconds=0.05, bytes_per_second=2_000_000)
        self._wait(5.0)
        self.stage.proxy.fine()

    def _cut(self) -> None:
        self.stage.proxy.cut()
        self._wait(3.0)
        self.stage.proxy.fine()

    def _silent(self) -> None:
        self.stage.proxy.silent()
        self._wait(4.0)
        self.stage.proxy.fine()
        self.stage.proxy.reset_connections()

    def _server_frozen(self) -> None:
        self.stage.backing.server.freeze()
        self._wait(4.0)
        self.stage.backing.server.thaw()

    def _server_killed(self) -> None:
        self.stage.backing.server.kill()
        self._wait(2.0)
        self.stage.backing.server.start()

    def _daemon_frozen(self) -> None:
        self.stage.daemon.running.signal(signal.SIGSTOP)
        self._wait(3.0)
        self.stage.daemon.running.signal(signal.SIGCONT)

    def _daemon_killed(self) -> None:
        self.stage.daemon.kill()
        self._wait(1.0)
        self.stage.start_daemon()

    def _daemon_restarted(self) -> None:
        self.stage.daemon.running.signal(signal.SIGTERM)
        status = self.stage.daemon.ended(60)
        if status:
            raise AssertionError(f"SIGTERM ended the daemon with status {status}")
        self.stage.start_daemon()

    def _engine_frozen(self) -> None:
        engine = self.stage.engines[self._random.randrange(3)]
        engine.signal(signal.SIGSTOP)
        self._wait(3.0)
        engine.signal(signal.SIGCONT)

    def _engine_killed(self) -> None:
        self.stage.kill_engine(self._random.randrange(3))

    def _deleted(self) -> None:
        names = sorted(self.stage.names())
        self.stage.delete(self._random.sample(names, min(len(names), DELETED_AT_ONCE)))

    def _damaged(self) -> None:
        """Only objects whose checksum the daemon has: of others it knows the length alone."""
        names = sorted(self.stage.stored_names())
        for name in self._random.sample(names, min(len(names), DAMAGED_AT_ONCE)):
            self.stage.overwrite(name)
