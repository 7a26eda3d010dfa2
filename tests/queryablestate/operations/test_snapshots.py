"""Tests of snapshots and restores, with real proxies, nodes and files."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from nameservice import ConfigurationError, StorageError
from queryablestate import (
    DeadlineExceededError,
    LocalStateCluster,
    QueryableStateClient,
    SnapshotInformation,
    StateOperations,
    StateUnavailableError,
    UnknownJobError,
    UnknownStateError,
)
from queryablestate.client.calls import Build
from queryablestate.operations.snapshots import location_of, take_snapshot
from queryablestate.store.store import StateStore
from queryablestate.wire.snapshot_messages import SnapshotTaken, TakeSnapshot
from tests.queryablestate.snapshot_writing import (
    ALL_KINDS,
    COMPLETE,
    KEYS,
    Query,
    Writing,
    check_all_kinds,
    check_complete,
)


pytestmark = pytest.mark.shells

JOB: Final = "flights"
_numbers = itertools.count(1)


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of this test's own, in this process."""
    with open_ha_services(HAConfig(url=f"embedded:snapshots-{next(_numbers)}")) as ha:
        yield ha


def queries_of(ha: HAServices, run: str, job_id: str = JOB) -> tuple[Query, Query]:
    """Return a run of each of two queries, which write the same job."""
    return (
        Query(ha, job_id, ALL_KINDS, query_id="appending", run_id=f"{run}-a"),
        Query(ha, job_id, COMPLETE, query_id="completing", run_id=f"{run}-c"),
    )


def write(ha: HAServices, batch_ids: range, run: str = "first") -> None:
    """Write these batches with both queries."""
    for batch_id in batch_ids:
        for query in queries_of(ha, run):
            query.write(batch_id)


class TestTakeAndRestore:
    """A snapshot is of one moment, and so is what is restored from it."""

    @pytest.mark.proves("S5")
    @pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 4)])
    def test_every_value_is_as_of_one_batch_of_each_query(
        self, ha: HAServices, tmp_path: Path, before: int, after: int
    ) -> None:
        """
        W4: a repeated batch is not applied again after a restore, the next one is.

        The snapshot is taken while batches are committed, and restored onto other nodes
        of another control plane.
        """
        place = tmp_path / "snapshot"
        with LocalStateCluster(ha, nodes=before), StateOperations(ha) as operations:
            write(ha, range(2))
            with Writing(*queries_of(ha, "first"), batch_id_first=2) as writing:
                writing.wait_for(3)
                taken = operations.snapshot(JOB, place)
                writing.wait_for(writing.batch_id_next)  # no writer had to wait for it
        assert taken.state_names == sorted({**ALL_KINDS, **COMPLETE})
        batch_ids = taken.batch_ids
        assert set(batch_ids) == {"appending", "completing"}
        assert batch_ids["appending"] >= 3
        url = f"embedded:snapshots-{next(_numbers)}"
        with (
            open_ha_services(HAConfig(url=url)) as other,
            LocalStateCluster(other, nodes=after),
            StateOperations(other) as operations,
            QueryableStateClient(other) as client,
        ):
            restored = operations.restore(JOB, place)
            assert restored.snapshot == taken
            assert len(restored.node_ids) == after
            check_all_kinds(client, JOB, batch_ids["appending"])
            check_complete(client, JOB, batch_ids["completing"])
            appending, completing = queries_of(other, "second")
            assert appending.write(batch_ids["appending"]).is_repeated
            assert completing.write(batch_ids["completing"]).is_repeated
            check_all_kinds(client, JOB, batch_ids["appending"])
            assert not appending.write(batch_ids["appending"] + 1).is_repeated
            assert not completing.write(batch_ids["completing"] + 1).is_repeated
            check_all_kinds(client, JOB, batch_ids["appending"] + 1)
            check_complete(client, JOB, batch_ids["completing"] + 1)

    @pytest.mark.proves("S5")
    def test_a_leader_that_changes_is_not_noticed(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """What was under way is begun anew by itself, and whole again."""
        with (
            LocalStateCluster(ha, nodes=2, proxies=2) as cluster,
            StateOperations(ha) as operations,
            QueryableStateClient(ha) as client,
        ):
            write(ha, range(2))
            done = threading.Semaphore(0)
            is_over = threading.Event()

            def take_again_and_again() -> int:
                for number in itertools.count():
                    if is_over.is_set():
                        return number
                    operations.snapshot(JOB, tmp_path / str(number))
                    done.release()
                raise AssertionError

            with ThreadPoolExecutor(1) as pool:
                taking = pool.submit(take_again_and_again)
                assert done.acquire(timeout=60)
                leader = next(one for one in cluster.proxies if one.is_leader)
                leader.close()
                for _ in range(3):
                    assert done.acquire(timeout=60), taking.exception(timeout=0)
                is_over.set()
                last = taking.result() - 1
            operations.restore("other", tmp_path / str(last))
            check_all_kinds(client, "other", 1)
            names = {path.name for path in (tmp_path / str(last)).iterdir()}
            assert len(names) == 2, "the manifest, and one directory of files"

    @pytest.mark.proves("S5")
    def test_key_groups_that_move_are_in_it_once(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """S2: one that is asked for them at the entry writes them, as they are then."""
        with (
            LocalStateCluster(ha, nodes=3, replicas=2),
            StateOperations(ha) as operations,
            QueryableStateClient(ha) as client,
        ):
            write(ha, range(2))
            taken: list[SnapshotInformation] = []
            with Writing(*queries_of(ha, "first"), batch_id_first=2) as writing:
                for node_count, replica_count in ((1, 1), (3, 2), (2, 1)):
                    since = operations.rescale(
                        JOB, node_count=node_count, replica_count=replica_count
                    )
                    taken += take_often(operations, tmp_path / str(node_count), 3)
                    operations.wait_until_rescaled(JOB, timeout_seconds=60, since=since)
                    writing.wait_for(writing.batch_id_next)
            assert len(taken) == 9
            for number, snapshot in enumerate(taken):
                job_id = f"restored-{number}"
                restored = operations.restore(job_id, snapshot.uri)
                assert len(restored.node_ids) == 3
                check_all_kinds(client, job_id, snapshot.batch_ids["appending"])
                check_complete(client, job_id, snapshot.batch_ids["completing"])

    @pytest.mark.proves("S6")
    def test_a_job_is_restored_beside_itself(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """Under another name, by the same nodes; each goes on by itself."""
        with (
            LocalStateCluster(ha, nodes=2),
            StateOperations(ha) as operations,
            QueryableStateClient(ha) as client,
        ):
            write(ha, range(3))
            operations.snapshot(JOB, tmp_path)
            operations.restore("other", tmp_path)
            write(ha, range(3, 4))
            check_all_kinds(client, "other", 2)
            check_all_kinds(client, JOB, 3)

    @pytest.mark.proves("S6")
    def test_a_job_whose_states_were_dropped_is_restored_in_place(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """S6, W4: as it was, lists go on behind their last items, old writers stop."""
        with (
            LocalStateCluster(ha, nodes=2),
            StateOperations(ha) as operations,
            QueryableStateClient(ha) as client,
        ):
            write(ha, range(3))
            operations.snapshot(JOB, tmp_path)
            write(ha, range(3, 5))
            commit_of_before = queries_of(ha, "first")[0].stage(5)
            with pytest.raises(ConfigurationError, match="has state already"):
                operations.restore(JOB, tmp_path)
            for name in (*ALL_KINDS, *COMPLETE):
                operations.drop_state(JOB, name)
            operations.restore(JOB, tmp_path)
            check_all_kinds(client, JOB, 2)
            with pytest.raises(UnknownStateError):  # of before: fenced
                commit_of_before()
            write(ha, range(3, 4), run="second")
            check_all_kinds(client, JOB, 3)
            check_complete(client, JOB, 3)

    @pytest.mark.proves("S6")
    def test_a_restored_job_outlives_everything(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """Nodes that are started again have what they loaded, and a new leader, too."""
        with (
            LocalStateCluster(ha, nodes=1, data_dir=tmp_path / "rows"),
            StateOperations(ha) as operations,
        ):
            write(ha, range(3))
            operations.snapshot(JOB, tmp_path / "snapshot")
            operations.restore("other", tmp_path / "snapshot")
        with (
            LocalStateCluster(ha, nodes=1, data_dir=tmp_path / "rows"),
            QueryableStateClient(ha) as client,
        ):
            check_all_kinds(client, "other", 2)


def take_often(
    operations: StateOperations, place: Path, count: int
) -> list[SnapshotInformation]:
    """
    Take snapshots one after the other.

    What fails since a node lost a key group in between is asked for again.
    """
    taken: list[SnapshotInformation] = []
    for attempt in range(100):
        try:
            taken.append(operations.snapshot(JOB, place / str(attempt)))
        except StorageError as error:
            if "not held here" not in str(error):
                raise
        if len(taken) == count:
            return taken
    raise AssertionError(taken)


def take(ha: HAServices, place: Path) -> SnapshotInformation:
    """Return a snapshot of a job of two nodes."""
    with LocalStateCluster(ha, nodes=2), StateOperations(ha) as operations:
        write(ha, range(2))
        return operations.snapshot(JOB, place)


def test_a_snapshot_goes_to_no_directory_without_a_name() -> None:
    """What a shell makes of a variable that is not set is not the present directory."""
    with pytest.raises(ConfigurationError, match="this one is empty"):
        location_of("")


@pytest.mark.parametrize("text", ["file:/tmp/x", "hdfs:/x", "S3:/bucket/x"])
def test_a_snapshot_goes_to_no_directory_that_a_uri_was_taken_for(text: str) -> None:
    """It was written to ``./file:/tmp/x``, with exit code 0."""
    with pytest.raises(ConfigurationError, match=r"write \w+:// and the host"):
        location_of(text)
    assert location_of("./" + text).startswith("/")


class TestFailures:
    """What fails leaves nothing, and can be tried again."""

    @pytest.mark.proves("S5")
    def test_a_directory_holds_one_snapshot(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """It is not written over; and a job that is not there leaves no directory."""
        with LocalStateCluster(ha, nodes=1), StateOperations(ha) as operations:
            write(ha, range(1))
            operations.snapshot(JOB, tmp_path)
            with pytest.raises(ConfigurationError, match=r"a snapshot in .* already"):
                operations.snapshot(JOB, tmp_path)
            with pytest.raises(UnknownJobError):
                operations.snapshot("nothing", tmp_path / "nothing")
        assert not (tmp_path / "nothing" / "manifest.json").exists()

    @pytest.mark.proves("S5")
    def test_two_at_once_into_one_directory(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """One is made and can be restored; the other is refused."""
        with LocalStateCluster(ha, nodes=2), StateOperations(ha) as operations:
            write(ha, range(2))
            for number in range(5):
                place = tmp_path / str(number)
                begin = threading.Barrier(2)

                def take(
                    place: Path = place, begin: threading.Barrier = begin
                ) -> SnapshotInformation:
                    begin.wait()
                    return operations.snapshot(JOB, place)

                with ThreadPoolExecutor(2) as pool:
                    taking = [pool.submit(take) for _ in range(2)]
                errors = [one.exception() for one in taking]
                (taken,) = (one.result() for one in taking if not one.exception())
                (refused,) = (error for error in errors if error is not None)
                assert isinstance(refused, ConfigurationError)
                restored = operations.restore(f"restored-{number}", place)
                assert restored.snapshot == taken

    @pytest.mark.proves("S5")
    def test_a_node_that_is_away_leaves_no_snapshot(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """Its key groups would be missing."""
        with (
            LocalStateCluster(ha, nodes=2) as cluster,
            StateOperations(ha) as operations,
        ):
            write(ha, range(1))
            cluster.nodes[1].close()
            with pytest.raises(StateUnavailableError, match=r"node-2 (is|went) away"):
                operations.snapshot(JOB, tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_that_cannot_be_written_to(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """The error says which, and why; no node is asked."""
        (tmp_path / "file").write_text("no directory")
        with LocalStateCluster(ha, nodes=1), StateOperations(ha) as operations:
            write(ha, range(1))
            with pytest.raises(StorageError, match=r"cannot write to .*file"):
                operations.snapshot(JOB, tmp_path / "file")

    @pytest.mark.proves("S6")
    @pytest.mark.parametrize("harm", ["flipped", "gone"])
    def test_a_damaged_snapshot_restores_nothing(
        self, ha: HAServices, tmp_path: Path, harm: str
    ) -> None:
        """No job, no state, no row on any node; and a sound copy can be restored."""
        take(ha, tmp_path)
        path = max(tmp_path.rglob("*.arrow"))
        sound = path.read_bytes()
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(sound[:-30] + b"x" + sound[-29:])
        url = f"embedded:snapshots-{next(_numbers)}"
        with (
            open_ha_services(HAConfig(url=url)) as other,
            LocalStateCluster(other, nodes=3, data_dir=tmp_path / "rows"),
            StateOperations(other) as operations,
            QueryableStateClient(other) as client,
        ):
            with pytest.raises(StorageError, match="could not load its part"):
                operations.restore(JOB, tmp_path)
            assert client.jobs() == []
            path.write_bytes(sound)
            operations.restore(JOB, tmp_path)
            check_all_kinds(client, JOB, 1)
            assert client.count(JOB, "values") == len(KEYS)
        for number in range(1, 4):
            with StateStore.open(tmp_path / f"rows/node-{number}/rows-1") as store:
                loads = store.restores.drop(lambda _: True)
                assert loads == 0, "what was loaded is given to the job, or dropped"

    @pytest.mark.proves("S5")
    def test_it_may_take_longer_than_the_proxy_waits(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """
        S5: the proxy waits for a week, and is told no more.

        It was told, dropped the message as malformed, and its caller was told that
        something is wrong with the proxy.
        """
        with LocalStateCluster(ha), StateOperations(ha) as operations:
            write(ha, range(1))
            operations.snapshot(JOB, tmp_path / "a", timeout_seconds=1_000_000.0)
            operations.restore("b", tmp_path / "a", timeout_seconds=1_000_000.0)

    @pytest.mark.parametrize(
        ("seconds", "expected_ms"), [(0.0, 1), (0.0004, 1), (1.0001, 1_001)]
    )
    def test_time_is_rounded_up(
        self, tmp_path: Path, seconds: float, expected_ms: int
    ) -> None:
        """Less than half a millisecond was sent as none, which is malformed."""
        told: list[int] = []

        def call(_: type[SnapshotTaken], build: Build) -> SnapshotTaken:
            request = build(1, b"session")
            assert isinstance(request, TakeSnapshot)
            told.append(request.timeout_ms)
            raise DeadlineExceededError(seconds)

        with pytest.raises(DeadlineExceededError):
            take_snapshot(call, JOB, str(tmp_path / "a"), timeout_seconds=seconds)
        assert told == [expected_ms]

    def test_there_is_nothing_to_restore(self, ha: HAServices, tmp_path: Path) -> None:
        """A directory without a manifest."""
        with (
            LocalStateCluster(ha, nodes=1),
            StateOperations(ha) as operations,
            pytest.raises(StorageError, match="there is no snapshot"),
        ):
            operations.restore(JOB, tmp_path)
