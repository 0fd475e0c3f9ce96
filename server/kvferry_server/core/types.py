"""Values that every part of the daemon speaks: kinds, outcomes, names and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum, unique
from typing import NamedTuple


@unique
class JobKind(IntEnum):
    """Which way a job moves bytes; the numbers are the wire's."""

    STORE = 1
    LOAD = 2


@unique
class Presence(IntEnum):
    """Whether an object exists; the numbers are the wire's."""

    PRESENT = 1
    ABSENT = 2
    UNKNOWN = 3


@unique
class Outcome(IntEnum):
    """How a chunk ended; the numbers are the wire's (`ChunkOutcome`)."""

    STORED = 1
    SKIPPED_PRESENT = 2
    SKIPPED_IN_FLIGHT = 3
    LOADED = 4
    MISSING = 5
    CORRUPT = 6
    WRONG_SIZE = 7
    SHED = 8
    EXPIRED = 9
    DENIED = 10
    UNAVAILABLE = 11
    CANCELLED = 12
    INTERNAL = 13


@unique
class Admission(IntEnum):
    """What became of a submitted job; the numbers are the wire's (`JobAdmission`)."""

    ACCEPTED = 1
    JOINED = 2
    ALREADY_REPORTED = 3


@unique
class BreakerState(IntEnum):
    """State of a circuit breaker; the numbers are the wire's."""

    CLOSED = 1
    OPEN = 2
    HALF_OPEN = 3


@unique
class TransferStatus(IntEnum):
    """How one attempt to move one chunk ended, as an object store reports it."""

    OK = 1
    MISSING = 2
    """The object does not exist (loads only)."""
    CORRUPT = 3
    """The bytes fail their known checksum (loads only)."""
    WRONG_SIZE = 4
    """The object is shorter or longer than the slot's chunk (loads only)."""
    DENIED = 5
    """The store refused the credentials or the action."""
    UNAVAILABLE = 6
    """Refused connection, timeout, 5xx, throttling: worth another try."""
    INTERNAL = 7
    """A fault on this side, or the region shrank; not worth another try."""


@unique
class Refusal(StrEnum):
    """Why a chunk ended without a transfer; the values are those of counters and metrics."""

    PAUSED = "paused"
    NOT_READY = "not_ready"
    BREAKER = "breaker"
    QUEUE_FULL = "queue_full"
    MIN_OFFERS = "min_offers"
    """The key was not yet offered often enough."""
    PUT_RATE = "put_rate"
    BYTE_RATE = "byte_rate"


@unique
class VerdictSource(StrEnum):
    """What a lookup's verdict rests on; the values are those of counters and metrics."""

    INDEX = "index"
    PROBE = "probe"
    CUTOFF = "cutoff"
    """The key was not asked about: deadline, prefix rule, bound, breaker, or store not ready."""


class ObjectRef(NamedTuple):
    """One object, whichever session names it.

    `space` is `<tenant>/<namespace>` or `<namespace>`, validated path components;
    `key` is the block hash followed by the 4-byte big-endian group index.
    """

    space: str
    key: bytes


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The vLLM request that a job or lookup serves."""

    request_id: str = ""
    priority: int = 0
    transfer_params: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as submitted: `keys[i]` belongs to `slots[i]`."""

    job_id: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]
    context: RequestContext = RequestContext()


@dataclass(frozen=True, slots=True)
class LookupGroup:
    """Keys of one request and one KV-cache group, in the engine's order."""

    keys: tuple[bytes, ...]
    prefix_ordered: bool = True
    context: RequestContext = RequestContext()


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended; `outcomes` are in the order of its keys."""

    seq: int
    job_id: int
    kind: JobKind
    outcomes: tuple[Outcome, ...]
    transferred_bytes: int
    transfer_seconds: float


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """An attached region as the engine knows it: counts and names, no memory."""

    session_id: str
    engine_id: str
    space: str
    """`ObjectRef.space` of all its objects."""
    slots: int
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds and times of the engine. Seconds and bytes; defaults are the documented ones."""

    max_active_chunks: int = 50
    """Chunks in transfer at once; not above what the object store really runs."""
    max_queued_store_bytes: int = 4 << 30
    """Bytes of queued store chunks over all sessions; excess is SHED."""
    max_keys_per_request: int = 8_192
    max_jobs_per_request: int = 4_096
    max_bytes_per_request: int = 64 << 30
    max_key_bytes: int = 128
    max_open_jobs: int = 16_384
    """Per session: running or unacknowledged."""
    max_open_chunks: int = 1_000_000
    """Per session: chunks of its open jobs."""
    max_results_per_poll: int = 512
    max_wait_seconds: float = 30.0
    lookup_seconds: float = 2.0
    transfer_seconds: float = 15.0
    """From acceptance on: a queued chunk expires then, and no retry starts later."""
    hard_deadline_seconds: float = 60.0
    """Ticked time after which a running transfer or probe ends the daemon."""
    max_attempts: int = 4
    backoff_base_seconds: float = 0.1
    backoff_cap_seconds: float = 5.0
    breaker_failures: int = 8
    """Consecutive infrastructure failures that open a breaker."""
    breaker_cooldown_seconds: float = 5.0
    present_seconds: float = 600.0
    absent_seconds: float = 2.0
    condemned_seconds: float = 3600.0
    """How long an object whose load failed for its content counts as absent."""
    max_presence_entries: int = 1_000_000
    probe_wave: int = 32
    """Most keys of a prefix-ordered group probed at first; fewer after absences, and more as keys
    turn out to be present."""
    max_probing_keys: int = 256
    probe_batch: int = 32
    """Keys in one `StartProbe`."""
    min_offers: int = 1
    """A key is stored once it was offered so often; 1 stores at the first offer."""
    max_offer_entries: int = 1_000_000
    """Keys whose offers are counted, if `min_offers` is above 1."""
    max_puts_per_second: float = 0.0
    """Stores beyond it are SHED; 0 for no bound."""
    max_put_bytes_per_second: float = 0.0
    """Stores beyond it are SHED; 0 for no bound."""
    put_burst_seconds: float = 10.0
    """So much of either rate may be used at once after a quiet time."""
    min_load_bytes_per_second: float = 0.0
    """Lookups stay unanswered for a while after loads that were slower; 0 for no bound."""
    random_seed: int = field(default=0)
    """Seeds the backoff jitter, so that a run can be repeated."""
