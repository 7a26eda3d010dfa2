from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nameservice import LocalProtocolError, StorageError
from queryablestate import (
    StagedDataMissingError,
    StagingQuotaError,
    StaleWriterError,
)
from queryablestate.store.groups import ALL_GROUPS
from queryablestate.store.layout import (
    FenceMark,
    batch_prefix,
    decode_staged_batch,
    encode_record,
    former_fence_key,
)
from queryablestate.store.marks import put_staged_sizes
from queryablestate.store.state_view import StateView
from queryablestate.store.store import StateStore
from queryablestate.wire.job_assignment import WriterFence
from queryablestate.wire.records import StageRecord, StateDropped
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    NOW_US,
    QUERY,
    chunk,
    counted_sizes,
    decided,
    key,
    stage_id,
    staged_sizes,
    state,
    write,
)
from tests.queryablestate.whole_reads import WholeReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Yield an empty store."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as made:
        yield made


def stages(**chunk_counts: int) -> tuple[StageRecord, ...]:
    """Return stages with that many chunks on this node."""
    return tuple(
        StageRecord(stage_id=stage_id(name), chunk_counts={NODE: count}, row_count=0)
        for name, count in chunk_counts.items()
    )


def staged_count(store: StateStore) -> int:
    """Return how many records there are of staged batches."""
    environment = store._environment
    with environment.reading() as transaction:
        return transaction.stat(environment.staged)["entries"]


@pytest.mark.proves("W1")
class TestFences:
    def test_a_run_below_the_fence_stages_nothing(self, store: StateStore) -> None:
        """A zombie driver cannot write, and what came with it is not kept (W1)."""
        store.fence([WriterFence(job_id=JOB, query_id=QUERY, writer_epoch=3)])
        with pytest.raises(StaleWriterError) as caught:
            store.stage([chunk([], writer_epoch=3), chunk([], writer_epoch=2)], NOW_US)
        assert caught.value.args == (QUERY, 2, 3)
        assert store.missing_stages(JOB, 3, 0, stages(a=1)) == (stage_id("a"),)
        store.stage([chunk([], writer_epoch=3), chunk([], writer_epoch=4)], NOW_US)
        assert store.missing_stages(JOB, 3, 0, stages(a=1)) == ()
        assert store.missing_stages(JOB, 4, 0, stages(a=1)) == ()

    def test_a_fence_is_never_lowered(self, store: StateStore) -> None:
        """What is known of newer runs stays known (W1)."""
        assert store.fences() == {}
        store.fence(
            [
                WriterFence(job_id=JOB, query_id="x", writer_epoch=5),
                WriterFence(job_id=JOB, query_id="y", writer_epoch=1),
                WriterFence(job_id=JOB, query_id="y", writer_epoch=7),
            ]
        )
        store.fence([WriterFence(job_id=JOB, query_id="x", writer_epoch=4)])
        assert store.fences() == {(JOB, "x"): 5, (JOB, "y"): 7}

    @pytest.mark.proves("C1")
    def test_a_fence_holds_in_its_own_job(self, store: StateStore) -> None:
        """The same query id in another job is another query's, or none's (C1)."""
        store.fence([WriterFence(job_id="other", query_id=QUERY, writer_epoch=9)])
        store.stage([chunk([], writer_epoch=2)], NOW_US)
        assert store.missing_stages(JOB, 2, 0, stages(a=1)) == ()

    def test_a_fence_over_all_jobs_of_before_means_nothing(
        self, store: StateStore
    ) -> None:
        """It is read, holds none back, and goes with the next fence of the query."""
        with store._environment.writing() as transaction:
            mark = encode_record(FenceMark(query_id=QUERY, writer_epoch=9))
            transaction.put(former_fence_key(QUERY), mark, db=store._meta)
        assert store.fences() == {}
        store.stage([chunk([], writer_epoch=2)], NOW_US)
        store.fence([WriterFence(job_id=JOB, query_id=QUERY, writer_epoch=3)])
        with store._environment.reading() as transaction:
            assert transaction.get(former_fence_key(QUERY), db=store._meta) is None

    def test_an_entry_raises_the_fence_to_its_run(self, store: StateStore) -> None:
        """A run that has decided something has superseded the earlier ones (W1)."""
        store.apply(JOB, decided(1, {}, writer_epoch=5))
        store.apply(JOB, decided(2, {}, writer_epoch=4, query_id="other"))
        store.apply(JOB, decided(3, {}, writer_epoch=2, batch_id=1))
        assert store.fences() == {(JOB, QUERY): 5, (JOB, "other"): 4}


class TestStage:
    @pytest.mark.proves("W3")
    def test_it_is_complete_when_every_chunk_is_there(self, store: StateStore) -> None:
        """A decision is taken only over stages that are complete here (W3)."""
        wanted = stages(a=2, b=1, none=0)
        assert store.missing_stages(JOB, 1, 0, wanted) == (stage_id("a"), stage_id("b"))
        store.stage([chunk([], stage="a", index=1)], NOW_US)
        store.stage([chunk([], stage="b")], NOW_US)
        assert store.missing_stages(JOB, 1, 0, wanted) == (stage_id("a"),)
        store.stage([chunk([], stage="a", index=0)], NOW_US)
        assert store.missing_stages(JOB, 1, 0, wanted) == ()
        assert store.missing_stages(JOB, 1, 0, ()) == ()

    @pytest.mark.proves("W3")
    def test_what_is_about_to_be_dropped_counts_as_missing(
        self, store: StateStore
    ) -> None:
        """A decision names nothing that may be gone when it comes (W3)."""
        wanted = stages(a=1, none=0)
        store.stage([chunk([], stage="a")], NOW_US)
        for since_us, missing in ((NOW_US, ()), (NOW_US + 1, (stage_id("a"),))):
            assert missing == store.missing_stages(
                JOB, 1, 0, wanted, received_since_us=since_us
            )

    def test_chunks_of_other_nodes_are_not_looked_for(self, store: StateStore) -> None:
        """Each node answers for its own chunks."""
        elsewhere = StageRecord(
            stage_id=stage_id("a"), chunk_counts={"node-2": 4}, row_count=9
        )
        assert store.missing_stages(JOB, 1, 0, [elsewhere]) == ()

    @pytest.mark.proves("W2")
    def test_job_epoch_and_batch_are_told_apart(self, store: StateStore) -> None:
        """What was brought under other numbers does not count (W2)."""
        store.stage([chunk([], writer_epoch=2, batch_id=3)], NOW_US)
        assert store.missing_stages(JOB, 2, 3, stages(a=1)) == ()
        for job_id, writer_epoch, batch_id in (("x", 2, 3), (JOB, 1, 3), (JOB, 2, 2)):
            missing = store.missing_stages(job_id, writer_epoch, batch_id, stages(a=1))
            assert missing == (stage_id("a"),)

    @pytest.mark.proves("W2")
    def test_a_chunk_that_comes_twice_is_kept_once(self, store: StateStore) -> None:
        """A writer that had no answer brings it again (W2)."""
        brought = chunk([(key(0), b"first")])
        store.stage([brought, brought], NOW_US)
        store.stage([chunk([(key(0), b"it would not be another one")])], NOW_US)
        store.apply(JOB, decided(1, {"a": 1}, states=[state(kind="list")]))
        items = WholeReader(store).get_items(1, [key(0)], 0, None, NOW_US).values
        assert items == [[b"first"]]

    @pytest.mark.parametrize("size_bytes", [0, 1, 4_000, 4_060, 4_096, 300_001])
    def test_a_chunk_of_any_size_comes_back(
        self, store: StateStore, size_bytes: int
    ) -> None:
        """It is cut into pieces and joined again."""
        value = bytes(index % 251 for index in range(size_bytes))
        write(store, [(key(0), value)])
        assert WholeReader(store).get_values(1, [key(0)], NOW_US).values == [value]

    @pytest.mark.proves("W2")
    def test_batches_of_which_nothing_came_for_long_are_dropped(
        self, store: StateStore
    ) -> None:
        """From the last chunk on, to the microsecond, and others stay (W2)."""
        store.stage([chunk([], batch_id=0), chunk([], batch_id=1)], 10)
        store.stage([chunk([], batch_id=0, stage="b")], 20)
        store.stage([chunk([], batch_id=2)], 30)
        assert store.drop_stages_older_than(10) == 0
        assert store.drop_stages_older_than(20) == 1
        assert store.missing_stages(JOB, 1, 0, stages(a=1, b=1)) == ()
        assert store.missing_stages(JOB, 1, 1, stages(a=1)) == (stage_id("a"),)
        assert store.drop_stages_older_than(31) == 2
        assert store.drop_stages_older_than(31) == 0
        assert staged_count(store) == 0

    @pytest.mark.proves("B4")
    def test_of_some_jobs_nothing_is_dropped(self, store: StateStore) -> None:
        """What is old of one goes while another has yet to apply something (B4)."""
        store.stage([chunk([]), chunk([], job_id="x")], NOW_US)
        assert store.drop_stages_older_than(NOW_US + 1, [JOB]) == 1
        assert store.missing_stages(JOB, 1, 0, stages(a=1)) == ()
        assert store.missing_stages("x", 1, 0, stages(a=1)) == (stage_id("a"),)

    @pytest.mark.proves("W2")
    def test_what_an_entry_supersedes_is_removed(self, store: StateStore) -> None:
        """Losing stages, earlier batches, earlier runs; nothing else (W2)."""
        kept = {(JOB, QUERY, 2, 6), (JOB, QUERY, 3, 0), ("x", QUERY, 2, 5)}
        kept.add((JOB, "other query", 1, 5))
        gone = {(JOB, QUERY, 2, 5), (JOB, QUERY, 2, 4), (JOB, QUERY, 1, 9)}
        store.stage(
            [
                chunk(
                    [],
                    stage=name,
                    job_id=job_id,
                    query_id=query_id,
                    writer_epoch=writer_epoch,
                    batch_id=batch_id,
                )
                for job_id, query_id, writer_epoch, batch_id in sorted(kept | gone)
                for name in ("a", "b")
            ],
            NOW_US,
        )
        store.apply(JOB, decided(1, {"a": 1}, writer_epoch=2, batch_id=5))
        both = stages(a=1, b=1)
        left = {
            (job_id, query_id, writer_epoch, batch_id)
            for job_id, query_id, writer_epoch, batch_id in kept | gone
            if not store.missing_stages(job_id, writer_epoch, batch_id, both)
        }
        assert left == kept
        assert staged_count(store) == len(kept) * 3


@pytest.mark.proves("B4")
class TestQuota:
    """B4: how much of one job is staged, and not decided, is bounded."""

    def test_what_goes_beyond_is_refused(self, store: StateStore) -> None:
        """The limit itself fits; the refusal says whose, how much, and what to do."""
        first, second = chunk([(key(0), b"1")]), chunk([(key(1), b"2")], stage="b")
        size_bytes = len(first[1]) + len(second[1])
        with pytest.raises(StagingQuotaError) as caught:
            store.stage([first, second], NOW_US, size_bytes - 1)
        assert caught.value.args == (NODE, JOB, size_bytes, size_bytes - 1)
        assert "staged_bytes_per_job_max" in str(caught.value)
        assert staged_count(store) == 0  # nothing of them is kept
        store.stage([first, second], NOW_US, size_bytes)
        store.stage([first, second], NOW_US, size_bytes)  # they are there already
        assert counted_sizes(store) == {JOB: size_bytes}

    def test_another_job_has_its_own(self, store: StateStore) -> None:
        """One that has filled its part is not in the way of others."""
        brought = chunk([])
        size_bytes = len(brought[1])
        store.stage([brought], NOW_US, size_bytes)
        store.stage([chunk([], job_id="x")], NOW_US, size_bytes)
        with pytest.raises(StagingQuotaError):
            store.stage([chunk([], stage="b")], NOW_US, size_bytes)

    def test_what_is_decided_makes_room(self, store: StateStore) -> None:
        """With all that the decision supersedes."""
        store.stage([chunk([]), chunk([], stage="b")], NOW_US)
        store.stage([chunk([], batch_id=1)], NOW_US)
        store.apply(JOB, decided(1, {"a": 1}, batch_id=1))
        assert counted_sizes(store) == {}

    def test_what_is_dropped_makes_room(self, store: StateStore) -> None:
        """For its age, because rows were collected in vain, or with its job."""
        one = len(chunk([])[1])
        store.stage([chunk([], batch_id=0)], 10)
        store.stage([chunk([], batch_id=1), chunk([], batch_id=1, stage="b")], 20)
        store.drop_stages_older_than(20)
        assert counted_sizes(store) == {JOB: 2 * one}
        store.discard_stages(JOB, 1, 1, [stage_id("b"), stage_id("c")])
        assert counted_sizes(store) == {JOB: one}
        store.forget_job(JOB)
        assert counted_sizes(store) == {}

    def test_it_is_counted_again_when_the_store_is_opened(self, tmp_path: Path) -> None:
        """What another version has left here counts as well, and not what is gone."""
        brought = chunk([(key(0), b"1" * 10_000)])
        with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
            store.stage([brought, chunk([], job_id="x")], NOW_US)
            before = counted_sizes(store)
            prefix = batch_prefix(JOB, 1, 0)
            with store._environment.writing() as transaction:
                database = store._environment.staged
                stored = transaction.get(prefix, db=database)
                assert stored is not None
                head = decode_staged_batch(stored)
                former = encode_record(replace(head, size_bytes=0))
                transaction.put(prefix, former, db=database)
                put_staged_sizes(transaction, store._meta, {"gone": 5})
        with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
            assert counted_sizes(store) == before == staged_sizes(store)
            assert before[JOB] == len(brought[1])
            with pytest.raises(StagingQuotaError):
                store.stage([chunk([], stage="b")], NOW_US, before[JOB])


class TestJobsThatWereLeft:
    @pytest.mark.proves("B4")
    def test_nothing_of_them_is_left(self, tmp_path: Path) -> None:
        """B4: no mark, no fence, no state; also where there was never an entry."""
        with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
            store.stage([chunk([(key(0), b"1")])], NOW_US)
            store.apply(JOB, decided(1, {"a": 1}))
            store.hold(JOB, (), ())
            assert store.remove_unheld(JOB) is False
            store.hold("planned", (0, 1), ())
            store.fence([WriterFence(job_id="fenced", query_id="q", writer_epoch=4)])
            assert store.forget_left(()) == ("fenced", JOB, "planned")
            assert store.forget_left(()) == ()
            assert (store.positions(), store.fences()) == ({}, {})
            assert store.state(1) is None

    @pytest.mark.proves("B4")
    def test_others_stay(self, store: StateStore) -> None:
        """The node has a part in them, or they are not to be touched."""
        store.stage([chunk([(key(0), b"1")])], NOW_US)
        store.apply(JOB, decided(1, {"a": 1}))
        assert store.forget_left((JOB,)) == ()
        assert store.positions() == {JOB: 1}

    @pytest.mark.proves("S2")
    def test_a_job_of_which_rows_are_staged_waits_for_them(
        self, store: StateStore
    ) -> None:
        """S2: a batch that was begun while the node had a part may be decided yet."""
        store.stage([chunk([(key(0), b"1")])], NOW_US)
        store.fence([WriterFence(job_id=JOB, query_id="x", writer_epoch=5)])
        assert store.forget_left(()) == ()
        stages = [
            StageRecord(stage_id=stage_id("a"), chunk_counts={NODE: 1}, row_count=1)
        ]
        assert store.missing_stages(JOB, 1, 0, stages) == ()
        store.drop_stages_older_than(NOW_US + 1)
        assert store.forget_left(()) == (JOB,)

    @pytest.mark.proves("B4")
    def test_some_at_a_time(self, store: StateStore) -> None:
        """B4: batches of other jobs wait meanwhile."""
        for number in range(50):
            store.hold(f"job-{number}", (0,), ())
        counts = [len(store.forget_left(())) for _ in range(4)]
        assert counts == [20, 20, 10, 0]

    @pytest.mark.proves("B4")
    def test_fences_of_queries_that_are_forgotten_go(self, store: StateStore) -> None:
        """B4: others of the job stay."""
        for query_id in ("x", "y"):
            fence = WriterFence(job_id=JOB, query_id=query_id, writer_epoch=5)
            store.fence([fence])
        store.drop_fences(JOB, ["x", "z"])
        assert store.fences() == {(JOB, "y"): 5}


class TestChain:
    @pytest.mark.proves("W3", "W4")
    def test_entries_are_applied_in_order_and_once(self, store: StateStore) -> None:
        """One that was applied is passed over, even if its rows are gone (W3, W4)."""
        lists = [state(kind="list")]
        store.stage([chunk([(key(0), b"1")])], NOW_US)
        first = decided(1, {"a": 1}, states=lists)
        store.apply(JOB, first)
        store.apply(JOB, first)
        assert store.positions() == {JOB: 1}
        store.stage([chunk([(key(0), b"2")], batch_id=1)], NOW_US)
        store.apply(JOB, decided(2, {"a": 1}, states=lists, batch_id=1))
        store.apply(JOB, first)
        assert store.positions() == {JOB: 2}
        items = WholeReader(store).get_items(1, [key(0)], 0, None, NOW_US)
        assert items.values == [[b"1", b"2"]]

    @pytest.mark.proves("W3")
    def test_a_gap_is_refused(self, store: StateStore) -> None:
        """What is missing is said, and nothing is applied (W3)."""
        with pytest.raises(LocalProtocolError, match="bring entry 1 first"):
            store.apply(JOB, decided(2, {}))
        store.apply(JOB, decided(1, {}))
        with pytest.raises(LocalProtocolError, match="bring entry 2 first"):
            store.apply(JOB, decided(3, {}, batch_id=1))
        assert store.positions() == {JOB: 1}

    def test_jobs_have_chains_of_their_own(self, store: StateStore) -> None:
        """One job's entries say nothing of another's."""
        store.apply("x", decided(1, {}))
        store.apply("y", decided(1, {}, states=[state(2)]))
        store.apply("y", decided(2, {}, states=[state(2)], batch_id=1))
        assert store.positions() == {"x": 1, "y": 2}

    @pytest.mark.proves("W4")
    @pytest.mark.parametrize("brought", [[], [1], [0, 2]])
    def test_missing_rows_are_told_and_nothing_changes(
        self, store: StateStore, brought: list[int]
    ) -> None:
        """None of a batch is applied unless all of it is there (W4)."""
        write(store, [(key(0), b"before")])
        store.stage(
            [chunk([(key(0), b"x")], index=index, batch_id=2) for index in brought],
            NOW_US,
        )
        entry = decided(2, {"a": 3}, batch_id=2, states=[state(), state(9)])
        with pytest.raises(StagedDataMissingError) as caught:
            store.apply(JOB, entry)
        assert caught.value.args == (2, (NODE,))
        assert store.positions() == {JOB: 1}
        assert store.state(9) is None
        assert WholeReader(store).get_values(1, [key(0)], NOW_US).values == [b"before"]
        left = [index for index in range(3) if index not in brought]
        store.stage(
            [chunk([(key(0), b"x")], index=index, batch_id=2) for index in left], NOW_US
        )
        store.apply(JOB, entry)
        assert WholeReader(store).get_values(1, [key(0)], NOW_US).values == [b"x"]


class TestViews:
    @pytest.mark.proves("Q2")
    def test_every_state_of_an_entry_moves_on(self, store: StateStore) -> None:
        """Also one for which this node got no rows (Q2)."""
        store.stage([chunk([(key(0), b"")])], NOW_US)
        store.apply(
            JOB,
            decided(
                1,
                {"a": 1},
                states=[state(1), state(2, kind="map", has_ttl=True, generation=4)],
                decided_at_us=99,
            ),
        )
        expected = StateView(
            job_id=JOB,
            generation=1,
            batch_id=0,
            decided_at_us=99,
            kind="value",
            has_ttl=False,
            lost=(),
        )
        assert store.state(1) == expected
        assert store.state(2) == StateView(
            job_id=JOB,
            generation=4,
            batch_id=0,
            decided_at_us=99,
            kind="map",
            has_ttl=True,
            lost=(),
        )
        assert store.state(3) is None

    @pytest.mark.proves("W5")
    def test_a_new_owner_may_go_on_with_the_rows(self, store: StateStore) -> None:
        """``continue`` keeps them, ``replace`` clears them in its first batch (W5)."""
        write(store, [(key(0), b"old"), (key(1), b"old")])
        write(store, [(key(1), b"new")], batch_state=state(generation=2))
        reader = WholeReader(store)
        keys = [key(0), key(1)]
        assert reader.get_values(1, keys, NOW_US).values == [b"old", b"new"]
        replaced = state(generation=3, is_replaced=True)
        write(store, [(key(1), b"newest")], batch_state=replaced)
        read = reader.get_values(1, keys, NOW_US)
        assert read.values == [None, b"newest"]
        assert read.view is not None
        assert (read.view.generation, read.view.batch_id) == (3, 3)

    @pytest.mark.proves("W5")
    def test_a_dropped_state_is_gone(self, store: StateStore) -> None:
        """With its rows, and for good: its number is not used again (W5)."""
        write(store, [(key(0), b"1")])
        write(store, [(key(0), b"2")], batch_state=state(2))
        store.apply(JOB, StateDropped(sequence=3, state_number=1))
        store.apply(JOB, StateDropped(sequence=4, state_number=77))
        assert store.state(1) is None
        assert store.positions() == {JOB: 4}
        reader = WholeReader(store)
        assert reader.get_values(1, [key(0)], NOW_US).view is None
        assert reader.get_values(2, [key(0)], NOW_US).values == [b"2"]
        write(store, [(key(5), b"3")], batch_state=state(3))
        assert reader.count(3, range(8), NOW_US)[1] == 1
        assert len(store._environment.slots) == 2


@pytest.mark.proves("W7")
class TestLoss:
    def test_a_reset_job_begins_with_nothing(self, store: StateStore) -> None:
        """Its states are there, lost, and others of it gone; other jobs stay (W7)."""
        write(store, [(key(0), b"1")])
        write(store, [(key(0), b"2")], batch_state=state(2))
        write(store, [(key(0), b"3")], batch_state=state(3), job_id="other")
        assert store.lost_states() == {}
        store.reset_job(JOB, 40, [1, 7])
        assert store.positions() == {JOB: 40, "other": 1}
        assert store.lost_states() == {JOB: [1, 7]}
        lost = StateView(
            job_id=JOB,
            generation=0,
            batch_id=None,
            decided_at_us=0,
            kind="",
            has_ttl=False,
            lost=ALL_GROUPS,
        )
        assert [store.state(number) for number in (1, 2, 7)] == [lost, None, lost]
        reader = WholeReader(store)
        assert reader.get_values(1, [key(0)], NOW_US).values == [None]
        assert reader.get_values(3, [key(0)], NOW_US).values == [b"3"]

    def test_a_lost_state_is_completed_by_a_batch_that_replaces_it(
        self, store: StateStore
    ) -> None:
        """Until then its rows are applied, and its view says that some lack (W7)."""
        store.reset_job(JOB, 40, [1])
        write(store, [(key(0), b"1")])
        view = store.state(1)
        assert view is not None
        assert view.lost == ALL_GROUPS
        assert (view.generation, view.batch_id, view.kind) == (1, 41, "value")
        assert WholeReader(store).get_values(1, [key(0)], NOW_US).values == [b"1"]
        write(store, [(key(1), b"2")], batch_state=state(is_replaced=True))
        view = store.state(1)
        assert view is not None
        assert view.lost == ()
        write(store, [], batch_state=state())
        view = store.state(1)
        assert view is not None
        assert view.lost == ()

    def test_a_reset_may_go_back_or_be_repeated(self, store: StateStore) -> None:
        """The proxy leader says where the chain goes on (W7)."""
        for sequence in (40, 40, 3):
            store.reset_job(JOB, sequence, [1])
            assert store.positions() == {JOB: sequence}
        store.apply(JOB, decided(4, {}))
        assert store.positions() == {JOB: 4}


class TestIdentity:
    def test_a_control_plane_is_kept(self, tmp_path: Path) -> None:
        """State numbers mean something within one control plane only."""
        with StateStore.open(tmp_path, node_id=NODE) as store:
            assert store.control_id is None
            store.bind_control("first")
            store.bind_control("first")
        with StateStore.open(tmp_path) as store:
            assert store.control_id == "first"
            with pytest.raises(StorageError, match="another control plane"):
                store.bind_control("second")
            assert store.control_id == "first"
            assert store.node_id == NODE

    @pytest.mark.proves("W7")
    def test_everything_is_there_again(self, tmp_path: Path) -> None:
        """Rows, views, positions, fences and staged chunks outlive the process (W7)."""
        with StateStore.open(tmp_path, node_id=NODE) as store:
            write(store, [(key(0), b"1")])
            write(store, [(key(0), b"2")], batch_state=state(2, kind="list"))
            store.stage([chunk([(key(0), b"3")], batch_id=9)], NOW_US)
            store.fence([WriterFence(job_id=JOB, query_id="q", writer_epoch=4)])
            view, store_id = store.state(1), store.store_id
        with StateStore.open(tmp_path, node_id=NODE) as store:
            assert store.store_id == store_id
            assert store.state(1) == view
            assert store.positions() == {JOB: 2}
            assert store.fences() == {(JOB, JOB): 1, (JOB, "q"): 4}
            assert store.missing_stages(JOB, 1, 9, stages(a=1)) == ()
            reader = WholeReader(store)
            assert reader.get_values(1, [key(0)], NOW_US).values == [b"1"]
            assert reader.get_items(2, [key(0)], 0, None, NOW_US).values == [[b"2"]]
            entry = decided(3, {"a": 1}, batch_id=9, query_id=QUERY)
            store.apply(JOB, replace(entry, states=(state(),)))
            assert reader.get_values(1, [key(0)], NOW_US).values == [b"3"]
