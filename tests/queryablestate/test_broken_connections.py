"""Nodes whose connections to the proxy break, over real sockets (S1, S4)."""

from __future__ import annotations

import itertools
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from haservices import HAConfig, open_ha_services
from queryablestate import QueryableStateClient, StateOperations
from queryablestate.local_cluster import LocalStateCluster
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import AIRCRAFT
from tests.recording import WAIT_SECONDS, wait_until
from zmqtransport.endpoints import parse_endpoint


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


pytestmark = pytest.mark.shells

STATE: Final = ("flights", "aircraft")
NAMES: Final = tuple(f"N{number:03}" for number in range(500))
_numbers = itertools.count(1)


def connections_to(port: int) -> Iterator[tuple[int, socket.socket]]:
    """Yield the file descriptors of this process that are connected to *port*."""
    for path in list(Path("/proc/self/fd").iterdir()):
        number = int(path.name)
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.getpeername()[1:2] == (port,):
                    yield number, connection


def break_connections(port: int, spared: Iterable[int]) -> int:
    """Break those to *port* but for some file descriptors; return how many."""
    kept = set(spared)
    broken = 0
    for number, connection in connections_to(port):
        if number not in kept:
            connection.shutdown(socket.SHUT_RDWR)
            broken += 1
    return broken


def copied_counts(cluster: LocalStateCluster) -> list[int | str | float]:
    """Return how many key groups each node has ever copied."""
    return [node.status()["key_groups_copied_total"] for node in cluster.nodes]


@pytest.fixture
def config() -> HAConfig:
    """Return how to open a name service of this test's own, in this process."""
    return HAConfig(url=f"embedded:broken-{next(_numbers)}")


def rows(delay: int) -> dict[str, dict[str, int]]:
    """Return what is read of all aircraft."""
    return {name: {"delay": delay} for name in NAMES}


def write(publisher: Publisher, delay: int) -> None:
    """Write the same delay for every aircraft, and wait until it is visible."""
    publisher.write({"aircraft": [(name, delay) for name in NAMES]})


@pytest.mark.proves("S1", "S4", "W3")
@pytest.mark.parametrize("which", ["one node", "every node"])
def test_who_is_back_in_a_moment_copies_nothing(config: HAConfig, which: str) -> None:
    """S1: it is sent the batches that it missed; S4: others answer meanwhile."""
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha, nodes=2, replicas=2) as cluster,
        QueryableStateClient(config) as client,
        StateOperations(config) as operations,
    ):
        port = parse_endpoint(cluster.proxies[0].address).port
        publisher = Publisher(config, "flights", {"aircraft": AIRCRAFT})
        write(publisher, 1)
        assert client.count(*STATE) == len(NAMES)
        others = [number for number, _ in connections_to(port)]
        cluster.add_node()
        operations.rescale("flights", node_count=3)
        (before,) = operations.wait_until_rescaled(
            "flights", timeout_seconds=WAIT_SECONDS
        )
        copied = copied_counts(cluster)
        assert copied[-1]

        broken = break_connections(port, others if which == "one node" else ())
        assert broken >= (1 if which == "one node" else 3)
        write(publisher, 2)
        assert client.get_many(*STATE, NAMES) == rows(2)
        wait_until(lambda: all(node.is_registered for node in cluster.nodes))
        wait_until(
            lambda: (
                operations.rescalings("flights")[0].key_group_counts
                == before.key_group_counts
            )
        )
        write(publisher, 3)
        assert client.get_many(*STATE, NAMES) == rows(3)
        (after,) = operations.rescalings("flights")
        assert after.copy_counts == before.copy_counts
        assert after.missing_count == after.left_count == 0
        assert copied_counts(cluster) == copied
