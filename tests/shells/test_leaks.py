"""
Rounds of open, retrieve, contend and close leave nothing behind: a thousand at night.

On the client: no thread, no file descriptor (and so no socket), and no object of ours.
On the server: no session, connection, contender, subscription, topic or watch.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from haservices import open_ha_services
from nameservice import UnreachableError
from tests.conformance.backends import BACKENDS, LeaderServerBackend, ZooKeeperBackend
from tests.conformance.candidates import JOB
from tests.conformance.harness import Harness
from tests.leaks import assert_back_at, process_figures, settled
from tests.recording import ConfirmingContender, RecordingListener, wait_until
from tests.tiers import nightly_after


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.leaks import Figures


pytestmark = [pytest.mark.shells, pytest.mark.timeout(900)]

# A ZooKeeper session is a TCP connection, a replicated transaction and three threads of
# kazoo: a round takes a tenth of a second or more.  What a round leaks, two hundred
# rounds leak two hundred times.  By day a tenth is done, which shows what each round
# leaks; what one round in a hundred leaks is for the night.
ROUND_COUNTS: Final = {
    "embedded": 1_000,
    "leaderserver": 1_000,
    "leaderserver-curve": 100,
    "zookeeper": 200,
}
WARM_UP_ROUND_COUNT: Final = 3

SERVER_FIGURES: Final = (
    "sessions",
    "contenders",
    "leaders",
    "subscriptions",
    "connections",
    "subscribers",
    "topics",
)
ZOOKEEPER_FIGURES: Final = (
    "zk_num_alive_connections",
    "zk_ephemerals_count",
    "zk_watch_count",
    "zk_znode_count",
    "zk_global_sessions",
)


@pytest.fixture(params=nightly_after(1, ["by day", "at night"]))
def round_count(request: pytest.FixtureRequest) -> int:
    """How many rounds there are of whole lives on the backend of a test."""
    count = ROUND_COUNTS[request.node.callspec.params["harness"]]
    return count if request.param == "at night" else count // 10


@pytest.fixture(params=nightly_after(2, ROUND_COUNTS))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A cluster on a name service of the test's own."""
    backend = BACKENDS[request.param](tmp_path)
    with Harness(backend, "leaks") as opened:
        yield opened
    backend.close()


def server_figures(harness: Harness) -> dict[str, object]:
    """Return what the name service counts that must not grow."""
    backend = harness.backend
    figures: Mapping[str, object]
    if isinstance(backend, ZooKeeperBackend):
        lines = backend.server.ask("mntr").splitlines()
        figures = dict(line.split("\t", 1) for line in lines if "\t" in line)
        names: tuple[str, ...] = ZOOKEEPER_FIGURES
    elif isinstance(backend, LeaderServerBackend):
        figures = backend.server.status()
        names = SERVER_FIGURES
    else:
        figures = harness.operator.operations.status()
        names = SERVER_FIGURES
    return {name: figures[name] for name in names if name in figures}


def figures(harness: Harness) -> dict[str, object]:
    """Return everything that must be after the rounds as it was before."""
    return process_figures() | server_figures(harness)


def assert_left_nothing(
    harness: Harness,
    round_count: int,
    one_round: Callable[[], list[weakref.ref[object]]],
) -> None:
    """Do *one_round* that often; check that everything is then as it was before."""
    assert harness.operator is not None  # opened before we count
    for _ in range(WARM_UP_ROUND_COUNT):
        one_round()
    gc.collect()
    before = settled_figures(harness)
    remembered: list[weakref.ref[object]] = []
    for _ in range(round_count):
        remembered += one_round()
    one_round()  # a thread that waits may still hold what it worked on last
    gc.collect()
    # The server hears of closed connections a little later.
    assert_back_at(before, lambda: figures(harness))
    assert not [item for item in remembered if item() is not None]


def settled_figures(harness: Harness) -> Figures:
    """Return the figures once every connection of a service is made."""
    if isinstance(harness.backend, LeaderServerBackend):
        status = harness.backend.server.status
        wait_until(lambda: status()["connections"] == status()["subscribers"])
    return settled(lambda: figures(harness))


class TestLeaks:
    def test_whole_lives(self, harness: Harness, round_count: int) -> None:
        """Open, retrieve, contend, lead, write, close: nothing stays behind."""

        def one_round() -> list[weakref.ref[object]]:
            ha = open_ha_services(harness.config())
            election = ha.get_leader_election(JOB)
            contender = ConfirmingContender(election, "a:1")
            retriever = ha.get_leader_retriever(JOB)
            listener = RecordingListener()
            retriever.start(listener)
            election.start(contender)
            session = contender.wait_for_confirm()
            listener.wait_for_leader(lambda leader: leader is not None)
            ha.get_leader_store(JOB).put("path", b"value", session=session)
            ha.close()
            return [weakref.ref(ha), weakref.ref(election), weakref.ref(retriever)]

        assert_left_nothing(harness, round_count, one_round)

    def test_lives_within_one_session(self, harness: Harness, round_count: int) -> None:
        """Retrievers and elections that come and go leave their service as it was."""
        ha = harness.open()

        def one_round() -> list[weakref.ref[object]]:
            election = ha.get_leader_election(JOB)
            contender = ConfirmingContender(election, "a:1")
            with election, ha.get_leader_retriever(JOB) as retriever:
                election.start(contender)
                contender.wait_for_confirm()
                retriever.wait_for_leader(30.0)
            return [weakref.ref(election), weakref.ref(retriever)]

        assert_left_nothing(harness, round_count, one_round)

    def test_waiting_contenders(self, harness: Harness, round_count: int) -> None:
        """Contenders that leave before their turn comes leave no watch behind."""
        ha = harness.open()
        leading = ha.get_leader_election(JOB)
        leader = ConfirmingContender(leading, "leader:1")
        leading.start(leader)
        leader.wait_for_confirm()
        other = harness.open()

        def one_round() -> list[weakref.ref[object]]:
            with other.get_leader_election(JOB) as election:
                election.start(ConfirmingContender(election, "a:1"))
                wait_until(lambda: len(leading.contenders()) == 2)
            return [weakref.ref(election)]

        assert_left_nothing(harness, max(round_count // 5, 5), one_round)

    def test_services_that_could_not_be_opened(self, harness: Harness) -> None:
        """A server that is not reached leaves nothing in the process that tried."""
        if isinstance(harness.backend, LeaderServerBackend | ZooKeeperBackend):
            scheme = harness.config().backend.value
            config = harness.config(
                url=f"{scheme}://127.0.0.1:1", connect_timeout_seconds=0.1
            )
        else:
            return

        def one_round() -> list[weakref.ref[object]]:
            with pytest.raises(UnreachableError):
                open_ha_services(config)
            return []

        assert_left_nothing(harness, 20, one_round)
