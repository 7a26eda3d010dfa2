from __future__ import annotations

import uuid

import msgspec
import pytest

from election.contender import LeaderSession
from election.holder import Affirmed, DeliverGrant, DeliverRevoke, HolderCore
from haservices.zookeeper.nodes import (
    CheckNode,
    DeleteNode,
    Node,
    NodeMissingError,
    NodeStat,
    NodeVersionError,
    TransactionFailedError,
)
from haservices.zookeeper.paths import ZooKeeperPaths
from haservices.zookeeper.queue_core import QueueCore
from haservices.zookeeper.queue_effects import (
    AbandonHolding,
    AcceptRequest,
    BeginHolding,
    CreateContender,
    Deliver,
    EndHolding,
    ExistsNode,
    Finish,
    LetHoldingAsk,
    ListContenders,
    LogFailure,
    MakeParents,
    NoteLeft,
    NoteRegistered,
    QueueEffect,
    ReadNode,
    ReadPublication,
    RefuseRequest,
    RemoveNode,
    TellError,
    Transact,
    UnwatchOwnNode,
    UnwatchPredecessor,
    WatchOwnNode,
    WatchPredecessor,
)
from haservices.zookeeper.queue_events import (
    CommitWanted,
    ConfirmWanted,
    ContactRestored,
    ContactSuspended,
    ContenderClosed,
    ContenderCreated,
    EntryEnded,
    HolderTold,
    OwnNodeChanged,
    OwnNodeWatched,
    PublicationSent,
    QuestionAnswered,
    QuestionFailed,
    QueueEvent,
    RevocationDelivered,
    SessionOver,
    SessionRefused,
    Stumbled,
    TimePassed,
    TurnCame,
    VersionForgotten,
)
from haservices.zookeeper.records import (
    ContenderRecord,
    LeaderRecord,
    encode_record,
)
from nameservice import (
    AuthenticationError,
    DidNotHappenError,
    MayHaveHappenedError,
)


PATHS = ZooKeeperPaths("", "test").component("job")
CONTENDER = "a" * 32
OTHER = "b" * 32
NAME = f"{CONTENDER}-0000000007"
NODE = PATHS.contender(NAME)
BEFORE = f"{OTHER}-0000000006"
SESSION = 11
TIMEOUT_NS = 10_000_000_000
LEASE_NS = 3_000_000_000
EPOCH = 70
ID = uuid.UUID(int=5)
LEADERSHIP = LeaderSession(leader_session_id=ID, epoch=EPOCH)
MISSING = NodeMissingError("gone")


def stat_of(
    *, version: int = 0, owner: int = SESSION, created: int = EPOCH
) -> NodeStat:
    """Return what ZooKeeper knows of our node."""
    return NodeStat(
        version=version, owner_session_id=owner, created_zxid=created, children_zxid=0
    )


RECORD = ContenderRecord(leader_session_id=ID, client="me", session_timeout_ms=10_000)


def published(*, epoch: int = EPOCH, owner: int = SESSION) -> Node:
    """Return the leader's node as an entry has published it."""
    record = LeaderRecord(
        epoch=epoch, confirm_count=1, leader_session_id=ID, address="a:1"
    )
    return Node(value=encode_record(record), stat=stat_of(owner=owner, created=90))


class Contender:
    """A core, and the time."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.holder = HolderCore(clears_on_suspended=False)
        self.core = QueueCore(
            paths=PATHS,
            holder=self.holder,
            contender_id=CONTENDER,
            client="me",
            lease_ns=LEASE_NS,
        )
        self.step(ContactRestored(session_id=SESSION, session_timeout_ns=TIMEOUT_NS))

    def step(self, event: QueueEvent) -> tuple[QueueEffect, ...]:
        """Tell the core."""
        return self.core.step(event, now_ns=self.now_ns)

    def turn(self, *, is_connected: bool = True) -> tuple[QueueEffect, ...]:
        """Tell it that nothing is under way."""
        return self.step(TurnCame(is_connected=is_connected, leader_session_id=ID))

    def answer(
        self,
        *,
        path: str = "",
        stat: NodeStat | None = None,
        names: tuple[str, ...] = (),
        node: Node | None = None,
    ) -> tuple[QueueEffect, ...]:
        """Answer what is under way."""
        return self.step(QuestionAnswered(path=path, stat=stat, names=names, node=node))

    def fail(self, error: Exception) -> tuple[QueueEffect, ...]:
        """Make what is under way come to nothing."""
        return self.step(QuestionFailed(error=error))

    def register(self) -> None:
        """Have a node."""
        self.turn()
        self.answer(path=NODE, stat=stat_of())

    def hold(self) -> None:
        """Be the first."""
        self.register()
        self.turn()
        effects = self.answer(names=(NAME,))
        assert isinstance(effects[-1], BeginHolding)

    def lead(self, *, is_published: bool = True) -> None:
        """Be the first, be told so, and have published."""
        self.hold()
        if is_published:
            self.step(PublicationSent())
        affirmed = Affirmed(session=LEADERSHIP, until_ns=self.now_ns + TIMEOUT_NS)
        granted = Deliver(news=DeliverGrant(session=LEADERSHIP))
        assert self.step(HolderTold(event=affirmed)) == (granted,)
        assert self.core.told == LEADERSHIP

    def leave(self) -> tuple[QueueEffect, ...]:
        """End after leading, and have the callback return."""
        self.lead()
        self.step(EntryEnded())
        self.step(RevocationDelivered())
        return self.turn()


LEAVE = (DeleteNode(path=NODE), DeleteNode(path=PATHS.leader))


class TestRegistering:
    def test_one_node_is_created_and_noted_from_the_send(self) -> None:
        """E4: what the creation proves counts from when it was sent."""
        contender = Contender()
        assert contender.turn() == (CreateContender(number=1, record=RECORD),)
        contender.now_ns += 5
        assert contender.answer(path=NODE, stat=stat_of()) == (
            NoteRegistered(path=NODE, epoch=EPOCH, sent_ns=1_000),
        )
        assert contender.turn() == (
            WatchOwnNode(number=1, path=NODE),
            ListContenders(is_synced=False),
        )

    def test_without_contact_nothing_is_asked(self) -> None:
        """What cannot be sent at once waits until contact is restored."""
        assert Contender().turn(is_connected=False) == ()

    def test_parents_that_are_missing_are_made_first(self) -> None:
        """They may have been cleaned up since they were seen."""
        contender = Contender()
        contender.turn()
        assert contender.fail(MISSING) == (MakeParents(),)
        assert contender.answer() == ()
        assert contender.turn() == (CreateContender(number=2, record=RECORD),)

    def test_a_creation_without_an_answer_is_looked_for(self) -> None:
        """E8: a repeated request must make no second entry."""
        contender = Contender()
        contender.turn()
        assert contender.fail(MayHaveHappenedError("lost")) == ()
        assert contender.turn() == (), "it pauses first"
        contender.step(ContactRestored(session_id=SESSION, session_timeout_ns=10))
        assert contender.turn() == (ListContenders(is_synced=True),)
        assert contender.answer(names=(NAME, BEFORE)) == (ExistsNode(path=NODE),)
        assert contender.answer(stat=stat_of()) == ()
        assert contender.turn() == (ReadNode(path=NODE),)

    @pytest.mark.parametrize("stat", [None, stat_of(owner=SESSION - 1)])
    def test_a_node_of_an_earlier_session_is_not_adopted(
        self, stat: NodeStat | None
    ) -> None:
        """E8: it is about to go."""
        contender = Contender()
        contender.turn()
        contender.fail(MayHaveHappenedError("lost"))
        contender.step(ContactRestored(session_id=SESSION, session_timeout_ns=10))
        contender.turn()
        contender.answer(names=(NAME,))
        contender.answer(stat=stat)
        assert isinstance(contender.turn()[0], CreateContender)

    @pytest.mark.parametrize("is_missing", [False, True])
    def test_what_is_not_found_is_created(self, is_missing: bool) -> None:
        """The creation was lost, and perhaps the parents with it."""
        contender = Contender()
        contender.turn()
        contender.fail(MayHaveHappenedError("lost"))
        contender.step(ContactRestored(session_id=SESSION, session_timeout_ns=10))
        contender.turn()
        if is_missing:
            contender.fail(MISSING)
        else:
            contender.answer(names=(BEFORE,))
        assert isinstance(contender.turn()[0], CreateContender)

    def test_what_was_created_in_the_next_session_is_deleted(self) -> None:
        """Asked for in a session that has just ended."""
        contender = Contender()
        contender.turn()
        assert contender.answer(path=NODE, stat=stat_of(owner=12)) == (
            RemoveNode(path=NODE),
        )

    def test_what_was_created_for_an_entry_that_is_over_is_deleted(self) -> None:
        """E8: nothing that is no longer waited for stays."""
        contender = Contender()
        contender.turn()
        assert contender.step(ContenderCreated(number=1, path=NODE)) == ()
        contender.step(SessionOver())
        late = ContenderCreated(number=1, path=NODE)
        assert contender.step(late) == (RemoveNode(path=NODE),)
        contender.turn()
        assert contender.step(late) == (RemoveNode(path=NODE),)

    def test_a_refusal_is_told_and_tried_again_after_a_timeout(self) -> None:
        """L4: an error that will not pass by itself is told once each time."""
        contender = Contender()
        contender.turn()
        error = AuthenticationError("zookeeper://a", "no")
        assert contender.fail(error) == (
            LogFailure(error=error),
            TellError(error=error),
        )
        assert contender.core.next_deadline_ns() == 1_000 + TIMEOUT_NS
        assert contender.turn() == ()
        contender.now_ns = 1_000 + TIMEOUT_NS
        contender.step(TimePassed())
        assert isinstance(contender.turn()[0], CreateContender)

    def test_a_lost_answer_is_usual(self) -> None:
        """The contender is not told, and the pause is a heartbeat's."""
        contender = Contender()
        contender.hold()
        assert contender.step(Stumbled(error=MayHaveHappenedError("lost"))) == ()
        assert contender.core.next_deadline_ns() == 1_000 + TIMEOUT_NS // 10


class TestQueueing:
    def test_the_first_holds(self) -> None:
        """E1: the one that registered first; the order of the list says nothing."""
        contender = Contender()
        contender.register()
        contender.turn()
        (effect,) = contender.answer(names=(f"{OTHER}-0000000008", NAME))
        assert isinstance(effect, BeginHolding)
        assert effect.entry.leadership == LEADERSHIP
        assert contender.turn() == (LetHoldingAsk(version=0),)

    def test_everybody_else_watches_the_one_before(self) -> None:
        """No herd: one end wakes one contender."""
        contender = Contender()
        contender.register()
        contender.turn()
        names = (f"{OTHER}-0000000001", BEFORE, NAME)
        before = PATHS.contender(BEFORE)
        assert contender.answer(names=names) == (WatchPredecessor(path=before),)
        contender.answer(stat=stat_of())
        assert contender.turn() == ()

    def test_one_that_is_gone_before_it_is_watched_is_not_waited_for(self) -> None:
        """Otherwise nothing would ever tell of its end."""
        contender = Contender()
        contender.register()
        contender.turn()
        contender.answer(names=(BEFORE, NAME))
        contender.answer(stat=None)
        assert contender.turn() == (ListContenders(is_synced=False),)
        assert contender.answer(names=(NAME,))[0] == UnwatchPredecessor(
            path=PATHS.contender(BEFORE)
        )

    def test_watches_are_set_again_after_a_break(self) -> None:
        """No watch outlives the connection; the node is read before all else."""
        contender = Contender()
        contender.register()
        contender.turn()
        contender.answer(names=(BEFORE, NAME))
        contender.answer(stat=stat_of())
        contender.step(ContactSuspended())
        contender.step(
            ContactRestored(session_id=SESSION, session_timeout_ns=TIMEOUT_NS)
        )
        assert contender.turn() == (ReadNode(path=NODE),)
        contender.answer(node=Node(value=encode_record(RECORD), stat=stat_of()))
        assert contender.turn() == (
            WatchOwnNode(number=1, path=NODE),
            ListContenders(is_synced=False),
        )

    def test_a_holder_reads_its_node_after_a_break(self) -> None:
        """E8: somebody may have marked it meanwhile."""
        contender = Contender()
        contender.hold()
        contender.step(
            ContactRestored(session_id=SESSION, session_timeout_ns=TIMEOUT_NS)
        )
        assert contender.turn() == (ReadNode(path=NODE),)

    def test_a_node_that_is_not_listed_is_over(self) -> None:
        """Somebody has deleted it: the contender queues again, at the end."""
        contender = Contender()
        contender.register()
        contender.turn()
        contender.answer(names=(BEFORE,))
        assert contender.turn() == (Transact(operations=LEAVE[:1]),)
        gone = TransactionFailedError(0, MISSING)
        assert contender.fail(gone) == (
            NoteLeft(path=NODE, epoch=EPOCH),
            UnwatchOwnNode(path=NODE),
        )
        assert contender.turn() == (CreateContender(number=2, record=RECORD),)

    def test_what_is_heard_of_an_earlier_entry_is_dropped(self) -> None:
        """E8: the answer to its watch says nothing of the present one."""
        contender = Contender()
        contender.register()
        contender.step(SessionOver())
        contender.register()
        contender.step(OwnNodeWatched(number=1, stat=None))
        assert isinstance(contender.turn()[-1], ListContenders)
        contender.step(OwnNodeWatched(number=2, stat=None))
        contender.answer(names=(NAME,))
        assert contender.turn() == (Transact(operations=LEAVE[:1]),)

    def test_another_version_is_looked_at(self) -> None:
        """Somebody has set our node."""
        contender = Contender()
        contender.hold()
        contender.step(OwnNodeWatched(number=1, stat=stat_of(version=1)))
        assert contender.turn() == (ReadNode(path=NODE),)

    @pytest.mark.proves("N6")
    def test_a_node_that_has_changed_is_watched_again(self) -> None:
        """ZooKeeper tells once: the next change is told to a new watch only."""
        contender = Contender()
        contender.hold()
        watch = WatchOwnNode(number=1, path=NODE)
        assert watch not in contender.turn()
        contender.step(OwnNodeChanged())
        assert watch in contender.turn()


class TestEnd:
    @pytest.mark.parametrize("value", [None, b"rubbish"])
    def test_a_mark_ends_the_leadership(self, value: bytes | None) -> None:
        """N6: an operator's mark, and what somebody has overwritten."""
        contender = Contender()
        contender.lead()
        contender.step(VersionForgotten())
        contender.turn()
        marked = encode_record(msgspec.structs.replace(RECORD, is_ended=True))
        node = Node(value=marked if value is None else value, stat=stat_of(version=3))
        assert contender.answer(node=node) == (
            EndHolding(),
            Deliver(news=DeliverRevoke(session=LEADERSHIP)),
        )
        assert contender.core.told is None
        assert contender.turn() == (), "until the callback has returned"

    def test_the_entry_leaves_when_the_callback_has_returned(self) -> None:
        """E4: and takes along what it has published."""
        assert Contender().leave() == (Transact(operations=LEAVE),)

    def test_a_callback_keeps_the_others_waiting_for_a_lease(self) -> None:
        """E5: and no longer, though it has not returned."""
        contender = Contender()
        contender.lead()
        contender.step(EntryEnded())
        assert contender.core.next_deadline_ns() == 1_000 + LEASE_NS
        contender.now_ns = 1_000 + LEASE_NS - 1
        contender.step(TimePassed())
        assert contender.turn() == ()
        contender.now_ns += 1
        contender.step(TimePassed())
        assert contender.turn() == (Transact(operations=LEAVE),)
        assert contender.core.next_deadline_ns() is None

    def test_a_grant_that_was_never_told_is_left_at_once(self) -> None:
        """There is no callback to wait for."""
        contender = Contender()
        contender.hold()
        assert contender.step(EntryEnded()) == (EndHolding(),)
        assert contender.turn() == (Transact(operations=LEAVE[:1]),)

    def test_a_publication_that_is_gone_is_not_deleted_again(self) -> None:
        """An operator deletes it, too."""
        contender = Contender()
        contender.leave()
        contender.fail(TransactionFailedError(1, MISSING))
        assert contender.turn() == (Transact(operations=LEAVE[:1]),)

    def test_what_is_published_goes_though_the_node_is_gone(self) -> None:
        """R2: but only as long as no other has published since."""
        contender = Contender()
        contender.leave()
        gone = TransactionFailedError(0, MISSING)
        assert contender.fail(gone) == (ReadPublication(),)
        component = stat_of(version=4)
        assert contender.answer(node=published(), stat=component) == (
            Transact(
                operations=(
                    CheckNode(path=PATHS.node, version=4),
                    DeleteNode(path=PATHS.leader),
                )
            ),
        )
        effects = contender.fail(TransactionFailedError(0, NodeVersionError("node")))
        assert effects[0] == NoteLeft(path=NODE, epoch=EPOCH)

    @pytest.mark.parametrize(
        "node",
        [
            published(epoch=EPOCH + 1),
            published(owner=SESSION + 1),
            Node(value=b"rubbish", stat=stat_of()),
        ],
    )
    def test_what_another_has_published_stays(self, node: Node) -> None:
        """R2: the successor may be quicker."""
        contender = Contender()
        contender.leave()
        contender.fail(TransactionFailedError(0, MISSING))
        effects = contender.answer(node=node, stat=stat_of())
        assert effects[0] == NoteLeft(path=NODE, epoch=EPOCH)

    def test_an_error_while_leaving_is_tried_again(self) -> None:
        """What is left behind would block the others."""
        contender = Contender()
        contender.leave()
        error = DidNotHappenError("busy")
        assert contender.fail(error) == (
            LogFailure(error=error),
            TellError(error=error),
        )
        contender.now_ns += TIMEOUT_NS
        contender.step(TimePassed())
        assert contender.turn() == (Transact(operations=LEAVE),)

    def test_the_end_of_the_session_is_the_end_of_the_entry(self) -> None:
        """Its node was ephemeral; no answer will come."""
        contender = Contender()
        contender.lead()
        assert contender.step(SessionOver()) == (
            AbandonHolding(),
            EndHolding(),
            Deliver(news=DeliverRevoke(session=LEADERSHIP)),
            UnwatchOwnNode(path=NODE),
        )
        assert isinstance(contender.turn()[0], CreateContender)

    def test_a_refusal_of_the_session_is_told(self) -> None:
        """L4: the contender hears why."""
        contender = Contender()
        error = AuthenticationError("zookeeper://a", "no")
        assert contender.step(SessionRefused(error=error)) == (TellError(error=error),)


class TestClosing:
    def test_a_closed_contender_leaves_and_is_told_nothing(self) -> None:
        """E6: without waiting for a callback; errors are only written down."""
        contender = Contender()
        contender.lead()
        assert contender.step(ContenderClosed()) == (EndHolding(),)
        assert contender.step(ContenderClosed()) == ()
        assert contender.core.told is None
        assert contender.turn() == (Transact(operations=LEAVE),)
        error = DidNotHappenError("busy")
        assert contender.fail(error) == (LogFailure(error=error),)
        contender.now_ns += TIMEOUT_NS
        contender.step(TimePassed())
        contender.turn()
        contender.answer()
        assert contender.turn(is_connected=False) == (Finish(),)

    def test_a_node_whose_creation_was_not_answered_is_looked_for(self) -> None:
        """E6: it would queue for ever otherwise."""
        contender = Contender()
        contender.turn()
        contender.step(ContenderClosed())
        contender.fail(MayHaveHappenedError("lost"))
        contender.step(ContactRestored(session_id=SESSION, session_timeout_ns=10))
        assert contender.turn() == (ListContenders(is_synced=True),)

    def test_who_is_first_when_closed_does_not_hold(self) -> None:
        """E6: the answer came too late."""
        contender = Contender()
        contender.register()
        contender.turn()
        contender.step(ContenderClosed())
        assert contender.answer(names=(NAME,)) == ()
        assert contender.turn() == (Transact(operations=LEAVE[:1]),)


class TestRequests:
    def test_what_the_present_leader_wants_is_accepted(self) -> None:
        """A confirm is counted."""
        contender = Contender()
        contender.lead()
        confirm = ConfirmWanted(leader_session_id=ID, address="a:1")
        assert contender.step(confirm) == (AcceptRequest(confirm_count=1),)
        assert contender.step(confirm) == (AcceptRequest(confirm_count=2),)
        assert contender.step(CommitWanted(session=LEADERSHIP)) == (AcceptRequest(),)

    def test_what_another_wants_is_refused(self) -> None:
        """L2: also what is wanted in the name of an earlier leadership."""
        contender = Contender()
        other = LeaderSession(leader_session_id=uuid.UUID(int=6), epoch=EPOCH - 1)
        assert contender.step(CommitWanted(session=other)) == (
            RefuseRequest(epoch=None),
        )
        contender.lead()
        assert contender.step(CommitWanted(session=other)) == (
            RefuseRequest(epoch=EPOCH),
        )
        confirm = ConfirmWanted(leader_session_id=uuid.UUID(int=6), address="a:1")
        assert contender.step(confirm) == (RefuseRequest(epoch=EPOCH),)

    def test_nothing_is_accepted_after_the_end(self) -> None:
        """L2: whatever the contender has heard of it."""
        contender = Contender()
        contender.lead()
        contender.step(ContenderClosed())
        assert contender.step(CommitWanted(session=LEADERSHIP)) == (
            RefuseRequest(epoch=EPOCH),
        )
