"""Every error that the daemon raises on purpose.

KvferryError
├── InvalidArgument      a request or setting that can't be right; names the field
├── NotFound             no such session, shared-memory file
├── Unauthenticated      wrong session token
├── PermissionDenied     peer, descriptor or feature not allowed
├── ResourceExhausted    a limit is reached; names it
├── FailedPrecondition   right in another state (region shrank, overlap, poll order)
├── DeadlineExceeded     the wait ran out; the work goes on
├── Unavailable          stopping
└── ConfigError          wrong flag, variable or file entry: exit status 2

`service.status` maps each class to a gRPC code; a test fails on an unmapped one.
"""

from __future__ import annotations


class KvferryError(Exception):
    """Base of all: a message for people and a stable reason for programs.

    Args:
        message: what is wrong and what to change. Never a secret.
        reason: UPPER_SNAKE_CASE name of the cause, at most 63 characters.
        field: the request field or setting at fault, if one is.
    """

    def __init__(self, message: str, *, reason: str, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field


class InvalidArgument(KvferryError):
    """A request or setting that can't be right in any state."""


class NotFound(KvferryError):
    """No such session or shared-memory file."""


class Unauthenticated(KvferryError):
    """The token is not this session's."""


class PermissionDenied(KvferryError):
    """The peer, the descriptor or the feature is not allowed."""


class ResourceExhausted(KvferryError):
    """A limit is reached; the message names it and its value."""


class FailedPrecondition(KvferryError):
    """The request would be right in another state."""


class DeadlineExceeded(KvferryError):
    """The wait ran out; the work goes on and the call may be repeated."""


class Unavailable(KvferryError):
    """The daemon is stopping."""


class ConfigError(KvferryError):
    """A wrong flag, variable or configuration entry."""


class IllegalTransition(AssertionError):
    """A bug in the daemon: an event that the state table does not allow."""
