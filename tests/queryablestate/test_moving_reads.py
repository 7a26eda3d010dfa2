"""Every kind of read while key groups move, over real sockets (S3, S4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest

from haservices import open_ha_services
from queryablestate import (
    AsyncQueryableStateClient,
    DeadlineExceededError,
    QueryableStateClient,
)
from queryablestate.client.partition_scan import PartitionScanner
from queryablestate.schema.schema import StateSchema
from queryablestate.wire.questions import Ask
from tests.queryablestate.scripted_proxy import (
    Lead,
    Reply,
    ScriptedProxy,
    error_frame,
)
from tests.queryablestate.scripted_state import (
    LIST_SCHEMA,
    MAP_SCHEMA,
    VALUE_SCHEMA,
    ScriptedState,
)


pytestmark = pytest.mark.shells

STATE = ("flights", "aircraft")
COUNT = 60
NAMES = sorted(f"N{n}" for n in range(COUNT))

VALUES = {f"N{n}": (f"A{n}", n) for n in range(COUNT)}
LISTS = {f"N{n}": [(f"A{n}", n), ("B", n)] for n in range(COUNT)}
MAPS = {f"N{n}": {"JFK": (f"A{n}", n), "BOS": ("B", n)} for n in range(COUNT)}

Client: TypeAlias = QueryableStateClient
Read: TypeAlias = tuple[StateSchema, dict[str, Any], Callable[[Client], Any], Any]


def row(number: int) -> dict[str, Any]:
    """Return the row that is kept under ``N<number>``."""
    return {"origin": f"A{number}", "delay": number}


def names(entries: Any) -> list[Any]:
    """Return the keys of a scan."""
    return [key for key, _ in entries]


READS: dict[str, Read] = {
    "get": (VALUE_SCHEMA, VALUES, lambda c: c.get(*STATE, "N7"), row(7)),
    "get_many": (
        VALUE_SCHEMA,
        VALUES,
        lambda c: sorted(c.get_many(*STATE, NAMES)),
        NAMES,
    ),
    "exists": (VALUE_SCHEMA, VALUES, lambda c: c.exists(*STATE, "N8"), True),
    "lookup": (VALUE_SCHEMA, VALUES, lambda c: c.lookup(*STATE, "N9").value, row(9)),
    "get_list": (
        LIST_SCHEMA,
        LISTS,
        lambda c: c.get_list(*STATE, "N3", start=0, stop=1),
        [row(3)],
    ),
    "get_map_entry": (
        MAP_SCHEMA,
        MAPS,
        lambda c: c.get_map_entry(*STATE, "N4", "JFK"),
        row(4),
    ),
    "count": (VALUE_SCHEMA, VALUES, lambda c: c.count(*STATE), COUNT),
    "scan": (VALUE_SCHEMA, VALUES, lambda c: names(c.scan(*STATE)), NAMES),
    "scan a list": (
        LIST_SCHEMA,
        LISTS,
        lambda c: names(c.scan(*STATE)),
        [name for name in NAMES for _ in range(2)],
    ),
    "scan a map": (
        MAP_SCHEMA,
        MAPS,
        lambda c: names(c.scan(*STATE)),
        [(name, airport) for name in NAMES for airport in ("BOS", "JFK")],
    ),
}


def moving(
    state: ScriptedState, *, after: int = 0, stale_count: int = 3
) -> Callable[[Ask, bytes], Reply]:
    """
    Return what a proxy says while a node is replaced.

    After some questions it calls some routes stale, by which it still describes
    the state: the promotion is on its way.  Then everything has moved.
    """
    asked = 0

    def on_ask(ask: Ask, _: bytes) -> Reply:
        nonlocal asked
        asked += 1
        if asked <= after:
            return None
        if asked <= after + stale_count:
            return error_frame("stale-route", ask.request_id)
        if asked == after + stale_count + 1:
            state.version += 1
            state.owners = tuple(1 - owner for owner in state.owners)
        return None

    return on_ask


@contextmanager
def leading(state: ScriptedState) -> Iterator[Any]:
    """Yield a name service that knows a proxy of *state*."""
    with (
        ScriptedProxy(state) as proxy,
        open_ha_services("embedded:") as services,
        Lead(services, proxy.address),
    ):
        yield services


@pytest.mark.proves("S3")
@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("kind", READS)
def test_no_read_fails(kind: str, after: int) -> None:
    """S3: several stale routes in a row are no error, whatever is asked."""
    schema, rows, ask, expected = READS[kind]
    state = ScriptedState(schema, rows)
    state.page_row_count_max = 7
    with leading(state) as services, QueryableStateClient(services) as client:
        assert ask(client) == expected  # now the route is known
        state.on_ask = moving(state, after=after)
        for _ in range(1 + after):  # the move comes in the middle of one of them
            assert ask(client) == expected


@pytest.mark.proves("S3")
@pytest.mark.parametrize("after", [0, 1, 5])
def test_no_read_of_an_asyncio_client_fails(after: int) -> None:
    """S3: the same for the twin: what it scans comes once, and in order."""
    state = ScriptedState(VALUE_SCHEMA, VALUES)
    state.page_row_count_max = 7

    async def ask_all(services: Any) -> None:
        async with AsyncQueryableStateClient(services) as client:

            async def scan() -> list[Any]:
                return [key async for key, _ in client.scan(*STATE)]

            reads: list[tuple[Callable[[], Awaitable[Any]], Any]] = [
                (lambda: client.get(*STATE, "N7"), row(7)),
                (lambda: client.count(*STATE), COUNT),
                (scan, NAMES),
            ]
            for read, expected in reads:
                state.on_ask = moving(state, after=after)
                for _ in range(1 + after):
                    assert await read() == expected

    with leading(state) as services:
        asyncio.run(ask_all(services))


@pytest.mark.proves("Q3")
def test_a_part_ends_at_its_deadline() -> None:
    """Q3: a route that stays stale is asked for no longer than one page may take."""
    state = ScriptedState(VALUE_SCHEMA, VALUES)
    with (
        leading(state) as services,
        PartitionScanner(
            services, job_id="flights", state_name="aircraft", deadline_seconds=0.5
        ) as scanner,
    ):
        (part, *_) = scanner.parts()
        state.on_ask = lambda ask, _: error_frame("stale-route", ask.request_id)
        with pytest.raises(DeadlineExceededError):
            list(scanner.rows(part))


@pytest.mark.proves("S3")
@pytest.mark.parametrize("after", [0, 1, 3])
def test_no_part_fails(after: int) -> None:
    """S3: a part goes on with other nodes where it was; no row twice, none lost."""
    state = ScriptedState(VALUE_SCHEMA, VALUES)
    state.page_row_count_max = 7
    with (
        leading(state) as services,
        PartitionScanner(
            services, job_id="flights", state_name="aircraft", deadline_seconds=20.0
        ) as scanner,
    ):
        parts = scanner.parts()
        state.on_ask = moving(state, after=after)
        found = [row for part in parts for page in scanner.rows(part) for row in page]
    assert sorted(name for name, *_ in found) == NAMES


@pytest.mark.proves("S4")
def test_what_nobody_else_has_does_not_fail_the_others() -> None:
    """S4: what the proxy does not name is asked again, and answered by another."""
    state = ScriptedState(VALUE_SCHEMA, VALUES)
    lost = "N7"
    group = state.keys.key_group(lost)
    node_index = state.owners[group]
    others = [
        name
        for name in NAMES
        if state.owners[state.keys.key_group(name)] == node_index
        and state.keys.key_group(name) != group
    ]
    refused = 0

    def on_ask(ask: Ask, _: bytes) -> Reply:
        nonlocal refused
        if state.version > 1 or ask.node_index != node_index:
            return None
        refused += 1
        if refused > 4:
            state.version += 1
            state.owners = tuple(
                1 - node_index if owner == node_index and here != group else owner
                for here, owner in enumerate(state.owners)
            )
            return None
        return error_frame(
            "state-unavailable", ask.request_id, *STATE, (group,), 0.5, "it is away"
        )

    with leading(state) as services, QueryableStateClient(services) as client:
        state.on_ask = on_ask
        result = client.get_many(*STATE, [lost, *others], partial=True)
    assert sorted(result.values) == others
    assert result.unavailable == (lost,)
