"""One attached region: its lease, channel, credentials and jobs. May import grpc.

A session ends in one way only, by end-of-file on its lease. Everything that makes it
useless before that (NOT_FOUND, a wrong token, a new boot id, answers against the contract,
calls that fail for a long time) only half-closes the lease, which asks the daemon to finish;
the slots stay reserved until the daemon has done so or died.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import grpc

if TYPE_CHECKING:
    from kvferry.v1 import offload_pb2_grpc, types_pb2
    from kvferry_client.channel import DaemonChannel
    from kvferry_client.jobs import JobTable
    from kvferry_client.lease import Lease
    from kvferry_client.limits import SessionLimits

SESSION_GONE_CODES: Final = frozenset(
    {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
)


@dataclass(slots=True)
class Stall:
    """How long one kind of call has failed without a break."""

    limit_seconds: float
    _since: float | None = None

    def answered(self) -> None:
        """Note that the daemon answered."""
        self._since = None

    def failed(self, now: float) -> bool:
        """Note a failed call; True if they have failed for the limit without a break."""
        if self._since is None:
            self._since = now
        return now - self._since >= self.limit_seconds


@dataclass(slots=True, eq=False)
class Session:
    """Fields under the client's lock, except the lease and the channel, which have their own."""

    ref: types_pb2.SessionRef = field(repr=False)
    namespace: str
    boot_id: str
    limits: SessionLimits
    server_version: str
    lease: Lease
    channel: DaemonChannel
    jobs: JobTable
    stall_timeout_s: float
    send_stall: Stall = field(init=False)
    poll_stall: Stall = field(init=False)
    ending: bool = False
    """Half-closed: nothing new is sent, end-of-file is awaited."""

    def __post_init__(self) -> None:
        """Start the stall clocks of the two kinds of calls that must get through."""
        self.send_stall = Stall(self.stall_timeout_s)
        self.poll_stall = Stall(self.stall_timeout_s)

    def stub(self) -> offload_pb2_grpc.OffloadServiceStub:
        """Return the stub for this session's calls."""
        return self.channel.stub()


FAILURE_LINE: Final = "a call to the kvferry daemon failed, more are only counted: %s"


def code_of(error: BaseException) -> grpc.StatusCode:
    """Return the status code of a failed call; CANCELLED if the channel was closed under it."""
    code = error.code() if isinstance(error, grpc.RpcError) and hasattr(error, "code") else None
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.CANCELLED


def describe(error: BaseException) -> str:
    """Return a failed call in one line for the log."""
    if isinstance(error, grpc.RpcError) and hasattr(error, "details"):
        return f"{code_of(error).name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
