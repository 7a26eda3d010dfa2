"""Batches that were begun and may not be over keep their nodes from ending."""

from __future__ import annotations

import pytest

from queryablestate.control.events import LinkId
from queryablestate.control.job.job import Job
from queryablestate.control.open_batches import OpenBatches
from queryablestate.wire.records import AssignmentRecord, JobRecord


SECOND = 1_000_000_000
JOB = "job"
DRIVER, OTHER = LinkId(1), LinkId(2)


def jobs() -> dict[str, Job]:
    """Return a job whose key groups have moved from ``a`` to ``b``."""
    job = Job(
        record=JobRecord(
            job_id=JOB,
            job_number=1,
            max_parallelism=2,
            sequence=0,
            sequence_first=1,
            runs=(),
            progress=(),
        )
    )
    for version, node_id in ((1, "a"), (2, "b")):
        job.assignments[version] = AssignmentRecord(
            version=version,
            node_ids=(node_id,),
            store_ids=("store",),
            since_sequences=(0,),
            owners=((0,), (0,)),
        )
    job.assignment = job.assignments[2]
    return {JOB: job}


def informed() -> OpenBatches:
    """Return those of a leader that has led for a while."""
    return OpenBatches([], now_ns=0)


def draw(
    batches: OpenBatches,
    ticket: int,
    *,
    version: int = 1,
    link: LinkId = DRIVER,
    name: str = "rows",
    now_ns: int = 10 * SECOND,
) -> None:
    """Give out a ticket."""
    batches.drawn(
        ticket,
        job_id=JOB,
        version=version,
        state_names=frozenset({name}),
        link=link,
        now_ns=now_ns,
    )


def bind(batches: OpenBatches, ticket: int, *, now_ns: int = 0) -> None:
    """Show a ticket."""
    batches.bound(ticket, job_id=JOB, query_id="query", now_ns=now_ns)


class TestTickets:
    """A ticket is open until its batch is over."""

    @pytest.mark.proves("S2")
    def test_a_batch_needs_the_nodes_that_it_was_planned_with(self) -> None:
        """S2: and no others; a node of no open batch may end."""
        batches = informed()
        draw(batches, 1)
        assert batches.may_need("a", jobs())
        assert not batches.may_need("b", jobs())
        assert not batches.may_need("a", {})

    @pytest.mark.proves("S2")
    def test_a_batch_that_is_decided_needs_nobody(self) -> None:
        """S2: from then on its rows are where they must be."""
        batches = informed()
        draw(batches, 1)
        bind(batches, 1)
        batches.decided(job_id=JOB, query_id="another")
        assert batches.may_need("a", jobs())
        batches.decided(job_id=JOB, query_id="query")
        assert not batches.may_need("a", jobs())
        assert batches.expire(now_ns=11 * SECOND)
        assert not batches.expire(now_ns=11 * SECOND)

    def test_a_later_ticket_of_the_query_ends_the_batch_before(self) -> None:
        """A batch that failed is run again, by a ticket of its own."""
        batches = informed()
        draw(batches, 1)
        bind(batches, 1)
        draw(batches, 2, version=2, link=OTHER)
        assert batches.count_at("a", jobs()) == 1
        bind(batches, 2)
        assert batches.count_at("a", jobs()) == 0
        assert batches.count_at("b", jobs()) == 1

    @pytest.mark.proves("S2")
    def test_a_task_that_is_late_ends_no_later_batch(self) -> None:
        """S2: it shows a ticket of its run whose batch is over."""
        batches = informed()
        draw(batches, 1)
        bind(batches, 1)
        draw(batches, 2, link=OTHER)
        bind(batches, 2)
        bind(batches, 1)
        assert batches.count_at("a", jobs()) == 1
        assert batches.versions_of(JOB) == {1}
        assert batches.versions_of("another") == set()
        batches.decided(job_id=JOB, query_id="query")
        assert batches.versions_of(JOB) == set()

    def test_a_ticket_that_is_shown_again_stays_open(self) -> None:
        """Each task of a batch shows it where Spark tells no other."""
        batches = informed()
        draw(batches, 1)
        bind(batches, 1)
        bind(batches, 1)
        assert batches.count_at("a", jobs()) == 1

    def test_who_plans_again_has_given_up_what_was_planned(self) -> None:
        """The same driver, for the same states; other queries go on."""
        batches = informed()
        draw(batches, 1)
        draw(batches, 2, name="others")
        draw(batches, 3, version=2)
        assert batches.count_at("a", jobs()) == 1


class TestTime:
    """That a batch was given up is not told."""

    def test_a_batch_is_not_waited_for_without_end(self) -> None:
        """It is closed after ten minutes, at the very moment."""
        batches = informed()
        draw(batches, 1)
        assert batches.next_deadline_ns() == 610 * SECOND
        assert not batches.expire(now_ns=610 * SECOND - 1)
        assert batches.may_need("a", jobs())
        assert batches.expire(now_ns=610 * SECOND)
        assert not batches.may_need("a", jobs())
        assert batches.next_deadline_ns() is None

    @pytest.mark.proves("S2")
    def test_a_batch_lasts_as_long_as_tasks_of_it_begin(self) -> None:
        """S2: one that takes hours has its nodes for as long."""
        batches = informed()
        draw(batches, 1)
        bind(batches, 1, now_ns=500 * SECOND)
        batches.links_closed({DRIVER}, now_ns=500 * SECOND)
        bind(batches, 1, now_ns=550 * SECOND)
        assert batches.next_deadline_ns() == 1_150 * SECOND
        bind(batches, 1, now_ns=0)
        assert batches.next_deadline_ns() == 1_150 * SECOND

    def test_a_driver_that_is_gone_has_a_minute_to_come_back(self) -> None:
        """Its connection may be over, and its batch may not."""
        batches = informed()
        draw(batches, 1)
        draw(batches, 2, link=OTHER)
        batches.links_closed({DRIVER}, now_ns=20 * SECOND)
        assert batches.next_deadline_ns() == 80 * SECOND
        assert batches.expire(now_ns=80 * SECOND)
        assert batches.count_at("a", jobs()) == 1

    def test_a_new_leader_lets_no_node_end_at_once(self) -> None:
        """It knows of no batch, and there may be some."""
        batches = OpenBatches([JOB], now_ns=5 * SECOND)
        assert batches.may_need("a", jobs())
        assert not batches.may_need("c", jobs())
        assert batches.next_deadline_ns() == 15 * SECOND
        assert not batches.expire(now_ns=15 * SECOND - 1)
        assert batches.expire(now_ns=15 * SECOND)
        assert not batches.may_need("a", jobs())
