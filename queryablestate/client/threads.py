"""
`QueryShell`: many threads, one `QueryCore`, and no thread of its own.

Theory of operation.  A hop from one thread to another and back costs 50 to 90 us here,
as much as half of a round trip over two sockets (measured).  So there is no thread that
does I/O for the others: a thread that asks does it, for itself and for all others.

*   Under the lock, a thread takes a *turn*: hands to the core what it asks, sends what
    may be sent (what others ask, too: the core packs it together), and takes what has
    come.  Turns are short and never wait.
*   A thread that still waits then, and finds none *driving*, drives: waits
    until the socket is readable or the core's deadline comes, without the lock, takes a
    turn, and so on until its own requests are answered.  Then it hands over to another
    that waits, if there is one.
*   Everybody else sleeps until told: done, or to drive.

So a single thread never leaves its own stack, and of many threads one receives for all.
ZeroMQ allows a socket to be used by one thread after the other if there is a memory
barrier between them, which a lock is.

Nothing happens while no thread asks: a connection that closes meanwhile, and a leader
that changes, are noticed by the next request.

A signal handler may raise an exception anywhere, `KeyboardInterrupt` for one.  Amid a
turn it leaves half a message in a socket, or an answer that was taken from the core and
told to none.  So the next turn begins anew, with other links and a core that only
remembers what was seen (`QueryShell._begin_anew`): all that is asked is idempotent.
"""

from __future__ import annotations

import _thread
import select
import threading
from typing import TYPE_CHECKING, Final, TypeVar, final

from nameservice import LocalProtocolError
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from nameservice.interruptible import InterruptibleEvent
from nameservice.uninterrupted import uninterrupted
from queryablestate.client.driving import QueryDriver
from queryablestate.client.events import (
    TIME_WENT,
    ClientClosed,
    RequestsAsked,
    RequestsDropped,
)
from queryablestate.client.link import QueryLink
from queryablestate.client.requests import KeysRead, begin_anew
from zmqtransport import new_context
from zmqtransport.wake_pipe import WakePipe


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from haservices import HAConfig, HAServices
    from queryablestate.client.config import QueryConfig
    from queryablestate.client.requests import Request
    from queryablestate.connect.credentials import Credentials


__all__ = ["QueryShell"]

T = TypeVar("T")

_WAIT_MS_MAX: Final = 60_000
_ATTEMPT_COUNT_MAX: Final = 10
_LATE_NS: Final = 100 * NS_PER_MS
_IN_A_HANDLER: Final = "a signal handler may close a client, not ask it"


@final
class _Waiter:
    """One thread that waits, for one or more requests."""

    __slots__ = ("lock", "open_count", "requests", "thread_id")

    lock: threading.Lock
    """Held until there is something to look at; none before the thread sleeps."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.open_count = len(requests)
        self.thread_id = _thread.get_ident()

    def wake(self) -> None:
        """Have the thread look, which sleeps unless it was woken already."""
        if self.lock.locked():
            self.lock.release()


@final
class QueryShell(QueryDriver):
    """
    A `QueryCore` for threads.  Thread-safe.

    Looks for the proxy leader from the beginning, unless it is told where to ask first.

    Raises:
        ConfigurationError: If the process may have no more open files.
    """

    def __init__(
        self,
        services: HAConfig | HAServices | str,
        credentials: str | Credentials | None,
        config: QueryConfig | None = None,
        *,
        first_address: str | None = None,
    ) -> None:
        super().__init__(services, credentials, config, first_address=first_address)
        self._is_news = False
        self._is_amid_turn = False  # under the lock, also if a turn was broken off
        # Guards what follows, and what is inherited.  It knows its owner: a signal
        # handler runs amid a turn of its own thread, and must not begin another.
        self._lock = threading.RLock()
        self._requests = self._core.requests
        self._waiters: dict[_Waiter, None] = {}
        self._driver: _Waiter | None = None
        self._main_thread_id = threading.main_thread().ident  # it runs signal handlers
        self._polling_until_ns = 0  # of who drives; 0 if it is awake, or is woken
        self._is_closed = False
        self._is_released = False
        self._closed = InterruptibleEvent()
        self._poll = select.poll()
        self._wake_pipe: WakePipe | None = None
        self._by_descriptor: dict[int, QueryLink] = {}
        try:
            uninterrupted(self._open_files)
            self._make_poll()
            if first_address is None:
                self._finder.start()
        except BaseException:
            if self._wake_pipe is not None:
                self.close()
            raise

    def _open_files(self) -> None:
        """Open what stays open until it is closed: all of it, or nothing."""
        wake_pipe = WakePipe()
        try:
            self._context = new_context()
        except BaseException:
            del wake_pipe  # or it stays open for as long as the exception is kept
            raise
        self._wake_pipe = wake_pipe

    def run(self, *requests: Request) -> None:
        """
        Ask, and return when all of *requests* are done, be it with an error.

        Raises:
            ForkedClientError: In a child of the process that made it.
            LocalProtocolError: In a signal handler that has interrupted a turn, or a
                wait for an answer.
        """
        self._guard.check()
        if self._is_interrupted():
            raise LocalProtocolError(_IN_A_HANDLER)
        waiter = _Waiter(requests)
        for request in requests:
            request.waiter = waiter
        try:
            with self._lock:
                if waiter.thread_id == self._main_thread_id:
                    self._check_not_waiting()
                self._begin_turn()
                if not self._ask_now(requests):
                    self._turn(requests)
                is_done = not waiter.open_count
                is_driving = not is_done and self._driver is None
                if is_driving:
                    self._driver = waiter
                    self._polling_until_ns = 0
                else:
                    if not is_done:
                        waiter.lock = threading.Lock()
                        waiter.lock.acquire()
                        self._waiters[waiter] = None
                    self._hurry()
                self._is_amid_turn = False
            if is_done:
                return
            if not is_driving:
                self._sleep(waiter)
                if self._driver is not waiter:
                    return  # done
            self._drive(waiter)
        except BaseException:  # KeyboardInterrupt, for one
            try:
                self._give_up(waiter)
            except BaseException:  # another one, before it was ready for that
                self._give_up(waiter)
                raise
            raise

    def _sleep(self, waiter: _Waiter) -> None:
        """
        Return when *waiter* is done, or is to drive.

        A signal handler may keep the main thread from driving, and even wait for this
        thread.  So each looks by itself before its deadline, and then again.  Where
        the handler has interrupted a turn, and not a sleep, there is no way to look.
        """
        due_ns = max(request.deadline_ns for request in waiter.requests) - _LATE_NS
        while True:
            left_ns = max(_LATE_NS, due_ns - self.clock.now_ns())
            if waiter.lock.acquire(timeout=left_ns / NS_PER_SECOND):
                return
            with self._lock:
                self._begin_turn()
                self._unlooked.update(dict.fromkeys(self._by_descriptor.values()))
                self._receive()  # before time goes on: what has come is in time
                self._turn()
                self._hurry()
                self._is_amid_turn = False

    def pause(self, seconds: float) -> None:
        """Return after *seconds*, or as soon as the shell is closed."""
        self._closed.wait(seconds)

    def close(self) -> None:
        """
        Release everything.  Idempotent; silent in a forked child.

        Requests that wait in other threads fail.  In a signal handler that has
        interrupted a turn, it does not wait: it happens once that turn is over.
        """
        if self._guard.is_inherited:
            return
        if self._is_interrupted():
            # `threading` takes locks that the interrupted thread may hold already.
            _thread.start_new_thread(self.close, ())
            return
        is_released = True
        try:
            with self._lock:
                is_released = self._is_released
                if is_released:
                    return
                self._is_released = True
                self._begin_turn()
                self._is_closed = True
                self._closed.set()
                self._step(ClientClosed())
                self._turn()
                self._close_link()
                for number in list(self._node_links):
                    self._close_node_link(number)
                self._wake()
                self._release()
                self._is_amid_turn = False
            self._finder.close()
            self._whole(self._end_context)
        except BaseException:
            if not is_released:
                self._is_released = False  # it can be closed once more
                self._wake()  # who drives may have its answer: that it is closed
            raise

    def _is_interrupted(self) -> bool:
        """Return whether this thread is amid a turn, and now in a signal handler."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001

    def _check_not_waiting(self) -> None:
        """
        Raise an error if the main thread waits already; under the lock.

        Then this is a signal handler that has interrupted the wait.  What its thread
        receives for itself and all others, it receives when the handler has returned:
        they all would wait for ever, past every deadline.
        """
        driver, main_thread_id = self._driver, self._main_thread_id
        if (driver is not None and driver.thread_id == main_thread_id) or (
            self._waiters
            and any(one.thread_id == main_thread_id for one in self._waiters)
        ):
            raise LocalProtocolError(_IN_A_HANDLER)

    # -- driving -----------------------------------------------------------------------

    def _drive(self, waiter: _Waiter) -> None:
        """Receive for everybody, until *waiter* has its answer."""
        ready: list[tuple[int, int]] | None = None
        wait_ms = 0
        links: Mapping[int, QueryLink] = {}
        while True:
            with self._lock:
                self._begin_turn()
                if ready is not None:  # who begins to drive has just had a turn
                    self._turn(has_come=self._look_at(ready, links))
                is_done = not waiter.open_count
                if is_done:
                    self._hand_over()
                else:
                    wait_ms = self._wait_ms()
                poll = self._poll
                links = self._by_descriptor
                self._is_amid_turn = False
            if is_done:
                return
            ready = poll.poll(wait_ms)

    def _look_at(
        self, ready: Sequence[tuple[int, int]], links: Mapping[int, QueryLink]
    ) -> QueryLink | None:
        """Take note of what is ready; return over which link a message has come."""
        has_come: QueryLink | None = None
        wake_pipe = self._wake_pipe
        assert wake_pipe is not None
        for descriptor, _ in ready:
            if descriptor == wake_pipe.reader:
                wake_pipe.drain()
                continue
            link = links[descriptor]
            if not self._is_present(link):
                continue  # it was closed meanwhile
            if descriptor == link.descriptors[0]:
                self._unlooked[link] = None
                has_come = link
            else:
                self._watch_link(link)
        return has_come

    def _hand_over(self) -> None:
        """Have another drive; under the lock."""
        self._driver = None
        if self._waiters:
            self._driver = waiter = next(iter(self._waiters))
            self._polling_until_ns = 0
            waiter.wake()
            del self._waiters[waiter]
        elif self._is_closed:
            self._release()

    def _give_up(self, waiter: _Waiter) -> None:
        """Forget *waiter*: its thread has been interrupted, and may be again."""
        requests = waiter.requests
        for attempts_left in reversed(range(_ATTEMPT_COUNT_MAX)):
            try:
                with self._lock:
                    waiter.requests = ()
                    self._begin_turn()
                    self._waiters.pop(waiter, None)
                    self._turn()
                    self._step(RequestsDropped(requests=requests))
                    self._receive()  # what had waited for room was sent by that
                    # None drives, too, if it was handing over when it was interrupted.
                    if self._driver is None or self._driver is waiter:
                        self._hand_over()
                    self._hurry()
                    self._is_amid_turn = False
            except BaseException:
                if attempts_left:
                    continue
                with self._lock:  # another one may be luckier, or fail and be told
                    self._waiters.pop(waiter, None)
                    if self._driver is None or self._driver is waiter:
                        self._hand_over()
                raise
            else:
                return

    def _wait_ms(self) -> int:
        """Return how long to wait for the socket, rounded up; under the lock."""
        deadline_ns = self._core.next_deadline_ns()
        now_ns = self.clock.now_ns()  # a turn may have had no step
        if deadline_ns is None:
            deadline_ns = now_ns + _WAIT_MS_MAX * NS_PER_MS
        self._polling_until_ns = deadline_ns
        if self._is_news:
            return 0
        return max(0, min(-((now_ns - deadline_ns) // NS_PER_MS), _WAIT_MS_MAX))

    def _hurry(self) -> None:
        """
        Wake who drives if it would sleep too long; under the lock.

        Another thread's turn may have received its answer, or why it is to ask again
        soon: nothing that it waits for tells of that.
        """
        driver, until_ns = self._driver, self._polling_until_ns
        if driver is None or not until_ns:
            return  # it looks by itself before it sleeps
        deadline_ns = self._core.next_deadline_ns()
        if not driver.open_count or (
            deadline_ns is not None and deadline_ns < until_ns
        ):
            self._polling_until_ns = 0
            self._wake()

    # -- turns -------------------------------------------------------------------------

    def _begin_turn(self) -> None:
        """Begin what must be whole, or begin anew if it was not; under the lock."""
        if self._is_amid_turn:
            self._begin_anew()
        self._is_amid_turn = True

    def _begin_anew(self) -> None:
        """
        Ask anew what threads wait for, over other links; under the lock.

        What is done here may be broken off as well, and is done once more then.
        """
        self._link = None
        self._node_links.clear()
        self._unlooked.clear()
        self._events.clear()
        self._make_poll()
        for link in tuple(self._open_links):
            self._whole(link.close)
            self._open_links.discard(link)
        self._core = self._core.renewed(now_ns=self.clock.now_ns())
        self._requests = self._core.requests
        waiters = list(self._waiters)
        if self._driver is not None and self._driver not in self._waiters:
            waiters.append(self._driver)
        unanswered: list[Request] = []
        for waiter in waiters:
            left = [request for request in waiter.requests if not request.is_done]
            waiter.open_count = len(left)
            unanswered += left
        for request in unanswered:
            begin_anew(request)
        for waiter in tuple(self._waiters):
            if waiter is self._driver or not waiter.open_count:
                waiter.wake()
                del self._waiters[waiter]
        if self._finder.has_heard or self._finder.problem is not None:
            self._is_news = False
            self._step(self._leader_told())
        if self._is_closed:
            self._step(ClientClosed())
        unanswered.sort(key=lambda request: request.asked_ns)
        self._step(RequestsAsked(unanswered))
        self._wake()  # who drives has waited for the links of before

    def _ask_now(self, requests: Sequence[Request]) -> bool:
        """Ask by the shortest way if that is open; return whether it was."""
        request = requests[0]
        link = self._link
        if (
            self._driver is not None
            or self._is_news
            or len(requests) != 1
            or not isinstance(request, KeysRead)
            or link is None
            or not link.is_made
        ):
            return False
        effect = self._core.ask_now(request)
        if effect is None:
            return False
        self._send(effect)
        self._receive()
        return True

    def _turn(
        self, requests: Sequence[Request] = (), *, has_come: QueryLink | None = None
    ) -> None:
        """
        Ask, and do whatever can be done now; under the lock.

        ZeroMQ signals a message only to one who has looked in vain since the last one,
        and a send may take the signal: so a turn ends with looking, unless no thread
        waits for anything.
        """
        if self._is_news:
            self._is_news = False
            self._step(self._leader_told())
        if requests:
            self._step(RequestsAsked(requests))
        elif has_come is None:
            deadline_ns = self._core.next_deadline_ns()
            if deadline_ns is not None and deadline_ns <= self.clock.now_ns():
                self._step(TIME_WENT)
        if self._link is not None and not self._link.is_made:
            self._watch_link(self._link)
        for link in list(self._node_links.values()):
            if not link.is_made:
                self._watch_link(link)
        self._receive(has_come)

    def _receive(self, has_come: QueryLink | None = None) -> None:
        """Take the messages that have come, if anybody waits for any."""
        unlooked = self._unlooked
        while unlooked and self._requests:
            link = next(iter(unlooked)) if has_come is None else has_come
            if link not in unlooked:
                has_come = None
                continue  # it was closed meanwhile
            message = link.receive(is_likely=has_come is not None)
            has_come = None
            if message is not None:
                self._step(message)
                continue
            del unlooked[link]
            if not link.is_made:
                self._watch_link(link)

    def _complete(self, requests: Sequence[Request]) -> None:
        for request in requests:
            waiter: _Waiter = request.waiter
            waiter.open_count -= 1
            if not waiter.open_count and waiter in self._waiters:
                waiter.wake()
                del self._waiters[waiter]

    def _whole(self, action: Callable[[], T]) -> T:
        return uninterrupted(action)

    def _link_opened(self, link: QueryLink) -> None:
        self._unlooked[link] = None
        self._make_poll()

    def _link_closing(self, link: QueryLink) -> None:
        self._make_poll()

    def _make_poll(self) -> None:
        """Have who drives wait for the present link; a poll object serves one wait."""
        if self._wake_pipe is None:
            return  # it is closed, and none waits any more
        self._poll = select.poll()
        self._poll.register(self._wake_pipe.reader, select.POLLIN)
        links = list(self._node_links.values())
        if self._link is not None:
            links.append(self._link)
        self._by_descriptor = {
            descriptor: link for link in links for descriptor in link.descriptors
        }
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)
        self._wake()

    # -- waking ------------------------------------------------------------------------

    def _leader_changed(self) -> None:
        """Take note of news; on a thread of the name service."""
        self._is_news = True
        self._wake()

    def _wake(self) -> None:
        """Have the thread that drives look again; from any thread."""
        wake_pipe = self._wake_pipe
        if wake_pipe is not None:
            wake_pipe.wake()

    def _release(self) -> None:
        """Close the pipe when the client is closed and no thread drives any more."""
        if self._is_closed and self._driver is None:
            self._whole(self._drop_wake_pipe)

    def _drop_wake_pipe(self) -> None:
        self._wake_pipe = None
