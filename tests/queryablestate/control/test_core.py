"""The control plane as one: its turn-taking, its questions, its successors."""

from __future__ import annotations

import pytest

from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    UnreachableError,
)
from queryablestate.control import write_queue
from queryablestate.control.effects import (
    AnswerWriter,
    RefuseWriter,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.wire.clients import NodeSummary, StateDescription
from queryablestate.wire.node_messages import NodeRefused
from queryablestate.wire.operation_messages import ListRescalings
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    LINK_A,
    LINK_B,
    LIST,
    OPERATOR,
    SECOND,
    TIMEOUT_NS,
    VALUE,
    WALL_US,
    Plane,
    applied,
    bind,
    commit,
    draw,
    drop,
    heartbeat,
    load,
    node_register,
    stage,
)


def asked(link: LinkId, request: object) -> WriterAsked:
    """Return that somebody asked."""
    return WriterAsked(link=link, request=request, wall_clock_us=WALL_US)  # type: ignore[arg-type]  # requests of writers only


class TestTurns:
    """One write at a time."""

    def test_changes_wait_for_their_turn(self) -> None:
        """What comes second is checked against what the first has made true."""
        plane = Plane()
        plane.start_nodes()
        (first,) = plane.step(asked(DRIVER, draw()))
        assert isinstance(first, WriteStore)
        assert plane.step(asked(DRIVER, bind(1))) == ()
        *_, answer, second = plane.step(StoreWritten())
        assert isinstance(answer, AnswerWriter)
        assert isinstance(second, WriteStore)
        assert plane.step(asked(OPERATOR, drop())) == ()
        *_, answer, third = plane.step(StoreWritten())
        assert isinstance(answer, AnswerWriter)
        assert isinstance(third, WriteStore)
        *_, answer = plane.step(StoreWritten())
        assert isinstance(answer, AnswerWriter)

    def test_a_failed_write_refuses_who_asked_and_goes_on(self) -> None:
        """What did not happen can be tried again; the next has its turn."""
        plane = Plane()
        plane.start_nodes()
        plane.step(asked(DRIVER, draw()))
        plane.step(asked(OPERATOR, draw(request_id=5)))
        failed = StoreFailed(error=UnreachableError("x", 1.0), is_certain=True)
        refused, write = plane.step(failed)
        assert isinstance(refused, RefuseWriter)
        assert (refused.link, refused.request_id) == (DRIVER, 1)
        assert isinstance(refused.error, DidNotHappenError)
        assert isinstance(write, WriteStore)

    def test_a_write_in_doubt_ends_the_core(self) -> None:
        """Everybody who waits is told to ask again, and then nothing follows."""
        plane = Plane()
        epoch = plane.start_job()
        plane.ask(commit(epoch, 0, stage(1, a=1)))
        plane.step(asked(DRIVER, draw(job_id="other", request_id=6)))
        plane.step(asked(OPERATOR, drop()))
        plane.step(NodeSpoke(link=LinkId(9), message=node_register("c")))
        error = MayHaveHappenedError("no answer")
        effects = plane.step(StoreFailed(error=error, is_certain=False))
        refused = [e for e in effects if isinstance(e, RefuseWriter)]
        assert [(e.link, e.request_id) for e in refused] == [
            (DRIVER, 6),
            (OPERATOR, 4),
            (DRIVER, 3),
        ]
        assert all(isinstance(e.error, MayHaveHappenedError) for e in refused)
        (told,) = [e for e in effects if isinstance(e, SendToNode)]
        assert told.link == LinkId(9)
        assert isinstance(told.message, NodeRefused)
        assert effects[4:] == (StartOver(reason=error),)
        with pytest.raises(AssertionError):
            plane.step(TimePassed())

    def test_what_waits_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a store that takes no writes memory does not run out."""
        monkeypatch.setattr(write_queue, "_COUNT_MAX", 1)
        plane = Plane()
        plane.start_nodes()
        plane.step(asked(DRIVER, draw()))
        assert plane.step(asked(DRIVER, draw())) == ()
        (refused,) = plane.step(asked(OPERATOR, draw()))
        assert isinstance(refused, RefuseWriter)
        assert isinstance(refused.error, DidNotHappenError)

    def test_the_same_history_has_the_same_result(self) -> None:
        """Two cores that are told the same do the same."""
        planes = [Plane(), Plane()]
        for plane in planes:
            epoch = plane.start_job()
            plane.decide(commit(epoch, 0, stage(1), stage(2)))
            plane.ask(drop())
        assert planes[0].store == planes[1].store


class TestQuestions:
    """What the proxy looks up."""

    def test_states_are_listed_and_described(self) -> None:
        """Sorted; with the route to ask by, and how old the last batch is."""
        plane = Plane()
        epoch = plane.start_job(states={"log": LIST, "aircraft": VALUE})
        described = plane.view.describe(APP, "log", wall_clock_us=WALL_US)
        expected = StateDescription(
            job_id=APP,
            state_name="log",
            state_number=1,
            schema=LIST,
            max_parallelism=4,
            generation=1,
            batch_id=None,
            query_id="query",
            age_ms=None,
            assignment_version=1,
            node_ids=("a", "b"),
            owners=(0, 0, 1, 1),
        )
        assert described == expected
        plane.decide(commit(epoch, 3))
        described = plane.view.describe(APP, "log", wall_clock_us=WALL_US + 5_999)
        assert described is not None
        assert (described.batch_id, described.age_ms) == (3, 5)
        described = plane.view.describe(APP, "log", wall_clock_us=WALL_US - 1)
        assert described is not None
        assert described.age_ms == 0
        assert plane.view.job_ids() == [APP]
        assert plane.view.state_names(APP) == ["aircraft", "log"]

    @pytest.mark.proves("F1")
    def test_how_new_states_are(self) -> None:
        """F1: of each state, or of as many as are asked for."""
        plane = Plane()
        epoch = plane.start_job(states={"log": LIST, "aircraft": VALUE})
        before = plane.view.freshness(9, wall_clock_us=WALL_US)
        assert {one.state_name for one in before} == {"log", "aircraft"}
        assert {(one.batch_id, one.age_seconds) for one in before} == {(None, None)}
        plane.decide(commit(epoch, 3))
        found = plane.view.freshness(9, wall_clock_us=WALL_US + 2_500_000)
        for one in found:
            described = plane.view.describe(
                APP, one.state_name, wall_clock_us=WALL_US + 2_500_000
            )
            assert described is not None
            assert (one.job_id, one.generation) == (APP, described.generation)
            assert one.batch_id == described.batch_id
        ages = {one.batch_id: one.age_seconds for one in found}
        assert ages[3] == 2.5
        assert len(plane.view.freshness(1, wall_clock_us=WALL_US)) == 1
        assert plane.view.freshness(0, wall_clock_us=WALL_US) == []
        early = plane.view.freshness(9, wall_clock_us=WALL_US - 1)
        assert 0 in {one.age_seconds for one in early}

    def test_what_is_not_there_is_not_described(self) -> None:
        """Neither an unknown job nor an unknown state is an error here."""
        plane = Plane()
        plane.start_nodes()
        plane.draw()
        assert plane.view.job_ids() == []
        assert plane.view.state_names("other") == []
        assert plane.view.describe(APP, "log", wall_clock_us=WALL_US) is None
        assert plane.view.describe("other", "log", wall_clock_us=WALL_US) is None

    def test_nodes_are_summed_up(self) -> None:
        """Present and absent ones, and how far each is behind."""
        plane = Plane()
        epoch = plane.start_job()
        plane.ask(commit(epoch, 0))
        plane.now_ns = SECOND
        plane.hear(LINK_A, heartbeat("a", 1))
        plane.hear(LINK_A, applied("a", 1))
        plane.now_ns = 3 * SECOND
        plane.step(LinksClosed(links=(LINK_B,)))
        assert plane.view.node_summaries(now_ns=plane.now_ns) == [
            NodeSummary(
                node_id="a",
                address="tcp://a:1",
                last_heard_ms=2_000,
                key_group_counts={APP: 2},
                behind_counts={APP: 0},
                copy_counts={APP: 2},
            ),
            NodeSummary(
                node_id="b",
                address=None,
                last_heard_ms=None,
                key_group_counts={APP: 2},
                behind_counts={APP: 1},
                copy_counts={APP: 2},
            ),
        ]

    def test_who_is_behind_a_connection(self) -> None:
        """A node that is registered over it, or none."""
        plane = Plane()
        plane.start_nodes()
        assert plane.view.node_at(LINK_B) == "b"
        assert plane.view.node_at(DRIVER) is None

    @pytest.mark.proves("S2")
    def test_none_is_away_before_all_known_nodes_are_there(self) -> None:
        """S2: or when one session timeout has passed."""
        plane = Plane()
        assert plane.core.takes_for_away("a", 0)
        plane.start_nodes()
        plane.next_leader()
        assert not plane.core.takes_for_away("a", TIMEOUT_NS - 1)
        assert plane.core.takes_for_away("a", TIMEOUT_NS)
        plane.start_nodes()
        assert plane.core.takes_for_away("a", 0)

    @pytest.mark.proves("S2")
    def test_a_node_that_has_come_and_gone_may_come_again(self) -> None:
        """S2: nodes change their connections when they hear of another leader."""
        plane = Plane()
        plane.start_nodes()
        plane.next_leader()
        plane.start_nodes()
        plane.settle(LinksClosed(links=(LINK_B,)))
        assert not plane.core.takes_for_away("a", TIMEOUT_NS - 1)
        assert plane.core.takes_for_away("a", TIMEOUT_NS)
        # Other copies are promoted at once all the same (S4).
        request = ListRescalings(request_id=1, session=b"", job_id=None)
        assert plane.core.rescalings(request, now_ns=0).is_settled

    @pytest.mark.proves("Q4")
    def test_a_node_that_was_not_known_is_away_when_it_has_gone(self) -> None:
        """Q4: it had no other leader; one that asks for it is told so at once."""
        plane = Plane()
        plane.start_nodes()
        plane.settle(LinksClosed(links=(LINK_B,)))
        assert plane.core.takes_for_away("a", 0)

    @pytest.mark.proves("S4")
    def test_a_node_that_asks_to_be_taken_in_is_coming(self) -> None:
        """S4: whatever is written before it; until it is refused, or has gone again."""
        plane = Plane()
        plane.start_nodes()
        plane.settle(LinksClosed(links=(LINK_B,)))
        (write,) = plane.step(asked(DRIVER, draw()))
        assert isinstance(write, WriteStore)
        for end in (LinksClosed(links=(LinkId(9),)), StoreWritten()):
            message = node_register("b")
            assert plane.step(NodeSpoke(link=LinkId(9), message=message)) == ()
            assert not plane.core.takes_for_away("b", 0)
            assert plane.core.takes_for_away("a", 0)
            plane.step(end)
            assert plane.core.takes_for_away("b", 0)
        assert plane.view.node_at(LinkId(9)) == "b"

    def test_without_nodes_and_commits_there_is_no_deadline(self) -> None:
        """A core that waits for nothing need not be woken."""
        assert Plane().core.next_deadline_ns() is None


class TestNextLeader:
    """What the next leader makes of the store."""

    def test_it_goes_on_where_this_one_was(self) -> None:
        """Routes, decisions and owners are what was written, and nothing else."""
        plane = Plane()
        epoch = plane.start_job()
        plane.decide(commit(epoch, 0))
        before = plane.view.describe(APP, "aircraft", wall_clock_us=WALL_US)
        plane.next_leader()
        assert plane.view.describe(APP, "aircraft", wall_clock_us=WALL_US) == before
        assert plane.core.locations[1].links == (None, None)

    def test_a_write_that_was_not_heard_of_is_there(self) -> None:
        """Whether a write in doubt happened, the store knows."""
        plane = Plane()
        epoch = plane.start_job()
        (write,) = plane.step(asked(DRIVER, commit(epoch, 0)))
        assert isinstance(write, WriteStore)
        assert load(plane.store).locations[1].batch_id is None
        plane.write(write)
        assert load(plane.store).locations[1].batch_id == 0
