"""
`LeaderElection`: the thread-safe shell around a driver.

Theory of operation
-------------------
The driver decides what the contender is told, and puts grants and revocations into a
queue, `Deliveries`.  They are taken out one by one, in the turns of a `CallbackLane`,
so callbacks run one at a time and in order, under no lock of ours, on threads that all
elections of the process share.  What `run_if_leader` is given goes through the same
queue: a revocation waits for it.

The driver may hold a lock of its own while it delivers, so nothing is called back from
there: every call of the driver comes from the election's lane or a user's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, assert_never, final

from election.deliveries import Deliveries, Fail, Run
from election.holder import DeliverGrant, DeliverRevoke
from election.turn import run_in_turn
from election.turn_future import TurnFuture
from nameservice import (
    NS_PER_SECOND,
    CallbackLane,
    ForkGuard,
    LeadershipLostError,
    LocalProtocolError,
    get_logger,
)
from nameservice.callback_errors import call_back
from nameservice.fields import check_address, check_leader_session_id
from nameservice.parameters import check_action, check_callbacks, check_function
from nameservice.uninterrupted import uninterrupted


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType
    from uuid import UUID

    from election.contender import (
        ContenderInformation,
        LeaderContender,
        LeaderSession,
    )
    from election.deliveries import Delivery
    from election.driver import LeaderElectionDriver


__all__ = ["LeaderElection"]

T = TypeVar("T")

_CALLBACKS: Final = ("grant_leadership", "revoke_leadership", "handle_error")


@final
class LeaderElection:
    """
    One contender's part in the election of one component's leader.

    Get one from ``HAServices.get_leader_election``; use it as a context manager, or
    call `start` and `close`.  Thread-safe.

    `has_leadership` says what is so *now*; whatever must not happen under two leaders
    needs the epoch as a fencing token where it takes effect.
    """

    def __init__(
        self,
        component_id: str,
        driver: LeaderElectionDriver,
        *,
        on_closed: Callable[[LeaderElection], None] | None = None,
    ) -> None:
        self._component_id = component_id
        self._driver = driver
        self._on_closed = on_closed
        self._fork_guard = ForkGuard()
        self._log = get_logger(component="election", component_id=component_id)
        # None is put in where a signal handler may interrupt: see `uninterrupted`.
        self._deliveries = Deliveries()
        self._contender: LeaderContender | None = None
        self._lane: CallbackLane | None = None
        self._held: LeaderSession | None = None
        self._starts = deque((None,))  # a start takes the one that there is
        self._is_withdrawn = False
        self._told_of_closing: dict[object, Callable[[], None]] = {}

    @property
    def component_id(self) -> str:
        """Return what is being led."""
        return self._component_id

    @property
    def lane(self) -> CallbackLane | None:
        """Return where its callbacks run, once it is started."""
        return self._lane

    def start(self, contender: LeaderContender) -> None:
        """
        Enter *contender* into the election; return without waiting.

        Raises:
            ConfigurationError: If *contender* lacks one of its three methods, or one of
                them is a coroutine.
            LocalProtocolError: If the election was started or closed before.
            ForkedClientError: In a child of the process that made it.
        """
        self._fork_guard.check()
        check_callbacks(contender, *_CALLBACKS, what="a contender")
        try:
            self._starts.pop()
        except IndexError:
            raise self._unstartable() from None
        if self._deliveries.is_closing:
            raise self._unstartable()
        # One step after the other: an exception between any two leaves what `close`
        # withdraws.
        self._contender = contender
        self._lane = CallbackLane(f"election-{self._component_id}", self._turn)
        try:
            self._driver.open(self._put, self._fail)
        finally:
            # By another thread, or a handler, and perhaps before it was entered.
            if self._is_withdrawn:
                try:
                    self._driver.withdraw()
                finally:
                    self.begin_close()

    def _unstartable(self) -> LocalProtocolError:
        message = "an election is started once, and not after it was closed"
        return LocalProtocolError(message)

    def confirm_leadership(self, leader_session_id: UUID, address: str) -> None:
        """
        Accept the leadership that was granted, and publish *address* (rule E3).

        Blocks until the name service has answered.  Confirming again within the same
        leadership publishes the new address under the same epoch.

        Args:
            leader_session_id: As it was granted.
            address: 1 to 1,024 printable characters, for those who look for us.

        Raises:
            LeadershipLostError: That leadership is over, or `close` was called; nothing
                changed for anybody.
            MayHaveHappenedError: It was sent, and never answered.  Confirm again, or
                find out from a retriever.
            DidNotHappenError: It changed nothing, and will not.
            ConfigurationError: If *address* breaks the rule above, or
                *leader_session_id* is no UUID; nothing was sent.
            LocalProtocolError: If the election is not started.
        """
        self._fork_guard.check()
        self._check_started()
        leader_session_id = check_leader_session_id(leader_session_id)
        address = check_address(address)
        if self._deliveries.is_closing:
            # Nothing is published that is about to be withdrawn.
            raise self._lost(leader_session_id)
        self._driver.confirm(leader_session_id, address)
        self._log.info(
            "leadership.confirmed",
            leader_session_id=str(leader_session_id),
            address=address,
        )

    def has_leadership(self, leader_session_id: UUID) -> bool:
        """
        Return whether we lead now, under that leadership (rule E4).

        A local clock check: no lock, no message, about a microsecond.  False before
        the grant callback begins, once the revoke callback has begun, and once `close`
        has.
        """
        self._fork_guard.check()
        held = self._held
        return (
            held is not None
            and not self._deliveries.is_closing
            and held.leader_session_id == leader_session_id
            and self._driver.believes(leader_session_id)
        )

    def leadership_seconds_left(self, leader_session_id: UUID) -> float:
        """
        Return how long `has_leadership` will go on being true if nothing else comes.

        In good times every acknowledgement moves that moment forward.  A program that
        needs time to stop leading (a process to be ended, a transaction to be finished)
        can begin before belief ends, rather than when it has.

        Returns:
            0 while we do not lead under that leadership.
        """
        self._fork_guard.check()
        held = self._held
        if (
            held is None
            or self._deliveries.is_closing
            or held.leader_session_id != leader_session_id
        ):
            return 0.0
        return self._driver.belief_left_ns(leader_session_id) / NS_PER_SECOND

    def run_if_leader(
        self, leader_session_id: UUID, action: Callable[[], T]
    ) -> Future[T]:
        """
        Run *action* among the election's callbacks, if we lead when its turn comes.

        A revocation waits for it.  It must not wait for another callback of this
        election.

        Returns:
            What *action* returns or raises; `LeadershipLostError` if it was not begun
            because the leadership was over.
        """
        self._fork_guard.check()
        self._check_started()
        check_action(action, what="the action of run_if_leader")
        future: Future[T] = TurnFuture()
        run = Run(leader_session_id=leader_session_id, action=action, future=future)
        uninterrupted(lambda: self._enter(run))
        return future

    def _enter(self, run: Run) -> None:
        if self._deliveries.put(run):
            self._wake()
        else:
            self._refuse(run)

    async def run_if_leader_async(
        self, leader_session_id: UUID, action: Callable[[], Awaitable[T]]
    ) -> T:
        """
        Await *action* in this task, if we lead when its turn among the callbacks comes.

        A revocation waits for it, as for what `run_if_leader` runs.  To cancel the task
        ends the turn.

        Returns:
            What *action* returns.

        Raises:
            LeadershipLostError: If it was not begun because the leadership was over.
        """
        check_function(action, what="the action of run_if_leader_async")
        return await run_in_turn(self, leader_session_id, action)

    async def confirm_leadership_async(
        self, leader_session_id: UUID, address: str
    ) -> None:
        """
        Do as `confirm_leadership` does, without blocking the event loop.

        To cancel the task does not take the confirm back.
        """
        await asyncio.to_thread(self.confirm_leadership, leader_session_id, address)

    async def contenders_async(self) -> Sequence[ContenderInformation]:
        """Do as `contenders` does, without blocking the event loop."""
        return await asyncio.to_thread(self.contenders)

    async def close_async(self) -> None:
        """
        Do as `close` does, without blocking the event loop.

        Belief ends at once, also if the task is cancelled while it waits.
        """
        self.begin_close()
        await asyncio.to_thread(self.close)

    def contenders(self) -> Sequence[ContenderInformation]:
        """
        Return all contenders of the component, in order, the leader first.

        Raises:
            UnreachableError: If the name service does not answer in time.
        """
        self._fork_guard.check()
        return self._driver.contenders()

    def close(self) -> None:
        """
        Leave the election (rule E7).  Idempotent; silent in a forked child.

        Belief ends at once.  What `run_if_leader` has begun and a leader's revoke
        callback finish, then the entry is withdrawn, then the next contender is
        granted.  Nothing is delivered once this has returned.  Called inside a callback
        of this election, or of one that waits for this callback, it does not wait: the
        rest happens when that returns.  A signal handler may call it at any moment;
        what one raises while this waits does not break the closing off.
        """
        if self._fork_guard.is_inherited:
            return
        lane = self._lane  # one that comes later is left to who starts
        self.begin_close()
        if lane is not None:
            lane.join()

    def begin_close(self) -> None:
        """Do as `close` does, and never wait."""
        if not self._fork_guard.is_inherited:
            self.announce_closing()
            uninterrupted(self._begin_close)

    def announce_closing(self) -> None:
        """End belief, and tell those who asked to be told, on this thread."""
        self._deliveries.is_closing = True
        told = self._told_of_closing
        for key in list(told):
            callback = told.get(key)
            if callback is not None:
                try:
                    if told.pop(key, None) is not None:
                        callback()
                except BaseException:
                    told[key] = callback  # it is told again, rather than never
                    raise

    def _begin_close(self) -> None:
        if self._lane is None and not self._is_withdrawn:
            self._finish()
        if self._lane is not None:  # it may have come meanwhile
            self._lane.wake()

    def when_closing(self, callback: Callable[[], None]) -> None:
        """
        Call *callback* once, as soon as the election begins to close, or has.

        A contender that waits for its turn is told nothing when it is closed (E7).
        This callback tells the code that waits to stop.  It is called on the thread
        that closes, which may be in a signal handler: it must not block, nor raise.
        """
        key = object()
        self._told_of_closing[key] = callback
        if (
            self._deliveries.is_closing
            and self._told_of_closing.pop(key, None) is not None
        ):
            callback()

    def __enter__(self) -> LeaderElection:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- the driver's side ---------------------------------------------------------

    def _put(self, effect: DeliverGrant | DeliverRevoke) -> None:
        if self._deliveries.put(effect):
            self._wake()

    def _fail(self, error: Exception) -> None:
        if self._deliveries.put(Fail(error=error)):
            self._wake()

    def _wake(self) -> None:
        """Have what is new looked at."""
        if self._lane is not None:
            self._lane.wake()

    # -- in the election's lane ----------------------------------------------------

    def _turn(self) -> bool:
        """Do one thing; return whether there is nothing more to be done, ever."""
        contender = self._contender
        assert contender is not None
        taken = self._deliveries.take()
        if taken is None:
            try:
                self._leave(contender)
            except Exception:  # noqa: BLE001 - it is over all the same
                self._log.exception("election.unwithdrawn")
            return True
        if taken.has_more:
            self._wake()  # for another turn: the others have theirs first
        for _ in range(taken.collapsed_count):
            self._driver.revoke_delivered()
        if taken.delivery is not None:
            self._perform(contender, taken.delivery)
        return False

    def _leave(self, contender: LeaderContender) -> None:
        """Close the election, now that no callback is under way."""
        for delivery in self._deliveries.take_all():
            if isinstance(delivery, Run):
                self._refuse(delivery)
        if self._held is not None:
            self._revoke(contender, self._held)
        self._finish()

    def _perform(self, contender: LeaderContender, delivery: Delivery) -> None:
        match delivery:
            case DeliverGrant(session=session):
                self._held = session
                self._log = self._log.bind(epoch=session.epoch)
                self._log.info(
                    "leadership.granted",
                    leader_session_id=str(session.leader_session_id),
                )
                self._call(contender, lambda: contender.grant_leadership(session))
            case DeliverRevoke(session=session):
                self._revoke(contender, session)
                self._driver.revoke_delivered()
            case Run():
                self._run(delivery)
            case Fail(error=error):
                self._call_handle_error(contender, error)
            case _:
                assert_never(delivery)

    def _revoke(self, contender: LeaderContender, session: LeaderSession) -> None:
        self._held = None
        self._log.info(
            "leadership.revoked", leader_session_id=str(session.leader_session_id)
        )
        self._call(contender, contender.revoke_leadership)

    def _run(self, run: Run) -> None:
        if not self.has_leadership(run.leader_session_id):
            self._refuse(run)
            return
        if not run.future.set_running_or_notify_cancel():
            return
        try:
            result = run.action()
        except BaseException as error:  # noqa: BLE001 - told by the future
            run.future.set_exception(error)
        else:
            run.future.set_result(result)

    def _refuse(self, run: Run) -> None:
        if run.future.set_running_or_notify_cancel():
            run.future.set_exception(self._lost(run.leader_session_id))

    def _lost(self, leader_session_id: UUID) -> LeadershipLostError:
        held = self._held
        if held is None or held.leader_session_id != leader_session_id:
            return LeadershipLostError(self._component_id, None)
        return LeadershipLostError(self._component_id, held.epoch)

    def _call(self, contender: LeaderContender, callback: Callable[[], None]) -> None:
        call_back(
            callback, partial(self._call_handle_error, contender), what="a callback"
        )

    def _call_handle_error(self, contender: LeaderContender, error: Exception) -> None:
        try:
            contender.handle_error(error)
        except BaseException:  # noqa: BLE001 - there is no other place to hand it to
            self._log.exception("contender.failed", error=str(error))

    def _finish(self) -> None:
        """Withdraw, and release everything; the last thing an election does."""
        self._held = None
        self._is_withdrawn = True  # first: who is just entering it looks after that
        try:
            self._driver.withdraw()
        finally:
            if self._on_closed is not None:
                self._on_closed(self)

    def _check_started(self) -> None:
        if self._lane is None:
            message = "start the election first: it has no contender yet"
            raise LocalProtocolError(message)
