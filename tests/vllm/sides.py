"""The two tiers that are compared, each behind vLLM's own manager and on the same S3 server.

Owns the client of `backend` and how each tier is configured. Imports vLLM through `conftest`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .conftest import Engine

ROOT = Path(__file__).resolve().parents[2]
SERVER_PYTHON = os.environ.get("KVFERRY_TEST_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
"""Python with kvferry's daemon and the S3 servers: not vLLM's own."""
NIXL_PACKAGES = os.environ.get("KVFERRY_TEST_NIXL", str(ROOT / ".venv-vllm-matrix" / "nixl"))
"""Folder with the nixl package, which the in-tree tier needs and vLLM's environment lacks."""
S3_SERVER = os.environ.get("KVFERRY_TEST_S3", "moto")
PREFIX = "kv"
COLLECTOR = "(collector)"
BEGIN, END = "/kvferry-begin", "/kvferry-end"
"""What `calling_thread` and `never_blocks` agree on; the two are marks in strace's output."""

if importlib.util.find_spec("nixl") is None and Path(NIXL_PACKAGES).is_dir():
    sys.path.append(NIXL_PACKAGES)
HAS_NIXL = importlib.util.find_spec("nixl") is not None
HAS_SERVER = Path(SERVER_PYTHON).exists()
os.environ.setdefault("NIXL_TELEMETRY_ENABLE", "1")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
"""Without this the in-tree tier can store nothing on Ceph (kvferry finds it out by itself)."""


def job(number: int, keys: list[bytes], slots: list[int]) -> Any:
    """A job as any supported vLLM hands it to a tier."""
    import numpy as np
    from vllm.v1.kv_offload.base import ReqContext

    made = type("Job", (), {})()
    made.job_id, made.keys, made.req_context = number, keys, ReqContext(req_id=f"job{number}")
    made.chunk_ids = made.block_ids = np.asarray(slots, dtype=np.int32)
    return made


class Backend:
    """Client of `backend.main`; a method call is a command."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [SERVER_PYTHON, "-m", "tests.vllm.backend", S3_SERVER, str(directory)],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()
        self.where: dict[str, str] = self("where")

    def __call__(self, command: str, **arguments: Any) -> Any:
        """Send a command and return its answer's value."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it and what it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the backend ended"
        return json.loads(line)["value"]


class Side:
    """One of the two tiers: makes engines with it and tells what it has stored.

    Args:
        kind: "obj" for vLLM's own, "kvferry" for ours.
    """

    def __init__(self, kind: str, backend: Backend, naming: str = "kvferry") -> None:
        self.kind = kind
        self.backend = backend
        self.naming = naming
        self.engines: list[Engine] = []
        self._sockets = ""

    def tier(self, **options: Any) -> dict[str, Any]:
        """The entry of `secondary_tiers`."""
        if self.kind == "kvferry":
            if not self._sockets:
                self._sockets = self.backend("daemon", naming=self.naming, prefix=PREFIX)
            common = {"socket_dir": self._sockets, "after_reset": "keep"}
            return {"type": "kvferry", **common, **options}
        where = self.backend.where
        store = {
            "bucket": where["bucket"],
            "endpoint_override": where["endpoint"],
            "access_key": where["access_key"],
            "secret_key": where["secret_key"],
            "scheme": "http",
            **options.pop("store_config", {}),
        }
        return {"type": "obj", "store_config": store, "prefix": PREFIX, **options}

    def engine(self, options: dict[str, Any] | None = None, **changes: Any) -> Engine:
        """A new engine with this tier."""
        from kvferry_client.vllm_plugin import register

        register()
        made = Engine([self.tier(**(options or {}))], **changes)
        self.engines.append(made)
        if self.kind == "kvferry":
            assert made.tier._client.wait_attached(20)
        return made

    def end(self, engine: Engine) -> None:
        """Shut one engine down."""
        self.engines.remove(engine)
        del engine.rows
        engine.manager.shutdown()

    def close(self) -> None:
        """Shut all engines down, and the daemon."""
        for engine in list(self.engines):
            self.end(engine)
        if self._sockets:
            self.backend("end_daemon")

    def objects(self) -> dict[str, bytes]:
        """What is in the bucket below the prefix, but for probes of either."""
        found = self.backend("objects")
        return {
            key: bytes.fromhex(data)
            for key, data in found.items()
            if key.startswith(f"{PREFIX}/") and key.endswith(".bin")
        }
