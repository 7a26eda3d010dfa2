"""E4, E6, E7 over random orders of close, resign, revoke and grant; no server."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, TypeAlias, final

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from election.holder import DeliverGrant, DeliverRevoke
from election.service import LeaderElection
from haservices.open_services import OpenServices
from nameservice import NS_PER_SECOND, LocalProtocolError
from retrieval import LeaderRetriever
from tests.election.fakes import session
from tests.recording import WAIT_SECONDS, wait_until
from tests.retrieval.fakes import FakeRetrievalDriver, leader


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from uuid import UUID

    from election import ContenderInformation, LeaderSession


CONTENDER_COUNT: Final = 4
SERVICES_COUNT: Final = 2


@final
class NameService:
    """
    One component's queue, which complains of what must not be when it hears of it.

    Contender *n* belongs to the services *n* modulo `SERVICES_COUNT`.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.ended: list[int] = []
        self._lock = threading.RLock()
        self._queue: list[Driver] = []
        self._epoch = 0

    def register(self, driver: Driver) -> None:
        """Enter a contender at the end."""
        with self._lock:
            self._queue.append(driver)
            self._grant_first()

    def revoke(self) -> None:
        """End the present leadership, as an operator does."""
        with self._lock:
            if self._queue and (holder := self._queue[0]).held is not None:
                revoked, holder.held = holder.held, None
                holder.revoked = revoked
                holder.deliver(DeliverRevoke(session=revoked))

    def revocation_acknowledged(self, driver: Driver) -> None:
        """Queue the former holder last; grant the next."""
        with self._lock:
            if driver.revoked is not None and driver in self._queue:
                driver.revoked = None
                self._queue.remove(driver)
                self._queue.append(driver)
                self._grant_first()

    def withdraw(self, driver: Driver) -> None:
        """Remove a contender; grant the next."""
        with self._lock:
            self._check_left(driver, "withdrawn")
            self._remove(driver)

    def end(self, services: int) -> None:
        """End a session, and all that is left of it."""
        with self._lock:
            self.ended.append(services)
            for driver in tuple(self._queue):
                if driver.services == services:
                    self.faults.append(f"{driver.number} is there at its session's end")
                    self._check_left(driver, "ended")
                    self._remove(driver)

    def _remove(self, driver: Driver) -> None:
        if driver in self._queue:
            self._queue.remove(driver)
            driver.held = driver.revoked = None
            self._grant_first()

    def _check_left(self, driver: Driver, how: str) -> None:
        if driver.is_busy:
            self.faults.append(f"{driver.number} is {how} inside {driver.is_busy}")
        if driver.has_leadership():
            self.faults.append(f"{driver.number} is {how} and believes")

    def _grant_first(self) -> None:
        if not self._queue:
            return
        first = self._queue[0]
        if first.held is not None or first.revoked is not None:
            return
        for other in first.all_drivers:
            if other is not first and other.is_busy:
                self.faults.append(f"another is granted inside {other.is_busy}")
            if other is not first and other.has_leadership():
                self.faults.append(f"{other.number} believes while another is granted")
        self._epoch += 1
        first.held = session(self._epoch)
        first.deliver(DeliverGrant(session=first.held))


@final
class Driver:
    """One contender of a `NameService`; what it believes ends only with its word."""

    def __init__(
        self, number: int, name_service: NameService, all_drivers: list[Driver]
    ) -> None:
        self.number = number
        self.services = number % SERVICES_COUNT
        self.all_drivers = all_drivers
        self.held: LeaderSession | None = None
        self.revoked: LeaderSession | None = None
        self.granted: list[LeaderSession] = []
        self.is_busy = ""
        self.withdrawn_count = 0
        self.election: LeaderElection | None = None
        self._name_service = name_service
        self._deliver: Callable[[DeliverGrant | DeliverRevoke], None] | None = None

    def has_leadership(self) -> bool:
        """Return whether its contender believes that it leads."""
        assert self.election is not None
        return any(
            self.election.has_leadership(granted.leader_session_id)
            for granted in self.granted
        )

    def deliver(self, effect: DeliverGrant | DeliverRevoke) -> None:
        """Pass it on, under the name service's lock."""
        assert self._deliver is not None
        if isinstance(effect, DeliverGrant):
            self.granted.append(effect.session)
        self._deliver(effect)

    def open(
        self,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Register."""
        self._deliver = deliver
        self._name_service.register(self)

    def believes(self, leader_session_id: UUID) -> bool:
        """Go by the last grant, however long ago, as in a long session timeout."""
        held = self.held
        return held is not None and held.leader_session_id == leader_session_id

    def belief_left_ns(self, leader_session_id: UUID) -> int:
        """Return a minute, as long as that leadership is held."""
        return 60 * NS_PER_SECOND if self.believes(leader_session_id) else 0

    def confirm(self, leader_session_id: UUID, address: str) -> None:
        """Take it."""

    def revoke_delivered(self) -> None:
        """Tell the name service."""
        self._name_service.revocation_acknowledged(self)

    def withdraw(self) -> None:
        """Tell the name service."""
        self.withdrawn_count += 1
        self._name_service.withdraw(self)

    def contenders(self) -> Sequence[ContenderInformation]:
        """Return nothing: it is not asked."""
        return ()


@attrs.frozen
class Close:
    """Close contender *number*'s election."""

    number: int
    in_thread: bool


@attrs.frozen
class CloseServices:
    """Close services *number*."""

    number: int
    in_thread: bool


@attrs.frozen
class Raise:
    """Fail."""


@attrs.frozen
class Nothing:
    """Do nothing."""


@attrs.frozen
class Act:
    """Run an action as contender *number*, if it leads; it stays until released."""

    number: int


@attrs.frozen
class Revoke:
    """End the present leadership."""


@attrs.frozen
class LetGo:
    """End every action that has begun, and each that begins later."""


@attrs.frozen
class Publish:
    """Tell the listener of a leader."""


Deed: TypeAlias = Close | CloseServices | Raise | Nothing
Step: TypeAlias = Act | Revoke | Close | CloseServices | LetGo | Publish

NUMBERS = st.integers(0, CONTENDER_COUNT - 1)
SERVICES = st.integers(0, SERVICES_COUNT - 1)
DEEDS: st.SearchStrategy[Deed] = st.one_of(
    st.just(Nothing()),
    st.just(Raise()),
    st.builds(Close, NUMBERS, st.booleans()),
    st.builds(CloseServices, SERVICES, st.booleans()),
)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Act, NUMBERS),
    st.just(Revoke()),
    st.builds(Close, NUMBERS, st.just(value=True)),
    st.builds(CloseServices, SERVICES, st.just(value=True)),
    st.just(LetGo()),
    st.just(Publish()),
)


@attrs.frozen
class Plan:
    """What one contender does in its callbacks."""

    on_grant: Deed
    on_revoke: Deed
    on_action: Deed
    on_done: Deed


PLANS = st.builds(Plan, DEEDS, DEEDS, DEEDS, DEEDS)


@final
class World:
    """Contenders that do as planned, over two services and one name service."""

    def __init__(self, plans: Sequence[Plan], listener_deed: Deed) -> None:
        self.name_service = NameService()
        self.drivers: list[Driver] = []
        self._plans = plans
        self._may_end = threading.Event()
        self._threads: list[threading.Thread] = []
        self._services = [
            OpenServices(lambda n=n: self.name_service.end(n))  # type: ignore[misc]
            for n in range(SERVICES_COUNT)
        ]
        for number in range(CONTENDER_COUNT):
            self.drivers.append(Driver(number, self.name_service, self.drivers))
        for driver in self.drivers:
            services = self._services[driver.services]
            driver.election = LeaderElection("job", driver, on_closed=services.forget)
            services.keep(driver.election)
        self._retrieval = FakeRetrievalDriver()
        retriever = LeaderRetriever(
            "job",
            self._retrieval,
            clears_on_suspended=False,
            on_closed=self._services[0].forget,
        )
        self._services[0].keep(retriever)
        retriever.start(Listener(self, listener_deed))

    def start(self) -> None:
        """Enter everybody into the election."""
        for driver in self.drivers:
            assert driver.election is not None
            # One that was granted before may have closed it already.
            with contextlib.suppress(LocalProtocolError):
                driver.election.start(
                    Contender(self, driver, self._plans[driver.number])
                )

    def do(self, deed: Deed | Step) -> None:
        """Do one thing, on this thread."""
        match deed:
            case Close(number=number, in_thread=in_thread):
                election = self.drivers[number].election
                assert election is not None
                self._call(election.close, in_thread=in_thread)
            case CloseServices(number=number, in_thread=in_thread):
                self._call(self._services[number].close, in_thread=in_thread)
            case Act(number=number):
                self._act(self.drivers[number])
            case Raise():
                raise RuntimeError("mine")
            case Revoke():
                self.name_service.revoke()
            case LetGo():
                self._may_end.set()
            case Publish():
                self._retrieval.publish(leader(1))
            case Nothing():
                pass

    def finish(self) -> None:
        """End all actions, close everything, and wait until all threads have ended."""
        self._may_end.set()
        closers = [
            threading.Thread(target=one.close, daemon=True) for one in self._services
        ]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(WAIT_SECONDS)
            assert not closer.is_alive(), "a close() waits for ever"
        # With the last callback, the last thread was started that a callback starts.
        wait_until(lambda: not any(thread.is_alive() for thread in self._threads))

    def _call(self, close: Callable[[], None], *, in_thread: bool) -> None:
        if in_thread:
            thread = threading.Thread(target=close, daemon=True)
            thread.start()
            self._threads.append(thread)
        else:
            close()

    def _act(self, driver: Driver) -> None:
        held = driver.held
        if held is None:
            return
        plan = self._plans[driver.number]
        is_begun = threading.Event()

        def act() -> None:
            driver.is_busy = "action"
            is_begun.set()
            try:
                self.do(plan.on_action)
                assert self._may_end.wait(WAIT_SECONDS)
            finally:
                driver.is_busy = ""

        def done(_: Future[None]) -> None:
            is_begun.set()  # or it never will
            self.do(plan.on_done)

        assert driver.election is not None
        driver.election.run_if_leader(held.leader_session_id, act).add_done_callback(
            done
        )


@final
class Contender:
    """Does as it is planned, and alternates (E6)."""

    def __init__(self, world: World, driver: Driver, plan: Plan) -> None:
        self._world = world
        self._driver = driver
        self._plan = plan
        self._is_granted = False

    def grant_leadership(self, granted: LeaderSession) -> None:
        """Do what is planned for it."""
        self._note("grant", is_granted=True)
        self._do("grant", self._plan.on_grant)

    def revoke_leadership(self) -> None:
        """Do what is planned for it."""
        if self._driver.has_leadership():
            self._world.name_service.faults.append("believes while it is revoked")
        self._note("revoke", is_granted=False)
        self._do("revoke", self._plan.on_revoke)

    def handle_error(self, error: Exception) -> None:
        """Take what was planned."""

    def _note(self, callback: str, *, is_granted: bool) -> None:
        if self._is_granted is is_granted:
            self._world.name_service.faults.append(f"{callback} twice")
        self._is_granted = is_granted

    def _do(self, callback: str, deed: Deed) -> None:
        if self._driver.is_busy:
            self._world.name_service.faults.append(
                f"{callback} inside {self._driver.is_busy}"
            )
        self._driver.is_busy = callback
        try:
            self._world.do(deed)
        finally:
            self._driver.is_busy = ""


@final
class Listener:
    """Does one thing when it hears of a leader."""

    def __init__(self, world: World, deed: Deed) -> None:
        self._world = world
        self._deed = deed

    def notify_leader(self, _: object) -> None:
        """Do it."""
        self._world.do(self._deed)

    def handle_error(self, error: Exception) -> None:
        """Take what was planned."""


class TestClosingOrders:
    @pytest.mark.proves("E4", "E6", "E7")
    @given(
        plans=st.lists(PLANS, min_size=CONTENDER_COUNT, max_size=CONTENDER_COUNT),
        listener_deed=DEEDS,
        steps=st.lists(STEPS, max_size=12),
    )
    @settings(max_examples=200, deadline=None)
    def test_belief_and_actions_end_before_the_name_service_knows(
        self, plans: list[Plan], listener_deed: Deed, steps: list[Step]
    ) -> None:
        """
        E4, E6, E7: however callbacks, threads and operators close, resign and revoke.

        At each withdrawal, session's end and grant the name service looks whether
        somebody else believes or acts.  In the end every close has returned, each
        contender has withdrawn, and each session has ended, once.
        """
        world = World(plans, listener_deed)
        world.start()
        for step in steps:
            world.do(step)
        world.finish()
        assert world.name_service.faults == []
        assert sorted(world.name_service.ended) == list(range(SERVICES_COUNT))
        # Twice, if it was closed while it was being entered.
        assert {driver.withdrawn_count for driver in world.drivers} <= {1, 2}
