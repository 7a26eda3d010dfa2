"""What every test shares: Hypothesis' search, Spark's Python, where log lines go."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from queryablestate.writer_links import close_writer_connections


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

# Run in the background or under nohup we ignore these signals, and whatever we start
# would inherit that: a test that sends one would wait for nothing.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


@pytest.fixture(scope="module", autouse=True)
def _close_what_writers_keep() -> Iterator[None]:
    """
    Leave no connection to a cluster that is gone.

    A process keeps them for its next batch, and libzmq would go on trying to connect:
    whoever counts file descriptors meanwhile counts its attempts.
    """
    yield
    close_writer_connections()


@pytest.fixture(autouse=True)
def _log_to_this_test() -> Iterator[None]:
    """
    Show the log lines of a test beside that test, whatever it configures.

    Standard error is looked up for each line: pytest replaces it for every test.
    """
    structlog.configure(
        processors=structlog.get_config()["processors"],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    config = structlog.get_config()
    yield
    structlog.configure(**config)
