"""The proof: a real vLLM engine keeps its KV cache in a real S3 server through kvferry.

Run by `make e2e-vllm`. Four engine runs, each a new process: cold; warm from the store; with the
stored chunks overwritten by zeros while the daemon verifies; the same while it does not. The last
line of the output says what was verified, or what was not. Needs root, bubblewrap, a Python
environment with `kvferry[server]` and SeaweedFS (the one that runs this), and one with vLLM
(`tools/e2e_vllm_env.py`). Imports the standard library.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import inspection
from .engine_client import Answer, EngineFailed, EngineRun, EngineSetup, region_files
from .pod_client import PodClient, PodFailed
from .sandbox import CHECKOUT, DAEMON_UID, ENGINE_UID, SOCKET_DIR

CHUNK_TOKENS = 128
"""vLLM's KV block on a CPU; one block is one chunk here."""
CHUNK_BYTES = 262_144
PROMPT_TOKENS = 700
ANSWER_TOKENS = 24
CHUNKS = PROMPT_TOKENS // CHUNK_TOKENS
FULL_TOKENS = CHUNKS * CHUNK_TOKENS
STORE_SECONDS = 30.0


class NotProven(RuntimeError):
    """Something is not as promised; the text says what."""


class Proof:
    """The scenario and what it found.

    Args:
        pod: the container with S3 server and daemon.
        setup: how engines are run.
        logs: directory for the engines' output.
    """

    def __init__(self, pod: PodClient, setup: EngineSetup, logs: Path) -> None:
        self._pod = pod
        self._setup = setup
        self._logs = logs
        self._began = time.monotonic()
        self.checks = 0

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)  # noqa: T201

    def check(self, holds: bool, text: str) -> None:
        """Count what holds, stop at what doesn't. Raises NotProven."""
        if not holds:
            raise NotProven(text)
        self.checks += 1
        self.say(f"  ok: {text}")

    def run(self) -> None:
        """All of it. Raises NotProven."""
        facts = self._pod.ask("facts")
        self.say(f"store: {facts['store']}, in the daemon's container, network {facts['networks']}")
        self._start_daemon("when-known")
        cold = self._cold()
        self._warm(cold)
        self._zeros_verified(cold)
        self._zeros_unverified(cold)

    def _cold(self) -> Answer:
        self.say("engine run 1 of 4: cold, an empty store")
        with EngineRun(self._setup, self._logs / "engine-1-cold.log") as engine:
            answer = self._answer_of(engine)
            self.check(answer.cached_tokens == 0, "no token of the prompt was cached")
            self._check_stored("the chunks")
            self._look_at_processes(engine)
        return answer

    def _warm(self, cold: Answer) -> None:
        self.say("engine run 2 of 4: warm, a new process")
        before = self._counters()
        with EngineRun(self._setup, self._logs / "engine-2-warm.log") as engine:
            warm = self._answer_of(engine)
        self.check(
            warm.cached_tokens == FULL_TOKENS,
            f"{warm.cached_tokens} of {PROMPT_TOKENS} tokens were external hits: every full chunk",
        )
        self.check(
            warm.tokens == cold.tokens, f"all {ANSWER_TOKENS} greedy tokens are the cold run's"
        )
        self._check_loads(before, "loaded")

    def _zeros_verified(self, cold: Answer) -> None:
        self.say("engine run 3 of 4: the objects hold zeros, the daemon verifies")
        self._zero_objects()
        before = self._counters()
        with EngineRun(self._setup, self._logs / "engine-3-zeros-verified.log") as engine:
            answer = self._answer_of(engine)
            self._check_loads(before, "corrupt")
            self.check(answer.cached_tokens == 0, "none of them was used")
            self.check(answer.tokens == cold.tokens, "the tokens are the cold run's")
            self._check_stored("the recomputed chunks instead of the zeros")

    def _zeros_unverified(self, cold: Answer) -> None:
        self.say('engine run 4 of 4: the objects hold zeros, the daemon runs with verify = "off"')
        left = self._pod.ask("stop_daemon")
        self.check(
            not any(name.endswith(".sock") for name in left["sockets"]),
            "the stopped daemon removed its sockets",
        )
        self._start_daemon("off")
        self._zero_objects()
        before = self._counters()
        with EngineRun(self._setup, self._logs / "engine-4-zeros-off.log") as engine:
            answer = self._answer_of(engine)
        self._check_loads(before, "loaded")
        self.check(answer.cached_tokens == FULL_TOKENS, f"{FULL_TOKENS} tokens came from the zeros")
        self.check(
            answer.tokens != cold.tokens,
            f"the tokens differ from the first on: {answer.tokens[:4]} for {cold.tokens[:4]}"
            if answer.tokens[0] != cold.tokens[0]
            else "the tokens differ",
        )

    def _start_daemon(self, verify: str) -> None:
        info = self._pod.ask("start_daemon", verify=verify)
        self.say(f"kvferry {info['version']} serves {info['store']} ({info['settings']})")

    def _answer_of(self, engine: EngineRun) -> Answer:
        answer = engine.answer()
        version, seconds = answer.vllm_version, answer.seconds
        self.say(f"  vLLM {version} answered after {seconds:.0f} s: {answer.tokens}")
        return answer

    def _look_at_processes(self, engine: EngineRun) -> None:
        daemon, pids = self._pod.daemon_pid(), engine.pids
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
            bool(regions) and self._pod.ask("facts")["shared_memory"] == [],
            f"the daemon's /dev/shm is empty, the engine's has {', '.join(regions)}",
        )
        names = {name for pid in pids for name in inspection.environment(pid)}
        self.check(
            not any(name.startswith("AWS_") for name in names),
            f"no AWS_* among the {len(names)} environment variables of the engine",
        )
        self._look_for_secrets(pids)

    def _look_for_secrets(self, pids: list[int]) -> None:
        for name, secret in self._pod.ask("secrets").items():
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
        objects = self._pod.ask("objects")
        while (sizes := self._filled_sizes(objects)) != [CHUNK_BYTES] * CHUNKS:
            if time.monotonic() > deadline:
                raise NotProven(f"{CHUNKS} times {CHUNK_BYTES} bytes were to be stored: {sizes}")
            time.sleep(0.5)
            objects = self._pod.ask("objects")
        self.check(True, f"S3 holds {what}: {CHUNKS} objects of {CHUNK_BYTES} bytes")

    def _filled_sizes(self, objects: list[dict[str, Any]]) -> list[int]:
        return [each["bytes"] for each in objects if not each["zeros"]]

    def _zero_objects(self) -> None:
        done = self._pod.ask("zero_objects")
        objects = self._pod.ask("objects")
        self.check(
            done["overwritten"] == len(objects) == CHUNKS
            and all(each["zeros"] for each in objects),
            f"{CHUNKS} of {CHUNKS} objects overwritten with as many zeros, through S3",
        )

    def _counters(self) -> dict[str, int]:
        counters: dict[str, int] = self._pod.ask("info")["counters"]
        return counters

    def _check_loads(self, before: dict[str, int], outcome: str) -> None:
        after = self._counters()
        grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        ended = {name: count for name, count in grown.items() if name.startswith("chunks_load_")}
        self.check(
            ended == {f"chunks_load_{outcome}": CHUNKS},
            f"the daemon counts how its chunks ended: {ended}",
        )


def make_model(python: Path, directory: Path) -> None:
    """Write the model with the engine's Python, which has torch."""
    script = Path(__file__).with_name("make_model.py")
    subprocess.run([python, script, directory], check=True)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)


def prove(python: Path, work: Path) -> Proof:
    """Set everything up and run the scenario. Raises NotProven, EngineFailed, PodFailed."""
    shared, home, logs = work / "shared", work / "home", work / "logs"
    for directory, owner in ((shared, DAEMON_UID), (home, ENGINE_UID), (logs, 0)):
        directory.mkdir()
        os.chown(directory, owner, owner)
    model = work / "model"
    make_model(python, model)
    setup = EngineSetup(python, model, home, shared, PROMPT_TOKENS, ANSWER_TOKENS)
    with PodClient(shared, logs / "pod.log") as pod:
        proof = Proof(pod, setup, logs)
        try:
            proof.run()
        finally:
            (logs / "daemon.log").write_text(pod.ask("log"))
    return proof


def main() -> int:
    """0 if all was proven; 1 if not, with the logs kept; 2 if something is missing here."""
    parser = argparse.ArgumentParser(description="the proof with a real vLLM engine")
    parser.add_argument("--vllm-environment", type=Path, default=CHECKOUT / ".venv-vllm")
    python = parser.parse_args().vllm_environment.absolute() / "bin" / "python"
    missing = missing_here(python)
    if missing:
        print(f"e2e-vllm: {missing}", file=sys.stderr)  # noqa: T201
        return 2
    work = Path(tempfile.mkdtemp(prefix="kvferry-e2e-"))
    work.chmod(0o755)
    try:
        proof = prove(python, work)
    except (NotProven, EngineFailed, PodFailed) as failure:
        print(f"e2e-vllm: NOT PROVEN: {failure}\nlogs: {work / 'logs'}", flush=True)  # noqa: T201
        return 1
    shutil.rmtree(work)
    print(  # noqa: T201
        f"e2e-vllm: verified by {proof.checks} checks: after a restart of vLLM {FULL_TOKENS} of "
        f"{PROMPT_TOKENS} prompt tokens came from S3 and the answer is the same; {CHUNKS} of "
        f"{CHUNKS} zeroed chunks ended CORRUPT and changed nothing; with verify = off they change "
        "the answer; the daemon ran under another uid in its own user, mnt, ipc, pid and net "
        "namespace; its S3 keys are nowhere in the engine's processes",
        flush=True,
    )
    return 0


def missing_here(python: Path) -> str:
    """What to do before the proof can run here; empty if nothing."""
    if os.geteuid() != 0:
        return "needs root: the daemon and the engine get uids of their own; run it with sudo"
    for program in ("bwrap", "setpriv"):
        if shutil.which(program) is None:
            return f"needs {program}: install the packages bubblewrap and util-linux"
    if not python.exists():
        return f"no vLLM in {python.parent.parent}: run tools/e2e_vllm_env.py"
    return ""


if __name__ == "__main__":
    sys.exit(main())
