"""Hypothesis profiles: `gate` by default, `KVFERRY_HYPOTHESIS=thorough` for a long search.

The gate fails fast: it does not shrink, since that may outlast the test timeout. The thorough
profile does; run it with `--timeout=0`.
"""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "gate",
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough",
    max_examples=3000,
    stateful_step_count=120,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("KVFERRY_HYPOTHESIS", "gate"))
