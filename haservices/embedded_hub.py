"""
`EmbeddedHub`: a LeaderServer without a network, shared by the services of one process.

It is the same `LeaderService` that a LeaderServer runs and the same `ClientCore` that
its clients run, joined by a queue instead of sockets and driven by one thread.  What a
test suite sees on the embedded backend is therefore what production does.

One thing differs on purpose.  A process that stops at a breakpoint, or is starved,
stops its name service and all of its clients together, so no client has fallen silent:
the hub's clock stands still while its thread does not run.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import uuid
from collections import deque
from queue import Empty
from typing import TYPE_CHECKING, Final, final

from election.config import ElectionConfig
from leaderserver.server.core.turn import Broadcast, Outgoing
from leaderserver.server.service import LeaderService
from leaderserver.server.service_config import ServiceConfig
from leaderserver.server.storage import MemoryStorage
from nameservice import NS_PER_SECOND, SystemClock, get_logger
from nameservice.clock import earliest
from nameservice.interruptible import InterruptibleQueue
from zmqtransport import ANONYMOUS


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from election.component import Component
    from election.epochs import EpochSource
    from election.events import ElectionEvent
    from leaderserver.client.client import LeaderClient
    from leaderserver.messages import ToClient, ToServer, Welcome


__all__ = ["EmbeddedHub", "EmbeddedLink"]

_LATE_NS: Final = NS_PER_SECOND // 20
_DURATION_NS_MAX: Final = 2**62


@final
class _ProcessClock:
    """
    The system's clock, less the time in which the hub's thread did not run.

    Any thread may read it.  What the hub's own thread has read never falls.
    """

    def __init__(self) -> None:
        self._system = SystemClock()
        self._stalled_ns = 0
        self._owner: int | None = None
        self._read_ns = 0

    def now_ns(self) -> int:
        now_ns = self.peek_ns()
        if threading.get_ident() == self._owner:
            self._read_ns = now_ns
        return now_ns

    def peek_ns(self) -> int:
        """Return the time without deciding anything by it."""
        return self._system.now_ns() - self._stalled_ns

    def own(self) -> None:
        """
        Make the calling thread the hub's.

        Time before that is no stall: without clients there is nothing to run for.
        """
        self._owner = threading.get_ident()
        self._read_ns = max(self._read_ns, self.peek_ns())

    def excuse_since(self, due_ns: int) -> None:
        """Leave out the time since *due_ns*, when the hub should have run."""
        late_ns = self.peek_ns() - max(due_ns, self._read_ns)
        if late_ns > _LATE_NS:
            self._stalled_ns += late_ns


@final
class EmbeddedHub:
    """
    The name service of one embedded URL.

    Its thread runs while there are links; what is stored stays when they are gone.

    A signal handler may close services amid what its own thread does with others.  So
    what is posted takes no lock; links come and go where no handler runs.

    Args:
        name: For logs and thread names.
        epochs: Shared by all hubs of the process.
    """

    def __init__(self, name: str, *, epochs: EpochSource) -> None:
        self.clock = _ProcessClock()
        self._name = name
        self._log = get_logger(component="embedded", hub=name)
        self._service = LeaderService(
            ServiceConfig(
                lease_ns_min=1,
                lease_ns_max=_DURATION_NS_MAX,
                session_timeout_ns_min=2,
                session_timeout_ns_max=_DURATION_NS_MAX,
            ),
            # No contender led before the process began: there is nothing to wait for.
            # What is later than its tick, the hub's clock has excused already.
            ElectionConfig(namespace=uuid.uuid4(), undecided_ns=0, tick_ns=_LATE_NS),
            epochs=epochs,
            storage=MemoryStorage(),
            draw_secret=secrets.token_bytes,
            now_ns=self.clock.now_ns(),
        )
        self._actions: InterruptibleQueue[Callable[[], None]] = InterruptibleQueue()
        self._lock = threading.Lock()  # guards what follows
        self._links: dict[EmbeddedLink, None] = {}
        self._thread: threading.Thread | None = None
        self._last_thread: threading.Thread | None = None

    # -- for links, on any thread ----------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """Run *action* on the hub's thread soon."""
        self._actions.put(action)  # reentrant

    @property
    def is_running(self) -> bool:
        """Return whether anybody takes part, so that what is posted is done."""
        return self._thread is not None

    def attach(self, link: EmbeddedLink) -> None:
        """Have *link* take part; the first one starts the thread."""
        with self._lock:
            self._links[link] = None
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run,
                    args=[self._last_thread],
                    name=f"embedded-{self._name}",
                    daemon=True,
                )
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:  # the process may have no more of them
                    self._thread = None
                    self._links.pop(link)
                    raise
        self.post(link.client.opened)

    def detach(self, link: EmbeddedLink) -> None:
        """Forget *link*; the last one waits for the thread to end."""
        self.post(
            lambda: self._dispatch(
                self._service.connection_closed(link, now_ns=self.clock.now_ns())
            )
        )
        with self._lock:
            self._links.pop(link, None)
            thread = None if self._links else self._thread
            if thread is not None:
                self._thread = None
                self._last_thread = thread
        self.post(_wake)  # it may have nothing more to do
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- on the hub's thread ---------------------------------------------------------

    def take(self, link: EmbeddedLink, message: ToServer) -> None:
        """Bring a client's message to the service."""
        self._dispatch(
            self._service.receive(
                message,
                peer=link,
                connection=link,
                principal=ANONYMOUS,
                now_ns=self.clock.now_ns(),
            )
        )

    def component(self, component_id: str) -> Component | None:
        """Return what is known of a component, or None; for leadership control."""
        return self._service.component(component_id)

    def inject(self, event: ElectionEvent) -> None:
        """Have *event* happen to the election; for leadership control."""
        self._dispatch(self._service.inject(event, now_ns=self.clock.now_ns()))

    def _run(self, predecessor: threading.Thread | None) -> None:
        me = threading.current_thread()
        if predecessor is not None:
            predecessor.join()  # one thread at a time: it may still have work to do
        self.clock.own()
        while True:
            deadline_ns = self._next_deadline_ns()
            is_last = self._thread is not me
            actions = self._take(0 if is_last else self._wait_seconds(deadline_ns))
            if is_last and not actions:
                return
            self._excuse(deadline_ns)
            for action in actions:
                self._call(action)
            self._excuse(self._next_deadline_ns())
            self._advance()

    def _excuse(self, due_ns: int | None) -> None:
        if due_ns is not None:
            self.clock.excuse_since(due_ns)

    def _take(self, wait_seconds: float) -> Sequence[Callable[[], None]]:
        """Return what was posted by now; wait for it if there is nothing."""
        actions: list[Callable[[], None]] = []
        with contextlib.suppress(Empty):
            actions.append(self._actions.get(timeout=wait_seconds))
            actions += [
                self._actions.get_nowait() for _ in range(self._actions.qsize())
            ]
        return actions

    def _wait_seconds(self, deadline_ns: int | None) -> float:
        if deadline_ns is None:
            return threading.TIMEOUT_MAX
        return max(0, deadline_ns - self.clock.peek_ns()) / NS_PER_SECOND

    def _next_deadline_ns(self) -> int | None:
        deadlines = [self._service.next_deadline_ns()]
        deadlines += [link.next_deadline_ns() for link in list(self._links)]
        return earliest(deadlines)

    def _advance(self) -> None:
        now_ns = self.clock.now_ns()
        deadline_ns = self._service.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._call(
                lambda: self._dispatch(
                    self._service.advance(now_ns=self.clock.now_ns())
                )
            )
        for link in list(self._links):
            deadline_ns = link.next_deadline_ns()
            if deadline_ns is not None and deadline_ns <= now_ns:
                self._call(link.client.advance)

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - one client's failure must not stop the hub
            self._log.exception("loop.failed")

    def _dispatch(self, outgoing: Iterable[Outgoing]) -> None:
        """Put messages into the queue: no step of one core happens within another's."""
        for item in outgoing:
            if isinstance(item, Broadcast):
                # Others come and go on threads of their own.
                for link in list(self._links):
                    if item.message.component_id in link.topics:
                        self._deliver(link, item.message)
            else:
                assert isinstance(item.peer, EmbeddedLink)
                self._deliver(item.peer, item.message)

    def _deliver(self, link: EmbeddedLink, message: ToClient) -> None:
        self.post(lambda: link.arrive(message))


def _wake() -> None:
    """Do nothing, on the hub's thread."""


@final
class EmbeddedLink:
    """
    A client's connection to a hub, which tests may cut and pause.

    *Cut*, whatever is sent either way is lost.  *Paused*, the client does nothing at
    all, and finds what came meanwhile when it is resumed.
    """

    def __init__(self, hub: EmbeddedHub, client: LeaderClient) -> None:
        self.client = client
        self.topics: set[str] = set()
        self._hub = hub
        self._is_attached = False
        self._is_cut = False
        self._is_paused = False
        self._held: deque[Callable[[], None]] = deque()

    # -- as a ClientLink -------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """Run *action* on the hub's thread soon."""
        if not self._is_attached:
            self._is_attached = True  # before the client is told that it is open
            try:
                self._hub.attach(self)
            except BaseException:
                self._is_attached = False
                raise
        self._hub.post(lambda: self._act(action))

    def send(self, message: ToServer) -> None:
        """Send now, or not at all."""
        if not self._is_cut:
            self._hub.post(lambda: self._hub.take(self, message))

    def connect_publisher(self, welcome: Welcome) -> None:
        """Do nothing: the hub broadcasts to its links."""

    def join_topic(self, component_id: str) -> None:
        """Hear broadcasts of *component_id*."""
        self.topics.add(component_id)

    def leave_topic(self, component_id: str) -> None:
        """Hear them no more."""
        self.topics.discard(component_id)

    def stop(self) -> None:
        """Leave the hub; what it has yet to do for us opens no session any more."""
        self._is_cut = True
        self._hub.detach(self)

    @property
    def hub(self) -> EmbeddedHub:
        """Return the hub that it leads to."""
        return self._hub

    # -- for the hub, on its thread ----------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """Return when the client wants to be advanced."""
        return None if self._is_paused else self.client.next_deadline_ns()

    def arrive(self, message: ToClient) -> None:
        """Bring a message to the client, if the link carries it."""
        if not self._is_cut:
            self._act(lambda: self.client.received(message))

    def cut(self) -> None:
        """Lose everything from now on."""
        self._is_cut = True

    def heal(self) -> None:
        """Carry messages again."""
        self._is_cut = False

    def pause(self) -> None:
        """Stop the client."""
        self._is_paused = True

    def resume(self) -> None:
        """Have the client go on, with what it missed first."""
        self._is_paused = False
        while self._held:
            self._held.popleft()()
        self.client.advance()

    def release(self) -> None:
        """Resume the client if it is paused: it is about to close.  On any thread."""

        def resume() -> None:
            if self._is_paused:
                self.resume()

        self._hub.post(resume)

    def _act(self, action: Callable[[], None]) -> None:
        if self._is_paused:
            self._held.append(action)
        else:
            action()
