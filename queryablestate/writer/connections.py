"""
The connections to proxies and nodes that a process keeps for its writers.

Spark uses its Python workers again and again, and a handshake costs more than a small
batch: links that have answered everything wait here for the next task.  A link on
which anything went wrong is closed; a new one has no history.

Spark's daemon forks its workers.  What a process has opened before a fork is its own:
the child begins with nothing, and never touches what it has inherited.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Final, final

from queryablestate.client.calls import ProxyConnection
from queryablestate.connect.node_link import NodeLink
from zmqtransport import CurveKeyPair, ZMQContext, new_context


if TYPE_CHECKING:
    from haservices import HAConfig
    from queryablestate.connect.credentials import Credentials


__all__ = [
    "WriterConnections",
    "close_writer_connections",
    "writer_connections",
]

_LINKS_KEPT_COUNT_MAX: Final = 64


@final
class WriterConnections:
    """What one process keeps open for writers.  Thread-safe."""

    def __init__(self) -> None:
        self._proxies: dict[tuple[HAConfig, Credentials], ProxyConnection] = {}
        # Guards what follows; reentrant: a signal handler may close it amid a call.
        self._lock = threading.RLock()
        self._context: ZMQContext | None = None
        self._links: list[NodeLink] = []
        self._in_use_count = 0

    def proxy(
        self,
        config: HAConfig,
        credentials: Credentials,
        *,
        first_address: str | None = None,
    ) -> ProxyConnection:
        """Return this process's way to the proxy leader; see `ProxyConnection`."""
        held = self._proxies.get((config, credentials))
        if held is None:
            # Of two that make one, the first is taken: none opens anything yet.
            made = ProxyConnection(config, credentials, first_address=first_address)
            held = self._proxies.setdefault((config, credentials), made)
        return held

    def take_link(self, address: str, key_pair: CurveKeyPair | None) -> NodeLink:
        """
        Return a link to *address* that is not shared, opened now if need be.

        Give it back.

        Raises:
            ConfigurationError: If no socket can connect there.
            AuthenticationError: If we have keys, and *address* has none.
        """
        with self._lock:
            self._in_use_count += 1  # first: what closes meanwhile leaves the context
        try:
            return self._taken(address, key_pair)
        except BaseException:
            with self._lock:
                self._in_use_count -= 1
            raise

    def _taken(self, address: str, key_pair: CurveKeyPair | None) -> NodeLink:
        over: list[NodeLink] = []
        found: NodeLink | None = None
        with self._lock:
            for link in [one for one in self._links if one.address == address]:
                if link.key_pair != key_pair:
                    continue
                try:
                    self._links.remove(link)
                except ValueError:
                    continue  # a signal handler has closed it
                if not link.is_over():
                    found = link
                    break
                over.append(link)
            if self._context is None:
                self._context = new_context()
            context = self._context
        for link in over:
            link.close()
        return NodeLink(context, address, key_pair) if found is None else found

    def give_back(self, link: NodeLink, *, is_sound: bool) -> None:
        """
        Take back what `take_link` gave.

        Args:
            link: The link.
            is_sound: Whether every request on it was answered; if so, it is kept.
        """
        over = [] if is_sound else [link]
        with self._lock:
            if is_sound:
                self._links.append(link)
                over = self._links[:-_LINKS_KEPT_COUNT_MAX]
                del self._links[:-_LINKS_KEPT_COUNT_MAX]
        for one in over:
            one.close()
        with self._lock:
            self._in_use_count -= 1

    def close(self) -> None:
        """Close what is kept; who asks again opens anew."""
        with self._lock:
            links, self._links = self._links, []
            context = None
            if not self._in_use_count:  # else a later call, or the end, sees to it
                context, self._context = self._context, None
        for link in links:
            link.close()
        for key in list(self._proxies):
            proxy = self._proxies.pop(key, None)
            if proxy is not None:
                proxy.close()
        if context is not None:
            context.term()


_connections = WriterConnections()
# What a child inherits is kept and never touched: were it collected, its sockets,
# which are the parent's, would be closed.
_inherited: list[WriterConnections] = []


def writer_connections() -> WriterConnections:
    """Return what this process keeps open for writers."""
    return _connections


def close_writer_connections() -> None:
    """
    Close what writers have opened in this process.  Idempotent.

    For programs that outlive their last write; it is done at exit anyway.
    """
    _connections.close()


def _forget() -> None:
    global _connections  # noqa: PLW0603 - a forked child begins anew, lock included
    _inherited.append(_connections)
    _connections = WriterConnections()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_writer_connections)
