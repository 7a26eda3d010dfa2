"""`EncodedRoutes`: routes of wide jobs, as they are sent."""

from __future__ import annotations

import pytest

from queryablestate.proxy.encoded_routes import EncodedRoutes
from queryablestate.wire.clients import StateDescribed, StateDescription, StatesListed
from queryablestate.wire.codec import decode_to_client, encode


pytestmark = pytest.mark.proves("B2")

WIDE = tuple(index % 300 for index in range(32_768))


def described(
    owners: tuple[int, ...] = WIDE, *, job_id: str = "job", age_ms: int = 1
) -> StateDescribed:
    """Return what a client is told of a state."""
    return StateDescribed(
        request_id=age_ms,
        description=StateDescription(
            job_id=job_id,
            state_name="state",
            state_number=1,
            schema="{}",
            max_parallelism=len(owners),
            generation=1,
            batch_id=age_ms,
            query_id="query",
            age_ms=age_ms,
            assignment_version=1,
            node_ids=("node-a",),
            owners=owners,
        ),
    )


def test_the_bytes_are_the_same() -> None:
    """The wire format is that of the message itself, each time."""
    routes = EncodedRoutes()
    for age_ms in (1, 2, 70_000):
        message = described(age_ms=age_ms)
        assert encode(routes.with_routes(message)) == encode(message)
        assert decode_to_client(encode(routes.with_routes(message))) == message
        states = StatesListed(request_id=1, states=(message.description,) * 3)
        assert encode(routes.with_routes(states)) == encode(states)


def test_a_route_is_encoded_once() -> None:
    """B2: for all who ask, and for all states of a job."""
    routes = EncodedRoutes()
    for age_ms in range(100):
        routes.with_routes(described(age_ms=age_ms))
    state = described().description
    routes.with_routes(StatesListed(request_id=1, states=(state,) * 100))
    assert routes.encoded_count == 1


def test_another_assignment_is_another_route() -> None:
    """Also one of the same numbers; the one before is not kept."""
    routes = EncodedRoutes()
    routes.with_routes(described())
    size_bytes = routes.size_bytes
    for owners in (WIDE[:1] + WIDE[1:], WIDE[::-1]):
        message = described(owners)
        assert encode(routes.with_routes(message)) == encode(message)
    assert routes.encoded_count == 3
    assert routes.size_bytes == size_bytes


def test_what_is_kept_is_bounded() -> None:
    """B1: in bytes; the job that was not asked for longest goes first."""
    one_bytes = len(WIDE) * 8 + len(encode(described())) - 100
    routes = EncodedRoutes(3 * one_bytes)
    for name in "abacad":
        routes.with_routes(described(job_id=name))
        assert routes.size_bytes <= 3 * one_bytes
    assert routes.encoded_count == 4
    routes.with_routes(described(job_id="a"))
    assert routes.encoded_count == 4
    routes.with_routes(described(job_id="b"))
    assert routes.encoded_count == 5


def test_what_does_not_fit_is_sent_all_the_same() -> None:
    """It is encoded anew each time."""
    routes = EncodedRoutes(100)
    for _ in range(2):
        assert encode(routes.with_routes(described())) == encode(described())
    assert (routes.encoded_count, routes.size_bytes) == (2, 0)
