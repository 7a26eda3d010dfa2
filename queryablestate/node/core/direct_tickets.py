"""
`ShownTickets`: the tickets that clients have shown a node; pure (rules D1, D2).

A ticket is shown once on each connection, under a number that the client chooses, and
belongs to that connection alone.  Whether it has expired, and whether the node may
answer at all, is looked at with each question (`NodeCore.is_current`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from queryablestate.wire.direct import open_ticket


if TYPE_CHECKING:
    from queryablestate.wire.direct import DirectTicket, ShowTicket


__all__ = ["ShownTickets"]

_PER_CONNECTION_MAX: Final = 1_000
_COUNT_MAX: Final = 100_000


@final
class ShownTickets:
    """
    Tickets by connection and number.

    Their number is limited, in all and of each connection; the one that was shown
    longest ago makes room.  A client whose ticket went that way is refused, and shows
    it, or another one, again.

    Args:
        per_connection_max: Of one connection.
        count_max: Of all.
    """

    def __init__(
        self,
        *,
        per_connection_max: int = _PER_CONNECTION_MAX,
        count_max: int = _COUNT_MAX,
    ) -> None:
        self._per_connection_max = per_connection_max
        self._count_max = count_max
        self._secret = b""
        self._count = 0
        # Both in the order in which they were shown.
        self._shown: dict[int, dict[int, DirectTicket]] = {}

    def __len__(self) -> int:
        return self._count

    def keep_secret(self, secret: bytes) -> None:
        """Go by tickets that were made with *secret* alone; forget all others."""
        if secret != self._secret:
            self._secret = secret
            self._shown.clear()
            self._count = 0

    def show(
        self, connection: int, message: ShowTicket, *, public_key: str | None
    ) -> bool:
        """
        Take a ticket; return whether it is one, and the asker's.

        What the connection has shown under that number before counts no more.

        Args:
            connection: Over which it came.
            message: What was shown.
            public_key: The CURVE key that the asker has proved to hold, or None.
        """
        own = self._shown.get(connection, {})
        if own.pop(message.ticket_id, None) is not None:
            self._count -= 1
        ticket = open_ticket(self._secret, message.ticket)
        if ticket is None or ticket.public_key != public_key:
            if not own:
                self._shown.pop(connection, None)
            return False
        if len(own) >= self._per_connection_max:
            del own[next(iter(own))]
            self._count -= 1
        while self._count >= self._count_max:
            self._make_room()
        # It may have been this connection that was forgotten.
        self._shown.setdefault(connection, {})[message.ticket_id] = ticket
        self._count += 1
        return True

    def get(self, connection: int, ticket_id: int) -> DirectTicket | None:
        """Return what the connection has shown under that number, or None."""
        own = self._shown.get(connection)
        return None if own is None else own.get(ticket_id)

    def forget(self, connection: int) -> None:
        """Forget a connection that is over."""
        own = self._shown.pop(connection, None)
        if own is not None:
            self._count -= len(own)

    def _make_room(self) -> None:
        """Forget what the connection has shown that spoke first."""
        first = next(iter(self._shown))
        self._count -= len(self._shown.pop(first))
