"""What the gateway knows of a state may be out of date: no answer shows it (Q3)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve

from haservices import HAServices, open_ha_services
from queryablestate import StateOperations
from queryablestate.gateway import GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.asking import Answer, Asker
from tests.queryablestate.gateway.conftest import AIRCRAFT, DELAYS


pytestmark = pytest.mark.shells

STATE = "/v1/jobs/flights/states/aircraft"
WIDER = evolve(AIRCRAFT, value=(*AIRCRAFT.value, Field("gate", AtomicType.STRING)))
_numbers = itertools.count(1)


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of this test's own."""
    with open_ha_services(f"embedded:changed-{next(_numbers)}") as services:
        yield services


@pytest.fixture
def publisher(ha: HAServices) -> Iterator[Publisher]:
    """Return what has written a first batch."""
    with LocalStateCluster(ha, nodes=1):
        publisher = Publisher(ha, "flights", {"aircraft": AIRCRAFT})
        publisher.write({"aircraft": [("N1", 1, None)]})
        yield publisher


@pytest.fixture
def ask(ha: HAServices, publisher: Publisher) -> Iterator[Asker]:
    """Return what asks a gateway that knows the state of the first batch."""
    with GatewayServer(ha) as gateway:
        ask = Asker(gateway.url)
        assert ask.get(f"{STATE}/keys/N1").document["value"]["delay"] == 1
        yield ask


@pytest.mark.proves("Q3")
@pytest.mark.parametrize("path", ["entries", "entries/JFK"])
def test_a_state_of_another_kind(
    ha: HAServices, ask: Asker, publisher: Publisher, path: str
) -> None:
    """That it is no map is not said of what took its place."""
    with StateOperations(ha) as operations:
        operations.drop_state("flights", "aircraft")
    anew = Publisher(ha, "flights", {"aircraft": DELAYS})
    anew.write({"aircraft": [("N1", "JFK", 3)]})
    assert ask.get(f"{STATE}/keys/N1/{path}").status == 200


@pytest.mark.proves("Q3")
@pytest.mark.parametrize("face", ["key", "rows", "batch", "watch"])
@pytest.mark.parametrize("on_new_query", [None, "replace"])
@pytest.mark.parametrize("is_described", [False, True])
def test_a_column_that_was_added(  # noqa: PLR0917 (parameters)
    ha: HAServices,
    ask: Asker,
    publisher: Publisher,
    is_described: bool,
    on_new_query: str | None,
    face: str,
) -> None:
    """
    It is left out for a moment, or it has its value: it is never null.

    The schema that answers are written by was newer than that which they were read by.
    """
    if on_new_query is None:
        publisher.restart({"aircraft": WIDER})
    else:
        publisher = Publisher(
            ha, "flights", {"aircraft": WIDER}, on_new_query=on_new_query
        )
    publisher.write({"aircraft": [("N1", 2, None, "B7")]})
    if is_described:  # then it is known to be there
        assert b'"gate"' in ask.get(STATE).body
    value = value_of(ask, face)
    assert value["delay"] == 2
    assert value.get("gate", None if is_described else "B7") == "B7"


def value_of(ask: Asker, face: str) -> Any:
    """Return the value of the key by one of the ways to it."""
    match face:
        case "key":
            return ask.get(f"{STATE}/keys/N1").document["value"]
        case "rows":
            return ask.get(f"{STATE}/rows").document["rows"][0]["value"]
        case "batch":
            answer = ask.post(f"{STATE}/keys:batchGet", {"keys": ["N1"]})
            return answer.document["results"][0]["value"]
        case _:
            with ask.watch(f"{STATE}/keys/N1/watch") as watching:
                return watching.next().data["value"]


@pytest.mark.proves("Q3")
@pytest.mark.parametrize("path", ["keys/N1?", "rows?", "rows?format=ndjson&"])
def test_a_state_that_came_while_it_was_waited_for(
    ha: HAServices, publisher: Publisher, path: str
) -> None:
    """
    What is read of the generation that was waited for has its columns.

    The state had been described for that very request: before that generation.
    """
    found: list[Answer] = []
    wait = "min_generation=2&min_batch_id=0&deadline=60"
    with GatewayServer(ha) as gateway:
        ask = Asker(gateway.url)
        reading = threading.Thread(
            target=lambda: found.append(ask.get(f"{STATE}/{path}{wait}"))
        )
        reading.start()
        while gateway.observe().figures["requests"] != 1:
            pass
        for _ in range(2):  # what was asked first, over the same socket, is answered
            assert ask.get("/v1/jobs").status == 200
        anew = Publisher(
            ha,
            "flights",
            {"aircraft": WIDER},
            on_new_query="replace",
        )
        anew.write({"aircraft": [("N1", 2, None, "B7")]})
        reading.join()
    assert found[0].status == 200
    assert b'"gate":"B7"' in found[0].body
