"""E7, L4, R5: a signal handler may close services, or raise, at any moment."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias, final

import pytest
from attrs import frozen

from election import LeaderSession
from haservices import HAConfig, HAServices, campaign, open_ha_services
from haservices.client_services import ClientHAServices
from haservices.embedded import link_of
from haservices.testing import ZooKeeperServer
from leaderserver import LeaderServer, ServerConfig
from tests.interrupting import (
    Closed,
    break_off,
    break_off_at_any_moment,
    close_amid,
)
from tests.leaks import freed_without_collection
from tests.recording import RecordingContender, wait_until
from tests.tiers import nightly_after


pytestmark = [pytest.mark.shells, pytest.mark.proves("E7", "R5")]

Action: TypeAlias = Callable[[], object]

LINE_STEP: Final = 11
CALL_STEP: Final = 2
PLACES: Final = (
    "/election/",
    "/haservices/",
    "/leaderserver/client/",
    "/nameservice/",
    "/retrieval/",
    "/zmqtransport/",
    "/concurrent/futures/",
    "/threading.py",
)


class Listener:
    """Hears who leads, and does nothing."""

    def notify_leader(self, leader: object) -> None:
        """Do nothing."""

    def handle_error(self, error: Exception) -> None:
        """Do nothing."""


class Contender:
    """Says what it is granted to a thread that may be interrupted as it waits."""

    def __init__(self) -> None:
        self.granted: queue.SimpleQueue[LeaderSession] = queue.SimpleQueue()

    def grant_leadership(self, session: LeaderSession) -> None:
        """Say so."""
        self.granted.put(session)

    def revoke_leadership(self) -> None:
        """Do nothing."""

    def handle_error(self, error: Exception) -> None:
        """Do nothing."""


@frozen
class Names:
    """
    A name service.

    Attributes:
        url: Where it is.
        is_left: Whether the services given have left nothing behind that it sees.
    """

    url: str
    is_left: Callable[[Open], bool]


def has_no_session(ensemble: ZooKeeperServer) -> bool:
    """Return whether a ZooKeeper knows of no session."""
    return "zk_global_sessions\t0\n" in ensemble.ask("mntr")


@pytest.fixture(
    scope="module", params=nightly_after(2, ["leaderserver", "embedded", "zookeeper"])
)
def names(request: pytest.FixtureRequest) -> Iterator[Names]:
    """Return a name service of each kind."""
    if request.param == "embedded":
        yield Names("embedded:signals", lambda it: not it.hub.is_running)
        return
    if request.param == "zookeeper":
        with ZooKeeperServer() as ensemble:
            yield Names(ensemble.url, lambda _: has_no_session(ensemble))
        return
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        yield Names(server.url, lambda _: not server.status()["sessions"])


@final
class Open:
    """Services, and what was begun with them before; its callbacks run elsewhere."""

    def __init__(self, url: str) -> None:
        self.ha = open_ha_services(HAConfig(url=url))
        if url.startswith("embedded:"):
            assert isinstance(self.ha, ClientHAServices)
            self.hub = link_of(self.ha).hub
        self.election = self.ha.get_leader_election("b")
        self.election.start(RecordingContender())
        self.retriever = self.ha.get_leader_retriever("b")
        self.retriever.start(Listener())

    def elect(self) -> None:
        """Enter an election."""
        self.ha.get_leader_election("a").start(RecordingContender())

    def look(self, listener: Listener | None) -> None:
        """Begin to look for a leader."""
        self.ha.get_leader_retriever("a").start(listener)

    def watch(self) -> None:
        """Begin to watch a path of a leader store, and end it."""
        self.ha.get_leader_store("a").watch("path").close()

    def taking(self) -> Action:
        """Return how a change is waited for, until another thread ends that."""
        watch = self.ha.get_leader_store("a").watch("path")
        next(watch)
        may_end: queue.SimpleQueue[None] = queue.SimpleQueue()

        def end() -> None:
            may_end.get()
            watch.close()

        ending = threading.Thread(target=end)
        ending.start()

        def take() -> None:
            may_end.put(None)
            next(watch, None)
            ending.join()

        return take


def confirming(it: Open) -> Action:
    """Return how a leadership is confirmed."""
    contender = RecordingContender()
    election = it.ha.get_leader_election("c")
    election.start(contender)
    granted = contender.wait_for_grant().leader_session_id
    return lambda: election.confirm_leadership(granted, "host:1")


def committing(it: Open) -> Action:
    """Return how a leader writes to its store, and runs something."""
    contender = RecordingContender()
    election = it.ha.get_leader_election("d")
    election.start(contender)
    session = contender.wait_for_grant()
    election.confirm_leadership(session.leader_session_id, "host:1")

    def commit() -> None:
        it.ha.get_leader_store("d").put("path", b"value", session=session)
        election.run_if_leader(session.leader_session_id, lambda: None).result()

    return commit


def campaigning(it: Open) -> None:
    """Lead, and wait a little for the end of that."""
    with campaign(it.ha, "e", "host:1") as leadership:
        leadership.lost.wait(0.001)


ACTIONS: dict[str, Callable[[Open], Action]] = {
    "ask": lambda it: it.ha.operations.leaders,
    "read": lambda it: lambda: it.ha.get_leader_store("a").get("path"),
    "watch": lambda it: it.watch,
    "take": lambda it: it.taking(),
    "elect": lambda it: it.elect,
    "look": lambda it: lambda: it.look(None),
    "listen": lambda it: lambda: it.look(Listener()),
    "wait": lambda it: lambda: it.retriever.wait_for_leader(0),
    "hear": lambda it: lambda: it.election.when_closing(lambda: None),
    "confirm": confirming,
    "commit": committing,
    "campaign": lambda it: lambda: campaigning(it),
    "close one": lambda it: it.election.close,
    "close another": lambda it: it.retriever.close,
    "close": lambda it: it.ha.close,
}


def begin(names: Names, name: str) -> Closed:
    """Return one of the actions, over new services, which are closed amid it."""
    it = Open(names.url)
    return Closed(
        action=ACTIONS[name](it),
        close=it.ha.close,
        check=partial(wait_until, partial(names.is_left, it)),
    )


@pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
@pytest.mark.parametrize("name", ACTIONS)
def test_services_are_closed_amid_what_their_thread_does(
    names: Names, name: str, first: int
) -> None:
    """
    SIGTERM may close them before any line of what the main thread does with them.

    The handler waited for ever: for a lock that its own thread held, for what its own
    thread was just opening or closing, or for callbacks that needed such a lock.
    """
    close_amid(partial(begin, names, name), places=PLACES, first=first, step=LINE_STEP)


@pytest.mark.parametrize(
    "after_calls", nightly_after(1, [False, True]), ids=["lines", "calls"]
)
@pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
@pytest.mark.parametrize("name", ACTIONS)
def test_what_the_main_thread_does_is_broken_off(
    names: Names, name: str, first: int, *, after_calls: bool
) -> None:
    """
    A Ctrl-C before any line of what it does with services leaves them to be closed.

    It left locks that were taken, threads that counted and did not run, and what had
    begun to close and never did: closing waited for ever, and so did all that came.
    """
    if after_calls and name == "hear":
        pytest.skip("it calls no function that is written in C")
    step = CALL_STEP if after_calls else LINE_STEP
    break_off(
        partial(begin, names, name),
        places=PLACES,
        first=first,
        step=step,
        after_calls=after_calls,
    )


@pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
def test_opening_is_broken_off(names: Names, first: int) -> None:
    """Services that a Ctrl-C has kept from their opener are closed."""
    threads_before = threading.active_count() + 1  # what breaks off that which hangs

    def begin() -> Closed:
        opened: list[HAServices] = []

        def close() -> None:
            for ha in opened:
                ha.close()

        return Closed(
            action=lambda: opened.append(open_ha_services(names.url)),
            close=close,
            check=lambda: wait_until(
                lambda: threading.active_count() == threads_before
            ),
        )

    break_off(begin, places=PLACES, first=first, step=LINE_STEP)


def use(ha: HAServices) -> None:
    """Use each thing that services give."""
    retriever = ha.get_leader_retriever("a")
    retriever.start(Listener())
    contender = Contender()
    election = ha.get_leader_election("a")
    election.start(contender)
    session = contender.granted.get()
    election.run_if_leader(session.leader_session_id, lambda: None).result()
    election.confirm_leadership(session.leader_session_id, "host:1")
    ha.get_leader_store("a").put("path", b"value", session=session)
    ha.get_leader_store("a").watch("path").close()
    retriever.wait_for_leader()
    with campaign(ha, "b", "host:1"):
        pass


@pytest.mark.parametrize("count", [60, pytest.param(1_500, marks=pytest.mark.nightly)])
def test_all_is_broken_off_at_any_moment(names: Names, count: int) -> None:
    """Between any two steps of the interpreter: it leaves no thread, file or wait."""

    def begin() -> Closed:
        opened: list[HAServices] = []

        def act() -> None:
            opened.append(open_ha_services(names.url))
            use(opened[0])

        def close() -> None:
            for ha in opened:
                ha.close()

        return Closed(action=act, close=close)

    break_off_at_any_moment(begin, count=count)


def test_closed_services_leave_no_socket_to_the_collector(names: Names) -> None:
    """It collects on the main thread, where it would lose what a handler raises."""

    def open_and_close() -> None:
        with open_ha_services(names.url) as ha:
            use(ha)

    open_and_close()
    with freed_without_collection():
        for _ in range(3):
            open_and_close()
