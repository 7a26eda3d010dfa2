from __future__ import annotations

import pytest

from leaderserver.server.core.client_table import ClientTable, ServedClient
from zmqtransport import ANONYMOUS


def served(name: str) -> ServedClient:
    """Return a client that has greeted from where it is called by its name."""
    return ServedClient(
        session_id=name,
        secret=name.encode() * 2,
        nonce=name.encode(),
        principal=ANONYMOUS,
        opened_by=name,
        peer=name,
    )


@pytest.fixture
def table() -> ClientTable:
    """Return an empty table."""
    return ClientTable()


@pytest.fixture
def alice(table: ClientTable) -> ServedClient:
    """Return a client of *table* that uses connection 1."""
    client = served("alice")
    table.add(client)
    table.move(client, "alice", 1)
    return client


@pytest.fixture
def bob(table: ClientTable) -> ServedClient:
    """Return another, that uses the same connection."""
    client = served("bob")
    table.add(client)
    table.move(client, "bob", 1)
    return client


class TestNames:
    def test_three_names_lead_to_a_client(
        self, table: ClientTable, alice: ServedClient
    ) -> None:
        """Its session, its secret, and its greeting from where that came (N1)."""
        assert table.get("alice") is alice
        assert table.by_secret(b"alicealice") is alice
        assert table.by_nonce("alice", b"alice") is alice
        assert len(table) == 1

    def test_none_of_them_is_guessed(
        self, table: ClientTable, alice: ServedClient
    ) -> None:
        """A nonce from elsewhere is another greeting (N1)."""
        assert table.get("bob") is None
        assert table.by_secret(b"alice") is None
        assert table.by_nonce("bob", b"alice") is None

    def test_who_has_moved_keeps_its_greeting(
        self, table: ClientTable, alice: ServedClient
    ) -> None:
        """The nonce goes with where the greeting came from, not with the newest."""
        table.move(alice, "alice again", 2)
        assert alice.peer == "alice again"
        assert table.by_nonce("alice", b"alice") is alice
        assert table.by_nonce("alice again", b"alice") is None

    def test_a_client_is_forgotten_by_all_names(
        self, table: ClientTable, alice: ServedClient, bob: ServedClient
    ) -> None:
        """After its session nothing leads to it any more."""
        table.remove(alice)
        assert table.get("alice") is None
        assert table.by_secret(b"alicealice") is None
        assert table.by_nonce("alice", b"alice") is None
        assert table.connection_closed(1) == (bob,)
        assert len(table) == 1

    def test_secrets_are_not_shown(self, alice: ServedClient) -> None:
        """A log line with a client in it does not tell its secret (N1)."""
        assert "alicealice" not in repr(alice)
        assert "nonce" not in repr(alice)


class TestConnections:
    def test_they_are_counted(
        self, table: ClientTable, alice: ServedClient, bob: ServedClient
    ) -> None:
        """Sessions over one connection are bounded (N3)."""
        assert table.count_over(1) == 2
        assert table.count_over(2) == 0
        table.move(bob, "bob", 2)
        assert (table.count_over(1), table.count_over(2)) == (1, 1)
        table.move(alice, "alice", 2)
        assert (table.count_over(1), table.count_over(2)) == (0, 2)

    def test_a_request_over_the_same_one_moves_nobody(
        self, table: ClientTable, alice: ServedClient
    ) -> None:
        """The routing id alone may change."""
        table.move(alice, "alice too", 1)
        assert alice.peer == "alice too"
        assert table.count_over(1) == 1

    def test_a_closed_one_concerns_all_who_used_it(
        self, table: ClientTable, alice: ServedClient, bob: ServedClient
    ) -> None:
        """Evidence of death is of everybody behind that connection, once (E5)."""
        assert table.connection_closed(1) == (alice, bob)
        assert table.connection_closed(1) == ()
        assert alice.connection is None
        assert alice.closed_connection == 1

    def test_who_moved_before_is_not_concerned(
        self, table: ClientTable, alice: ServedClient, bob: ServedClient
    ) -> None:
        """An old connection may close long after a new one is used (E5)."""
        table.move(alice, "alice", 2)
        assert table.connection_closed(1) == (bob,)
        assert alice.closed_connection is None

    def test_what_came_over_a_closed_one_is_late(
        self, table: ClientTable, alice: ServedClient
    ) -> None:
        """A last heartbeat that is read after the end is no sign of life (E5)."""
        assert not alice.is_late
        table.connection_closed(1)
        assert not alice.is_late
        table.move(alice, "alice", 1)
        assert alice.is_late
        table.move(alice, "alice", 2)
        assert not alice.is_late

    def test_a_client_without_one_is_forgotten_too(self, table: ClientTable) -> None:
        """A session may end after its connection has."""
        client = served("carl")
        table.add(client)
        table.remove(client)
        assert len(table) == 0
