"""What every test shares: how Hypothesis searches, and which Python Spark starts."""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings


# The same examples in every run: a red test is then caused by the change at
# hand.  No example database: nothing of one checkout leaks into the next.
settings.register_profile(
    "test",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

# New examples in every run; a failure prints the blob that replays it, and
# `pytest --hypothesis-seed=N` repeats a whole run.
settings.register_profile(
    "random",
    settings.get_profile("test"),
    derandomize=False,
    max_examples=1_000,
)

settings.load_profile(os.environ.get("LODESTAR_HYPOTHESIS_PROFILE", "test"))

# Spark's workers run what we run, not the first python3 of the path.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
