"""NIXL used directly: all chunks of a round in one transfer handle, polled until it is done.

The same plugin, SDK settings and number of requests in flight as the daemon's, and no checksum.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from typing import ClassVar

os.environ.setdefault("AWS_RETRY_MODE", "standard")
os.environ.setdefault("AWS_MAX_ATTEMPTS", "1")
os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")

from nixl_cu12 import _api as nixl

from .contestant import IN_FLIGHT, Contestant
from .protocol import serve

_PAUSE_SECONDS = 0.0005


class NixlDirect(Contestant):
    """See the module's docstring."""

    label: ClassVar[str] = "nixl"

    def __init__(self, **where: str) -> None:
        super().__init__(**where)
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=[])
        self._agent = nixl.nixl_agent("bench", config)
        scheme, _, host = self.endpoint_url.partition("://")
        self._agent.create_backend(
            "OBJ",
            {
                "bucket": self.bucket,
                "region": self.region,
                "access_key": self.access_key,
                "secret_key": self.secret_key,
                "endpoint_override": f"{scheme}://{host}",
                "scheme": scheme,
                "use_virtual_addressing": "false",
                "req_checksum": "required",
                "resp_checksum": "required",
                "num_threads": str(IN_FLIGHT),
            },
        )
        self._devices = itertools.count(1)

    def write(self, keys: list[str]) -> None:
        self._move("WRITE", keys)

    def read(self, keys: list[str]) -> None:
        self._move("READ", keys)

    def _move(self, operation: str, keys: list[str]) -> None:
        slots, size = self.slots, self.slots.chunk_bytes
        start = ctypes.addressof(ctypes.c_char.from_buffer(slots.flat))
        memory = [(start + n * size, size, 0) for n in range(len(keys))]
        devices = [next(self._devices) for _ in keys]
        named = [(0, size, device, key) for device, key in zip(devices, keys, strict=True)]
        objects = self._agent.register_memory(named, "OBJ", backends=["OBJ"])
        whole = [(start, len(slots.flat), 0, "")]
        region = self._agent.register_memory(whole, "DRAM", backends=["OBJ"])
        handle = self._agent.initialize_xfer(
            operation,
            self._agent.get_xfer_descs(memory, "DRAM"),
            self._agent.get_xfer_descs([(0, size, device) for device in devices], "OBJ"),
            "bench",
            backends=["OBJ"],
        )
        state = self._agent.transfer(handle)
        while state == "PROC":
            time.sleep(_PAUSE_SECONDS)
            state = self._agent.check_xfer_state(handle)
        self._agent.release_xfer_handle(handle)
        self._agent.deregister_memory(objects, ["OBJ"])
        self._agent.deregister_memory(region, ["OBJ"])
        if state != "DONE":
            raise RuntimeError(f"NIXL ended a batch with {state}")


if __name__ == "__main__":
    serve(NixlDirect)
