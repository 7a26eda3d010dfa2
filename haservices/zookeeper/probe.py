"""
Whether an ensemble has lost its data, or is another one than we knew.

A server of ZooKeeper refuses clients that have seen a later transaction than it has.
That is meant for followers that lag: the client tries another server.  An ensemble that
was set up anew refuses all who knew the old one in this way, for ever and without a
word.  So a session that is lost asks, as somebody who has seen nothing: after a
``sync``, the answer names the newest transaction of the ensemble.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, final

from haservices.event_loop import EventLoop
from haservices.zookeeper.connection import (
    Connected,
    ConnectionEvent,
    ZooKeeperConnection,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices.config import HAConfig
    from nameservice import Clock


__all__ = ["ZooKeeperProbe"]


@final
class ZooKeeperProbe:
    """
    One question for the newest transaction, on threads of its own.

    Args:
        config: Whom to ask.
        clock: What time it is.
        tell: Called on the probe's thread with the answer, if there is one within the
            connect timeout.
    """

    def __init__(
        self, config: HAConfig, clock: Clock, *, tell: Callable[[int], None]
    ) -> None:
        self._config = config
        self._tell = tell
        self._newest: Future[int] = Future()
        self._loop = EventLoop("zookeeper-probe", clock)
        self._connection = ZooKeeperConnection(
            config,
            loop=self._loop,
            clock=clock,
            on_event=self._take,
            on_node_changed=lambda _: None,
        )
        self._thread = threading.Thread(
            target=self._run, name="zookeeper-probe-end", daemon=True
        )
        self._loop.start()
        try:
            self._thread.start()
        except BaseException:  # there may be no more threads
            self._loop.stop()
            raise
        # Not before: it is that thread that ends the connection.
        self._loop.call(self._connection.start)

    @property
    def is_over(self) -> bool:
        """Return whether there was an answer, or there will be none."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ask no more, and release everything.  Blocks."""
        self._newest.cancel()
        self._thread.join()

    def _take(self, event: ConnectionEvent) -> None:
        if isinstance(event, Connected):
            self._connection.sync().add_done_callback(self._answered)

    def _answered(self, answer: Future[None]) -> None:
        if answer.exception() is None and self._newest.set_running_or_notify_cancel():
            self._newest.set_result(self._connection.last_zxid)

    def _run(self) -> None:
        newest: int | None
        try:
            newest = self._newest.result(self._config.connect_timeout_seconds)
        except (TimeoutError, CancelledError):
            newest = None  # it is asked again, as long as the session is lost
        finally:
            self._connection.stop(0.0 if self._newest.cancelled() else 1.0)
            self._loop.stop()
        if newest is not None:
            self._tell(newest)
