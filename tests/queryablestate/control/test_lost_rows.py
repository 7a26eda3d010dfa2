"""W7: a node has lost its rows under the same data directory, and others have them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from queryablestate.control.effects import WriteStore
from queryablestate.control.events import LinksClosed, NodeSpoke, TimePassed
from queryablestate.wire.job_plan import JobHolding
from queryablestate.wire.node_messages import (
    JobPosition,
    NodeRegistered,
    RegisterNode,
    ResetJob,
    VerifyStages,
)
from tests.queryablestate.control.test_moves import (
    LINK_C,
    LINKS,
    assignment,
    copied,
    join,
    owners,
    rescale,
    start,
)
from tests.queryablestate.control_plane import (
    APP,
    GRACE_NS,
    KNOWS_ALL,
    LINK_A,
    LINK_B,
    TIMEOUT_NS,
    Plane,
    applied,
    commit,
    heartbeat,
    node_register,
    sent,
    stage,
    verified,
)


def lossy_job() -> tuple[Plane, int]:
    """
    Return a plane with a batch on a and b, both copies; c makes some, too.

    A leader has just come, whom only a and c have registered with.  What a has is an
    older state of its directory, which lacks that batch: it has been told that it has
    lost its rows.
    """
    plane, epoch = start("ab", replica_count=2)
    effects = plane.ask(commit(epoch, 0, stage(1, a=1, b=1), assignment_version=1))
    for node_id in "ab":
        for message in sent(effects, LINKS[node_id]):
            if isinstance(message, VerifyStages):
                plane.hear(LINKS[node_id], verified(node_id, message.verify_id))
    for node_id in "ab":
        plane.hear(LINKS[node_id], applied(node_id, 1))
    join(plane, "c")
    for node_id in "abc":
        plane.hear(LINKS[node_id], heartbeat(node_id, 1))
    plane.ask(rescale(3))
    plane.hear(LINK_C, applied("c", 1))
    version = assignment(plane).version
    plane.next_leader()
    plane.hear(LINK_C, node_register("c", positions={APP: 1}))
    plane.hear(LINK_A, node_register("a", positions={APP: 0}))
    lacking = applied("a", 0, failure="rows are missing", lacks_rows=True)
    effects = plane.hear(LINK_A, lacking)
    assert any(isinstance(message, ResetJob) for message in sent(effects, LINK_A))
    plane.hear(LINK_A, replace(applied("a", 1), lost_state_numbers=(1,)))
    return plane, version


def lost_register(node_id: str, *lost: tuple[int, int]) -> RegisterNode:
    """Return that a node registers which has lost rows of these runs of key groups."""
    position = JobPosition(job_id=APP, sequence=1, lost_state_numbers=(1,))
    message = node_register(node_id, holding=replace(KNOWS_ALL, lost=lost))
    return replace(message, positions=(position,))


@pytest.mark.proves("S1", "W7")
class TestLostRows:
    """W7: who has lost its rows under the same directory, and what others have."""

    def test_it_is_no_source_while_another_one_may_have_them(self) -> None:
        """S1: who copies waits for the other one."""
        plane, _ = lossy_job()
        effects = plane.hear(LINK_C, node_register("c", positions={APP: 1}))
        (registered,) = (
            message
            for message in sent(effects, LINK_C)
            if isinstance(message, NodeRegistered)
        )
        (job,) = registered.jobs
        assert [(one.node_id, one.address) for one in job.sources] == [("b", None)]

    def test_it_says_so_again_when_it_is_back(self) -> None:
        """W7: the rows that another one has are not given up for it."""
        plane, _ = lossy_job()
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.now_ns += GRACE_NS
        plane.settle(TimePassed())
        plane.hear(LINK_A, lost_register("a", (0, 3)))
        for number, _ in enumerate(range(2), 1):
            plane.now_ns += TIMEOUT_NS // 2
            for node_id in "ac":
                plane.hear(LINKS[node_id], heartbeat(node_id, number))
            plane.settle(TimePassed())
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        assert owners(plane) == ["b", "b", "b", "b"]

    def test_the_next_leader_knows(self) -> None:
        """W7: nothing was written by the one that had told it so."""
        plane, _ = lossy_job()
        plane.next_leader()
        plane.hear(LINK_A, lost_register("a", (0, 3)))
        for node_id in "bc":
            plane.hear(LINKS[node_id], node_register(node_id, positions={APP: 1}))
        for node_id in "abc":
            plane.hear(LINKS[node_id], heartbeat(node_id, 1))
        assert owners(plane) == ["b", "b", "b", "b"]

    def test_what_it_has_not_lost_stays(self) -> None:
        """S1: it is known of each key group; others may have lost the other ones."""
        plane, _ = lossy_job()
        plane.next_leader()
        plane.hear(LINK_A, lost_register("a", (0, 1)))
        plane.hear(LINK_B, lost_register("b", (3, 3)))
        plane.hear(LINK_C, node_register("c", positions={APP: 1}))
        for node_id in "abc":
            plane.hear(LINKS[node_id], heartbeat(node_id, 1))
        held = owners(plane)
        assert held[:2] == ["b", "b"]
        assert set(held[2]) == {"a", "b"}
        assert held[3] == "a"

    def test_an_older_directory_has_lost_all(self) -> None:
        """S1: also what it has not lost by what it says itself."""
        plane, epoch = start("ab", replica_count=1)
        plane.ask(commit(epoch, 0, assignment_version=1))
        for node_id in "ab":
            plane.hear(LINKS[node_id], applied(node_id, 1))
        plane.ask(rescale(2, 2))
        for _ in range(4):
            for node_id in "ab":
                groups = [
                    group
                    for group, joining in enumerate(assignment(plane).joining)
                    for one in joining
                    if assignment(plane).node_ids[one.node_index] == node_id
                ]
                version = assignment(plane).version
                plane.hear(LINKS[node_id], copied(node_id, version, *groups))
        assert sorted(map(sorted, owners(plane))) == [["a", "b"]] * 4
        plane.next_leader()
        whole = node_register("b", positions={APP: 1}, holding=KNOWS_ALL)
        plane.hear(LINK_B, whole)
        plane.hear(LINK_B, heartbeat("b", 1))
        position = JobPosition(job_id=APP, sequence=1, lost_state_numbers=(1,))
        older = JobHolding(job_id=APP, version=1, lost=((3, 3),))
        message = replace(node_register("a", holding=older), positions=(position,))
        effects = plane.hear(LINK_A, message)
        assert any(isinstance(one, ResetJob) for one in sent(effects, LINK_A))
        assert owners(plane) == ["b", "b", "b", "b"]

    def test_two_that_have_lost_the_same_keep_what_they_share(self) -> None:
        """S1, S3: each says so again whenever its connection was broken."""
        plane, _ = lossy_job()
        plane.next_leader()
        for node_id in "ab":
            plane.hear(LINKS[node_id], lost_register(node_id, (0, 3)))
        plane.hear(LINK_C, node_register("c", positions={APP: 1}))
        for node_id in "abc":
            plane.hear(LINKS[node_id], heartbeat(node_id, 1))
        before = list(map(sorted, owners(plane)))
        assert all(held == ["a", "b"] for held in before)
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.hear(LINK_A, lost_register("a", (0, 3)))
        for node_id in "abc":
            plane.hear(LINKS[node_id], heartbeat(node_id, 2))
        assert list(map(sorted, owners(plane))) == before

    @pytest.mark.parametrize("lost", [(), ((3, 3),)])
    def test_what_it_has_stays_after_it_has_gone(
        self, lost: tuple[tuple[int, int], ...]
    ) -> None:
        """S1: another one may have lost what it has."""
        plane, _ = lossy_job()
        plane.next_leader()
        plane.hear(LINK_A, lost_register("a", *lost))
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.hear(LINK_C, node_register("c", positions={APP: 1}))
        for number in range(1, 4):
            plane.now_ns += TIMEOUT_NS // 2
            plane.hear(LINK_C, heartbeat("c", number))
            plane.settle(TimePassed())
        held = owners(plane)
        assert all("a" in one for one in held[:3])
        assert ("a" in held[3]) == (not lost)

    def test_what_is_heard_while_an_assignment_is_written_is_for_the_next(
        self,
    ) -> None:
        """S1: the one that is being written does not know it."""
        plane, _ = lossy_job()
        plane.next_leader()
        plane.hear(LINK_C, node_register("c", positions={APP: 1}))
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        plane.hear(LINK_B, heartbeat("b", 1))
        plane.hear(LINK_C, heartbeat("c", 1))
        begun = plane.step(NodeSpoke(link=LINK_A, message=lost_register("a", (0, 1))))
        lacking = applied("a", 0, failure="rows are missing", lacks_rows=True)
        begun += plane.step(NodeSpoke(link=LINK_A, message=lacking))
        lost = replace(applied("a", 1), lost_state_numbers=(1,))
        begun += plane.step(NodeSpoke(link=LINK_A, message=lost))
        assert any(isinstance(effect, WriteStore) for effect in begun)
        plane.settle_rest(begun)
        assert owners(plane) == ["b", "b", "b", "b"]

    def test_what_was_copied_off_one_that_is_gone_counts_for_nothing(self) -> None:
        """S1: under the same leader, too."""
        plane, version = lossy_job()
        groups = [g for g, joining in enumerate(assignment(plane).joining) if joining]
        plane.hear(LINK_C, copied("c", version, *groups))
        plane.settle(LinksClosed(links=(LINK_A,)))
        for number in range(2, 5):
            plane.now_ns += GRACE_NS // 2
            plane.hear(LINK_C, heartbeat("c", number))
            plane.settle(TimePassed())
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        plane.hear(LINK_B, heartbeat("b", 1))
        plane.hear(LINK_C, heartbeat("c", 9))
        assert owners(plane) == ["b", "b", "b", "b"]
        for copies in assignment(plane).joining:
            assert all(copy.version > version for copy in copies)
