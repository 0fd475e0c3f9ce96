"""What `test_equivalence` covers and where the two tiers differ; writes docs/equivalence.md.

    python -m tests.vllm.equivalence > docs/equivalence.md

Imports the standard library only.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

CASES = {
    "empty lookup": "test_empty_lookup",
    "store, then lookup": "test_store_then_lookup",
    "unrelated key": "test_unrelated_key",
    "store-load round trip": "test_store_load_round_trip",
    "several jobs tracked apart": "test_several_jobs_tracked_apart",
    "failed transfer reported": "test_failed_store_is_reported",
    "failed load turns the verdict negative": "test_failed_load_turns_the_verdict_negative",
    "pending transfer not returned": "test_pending_transfer_is_not_returned",
    "drain polls to the end": "test_drain_polls_to_the_end",
    "multi-block store and partial lookup": "test_multi_block_store_and_partial_lookup",
    "lookup exception is a miss": "test_lookup_failure_is_a_miss",
    "failures at submission are results, not raises": "test_submission_failures",
    "mixed success and failure": "test_mixed_success_and_failure",
    "cleanup failures never lose a result": "test_J01_no_answer_loses_a_job",
    "shutdown with transfers in flight, twice": "test_shutdown_with_transfers_in_flight_twice",
    "KV events for successful stores only, with locality": "test_kv_events_for_what_is_stored",
    "KV events off by default": "test_kv_events_are_off_by_default",
    "config with and without credentials, session token, region, ca_bundle": (
        "test_credentials_in_the_config"
    ),
}
"""Cases of vLLM's own tests/v1/kv_offload/tiering/test_obj_tier.py, and what stands for each."""

BEYOND = {
    "cascade stores each chunk once": "test_cascade_goes_to_the_store_once",
    "promotion is one job per request": "test_promotion_is_one_job_for_a_request",
    "a pinned chunk is released once, failed load included": "test_pins_are_released_once",
    "partly failed load": "test_partly_failed_load",
    "reset_cache keeps what is stored": "test_reset_cache_keeps_what_is_stored",
    "KV events obey the global flag": "test_kv_events_obey_the_global_flag",
    "io_threads": "test_io_threads_is_taken",
    "store unreachable at the start": "test_server_down_at_the_start",
}
"""Scenarios that the upstream module has no case for."""


class Difference(NamedTuple):
    """What each tier does, and why ours does it."""

    scenario: str
    obj: object
    kvferry: object
    why: str


DIFFERENCES = {
    "partial": Difference(
        "a load of three chunks, the second is gone",
        ["MISS", "MISS", "MISS"],
        ["HIT", "MISS", "HIT"],
        "NIXL reports a batch as a whole; kvferry runs a transfer per chunk and names what arrived",
    ),
    "submission": Difference(
        "a job that can't be submitted (slot outside the region)",
        "raises nixlInvalidParamError",
        "failed result",
        "a raise kills the engine",
    ),
    "down at start": Difference(
        "the store can't be reached when the engine starts",
        "raises RuntimeError",
        "MISS",
        "storage down is a miss, never an outage; the tier works once the store is there",
    ),
    "credentials": Difference(
        "`store_config` in the tier's config",
        "taken",
        "refused",
        "credentials belong to the daemon; the text says where to",
    ),
}
"""Asserted by the tests that name them."""

STATED = (
    Difference(
        "lookup while the store is down",
        "a miss after the SDK's retries (20 to 30 s with refused connections)",
        "a miss after `lookup_timeout_s` at most",
        "the request waits no longer than the option says",
    ),
    Difference(
        "drain with stores in the queue",
        "all are written first",
        "what has not begun is cancelled and reported failed",
        "the engine stands still meanwhile; a store that is lost is only a later miss",
    ),
    Difference(
        "shutdown with stores under way",
        "returns at once; vLLM unmaps the region under NIXL, which may end the process (SIGSEGV)",
        "waits 2 s at most; the daemon has a mapping of its own",
        "nothing may touch memory that is gone",
    ),
    Difference(
        "store of a key that is present",
        "written again",
        "nothing moves",
        "upload traffic and requests cost",
    ),
    Difference(
        "reset_cache",
        "goes on with the same objects",
        'begins a new cache epoch (or goes on, with `"after_reset": "keep"`)',
        "vLLM resets the cache when weights change and does not tell the tier that they did",
    ),
    Difference(
        "`io_threads`", "threads of the NIXL backend", "ignored with a warning", "no threads here"
    ),
    Difference("`prefix`", "an option of the tier", "the daemon's `store.url`", "tenants are its"),
)


def render() -> str:
    """The document."""
    lines = [
        "# Equivalence with vLLM's in-process `obj` tier",
        "",
        "Written by `python -m tests.vllm.equivalence`; `make e2e-vllm-matrix` runs it.",
        "[tests/vllm/test_equivalence.py](../tests/vllm/test_equivalence.py) drives vLLM's real",
        "`TieringOffloadingManager` through each scenario twice, with the real `obj` tier (real",
        "NIXL) and with kvferry (real daemon), on one S3 server.",
        "",
        "## Upstream's cases",
        "",
        "| case of vLLM's own tests (on a mocked NIXL) | here, on the real stack |",
        "|---|---|",
        *(f"| {case} | `{name}` |" for case, name in CASES.items()),
        "",
        "## Beyond them",
        "",
        "| scenario | test |",
        "|---|---|",
        *(f"| {case} | `{name}` |" for case, name in BEYOND.items()),
        "",
        "## Differences",
        "",
        "| scenario | `obj` | kvferry | why |",
        "|---|---|---|---|",
        *(
            f"| {each.scenario} | {_text(each.obj)} | {_text(each.kvferry)} | {each.why} |"
            for each in (*DIFFERENCES.values(), *STATED)
        ),
        "",
    ]
    return "\n".join(lines)


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    sys.stdout.write(render())
