"""What is read over ZooKeeper is not older than the question."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from kazoo.client import KazooClient

from election import LeaderStore
from haservices import HAConfig
from haservices.testing.tcp_proxy import TCPProxy
from haservices.testing.zookeeper_server import ZooKeeperServer
from haservices.zookeeper.connection import ZooKeeperConnection
from tests.opening import open_patiently
from tests.recording import WAIT_SECONDS, ConfirmingContender


pytestmark = pytest.mark.shells

JOB: Final = "flights"
PATH: Final = "offsets"


class Breaking:
    """
    Breaks a connection once: just before a question is asked, after its ``sync``.

    Args:
        question: The request, and how the path of its node ends.
        proxy: Where the connection goes through; answers are held there from now on.
        monkeypatch: Of the test.
    """

    def __init__(
        self, question: str, proxy: TCPProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.asked_count = 0
        self._proxy = proxy
        verb, _, end = question.partition(" ")
        ask = getattr(ZooKeeperConnection, verb)

        def asking(connection: ZooKeeperConnection, path: str) -> Future[Any]:
            if path.endswith(end):
                self.asked_count += 1
                if self.asked_count == 1:
                    self._break(connection._client)
            answer: Future[Any] = ask(connection, path)
            return answer

        monkeypatch.setattr(ZooKeeperConnection, verb, asking)
        proxy.cut_replies()

    def _break(self, client: KazooClient) -> None:
        """Return once the connection is gone, and what was sent over it has failed."""
        is_gone = threading.Event()

        def changed(_: str) -> None:
            is_gone.set()

        client.add_listener(changed)
        assert self._proxy.wait_until_held(WAIT_SECONDS)
        self._proxy.heal(deliver=False)
        assert is_gone.wait(WAIT_SECONDS)
        client.remove_listener(changed)


def get(store: LeaderStore) -> None:
    """Read a value."""
    value = store.get(PATH)
    assert value is not None
    assert value.value == b"1"


def get_missing(store: LeaderStore) -> None:
    """Read that there is no value, which is an answer, too."""
    assert store.get("missing") is None


def list_paths(store: LeaderStore) -> None:
    """Read which paths there are."""
    assert store.list() == [PATH]


def watch(store: LeaderStore) -> None:
    """Read the first value that a watch tells."""
    with store.watch(PATH) as changes:
        change = next(changes)
    assert change.value is not None
    assert change.value.value == b"1"


@pytest.mark.proves("L1")
@pytest.mark.parametrize(
    ("read", "question"),
    [
        (get, f"get store/{JOB}/{PATH}"),
        (get_missing, f"get store/{JOB}/missing"),
        (list_paths, f"children store/{JOB}"),
        (watch, f"watch store/{JOB}/{PATH}"),
    ],
)
def test_a_read_whose_sync_was_lost_is_asked_again(
    zookeeper_url: str,
    zookeeper_server: ZooKeeperServer,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[LeaderStore], None],
    question: str,
) -> None:
    """L1: a server that is reached meanwhile may not have what was committed before."""
    with open_patiently(HAConfig(url=zookeeper_url)) as writer:
        election = writer.get_leader_election(JOB)
        contender = ConfirmingContender(election, "a:1")
        election.start(contender)
        session = contender.wait_for_confirm()
        writer.get_leader_store(JOB).put(PATH, b"1", session=session)
    path = urlsplit(zookeeper_url).path
    with (
        TCPProxy(zookeeper_server.port) as proxy,
        open_patiently(HAConfig(url=f"zookeeper://{proxy.address}{path}")) as reader,
    ):
        store = reader.get_leader_store(JOB)
        breaking = Breaking(question, proxy, monkeypatch)
        read(store)
        assert breaking.asked_count == 2
