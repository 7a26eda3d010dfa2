"""``format("lodestar-log")``, found by Spark itself (O4)."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DateType, StructType
from structlog.testing import capture_logs

from nameservice import ConfigurationError, StorageError
from rescaling import LogPartitionError, LogRecordError
from sparkpipeline.log.reader import LogStreamReader
from sparkpipeline.log.records import LINE_SCHEMA
from sparkpipeline.log.source import LodestarLogSource
from sparkpipeline.log.state import LogOffset
from tests.sparkpipeline.state_cluster import run_to_end


@define
class Log:
    """A log that a test writes, and one query that reads it."""

    spark: SparkSession
    directory: Path
    checkpoint: Path
    written: list[int] = field(factory=list)
    batches: list[tuple[int, list[int]]] = field(factory=list)

    def append(self, *names: str, count: int = 3) -> None:
        """Append records that are all different to each of the partitions *names*."""
        for name in names:
            first = len(self.written)
            numbers = list(range(first, first + count))
            self.written += numbers
            with self.path(name).open("a") as file:
                file.write("".join(json.dumps({"n": n}) + "\n" for n in numbers))

    def path(self, name: str) -> Path:
        """Return where a partition is."""
        return self.directory / f"{name}.jsonl"

    def writer(self, parallelism: int = 1, **options: Any) -> DataStreamWriter:
        """Return the query."""
        frame = (
            self.spark.readStream.format("lodestar-log")
            .schema("n long")
            .option("parallelism", parallelism)
            .options(**options)
            .load(str(self.directory))
        )
        return frame.writeStream.foreachBatch(self.take)

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """Be a sink that writes down what it is given."""
        self.batches.append((batch_id, [row.n for row in batch.collect()]))

    def run(self, parallelism: int = 1, **options: Any) -> None:
        """Read what there is, in a new run of the query."""
        run_to_end(self.writer(parallelism, **options), self.checkpoint)

    def offset(self, batch_id: int) -> list[list[tuple[str, int]]]:
        """Return what the subtasks held after a batch, as Spark keeps it."""
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        subtasks = json.loads(lines[2])["subtasks"]
        return [[tuple(item) for item in subtask] for subtask in subtasks]

    def forget_commit(self, batch_id: int) -> None:
        """Have Spark run a batch again, as if it had died before it wrote this."""
        for path in (self.checkpoint / "commits").glob(f"*{batch_id}*"):
            path.unlink()

    def read_once(self) -> list[int]:
        """Return the records of all batches; what came again was the very same."""
        batches: dict[int, list[int]] = {}
        for batch_id, numbers in self.batches:
            assert sorted(batches.setdefault(batch_id, numbers)) == sorted(numbers)
        return sorted(number for numbers in batches.values() for number in numbers)


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Log:
    """Return a log of the test's own."""
    directory = tmp_path / "a log [%20]"
    directory.mkdir()
    return Log(spark, directory, tmp_path / "checkpoint")


@pytest.mark.proves("O4")
@pytest.mark.spark
@pytest.mark.shells
class TestRescaling:
    def test_every_record_arrives_once_whatever_the_parallelism(self, log: Log) -> None:
        """
        O4: two subtasks, one, four, three, with a restart at each step.

        Partitions are added on the way, a batch is run again after a restart with
        another parallelism, and a last line is not yet written.
        """
        log.append("a", "b", "c", "d")
        log.run(parallelism=2)
        assert [len(held) for held in log.offset(0)] == [2, 2]
        log.append("a", "e")
        with log.path("b").open("a") as file:
            file.write('{"n": ')
        log.run(parallelism=1)
        assert [len(held) for held in log.offset(1)] == [5]
        # Spark has forgotten that it was done with this batch: it is the same again,
        # though there is more to be read now, and more subtasks to read it.
        log.forget_commit(1)
        log.append("c", "f", "g")
        with log.path("b").open("a") as file:
            file.write(f"{len(log.written)}}}\n")
        log.written.append(len(log.written))
        log.run(parallelism=4)
        assert [batch_id for batch_id, _ in log.batches] == [0, 1, 1, 2]
        assert sorted(len(held) for held in log.offset(2)) == [1, 2, 2, 2]
        log.run(parallelism=2)  # nothing is new: no batch
        log.append("a", "b", "c", "d", "e", "f", "g", "h", "i")
        log.run(parallelism=3)
        assert [len(held) for held in log.offset(3)] == [3, 3, 3]
        assert log.read_once() == log.written
        held = [name for held in log.offset(3) for name, _ in held]
        assert sorted(held) == [f"{name}.jsonl" for name in "abcdefghi"]

    def test_a_log_is_read_in_bounded_batches(self, log: Log) -> None:
        """O4: in whole lines, and in order within a partition, to the end."""
        log.append("a", count=25)
        log.append("b", count=5)
        log.run(parallelism=2, bytes_per_partition_max=100)
        assert [len(numbers) for _, numbers in log.batches] == [16, 10, 4]
        assert log.read_once() == log.written
        in_order = [n for _, numbers in log.batches for n in numbers if n < 25]
        assert in_order == log.written[:25]


@pytest.mark.spark
@pytest.mark.shells
class TestRunning:
    @pytest.mark.proves("O4")
    def test_a_running_query_waits_for_line_ends_and_new_partitions(
        self, log: Log
    ) -> None:
        """O4: what it gives, without a schema, says where it stands."""
        found: list[tuple[str, int, str]] = []
        frame = (
            self.reader(log)
            .load(str(log.directory))
            .writeStream.foreachBatch(
                lambda batch, _: found.extend(tuple(row) for row in batch.collect())
            )
        )
        query = frame.option("checkpointLocation", str(log.checkpoint)).start()
        try:
            log.append("a", count=2)
            with log.path("a").open("a") as file:
                file.write('{"n": 1')
            query.processAllAvailable()
            assert found == [
                ("a.jsonl", 0, '{"n": 0}'),
                ("a.jsonl", 9, '{"n": 1}'),
            ]
            with log.path("a").open("a") as file:
                file.write("7}\n")
            log.append("b", count=1)
            query.processAllAvailable()
            assert Counter(found[2:]) == Counter(
                [("a.jsonl", 18, '{"n": 17}'), ("b.jsonl", 0, '{"n": 2}')]
            )
        finally:
            query.stop()

    @pytest.mark.proves("O4")
    def test_fields_may_have_the_names_of_what_there_is_of_a_line(
        self, log: Log
    ) -> None:
        """O4: who gives a schema gets fields of records, whatever they are called."""
        found: list[tuple[str, int, str]] = []
        record = {"partition": "p", "offset": 7, "value": "v"}
        log.path("a").write_text(json.dumps(record) + "\n", "utf-8")
        frame = (
            self.reader(log)
            .schema("partition string, offset long, value string")
            .load(str(log.directory))
        )
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: found.extend(tuple(row) for row in batch.collect())
        )
        run_to_end(writer, log.checkpoint)
        assert found == [("p", 7, "v")]

    def reader(self, log: Log) -> Any:
        """Return what reads lines as they are."""
        return log.spark.readStream.format("lodestar-log").option("parallelism", 2)


@pytest.mark.spark
@pytest.mark.shells
class TestFaults:
    @pytest.mark.proves("O4")
    def test_what_is_no_record_stops_the_query(self, log: Log) -> None:
        """O4: it is said where it stands; it can be left out, and nothing else is."""
        log.append("a")
        log.run()
        log.append("a")
        with log.path("a").open("a") as file:
            file.write('{"n": "x"}\n')
        log.append("a", "b")
        with pytest.raises(LogRecordError, match="the line at byte 54 is no"):
            log.run()
        log.run(parallelism=2, bad_records="skip")
        assert log.read_once() == log.written

    @pytest.mark.nightly
    def test_a_name_that_is_no_text_is_told_by_the_query(self, log: Log) -> None:
        """It comes through Spark with the name, and the next start goes on."""
        path = log.directory / os.fsdecode(b"\xff.jsonl")
        path.touch()
        log.append("a")
        with pytest.raises(StorageError, match=r"\\xff.jsonl.*rename it"):
            log.run()
        path.rename(log.path("b"))
        log.append("b")
        log.run()
        assert log.read_once() == log.written

    @pytest.mark.proves("O4")
    @pytest.mark.nightly
    def test_a_partition_that_is_not_what_it_was_stops_the_query(
        self, log: Log
    ) -> None:
        """O4: shorter, or gone, though nothing of it was left to be read."""
        log.append("a", "b")
        log.run()
        whole = log.path("a").read_bytes()
        log.path("a").write_bytes(whole[:-9])
        with pytest.raises(LogPartitionError, match="and now has 18 bytes"):
            log.run()
        log.path("a").unlink()
        with pytest.raises(LogPartitionError, match="and now is gone"):
            log.run()
        log.append("b")
        log.run(removed_partitions="forget")
        assert [name for name, _ in log.offset(1)[0]] == ["b.jsonl"]
        assert log.read_once() == log.written

    @pytest.mark.proves("O4")
    @pytest.mark.nightly
    def test_a_new_file_of_a_forgotten_name_is_read_from_its_beginning(
        self, log: Log
    ) -> None:
        """O4: the only partition went, was seen to be gone, and came again longer."""
        log.append("a")
        log.run()
        log.path("a").unlink()
        log.run(removed_partitions="forget")
        log.append("a", count=7)
        log.run(removed_partitions="forget")
        assert log.read_once() == log.written

    @pytest.mark.proves("O4")
    def test_a_partition_that_goes_while_its_batch_runs_is_forgotten(
        self, log: Log
    ) -> None:
        """O4: the batch was planned with it, and is run again without it."""
        log.append("a", "b")
        log.run()
        log.forget_commit(0)
        log.path("a").unlink()
        with pytest.raises(LogPartitionError, match="and now is gone"):
            log.run()
        log.append("b")
        log.run(parallelism=2, removed_partitions="forget")
        assert log.batches[1:] == [(0, [3, 4, 5]), (1, [6, 7, 8])]
        assert [name for held in log.offset(1) for name, _ in held] == ["b.jsonl"]

    def test_it_is_no_table(self, log: Log) -> None:
        """A log has no end."""
        log.append("a")
        with pytest.raises(PySparkException, match=r"use spark\.readStream"):
            log.spark.read.format("lodestar-log").load(str(log.directory)).collect()


def reader_of(directory: Path, **options: str) -> LogStreamReader:
    """Return what reads the log in *directory*, in this process."""
    reader = source(path=str(directory), **options).streamReader(LINE_SCHEMA)
    assert isinstance(reader, LogStreamReader)
    return reader


class TestReader:
    @pytest.mark.proves("O4")
    @pytest.mark.parametrize(
        ("size_bytes", "size_bytes_max"), [(2_000, 1_000), (17 << 20, 32 << 20)]
    )
    def test_half_a_line_is_waited_for_by_a_query_that_is_to_stop(
        self, tmp_path: Path, size_bytes: int, size_bytes_max: int
    ) -> None:
        """O4: no more is asked of it than of a query that goes on."""
        path = tmp_path / "a.jsonl"
        path.touch()
        os.truncate(path, size_bytes)
        reader = reader_of(tmp_path, bytes_per_partition_max=str(size_bytes_max))
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start

    @pytest.mark.proves("O4")
    def test_what_is_lost_with_a_partition_is_told(self, tmp_path: Path) -> None:
        """O4: which bytes of a file that is gone; a shorter one is an error."""
        for name in ("a", "b", "c", "d"):
            (tmp_path / name).write_bytes(b"1\n2\n")
        start = LogOffset(((("a", 2), ("b", 2), ("c", 4), ("d", 2)),)).to_json()
        end = LogOffset(((("a", 4), ("b", 4), ("c", 4)), (("d", 4),))).to_json()
        for name in ("a", "c", "d"):
            (tmp_path / name).unlink()
        (tmp_path / "b").write_bytes(b"1\n")
        reader = reader_of(tmp_path, glob="*", removed_partitions="forget")
        with capture_logs() as logs:
            planned = reader.partitions(start, end)
        assert [
            (line["event"], line["path"], line["offset"], line["offset_end"])
            for line in logs
        ] == [
            ("partition.forgotten", str(tmp_path / "a"), 2, 4),
            ("partition.forgotten", str(tmp_path / "d"), 2, 4),
        ]
        assert len(planned) == 2
        with pytest.raises(LogPartitionError, match="has 2 bytes"):
            list(reader.read(planned[0]))
        assert list(reader.read(planned[1])) == []
        # Where files that are gone are errors, it is the tasks that miss them.
        strict = reader_of(tmp_path, glob="*").partitions(start, end)
        with pytest.raises(LogPartitionError, match="is gone"):
            list(reader.read(strict[0]))

    def test_a_directory_that_is_gone_is_not_forgotten(self, tmp_path: Path) -> None:
        """What is not mounted holds every record still."""
        reader = reader_of(tmp_path / "none", removed_partitions="forget")
        end = LogOffset(((("a.jsonl", 2),),)).to_json()
        with pytest.raises(StorageError, match="cannot be read"):
            reader.partitions(reader.initialOffset(), end)


def source(**options: str) -> LodestarLogSource:
    """Return a source as Spark makes it."""
    return LodestarLogSource({"path": "/log"} | options)


class TestOptions:
    def test_what_is_not_said_has_a_default(self) -> None:
        """One subtask, ``*.jsonl``, 64 MiB; what is wrong is an error."""
        reader = source().streamReader(LINE_SCHEMA)
        assert isinstance(reader, LogStreamReader)
        options = reader._options
        assert (options.parallelism, options.glob) == (1, "*.jsonl")
        assert options.bytes_per_partition_max == 64 * 1024 * 1024
        assert (options.bad_records, options.removed_partitions) == ("fail", "fail")
        assert source().schema() == LINE_SCHEMA
        assert source().name() == "lodestar-log"

    def test_a_path_may_be_a_url(self) -> None:
        """Of a file, as Spark writes paths."""
        reader = source(path="file:///a%20log").streamReader(LINE_SCHEMA)
        assert isinstance(reader, LogStreamReader)
        assert reader._options.path == "/a log"

    @pytest.mark.parametrize(
        ("options", "detail"),
        [
            ({"paralelism": "2"}, "unknown option paralelism; known are bad_records"),
            ({"path": "log"}, "under the same absolute name, not 'log'"),
            ({"path": "hdfs://h/log"}, "not 'hdfs://h/log'"),
            ({"parallelism": "0"}, "parallelism must be 1 to 32768, not '0'"),
            ({"parallelism": "32769"}, "not '32769'"),
            ({"parallelism": "two"}, "not 'two'"),
            ({"bytes_per_partition_max": "-1"}, "must be at least 1, not '-1'"),
            ({"glob": "a/*"}, "a pattern for names in one directory"),
            ({"bad_records": "keep"}, '"fail" or "skip", not \'keep\''),
            ({"removed_partitions": "x"}, '"fail" or "forget", not \'x\''),
        ],
    )
    def test_what_is_wrong_is_said(self, options: dict[str, str], detail: str) -> None:
        """It names the option, and what it may be."""
        with pytest.raises(ConfigurationError, match=detail):
            source(**options).streamReader(LINE_SCHEMA)

    def test_a_type_that_json_does_not_have_is_said_at_once(self) -> None:
        """Before the query has started."""
        with pytest.raises(ConfigurationError, match="read it as a string"):
            source().streamReader(StructType().add("at", DateType()))

    @pytest.mark.spark
    @pytest.mark.shells
    def test_a_column_that_may_not_be_null_is_said_at_once(self, log: Log) -> None:
        """As Spark parses it; its own error of each batch did not say what to do."""
        log.append("a")
        reader = log.spark.readStream.format("lodestar-log").schema("n long NOT NULL")
        with pytest.raises(ConfigurationError, match="leave NOT NULL out"):
            run_to_end(
                reader.load(str(log.directory)).writeStream.foreachBatch(log.take),
                log.checkpoint,
            )
