"""An engine that is shut down while the store swallows what it is given, in a process of its own.

`run` is the parent's side. The process makes an engine, has S3 stopped, begins stores, shuts tier
(twice) and manager down, has S3 go on, and is still there when the stores end. Imports vLLM through
`sides`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from .sides import ROOT, Side, job

CHUNK_BYTES, CHUNKS = 16 << 20, 4
"""Larger than what a connection takes in before the server reads it."""
AFTERWARDS_SECONDS = 3.0


def run(side: Side) -> int:
    """How the process ended: its exit status."""
    command = [sys.executable, "-m", "tests.vllm.leaving", json.dumps(side.tier())]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for said, answer in (("ready", "freeze"), ("left", "thaw")):
            while (line := process.stdout.readline().strip()) != said:
                assert line or process.poll() is None, "the engine did not come so far"
            side.backend(answer)
            print(file=process.stdin, flush=True)
    return process.returncode


def leave(tier: dict[str, Any]) -> None:
    """Shut an engine down while stores are under way."""
    from vllm.v1.kv_offload.base import make_offload_key

    from kvferry_client.vllm_plugin import register

    from .conftest import Engine

    register()
    extra = {"cpu_bytes_to_use": CHUNKS * CHUNK_BYTES, "secondary_tiers": [tier]}
    engine = Engine([tier], worker_kv_bytes_per_block=CHUNK_BYTES, extra_config=extra)
    if tier["type"] == "kvferry":
        assert engine.tier._client.wait_attached(20)
    _tell("ready")
    keys = [make_offload_key((1 << 64 | number).to_bytes(32, "big"), 0) for number in range(CHUNKS)]
    engine.tier.submit_store(job(1, keys, list(range(CHUNKS))))
    time.sleep(1.5)  # The SDK waits a second for "100 Continue" before it sends a body.
    engine.tier.shutdown()
    engine.tier.shutdown()
    del engine.rows
    engine.manager.shutdown()
    _tell("left")
    time.sleep(AFTERWARDS_SECONDS)


def _tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201
    sys.stdin.readline()


if __name__ == "__main__":
    leave(json.loads(sys.argv[1]))
