"""
What publishing state adds to a micro-batch, over Spark's noop sink in the same run.

Workload: a stream of Parquet files, 100,000 rows each (string key, long, double,
32-character string), update mode by ``publish_state`` into two nodes that are processes
of their own; ``local[2]``, and the same files into the noop sink.  Batches of the two
queries alternate, so that both see the same machine.  Units: milliseconds of Spark's
``addBatch``, and of processor, user and system, in all processes of the benchmark
(driver, JVM, Python workers, nodes, proxy) while the batch is run.  The first batches
of each, in which processes start, are left out.  Bad: more than 500 ms over noop, or
more than 250 ms of processor.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from benchmarks._harness import figure, report, sized
from benchmarks._state_cluster import StateCluster
from sparkpipeline import publish_state


if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_ROW_COUNT: Final = sized(100_000, tiny=10)
_BATCH_COUNT: Final = sized(12, tiny=2)
_WARM_UP_COUNT: Final = sized(3, tiny=1)
_SCHEMA: Final = "k string, id long, d double, s string"


def run() -> None:
    """Measure and report."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            StateCluster(node_count=2) as cluster,
        ):
            _measure(spark, Path(directory), cluster.url)
    finally:
        spark.stop()


def _measure(spark: SparkSession, directory: Path, url: str) -> None:
    batches = [_write_batch(spark, directory, index) for index in range(_BATCH_COUNT)]
    sources = {name: directory / name for name in ("noop", "state")}
    for source in sources.values():
        source.mkdir()
    writers: dict[str, DataStreamWriter] = {
        "noop": _stream(spark, sources["noop"])
        .writeStream.format("noop")
        .outputMode("update"),
        "state": publish_state(
            _stream(spark, sources["state"]),
            url,
            job_id="bench",
            state_name="state",
            key="k",
            output_mode="update",
        ),
    }
    queries: dict[str, StreamingQuery] = {
        name: writer.option("checkpointLocation", str(directory / f"{name}.ck")).start()
        for name, writer in writers.items()
    }
    measured: dict[str, list[float]] = {name: [] for name in queries}
    used: dict[str, list[float]] = {name: [] for name in queries}
    for files in batches:
        for name, query in queries.items():
            for file in files:
                os.link(file, sources[name] / file.name)
            before_ms = _processor_ms()
            query.processAllAvailable()
            used[name].append(_processor_ms() - before_ms)
            measured[name].append(_add_batch_ms(query))
    for query in queries.values():
        query.stop()
    noop, state = (measured[name][_WARM_UP_COUNT:] for name in ("noop", "state"))
    added = [after - before for before, after in zip(noop, state, strict=True)]
    noop_used, state_used = (used[name][_WARM_UP_COUNT:] for name in ("noop", "state"))
    added_used = [
        after - before for before, after in zip(noop_used, state_used, strict=True)
    ]
    report(
        "state_publish",
        [
            figure(f"noop sink, {_ROW_COUNT:,} rows", "ms", noop),
            figure(f"publish_state, {_ROW_COUNT:,} rows", "ms", state),
            figure("added by publish_state", "ms", added),
            figure("noop sink, processor", "ms", noop_used),
            figure("publish_state, processor", "ms", state_used),
            figure("added by publish_state, processor", "ms", added_used),
        ],
    )


def _write_batch(spark: SparkSession, directory: Path, index: int) -> list[Path]:
    """Write the files of one micro-batch aside, and return them."""
    rows = spark.range(index * _ROW_COUNT, (index + 1) * _ROW_COUNT, numPartitions=2)
    path = directory / f"batch-{index:03d}"
    rows.select(
        F.concat(F.lit("key-"), F.col("id").cast("string")).alias("k"),
        F.col("id"),
        (F.col("id") * 1.5).alias("d"),
        F.md5(F.col("id").cast("string")).alias("s"),
    ).write.parquet(str(path))
    return sorted(path.glob("*.parquet"))


def _stream(spark: SparkSession, source: Path) -> DataFrame:
    return spark.readStream.schema(_SCHEMA).parquet(str(source))


def _add_batch_ms(query: StreamingQuery) -> float:
    """Return the milliseconds that the batches since the last call took to be added."""
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    newest = batches[-1]
    assert newest["numInputRows"] == _ROW_COUNT  # both files came in one batch
    return float(newest["durationMs"]["addBatch"])


def _processor_ms() -> float:
    """Return the processor time of this process and of all below it until now."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended, and its parent has its time
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        # Its own, user and system, and that of children that have ended.
        ticks[pid] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {p for p, above in parents.items() if above in family} - family:
        family |= more
    return 1_000 * sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")
