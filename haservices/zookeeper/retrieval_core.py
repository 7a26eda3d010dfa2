"""
`RetrievalCore`: what is published of one component on ZooKeeper, without I/O.

Theory of operation
-------------------
One watch of the leader's node is armed again whenever it fires and whenever contact is
restored.  Nothing is created (R6), and a component that never had a contender reads
as one without a leader.

The lack of a leader is told by a node that is not there, and absence has no epoch.  A
new session may be served by a follower that lags behind, where the node is absent
because it does not exist *yet*; telling that would outrank the leader for good (R3).
So an absence is believed only if the children of the component's node have changed
since the publication that we know was created.

::

    ContactRestored, LeaderNodeChanged ──► ReadLeader ──LeaderRead──► Tell

An answer that comes after contact was suspended says nothing of the present: it is
dropped, and what is published is read again when contact is restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never, final

from attrs import frozen

from haservices.zookeeper.records import decode_leader
from nameservice import AuthenticationError, RemoteProtocolError
from retrieval import core as retriever
from retrieval.information import Publication


if TYPE_CHECKING:
    from haservices.zookeeper.nodes import Node, NodeStat
    from retrieval.core import RetrieverEvent


__all__ = [
    "ContactLost",
    "ContactRestored",
    "ContactSuspended",
    "LeaderNodeChanged",
    "LeaderRead",
    "ReadFailed",
    "ReadLeader",
    "RetrievalCore",
    "RetrievalEffect",
    "RetrievalEvent",
    "RetrieverJoined",
    "SessionRefused",
    "Tell",
    "TellError",
]


# -- events --------------------------------------------------------------------------


@frozen(kw_only=True)
class ContactRestored:
    """Requests are answered; watches are gone."""


@frozen(kw_only=True)
class ContactSuspended:
    """Nothing can be asked for the moment."""


@frozen(kw_only=True)
class ContactLost:
    """The session may be over, or is."""


@frozen(kw_only=True)
class SessionRefused:
    """We are not taken any more, as *error* tells."""

    error: Exception


@frozen(kw_only=True)
class RetrieverJoined:
    """Another one wants to know: what could not be read may be readable by now."""


@frozen(kw_only=True)
class LeaderNodeChanged:
    """The leader's node was created, set or deleted."""


@frozen(kw_only=True)
class LeaderRead:
    """
    What `ReadLeader` with *number* has asked for has come.

    Attributes:
        number: Which.
        leader: The leader's node, or None if it is not there.
        component: What ZooKeeper knows of the node above it, likewise.
    """

    number: int
    leader: Node | None
    component: NodeStat | None


@frozen(kw_only=True)
class ReadFailed:
    """What `ReadLeader` with *number* has asked for will not come."""

    number: int
    error: Exception


RetrievalEvent: TypeAlias = (
    ContactRestored
    | ContactSuspended
    | ContactLost
    | SessionRefused
    | RetrieverJoined
    | LeaderNodeChanged
    | LeaderRead
    | ReadFailed
)


# -- effects -------------------------------------------------------------------------


@frozen(kw_only=True)
class ReadLeader:
    """
    Watch the leader's node, read it, and look at the component's, in this order.

    Whatever comes after the answer is told by the watch.
    """

    number: int


@frozen(kw_only=True)
class Tell:
    """Tell all retrievers of the component."""

    event: RetrieverEvent


@frozen(kw_only=True)
class TellError:
    """Tell all retrievers of the component what went wrong."""

    error: Exception


RetrievalEffect: TypeAlias = ReadLeader | Tell | TellError


# -- the core ------------------------------------------------------------------------


@final
class RetrievalCore:
    """
    One component's publications.

    Two of them given the same sequence of events return the same effects.  Nothing in
    it depends on the time.  Not thread-safe.

    Args:
        leader: The leader's node, for errors.

    Attributes:
        refusal: Why nothing is told any more, for who joins now; None while it is.
    """

    def __init__(self, *, leader: str) -> None:
        self.refusal: Exception | None = None
        self._leader = leader
        self._newest: Publication | None = None
        self._newest_zxid = 0
        self._has_contact = False
        self._is_current = False
        self._has_failed = False
        self._read_count = 0
        # Of the first question since contact was restored.
        self._number_min = 0

    @property
    def news_for_newcomer(self) -> RetrieverEvent | None:
        """Return what a retriever that has just joined is told, or None to wait."""
        if not self._is_current:
            return None
        return retriever.ContactRestored(publication=self._newest)

    def step(self, event: RetrievalEvent) -> tuple[RetrievalEffect, ...]:
        """Take *event* into account; return what to do, in order."""
        effects: list[RetrievalEffect] = []
        match event:
            case ContactRestored():
                self._has_contact = True
                self._number_min = self._read_count + 1
                self._read(effects)
            case ContactSuspended():
                self._lose_contact()
                effects.append(Tell(event=retriever.ContactSuspended()))
            case ContactLost():
                self._lose_contact()
                effects.append(Tell(event=retriever.ContactLost()))
            case SessionRefused(error=error):
                self.refusal = error
                effects.append(TellError(error=error))
            case RetrieverJoined():
                if self._has_failed:
                    self._read(effects)
            case LeaderNodeChanged():
                self._read(effects)
            case LeaderRead():
                if self._is_of_this_contact(event.number):
                    self._take(event, effects)
            case ReadFailed(number=number, error=error):
                if self._is_of_this_contact(number):
                    self._fail(error, effects)
            case _:
                assert_never(event)
        self.check_invariants()
        return tuple(effects)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps."""
        if self._is_current:
            assert self._has_contact
        if self._newest is None:
            assert self._newest_zxid == 0

    def _lose_contact(self) -> None:
        self._has_contact = self._is_current = False

    def _is_of_this_contact(self, number: int) -> bool:
        return self._has_contact and number >= self._number_min

    def _read(self, effects: list[RetrievalEffect]) -> None:
        if self._has_contact:  # otherwise it is read when contact is restored
            self._has_failed = False
            self._read_count += 1
            effects.append(ReadLeader(number=self._read_count))

    def _take(self, event: LeaderRead, effects: list[RetrievalEffect]) -> None:
        if event.leader is None:
            publication = self._absence(event.component)
        else:
            try:
                record = decode_leader(event.leader.value, path=self._leader)
            except RemoteProtocolError as error:
                self._has_failed = True
                effects.append(TellError(error=error))
                return
            publication = record.to_publication()
        if publication is not None and (
            self._newest is None or publication.rank > self._newest.rank
        ):
            self._newest = publication
            if event.leader is not None:
                self._newest_zxid = event.leader.stat.created_zxid
        if not self._is_current:
            self._is_current = True
            effects.append(
                Tell(event=retriever.ContactRestored(publication=self._newest))
            )
        elif publication is not None:
            effects.append(
                Tell(event=retriever.PublicationReceived(publication=publication))
            )

    def _absence(self, component: NodeStat | None) -> Publication | None:
        """Return what the absence of the leader's node says, if it says anything."""
        newest = self._newest
        if newest is None or newest.leader is None:
            return None
        if component is not None and component.children_zxid <= self._newest_zxid:
            return None  # not deleted, but not there yet, where we look
        return Publication(
            epoch=newest.epoch, confirm_count=newest.confirm_count, leader=None
        )

    def _fail(self, error: Exception, effects: list[RetrievalEffect]) -> None:
        if isinstance(error, AuthenticationError | RemoteProtocolError):
            self._has_failed = True
            effects.append(TellError(error=error))
        # Otherwise the connection is gone: it is read when contact is restored.
