from __future__ import annotations

from collections.abc import Sequence
from typing import final

import pytest
from attrs import evolve

from nameservice import DidNotHappenError
from nameservice.clock import NS_PER_SECOND
from queryablestate.control.limits import ControlLimits
from queryablestate.operations.move_progress import MoveFigures
from queryablestate.operations.move_waiting import DrainWaiting, RescaleWaiting
from queryablestate.operations.rescaling_information import (
    DrainInformation,
    RescalingInformation,
    drain_information,
    rescaling_information,
)
from queryablestate.wire.node_messages import KeyGroupsCopied
from queryablestate.wire.operation_messages import (
    DrainNode,
    JobRescaling,
    KeyGroupMoves,
    ListRescalings,
)
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    SESSION,
    TIMEOUT_NS,
    Plane,
    commit,
    heartbeat,
    node_register,
)


def told(
    left_count: int, *, surplus_count: int = 0, planned_count: int = 64
) -> RescalingInformation:
    """Return what the proxy says of the job ``flights``."""
    moves = KeyGroupMoves(
        node_id="n-2",
        source_ids=("n-1",),
        waiting_count=max(0, left_count - 16),
        copying_count=min(16, left_count),
        row_count=10,
        size_bytes=(planned_count - left_count) * 100,
    )
    return rescaling_information(
        JobRescaling(
            job_id="flights",
            assignment_version=3,
            node_count=2,
            replica_count=1,
            key_group_counts={"n-1": 128},
            copy_counts={"n-1": 128},
            planned_count=planned_count,
            left_count=left_count,
            surplus_count=surplus_count,
            missing_count=0,
            moves=(moves,) if left_count else (),
            started_ms=8_000 if left_count else None,
        )
    )


def drained(left_count: int, *, is_draining: bool = True) -> DrainInformation:
    """Return what is said of a node that has that many copies of ``flights``."""
    return DrainInformation(
        node_id="n-1",
        is_draining=is_draining,
        is_away=False,
        copy_counts={"flights": left_count} if left_count else {},
    )


class TestInformation:
    """What the proxy says, as operators see it (O6)."""

    def test_the_time_left_is_by_the_pace_so_far(self) -> None:
        """16 of 64 in eight seconds leave 24; None before anything is done."""
        information = told(48)
        assert information.elapsed_seconds == 8.0
        assert information.seconds_left == pytest.approx(24.0)
        assert not information.is_done
        assert information.moves[0].copying_count == 16
        assert told(64).seconds_left is None  # nothing is done so far
        done = told(0)
        assert (done.elapsed_seconds, done.seconds_left) == (None, 0.0)
        assert done.is_done

    def test_what_is_to_be_given_up_is_not_done(self) -> None:
        """Two copies become one: nothing is copied, and yet there is something."""
        assert not told(0, surplus_count=64).is_done


class TestRescaleWaiting:
    """When a rescaling is over (O6)."""

    def test_it_is_over_when_nothing_is_left(self) -> None:
        """Not while copies are made, nor while some are to be given up."""
        seen: list[MoveFigures] = []

        def note(_: Sequence[RescalingInformation], figures: MoveFigures) -> None:
            seen.append(figures)

        waiting = RescaleWaiting(note, since=told(64), now_ns=0)
        for second, found in enumerate([told(32), told(0, surplus_count=5)], 1):
            now_ns = second * NS_PER_SECOND
            assert waiting.step([found], is_settled=True, now_ns=now_ns) is None
        done = [told(0)]
        assert waiting.step(done, is_settled=True, now_ns=3 * NS_PER_SECOND) is done
        assert [each.done_count for each in seen] == [32, 64, 64]
        assert [each.planned_count for each in seen] == [64, 64, 64]
        assert seen[0].size_bytes == 3_200
        assert [each.seconds_left for each in seen] == [8.0, 0.0, 0.0]

    def test_a_leader_that_has_just_begun_does_not_know(self) -> None:
        """S2: it has not looked who is there; what it says is no end."""
        waiting = RescaleWaiting(None, since=None, now_ns=0)
        assert waiting.step([told(0)], is_settled=False, now_ns=1) is None
        assert waiting.step([told(0)], is_settled=True, now_ns=2) is not None

    @pytest.mark.proves("O6")
    @pytest.mark.parametrize(
        "other", [evolve(told(0), node_count=3), evolve(told(0), replica_count=2)]
    )
    def test_what_another_has_asked_for_is_not_what_was_waited_for(
        self, other: RescalingInformation
    ) -> None:
        """
        O6: who asked first hears that it did not happen.

        The end of the second operator's move was told the first as the end of its own.
        """
        waiting = RescaleWaiting(None, since=told(64), now_ns=0)
        assert waiting.step([told(32)], is_settled=True, now_ns=1) is None
        with pytest.raises(DidNotHappenError, match="2 nodes and 1 copy of each"):
            waiting.step([other], is_settled=True, now_ns=2)

    def test_who_only_watches_waits_for_whatever_is_wanted(self) -> None:
        """O6: nothing was asked for, so nothing can be missed."""
        waiting = RescaleWaiting(None, since=None, now_ns=0)
        assert waiting.step([told(32)], is_settled=True, now_ns=1) is None
        done = [evolve(told(0), node_count=3)]
        assert waiting.step(done, is_settled=True, now_ns=2) is done

    def test_it_says_what_is_missing(self) -> None:
        """One that gives up waiting is told how much was left."""
        waiting = RescaleWaiting(None, since=None, now_ns=0)
        assert waiting.missing() == "key groups are still being moved"
        waiting.step([told(7)], is_settled=True, now_ns=1)
        assert waiting.missing() == "7 copies of key groups are still to be made"


class TestDrainWaiting:
    """When a node is empty (S1, O6)."""

    def test_it_is_over_when_the_node_has_nothing(self) -> None:
        """What is done is what the node is rid of."""
        seen: list[int] = []
        waiting = DrainWaiting(
            "n-1", lambda _, figures: seen.append(figures.done_count)
        )
        for now_ns, left in enumerate([64, 40]):
            assert (
                waiting.step(
                    drained(left), [told(left)], is_settled=True, now_ns=now_ns
                )
                is None
            )
        assert waiting.missing() == "40 copies of key groups are still on n-1"
        end = drained(0)
        assert waiting.step(end, [told(0)], is_settled=True, now_ns=2) is end
        assert seen == [0, 24, 64]

    def test_a_node_that_is_drained_no_more_is_not_waited_for(self) -> None:
        """It was started anew, or somebody thought better of it."""
        waiting = DrainWaiting("n-1", None)
        with pytest.raises(DidNotHappenError, match="not being drained any more"):
            waiting.step(
                drained(5, is_draining=False), [told(5)], is_settled=True, now_ns=0
            )

    @pytest.mark.proves("S1")
    def test_one_that_takes_part_again_is_not_empty_for_long(self) -> None:
        """
        S1: that it may end is not said of a node that may be given something now.

        It was, if it had nothing at the moment at which somebody undid the draining.
        """
        waiting = DrainWaiting("n-1", None)
        assert waiting.step(drained(5), [told(5)], is_settled=True, now_ns=0) is None
        with pytest.raises(DidNotHappenError, match="take part again"):
            waiting.step(
                drained(0, is_draining=False), [told(0)], is_settled=True, now_ns=1
            )
        forgotten = evolve(drained(0, is_draining=False), is_away=True)
        end = waiting.step(forgotten, [told(0)], is_settled=True, now_ns=2)
        assert end is forgotten

    def test_it_is_stuck_after_a_while_in_which_nothing_changes(self) -> None:
        """S1: five seconds; another leader, node or assignment is a change."""
        waiting = DrainWaiting("n-1", None)

        def step(
            seconds: float,
            *,
            version: int = 3,
            away_ids: Sequence[str] = (),
            is_settled: bool = True,
        ) -> None:
            assert (
                waiting.step(
                    drained(64),
                    [evolve(told(0), assignment_version=version)],
                    away_ids=away_ids,
                    is_settled=is_settled,
                    now_ns=round(seconds * NS_PER_SECOND),
                )
                is None
            )

        step(1)
        step(5.9)
        step(5.95, is_settled=False)
        step(6)
        step(10.9)
        step(10.95, version=4)
        step(15.9, version=4)
        step(15.95, version=4, away_ids=["n-2"])  # it may be expected back
        step(20.9, version=4, away_ids=["n-2"])
        with pytest.raises(DidNotHappenError, match="no other node can take the 64"):
            step(21, version=4, away_ids=["n-2"])


@final
class Drain:
    """
    Somebody who waits until a node of a real control plane is empty.

    Args:
        plane: What there is.
        node_id: The node.
    """

    def __init__(self, plane: Plane, node_id: str) -> None:
        self._plane = plane
        self._node_id = node_id
        self._waiting = DrainWaiting(node_id, None)
        plane.ask(
            DrainNode(request_id=6, session=SESSION, node_id=node_id, is_undone=False)
        )

    def told(self) -> RescalingInformation:
        """Return what the proxy says of the job."""
        request = ListRescalings(request_id=8, session=SESSION, job_id=None)
        listed = self._plane.core.rescalings(request, now_ns=self._plane.now_ns)
        (one,) = listed.rescalings
        return rescaling_information(one)

    def step(self, seconds: float = 0.0) -> DrainInformation | None:
        """Ask once, as `wait_until_drained` does, after so long."""
        self._plane.now_ns += round(seconds * NS_PER_SECOND)
        now_ns = self._plane.now_ns
        summaries = self._plane.view.node_summaries(now_ns=now_ns)
        nodes = {node.node_id: node for node in summaries}
        request = ListRescalings(request_id=8, session=SESSION, job_id=None)
        return self._waiting.step(
            drain_information(self._node_id, nodes.get(self._node_id)),
            [self.told()],
            away_ids={one for one, node in nodes.items() if node.address is None},
            is_settled=self._plane.core.rescalings(request, now_ns=now_ns).is_settled,
            now_ns=now_ns,
        )


def two_nodes(*, replica_count: int = 1, joining_count_max: int = 64) -> Plane:
    """Return nodes ``a`` and ``b``, and a job of four key groups."""
    plane = Plane()
    plane.core.limit(
        ControlLimits(
            replica_count=replica_count, joining_key_groups_max=joining_count_max
        )
    )
    plane.ask(commit(plane.start_job(), 0))
    return plane


class TestDrainThatCannotEnd:
    """What the proxy really says while a node cannot be emptied (S1, O6)."""

    @pytest.mark.proves("O6")
    def test_one_that_is_alone(self) -> None:
        """O6: nothing is planned at all."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a"))
        plane.ask(commit(plane.bind(plane.draw()), 0))
        drain = Drain(plane, "a")
        assert drain.step() is None
        assert drain.told().is_done
        assert drain.step(4.9) is None
        with pytest.raises(DidNotHappenError, match="no other node can take the 4 cop"):
            drain.step(0.1)

    @pytest.mark.proves("O6")
    def test_the_other_one_is_away(self) -> None:
        """O6: copies are planned, and none can be made before it is back."""
        plane = two_nodes()
        plane.lose(LINK_B)
        drain = Drain(plane, "a")
        assert drain.step() is None
        (moves,) = drain.told().moves
        assert (moves.node_id, moves.copying_count, moves.waiting_count) == ("b", 0, 2)
        assert drain.step(4.9) is None
        with pytest.raises(DidNotHappenError, match="no other node can take the 2 cop"):
            drain.step(0.1)

    @pytest.mark.proves("W7", "O6")
    def test_a_node_that_is_away_keeps_what_only_it_has(self) -> None:
        """W7: it is given up, and what no other has is unavailable."""
        plane = two_nodes()
        plane.lose(LINK_B)
        drain = Drain(plane, "b")
        assert drain.step() is None
        (moves,) = drain.told().moves
        assert (moves.node_id, moves.copying_count, moves.waiting_count) == ("a", 0, 2)
        assert drain.step(4.9) is None
        with pytest.raises(DidNotHappenError, match="only copies of 2 key groups"):
            drain.step(0.1)

    @pytest.mark.proves("W7", "O6")
    def test_one_that_goes_away_while_it_is_copied(self) -> None:
        """W7: copies that were begun are still counted, and are made from no node."""
        plane = two_nodes()
        drain = Drain(plane, "b")
        assert drain.step() is None
        assert drain.step(6) is None  # slow, or throttled
        plane.hear(LINK_A, heartbeat("a", 1))
        plane.lose(LINK_B)
        (moves,) = drain.told().moves
        assert (moves.copying_count, moves.source_ids) == (2, ("b",))
        assert drain.step() is None
        with pytest.raises(DidNotHappenError, match="only copies of 2 key groups"):
            drain.step(5)

    @pytest.mark.proves("O6")
    def test_what_is_slow_or_waits_for_its_turn_is_not_stuck(self) -> None:
        """O6: one key group after the other, each in a minute."""
        plane = two_nodes(joining_count_max=1)
        drain = Drain(plane, "b")
        for left in (2, 1):
            told = drain.told()
            assert [
                (moves.copying_count, moves.waiting_count) for moves in told.moves
            ] == [(1, left - 1)]
            for _ in range(10):
                plane.hear(LINK_A, heartbeat("a", 1))
                plane.hear(LINK_B, heartbeat("b", 1))
                assert drain.step(6) is None
            plane.hear(
                LINK_A,
                KeyGroupsCopied(
                    registration_id="process-a",
                    job_id=APP,
                    assignment_version=told.assignment_version,
                    key_groups=(4 - left,),
                    row_count=1,
                    size_bytes=1,
                ),
            )
        assert drain.told().is_done
        assert drain.told().copy_counts == {"a": 4}

    @pytest.mark.proves("S4", "O6")
    def test_copies_that_a_silent_node_may_have_are_not_stuck(self) -> None:
        """S4: they are given up when it is heard, or kept when it is gone."""
        plane = two_nodes(replica_count=2)
        plane.now_ns = TIMEOUT_NS // 2
        plane.hear(LINK_B, heartbeat("b", 1))
        drain = Drain(plane, "b")
        assert drain.step() is None
        assert (drain.told().left_count, drain.told().surplus_count) == (0, 4)
        assert drain.step(6) is None
        plane.hear(LINK_A, heartbeat("a", 2))
        assert drain.told().copy_counts == {"a": 4}

    @pytest.mark.proves("S2", "O6")
    def test_a_new_leader_has_to_look_first(self) -> None:
        """S2: it waits for the nodes that it knows, however long that takes."""
        plane = two_nodes()
        plane.lose(LINK_B)
        drain = Drain(plane, "a")
        assert drain.step() is None
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", positions={APP: 1}))
        for _ in range(3):
            assert drain.step(3) is None
        plane.now_ns += TIMEOUT_NS
        plane.hear(LINK_A, heartbeat("a", 1))
        assert drain.step() is None
        with pytest.raises(DidNotHappenError, match="no other node"):
            drain.step(5)
