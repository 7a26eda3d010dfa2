"""
Spark's daemon of Python workers, with what the tasks of the tests need loaded before.

Spark's own forks first, and has each worker load pandas, Arrow, our package and the
modules of the tests by itself.  Tests with drivers of their own have that one.
"""

from __future__ import annotations

import gc
import importlib
import threading


_NEEDED = (
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "queryablestate.client.client",
    "sparkpipeline.attach.follower",
    "sparkpipeline.log.source",
    "sparkpipeline.operators.functions",
    "sparkpipeline.state.data_source",
    "sparkpipeline.state.sink",
    "tests.sparkpipeline.state_cluster",
    "tests.tiers",
)


def main() -> None:
    """Serve Spark until it closes standard input."""
    for name in _NEEDED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork has one thread, whatever was started"
    gc.freeze()  # a worker looks for garbage after each task
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
