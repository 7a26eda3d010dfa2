"""One Spark for all tests of the package; each test has a session of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkpipeline import close_ha_services


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SparkSession]:
    """Yield a local Spark with two Python workers at a time."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.appName("lodestar-tests")
        .master("local[2,3]")  # a task may fail twice
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        # On a busy machine a worker may need longer than 15 s to connect back.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.python.daemon.module", "tests.sparkpipeline.loaded_workers")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .getOrCreate()
    )
    yield spark
    spark.stop()


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session with settings of its own, which no other sees."""
    session = shared_spark.newSession()
    # Makes it the active session of this thread, as any real use of it would.
    session.createDataFrame([(0,)], "unused int")
    yield session
    close_ha_services()
