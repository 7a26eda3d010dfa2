"""Operators over real micro-batches: exactly once, whatever is run again (O1 to O3)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import define, field
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from nameservice import ConfigurationError
from rescaling import OperatorCheckpointError, SnapshotTooLargeError
from rescaling.operator_state import decode_snapshot
from sparkpipeline import OperatorContext, OperatorFunction, run_operator
from sparkpipeline.operators.checkpoint import OperatorCheckpoint
from sparkpipeline.operators.functions import _Left, _Operator
from sparkpipeline.operators.manifest import (
    OperatorManifest,
    SubtaskFile,
    decode_manifest,
)
from tests.sparkpipeline.operator_app import Remember
from tests.sparkpipeline.state_cluster import Feed, run_to_end
from tests.tiers import nightly_after


pytestmark = [pytest.mark.spark, pytest.mark.shells]

ROOT = Path(__file__).parents[3]
SCHEMA = "n long"


@define
class Run:
    """A query that a test runs again and again from one checkpoint."""

    feed: Feed
    checkpoint: Path
    delivered: list[tuple[int, list[int]]] = field(factory=list)
    added: list[int] = field(factory=list)

    @property
    def operator(self) -> Path:
        """Where the operator keeps what it leaves."""
        return self.checkpoint / "operator"

    def add(self, *counts: int) -> None:
        """Add a batch of that many new numbers for each of *counts*."""
        for count in counts:
            first = len(self.added)
            numbers = list(range(first, first + count))
            self.added += numbers
            self.feed.add(*({"n": number} for number in numbers))

    def run(
        self,
        parallelism: int | Callable[[], int],
        function: OperatorFunction | None = None,
        sink: Callable[[DataFrame, int], None] | None = None,
        **others: Any,
    ) -> None:
        """Run what there is to its end."""
        settings = {"output_schema": Remember.SCHEMA} | others
        writer = run_operator(
            self.feed.frame(),
            Remember() if function is None else function,
            parallelism=parallelism,
            sink=self.take if sink is None else sink,
            **settings,
        )
        run_to_end(writer, self.checkpoint)

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """Be a sink that writes down what it is given."""
        self.delivered.append((batch_id, sorted(row.n for row in batch.collect())))

    def forget_commit(self, batch_id: int) -> None:
        """Have Spark run a batch again, as if it had died before it wrote this."""
        for path in (self.checkpoint / "commits").glob(f"*{batch_id}*"):
            path.unlink()

    def manifest(self, batch_id: int) -> OperatorManifest:
        """Return the manifest of a batch."""
        data = (self.operator / "manifests" / str(batch_id)).read_bytes()
        return decode_manifest(data, batch_id=batch_id, path="")

    def states(self, batch_id: int) -> list[dict[str, list[Any]]]:
        """Return the items of every state, by subtask."""
        manifest = self.manifest(batch_id)
        left = []
        for one in manifest.subtasks:
            table = pq.read_table(self.operator / manifest.directory / one.file)
            report = table.to_pylist()[-1]
            snapshot = decode_snapshot(report["_lodestar_snapshot"])
            left.append({name: items for name, (_, items) in snapshot.items()})
        return left

    def seen(self, batch_id: int) -> list[int]:
        """Return what is in the list states of all subtasks, sorted."""
        lists = [state["seen"] for state in self.states(batch_id)]
        return sorted(item[0] for items in lists for item in items)

    def delivered_once(self) -> list[int]:
        """Return the numbers of all batches; what came again was the very same."""
        batches: dict[int, list[int]] = {}
        for batch_id, numbers in self.delivered:
            assert batches.setdefault(batch_id, numbers) == numbers
        return sorted(itertools.chain(*batches.values()))


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Return a query of the test's own."""
    return Run(Feed(spark, tmp_path / "input", SCHEMA), tmp_path / "check [1] point")


class Fails(Remember):
    """Fails in the first attempt of a task, and for a number in every one."""

    def __init__(self, number: int, unless: Path) -> None:
        self.number = number
        self.unless = str(unless)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Fail behind the last row, when everything has been given on."""
        numbers: list[int] = []
        for batch in super().process(batches):
            numbers += batch.column("n").to_pylist()
            yield batch
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        if self.number in numbers and not Path(self.unless).exists():
            raise RuntimeError("not yet")


class Identity(OperatorFunction):
    """Gives on what it gets."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Give on."""
        return batches


class TestRescaling:
    @pytest.mark.proves("O1", "O3")
    def test_every_row_counts_once_whatever_the_parallelism(self, run: Run) -> None:
        """O1, O3: it changes between two batches, and over a restart; a file each."""
        run.feed.spark.conf.set("spark.sql.files.maxRecordsPerFile", 1)
        wanted = iter([2, 2, 3])
        run.add(7, 0, 5)
        run.run(lambda: next(wanted))
        run.add(4)
        run.run(1)
        run.add(6)
        run.run(4)
        sizes = {0: 2, 1: 2, 2: 3, 3: 1, 4: 4}
        ends = [7, 7, 12, 16, 22]
        for batch_id in (2, 3, 4):  # of the others all is gone (three are kept)
            assert run.manifest(batch_id).parallelism == sizes[batch_id]
            assert run.seen(batch_id) == run.added[: ends[batch_id]]
            newest = [state["newest"] for state in run.states(batch_id)]
            assert newest == [[("batch_id", batch_id)]] * sizes[batch_id]
        assert run.delivered == [
            (0, run.added[:7]),
            (1, []),
            (2, run.added[7:12]),
            (3, run.added[12:16]),
            (4, run.added[16:]),
        ]
        # Two subtasks became three, one, four: each time everybody got everything.
        both = [("subtask", 0), ("subtask", 1)]
        unions = [[s["first_seen_by"] for s in run.states(i)] for i in (2, 3, 4)]
        assert unions == [[both] * 3, [both * 3], [both * 3] * 4]
        left = {path.name for path in (run.operator / "manifests").glob("[0-9]*")}
        assert left == {"2", "3", "4"}
        assert {path.name for path in (run.operator / "batches").iterdir()} == left

    @pytest.mark.proves("O2")
    def test_items_go_where_they_belong(self, run: Run) -> None:
        """O2: also at unchanged parallelism."""

        def belongs(item: tuple[int, Any], parallelism: int) -> int:
            return item[0] % parallelism

        run.add(6, 1, 1)
        wanted = iter([2, 2, 3])
        run.run(lambda: next(wanted), assign={"seen": belongs})
        for batch_id, parallelism in ((1, 2), (2, 3)):
            for index, states in enumerate(run.states(batch_id)):
                old = [n for n, at in states["seen"] if at["batch"] < batch_id]
                assert {number % parallelism for number in old} <= {index}
            assert run.seen(batch_id) == run.added[: 6 + batch_id]


@pytest.mark.proves("O3")
class TestExactlyOnce:
    def test_a_batch_that_is_published_is_never_run_again(self, run: Run) -> None:
        """O3: the sink fails, Spark forgets: output and parallelism are pinned."""
        broken = [True]

        def sink(batch: DataFrame, batch_id: int) -> None:
            run.take(batch, batch_id)
            if batch_id == 1 and broken.pop():
                raise RuntimeError("the sink is full")

        run.add(5, 4)
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            run.run(2, sink=sink)
        before = run.manifest(1)
        assert run.delivered[-1] == (1, run.added[5:])
        run.run(5, sink=run.take)
        assert run.manifest(1) == before
        run.forget_commit(1)
        run.run(3)
        assert run.manifest(1) == before
        assert run.delivered[1:] == [(1, run.added[5:])] * 3
        run.add(3)
        run.run(3)
        assert run.manifest(2).parallelism == 3
        assert run.seen(2) == run.delivered_once() == run.added

    def test_a_batch_that_is_not_published_counts_for_nothing(
        self, run: Run, tmp_path: Path
    ) -> None:
        """O3: tasks fail at their end, once or for good; so does the driver."""
        may_pass = tmp_path / "may-pass"
        run.add(6, 5)
        with pytest.raises(StreamingQueryException, match="not yet"):
            run.run(2, Fails(8, may_pass))
        assert run.seen(0) == run.added[:6]
        assert not (run.operator / "manifests" / "1").exists()
        may_pass.touch()
        run.run(3, Fails(8, may_pass))
        assert run.seen(1) == run.delivered_once() == run.added
        # A driver that died between the last file and the manifest.
        (run.operator / "manifests" / "1").unlink()
        run.forget_commit(1)
        run.run(4)
        assert run.manifest(1).parallelism == 4
        assert run.seen(1) == run.delivered_once() == run.added

    @pytest.mark.nightly
    def test_who_is_second_uses_what_the_first_has_published(self, run: Run) -> None:
        """O3: two drivers run one batch; there is one manifest, and both keep to it."""
        run.add(4, 3)
        run.run(2)
        path = run.operator / "manifests" / "1"
        first = path.read_bytes()
        path.unlink()
        run.forget_commit(1)

        def while_another_publishes() -> int:
            path.write_bytes(first)
            return 3

        run.run(while_another_publishes)
        assert path.read_bytes() == first
        assert run.delivered[-1] == (1, run.added[4:])
        run.add(2)
        run.run(2)
        assert run.seen(2) == run.delivered_once() == run.added

    def test_a_driver_that_is_killed_is_gone_on_from(
        self, run: Run, tmp_path: Path
    ) -> None:
        """O3: between snapshot and commit, with SIGKILL."""
        run.checkpoint = tmp_path / "checkpoint"
        run.add(5, 4)
        command = [sys.executable, "-m", "tests.sparkpipeline.operator_app"]
        with (tmp_path / "app.log").open("w") as log:
            process = subprocess.Popen(
                [*command, str(tmp_path)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            said, _ = process.communicate(timeout=200)
        finally:
            # Its JVM, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.returncode == -signal.SIGKILL
        assert said.splitlines() == [f"0 {run.added[:5]}", f"1 {run.added[5:]}"]
        before = run.manifest(1)
        assert not (run.checkpoint / "commits" / "1").exists()
        run.add(3)
        run.run(3)
        assert run.manifest(1) == before
        assert run.delivered == [(1, run.added[5:9]), (2, run.added[9:])]
        assert run.seen(2) == run.added


class Disagree(Identity):
    """Has a state that is a list in one subtask, and a union list in the others."""

    def open(self, context: OperatorContext) -> None:
        """Ask for it."""
        store = context.operator_state
        if context.operator_index == 0:
            store.list_state("rules").add(0)
        else:
            store.union_list_state("rules").add(1)


@pytest.mark.proves("O2")
class TestLimits:
    @pytest.mark.proves("O3")
    def test_a_name_in_two_modes_fails_the_batch_that_left_it(self, run: Run) -> None:
        """O2, O3: not the first one with more subtasks, when nothing helps any more."""
        run.add(4)
        with pytest.raises(ConfigurationError, match="different names"):
            run.run(2, Disagree(), output_schema=SCHEMA)
        assert run.delivered == []
        run.run(3)
        assert run.seen(0) == run.delivered_once() == run.added

    @pytest.mark.proves("O3")
    def test_a_snapshot_above_its_limit_fails_its_batch(self, run: Run) -> None:
        """O2, O3: it is named when it is written, and nothing is lost."""
        run.add(4, 40)
        with pytest.raises(SnapshotTooLargeError, match="largest state, 'seen'"):
            run.run(2, snapshot_size_bytes_max=200)
        assert run.seen(0) == run.added[:4]
        run.run(2)
        assert run.seen(1) == run.delivered_once() == run.added

    @pytest.mark.nightly
    def test_union_state_is_counted_for_all_subtasks_together(self, run: Run) -> None:
        """O2: each is within its limit, and one could not take over all."""
        run.add(1)
        with pytest.raises(SnapshotTooLargeError, match="largest, 'first_seen_by'"):
            run.run(12, snapshot_size_bytes_max=120)
        assert run.delivered == []


@pytest.mark.proves("O3")
class TestCheckpoints:
    @pytest.mark.nightly
    def test_state_that_is_lost_is_not_passed_over(self, run: Run) -> None:
        """O3: missing, damaged, older or newer than Spark's part: an error."""
        run.add(2, 2)
        run.run(2)
        manifests = run.operator / "manifests"
        run.add(2)
        good = run.operator.with_name("good")
        shutil.copytree(run.operator, good)

        (manifests / "99").write_text("{}")
        with pytest.raises(OperatorCheckpointError, match="of a later batch than 2"):
            run.run(2)
        (manifests / "99").unlink()

        (manifests / "1").write_text("{}")
        (manifests / ".1.crc").unlink()
        with pytest.raises(OperatorCheckpointError, match="this is no manifest"):
            run.run(2)

        shutil.rmtree(run.operator)
        with pytest.raises(OperatorCheckpointError, match="what the operator knew is"):
            run.run(2)
        shutil.rmtree(run.operator)
        shutil.copytree(good, run.operator)
        run.run(2)
        assert run.seen(2) == run.added

        shutil.rmtree(run.operator)
        run.add(3)
        run.run(2, on_missing_state="begin")
        assert run.seen(3) == run.added[-3:]

    @pytest.mark.parametrize("is_repeated", nightly_after(1, [False, True]))
    @pytest.mark.parametrize("damage", nightly_after(1, ["gone", "cut"]))
    def test_files_that_are_lost_are_told_with_what_to_do(
        self, run: Run, damage: str, *, is_repeated: bool
    ) -> None:
        """O3: a manifest without its files, as after a copy that was cut short."""
        run.add(2, 2)
        run.run(2)
        manifest = run.manifest(1)
        path = run.operator / manifest.directory / manifest.subtasks[1].file
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-20])
            path.with_name(f".{path.name}.crc").unlink()
        run.add(2)
        if is_repeated:
            run.forget_commit(1)
        with pytest.raises(OperatorCheckpointError, match="from a copy of the check"):
            run.run(2)

    @pytest.mark.nightly
    def test_a_batch_of_other_rows_is_not_taken_for_what_was_published(
        self, run: Run
    ) -> None:
        """O3: Spark's part of a checkpoint that is older, and planned anew."""
        run.add(2, 2)
        run.run(2)
        run.forget_commit(1)
        for path in (run.checkpoint / "offsets").glob("*1*"):
            path.unlink()
        run.add(2)
        with pytest.raises(OperatorCheckpointError, match="ended at other offsets"):
            run.run(2)
        assert run.delivered == [(0, run.added[:2]), (1, run.added[2:4])]
        (run.operator / "manifests" / "1").unlink()
        run.delivered.clear()
        run.run(2)
        # Batch 1 is now all that came after batch 0.
        assert run.delivered == [(1, run.added[2:])]
        assert run.seen(1) == run.added

    @pytest.mark.parametrize("is_repeated", nightly_after(1, [False, True]))
    def test_state_of_another_query_is_not_gone_on_from(
        self, run: Run, spark: SparkSession, tmp_path: Path, *, is_repeated: bool
    ) -> None:
        """
        O3: the operator's part is of a query that is as far, by its batches and files.

        Subtasks would go on with what those of the other have seen, and the sink would
        get a batch of the other again.
        """
        other = Run(Feed(spark, tmp_path / "other", SCHEMA), tmp_path / "others")
        run.add(2, 2)
        run.run(2)
        other.add(5, 7)
        other.run(2)
        own = run.operator.with_name("own")
        run.operator.rename(own)
        shutil.copytree(other.operator, run.operator)
        run.add(3)
        if is_repeated:
            run.forget_commit(1)
        with pytest.raises(OperatorCheckpointError, match="and this is query"):
            run.run(2)
        shutil.rmtree(run.operator)
        own.rename(run.operator)
        run.run(2)
        assert run.seen(2) == run.delivered_once() == run.added

    @pytest.mark.nightly
    def test_state_of_other_rows_is_not_gone_on_from(self, run: Run) -> None:
        """O3: Spark's part of a checkpoint was planned anew up to another copy's."""
        run.add(2, 2)
        run.run(2)
        offsets = run.checkpoint / "offsets"
        (offsets / ".1.crc").unlink()
        planned = (offsets / "1").read_text()
        (offsets / "1").write_text(planned.replace('"logOffset":1', '"logOffset":0'))
        run.add(3)
        with pytest.raises(OperatorCheckpointError, match="batch 1 ended at other"):
            run.run(2)
        assert run.delivered == [(0, run.added[:2]), (1, run.added[2:4])]

    def test_batches_that_the_operator_has_not_seen_are_missed(self, run: Run) -> None:
        """O3: an operator's part that is older; an id that Spark skipped is none."""
        run.add(3)
        run.run(2)
        older = run.operator.with_name("older")
        shutil.copytree(run.operator, older)
        # As an offline repartition leaves it: a batch without rows.
        for name in ("offsets", "commits"):
            directory = run.checkpoint / name
            shutil.copy(directory / "0", directory / "1")
        run.add(2)
        run.run(2)
        assert run.delivered[-1] == (2, run.added[3:])
        assert run.seen(2) == run.added
        shutil.rmtree(run.operator)
        shutil.copytree(older, run.operator)
        run.add(2)
        with pytest.raises(OperatorCheckpointError, match="rows came in between"):
            run.run(2)

    @pytest.mark.parametrize("manager", ["FileContext", "FileSystem"])
    def test_a_manifest_is_created_once(
        self, spark: SparkSession, tmp_path: Path, manager: str
    ) -> None:
        """O3: with either way that Spark has to write its own log."""
        package = "org.apache.spark.sql.execution.streaming.checkpointing"
        spark.conf.set(
            "spark.sql.streaming.checkpointFileManagerClass",
            f"{package}.{manager}BasedCheckpointFileManager",
        )
        checkpoint = OperatorCheckpoint(spark, str(tmp_path / "a b%20"))
        assert checkpoint.batch_ids() == []
        one, other = (
            OperatorManifest(
                format_version=1,
                query_id="q",
                run_id=run_id,
                batch_id=10,
                directory=checkpoint.new_directory(10),
                offsets_digest="d",
                output_schema="{}",
                subtasks=(
                    SubtaskFile(
                        file="x", attempt_id="y", row_count=0, snapshot_size_bytes=0
                    ),
                ),
            )
            for run_id in ("one", "other")
        )
        assert one.directory != other.directory
        for manifest in (one, other):
            checkpoint.publish(manifest)
            assert checkpoint.read(10) == one
        assert checkpoint.batch_ids() == [10]
        (tmp_path / "a b%20" / "operator" / one.directory).mkdir(parents=True)
        checkpoint.keep([10, 11])
        assert checkpoint.batch_ids() == [10]
        checkpoint.keep([11])
        assert checkpoint.batch_ids() == []
        assert list((tmp_path / "a b%20" / "operator" / "batches").iterdir()) == []
        with pytest.raises(OperatorCheckpointError, match="cannot be read"):
            checkpoint.read(10)


ALL_TYPES = """
    n as `a.b`, n, cast(n as tinyint) as c, n / 3 as d, n % 2 = 0 as e,
    cast(n as string) as `f g`, cast(cast(n as string) as binary) as h,
    cast(n as decimal(38,10)) / 4 as i, date_add(date'2024-02-28', cast(n as int)) as j,
    timestamp_micros(n * 1234567890123) as k,
    cast(timestamp_micros(n * 7654321) as timestamp_ntz) as l,
    named_struct('x', n, 'y', array(n, null, n + 1)) as m,
    map('one', n, 'two', null) as o, if(n = 3, null, n) as p,
    make_dt_interval(1, 2, 3) as q
"""


@pytest.mark.proves("O3")
class TestOutput:
    def test_every_type_comes_through(self, run: Run) -> None:
        """O3: names with dots, too, and in any time zone; by default as they came."""
        spark = run.feed.spark
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        run.add(5)
        expressions = f"select {ALL_TYPES} from {{frame}}"
        found: list[Any] = []
        writer = run_operator(
            spark.sql(expressions, frame=run.feed.frame()),
            Identity(),
            parallelism=2,
            sink=lambda batch, _: found.append((batch.schema, batch.collect())),
        )
        run_to_end(writer, run.checkpoint)
        ((schema, rows),) = found
        numbers = spark.createDataFrame([(n,) for n in run.added], "n long")
        expected = spark.sql(expressions, frame=numbers)
        assert schema.simpleString() == expected.schema.simpleString()
        assert Counter(map(str, rows)) == Counter(map(str, expected.collect()))

    @pytest.mark.nightly
    def test_a_replayed_batch_has_the_columns_that_it_had(self, run: Run) -> None:
        """O3: although the function gives others now."""
        run.add(3, 2)
        run.run(2)
        run.forget_commit(1)
        schemas = []
        run.run(
            2,
            Identity(),
            sink=lambda batch, batch_id: schemas.append((batch_id, batch.columns)),
            output_schema="n long",
        )
        run.add(1)
        run.run(
            2,
            Identity(),
            sink=lambda batch, batch_id: schemas.append((batch_id, batch.columns)),
            output_schema="n long",
        )
        assert schemas == [(1, ["n", "operator_index", "batch_id"]), (2, ["n"])]
        assert run.seen(2) == run.added[:5]


@pytest.mark.proves("O3")
def test_a_run_that_was_stopped_changes_nothing_that_the_next_one_remembers() -> None:
    """O3: it may still be in its last batch while that one reads where to start."""
    unused: Any = None
    operator = _Operator(
        df=unused,
        function=Remember(),
        parallelism=lambda: 1,
        sink=unused,
        output_schema=unused,
        assign={},
        snapshot_size_bytes_max=1,
        batch_count_kept=1,
        on_missing_state="refuse",
        publisher=None,
    )
    stopped, present = (_operator_of(operator.begin()) for _ in range(2))
    stopped.last = _Left(directory="batches/1/late", snapshots=())
    assert present.last is None


def _operator_of(begun: Callable[..., None]) -> _Operator:
    """Return what runs the batches of a run."""
    assert isinstance(begun, functools.partial)
    found = begun.func.__self__  # type: ignore[attr-defined]  # of a bound method
    assert isinstance(found, _Operator)
    return found


class TestArguments:
    @pytest.mark.parametrize(
        ("change", "detail"),
        [
            ({"parallelism": 0}, "parallelism must be 1 to 32768, not 0"),
            ({"parallelism": True}, "not True"),
            ({"function": Remember}, "must be an OperatorFunction"),
            ({"output_schema": "n long, N long"}, "twice"),
            ({"output_schema": "_lodestar_x long"}, "begins with '_lodestar_'"),
            ({"output_schema": ""}, "no columns"),
            ({"snapshot_size_bytes_max": 0}, "at least 1, not 0"),
            ({"batch_count_kept": 0}, "at least 1, not 0"),
            ({"on_missing_state": "guess"}, "must be one of refuse, begin"),
        ],
    )
    def test_what_cannot_work_is_said_at_once(
        self, run: Run, change: dict[str, Any], detail: str
    ) -> None:
        """Before anything is started."""
        with pytest.raises(ConfigurationError, match=detail):
            run.run(**{"parallelism": 1} | change)

    def test_a_table_is_no_stream(self, spark: SparkSession) -> None:
        """Operators run over micro-batches."""
        with pytest.raises(ConfigurationError, match="no stream"):
            run_operator(
                spark.range(1), Remember(), parallelism=1, sink=lambda *_: None
            )

    def test_a_wrong_parallelism_of_a_function_fails_the_batch(self, run: Run) -> None:
        """It is asked for each batch, and checked each time."""
        run.add(1)
        with pytest.raises(ConfigurationError, match="parallelism must be 1 to"):
            run.run(lambda: json.loads('"2"'))
