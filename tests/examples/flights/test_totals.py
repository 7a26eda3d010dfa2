from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from election import Put, VersionedValue
from examples.flights.messages import (
    Accepted,
    CarrierSummary,
    PartitionSummary,
    Refused,
)
from examples.flights.totals import Commit, TotalsCore, add, decode_totals, flight_count


STREAM_ID = "0" * 32
OTHER_STREAM_ID = "1" * 32


class Store:
    """The leader store as the core sees it: paths, values, versions."""

    def __init__(self) -> None:
        self.values: dict[str, VersionedValue] = {}

    def commit(self, operations: tuple[Put, ...]) -> None:
        """Do all of *operations*, whose versions must be right."""
        for operation in operations:
            held = self.values.get(operation.path)
            version = 0 if held is None else held.version
            assert operation.version == version
        for operation in operations:
            assert operation.version is not None
            self.values[operation.path] = VersionedValue(
                value=operation.value, version=operation.version + 1
            )


def flights(count: int) -> CarrierSummary:
    """Some flights whose every sum is different."""
    return CarrierSummary(
        flight_count=count,
        cancelled_count=count // 3,
        departure_delay_minutes=7 * count,
        arrival_delay_minutes=-5 * count,
        distance_miles=1_000 * count,
    )


def summary(
    *,
    batch_id: int,
    partition_id: int = 0,
    carriers: Mapping[str, CarrierSummary] | None = None,
    stream_id: str = STREAM_ID,
) -> PartitionSummary:
    """Return a delivery, of one flight unless it says otherwise."""
    return PartitionSummary(
        stream_id=stream_id,
        batch_id=batch_id,
        partition_id=partition_id,
        carriers=dict({"UA": flights(1)} if carriers is None else carriers),
    )


def commit_of(core: TotalsCore, delivered: PartitionSummary, *, epoch: int) -> Commit:
    """Return the commit that *delivered* asks for."""
    plan = core.plan(delivered, epoch=epoch)
    assert isinstance(plan, Commit)
    return plan


class TestTotalsCore:
    def test_a_first_delivery_creates_everything(self) -> None:
        """Nothing is overwritten that the core did not know of: version 0."""
        core = TotalsCore({})
        commit = commit_of(core, summary(batch_id=0), epoch=3)
        assert {put.path: put.version for put in commit.operations} == {
            "progress/0": 0,
            "stream": 0,
            "totals/UA": 0,
        }
        assert core.committed(commit) == Accepted(epoch=3, is_repeated=False)
        assert core.totals == {"UA": flights(1)}

    def test_a_plan_alone_changes_nothing(self) -> None:
        """A commit that failed can be planned again, the same."""
        core = TotalsCore({})
        first = core.plan(summary(batch_id=0), epoch=3)
        assert core.plan(summary(batch_id=0), epoch=3) == first
        assert core.totals == {}

    def test_a_repeated_delivery_adds_nothing(self) -> None:
        """The same batch and partition are counted once, older batches too."""
        core = TotalsCore({})
        core.committed(commit_of(core, summary(batch_id=4), epoch=3))
        repeated = Accepted(epoch=5, is_repeated=True)
        assert core.plan(summary(batch_id=4), epoch=5) == repeated
        assert core.plan(summary(batch_id=3), epoch=5) == repeated

    def test_the_partitions_of_a_batch_are_counted_each(self) -> None:
        """One partition's progress says nothing about another's."""
        core = TotalsCore({})
        core.committed(commit_of(core, summary(batch_id=0), epoch=3))
        commit = commit_of(core, summary(batch_id=0, partition_id=1), epoch=3)
        assert {put.path: put.version for put in commit.operations} == {
            "progress/1": 0,
            "totals/UA": 1,
        }
        core.committed(commit)
        assert core.totals == {"UA": flights(2)}

    def test_another_stream_is_refused(self) -> None:
        """Batch ids of another checkpoint would be taken for repetitions."""
        core = TotalsCore({})
        core.committed(commit_of(core, summary(batch_id=0), epoch=3))
        answer = core.plan(summary(batch_id=9, stream_id=OTHER_STREAM_ID), epoch=3)
        assert answer == Refused(
            reason="other-stream", detail=f"these are the totals of stream {STREAM_ID}"
        )

    def test_an_empty_partition_makes_progress(self) -> None:
        """A partition without flights is acknowledged like any other."""
        core = TotalsCore({})
        core.committed(commit_of(core, summary(batch_id=0, carriers={}), epoch=3))
        assert core.totals == {}
        assert core.plan(summary(batch_id=0, carriers={}), epoch=4) == Accepted(
            epoch=4, is_repeated=True
        )

    def test_what_is_not_a_total_is_refused_when_it_is_read(self) -> None:
        """None counts on from values that mean something else."""
        stored = {"totals/UA": VersionedValue(value=b"{}!", version=1)}
        with pytest.raises(ValueError, match="malformed"):
            decode_totals(stored)

    @given(
        st.lists(
            st.tuples(
                st.integers(1, 3),  # how many partitions the batch has
                st.lists(
                    st.sampled_from(["answered", "lost before", "lost after"]),
                    max_size=4,
                ),
            ),
            max_size=8,
        )
    )
    def test_each_delivery_counts_once_whoever_dies(
        self, batches: list[tuple[int, list[str]]]
    ) -> None:
        """
        Totals are the sum of what was delivered, each delivery once.

        Leaders die before a commit and after it, deliveries are repeated until they
        are answered, and then once more.
        """
        store = Store()
        core = TotalsCore({})
        epoch = 1
        expected = CarrierSummary()
        for batch_id, (partition_count, fates) in enumerate(batches):
            for partition_id in range(partition_count):
                count = 10 * batch_id + partition_id + 1
                delivered = summary(
                    batch_id=batch_id,
                    partition_id=partition_id,
                    carriers={"UA": flights(count), "DL": flights(1)},
                )
                expected = add(expected, add(flights(count), flights(1)))
                for fate in [*fates, "answered", "answered"]:
                    plan = core.plan(delivered, epoch=epoch)
                    if isinstance(plan, Commit) and fate != "lost before":
                        store.commit(plan.operations)
                        core.committed(plan)
                    if fate != "answered":
                        core = TotalsCore(store.values)
                        epoch += 1
                assert core.plan(delivered, epoch=epoch) == Accepted(
                    epoch=epoch, is_repeated=True
                )
        totals = decode_totals(store.values)
        assert core.totals == totals
        assert (
            add(totals.get("UA", CarrierSummary()), totals.get("DL", CarrierSummary()))
            == expected
        )
        assert flight_count(totals) == expected.flight_count
