"""`ShownTickets`: whose tickets count, and for how long they are kept."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from queryablestate.node.core.direct_tickets import ShownTickets
from queryablestate.wire.direct import DirectTicket, ShowTicket, seal_ticket


SECRET, OTHER = bytes(range(32)), bytes(32)
TICKET = DirectTicket(
    caller="dashboard",
    public_key=None,
    job_id="flights",
    state_number=7,
    leader_epoch=3,
    assignment_version=2,
    expires_ms=12_345,
)
KEY, OTHER_KEY = "k" * 40, "o" * 40

pytestmark = pytest.mark.proves("D2")


def shown(
    ticket: DirectTicket = TICKET, *, ticket_id: int = 1, secret: bytes = SECRET
) -> ShowTicket:
    """Return what a client shows."""
    return ShowTicket(ticket_id=ticket_id, ticket=seal_ticket(secret, ticket))


@pytest.fixture
def tickets() -> ShownTickets:
    """Return the tickets of a node that was taken in."""
    tickets = ShownTickets()
    tickets.keep_secret(SECRET)
    return tickets


def test_what_was_shown_counts(tickets: ShownTickets) -> None:
    """D1: once on a connection, under its number."""
    assert tickets.show(1, shown(), public_key=None)
    assert tickets.get(1, 1) == TICKET
    assert tickets.get(1, 2) is None
    assert len(tickets) == 1


def test_nobody_shows_anything_to_a_node_that_was_not_taken_in() -> None:
    """Q4: without a leader there is no secret, and no ticket."""
    tickets = ShownTickets()
    assert not tickets.show(1, shown(), public_key=None)
    assert tickets.get(1, 1) is None


def test_another_connection_has_shown_nothing(tickets: ShownTickets) -> None:
    """D2: what one connection has shown is no other one's."""
    tickets.show(1, shown(), public_key=None)
    assert tickets.get(2, 1) is None


def test_a_ticket_of_an_old_leader(tickets: ShownTickets) -> None:
    """D2: with another leader, all that was shown counts no more."""
    tickets.show(1, shown(), public_key=None)
    tickets.keep_secret(SECRET)
    assert tickets.get(1, 1) == TICKET
    tickets.keep_secret(OTHER)
    assert tickets.get(1, 1) is None
    assert len(tickets) == 0
    assert not tickets.show(1, shown(), public_key=None)
    assert tickets.show(1, shown(secret=OTHER), public_key=None)


@pytest.mark.parametrize(
    ("bound", "proved", "is_taken"),
    [
        (None, None, True),
        (KEY, KEY, True),
        (KEY, OTHER_KEY, False),
        (KEY, None, False),
        (None, KEY, False),
    ],
)
def test_a_stolen_ticket(
    tickets: ShownTickets, bound: str | None, proved: str | None, *, is_taken: bool
) -> None:
    """D2: with CURVE a ticket is worth nothing over the connection of another key."""
    message = shown(replace(TICKET, public_key=bound))
    assert tickets.show(1, message, public_key=proved) is is_taken
    assert (tickets.get(1, 1) is not None) is is_taken


def test_a_forged_one_takes_the_place_of_a_good_one(tickets: ShownTickets) -> None:
    """D2: who shows something else under the same number has shown that."""
    tickets.show(1, shown(), public_key=None)
    forged = ShowTicket(ticket_id=1, ticket=b"f" * 100)
    assert not tickets.show(1, forged, public_key=None)
    assert tickets.get(1, 1) is None
    assert len(tickets) == 0


def test_a_renewed_one(tickets: ShownTickets) -> None:
    """D1: a new ticket takes the place of the one before."""
    later = replace(TICKET, expires_ms=99_999)
    tickets.show(1, shown(), public_key=None)
    assert tickets.show(1, shown(later), public_key=None)
    assert tickets.get(1, 1) == later
    assert len(tickets) == 1


@pytest.mark.proves("B1")
def test_a_connection_has_so_many(tickets: ShownTickets) -> None:
    """B1: the one that was shown first makes room."""
    tickets = ShownTickets(per_connection_max=2)
    tickets.keep_secret(SECRET)
    for ticket_id in (1, 2, 3):
        tickets.show(1, shown(ticket_id=ticket_id), public_key=None)
    assert [tickets.get(1, n) is not None for n in (1, 2, 3)] == [False, True, True]
    assert len(tickets) == 2


@pytest.mark.proves("B1")
def test_there_are_so_many(tickets: ShownTickets) -> None:
    """B1: of all connections together; the first one makes room, be it this one."""
    tickets = ShownTickets(count_max=2)
    tickets.keep_secret(SECRET)
    for ticket_id in (1, 2, 3):
        tickets.show(1, shown(ticket_id=ticket_id), public_key=None)
    assert len(tickets) == 1
    assert tickets.get(1, 3) is not None
    tickets.show(2, shown(), public_key=None)
    tickets.show(3, shown(), public_key=None)
    assert len(tickets) == 2
    assert tickets.get(1, 3) is None


@pytest.mark.proves("B4")
def test_a_connection_that_is_over(tickets: ShownTickets) -> None:
    """B4: nothing is kept of it."""
    tickets.show(1, shown(), public_key=None)
    tickets.forget(1)
    tickets.forget(1)
    assert tickets.get(1, 1) is None
    assert len(tickets) == 0
