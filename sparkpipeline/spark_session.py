"""What a Spark session must have for Lodestar to work in it."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["check_session", "python_problem"]

_TASK_MODULES: Final = "attrs, msgspec, structlog, xxhash, zmq"
"""What tasks import beside Lodestar itself, which may come with ``--py-files``."""

_PYTHON_SECONDS: Final = 20.0


def check_session(spark: SparkSession, what: str) -> None:
    """
    Refuse a session in which *what* cannot be done.

    Raises:
        ConfigurationError: If it is one of Spark Connect, without the driver's JVM; or
            a local one whose tasks run a Python that lacks what Lodestar needs.  Says
            what to do instead.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            f"{what} needs the driver's JVM, which Spark Connect does not give to its "
            "clients: run it in a classic session, where the driver is "
            "(spark-submit, or SparkSession.builder.master(…))"
        )
    if (spark.sparkContext.master or "").startswith("local"):
        problem = python_problem(spark.sparkContext.pythonExec)
        if problem is not None:
            raise ConfigurationError(problem)


@functools.cache
def python_problem(executable: str) -> str | None:
    """
    Return why tasks cannot run in that Python of this machine, or None.

    Python of the environment that runs this is not tried, and neither is what is not
    found: Spark says so itself.

    Args:
        executable: How Spark calls it.
    """
    found = shutil.which(executable)
    if found is None or Path(found).parent == Path(sys.executable).parent:
        return None
    try:
        tried = subprocess.run(
            [found, "-c", f"import {_TASK_MODULES}"],
            capture_output=True,
            text=True,
            timeout=_PYTHON_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if not tried.returncode:
        return None
    reason = tried.stderr.strip().rpartition("\n")[2]
    return (
        f"tasks of this session run {found}, which lacks what Lodestar needs "
        f"({reason}): set PYSPARK_PYTHON to {sys.executable} before the session is made"
    )
