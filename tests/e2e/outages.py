"""The engine goes on while the daemon or the store does not. Imports the standard library.

`DaemonOutages`: no daemon at the engine's start; the daemon appears and is used; it is killed and
started again under load; it is stopped (SIGSTOP) for 20 s under load. The step times of the last
phase stand beside those with the daemon running, and those of a second engine without a kvferry
tier: the same load, before and after, as the machine is shared.
`StoreOutage`: S3 is down when daemon and engine start, and comes later.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from . import step_times
from .engine_client import FRESH_NUMBER, EngineRun, Load
from .proof import PROMPTS, Proof, cold_tokens, small_engine

if TYPE_CHECKING:
    from .engine_client import Answer

STOPPED_SECONDS = 20.0
LOAD_SECONDS = 32.0
BLOCKED_SECONDS = 1.0
"""Less than any wait for a stopped daemon, more than a busy machine needs for a step."""
STREAMS = 2
UNDER_LOAD = Load(PROMPTS, streams=STREAMS, seconds=LOAD_SECONDS, companion=True, fresh=True)
"""With a request that decodes all the time, whose steps must go on while others wait, and with
prompts that are misses: whoever is loading when the daemon stops waits, but they must end."""
COMPARED = replace(UNDER_LOAD, seconds=12.0)
NO_TIER, RUNNING, STOPPED = "no tier", "daemon runs", "daemon stopped"
DAEMON_DONE = (
    "the engine started without a daemon and used it once it was there; killed and restarted under "
    "load it was used again; stopped for 20 s under load no call into the tier waited for it; "
    "all tokens are a cold run's"
)
STORE_DONE = (
    "the engine started with S3 down and used it once it was there; all tokens are a cold run's"
)


class DaemonOutages(Proof):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        files = {tier: self.setup.home / f"steps-tier-{tier}" for tier in (False, True)}
        options = {
            tier: small_engine(tier=tier, step_times=str(path)) for tier, path in files.items()
        }
        with EngineRun(self.setup, "without-tier", options[False]) as plain:
            cold = plain.ask(Load(PROMPTS))
            self.check(cold.cached_tokens == 0, "the cold run, without a kvferry tier")
            self._expected = cold.tokens
            with EngineRun(self.setup, "with-tier", options[True]) as engine:
                self._absent(engine)
                self._appears(engine)
                self._killed(engine)
                phases = [(NO_TIER, *self._loaded(plain)), (RUNNING, *self._loaded(engine))]
                phases.append((STOPPED, *self._stopped(engine)))
                phases += [(RUNNING, *self._loaded(engine)), (NO_TIER, *self._loaded(plain))]
        sides: dict[str, list[list[step_times.Step]]] = {}
        for name, began, ended in phases:
            steps = step_times.read(files[name != NO_TIER])
            sides.setdefault(name, []).append(step_times.between(steps, began, ended))
        self._compare(sides)

    def _loaded(self, engine: EngineRun) -> tuple[float, float]:
        """Put the load on an engine; return when it began and ended."""
        began = time.monotonic()
        self._check_every(engine.ask(COMPARED).answers)
        return began, time.monotonic()

    def _absent(self, engine: EngineRun) -> None:
        self.say("there is no daemon, not even its directory")
        self.check_tokens(engine.ask(Load(PROMPTS)).tokens, self._expected, "the cold run's")

    def _appears(self, engine: EngineRun) -> None:
        self.start_daemon()
        self.wait_until(lambda: self._sessions() == 1, "the engine attached its region")
        self.store_all(engine, self._expected)
        used = engine.ask(Load(PROMPTS))
        loaded = self.loaded()
        self.check(loaded > 0, f"the daemon is used: it loaded {loaded} chunks")
        self.check_tokens(used.tokens, self._expected, "the cold run's, from the store")

    def _killed(self, engine: EngineRun) -> None:
        self.say("the daemon gets SIGKILL under load and is started again after 3 s")
        engine.begin(Load(PROMPTS, streams=STREAMS, seconds=16))
        time.sleep(4)
        self.pod.ask("kill_daemon")
        killed = time.monotonic()
        time.sleep(3)
        self.start_daemon()
        back = time.monotonic()
        result = engine.result()
        between = [each for each in result.answers if killed < each.ended < back]
        self.check(bool(between), f"{len(between)} requests ended while there was no daemon")
        loaded = self.loaded()
        self.check(loaded > 0, f"the new daemon is used: it loaded {loaded} chunks")
        self._check_every(result.answers)

    def _stopped(self, engine: EngineRun) -> tuple[float, float]:
        """Return when the daemon stopped and when it went on."""
        self.say(f"the daemon gets SIGSTOP under load and SIGCONT {STOPPED_SECONDS:.0f} s later")
        engine.begin(UNDER_LOAD)
        time.sleep(4)
        daemon = self.pod.daemon_pid()
        before = self.loaded()
        os.kill(daemon, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            time.sleep(STOPPED_SECONDS)
        finally:
            os.kill(daemon, signal.SIGCONT)
        resumed = time.monotonic()
        result = engine.result()
        during = [each for each in result.answers if stopped < each.ended < resumed]
        self.check(bool(during), f"{len(during)} requests ended while it was stopped")
        longest = max(each.ended - each.began for each in result.answers)
        self.say(f"  the slowest of {len(result.answers)} requests took {longest:.1f} s")
        self._check_every(result.answers)
        self.wait_until(lambda: self._sessions() == 1, "one session afterwards")
        again = engine.ask(Load(PROMPTS))
        self.check_tokens(again.tokens, self._expected, "the cold run's")
        loaded = self.loaded() - before
        self.check(loaded > 0, f"the daemon is used again: it loaded {loaded} chunks since")
        return stopped, resumed

    def _check_every(self, answers: list[Answer]) -> None:
        known = [each for each in answers if each.number < FRESH_NUMBER]
        wrong = sum(each.tokens != self._expected[each.number] for each in known)
        self.check(
            not wrong,
            f"{len(answers)} requests, {len(known)} with a prompt of the cold run, "
            f"{wrong} of them with other tokens",
        )

    def _sessions(self) -> int:
        sessions: int = self.pod.ask("info")["sessions"]
        return sessions

    def _compare(self, sides: dict[str, list[list[step_times.Step]]]) -> None:
        self.say("steps that ran the model, under the same load:")
        self.check(
            all(len(part) > 1 for parts in sides.values() for part in parts), "all have some"
        )
        print("\n".join(step_times.table(sides)), flush=True)  # noqa: T201
        longest = max(each.schedule_seconds for part in sides[STOPPED] for each in part)
        self.check(
            longest < BLOCKED_SECONDS,
            f"no call into the tier waited for the daemon: {1000 * longest:.1f} ms at most",
        )


class StoreOutage(Proof):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        expected = cold_tokens(self, small_engine(tier=False))
        self.pod.ask("stop_store")
        info = self.pod.ask("start_daemon", verify="when-known", wait=False)
        self.check(not info["ready"], "S3 is down, the daemon serves and says not ready")
        with EngineRun(self.setup, "engine", small_engine()) as engine:
            self.check_tokens(engine.ask(Load(PROMPTS)).tokens, expected, "the cold run's")
            self.check(self.pod.ask("info")["sessions"] == 1, "its region is attached all the same")
            self.pod.ask("start_store")
            self.pod.ask("wait_ready")
            self.say("S3 is there, the daemon is ready")
            self.store_all(engine, expected)
            used = engine.ask(Load(PROMPTS))
            loaded = self.loaded()
            self.check(loaded > 0, f"the store is used: the daemon loaded {loaded} chunks")
            self.check_tokens(used.tokens, expected, "the cold run's, from the store")
