"""`python -m kvferry_client.demo`: an engine's side of `kvferry demo`, against a running daemon.

Owns one run: a region of shared memory, chunks of random bytes stored, wiped, looked up, loaded and
compared. The region's name is unlinked as soon as it is mapped, so that nothing stays behind
however the process ends, and because the daemon never needs the name.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import mmap
import os
import random
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvferry_client.client import Client
from kvferry_client.types import JobKind, Outcome, Presence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHUNKS: Final = 256
CHUNK_BYTES: Final = 1 << 20
CHUNKS_PER_JOB: Final = 16
OPEN_JOBS: Final = 4
ATTACH_SECONDS: Final = 10.0
LOOKUP_SECONDS: Final = 20.0
JOB_SECONDS: Final = 60.0
"""Longest silence while jobs run."""

_SHM: Final = "/dev/shm"  # noqa: S108 - the directory of POSIX shared memory
_MEGABYTE: Final = 1_000_000
_GROUP: Final = bytes(4)
_NOT_SERVED: Final = frozenset({Outcome.UNAVAILABLE, Outcome.SHED})
_TOO_MUCH: Final = (
    ": the store failed requests, or takes fewer at once than the demo's 50; `kvferry check` tries "
    "it one by one"
)
_EXPECTED: Final = {JobKind.STORE: Outcome.STORED, JobKind.LOAD: Outcome.LOADED}


class DemoFailedError(Exception):
    """The run did not go as it should; the text says what happened."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one phase took, in seconds, for so many chunks or keys."""

    count: int
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        """Of chunks."""
        return self.count * CHUNK_BYTES / _MEGABYTE / self.seconds


class Demo:
    """One run over one region of `CHUNKS` slots."""

    def __init__(self, socket_dir: str, region: mmap.mmap) -> None:
        self._run = secrets.token_hex(8)
        self._flat = memoryview(region)
        self._client = Client(
            socket_dir,
            self._flat.cast("B", shape=[CHUNKS, CHUNK_BYTES]),
            namespace=f"demo-{self._run}",
            engine_id=f"demo-{os.getpid()}",
            lookup_timeout_s=LOOKUP_SECONDS,
        )
        self._keys = [self._key(f"chunk {number}") for number in range(CHUNKS)]

    def run(self) -> None:
        """Do everything and print the table.

        Raises DemoFailedError if any chunk fails, is lost or differs.
        """
        try:
            self._attach()
            for number in range(CHUNKS):
                self._slot(number)[:] = self._bytes_of(number)
            stored = self._move(JobKind.STORE, self._client.store)
            self._flat[:] = bytes(len(self._flat))
            looked_up = self._look_up()
            loaded = self._move(JobKind.LOAD, self._client.load)
            verified = self._verify()
        finally:
            self._client.close()
        _say(_table(stored, loaded, looked_up, verified))
        if verified != CHUNKS:
            raise DemoFailedError(f"{CHUNKS - verified} of {CHUNKS} chunks came back different")

    def _attach(self) -> None:
        if not self._client.wait_attached(ATTACH_SECONDS):
            raise DemoFailedError(f"the region could not be attached: {self._client.last_error}")
        _say(f"attached  a region of {CHUNKS} slots of 1 MiB, from process {os.getpid()}")

    def _move(self, kind: JobKind, submit: Callable[[Sequence[bytes], Sequence[int]], int]) -> Pace:
        """Store or load every chunk, with a few jobs open at a time."""
        waiting = [range(at, at + CHUNKS_PER_JOB) for at in range(0, CHUNKS, CHUNKS_PER_JOB)]
        open_jobs: set[int] = set()
        done = 0
        started = time.monotonic()
        while waiting or open_jobs:
            while waiting and len(open_jobs) < OPEN_JOBS:
                slots = waiting.pop(0)
                open_jobs.add(submit(self._keys[slots.start : slots.stop], slots))
            if not self._client.wait_results(JOB_SECONDS):
                raise DemoFailedError(f"no {kind.name.lower()} job ended within {JOB_SECONDS:g} s")
            for result in self._client.take_results():
                open_jobs.discard(result.job_id)
                failed = {each for each in result.outcomes if each is not _EXPECTED[kind]}
                if failed:
                    names = ", ".join(sorted(each.name for each in failed))
                    why = _TOO_MUCH if failed & _NOT_SERVED else ""
                    raise DemoFailedError(f"a {kind.name.lower()} job ended with {names}{why}")
                done += len(result.outcomes)
                _progress(kind.name.lower(), done)
        return Pace(CHUNKS, time.monotonic() - started)

    def _look_up(self) -> Pace:
        """Ask for every stored key, and for as many that nobody stored."""
        others = [self._key(f"absent {number}") for number in range(CHUNKS)]
        expected = [Presence.PRESENT] * CHUNKS + [Presence.ABSENT] * CHUNKS
        started = time.monotonic()
        self._client.lookup([*self._keys, *others])
        if not self._client.wait_results(LOOKUP_SECONDS):
            raise DemoFailedError(f"the lookup was not answered within {LOOKUP_SECONDS:g} s")
        [reply] = self._client.take_lookups()
        seconds = time.monotonic() - started
        unknown = reply.verdicts.count(Presence.UNKNOWN)
        if unknown:
            raise DemoFailedError(f"{unknown} of {len(expected)} lookups got no answer{_TOO_MUCH}")
        wrong = sum(a is not b for a, b in zip(reply.verdicts, expected, strict=True))
        if wrong:
            raise DemoFailedError(f"{wrong} of {len(expected)} lookups were answered wrongly")
        return Pace(len(expected), seconds)

    def _verify(self) -> int:
        """Return how many chunks are equal to what was stored, byte for byte."""
        return sum(bytes(self._slot(n)) == self._bytes_of(n) for n in range(CHUNKS))

    def _slot(self, number: int) -> memoryview:
        return self._flat[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]

    def _key(self, name: str) -> bytes:
        return hashlib.sha256(f"{self._run} {name}".encode()).digest() + _GROUP

    def _bytes_of(self, number: int) -> bytes:
        """Return the chunk's content: made twice, so that no copy has to be kept."""
        return random.Random(f"{self._run} {number}").randbytes(CHUNK_BYTES)  # noqa: S311


def make_region(size: int) -> mmap.mmap:
    """Map so many bytes of POSIX shared memory, reserved, under a name that is gone again.

    Raises DemoFailedError if there is not enough; the text has both numbers.
    """
    path = f"{_SHM}/kvferry-demo-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DemoFailedError(_no_space(size, descriptor)) from None
    finally:
        Path(path).unlink()
        os.close(descriptor)


def _no_space(size: int, descriptor: int) -> str:
    os.ftruncate(descriptor, 0)
    system = os.fstatvfs(descriptor)
    free = system.f_bavail * system.f_frsize
    return (
        f"the demo needs {size} bytes of shared memory and {_SHM} has {free} bytes free: enlarge "
        "it (docker run --shm-size=1g, or an emptyDir with medium: Memory) or delete files there"
    )


def _table(stored: Pace, loaded: Pace, looked_up: Pace, verified: int) -> str:
    mebibytes = CHUNKS * CHUNK_BYTES >> 20
    lines = ["", f"{'':10}{'count':>8}{'MiB':>8}{'seconds':>10}{'rate':>18}"]
    for name, pace in (("store", stored), ("load", loaded)):
        rate = f"{pace.megabytes_per_second:,.0f} MB/s"
        lines.append(f"{name:10}{pace.count:>8}{mebibytes:>8}{pace.seconds:>10.2f}{rate:>18}")
    rate = f"{looked_up.count / looked_up.seconds:,.0f} lookups/s"
    lines.append(f"{'lookup':10}{looked_up.count:>8}{'':8}{looked_up.seconds:>10.3f}{rate:>18}")
    lines.append(f"{'verified':10}{verified:>8}  of {CHUNKS} chunks are equal in every byte")
    return "\n".join(lines)


def _progress(name: str, done: int) -> None:
    """Redraw a bar on a terminal; elsewhere print each quarter."""
    if sys.stdout.isatty():
        bar = "#" * (40 * done // CHUNKS)
        end = "\n" if done == CHUNKS else ""
        sys.stdout.write(f"\r{name:8}  [{bar:40}] {done:>3} of {CHUNKS}{end}")
        sys.stdout.flush()
    elif done % (CHUNKS // 4) == 0:
        _say(f"{name:8}  {done:>3} of {CHUNKS} chunks")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo against the daemon in a socket directory; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvferry_client.demo", description=__doc__)
    parser.add_argument("--socket-dir", required=True, help="directory of the daemon's sockets")
    args = parser.parse_args(argv)
    try:
        Demo(args.socket_dir, make_region(CHUNKS * CHUNK_BYTES)).run()
    except DemoFailedError as error:
        sys.stderr.write(f"demo failed: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:  # nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
