"""The proof with a real vLLM engine, run by `make e2e-vllm`: all scenarios but one, or those named.

The last line of each scenario says what was verified, or what was not. Needs root, bubblewrap, a
Python environment with `kvferry[server]` and SeaweedFS (the one that runs this), and one with vLLM
(`tools/e2e_vllm_env.py`). Imports the standard library.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from . import identity, main_job, outages, parallel
from .engine_client import EngineFailed, EngineSetup
from .pod_client import PodClient, PodFailed
from .proof import NotProven, Proof, Report, make_model
from .sandbox import CHECKOUT, DAEMON_UID, ENGINE_UID


class Scenario(NamedTuple):
    """One part of the proof."""

    kind: type[Proof]
    done: str


SCENARIOS = {
    "main": Scenario(main_job.MainJob, main_job.DONE),
    "replicas": Scenario(parallel.Replicas, parallel.REPLICAS_DONE),
    "tensor-parallel": Scenario(parallel.TensorParallel, parallel.WORKERS_DONE),
    "pipeline-parallel": Scenario(parallel.PipelineParallel, parallel.WORKERS_DONE),
    "daemon-outages": Scenario(outages.DaemonOutages, outages.DAEMON_DONE),
    "store-outage": Scenario(outages.StoreOutage, outages.STORE_DONE),
    "same-path": Scenario(identity.SamePath, identity.SAME_PATH_DONE),
    "adapters": Scenario(identity.Adapters, identity.ADAPTERS_DONE),
}

BY_NAME_ONLY = frozenset({"pipeline-parallel"})
"""Its workers leave two cores to nobody else."""


def prove(kind: type[Proof], folder: Path, python: Path, report: Report) -> None:
    """Set everything up and run a scenario. Raises NotProven, EngineFailed, PodFailed."""
    home = folder.with_name("home")
    shared, logs = folder / "shared", folder / "logs"
    for directory, owner in ((home, ENGINE_UID), (folder, 0), (shared, DAEMON_UID), (logs, 0)):
        directory.mkdir(mode=0o755, exist_ok=directory == home)
        os.chown(directory, owner, owner)
    model = folder / "model"
    make_model(python, model)
    setup = EngineSetup(python, model, folder / "adapters", home, shared, logs)
    with PodClient(shared, logs / "pod.log") as pod:
        try:
            kind(pod, setup, report).run()
        finally:
            (logs / "daemon.log").write_text(pod.ask("log"))


def main() -> int:
    """0 if all was proven; 1 if not, with the logs kept; 2 if something is missing here."""
    parser = argparse.ArgumentParser(description="the proof with a real vLLM engine")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--vllm-environment", type=Path, default=CHECKOUT / ".venv-vllm")
    parser.add_argument("--keep-logs", action="store_true", help="also after success")
    options = parser.parse_args()
    unknown = set(options.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    python = options.vllm_environment.absolute() / "bin" / "python"
    missing = missing_here(python)
    if missing:
        print(f"e2e-vllm: {missing}", file=sys.stderr)  # noqa: T201
        return 2
    work = Path(tempfile.mkdtemp(prefix="kvferry-e2e-"))
    work.chmod(0o755)
    cold: dict[str, dict[int, list[int]]] = {}
    for name in options.scenarios or [each for each in SCENARIOS if each not in BY_NAME_ONLY]:
        report = Report(cold)
        report.say(f"scenario {name}")
        try:
            prove(SCENARIOS[name].kind, work / name, python, report)
        except (NotProven, EngineFailed, PodFailed) as failure:
            text = f"e2e-vllm {name}: NOT PROVEN: {failure}\nlogs: {work / name / 'logs'}"
            print(text, flush=True)  # noqa: T201
            return 1
        done = f"e2e-vllm {name}: verified by {report.checks} checks: {SCENARIOS[name].done}"
        print(done, flush=True)  # noqa: T201
    if not options.keep_logs:
        shutil.rmtree(work)
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
