"""
`StateNode`: serves key groups of queryable state, as a part of this process.

What its threads do is told in `queryablestate.node.loop` and
`queryablestate.store.threads`; here is what other threads may ask of it.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Self, TypeVar, final

from nameservice import (
    QUERY_PROXY,
    ForkGuard,
    LocalProtocolError,
    NoLeaderError,
    SystemClock,
    UnreachableError,
    get_logger,
)
from nameservice.observation import Observation
from nameservice.parameters import check_timeout_seconds
from nameservice.uninterrupted import detached
from queryablestate.node.loop import NodeLoop


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from haservices import HAServices
    from nameservice import Clock
    from queryablestate.node.config import NodeConfig


__all__ = ["StateNode"]

T = TypeVar("T")

"""As in `NodeEmptied`."""


@final
class StateNode:
    """
    Serves the key groups that the proxy leader gives it.  Thread-safe.

    It has a data directory, which one node at a time may use, and a port for writers;
    readers reach it by way of the proxy, which it finds through the name service and
    registers with, again whenever another one leads.

    A context manager: ``with StateNode(ha, NodeConfig(data_dir=D)) as node:``.  After
    ``fork()`` a child's use raises `ForkedClientError`, and its `close` is silent (rule
    E10).

    Args:
        ha: The name service; stays its owner's, and open as long as the node is.
        config: Where its rows are, where it listens, its limits.
        clock: What leases are measured by; with reader processes the machine's.
    """

    def __init__(
        self, ha: HAServices, config: NodeConfig, *, clock: Clock | None = None
    ) -> None:
        self._ha = ha
        self._config = config
        self._clock = SystemClock() if clock is None else clock
        self._guard = ForkGuard()
        self._lock = Lock()  # guards the two that follow
        self._is_started = False
        self._is_closed = False
        self._log = get_logger(component="state-node")
        self._running: NodeLoop | None = None

    # -- life ----------------------------------------------------------------------

    def start(self) -> None:
        """
        Open the data directory, listen for writers, and begin to look for the proxy.

        Raises:
            ConfigurationError: If a port, a key or a credential cannot be used; says
                what to change.
            StorageError: If the data directory cannot be used.
            LocalProtocolError: If it was started or closed before.
        """
        self._guard.check()
        detached(self._start, undo=lambda _: self.close())

    def _start(self) -> None:
        with self._lock:
            if self._is_started or self._is_closed:
                raise LocalProtocolError("a StateNode is started once")
            self._is_started = True
            running = NodeLoop(self._ha, self._config, self._clock)
            try:
                running.loop.start()
            except BaseException:
                running.loop.stop()  # closes what was opened
                raise
            self._running = running
            running.client.start()
        self._log.info("node.started", node_id=self.node_id, address=self.address)

    def join(self, timeout_seconds: float | None = None) -> bool:
        """
        Wait until it serves no more: it was closed, or has failed.

        Returns:
            Whether it is over; False after *timeout_seconds*.
        """
        loop = self._started().loop
        loop.join(check_timeout_seconds(timeout_seconds))
        return loop.is_over

    def leave(self, timeout_seconds: float | None = None) -> str | None:
        """
        Have other nodes take over what is here, as far as they can (rule S1).

        It serves on meanwhile; then it may be closed without anybody noticing.
        `close`, from another thread, ends the wait.

        Args:
            timeout_seconds: How long to wait; None for ``drain_timeout_seconds`` of the
                configuration.  With 0 the proxy is not asked.

        Returns:
            ``empty``: others have everything; ``nobody``: there is no node that could
            take it; None: neither was the case in time.
        """
        running = self._started()
        timeout_seconds = check_timeout_seconds(timeout_seconds)
        if timeout_seconds is None:
            timeout_seconds = self._config.drain_timeout_seconds
        if timeout_seconds <= 0:
            return None
        seconds = timeout_seconds
        return detached(lambda: running.leave(seconds))

    def close(self) -> None:
        """
        Stop serving, keep what is stored.  Idempotent.

        Waits for what is being written.
        """
        closed = None if self._guard.is_inherited else detached(self._close)
        if closed is not None:
            # Here: a signal handler may have interrupted a log that holds its lock.
            self._log.info("node.closed", node_id=closed.node_id)

    def _close(self) -> NodeLoop | None:
        """Return what was running, the first time."""
        with self._lock:
            is_first = not self._is_closed
            self._is_closed = True
            running = self._running
        if running is not None:
            running.client.stop_finding()
            running.loop.stop()
            running.loop.join()
        return running if is_first else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- questions -----------------------------------------------------------------

    @property
    def node_id(self) -> str:
        """Return its name: the configured one, or that of its data directory."""
        return self._started().node_id

    @property
    def address(self) -> str:
        """Return where writers reach it, as `parse_address` takes it."""
        return self._started().address

    @property
    def is_registered(self) -> bool:
        """Return whether the proxy leader has taken it, as far as is known."""
        return self._started().is_registered

    @property
    def failure(self) -> Exception | None:
        """Return why it serves no more though it was not closed, or None."""
        return None if self._running is None else self._running.loop.failure

    def wait_until_registered(self, timeout_seconds: float | None = None) -> None:
        """
        Wait until the proxy leader has taken the node.

        Raises:
            NoLeaderError: If no proxy led within *timeout_seconds*.
            UnreachableError: If one did, and did not take the node; says why.
        """
        timeout_seconds = check_timeout_seconds(timeout_seconds)
        running = self._started()
        began_ns = self._clock.now_ns()
        if detached(lambda: running.wait_until_registered(timeout_seconds)):
            return
        waited_seconds = (self._clock.now_ns() - began_ns) / 1_000_000_000
        if running.client.link == 0:
            raise NoLeaderError(QUERY_PROXY, waited_seconds)
        raise UnreachableError(QUERY_PROXY, waited_seconds, running.problem)

    def status(self) -> Mapping[str, str | int | float]:
        """
        Return the node's figures by name.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer.
        """
        return self._call(lambda running: running.figures())

    def observe(
        self, *, timeout_seconds: float = 30.0, state_count_max: int = 0
    ) -> Observation:
        """
        Return what metrics and health are made of.

        Args:
            timeout_seconds: How long to wait for its thread.
            state_count_max: Of no meaning here: the proxy tells how new states are.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer in time.
        """
        running = self._started()
        return running.loop.call(
            running.observe, target=running.address, timeout_seconds=timeout_seconds
        )

    def _call(self, action: Callable[[NodeLoop], T]) -> T:
        """Return what *action* returns in the node's thread."""
        running = self._started()
        return running.loop.call(lambda: action(running), target=running.address)

    def _started(self) -> NodeLoop:
        self._guard.check()
        if self._running is None:
            raise LocalProtocolError("the StateNode is not started")
        return self._running
