"""
`QueryDriver`: steps a `QueryCore` and performs what it says; what both shells share.

A shell says when: on which thread or loop, how it waits for the link, and how it tells
those that wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, TypeVar, assert_never

from haservices import HAConfig
from nameservice import ForkGuard, NameServiceError, SystemClock
from queryablestate.client.core import QueryCore
from queryablestate.client.events import (
    AskWhoLeads,
    CompleteRequests,
    ConnectionMade,
    ConnectionRefused,
    ConnectNode,
    ConnectTo,
    Disconnect,
    DisconnectNode,
    LeaderTold,
    NodeConnected,
    NodeFailed,
    QueryEffect,
    QueryEvent,
    SayHello,
    SendRequest,
)
from queryablestate.client.link import QueryLink
from queryablestate.connect.credentials import as_credentials
from queryablestate.connect.proxy_finder import ProxyFinder
from zmqtransport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from haservices import HAServices
    from queryablestate.client.config import QueryConfig
    from queryablestate.client.requests import Request
    from queryablestate.connect.credentials import Credentials
    from zmqtransport import ZMQContext


__all__ = ["QueryDriver"]

T = TypeVar("T")


class QueryDriver(ABC):
    """
    A core, its links to a proxy and to nodes, and what finds the proxy.

    Args:
        services: The name service, or how to open it.
        credentials: What we show the proxy.
        config: The limits of the core.
        first_address: Where to ask before the name service is asked, or None.

    Attributes:
        clock: What deadlines are measured by.
    """

    def __init__(
        self,
        services: HAConfig | HAServices | str,
        credentials: str | Credentials | None,
        config: QueryConfig | None = None,
        *,
        first_address: str | None = None,
    ) -> None:
        self.clock = SystemClock()
        self._guard = ForkGuard()
        self._credentials = as_credentials(credentials)
        self._finder = ProxyFinder(services, on_change=self._leader_changed)
        self._budget = LogBudget()
        self._core = QueryCore(
            config,
            now_ns=self.clock.now_ns(),
            first_address=first_address,
            name_service=(
                self._finder.config.url
                if isinstance(services, HAConfig | str)
                else None
            ),
        )
        self._context: ZMQContext | None = None
        self._link: QueryLink | None = None
        self._node_links: dict[int, QueryLink] = {}
        self._open_links: set[QueryLink] = set()
        # Those whose signal may have been taken by a send: they are looked at next.
        self._unlooked: dict[QueryLink, None] = {}
        self._events: deque[QueryEvent] = deque()

    @property
    def key_count_max(self) -> int:
        """Return how many keys one question may have."""
        return self._core.key_count_max

    @property
    def frame_size_bytes_max(self) -> int:
        """Return how large a request the proxy takes; 1 before the first session."""
        return self._core.frame_size_bytes_max

    @property
    def address(self) -> str | None:
        """Return where the proxy is that is connected to, or None."""
        link = self._link
        return None if link is None else link.target

    @property
    def is_volatile(self) -> bool:
        """Return whether the name service is known to forget when it is restarted."""
        return self._finder.is_volatile

    # -- what a shell does its own way -------------------------------------------------

    @abstractmethod
    def _leader_changed(self) -> None:
        """Take `_leader_told` to the core soon; on a thread of the name service."""

    @abstractmethod
    def _link_opened(self, link: QueryLink) -> None:
        """Wait for *link*, too."""

    @abstractmethod
    def _link_closing(self, link: QueryLink) -> None:
        """Wait for *link* no more."""

    def _whole(self, action: Callable[[], T]) -> T:
        """Do *action*, which opens or closes sockets, to its end."""
        return action()

    @abstractmethod
    def _complete(self, requests: Sequence[Request]) -> None:
        """Tell those who wait for *requests*."""

    # -- what they share ---------------------------------------------------------------

    def _leader_told(self) -> LeaderTold:
        """Return what is known of the leader, as an event."""
        leader = self._finder.leader
        if leader is None:
            return LeaderTold(
                address=None,
                problem=self._finder.problem,
                is_known=self._finder.has_heard or self._finder.problem is not None,
            )
        return LeaderTold(address=leader.address, epoch=leader.epoch)

    def _step(self, event: QueryEvent) -> None:
        """Have the core take a step, and perform what it says."""
        for effect in self._core.step(event, now_ns=self.clock.now_ns()):
            self._perform(effect)
        while self._events:
            for effect in self._core.step(
                self._events.popleft(), now_ns=self.clock.now_ns()
            ):
                self._perform(effect)

    def _perform(self, effect: QueryEffect) -> None:
        match effect:
            case CompleteRequests(requests):
                self._complete(requests)
            case SendRequest():
                self._send(effect)
            case SayHello():
                if self._link is not None:
                    self._unlooked[self._link] = None
                    error = self._link.greet(effect)
                    if error is not None:
                        self._close_link()
                        self._events.append(ConnectionRefused(error=error))
            case AskWhoLeads():
                self._finder.start()
            case ConnectTo(address=address):
                self._connect(address)
            case Disconnect():
                self._close_link()
            case ConnectNode(link=number, address=address):
                self._connect_node(number, address)
            case DisconnectNode(link=number):
                self._close_node_link(number)
            case _:
                assert_never(effect)

    def _send(self, request: SendRequest) -> QueryLink | None:
        """Send to the proxy or a node; return over which link, if there is one."""
        number = request.link
        link = self._node_links.get(number) if number else self._link
        if link is not None:
            self._unlooked[link] = None
            link.send(request)
        return link

    def _connect(self, address: str) -> None:
        try:
            self._link = link = self._open(address)
        except NameServiceError as error:
            self._events.append(ConnectionRefused(error=error))
        else:
            self._link_opened(link)

    def _connect_node(self, number: int, address: str) -> None:
        try:
            self._node_links[number] = link = self._open(address, number)
        except NameServiceError:
            # Whatever it is, the proxy answers in its place (rule D3).
            self._events.append(NodeFailed(link=number, is_refused=True))
        else:
            self._link_opened(link)

    def _open(self, address: str, number: int = 0) -> QueryLink:
        """Begin to connect to a proxy, or to a node."""
        assert self._context is not None
        context = self._context

        def open_link() -> QueryLink:
            link = QueryLink(
                context,
                address,
                credentials=self._credentials,
                config=self._finder.config,
                clock=self.clock,
                budget=self._budget,
                number=number,
            )
            self._open_links.add(link)
            return link

        return self._whole(open_link)

    def _watch_link(self, link: QueryLink) -> None:
        """Take note of what happened to the connection."""
        for event in link.watch():
            number = link.number
            if not number:
                if not isinstance(event, ConnectionMade):
                    self._close_link()
                self._step(event)
            elif isinstance(event, ConnectionMade):
                self._step(NodeConnected(link=number))
            else:
                self._close_node_link(number)
                is_refused = isinstance(event, ConnectionRefused)
                self._step(NodeFailed(link=number, is_refused=is_refused))

    def _is_present(self, link: QueryLink) -> bool:
        """Return whether *link* is not closed."""
        if link.number:
            return self._node_links.get(link.number) is link
        return link is self._link

    def _end_context(self) -> None:
        """End what all links were opened with, once they are closed."""
        if self._context is not None:
            self._context.term()
            # Freed here: a finalizer swallows what a handler of the main thread raises.
            self._context = None

    def _close_link(self) -> None:
        link, self._link = self._link, None
        self._close(link)

    def _close_node_link(self, number: int) -> None:
        self._close(self._node_links.pop(number, None))

    def _close(self, link: QueryLink | None) -> None:
        if link is not None:
            self._unlooked.pop(link, None)
            self._link_closing(link)
            self._whole(link.close)
            self._open_links.discard(link)
