"""One real ZooKeeper for all tests here that need no other, and a look inside it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from haservices.testing.zookeeper_server import ZooKeeperServer


if TYPE_CHECKING:
    from collections.abc import Iterator


_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """Return a server that every test leaves running."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def zookeeper_url(zookeeper_server: ZooKeeperServer) -> str:
    """Return the URL of a chroot that no other test uses, and that is not there yet."""
    return f"{zookeeper_server.url}/test-{next(_numbers)}/below"


@pytest.fixture
def zookeeper_client(zookeeper_server: ZooKeeperServer) -> Iterator[KazooClient]:
    """Return somebody else's client, with which to look at nodes and tamper."""
    client = KazooClient(hosts=zookeeper_server.address)
    client.start()
    yield client
    client.stop()
    client.close()
