"""Hostile handshakes on the lease socket: wrong frames, wrong descriptors, wrong times."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import time
from collections import Counter

from kvferry.v1 import lease_pb2, offload_pb2
from tests.service.harness import SLOT, Region, attach_request, connect, receive_exactly, send_frame

from .generate import Generator

LIKELY = {
    "client_version": ["0.1.0"],
    "engine_id": ["engine"],
    "namespace": ["model"],
    "slot_bytes": [SLOT],
    "slot_stride_bytes": [SLOT],
    "slot_count": [1, 2, 8],
    "offset_bytes": [0, SLOT],
    "shm_name": [""],
    "vllm_namespace": [""],
}
SLOW_EVERY = 200
"""One in so many connections keeps the daemon waiting, and one in so many comes with a flood."""
FLOOD = 24


class LeaseAttack:
    """Opens connections to the lease socket and keeps none."""

    def __init__(self, path: str, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self.undefined: list[str] = []
        self._path = path
        self._source = random.Random(seed)
        self._generator = Generator(self._source, LIKELY)
        self._region = Region.make()
        self._null = os.open("/dev/null", os.O_RDWR)
        self._pipe = os.pipe()
        self._read_only = os.open(f"/proc/self/fd/{self._region.descriptor}", os.O_RDONLY)

    def close(self) -> None:
        self._region.close()
        for descriptor in (self._null, self._read_only, *self._pipe):
            os.close(descriptor)

    def send(self, count: int) -> None:
        """So many connections, one after the other."""
        for number in range(count):
            if number % SLOW_EVERY == SLOW_EVERY // 2:
                self._flood()
                self._starve()
            with connect(self._path) as connection, contextlib.suppress(ConnectionError):
                self._one(connection, slow=number % SLOW_EVERY == 0)

    def _flood(self) -> None:
        """More silent connections than the daemon keeps."""
        with contextlib.ExitStack() as stack:
            for _ in range(FLOOD):
                stack.enter_context(connect(self._path))
            with connect(self._path) as last:
                last.recv(1)

    def _starve(self) -> None:
        """A connection while the process has no descriptor free."""
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
            resource.setrlimit(resource.RLIMIT_NOFILE, (connection.fileno() + 1, before[1]))
            connection.connect(self._path)
            time.sleep(0.1)

    def _one(self, connection: socket.socket, *, slow: bool) -> None:
        data, descriptors = self._frame(), self._descriptors()
        if slow:
            send_frame(connection, data[: self._source.randint(1, 6)], descriptors)
        else:
            cut = self._source.choice((0, 0, 0, 1, 4, 5, len(data) - 1)) % max(len(data), 1)
            send_frame(connection, data[:cut] or data, descriptors)
            if cut:
                send_frame(connection, data[cut:], self._descriptors() if cut == 4 else ())
            if self._source.random() < 0.3:
                connection.shutdown(socket.SHUT_WR)
            elif self._source.random() < 0.1:
                connection.sendall(b"more")
        ending = self._source.random()
        if ending < 0.1:
            return  # before there is an answer
        if ending < 0.2:
            connection.recv(1, socket.MSG_PEEK)
            return  # with the answer unread, which resets the daemon's end
        self._read(connection)

    def _frame(self) -> bytes:
        kind = self._source.random()
        if kind < 0.3:
            payload = attach_request().SerializeToString()
        else:
            descriptor = offload_pb2.AttachRegionRequest.DESCRIPTOR
            payload = self._generator.message(descriptor).SerializeToString()
        if kind > 0.75:
            payload = self._generator.mutated(payload)
        length = len(payload)
        if kind > 0.9:
            length = self._source.choice((0, length + 1, length - 1, 65_536, 65_537, 2**32 - 1))
        return struct.pack(">I", max(length, 0)) + payload

    def _descriptors(self) -> list[int]:
        good = self._region.descriptor
        return self._source.choice(
            (
                [good],
                [good],
                [good],
                [],
                [good, good],
                [self._null],
                [self._pipe[0]],
                [self._read_only],
                [good] * 64,
                [good] * 65,
                [good] * 200,
            )
        )

    def _read(self, connection: socket.socket) -> None:
        try:
            (length,) = struct.unpack(">I", receive_exactly(connection, 4))
        except EOFError:
            self.answers["end-of-file"] += 1
            return
        reply = lease_pb2.LeaseReply.FromString(receive_exactly(connection, length))
        if reply.HasField("attached"):
            self.answers["attached"] += 1
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
        elif reply.error.code and reply.error.reason:
            self.answers[reply.error.reason] += 1
        else:
            self.undefined.append(str(reply))
