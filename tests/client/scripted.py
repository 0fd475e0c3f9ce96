"""A small in-process daemon whose faults tests can script. Not a model of the real one.

It speaks the real contract: the lease handshake with descriptors, and OffloadService on
gRPC. Objects live in a dict. `fail(method, code, ...)` queues faults that hit before or
after the call took effect; `holding` keeps results back.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from kvferry.v1 import lease_pb2, offload_pb2, offload_pb2_grpc, types_pb2

STORED, SKIPPED, LOADED, MISSING, CANCELLED = 1, 2, 4, 5, 12
DEFAULT_LIMITS = types_pb2.Limits(
    max_keys_per_request=1000,
    max_jobs_per_request=100,
    max_bytes_per_request=1 << 40,
    max_key_bytes=256,
    max_open_jobs=1000,
    max_wait=Duration(seconds=2),
    max_message_bytes=4 << 20,
)


@dataclass
class Session:
    """One attached region."""

    ref: types_pb2.SessionRef
    request: offload_pb2.AttachRegionRequest
    connection: socket.socket
    memory: mmap.mmap
    offset: int
    seen: dict[int, str] = field(default_factory=dict)
    results: list[offload_pb2.JobResult] = field(default_factory=list)
    held: list[tuple[Any, int]] = field(default_factory=list)
    next_seq: int = 1
    half_closed: threading.Event = field(default_factory=threading.Event)


@dataclass
class Fault:
    """What happens to one call."""

    code: grpc.StatusCode
    text: str
    after: bool


class ScriptedDaemon(offload_pb2_grpc.OffloadServiceServicer):
    """Serves on a directory until `stop` (clean) or `die` (abrupt)."""

    def __init__(self, directory: Path, limits: types_pb2.Limits = DEFAULT_LIMITS) -> None:
        self.directory = directory
        self.limits = limits
        self.boot_id = secrets.token_hex(16)
        self.objects: dict[bytes, bytes] = {}
        self.sessions: list[Session] = []
        self.calls: list[tuple[str, Any]] = []
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.delays: dict[str, float] = defaultdict(float)
        self.holding = False
        self.end_on_half_close = True
        self.refuse: tuple[int, str, str] | None = None
        self.authorities: list[str] = []
        self.connections: list[socket.socket] = []
        self.changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._server: grpc.Server | None = None
        self.server_options: list[tuple[str, int]] = []

    # -- life ------------------------------------------------------------------------

    def start(self) -> ScriptedDaemon:
        for name in ("lease.sock", "kvferry.sock"):
            (self.directory / name).unlink(missing_ok=True)
        self.start_grpc()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.directory / "lease.sock"))
        self._listener.listen(16)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def start_grpc(self) -> None:
        self._server = grpc.server(
            ThreadPoolExecutor(16),
            options=[("grpc.max_receive_message_length", 8 << 20), *self.server_options],
        )
        offload_pb2_grpc.add_OffloadServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.directory / 'kvferry.sock'}")
        self._server.start()

    def stop_grpc(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        (self.directory / "lease.sock").unlink(missing_ok=True)

    def die(self) -> None:
        """End like a killed process: calls break, then every lease ends."""
        self.stop_listening()
        self.stop_grpc()
        for session in list(self.sessions):
            self.end_lease(session)
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def end_lease(self, session: Session) -> None:
        with self.changed:
            if session in self.sessions:
                self.sessions.remove(session)
        with contextlib.suppress(OSError):  # A blocked recv keeps a merely closed socket alive.
            session.connection.shutdown(socket.SHUT_RDWR)
        session.connection.close()

    # -- scripting ---------------------------------------------------------------------

    def fail(
        self,
        method: str,
        code: grpc.StatusCode,
        text: str = "scripted",
        *,
        after: bool = False,
        times: int = 1,
    ) -> None:
        for _ in range(times):
            self.faults[method].append(Fault(code, text, after))

    def release(self) -> None:
        """Report everything that was held back."""
        with self.changed:
            self.holding = False
            for session in self.sessions:
                held, session.held = session.held, []
                for job, kind in held:
                    self._run(session, job, kind)
            self.changed.notify_all()

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    # -- lease ---------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            if self._listener is not listener:  # It died between the two.
                connection.close()
                return
            threading.Thread(target=self._attach, args=(connection,), daemon=True).start()

    def _attach(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error):  # The peer or the test hung up.
            self._serve_lease(connection)

    def _serve_lease(self, connection: socket.socket) -> None:
        data, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(64 * 4))
        fds = array.array("i")
        for _, _, payload in ancillary:
            fds.frombytes(payload)
        (length,) = struct.unpack(">I", data[:4])
        while len(data) < 4 + length:
            data += connection.recv(65536)
        request = offload_pb2.AttachRegionRequest.FromString(data[4:])
        if self.refuse is not None:
            code, reason, message = self.refuse
            error = lease_pb2.AttachError(code=code, reason=reason, message=message)
            self._reply(connection, lease_pb2.LeaseReply(error=error))
            for fd in fds:
                os.close(fd)
            connection.close()
            return
        segment = request.segments[0]
        size = segment.offset_bytes + segment.slot_count * request.slot_stride_bytes
        memory = mmap.mmap(fds[0], size)
        for fd in fds:
            os.close(fd)
        ref = types_pb2.SessionRef(session_id=secrets.token_hex(16), token=secrets.token_bytes(32))
        session = Session(ref, request, connection, memory, segment.offset_bytes)
        reply = offload_pb2.AttachRegionResponse(
            session=ref, boot_id=self.boot_id, limits=self.limits, server_version="scripted"
        )
        with self.changed:
            self.sessions.append(session)
            self.changed.notify_all()
        self._reply(connection, lease_pb2.LeaseReply(attached=reply))
        with contextlib.suppress(OSError):
            while connection.recv(16):
                pass
        session.half_closed.set()
        if self.end_on_half_close:
            self.end_lease(session)

    def _reply(self, connection: socket.socket, reply: lease_pb2.LeaseReply) -> None:
        body = reply.SerializeToString()
        connection.sendall(struct.pack(">I", len(body)) + body)

    # -- gRPC --------------------------------------------------------------------------

    def _begin(self, method: str, request: Any, context: grpc.ServicerContext) -> Fault | None:
        self.authorities.append(context._rpc_event.call_details.host.decode())
        with self.changed:
            self.calls.append((method, request))
            self.changed.notify_all()
        if self.delays[method]:
            time.sleep(self.delays[method])
        fault = self.faults[method].popleft() if self.faults[method] else None
        if fault is not None and not fault.after:
            context.abort(fault.code, fault.text)
        return fault

    def _session(self, request: Any, context: grpc.ServicerContext) -> Session:
        for session in self.sessions:
            if session.ref.session_id == request.session.session_id:
                if session.ref.token != request.session.token:
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
                return session
        context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
        raise AssertionError

    def _run(self, session: Session, job: Any, kind: int) -> None:
        outcomes, moved = [], 0
        size = session.request.slot_bytes
        for key, slot in zip(job.keys, job.slots, strict=True):
            start = session.offset + slot * session.request.slot_stride_bytes
            if kind == types_pb2.JOB_KIND_STORE:
                outcomes.append(SKIPPED if key in self.objects else STORED)
                self.objects.setdefault(key, bytes(session.memory[start : start + size]))
            elif key in self.objects:
                session.memory[start : start + size] = self.objects[key]
                outcomes.append(LOADED)
            else:
                outcomes.append(MISSING)
            moved += size * (outcomes[-1] in (STORED, LOADED))
        self._report(session, job.job_id, kind, outcomes, moved)

    def _report(
        self, session: Session, job_id: int, kind: int, outcomes: list[int], moved: int = 0
    ) -> None:
        session.results.append(
            offload_pb2.JobResult(
                seq=session.next_seq,
                job_id=job_id,
                kind=kind,
                outcomes=outcomes,
                transferred_bytes=moved,
                transfer_time=Duration(nanos=1_000_000),
            )
        )
        session.next_seq += 1
        session.seen[job_id] = "finished"

    def _submit(
        self, method: str, request: Any, context: grpc.ServicerContext, kind: int
    ) -> list[int]:
        fault = self._begin(method, request, context)
        session = self._session(request, context)
        admissions = []
        with self.changed:
            for job in request.jobs:
                if job.job_id in session.seen:
                    open_ids = {result.job_id for result in session.results}
                    running = session.seen[job.job_id] == "running"
                    admissions.append(2 if running or job.job_id in open_ids else 3)
                    continue
                admissions.append(1)
                session.seen[job.job_id] = "running"
                if self.holding:
                    session.held.append((job, kind))
                else:
                    self._run(session, job, kind)
            self.changed.notify_all()
        if fault is not None:
            context.abort(fault.code, fault.text)
        return admissions

    def Store(self, request: Any, context: grpc.ServicerContext) -> Any:
        admissions = self._submit("Store", request, context, types_pb2.JOB_KIND_STORE)
        return offload_pb2.StoreResponse(boot_id=self.boot_id, admissions=admissions)

    def Load(self, request: Any, context: grpc.ServicerContext) -> Any:
        admissions = self._submit("Load", request, context, types_pb2.JOB_KIND_LOAD)
        return offload_pb2.LoadResponse(boot_id=self.boot_id, admissions=admissions)

    def Lookup(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("Lookup", request, context)
        self._session(request, context)
        groups = []
        for group in request.groups:
            verdicts: list[int] = []
            for key in group.keys:
                stopped = group.prefix_ordered and 2 in verdicts
                verdicts.append(3 if stopped else 1 if key in self.objects else 2)
            groups.append(offload_pb2.LookupVerdicts(verdicts=verdicts))
        return offload_pb2.LookupResponse(boot_id=self.boot_id, groups=groups)

    def Poll(self, request: Any, context: grpc.ServicerContext) -> Any:
        fault = self._begin("Poll", request, context)
        session = self._session(request, context)
        end = time.monotonic() + request.max_wait.seconds + request.max_wait.nanos / 1e9
        with self.changed:
            session.results = [r for r in session.results if r.seq > request.ack_seq]
            while not session.results and session in self.sessions and context.is_active():
                self.changed.wait(min(max(end - time.monotonic(), 0), 0.2))
                if time.monotonic() >= end:
                    break
            results = list(session.results)
        if fault is not None:
            context.abort(fault.code, fault.text)
        return offload_pb2.PollResponse(boot_id=self.boot_id, results=results)

    def Drain(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("Drain", request, context)
        session = self._session(request, context)
        with self.changed:
            held, session.held = session.held, []
            for job, kind in held:
                self._report(session, job.job_id, kind, [CANCELLED] * len(job.keys))
            self.changed.notify_all()
        return offload_pb2.DrainResponse(boot_id=self.boot_id, running_jobs=0)


def main() -> None:
    """Serve on the directory given until killed, for tests that need another process."""
    ScriptedDaemon(Path(sys.argv[1])).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
