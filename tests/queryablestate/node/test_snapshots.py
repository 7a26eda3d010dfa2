"""Tests for queryablestate.node.snapshots, with a store, its writer and files."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Self

import pytest
from msgspec.structs import replace

from nameservice import ManualClock
from nameservice.clock import NS_PER_MS
from queryablestate.connect.snapshot_files import SnapshotDirectory
from queryablestate.node.snapshots import NodeSnapshots
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.schema_json import schema_json
from queryablestate.store.copy_reader import CopyReader
from queryablestate.store.restores import LoadMark
from queryablestate.store.store import StateStore
from queryablestate.store.threads import StoreWriter
from queryablestate.wire.records import (
    SnapshotMarked,
    SnapshotRestored,
    StateProgress,
    StateRecord,
)
from queryablestate.wire.snapshot_manifest import SnapshotManifest, SnapshotState
from queryablestate.wire.snapshot_messages import (
    TIMEOUT_MS_MAX,
    DropLoaded,
    LoadedState,
    LoadSnapshot,
    SnapshotCommand,
    SnapshotLoaded,
    SnapshotReport,
    SnapshotWritten,
    WriteSnapshot,
)
from tests.exhausted_threads import no_more_threads
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    NOW_US,
    chunk,
    decided,
    key,
    state,
)
from tests.queryablestate.whole_reads import WholeReader


pytestmark = pytest.mark.shells

WAIT_SECONDS: Final = 30.0
ID: Final = "0a" * 16
GROUPS: Final = tuple(range(8))


class Node:
    """A store with one job, and what a node does for snapshots."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "snapshot"
        self.store = StateStore.open(directory / "rows", node_id=NODE, is_durable=False)
        self.writer = StoreWriter(self.store, lambda _: None)
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.reports: list[SnapshotReport] = []
        self.clock = ManualClock()
        self.snapshots = self.process()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.snapshots.forget()
        self.writer.close()
        self.store.close()

    def process(self) -> NodeSnapshots:
        """Return what a process begins with."""
        return NodeSnapshots(self.posted.put, clock=self.clock)

    def handle(self, command: SnapshotCommand) -> None:
        """Have the proxy give a command."""
        self.snapshots.handle(
            command,
            registration_id="process",
            store=self.store,
            writer=self.writer,
            on_report=self.reports.append,
        )

    def report(self) -> SnapshotReport:
        """Return the next report, once it is there."""
        self.posted.get(timeout=WAIT_SECONDS)()
        return self.reports.pop()

    def write(self, sequence: int, value: bytes) -> None:
        """Apply a batch with a row in each key group."""
        rows = [(key(group), value) for group in GROUPS]
        batch_id = sequence
        self.store.stage([chunk(rows, batch_id=batch_id)], NOW_US)
        self.store.apply(
            JOB, decided(sequence, {"a": 1}, states=[state()], batch_id=batch_id)
        )

    def mark(self, sequence: int) -> None:
        """Apply the entry that marks the snapshot, as the writer's thread does."""
        entry = SnapshotMarked(sequence=sequence, snapshot_id=ID)
        self.store.apply(JOB, entry)
        self.snapshots.marked(self.store, JOB, entry)

    def values(self, number: int) -> list[bytes | None]:
        """Return what readers find in every key group."""
        keys = [key(group) for group in GROUPS]
        return WholeReader(self.store).get_values(number, keys, NOW_US).values

    def loads(self) -> list[str]:
        """Return what is loaded, and not shown."""
        found: list[str] = []

        def look(mark: LoadMark) -> bool:
            found.append(mark.restore_id)
            return False

        self.store.restores.drop(look)
        return found

    def settle(self) -> None:
        """Wait until the writer has done what it was given."""
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.writer.run(partial(done.put, None))
        done.get(timeout=WAIT_SECONDS)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node whose job has one batch."""
    with Node(tmp_path) as one:
        one.write(1, b"first")
        yield one


def write_command(node: Node, *, sequence: int = 2) -> WriteSnapshot:
    """Return the command to write all key groups after that entry."""
    return WriteSnapshot(
        leader_epoch=1,
        snapshot_id=ID,
        job_id=JOB,
        sequence=sequence,
        uri=str(node.place),
        directory=f"data-{ID}/at-{sequence}/node-0",
        key_groups=GROUPS,
    )


def finish(node: Node, written: SnapshotWritten) -> str:
    """Write the manifest; return its checksum."""
    schema = StateSchema(
        kind=StateKind.VALUE,
        key=(Field("k", AtomicType.INT),),
        value=(Field("v", AtomicType.INT),),
    )
    directory = SnapshotDirectory(str(node.place))
    directory.write_manifest(
        SnapshotManifest(
            format=1,
            snapshot_id=ID,
            job_id=JOB,
            max_parallelism=8,
            sequence=written.sequence,
            taken_at_us=1,
            states=(
                SnapshotState(
                    state=StateRecord(
                        state_name="s", state_number=1, schema=schema_json(schema)
                    ),
                    progress=StateProgress(
                        state_number=1,
                        query_id="q",
                        owner_epoch=1,
                        generation=1,
                        batch_id=1,
                        decided_at_us=1,
                    ),
                ),
            ),
            files=written.files,
        )
    )
    return directory.read_manifest()[1]


def take(node: Node) -> str:
    """Take a snapshot; return the checksum of its manifest."""
    node.handle(write_command(node))
    node.mark(2)
    written = node.report()
    assert isinstance(written, SnapshotWritten)
    assert written.failure is None
    return finish(node, written)


def load_command(
    node: Node, checksum: str, *, key_groups: tuple[int, ...] = GROUPS
) -> LoadSnapshot:
    """Return the command to load state 1 as state 9 of another job."""
    return LoadSnapshot(
        leader_epoch=1,
        restore_id=ID,
        job_id="copy",
        uri=str(node.place),
        manifest_checksum=checksum,
        key_groups=key_groups,
        states=(
            LoadedState(
                snapshot_number=1,
                state_number=9,
                kind="value",
                has_ttl=False,
                generation=1,
                batch_id=1,
                decided_at_us=1,
            ),
        ),
    )


class TestWriting:
    """Rows as of one entry, whatever is applied next."""

    @pytest.mark.proves("S5")
    def test_rows_are_those_of_the_entry(self, node: Node) -> None:
        """W4: batches that are applied while it is written are not in it."""
        node.handle(write_command(node))
        node.mark(2)
        node.write(3, b"second")
        written = node.report()
        assert isinstance(written, SnapshotWritten)
        (file,) = written.files
        directory = SnapshotDirectory(str(node.place))
        rows = [row for page in directory.read_rows(file, GROUPS) for row in page[1]]
        assert rows == [b"first"] * len(GROUPS)
        assert node.values(1) == [b"second"] * len(GROUPS)

    def test_an_entry_that_nobody_asked_about_is_passed_over(self, node: Node) -> None:
        """A node that was away applies marks of snapshots that are long over."""
        node.mark(2)
        node.handle(write_command(node, sequence=3))
        node.mark(3)
        assert isinstance(node.report(), SnapshotWritten)
        assert node.posted.empty()

    def test_rows_that_are_lost_are_no_snapshot(self, node: Node) -> None:
        """W7: it would be restored as if there had been none."""
        node.store.reset_job(JOB, 5, (1,))
        node.handle(write_command(node, sequence=6))
        node.mark(6)
        failure = node.report().failure
        assert failure is not None
        assert "lost here" in failure
        assert not node.place.exists()

    def test_key_groups_that_are_not_here_are_no_snapshot(self, node: Node) -> None:
        """They went elsewhere between the command and the entry (S2)."""
        node.store.hold(JOB, [0, 1], ())
        node.handle(write_command(node))
        node.mark(2)
        failure = node.report().failure
        assert failure is not None
        assert "not held here" in failure

    def test_a_place_that_cannot_be_written_to(self, node: Node) -> None:
        """The proxy is told why; no thread is left."""
        node.place.write_text("a file")
        node.handle(write_command(node))
        node.mark(2)
        failure = node.report().failure
        assert failure is not None
        assert "cannot write to" in failure

    def test_none_begins_when_the_store_is_about_to_be_closed(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would read on from a store that is closed, or another one's place."""
        copy_reader = StateStore.copy_reader

        def closing(
            store: StateStore, job_id: str, key_groups: Iterable[int]
        ) -> CopyReader:
            reader = copy_reader(store, job_id, key_groups)
            node.snapshots.forget()  # in the loop, while the writer is here
            return reader

        monkeypatch.setattr(StateStore, "copy_reader", closing)
        node.handle(write_command(node))
        node.mark(2)
        assert node.report().failure is not None
        assert not node.place.exists()

    def test_a_process_that_may_have_no_more_threads_goes_on(self, node: Node) -> None:
        """The entry is applied, the proxy is told, and the next one finds room."""
        for sequence in range(2, 7):
            node.handle(write_command(node, sequence=sequence))
            with no_more_threads("state-node-snapshot"):
                node.mark(sequence)
            failure = node.report().failure
            assert failure is not None
            assert "busy" in failure
        node.handle(write_command(node, sequence=7))
        node.mark(7)
        assert node.report().failure is None


class TestLoading:
    """Into the store, out of sight for now."""

    def test_rows_of_its_key_groups_are_loaded(self, node: Node) -> None:
        """And shown by the entry, under the number that the proxy says."""
        node.handle(load_command(node, take(node), key_groups=(2, 3)))
        report = node.report()
        assert isinstance(report, SnapshotLoaded)
        assert (report.failure, report.row_count) == (None, 2)
        assert node.store.state(9) is None
        node.store.reset_job("copy", 2, ())
        entry = SnapshotRestored(sequence=3, restore_id=ID, state_numbers=(9,))
        node.store.apply("copy", entry)
        assert node.values(9) == [
            b"first" if group in {2, 3} else None for group in GROUPS
        ]

    @pytest.mark.proves("S6")
    @pytest.mark.parametrize("harm", ["manifest", "file", "checksum"])
    def test_what_is_damaged_leaves_nothing(self, node: Node, harm: str) -> None:
        """Neither rows nor a mark; and it can be tried again."""
        checksum = take(node)
        (path,) = node.place.rglob("*.arrow")
        sound = path.read_bytes()
        command = load_command(node, checksum)
        match harm:
            case "manifest":
                command = replace(command, uri=str(node.place / "elsewhere"))
            case "file":
                path.write_bytes(sound[:-1] + b"x")
            case _:
                command = replace(command, manifest_checksum="00")
        node.handle(command)
        failure = node.report().failure
        assert failure is not None
        node.settle()
        assert node.loads() == []
        path.write_bytes(sound)
        node.handle(load_command(node, checksum))
        assert node.report().failure is None

    @pytest.mark.proves("S6")
    def test_an_earlier_attempt_takes_nothing_from_a_later_one(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was given up while the node was cut off, and has yet to begin here."""
        checksum = take(node)
        later = replace(load_command(node, checksum), restore_id="0b" * 16)
        read_manifest = SnapshotDirectory.read_manifest
        threads: list[threading.Thread] = []
        may_go_on = threading.Event()

        def slow(directory: SnapshotDirectory) -> tuple[SnapshotManifest, str]:
            threads.append(threading.current_thread())
            if len(threads) == 1:
                assert may_go_on.wait(WAIT_SECONDS)
            return read_manifest(directory)

        monkeypatch.setattr(SnapshotDirectory, "read_manifest", slow)
        earlier = load_command(node, checksum)
        (loaded_state,) = earlier.states
        other = replace(loaded_state, state_number=8)
        node.handle(replace(earlier, states=(other,)))
        while not threads:
            pass
        node.handle(later)
        assert node.report().failure is None
        may_go_on.set()
        threads[0].join()
        node.settle()
        assert node.loads() == [later.restore_id]

    def test_what_is_given_up_is_dropped(self, node: Node) -> None:
        """Also what is still being loaded: nothing of it comes afterwards."""
        checksum = take(node)
        node.handle(load_command(node, checksum))
        assert node.report().failure is None
        node.handle(load_command(node, checksum))  # begins anew
        node.handle(DropLoaded(leader_epoch=1, restore_id=ID))
        node.snapshots.forget()
        node.settle()
        assert node.loads() == []

    def test_what_an_earlier_process_has_loaded_is_dropped(self, node: Node) -> None:
        """Once all is applied: a leader makes a job of what this one loaded alone."""
        node.handle(load_command(node, take(node)))
        assert node.report().failure is None
        node.snapshots.drop_old(node.store, ())
        assert node.loads() == [ID]
        node.process().drop_old(node.store, ["copy"])
        assert node.loads() == [ID]  # its job has yet to apply something
        node.process().drop_old(node.store, ())
        assert node.loads() == []

    @pytest.mark.proves("S6")
    def test_what_is_loaded_is_kept_for_as_long_as_a_restore_may_take(
        self, node: Node
    ) -> None:
        """
        S6: other nodes may need longer, and the proxy leader makes the job then.

        It was dropped when the load had begun longer ago than the retention of staged
        rows, by the wall clock: a restore of an hour came to nothing where that is half
        an hour, or where the clock was set ahead, and a node whose part was complete
        could not show it when the job was made.
        """
        node.handle(load_command(node, take(node)))
        assert node.report().failure is None
        node.clock.advance(TIMEOUT_MS_MAX * NS_PER_MS)
        node.snapshots.drop_old(node.store, ())
        assert node.loads() == [ID]
        node.clock.advance(1)
        node.snapshots.drop_old(node.store, ())
        assert node.loads() == []

    def test_threads_are_few(self, node: Node) -> None:
        """What is beyond is refused, and the proxy is told."""
        checksum = take(node)
        blocked: queue.SimpleQueue[None] = queue.SimpleQueue()
        node.writer.run(partial(blocked.get, timeout=WAIT_SECONDS))
        for number in range(4):
            command = load_command(node, checksum)
            restore_id = f"{number:032x}"
            node.handle(replace(command, restore_id=restore_id, job_id=f"j-{number}"))
        node.handle(load_command(node, checksum))
        failure = node.report().failure
        blocked.put(None)
        assert failure is not None
        assert "busy" in failure

    def test_without_one_the_proxy_is_told(self, node: Node) -> None:
        """A process may have no more of them; the next attempt may find one."""
        command = load_command(node, take(node))
        with no_more_threads("state-node-snapshot"):
            node.handle(command)
        failure = node.report().failure
        assert failure is not None
        assert "busy" in failure
        node.handle(command)
        assert node.report().failure is None
