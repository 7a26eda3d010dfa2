"""
Proxies that come to lead, and cease to, on every name service (Q3, Q4, S2, W3).

Readers and writers are our own, and have no other help than the name service.  What is
killed or stopped as a process is in ``tests/drills``.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast, final

import pytest
from structlog.testing import capture_logs

from election import LeaderSession, LeaderStore, StoreOperation, VersionedValue
from haservices import HAServices
from nameservice import (
    QUERY_PROXY,
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
)
from queryablestate import DeadlineExceededError
from queryablestate.client.client import QueryableStateClient
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from queryablestate.wire.clients import ListJobs
from queryablestate.wire.refusals import NOT_LEADER
from tests.conformance.backends import BACKENDS, Backend
from tests.conformance.harness import Harness
from tests.lodestar.publishing import Publisher
from tests.queryablestate.proxy_peers import ScriptedPeer, is_refused
from tests.queryablestate.proxy_stage import JOB, SCHEMA, STATE
from tests.recording import wait_until
from tests.tiers import nightly_after


pytestmark = pytest.mark.shells

WAIT_SECONDS: Final = 30.0
DEADLINE_SECONDS: Final = 25.0
SETTINGS: Final[dict[str, Any]] = {"session_timeout_seconds": 2.0, "lease_seconds": 0.3}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Backend]]:
    """The name services started so far; all are closed in the end."""
    started: dict[str, Backend] = {}
    yield started
    for backend in started.values():
        backend.close()


def _open(
    name: str, backends: dict[str, Backend], factory: pytest.TempPathFactory
) -> Harness:
    if name not in backends:
        backends[name] = BACKENDS[name](factory.mktemp(name))
    return Harness(backends[name], f"proxies-{next(_numbers)}")


@pytest.fixture(params=nightly_after(2, ["embedded", "leaderserver", "zookeeper"]))
def harness(
    request: pytest.FixtureRequest,
    backends: dict[str, Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Harness]:
    """A cluster of the test's own on each name service."""
    with _open(request.param, backends, tmp_path_factory) as opened:
        yield opened


@pytest.fixture(params=nightly_after(1, ["leaderserver", "zookeeper"]))
def remote(
    request: pytest.FixtureRequest,
    backends: dict[str, Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Harness]:
    """The same on each that can be away."""
    with _open(request.param, backends, tmp_path_factory) as opened:
        yield opened


@final
class Cluster:
    """
    Two nodes, and proxies each with a session of its own; a context manager.

    Args:
        harness: The name service.
        directory: Where the nodes keep their rows.
    """

    def __init__(self, harness: Harness, directory: Path) -> None:
        self.harness = harness
        self._directory = directory
        self._resources = contextlib.ExitStack()
        self.config = harness.config(**SETTINGS)
        self.publisher = Publisher(self.config, JOB, {STATE: SCHEMA})
        self.services: list[HAServices] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._resources.close()

    def add_proxy(
        self, *, cuttable: bool = False, ha: HAServices | None = None
    ) -> QueryStateProxyServer:
        """Start a proxy; the first leads."""
        if ha is None:
            ha = self.harness.open(cuttable=cuttable, **SETTINGS)
        self.services.append(ha)
        config = ProxyConfig(session_timeout_seconds=2.0)
        return self._resources.enter_context(QueryStateProxyServer(ha, config))

    def add_nodes(self) -> None:
        """Start two nodes, and return when they are registered."""
        ha = self.harness.open(**SETTINGS)
        for number in range(2):
            config = NodeConfig(
                data_dir=self._directory / str(number), node_id=f"node-{number}"
            )
            node = self._resources.enter_context(StateNode(ha, config))
            node.wait_until_registered(WAIT_SECONDS)

    def client(self) -> QueryableStateClient:
        """Return a client with a session of its own, which asks the proxy alone."""
        client = QueryableStateClient(
            self.config, deadline_seconds=DEADLINE_SECONDS, direct=False
        )
        return self._resources.enter_context(client)

    def write(self, value: int) -> int:
        """Give every key *value*, and return the batch."""
        return self.publisher.write({STATE: [(f"key-{n}", value) for n in range(20)]})


@final
class Reader:
    """
    Asks for all keys over and over, in a thread of its own; a context manager.

    Attributes:
        seen: The values that it was told, each when it was new.
        errors: What it was told instead.
    """

    def __init__(self, client: QueryableStateClient) -> None:
        self._client = client
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        self.count = 0
        self.seen: list[int] = []
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_for_more(self) -> None:
        """Return after one more round that began after this call."""
        with self._changed:
            count = self.count
            assert self._changed.wait_for(
                lambda: self.count >= count + 2 or self.errors, 60
            )

    def _run(self) -> None:
        keys = [f"key-{n}" for n in range(20)]
        while not self._is_over.is_set():
            try:
                found = self._client.get_many(JOB, STATE, keys)
                values = {row["delay"] for row in found.values()}
                assert len(found) == 20
                # Of one batch or the next: nodes apply each in their own time.
                assert len(values) <= 2
                value = max(values)
                if not self.seen or value != self.seen[-1]:
                    self.seen.append(value)
            except Exception as error:  # noqa: BLE001 (told to the test)
                self.errors.append(error)
                self._is_over.set()
            with self._changed:
                self.count += 1
                self._changed.notify_all()


class TestTakeover:
    @pytest.mark.proves("Q3")
    def test_the_standby_goes_on_when_the_leader_closes(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        """Q3: no reader sees an error or an older value, and writers go on."""
        with Cluster(harness, tmp_path) as cluster:
            first = cluster.add_proxy()
            first.wait_until_leader(WAIT_SECONDS)
            standby = cluster.add_proxy()
            cluster.add_nodes()
            cluster.write(1)
            with Reader(cluster.client()) as reader:
                first.close()
                reader.wait_for_more()
                assert standby.is_leader
                assert cluster.write(2) == 1
                reader.wait_for_more()
                third = cluster.add_proxy()
                standby.close()
                third.wait_until_leader(WAIT_SECONDS)
                assert cluster.write(3) == 2
                reader.wait_for_more()
            assert reader.errors == []
            assert reader.seen == [1, 2, 3]

    def test_a_leader_that_is_revoked_begins_anew(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        """S2: the same proxy, another epoch; nodes and readers notice."""
        with Cluster(harness, tmp_path) as cluster:
            proxy = cluster.add_proxy()
            proxy.wait_until_leader(WAIT_SECONDS)
            cluster.add_nodes()
            cluster.write(1)
            with Reader(cluster.client()) as reader:
                for value in (2, 3):
                    harness.operator.operations.revoke(QUERY_PROXY)
                    assert cluster.write(value) == value - 1
                    reader.wait_for_more()
            assert reader.errors == []
            assert reader.seen == [1, 2, 3]

    @pytest.mark.proves("Q4")
    def test_a_leader_that_is_cut_off_answers_nothing(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        """Q4: it is there, and can be reached, and knows nothing that is true now."""
        with Cluster(harness, tmp_path) as cluster:
            first = cluster.add_proxy(cuttable=True)
            first.wait_until_leader(WAIT_SECONDS)
            standby = cluster.add_proxy()
            cluster.add_nodes()
            cluster.write(1)
            with (
                Reader(cluster.client()) as reader,
                ScriptedPeer(first.address) as peer,
            ):
                peer.hello()
                state = peer.describe(JOB, STATE)
                harness.cut(cluster.services[0])
                standby.wait_until_leader(WAIT_SECONDS)
                # E4: one that is granted is granted after the other has ceased to
                # believe; so from here on there is nothing but this answer.
                for _ in range(20):
                    assert is_refused(peer.ask(ListJobs), NOT_LEADER)
                    assert is_refused(peer.get(state), NOT_LEADER)
                assert cluster.write(2) == 1
                for _ in range(20):
                    assert is_refused(peer.get(state), NOT_LEADER)
                reader.wait_for_more()
                harness.heal(cluster.services[0])
                for _ in range(20):
                    assert is_refused(peer.get(state), NOT_LEADER)
                reader.wait_for_more()
            assert reader.errors == []
            assert reader.seen == [1, 2]

    @pytest.mark.proves("Q3")
    def test_without_a_leader_everybody_is_told_so_in_time(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        """Q3: at the deadline and not later; and all is well when one comes."""
        with Cluster(harness, tmp_path) as cluster:
            client = cluster.client()
            began = time.monotonic()
            with pytest.raises(NoLeaderError):
                client.get(JOB, STATE, "key-1", deadline_seconds=0.5)
            assert time.monotonic() - began < 10
            proxy = cluster.add_proxy()
            proxy.wait_until_leader(WAIT_SECONDS)
            cluster.add_nodes()
            cluster.write(1)
            assert client.get(JOB, STATE, "key-1") == {"delay": 1}
            proxy.close()
            with pytest.raises((NoLeaderError, DeadlineExceededError)):
                client.get(JOB, STATE, "key-1", deadline_seconds=0.5)


class TestNameServiceAway:
    def test_a_restart_is_no_end(self, remote: Harness, tmp_path: Path) -> None:
        """E9: one that asks waits, within the deadline; none loses anything."""
        with Cluster(remote, tmp_path) as cluster:
            proxy = cluster.add_proxy()
            proxy.wait_until_leader(WAIT_SECONDS)
            cluster.add_nodes()
            cluster.write(1)
            with Reader(cluster.client()) as reader:
                for value in (2, 3):
                    remote.backend.restart()
                    assert cluster.write(value) == value - 1
                    reader.wait_for_more()
            assert reader.errors == []
            assert reader.seen == [1, 2, 3]

    @pytest.mark.proves("Q4")
    def test_while_it_is_away_a_proxy_does_not_believe(
        self, remote: Harness, tmp_path: Path
    ) -> None:
        """Q4: and believes again when it is back; who has waited is answered."""
        with Cluster(remote, tmp_path) as cluster:
            proxy = cluster.add_proxy()
            proxy.wait_until_leader(WAIT_SECONDS)
            cluster.add_nodes()
            cluster.write(1)
            client = cluster.client()
            assert client.get(JOB, STATE, "key-1") == {"delay": 1}
            with ScriptedPeer(proxy.address) as peer:
                peer.hello()
                remote.backend.pause()
                try:
                    wait_until(lambda: is_refused(peer.ask(ListJobs), NOT_LEADER))
                    found: list[Any] = []
                    waiter = threading.Thread(
                        target=lambda: found.append(client.get(JOB, STATE, "key-1"))
                    )
                    waiter.start()
                    waiter.join(0.3)
                    assert found == []
                finally:
                    remote.backend.resume()
                waiter.join(WAIT_SECONDS)
                assert found == [{"delay": 1}]
            assert cluster.write(2) == 1
            assert client.get(JOB, STATE, "key-1", min_batch_id=1) == {"delay": 2}


@final
class DoubtfulStore:
    """
    A leader store of which for some commits it is not known what became of them.

    Args:
        store: The real one.
        is_lost: Whether such a commit is lost, rather than its answer.
    """

    def __init__(self, store: LeaderStore, *, is_lost: bool) -> None:
        self._store = store
        self._is_lost = is_lost
        self._numbers = itertools.count(1)
        self.doubt_count = 0

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*."""
        return self._store.get(path)

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*."""
        return self._store.list(prefix)

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        """Do it, or not; and say so, or not."""
        is_doubtful = next(self._numbers) % 3 == 0
        if not (is_doubtful and self._is_lost):
            self._store.commit(operations, session=session)
        if is_doubtful:
            self.doubt_count += 1
            raise MayHaveHappenedError("the name service did not answer")


@final
class DoubtfulServices:
    """Services whose leader store is a `DoubtfulStore`."""

    def __init__(self, ha: HAServices, *, is_lost: bool) -> None:
        self._ha = ha
        self._is_lost = is_lost
        self.stores: list[DoubtfulStore] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ha, name)

    def get_leader_store(self, job_id: str) -> LeaderStore:
        """Return a store that leaves doubts."""
        store = DoubtfulStore(self._ha.get_leader_store(job_id), is_lost=self._is_lost)
        self.stores.append(store)
        return LeaderStore(job_id, store)


class TestDoubt:
    @pytest.mark.parametrize("is_lost", [True, False])
    def test_a_write_in_doubt_is_looked_up(
        self, harness: Harness, tmp_path: Path, *, is_lost: bool
    ) -> None:
        """W3, W4: each batch is decided once, whatever became of the answer."""
        with Cluster(harness, tmp_path) as cluster, capture_logs() as logs:
            services = DoubtfulServices(harness.open(**SETTINGS), is_lost=is_lost)
            proxy = cluster.add_proxy(ha=cast("HAServices", services))
            proxy.wait_until_leader(WAIT_SECONDS)
            cluster.add_nodes()
            client = cluster.client()
            for value in range(1, 9):
                assert cluster.write(value) == value - 1
                entry = client.lookup(JOB, STATE, "key-1", min_batch_id=value - 1)
                assert (entry.value, entry.batch_id) == ({"delay": value}, value - 1)
            (store,) = services.stores
            assert store.doubt_count >= 3
            assert proxy.is_leader
        reloaded = [line for line in logs if line["event"] == "control.reloaded"]
        assert len(reloaded) == store.doubt_count


class TestUnreadableStore:
    def test_a_leadership_that_cannot_be_taken_up_is_left_to_others(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        """E3: unconfirmed it is passed over; none finds one that knows nothing."""
        broken = _Broken()
        with Cluster(harness, tmp_path) as cluster, capture_logs():
            ha = harness.open(**SETTINGS, confirm_timeout_seconds=1.0)
            services = _BrokenServices(ha, broken)
            first = cluster.add_proxy(ha=cast("HAServices", services))
            wait_until(lambda: broken.count > 0)
            second = cluster.add_proxy()
            second.wait_until_leader(WAIT_SECONDS)
            assert not first.is_leader
            cluster.add_nodes()
            cluster.write(1)
            broken.is_over = True
            second.close()
            first.wait_until_leader(WAIT_SECONDS)
            assert cluster.write(2) == 1


class _Broken:
    def __init__(self) -> None:
        self.is_over = False
        self.count = 0

    def check(self) -> None:
        if not self.is_over:
            self.count += 1
            raise NameServiceError("the store cannot be read")


@final
class _BrokenStore:
    def __init__(self, store: LeaderStore, broken: _Broken) -> None:
        self._store = store
        self._broken = broken

    def get(self, path: str) -> VersionedValue | None:
        self._broken.check()
        return self._store.get(path)

    def list(self, prefix: str) -> list[str]:
        return self._store.list(prefix)

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        self._store.commit(operations, session=session)


@final
class _BrokenServices:
    def __init__(self, ha: HAServices, broken: _Broken) -> None:
        self._ha = ha
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ha, name)

    def get_leader_store(self, job_id: str) -> LeaderStore:
        return LeaderStore(
            job_id, _BrokenStore(self._ha.get_leader_store(job_id), self._broken)
        )
