"""Entry point of the group `vllm.general_plugins`: makes the tier type "kvferry" known.

vLLM calls `register` in each of its processes, so it imports neither grpc nor the tier.
"""

from __future__ import annotations

import contextlib

TIER_TYPE = "kvferry"


def register() -> None:
    """Register the tier type; does nothing on a vLLM without secondary tiers, or twice."""
    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: PLC0415
    except ImportError:
        return
    with contextlib.suppress(ValueError):  # Already registered in this process.
        SecondaryTierFactory.register_tier(
            TIER_TYPE, "kvferry_client.vllm_tier", "KVFerrySecondaryTierManager"
        )
