from __future__ import annotations

import uuid

import pytest

from haservices.zookeeper.nodes import Node, NodeStat
from haservices.zookeeper.records import LeaderRecord, encode_record
from haservices.zookeeper.retrieval_core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    LeaderNodeChanged,
    LeaderRead,
    ReadFailed,
    ReadLeader,
    RetrievalCore,
    RetrievalEvent,
    RetrieverJoined,
    SessionRefused,
    Tell,
    TellError,
)
from nameservice import AuthenticationError, DidNotHappenError, RemoteProtocolError
from retrieval import Publication
from retrieval import core as retriever


def component(children_zxid: int) -> NodeStat:
    """Return what ZooKeeper knows of the component's node."""
    return NodeStat(
        version=0, owner_session_id=0, created_zxid=1, children_zxid=children_zxid
    )


def leader(epoch: int, *, confirm_count: int = 1, created: int = 50) -> Node:
    """Return the leader's node."""
    record = LeaderRecord(
        epoch=epoch,
        confirm_count=confirm_count,
        leader_session_id=uuid.UUID(int=epoch),
        address="a:1",
    )
    stat = NodeStat(
        version=0, owner_session_id=7, created_zxid=created, children_zxid=0
    )
    return Node(value=encode_record(record), stat=stat)


def publication(epoch: int, *, confirm_count: int = 1) -> Publication:
    """Return what that node says."""
    return LeaderRecord(
        epoch=epoch,
        confirm_count=confirm_count,
        leader_session_id=uuid.UUID(int=epoch),
        address="a:1",
    ).to_publication()


def restored(news: Publication | None) -> tuple[Tell]:
    """Return what is told when contact is back."""
    return (Tell(event=retriever.ContactRestored(publication=news)),)


def received(news: Publication) -> tuple[Tell]:
    """Return what is told of a change."""
    return (Tell(event=retriever.PublicationReceived(publication=news)),)


SUSPENDED = (Tell(event=retriever.ContactSuspended()),)
LOST = (Tell(event=retriever.ContactLost()),)
ENDED = Publication(epoch=5, confirm_count=1, leader=None)


@pytest.fixture
def core() -> RetrievalCore:
    """Return a core that has contact, and has asked."""
    core = RetrievalCore(leader="/leader")
    assert core.step(LeaderNodeChanged()) == (), "there is nobody to ask"
    assert core.step(ContactRestored()) == (ReadLeader(number=1),)
    return core


def read(number: int, node: Node | None, children_zxid: int = 50) -> LeaderRead:
    """Return the answer to a question."""
    return LeaderRead(number=number, leader=node, component=component(children_zxid))


class TestNews:
    def test_the_first_answer_restores_contact(self, core: RetrievalCore) -> None:
        """R2: not before; who joins later is told the same."""
        assert core.news_for_newcomer is None
        assert core.step(read(1, leader(5))) == restored(publication(5))
        told = retriever.ContactRestored(publication=publication(5))
        assert core.news_for_newcomer == told

    def test_nobody_ever_led(self, core: RetrievalCore) -> None:
        """R6: what is not there reads as a component without a leader."""
        answer = LeaderRead(number=1, leader=None, component=None)
        assert core.step(answer) == restored(None)

    def test_each_change_is_read(self, core: RetrievalCore) -> None:
        """The watch is armed again with each question."""
        core.step(read(1, leader(5)))
        assert core.step(LeaderNodeChanged()) == (ReadLeader(number=2),)
        assert core.step(read(2, leader(5, confirm_count=2))) == received(
            publication(5, confirm_count=2)
        )

    def test_an_answer_may_come_while_the_next_is_asked_for(
        self, core: RetrievalCore
    ) -> None:
        """A leader that changes all the time is not kept from retrievers."""
        core.step(LeaderNodeChanged())
        assert core.step(read(1, leader(5))) == restored(publication(5))

    def test_what_is_older_does_not_replace_what_is_newer(
        self, core: RetrievalCore
    ) -> None:
        """R3: another server may lag behind."""
        core.step(read(1, leader(6)))
        core.step(ContactSuspended())
        core.step(ContactRestored())
        assert core.step(read(2, leader(5))) == restored(publication(6))


class TestAbsence:
    def test_a_deleted_node_ends_the_leadership(self, core: RetrievalCore) -> None:
        """R2: the children have changed since it was created."""
        core.step(read(1, leader(5)))
        core.step(LeaderNodeChanged())
        assert core.step(read(2, None, children_zxid=51)) == received(ENDED)

    def test_a_node_that_does_not_exist_yet_says_nothing(
        self, core: RetrievalCore
    ) -> None:
        """R3: a follower that lags behind; what it says would outrank the leader."""
        core.step(read(1, leader(5)))
        core.step(ContactLost())
        core.step(ContactRestored())
        assert core.step(read(2, None, children_zxid=50)) == restored(publication(5))
        core.step(LeaderNodeChanged())
        assert core.step(read(3, None, children_zxid=49)) == ()

    def test_a_component_that_was_cleaned_up_has_no_leader(
        self, core: RetrievalCore
    ) -> None:
        """The node above is gone, too."""
        core.step(read(1, leader(5)))
        core.step(LeaderNodeChanged())
        gone = LeaderRead(number=2, leader=None, component=None)
        assert core.step(gone) == received(ENDED)
        core.step(LeaderNodeChanged())
        again = LeaderRead(number=3, leader=None, component=None)
        assert core.step(again) == (), "it is said once"


class TestContact:
    @pytest.mark.parametrize(
        ("event", "told"), [(ContactSuspended(), SUSPENDED), (ContactLost(), LOST)]
    )
    def test_it_is_passed_on(
        self, core: RetrievalCore, event: RetrievalEvent, told: tuple[Tell]
    ) -> None:
        """R4: who joins meanwhile waits."""
        core.step(read(1, leader(5)))
        assert core.step(event) == told
        assert core.news_for_newcomer is None
        assert core.step(LeaderNodeChanged()) == ()

    def test_an_answer_after_contact_was_suspended_is_dropped(
        self, core: RetrievalCore
    ) -> None:
        """R4: it does not restore what is suspended, nor speak for the next time."""
        assert core.step(ContactSuspended()) == SUSPENDED
        assert core.step(read(1, leader(5))) == ()
        assert core.step(ContactRestored()) == (ReadLeader(number=2),)
        assert core.step(read(1, leader(5))) == ()
        error = RemoteProtocolError("malformed-node", "x")
        assert core.step(ReadFailed(number=1, error=error)) == ()
        assert core.step(read(2, leader(6))) == restored(publication(6))


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            AuthenticationError("zookeeper://a", "no"),
            RemoteProtocolError("malformed-node", "x"),
        ],
    )
    def test_what_will_not_pass_is_told(
        self, core: RetrievalCore, error: Exception
    ) -> None:
        """L4: retrievers hear why they learn nothing."""
        assert core.step(ReadFailed(number=1, error=error)) == (TellError(error=error),)
        assert core.step(SessionRefused(error=error)) == (TellError(error=error),)

    def test_who_joins_after_a_refusal_is_told_it(self, core: RetrievalCore) -> None:
        """L4: nothing else will come."""
        assert core.refusal is None
        error = AuthenticationError("zookeeper://a", "no")
        core.step(SessionRefused(error=error))
        assert core.refusal is error

    def test_what_could_not_be_read_is_read_again_for_who_joins(
        self, core: RetrievalCore
    ) -> None:
        """L4: why is told to all again; the access list may be another by now."""
        assert core.step(RetrieverJoined()) == (), "the first answer is to come"
        error = AuthenticationError("zookeeper://a", "no")
        core.step(ReadFailed(number=1, error=error))
        assert core.step(RetrieverJoined()) == (ReadLeader(number=2),)
        assert core.step(RetrieverJoined()) == (), "they share the answer"
        node = Node(value=b"rubbish", stat=component(0))
        core.step(read(2, node))
        assert core.step(RetrieverJoined()) == (ReadLeader(number=3),)
        assert core.step(read(3, leader(5))) == restored(publication(5))
        assert core.step(RetrieverJoined()) == ()

    def test_a_lost_connection_is_no_error(self, core: RetrievalCore) -> None:
        """It is read again when contact is restored."""
        error = DidNotHappenError("closed")
        assert core.step(ReadFailed(number=1, error=error)) == ()

    def test_a_node_that_is_not_ours_is_told(self, core: RetrievalCore) -> None:
        """And what was known stays known."""
        core.step(read(1, leader(5)))
        node = Node(value=b"rubbish", stat=component(0))
        (effect,) = core.step(read(1, node))
        assert isinstance(effect, TellError)
        assert "/leader" in str(effect.error)
        told = retriever.ContactRestored(publication=publication(5))
        assert core.news_for_newcomer == told
