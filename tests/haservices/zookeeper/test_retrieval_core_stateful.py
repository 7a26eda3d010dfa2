"""`RetrievalCore` against servers that lag behind, and connections that break."""

from __future__ import annotations

import uuid
from collections import deque
from typing import TYPE_CHECKING

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

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
    Tell,
)
from nameservice import DidNotHappenError
from retrieval.core import RetrieverCore


if TYPE_CHECKING:
    from retrieval import LeaderInformation


@attrs.frozen(kw_only=True)
class Moment:
    """The leader's node and the one above it, after one transaction."""

    leader: Node | None
    children_zxid: int
    truth: LeaderInformation | None


class RetrievalMachine(RuleBasedStateMachine):
    """
    The history of a component is a list; a server shows it up to some point.

    A connection is served by one server, which never goes back.  What a listener holds
    is computed by the shipped `RetrieverCore`.
    """

    @initialize()
    def begin(self) -> None:
        """Begin without a leader so far, and without contact."""
        self.history = [Moment(leader=None, children_zxid=1, truth=None)]
        self.epoch = 0
        self.core = RetrievalCore(leader="/leader")
        self.listener = RetrieverCore(clears_on_suspended=True)
        self.shown = 0
        self.is_connected = False
        self.is_watching = False
        # What comes back over the connection, in order.
        self.inbox: deque[RetrievalEvent] = deque()
        self.pending: deque[int] = deque()
        self.late: list[LeaderRead] = []
        self.epochs_told: list[int] = []

    def step(self, event: RetrievalEvent) -> None:
        """Tell the core, and do what it wants."""
        for effect in self.core.step(event):
            match effect:
                case ReadLeader(number=number):
                    assert self.is_connected
                    self.pending.append(number)
                case Tell(event=news):
                    for told in self.listener.step(news):
                        if told.leader is not None:
                            assert self.is_connected
                            self.epochs_told.append(told.leader.epoch)
                case _:
                    raise AssertionError(effect)

    # -- the component -----------------------------------------------------------------

    @rule(is_new=st.booleans())
    def publish(self, is_new: bool) -> None:
        """Have a leader publish: a new one, or the present one again."""
        last = self.history[-1]
        zxid = len(self.history) + 1
        is_creation = is_new or last.leader is None
        if is_creation:
            self.epoch = zxid
        record = LeaderRecord(
            epoch=self.epoch,
            confirm_count=zxid,
            leader_session_id=uuid.UUID(int=self.epoch),
            address=f"a:{zxid}",
        )
        created = zxid
        if not is_creation:
            assert last.leader is not None
            created = last.leader.stat.created_zxid
        stat = NodeStat(
            version=0, owner_session_id=1, created_zxid=created, children_zxid=0
        )
        self.history.append(
            Moment(
                leader=Node(value=encode_record(record), stat=stat),
                children_zxid=zxid if is_creation else last.children_zxid,
                truth=record.to_publication().leader,
            )
        )

    @precondition(lambda self: self.history[-1].leader is not None)
    @rule()
    def end(self) -> None:
        """Delete the leader's node."""
        zxid = len(self.history) + 1
        self.history.append(Moment(leader=None, children_zxid=zxid, truth=None))

    # -- the server --------------------------------------------------------------------

    @rule(count=st.integers(min_value=1, max_value=4))
    def catch_up(self, count: int) -> None:
        """Show our server more of what happened; the watch tells once."""
        for _ in range(count):
            if self.shown + 1 >= len(self.history):
                return
            self.shown += 1
            before, after = self.history[self.shown - 1 : self.shown + 1]
            if self.is_watching and before.leader != after.leader:
                self.is_watching = False
                self.inbox.append(LeaderNodeChanged())

    @rule()
    def answer(self) -> None:
        """Have our server answer the oldest question: it watches, then looks."""
        if self.pending:
            moment = self.history[self.shown]
            stat = NodeStat(
                version=0,
                owner_session_id=0,
                created_zxid=1,
                children_zxid=moment.children_zxid,
            )
            self.is_watching = True
            self.inbox.append(
                LeaderRead(
                    number=self.pending.popleft(), leader=moment.leader, component=stat
                )
            )

    @rule()
    def receive(self) -> None:
        """Take what came back."""
        if self.inbox:
            self.step(self.inbox.popleft())

    @rule(is_lost=st.booleans(), is_late=st.booleans())
    def disconnect(self, is_lost: bool, is_late: bool) -> None:
        """Break the connection; an answer that is there may be taken all the same."""
        if not self.is_connected:
            return
        self.is_connected = self.is_watching = False
        self.step(ContactLost() if is_lost else ContactSuspended())
        for event in self.inbox:
            if is_late and isinstance(event, LeaderRead):
                self.late.append(event)
        self.inbox.clear()
        while self.pending:
            error = DidNotHappenError("closed")
            self.step(ReadFailed(number=self.pending.popleft(), error=error))

    @rule()
    def take_late_answer(self) -> None:
        """Take an answer of a connection that is gone."""
        if self.late:
            self.step(self.late.pop(0))

    @rule(behind=st.integers(min_value=0, max_value=3))
    def connect(self, behind: int) -> None:
        """Connect to a server that may know less than the last one."""
        if not self.is_connected:
            self.is_connected = True
            self.shown = max(0, len(self.history) - 1 - behind)
            self.step(ContactRestored())

    # -- what must hold ----------------------------------------------------------------

    @invariant()
    def without_contact_nobody_leads(self) -> None:
        """R4: what was known is not told as if it were known now."""
        if not getattr(self, "is_connected", True):
            assert self.core.news_for_newcomer is None
            assert self.listener.told is None

    @invariant()
    def epochs_never_fall(self) -> None:
        """R3: nothing older follows something newer."""
        told = getattr(self, "epochs_told", [])
        assert told == sorted(told)

    @rule()
    def settle(self) -> None:
        """Have our server catch up; then the listener holds what is true."""
        if not self.is_connected:
            self.connect(0)
        for _ in range(1_000):
            if self.shown + 1 < len(self.history):
                self.catch_up(4)
            elif self.pending:
                self.answer()
            elif self.inbox:
                self.receive()
            else:
                break
        assert self.listener.told == self.history[-1].truth

    def teardown(self) -> None:
        """Settle in the end."""
        if hasattr(self, "history"):
            self.settle()


TestRetrieval = RetrievalMachine.TestCase
