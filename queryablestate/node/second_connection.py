"""
`SecondConnection`: a node's connection to the proxy for large answers (rule B2).

A message travels as a whole: behind an answer of 16 MB, one of 100 bytes waits until
all of it has been sent.  So answers of more than 64 KiB go over a connection of their
own, and the small ones, heartbeats and all that the control plane is told over the
first.

It is opened when there is such an answer for the first time, says which node it is of
(`JoinConnection`), and is used once the proxy has confirmed that; until then, and at a
proxy that refuses it, everything goes over the first.  A proxy that has just begun to
lead may pass over what it is told: it is told again with each large answer.  If the
connection is lost when it was used, answers may be lost: then the first one is given
up, too, and the proxy asks others.  If the first one is lost, so is this one: the proxy
takes what comes over it for what comes over that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice import RemoteProtocolError
from queryablestate.node.departures import Departures
from queryablestate.wire.codec import FRAME_COUNT_MAX, decode_to_node, encode
from queryablestate.wire.node_messages import ConnectionJoined
from zmqtransport import (
    ConnectionClosed,
    ConnectionOpened,
    HandshakeFailed,
    HandshakeSucceeded,
    SendOutcome,
    send_now,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from nameservice import Clock
    from queryablestate.wire.node_messages import JoinConnection
    from zmqtransport import ConnectionEvent, Dealer, PollLoop


__all__ = ["LARGE_SIZE_BYTES_MIN", "SecondConnection"]

LARGE_SIZE_BYTES_MIN: Final = 64 << 10
"""What is sent meanwhile waits for less than that a fraction of a millisecond."""


@final
class SecondConnection:
    """
    The second connection of a node, from its opening to its end; for one thread.

    Args:
        dealer: Connects to the proxy; owned.
        join: Returns what says whose connection it is, or None while it must wait.
        loop: Serves it.
        clock: For when to look what has gone.
        on_lost: Is told that it is over, and may have taken answers with it.

    Attributes:
        departures: What it was handed.
    """

    def __init__(
        self,
        dealer: Dealer,
        join: Callable[[], JoinConnection | None],
        *,
        loop: PollLoop,
        clock: Clock,
        on_lost: Callable[[], None],
    ) -> None:
        self._dealer = dealer
        self._join = join
        self._on_lost = on_lost
        self._is_connected = False
        self._is_joined = False
        self._is_refused = False
        self.departures = Departures(clock)
        dealer.serve(
            loop,
            on_event=self._watch,
            on_message=self._receive,
            frame_count_max=FRAME_COUNT_MAX,
        )

    def send(
        self,
        frames: Sequence[bytes | zmq.Frame],
        on_gone: Callable[[], None] | None,
    ) -> bool:
        """Send now, or return False: it may not be used yet, or takes no more."""
        if not self._is_joined:
            self._ask()
            return False
        if send_now(self._dealer.socket, frames) is not SendOutcome.SENT:
            return False
        self.departures.add(sum(map(len, frames)), on_gone, frames[-1])
        return True

    def close(self) -> None:
        """Close it.  Idempotent."""
        self._is_connected = self._is_joined = False
        self._dealer.close()
        self.departures.over()

    def _ask(self) -> None:
        """Say whose connection it is, if that may help."""
        join = self._join()
        if self._is_connected and not self._is_refused and join is not None:
            send_now(self._dealer.socket, [encode(join)])

    def _watch(self, event: ConnectionEvent) -> None:
        match event:
            case ConnectionOpened(connection_id=connection_id):
                self.departures.opened(connection_id)
            case HandshakeSucceeded():
                self._is_connected = True
                self._ask()
            case ConnectionClosed() | HandshakeFailed():
                was_joined = self._is_joined
                self.close()
                if was_joined:
                    self._on_lost()
            case _:
                pass

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Take the one message that comes over it; a proxy may refuse it otherwise."""
        try:
            message = decode_to_node(frames[0].bytes)
        except RemoteProtocolError:
            self._is_refused = True
            return
        if isinstance(message, ConnectionJoined):
            self._is_joined = True
