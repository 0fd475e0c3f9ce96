"""The options that bound what the daemon holds, waits for and remembers.

Owns the tables `limits`, `timeouts`, `retry`, `breaker`, `presence` and `admission`. Their
defaults are those of `EngineSettings` and `ServerSettings`. Imports core and the service's
settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvferry_server.core.types import EngineSettings
from kvferry_server.service.settings import ServerSettings

from .option import Option, option

_ENGINE = EngineSettings()
_SERVER = ServerSettings(socket_dir=Path())


@dataclass(frozen=True, slots=True)
class LimitsOptions:
    """Bounds. What exceeds one is refused or shed, never queued without end."""

    max_inflight_chunks: int = option(
        _ENGINE.max_active_chunks,
        Option(
            "Chunks in transfer at once, never more than the store really runs.",
            unit="chunks",
            minimum=1,
            maximum=10_000,
            engine="max_active_chunks",
        ),
    )
    max_queued_store_bytes: int = option(
        _ENGINE.max_queued_store_bytes,
        Option(
            "Payload of queued stores over all sessions; a store beyond it is shed at once.",
            unit="bytes",
            minimum=0,
            maximum=2**60,
            engine="max_queued_store_bytes",
        ),
    )
    max_keys_per_request: int = option(
        _ENGINE.max_keys_per_request,
        Option(
            "Keys of one Lookup; chunks of one Store or Load.",
            unit="keys",
            minimum=1,
            maximum=1_000_000,
            engine="max_keys_per_request",
        ),
    )
    max_jobs_per_request: int = option(
        _ENGINE.max_jobs_per_request,
        Option(
            "Jobs of one Store or Load.",
            unit="jobs",
            minimum=1,
            maximum=65_536,
            engine="max_jobs_per_request",
        ),
    )
    max_bytes_per_request: int = option(
        _ENGINE.max_bytes_per_request,
        Option(
            "Payload of one Store or Load.",
            unit="bytes",
            minimum=1,
            maximum=2**60,
            engine="max_bytes_per_request",
        ),
    )
    max_key_bytes: int = option(
        _ENGINE.max_key_bytes,
        Option("Longest key.", unit="bytes", minimum=5, maximum=256, engine="max_key_bytes"),
    )
    max_open_jobs: int = option(
        _ENGINE.max_open_jobs,
        Option(
            "Jobs of one session that run or are not acknowledged.",
            unit="jobs",
            minimum=1,
            maximum=1_000_000,
            engine="max_open_jobs",
        ),
    )
    max_open_chunks: int = option(
        _ENGINE.max_open_chunks,
        Option(
            "Chunks in these jobs, some 500 bytes of memory each.",
            unit="chunks",
            minimum=1,
            maximum=100_000_000,
            engine="max_open_chunks",
        ),
    )
    max_results_per_poll: int = option(
        _ENGINE.max_results_per_poll,
        Option(
            "Results in one answer to Poll.",
            unit="jobs",
            minimum=1,
            maximum=65_536,
            engine="max_results_per_poll",
        ),
    )
    max_presence_entries: int = option(
        _ENGINE.max_presence_entries,
        Option(
            "Keys that the existence index remembers, at most 150 bytes of memory each.",
            unit="keys",
            minimum=1,
            maximum=100_000_000,
            engine="max_presence_entries",
        ),
    )
    max_probing_keys: int = option(
        _ENGINE.max_probing_keys,
        Option(
            "Keys that the store is asked about at once.",
            unit="keys",
            minimum=1,
            maximum=65_536,
            engine="max_probing_keys",
        ),
    )
    max_sessions: int = option(
        _SERVER.max_sessions,
        Option(
            "Regions attached at once.",
            unit="sessions",
            minimum=1,
            maximum=10_000,
            server="max_sessions",
        ),
    )
    max_message_bytes: int = option(
        _SERVER.max_message_bytes,
        Option(
            "Largest gRPC message that is accepted; clients split theirs.",
            unit="bytes",
            minimum=65_536,
            maximum=1 << 30,
            server="max_message_bytes",
        ),
    )
    max_concurrent_rpcs: int = option(
        _SERVER.max_concurrent_rpcs,
        Option(
            "Calls in progress at once, counted for waiting calls, for lookups and for the rest.",
            unit="calls",
            minimum=1,
            maximum=100_000,
            server="max_concurrent_rpcs",
        ),
    )


@dataclass(frozen=True, slots=True)
class TimeoutsOptions:
    """How long things may take."""

    lookup_seconds: float = option(
        _ENGINE.lookup_seconds,
        Option(
            "A lookup that names no timeout of its own is answered UNKNOWN after this.",
            unit="seconds",
            minimum=0.01,
            maximum=60,
            engine="lookup_seconds",
        ),
    )
    transfer_seconds: float = option(
        _ENGINE.transfer_seconds,
        Option(
            "A chunk still queued this long after its job was accepted expires, and no retry "
            "starts later.",
            unit="seconds",
            minimum=0.1,
            maximum=3600,
            engine="transfer_seconds",
        ),
    )
    hard_deadline_seconds: float = option(
        _ENGINE.hard_deadline_seconds,
        Option(
            "A transfer or probe that still runs after this ends the daemon, since it can't be "
            "cancelled. Counts only time in which the daemon ran.",
            unit="seconds",
            minimum=1,
            maximum=86_400,
            engine="hard_deadline_seconds",
        ),
    )
    max_wait_seconds: float = option(
        _ENGINE.max_wait_seconds,
        Option(
            "Longest wait of one Poll, Drain or DetachRegion.",
            unit="seconds",
            minimum=0,
            maximum=300,
            engine="max_wait_seconds",
        ),
    )
    shutdown_seconds: float = option(
        _SERVER.shutdown_seconds,
        Option(
            "How long a stopping daemon waits for running transfers. Keep it below the grace "
            "period of whoever stops it, 30 seconds in Kubernetes.",
            unit="seconds",
            minimum=0,
            maximum=3600,
            server="shutdown_seconds",
        ),
    )


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """What happens after a failed attempt."""

    max_attempts: int = option(
        _ENGINE.max_attempts,
        Option(
            "Attempts to move one chunk, the first included.",
            unit="attempts",
            minimum=1,
            maximum=100,
            engine="max_attempts",
        ),
    )
    backoff_base_seconds: float = option(
        _ENGINE.backoff_base_seconds,
        Option(
            "The first pause is a random part of this; each further one may be twice as long.",
            unit="seconds",
            minimum=0.001,
            maximum=60,
            engine="backoff_base_seconds",
        ),
    )
    backoff_cap_seconds: float = option(
        _ENGINE.backoff_cap_seconds,
        Option(
            "Longest pause between attempts.",
            unit="seconds",
            minimum=0.001,
            maximum=600,
            engine="backoff_cap_seconds",
        ),
    )


@dataclass(frozen=True, slots=True)
class BreakerOptions:
    """When the daemon stops asking a store that fails; one breaker for reading, one for writing."""

    failures: int = option(
        _ENGINE.breaker_failures,
        Option(
            "Failures in a row that open a breaker.",
            unit="failures",
            minimum=1,
            maximum=10_000,
            engine="breaker_failures",
        ),
    )
    cooldown_seconds: float = option(
        _ENGINE.breaker_cooldown_seconds,
        Option(
            "An open breaker lets one request try after this.",
            unit="seconds",
            minimum=0.01,
            maximum=3600,
            engine="breaker_cooldown_seconds",
        ),
    )


@dataclass(frozen=True, slots=True)
class PresenceOptions:
    """How long the existence index believes what it knows."""

    present_seconds: float = option(
        _ENGINE.present_seconds,
        Option(
            "Maximum age of the knowledge that an object exists.",
            unit="seconds",
            minimum=0,
            maximum=86_400 * 365,
            engine="present_seconds",
        ),
    )
    absent_seconds: float = option(
        _ENGINE.absent_seconds,
        Option(
            "Maximum age of the knowledge that an object does not exist.",
            unit="seconds",
            minimum=0,
            maximum=86_400,
            engine="absent_seconds",
        ),
    )
    condemned_seconds: float = option(
        _ENGINE.condemned_seconds,
        Option(
            "How long an object whose load failed for its content counts as absent, unless it "
            "is stored anew.",
            unit="seconds",
            minimum=0,
            maximum=86_400 * 365,
            engine="condemned_seconds",
        ),
    )


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """What is worth an upload or a load; see [cost](cost.md). Stores held back are shed at once."""

    min_offers: int = option(
        _ENGINE.min_offers,
        Option(
            "A key is stored once engines have offered it so often: 1 stores at the first offer, "
            "2 only what came back after it had left vLLM's CPU tier.",
            unit="offers",
            minimum=1,
            maximum=1000,
            engine="min_offers",
        ),
    )
    max_offer_entries: int = option(
        _ENGINE.max_offer_entries,
        Option(
            "Keys whose offers are counted if `min_offers` is above 1, some 200 bytes of memory "
            "each; the ones offered longest ago are forgotten first.",
            unit="keys",
            minimum=1,
            maximum=100_000_000,
            engine="max_offer_entries",
        ),
    )
    max_puts_per_second: float = option(
        _ENGINE.max_puts_per_second,
        Option(
            "Budget of uploads, retries included; 0 for none.",
            unit="requests per second",
            minimum=0,
            maximum=1_000_000,
            engine="max_puts_per_second",
        ),
    )
    max_put_bytes_per_second: float = option(
        _ENGINE.max_put_bytes_per_second,
        Option(
            "Budget of uploaded bytes, retries included; 0 for none.",
            unit="bytes per second",
            minimum=0,
            maximum=2**50,
            engine="max_put_bytes_per_second",
        ),
    )
    put_burst_seconds: float = option(
        _ENGINE.put_burst_seconds,
        Option(
            "After a quiet time, so many seconds' worth of a budget may be used at once.",
            unit="seconds",
            minimum=0.1,
            maximum=86_400,
            engine="put_burst_seconds",
        ),
    )
    min_load_bytes_per_second: float = option(
        _ENGINE.min_load_bytes_per_second,
        Option(
            "What an engine computes in a second: prefill tokens per second x KV bytes per token. "
            "When 16 chunks arrived slower than that, lookups say `UNKNOWN` for ten seconds, so "
            "engines compute; then it is measured again. 0 loads at any rate.",
            unit="bytes per second",
            minimum=0,
            maximum=2**50,
            engine="min_load_bytes_per_second",
        ),
    )
