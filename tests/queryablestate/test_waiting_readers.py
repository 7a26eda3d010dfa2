from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from queryablestate import (
    DeadlineExceededError,
    QueryableStateClient,
    StateEntry,
    StateUnavailableError,
)
from queryablestate.local_cluster import LocalStateCluster
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import AIRCRAFT


pytestmark = [pytest.mark.shells, pytest.mark.proves("Q2")]

STATE: Final = ("flights", "aircraft")
WAIT_SECONDS: Final = 20.0

_numbers = itertools.count(1)


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return the name service of a cluster, with a state at batch 2."""
    config = HAConfig(url=f"embedded:waiting-{next(_numbers)}")
    with open_ha_services(config) as services, LocalStateCluster(services):
        earlier = Publisher(services, "flights", {"aircraft": AIRCRAFT})
        for delay in range(3):
            earlier.write({"aircraft": [("N1", delay)]})
        yield services


@pytest.fixture
def client(ha: HAServices) -> Iterator[QueryableStateClient]:
    """Return a reader that waits long."""
    with QueryableStateClient(ha, deadline_seconds=WAIT_SECONDS) as opened:
        yield opened


@pytest.fixture
def later(ha: HAServices) -> Publisher:
    """Return another query, which takes the state over with its first commit."""
    return Publisher(ha, "flights", {"aircraft": AIRCRAFT}, on_new_query="replace")


def test_a_batch_of_a_query_that_has_not_committed_yet(
    client: QueryableStateClient, later: Publisher
) -> None:
    """Q2: batches of the query before it never stand for it, whatever their number."""
    assert client.lookup(*STATE, "N1", min_batch_id=1).generation == 1
    ask = partial(client.lookup, *STATE, "N1", min_generation=2)
    with pytest.raises(DeadlineExceededError, match="generation 2"):
        ask(min_batch_id=0, deadline_seconds=1.0)
    with pytest.raises(StateUnavailableError, match="batch is 2 of generation 1"):
        client.wait_for_state(*STATE, 1.0, min_generation=2)
    with ThreadPoolExecutor(4) as pool:
        first: list[Future[StateEntry]] = [
            pool.submit(ask, min_batch_id=0),
            pool.submit(ask),
        ]
        second = pool.submit(ask, min_batch_id=1)
        count = pool.submit(client.count, *STATE, min_generation=2)
        # What it leaves is there at once, and what it has not: so none was early.
        later.write({"aircraft": [("N1", 100), ("N2", 100)]})
        for one in first:
            entry = one.result(WAIT_SECONDS)
            assert (entry.generation, entry.batch_id) == (2, 0)
            assert entry.value == {"delay": 100}
        assert count.result(WAIT_SECONDS) == 2
        later.write({"aircraft": [("N1", 101)]})
        entry = second.result(WAIT_SECONDS)
        assert (entry.generation, entry.batch_id) == (2, 1)
    assert client.wait_for_state(*STATE, 1.0, min_generation=2).batch_id == 1


def test_a_batch_of_a_query_that_was_replaced(
    client: QueryableStateClient, later: Publisher
) -> None:
    """Q2: its reader does not wait in vain: a later generation is newer."""
    later.write({"aircraft": [("N1", 100)]})
    entry = client.lookup(*STATE, "N1", min_batch_id=29, min_generation=1)
    assert (entry.generation, entry.batch_id) == (2, 0)
