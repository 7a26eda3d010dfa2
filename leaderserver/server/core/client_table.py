"""
Which secret is which session, and where its client is reached.

Three names lead to a client.  Its *secret* is how it proves itself; the *nonce* of its
greeting, together with where that came from, gets a repeated greeting the same
answer; its *connection* is how the death of its process shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define, field


if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from zmqtransport import Principal


__all__ = ["ClientTable", "ServedClient"]


@define(kw_only=True, eq=False)
class ServedClient:
    """
    What a server knows of a session beside what its election core does.

    Attributes:
        session_id: The session.
        secret: Its secret.
        nonce: What it was asked for with.
        principal: Who asked for it.
        opened_by: Where it was asked for from.
        peer: Where its newest request came from.
        connection: Over which connection that was, or None.
        closed_connection: The latest of its connections that closed, or None.
        number: Its newest request.
        batch_count: How many of its batches wait for their turn.
    """

    session_id: str
    secret: bytes = field(repr=False)
    nonce: bytes = field(repr=False)
    principal: Principal
    opened_by: Hashable
    peer: Hashable
    connection: Hashable | None = None
    closed_connection: Hashable | None = None
    number: int = 0
    batch_count: int = 0

    @property
    def is_late(self) -> bool:
        """Return whether its newest request came over a connection that closed."""
        return self.connection is not None and self.connection == self.closed_connection


@final
class ClientTable:
    """All clients that have a session."""

    def __init__(self) -> None:
        self._by_session: dict[str, ServedClient] = {}
        self._by_secret: dict[bytes, ServedClient] = {}
        self._by_nonce: dict[tuple[Hashable, bytes], ServedClient] = {}
        self._by_connection: dict[Hashable, dict[str, ServedClient]] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def all(self) -> Sequence[ServedClient]:
        """Return all clients."""
        return tuple(self._by_session.values())

    def get(self, session_id: str) -> ServedClient | None:
        """Return the client of a session, or None."""
        return self._by_session.get(session_id)

    def by_secret(self, secret: bytes) -> ServedClient | None:
        """Return the client that has *secret*, or None."""
        return self._by_secret.get(secret)

    def by_nonce(self, peer: Hashable, nonce: bytes) -> ServedClient | None:
        """Return the client that *peer* has greeted as, with *nonce*, or None."""
        return self._by_nonce.get((peer, nonce))

    def count_over(self, connection: Hashable) -> int:
        """Return how many clients use *connection*."""
        return len(self._by_connection.get(connection, ()))

    def add(self, client: ServedClient) -> None:
        """Enter a client."""
        self._by_session[client.session_id] = client
        self._by_secret[client.secret] = client
        self._by_nonce[client.opened_by, client.nonce] = client

    def move(self, client: ServedClient, peer: Hashable, connection: Hashable) -> None:
        """Record where the client's newest request came from."""
        client.peer = peer
        if client.connection != connection:
            self._leave_connection(client)
            client.connection = connection
            self._by_connection.setdefault(connection, {})[client.session_id] = client

    def connection_closed(self, connection: Hashable) -> Sequence[ServedClient]:
        """Return the clients that used *connection*, which use none now."""
        clients = tuple(self._by_connection.pop(connection, {}).values())
        for client in clients:
            client.connection = None
            client.closed_connection = connection
        return clients

    def remove(self, client: ServedClient) -> None:
        """Forget a client."""
        self._leave_connection(client)
        del self._by_session[client.session_id]
        del self._by_secret[client.secret]
        del self._by_nonce[client.opened_by, client.nonce]

    def _leave_connection(self, client: ServedClient) -> None:
        clients = self._by_connection.get(client.connection)
        if clients is not None:
            clients.pop(client.session_id, None)
            if not clients:
                del self._by_connection[client.connection]
