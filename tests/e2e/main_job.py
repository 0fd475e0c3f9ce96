"""The main job: a real vLLM engine keeps its KV cache in a real S3 server through kvferry.

Four engine runs, each a new process: cold; warm from the store; with the stored chunks overwritten
by zeros while the daemon verifies; the same while it does not. Imports the standard library.
"""

from __future__ import annotations

import time
from typing import Any

from . import inspection
from .engine_client import EngineOptions, EngineRun, Load, Result, region_files
from .proof import CHUNKS, FULL_TOKENS, PROMPT_TOKENS, NotProven, Proof
from .sandbox import DAEMON_UID, ENGINE_UID, SOCKET_DIR

CHUNK_BYTES = 262_144
ANSWER_TOKENS = 24
STORE_SECONDS = 30.0
ENGINE = EngineOptions({"dtype": "bfloat16"})
LOAD = Load((7,), PROMPT_TOKENS, ANSWER_TOKENS)
DONE = (
    f"after a restart of vLLM {FULL_TOKENS} of {PROMPT_TOKENS} prompt tokens came from S3 and the "
    f"answer is the same; {CHUNKS} of {CHUNKS} zeroed chunks ended CORRUPT and changed nothing; "
    "with verify = off they change the answer; the daemon ran under another uid in its own user, "
    "mnt, ipc, pid and net namespace; its S3 keys are nowhere in the engine's processes"
)


class MainJob(Proof):
    """See the module's docstring."""

    def run(self) -> None:
        """All of it. Raises NotProven."""
        facts = self.pod.ask("facts")
        self.say(f"store: {facts['store']}, in the daemon's container, network {facts['networks']}")
        self.start_daemon("when-known")
        cold = self._cold()
        self._warm(cold)
        self._zeros_verified(cold)
        self._zeros_unverified(cold)

    def _cold(self) -> Result:
        self.say("engine run 1 of 4: cold, an empty store")
        with EngineRun(self.setup, "engine-1-cold", ENGINE) as engine:
            answer = self._answer_of(engine)
            self.check(answer.cached_tokens == 0, "no token of the prompt was cached")
            self._check_stored("the chunks")
            self._look_at_processes(engine)
        return answer

    def _warm(self, cold: Result) -> None:
        self.say("engine run 2 of 4: warm, a new process")
        before = self.counters()
        with EngineRun(self.setup, "engine-2-warm", ENGINE) as engine:
            warm = self._answer_of(engine)
        self.check(
            warm.cached_tokens == FULL_TOKENS,
            f"{warm.cached_tokens} of {PROMPT_TOKENS} tokens were external hits: every full chunk",
        )
        self.check(
            warm.tokens == cold.tokens, f"all {ANSWER_TOKENS} greedy tokens are the cold run's"
        )
        self._check_loads(before, "loaded")

    def _zeros_verified(self, cold: Result) -> None:
        self.say("engine run 3 of 4: the objects hold zeros, the daemon verifies")
        self._zero_objects()
        before = self.counters()
        with EngineRun(self.setup, "engine-3-zeros-verified", ENGINE) as engine:
            answer = self._answer_of(engine)
            self._check_loads(before, "corrupt")
            self.check(answer.cached_tokens == 0, "none of them was used")
            self.check(answer.tokens == cold.tokens, "the tokens are the cold run's")
            self._check_stored("the recomputed chunks instead of the zeros")

    def _zeros_unverified(self, cold: Result) -> None:
        self.say('engine run 4 of 4: the objects hold zeros, the daemon runs with verify = "off"')
        left = self.pod.ask("stop_daemon")
        self.check(
            not any(name.endswith(".sock") for name in left["sockets"]),
            "the stopped daemon removed its sockets",
        )
        self.start_daemon("off")
        self._zero_objects()
        before = self.counters()
        with EngineRun(self.setup, "engine-4-zeros-off", ENGINE) as engine:
            answer = self._answer_of(engine)
        self._check_loads(before, "loaded")
        self.check(answer.cached_tokens == FULL_TOKENS, f"{FULL_TOKENS} tokens came from the zeros")
        self.check(
            answer.tokens != cold.tokens,
            f"the tokens differ: {answer.tokens[7][:4]} for {cold.tokens[7][:4]}",
        )

    def _answer_of(self, engine: EngineRun) -> Result:
        result = engine.ask(LOAD)
        [answer] = result.answers
        seconds = answer.ended - answer.began
        self.say(f"  vLLM {result.vllm_version} answered in {seconds:.1f} s: {answer.tokens}")
        return result

    def _look_at_processes(self, engine: EngineRun) -> None:
        daemon, pids = self.pod.daemon_pid(), engine.pids
        uids = {inspection.real_uid(pid) for pid in pids}
        self.check(
            inspection.real_uid(daemon) == DAEMON_UID and uids == {ENGINE_UID},
            f"the daemon has uid {DAEMON_UID}, the engine's {len(pids)} processes {ENGINE_UID}",
        )
        theirs = [inspection.namespaces(pid) for pid in pids]
        for kind, mine in inspection.namespaces(daemon).items():
            others = {each[kind] for each in theirs}
            self.check(
                mine not in others, f"{kind} namespace: daemon {mine}, engine {', '.join(others)}"
            )
        regions = [path.name for path in region_files()]
        self.check(
            bool(regions) and self.pod.ask("facts")["shared_memory"] == [],
            f"the daemon's /dev/shm is empty, the engine's has {', '.join(regions)}",
        )
        names = {name for pid in pids for name in inspection.environment(pid)}
        self.check(
            not any(name.startswith("AWS_") for name in names),
            f"no AWS_* among the {len(names)} environment variables of the engine",
        )
        self._look_for_secrets(pids)

    def _look_for_secrets(self, pids: list[int]) -> None:
        for name, secret in self.pod.ask("secrets").items():
            self.check(
                inspection.pids_that_know(pids, secret) == [],
                f"the S3 {name} is not in the engine's environment, arguments, writable memory",
            )
        control = inspection.pids_that_know(pids, str(SOCKET_DIR))
        self.check(
            bool(control), f"the same search finds {SOCKET_DIR} in {len(control)} of its processes"
        )

    def _check_stored(self, what: str) -> None:
        deadline = time.monotonic() + STORE_SECONDS
        objects = self.pod.ask("objects")
        while (sizes := self._filled_sizes(objects)) != [CHUNK_BYTES] * CHUNKS:
            if time.monotonic() > deadline:
                raise NotProven(f"{CHUNKS} times {CHUNK_BYTES} bytes were to be stored: {sizes}")
            time.sleep(0.5)
            objects = self.pod.ask("objects")
        self.check(True, f"S3 holds {what}: {CHUNKS} objects of {CHUNK_BYTES} bytes")

    def _filled_sizes(self, objects: list[dict[str, Any]]) -> list[int]:
        return [each["bytes"] for each in objects if not each["zeros"]]

    def _zero_objects(self) -> None:
        done = self.pod.ask("zero_objects")
        objects = self.pod.ask("objects")
        self.check(
            done["overwritten"] == len(objects) == CHUNKS
            and all(each["zeros"] for each in objects),
            f"{CHUNKS} of {CHUNKS} objects overwritten with as many zeros, through S3",
        )

    def _check_loads(self, before: dict[str, int], outcome: str) -> None:
        after = self.counters()
        grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        ended = {name: count for name, count in grown.items() if name.startswith("chunks_load_")}
        self.check(
            ended == {f"chunks_load_{outcome}": CHUNKS},
            f"the daemon counts how its chunks ended: {ended}",
        )
