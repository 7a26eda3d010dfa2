"""
What stands on top of a `ClientCore`: elections with their callbacks, and listeners.

`Election` is `election.LeaderElection` without its thread: one queue, one callback at a
time, a grant taken out together with its revocation if it was not delivered before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

from election.holder import DeliverGrant, DeliverRevoke
from leaderserver.client.core.events import (
    ConfirmAsked,
    ContenderAdded,
    ContenderRemoved,
    RetrieverAdded,
    RevokeReturned,
)
from nameservice.errors import LeadershipLostError, NameServiceError
from retrieval.core import RetrieverCore


if TYPE_CHECKING:
    from election.contender import LeaderSession
    from leaderserver.messages import ReplyBody
    from nameservice.errors import EpochAheadError
    from retrieval.core import RetrieverEvent
    from tests.simulation.client import ClientProcess


__all__ = ["Election", "Listener"]


@final
class Election:
    """
    One contender, its callbacks and its habits.

    Attributes:
        client: Whose it is.
        contender_id: Its id.
        component_id: What it wants to lead.
        held: The leadership between the begin of its grant and of its revoke callback.
        is_closing: Whether it leaves.
        past: Every leadership that it was granted.
        ahead: How it was told that it is ahead of its server, or None.
    """

    def __init__(
        self, client: ClientProcess, contender_id: str, component_id: str
    ) -> None:
        self.client = client
        self.contender_id = contender_id
        self.component_id = component_id
        self.held: LeaderSession | None = None
        self._leaving: LeaderSession | None = None
        self.is_closing = False
        self.past: list[LeaderSession] = []
        self.ahead: EpochAheadError | None = None
        self._queue: deque[DeliverGrant | DeliverRevoke] = deque()
        self._is_busy = False
        self._collapsed_count = 0
        self._address_count = 0
        self._reopens = False

    def start(self) -> None:
        """Enter the election."""
        client = self.client
        client.checker.registers(self.component_id, self.contender_id)
        client.step(
            ContenderAdded(
                contender_id=self.contender_id,
                component_id=self.component_id,
                confirm_timeout_ns=client.plan.confirm_timeout_ns,
            )
        )

    def has_leadership(self) -> bool:
        """Return whether it believes, as `LeaderElection.has_leadership` says it."""
        held = self.held
        return held is not None and self.client.core.holder(self.contender_id).believes(
            held.leader_session_id, now_ns=self.client.clock.now_ns()
        )

    def is_busy_with(self, epoch: int) -> bool:
        """Return whether its application still acts, or may act, under *epoch*."""
        return any(
            session is not None and session.epoch == epoch
            for session in (self.held, self._leaving)
        )

    def deliver(self, effect: DeliverGrant | DeliverRevoke) -> None:
        """Queue a callback."""
        if self.is_closing:
            return
        if isinstance(effect, DeliverRevoke):
            undelivered = DeliverGrant(session=effect.session)
            if undelivered in self._queue:
                self._queue.remove(undelivered)
                self._collapsed_count += 1
            else:
                self._queue.append(effect)
        else:
            self._queue.append(effect)
        # The thread of the election wakes up a little later.
        self.client.after(self.client.rng.randrange(100_000), self._work)

    def close(self, *, reopens: bool) -> None:
        """Leave; perhaps another contender enters in its place."""
        if not self.is_closing:
            self.is_closing = True
            self._reopens = reopens
            if not self._is_busy:
                self._leave()

    # -- the election's thread -----------------------------------------------------

    def _is_free(self) -> bool:
        return not self._is_busy and not self.is_closing

    def _work(self) -> None:
        if not self._is_free():
            return
        while self._collapsed_count:
            self._collapsed_count -= 1
            self.client.step(RevokeReturned(contender_id=self.contender_id))
        if self._queue and self._is_free():
            effect = self._queue.popleft()
            self._is_busy = True
            if isinstance(effect, DeliverGrant):
                self._grant(effect.session)
            else:
                self._revoke(self._revoke_returned)

    def _callback_returned(self) -> None:
        self._is_busy = False
        if self.is_closing:
            self._leave()
        else:
            self._work()

    def _grant(self, session: LeaderSession) -> None:
        client = self.client
        client.checker.granted(self.contender_id, session)
        client.trace("grant_leadership", f"{self.component_id} epoch {session.epoch}")
        self.held = session
        self.past.append(session)
        blocks = client.rng.random() < 0.5
        confirms = client.world.is_calm or client.rng.random() < client.plan.confirms

        def act() -> None:
            if confirms:
                self.confirm(session, self._callback_returned if blocks else None)
            if not (confirms and blocks):
                self._callback_returned()

        client.after(client.callback_ns(), act)

    def _revoke_returned(self) -> None:
        self._leaving = None
        self.client.step(RevokeReturned(contender_id=self.contender_id))
        self._callback_returned()

    def _revoke(self, then: object) -> None:
        client = self.client
        assert callable(then)
        client.checker.revoked(self.contender_id)
        self._leaving = self.held
        client.trace("revoke_leadership", self.component_id)
        self.held = None
        client.after(client.callback_ns(), then)

    def _leave(self) -> None:
        """Revoke if need be, withdraw, and be gone (E7)."""
        self._is_busy = True
        # From here on `has_leadership` is false, whatever the holder believes.
        self.client.checker.disbelieves(self.component_id, self.contender_id)
        if self.held is not None:
            self._revoke(self._withdraw)
        else:
            self._withdraw()

    def _withdraw(self) -> None:
        client = self.client
        self._leaving = None
        client.elections.pop(self.contender_id)

        def withdrawn(_: ReplyBody | None, error: NameServiceError | None) -> None:
            client.checker.require(
                "E7 a withdrawal is no error", error is None, str(error)
            )
            if self._reopens:
                client.contend(self.component_id)
            client.leave_when_closed()

        client.call(
            lambda call_id, deadline_ns: ContenderRemoved(
                contender_id=self.contender_id, call_id=call_id, deadline_ns=deadline_ns
            ),
            withdrawn,
        )

    # -- confirming ----------------------------------------------------------------

    def confirm(self, session: LeaderSession, then: object = None) -> None:
        """Confirm *session* under a new address; try again while it is held."""
        client = self.client
        self._address_count += 1
        count = self._address_count
        address = f"{self.contender_id}:{count}"
        client.checker.asks_to_confirm(
            self.component_id, session.leader_session_id, address
        )

        def answered(_: ReplyBody | None, error: NameServiceError | None) -> None:
            if callable(then):
                then()
            if error is None:
                client.world.counts["leaderships confirmed"] += 1
            elif not isinstance(error, LeadershipLostError):
                client.after(client.callback_ns(), again)

        def again() -> None:
            # Two who overtook each other in turn would do nothing else.
            is_newest = count == self._address_count
            if is_newest and self.held == session and not self.is_closing:
                self.confirm(session)

        client.call(
            lambda call_id, deadline_ns: ConfirmAsked(
                contender_id=self.contender_id,
                leader_session_id=session.leader_session_id,
                address=address,
                call_id=call_id,
                deadline_ns=deadline_ns,
            ),
            answered,
        )


@final
class Listener:
    """
    One retriever: the shipped core, and what its listener is told.

    Attributes:
        core: The shipped core.
        ahead: How it was told last that it is ahead of its server, or None.
    """

    def __init__(
        self, client: ClientProcess, retriever_id: int, component_id: str
    ) -> None:
        self.client = client
        self.retriever_id = retriever_id
        self.component_id = component_id
        self.core = RetrieverCore(clears_on_suspended=client.plan.clears_on_suspended)
        self.ahead: EpochAheadError | None = None
        self._name = f"{client.name}/{retriever_id}"

    def start(self) -> None:
        """Begin to retrieve."""
        self.client.step(
            RetrieverAdded(
                retriever_id=self.retriever_id, component_id=self.component_id
            )
        )

    def deliver(self, event: RetrieverEvent) -> None:
        """Take what the client brings."""
        checker = self.client.checker
        for effect in self.core.step(event):
            self.client.trace("notify_leader", f"{self.component_id} {effect.leader}")
            checker.retriever_told(self._name, effect.leader)
        if self.core.newest is not None:
            checker.retriever_took(self._name, self.core.newest.rank)
