"""What every test shares: Hypothesis' search, Spark's Python, where log lines go."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import final

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from haservices.testing.reserved_port import ReservedPort
from queryablestate.writer.connections import close_writer_connections


# The same examples in every run: a red test is then caused by the change at
# hand.  No example database: nothing of one checkout leaks into the next.
settings.register_profile(
    "test",
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

# While one works (`make check-fast`): of state machines and of properties.
settings.register_profile("fast", settings.get_profile("test"), max_examples=20)

# More of the same, and all that a state machine asks for (`tests/tiers.py`).
settings.register_profile("night", settings.get_profile("test"), max_examples=200)

# New examples in every run; a failure prints the blob that replays it, and
# `pytest --hypothesis-seed=N` repeats a whole run.
settings.register_profile(
    "random",
    settings.get_profile("test"),
    derandomize=False,
    max_examples=1_000,
)

# For code that is broken on purpose: that a test fails is enough, however it does.
settings.register_profile(
    "mutation",
    settings.get_profile("test"),
    max_examples=100,
    phases=(Phase.explicit, Phase.generate),
)

settings.load_profile(os.environ.get("LODESTAR_HYPOTHESIS_PROFILE", "test"))

# Each process that loads numpy would start threads, with which none of ours computes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Spark's workers run what we run, not the first python3 of the path.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# Processes that tests start run what we run, and import no more than those of users.
# What is hidden from them is not hidden from us, if we are one of several workers.
_TESTS = Path(__file__).parent
_HIDING = str(_TESTS / "hiding")
if _HIDING in sys.path:
    sys.path.remove(_HIDING)
else:
    _PATHS = (str(_TESTS.parent), _HIDING, os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))

# Run in the background or under nohup we ignore these signals, and whatever we start
# would inherit that: a test that sends one would wait for nothing.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


# Markers of files that take long, the longest first.
_LONG = ("spark", "shells")

# Tests that start Spark drivers of their own, with JVMs that take all processors.
_DRIVERS = (
    "tests/benchmarks/test_tiny.py::test_one_with_spark",
    "tests/sparkpipeline/standby/test_deployments.py",
    "tests/sparkpipeline/standby/test_takeover.py",
    "tests/sparkpipeline/state/test_executor_nodes.py::test_every_executor",
    "tests/sparkpipeline/state/test_sink_faults.py::TestDrivers",
    "tests/test_examples.py",
)

# Tests that compute for long, and share nothing with each other.
_ALONE = (
    "tests/haservices/zookeeper/test_mutations.py",
    "tests/simulation/",
    "tests/state_simulation/",
    "tests/zookeeper_simulation/",
)

# The items of all tests are a million objects, and none of them is garbage: looking for
# some takes half of the time of a collection, and of each look that a test asks for.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, and only among what tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Have the end of the interpreter find all: libraries tell of what it does not."""
    gc.unfreeze()


@final
class _ByFile(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """
    Keeps the tests of a file on one worker: they share fixtures, such as a cluster.

    All tests of ``sparkpipeline`` share one worker, since they share one JVM, but for
    those with drivers of their own: they are on another one, one after the other.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_DRIVERS):
            return "drivers"
        if nodeid.startswith(_ALONE):
            return nodeid
        path = nodeid.partition("::")[0]
        folder = "tests/sparkpipeline"
        return folder if path.startswith(folder) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    """Say which worker takes which tests where several run (``pytest -n``)."""
    # Of itself it begins with the files that have the most tests, which take no time.
    config.option.loadscopereorder = False
    return _ByFile(config, log)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """
    Begin with what takes long where several workers run: Spark, then processes.

    A worker that takes a file of minutes last is waited for by all the others.  After
    them come simulations, which compute, and what is short comes last.
    """
    if not hasattr(config, "workerinput"):
        return
    ranks: dict[Path, int] = {}
    for item in items:
        rank = next((r for r, m in enumerate(_LONG) if item.get_closest_marker(m)), 9)
        if item.nodeid.startswith(_ALONE):
            rank = min(rank, len(_LONG))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@pytest.fixture(scope="module", autouse=True)
def _close_what_writers_keep() -> Iterator[None]:
    """
    Leave no connection to a cluster that is gone.

    A process keeps them for its next batch, and libzmq would go on trying to connect:
    a test that counts file descriptors meanwhile counts its attempts.
    """
    yield
    close_writer_connections()


@pytest.fixture
def reserved() -> Iterator[ReservedPort]:
    """
    Yield a port that no other process is given before the test has ended.

    Connections to it are refused while no server of the test listens there: before a
    server's start, between its lives, and afterwards.
    """
    with ReservedPort() as port:
        yield port


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
