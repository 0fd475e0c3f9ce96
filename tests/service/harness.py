"""A real daemon on a thread of the test's process, and plain clients for it."""

from __future__ import annotations

import array
import asyncio
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvferry.v1 import admin_pb2_grpc, lease_pb2, offload_pb2, offload_pb2_grpc, types_pb2
from kvferry_server.adapters.clock import MonotonicClock
from kvferry_server.adapters.shm import SharedMemoryMapper
from kvferry_server.core.types import EngineSettings
from kvferry_server.service.server import Daemon, Ports, ServerSettings

from .fakes import MemoryStore

GUARD_SECONDS = 40.0
"""No test waits longer for what must happen; it is no speed check."""
SLOT = 4096
SYSTEM_PYTHON = "/usr/bin/python3"
"""One that other users may run, unlike the virtual environment's."""
as_another_user = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists(),
    reason="needs root, to become another user, and the system's Python",
)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + GUARD_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("the condition did not come true")
        time.sleep(0.005)


def open_descriptors() -> list[str]:
    """The numbers of this process's descriptors, that of the listing itself included."""
    return [path.name for path in Path("/proc/self/fd").iterdir()]


@dataclass
class Region:
    """Shared memory of a test, as an engine would own it."""

    descriptor: int
    memory: mmap.mmap

    @classmethod
    def make(cls, slots: int = 8, slot_bytes: int = SLOT, name: str = "kvferry-test") -> Region:
        descriptor = os.memfd_create(name)
        os.ftruncate(descriptor, slots * slot_bytes)
        return cls(descriptor, mmap.mmap(descriptor, slots * slot_bytes))

    def fill(self, slot: int, value: int, slot_bytes: int = SLOT) -> bytes:
        data = bytes([value]) * slot_bytes
        self.memory[slot * slot_bytes : (slot + 1) * slot_bytes] = data
        return data

    def read(self, slot: int, slot_bytes: int = SLOT) -> bytes:
        return self.memory[slot * slot_bytes : (slot + 1) * slot_bytes]

    def close(self) -> None:
        if not self.memory.closed:
            self.memory.close()
            os.close(self.descriptor)


def attach_request(slots: int = 8, slot_bytes: int = SLOT, **changes: object):
    request = offload_pb2.AttachRegionRequest(
        client_version="0.1.0",
        engine_id="engine",
        namespace="model",
        slot_bytes=slot_bytes,
        slot_stride_bytes=slot_bytes,
        segments=[offload_pb2.RegionSegment(slot_count=slots)],
    )
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def frame(message) -> bytes:
    payload = message.SerializeToString()
    return struct.pack(">I", len(payload)) + payload


def send_frame(connection: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    ancillary = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([data], ancillary)


def connect(path: str) -> socket.socket:
    """A connection to a socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(GUARD_SECONDS)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError(f"end-of-file after {len(data)} of {size} bytes")
        data += piece
    return data


def receive_reply(connection: socket.socket) -> lease_pb2.LeaseReply:
    (length,) = struct.unpack(">I", receive_exactly(connection, 4))
    return lease_pb2.LeaseReply.FromString(receive_exactly(connection, length))


@dataclass
class Client:
    """An attached session with its lease, region and channel."""

    stub: offload_pb2_grpc.OffloadServiceStub
    ref: types_pb2.SessionRef
    response: offload_pb2.AttachRegionResponse
    connection: socket.socket
    region: Region
    last_seq: int = 0

    def at_end_of_file(self, seconds: float = 0.0) -> bool:
        """Whether the lease is at end-of-file now or within so many seconds."""
        self.connection.settimeout(seconds)
        try:
            return self.connection.recv(1) == b""
        except (BlockingIOError, TimeoutError):
            return False

    def store(self, job_id: int, keys: Sequence[bytes], slots: Sequence[int]):
        job = offload_pb2.Job(job_id=job_id, keys=keys, slots=slots)
        request = offload_pb2.StoreRequest(session=self.ref, jobs=[job])
        return self.stub.Store(request, timeout=GUARD_SECONDS).admissions[0]

    def load(self, job_id: int, keys: Sequence[bytes], slots: Sequence[int]):
        job = offload_pb2.Job(job_id=job_id, keys=keys, slots=slots)
        request = offload_pb2.LoadRequest(session=self.ref, jobs=[job])
        return self.stub.Load(request, timeout=GUARD_SECONDS).admissions[0]

    def lookup(self, keys: Sequence[bytes], *, prefix_ordered: bool = False) -> list[int]:
        group = offload_pb2.LookupGroup(keys=keys, prefix_ordered=prefix_ordered)
        request = offload_pb2.LookupRequest(session=self.ref, groups=[group])
        return list(self.stub.Lookup(request, timeout=GUARD_SECONDS).groups[0].verdicts)

    def poll(self, max_wait: float = 20.0):
        request = offload_pb2.PollRequest(
            session=self.ref, ack_seq=self.last_seq, max_wait=duration(max_wait)
        )
        response = self.stub.Poll(request, timeout=GUARD_SECONDS)
        if response.results:
            self.last_seq = response.results[-1].seq
        return list(response.results)

    def outcomes(self, job_id: int) -> list[int]:
        """Poll until this job's result is there."""
        end = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < end:
            for result in self.poll():
                if result.job_id == job_id:
                    return list(result.outcomes)
        raise AssertionError(f"job {job_id} was not reported")

    def detach(self, max_wait: float = 20.0):
        request = offload_pb2.DetachRegionRequest(session=self.ref, max_wait=duration(max_wait))
        return self.stub.DetachRegion(request, timeout=GUARD_SECONDS)


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromMilliseconds(int(seconds * 1000))
    return message


@dataclass
class World:
    """A running daemon."""

    directory: Path
    store: MemoryStore
    daemon: Daemon
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    aborts: list[str]
    failures: list[BaseException]
    _channels: list[grpc.Channel] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def channel(self, name: str = "kvferry.sock", **options: object) -> grpc.Channel:
        settings = {
            "grpc.default_authority": "localhost",
            "grpc.use_local_subchannel_pool": 1,
            **options,
        }
        channel = grpc.insecure_channel(f"unix:{self.path(name)}", options=list(settings.items()))
        self._channels.append(channel)
        return channel

    def admin(self) -> admin_pb2_grpc.AdminServiceStub:
        return admin_pb2_grpc.AdminServiceStub(self.channel("admin.sock"))

    def connect(self, name: str = "lease.sock") -> socket.socket:
        return connect(self.path(name))

    def try_attach(self, request, descriptors: Sequence[int]) -> lease_pb2.LeaseReply:
        """Attach, and leave whatever comes of it."""
        with self.connect() as connection:
            send_frame(connection, frame(request), descriptors)
            return receive_reply(connection)

    def attach(self, region: Region | None = None, **changes: object) -> Client:
        region = region or Region.make()
        connection = self.connect()
        send_frame(connection, frame(attach_request(**changes)), [region.descriptor])
        reply = receive_reply(connection)
        assert reply.HasField("attached"), reply
        stub = offload_pb2_grpc.OffloadServiceStub(self.channel())
        client = Client(stub, reply.attached.session, reply.attached, connection, region)
        self._clients.append(client)
        return client

    def ready(self) -> None:
        """Wait until the preflight has passed."""
        wait_for(lambda: self.daemon.server_info(GUARD_SECONDS).store.ready)

    def stop(self) -> None:
        """Stop the daemon and wait for its end."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.daemon.stop)
        self.thread.join(GUARD_SECONDS)
        assert not self.thread.is_alive()

    def close(self) -> None:
        self.store.hold = self.store.hold_probes = False
        self.store.preflight_gate.set()
        self.store.release()
        self.stop()
        for client in self._clients:
            client.connection.close()
            client.region.close()
        for channel in self._channels:
            channel.close()


@contextmanager
def running(
    directory: Path,
    engine: EngineSettings | None = None,
    store: MemoryStore | None = None,
    **settings: object,
) -> Iterator[World]:
    """A daemon that serves on `directory`; stopped at the end."""
    world = start(directory, engine, store, **settings)
    try:
        yield world
    finally:
        world.close()
    assert world.failures == []


def start(
    directory: Path,
    engine: EngineSettings | None = None,
    store: MemoryStore | None = None,
    **settings: object,
) -> World:
    """Start a daemon on a thread and wait until it serves and its store is ready, if it can be."""
    store = store or MemoryStore()
    started = threading.Event()
    aborts: list[str] = []
    failures: list[BaseException] = []
    found: list[tuple[Daemon, asyncio.AbstractEventLoop]] = []
    options = ServerSettings(socket_dir=directory, **{"result_seconds": 0.05, **settings})

    async def main() -> None:
        ports = Ports(store, SharedMemoryMapper(), MonotonicClock(), aborts.append)
        daemon = Daemon(lambda: ports, engine or EngineSettings(), options)
        loop = asyncio.get_running_loop()
        found.append((daemon, loop))
        await daemon.serve(lambda _daemon: started.set())

    def body() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 -- `start` or `running` raises it
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=body, name="daemon")
    thread.start()
    assert started.wait(GUARD_SECONDS)
    if failures:
        thread.join()
        raise failures[0]
    daemon, loop = found[0]
    world = World(directory, store, daemon, loop, thread, aborts, failures)
    if not store.problem and store.preflight_gate.is_set():
        world.ready()
    return world
