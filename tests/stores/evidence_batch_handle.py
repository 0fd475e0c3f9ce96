# ruff: noqa: T201 - a script
"""Why one NIXL handle carries one chunk: the same eight loads, once in one handle, once in eight.

Run: `python -m tests.stores.evidence_batch_handle`. Not a test: it shows NIXL's behaviour, and its
output is kept in docs/evidence/batch-handle.md. The first of eight objects is missing, the seven
others are sent over a second. In both variants the job is reported as soon as NIXL says that it is
over; from then on the owner of the memory may reuse the slots, so any later change destroys
somebody else's data.
"""

from __future__ import annotations

import ctypes
import importlib
import secrets
import sys
import time

from kvferry_server.adapters.nixl_generation import backend_params
from kvferry_server.adapters.nixl_library import NixlAgent
from kvferry_server.adapters.s3_types import Credentials, Dialect, S3Settings
from kvferry_server.core.types import TransferStatus
from tests.support.fault_server import Fault, FaultServer

from .subjects import LOAD, Pending, make_s3_store

CHUNKS = 8
CHUNK_BYTES = 1 << 20
PAGE_BYTES = 4096
BODY_SECONDS = 1.0
WATCH_SECONDS = (0.05, 0.5, 1.0, 2.0)
KEYS = Credentials("kvferrytest", "kvferry-test-secret")
REUSED = b"\xee"
"""What the owner writes into the slots as soon as the job is reported."""


def changed_pages(region: memoryview) -> int:
    """Pages of the region that no longer hold what their owner wrote."""
    page = REUSED * PAGE_BYTES
    starts = range(0, len(region), PAGE_BYTES)
    return sum(region[start : start + PAGE_BYTES] != page for start in starts)


def watch(region: memoryview) -> str:
    """Reuse the slots and count the pages that change afterwards."""
    region[:] = REUSED * len(region)
    began = time.monotonic()
    seen = []
    for seconds in WATCH_SECONDS:
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        seen.append(f"{changed_pages(region)} at +{seconds:g} s")
    pages = len(region) // PAGE_BYTES
    return f"pages changed after the report, of {pages}: " + ", ".join(seen)


def batch_variant(settings: S3Settings, objects: dict[str, bytes], region: memoryview) -> None:
    """All eight in one handle, released when its status is an error: what must not be done."""
    owner = NixlAgent("OBJ", backend_params(settings, Dialect(), KEYS))
    agent, name = owner._agent, owner._name  # NixlAgent can't make such a handle
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    memory = [(address + i * CHUNK_BYTES, CHUNK_BYTES, 0) for i in range(CHUNKS)]
    targets = [(0, CHUNK_BYTES, 1_000_000 + i) for i in range(CHUNKS)]
    registered = [
        agent.register_memory(
            [(*each, key) for each, key in zip(targets, objects, strict=True)], "OBJ", ["OBJ"]
        ),
        agent.register_memory([(*each, "") for each in memory], "DRAM", ["OBJ"]),
    ]
    handle = agent.initialize_xfer(
        "READ",
        agent.get_xfer_descs(memory, "DRAM"),
        agent.get_xfer_descs(targets, "OBJ"),
        name,
        backends=["OBJ"],
    )
    began = time.monotonic()
    errors = importlib.import_module("nixl_cu12._bindings").nixlBackendError
    try:
        state = agent.transfer(handle)
        while state == "PROC":
            time.sleep(0.001)
            state = agent.check_xfer_state(handle)
    except errors as error:
        state = f"ERR ({error})"
    seconds = time.monotonic() - began
    agent.release_xfer_handle(handle)
    for each in registered:
        agent.deregister_memory(each, ["OBJ"])
    print(f"  status {state} after {seconds * 1000:.0f} ms; release and deregister raised nothing")
    print("  reported: 8 of 8 failed, because the handle has one status for all")
    print("  " + watch(region))


def kvferry_variant(settings: S3Settings, objects: dict[str, bytes], region: memoryview) -> None:
    """One handle for each chunk, reported when all eight are over."""
    store = make_s3_store(settings, KEYS)
    if not store.preflight().ready:
        sys.exit("the preflight failed")
    slots = [region[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES] for i in range(CHUNKS)]
    began = time.monotonic()
    pending = [Pending(store, LOAD, name, slot) for name, slot in zip(objects, slots, strict=True)]
    for each in pending:
        each.wait()
    seconds = time.monotonic() - began
    first = pending[0].done_at - began
    intact = sum(
        each.wait() is TransferStatus.OK and each.at_done == data
        for each, data in zip(pending, objects.values(), strict=True)
    )
    status = pending[0].wait().name
    print(f"  chunk 0 {status} after {first * 1000:.0f} ms, the job after {seconds:.2f} s")
    print(f"  reported: 1 of 8 failed, {intact} of 8 loaded and byte-equal")
    print("  " + watch(region))
    store.close()


def main() -> None:
    """Run both variants on fresh memory."""
    with FaultServer() as server:
        settings = S3Settings(server.bucket, "", server.endpoint_url)
        objects = {f"chunk-{i}": secrets.token_bytes(CHUNK_BYTES) for i in range(CHUNKS)}
        for name, data in list(objects.items())[1:]:
            server.put(name, data)
        server.add(Fault(method="GET", key="chunk-[1-7]", slow=BODY_SECONDS))
        for title, variant in (
            ("one handle for eight chunks", batch_variant),
            ("one handle for each chunk (kvferry)", kvferry_variant),
        ):
            print(title)
            variant(settings, objects, memoryview(bytearray(CHUNKS * CHUNK_BYTES)))


if __name__ == "__main__":
    main()
