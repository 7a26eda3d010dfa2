"""What is so on ZooKeeper alone; tests/conformance holds what is so everywhere."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from structlog.testing import capture_logs

from election import Delete, LeaderElection, LeaderSession, LeaderStore, Put
from haservices import Guarantee, HAConfig, HAServices, open_ha_services
from haservices.event_loop import EventLoop
from haservices.testing.tcp_proxy import TCPProxy
from haservices.testing.zookeeper_server import ZooKeeperServer
from haservices.zookeeper.backend import ZooKeeperHAServices
from haservices.zookeeper.calls import BlockingCalls
from haservices.zookeeper.connection import ZooKeeperConnection
from haservices.zookeeper.operations import ZooKeeperOperations
from haservices.zookeeper.packing import unused_bundles
from haservices.zookeeper.paths import ComponentPaths
from haservices.zookeeper.reading import read_children
from haservices.zookeeper.session import ZooKeeperSession
from haservices.zookeeper.store import ZooKeeperStoreDriver
from haservices.zookeeper.store_core import Looked
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    RemoteProtocolError,
    StaleEpochError,
    SystemClock,
    UnknownSessionError,
    UnreachableError,
)
from tests.late_server import late_server
from tests.leaks import own_threads
from tests.opening import open_patiently
from tests.recording import (
    WAIT_SECONDS,
    ConfirmingContender,
    Granted,
    Notified,
    RecordingContender,
    RecordingListener,
    Revoked,
    wait_until,
)


pytestmark = pytest.mark.shells

JOB = "flights"
SESSION_TIMEOUT_SECONDS = 1.5
AMID_SECONDS = 0.3


@pytest.fixture
def resources() -> Iterator[contextlib.ExitStack]:
    """Return what closes everything that a test has opened."""
    with contextlib.ExitStack() as stack:
        yield stack


class Cluster:
    """Services of one chroot, and the nodes below it."""

    def __init__(
        self, url: str, client: KazooClient, resources: contextlib.ExitStack
    ) -> None:
        self.url = url
        self.client = client
        self.top = f"{urlsplit(url).path}/lodestar/default"
        self.component = f"{self.top}/components/{JOB}"
        self.leader = f"{self.component}/leader"
        self._resources = resources

    def open(self, **settings: Any) -> ZooKeeperHAServices:
        """Return new services with a session of their own."""
        settings = {"url": self.url} | settings
        ha = open_patiently(HAConfig(**settings))
        assert isinstance(ha, ZooKeeperHAServices)
        self._resources.callback(ha.close)
        return ha

    def contend(
        self, ha: HAServices, address: str
    ) -> tuple[LeaderElection, ConfirmingContender]:
        """Return an election in which a contender takes part, once it is registered."""
        known = len(self.contenders())
        election = ha.get_leader_election(JOB)
        contender = ConfirmingContender(election, address)
        election.start(contender)
        wait_until(lambda: len(self.contenders()) > known)
        return election, contender

    def lead(
        self, ha: HAServices, address: str = "a:1"
    ) -> tuple[LeaderElection, ConfirmingContender, LeaderSession]:
        """Return a contender that leads."""
        election, contender = self.contend(ha, address)
        return election, contender, contender.wait_for_confirm()

    def lead_patiently(self) -> tuple[ZooKeeperHAServices, LeaderStore, LeaderSession]:
        """Return services, the store of JOB, and under which leadership to write."""
        # A megabyte takes a busy disk seconds, and large commits are not about speed.
        ha = self.open(connect_timeout_seconds=30.0)
        _, _, session = self.lead(ha)
        return ha, ha.get_leader_store(JOB), session

    def contenders(self) -> list[str]:
        """Return the paths of the contenders' nodes, in order."""
        parent = f"{self.component}/contenders"
        try:
            names = self.client.get_children(parent)
        except NoNodeError:
            return []
        return [f"{parent}/{name}" for name in sorted(names, key=lambda n: n[-10:])]

    def read(self, path: str) -> Any:
        """Return the JSON that a node holds."""
        return json.loads(self.client.get(path)[0])

    def exists(self, path: str) -> bool:
        """Return whether there is a node."""
        return self.client.exists(path) is not None


@pytest.fixture
def cluster(
    zookeeper_url: str, zookeeper_client: KazooClient, resources: contextlib.ExitStack
) -> Cluster:
    """Return a cluster of the test's own."""
    return Cluster(zookeeper_url, zookeeper_client, resources)


def listening(ha: HAServices) -> RecordingListener:
    """Return the listener of a new retriever, started."""
    listener = RecordingListener()
    ha.get_leader_retriever(JOB).start(listener)
    return listener


def watcher_counts(server: ZooKeeperServer) -> dict[str, int]:
    """Return for each path that is watched how many sessions watch it."""
    counts: dict[str, int] = {}
    path = ""
    for line in server.ask("wchp").splitlines():
        if line.startswith("/"):
            path = line
            counts[path] = 0
        elif line:
            counts[path] += 1
    return counts


class TestNodes:
    """What stands in ZooKeeper, for those who look with other tools."""

    def test_epoch_is_the_transaction_that_created_the_contenders_node(
        self, cluster: Cluster
    ) -> None:
        """E2: the czxid, so that epochs rise as long as the ensemble's data lives."""
        ha = cluster.open()
        _, _, session = cluster.lead(ha)
        (node,) = cluster.contenders()
        stat = cluster.client.exists(node)
        assert stat.czxid == session.epoch
        assert f"{stat.ephemeralOwner:#x}" == ha.session_id

    def test_leader_and_contender_can_be_read_as_json(self, cluster: Cluster) -> None:
        """E3, R3: the leader's node is ephemeral and holds the publication."""
        election, _, session = cluster.lead(cluster.open())
        election.confirm_leadership(session.leader_session_id, "b:1")
        assert cluster.read(cluster.leader) == {
            "epoch": session.epoch,
            "confirm_count": 2,
            "leader_session_id": str(session.leader_session_id),
            "address": "b:1",
        }
        (node,) = cluster.contenders()
        record = cluster.read(node)
        assert record["address"] == "b:1"
        assert record["is_granted"] is True
        assert record["session_timeout_ms"] == 10_000
        owners = {
            cluster.client.exists(path).ephemeralOwner
            for path in (node, cluster.leader)
        }
        assert len(owners) == 1
        assert 0 not in owners

    def test_retrieving_creates_nothing(self, cluster: Cluster) -> None:
        """R6: not even the nodes above, nor the chroot."""
        ha = cluster.open()
        listener = listening(ha)
        with ha.get_leader_retriever(JOB) as retriever:
            assert retriever.leader is None
            assert list(ha.get_leader_election(JOB).contenders()) == []
            assert ha.get_leader_store(JOB).list() == []
            assert ha.get_leader_store(JOB).get("path") is None
            assert list(ha.operations.leaders()) == []
        assert not cluster.exists(urlsplit(cluster.url).path)
        assert listener.calls == ()

    def test_closing_leaves_no_ephemeral_node(self, cluster: Cluster) -> None:
        """E7: what an election has created is gone when its close has returned."""
        election, _, _ = cluster.lead(cluster.open())
        election.close()
        assert cluster.contenders() == []
        assert not cluster.exists(cluster.leader)

    def test_cleanup_leaves_no_node_where_nobody_contends(
        self, cluster: Cluster
    ) -> None:
        """L3: jobs come and go; their nodes do not pile up."""
        ha = cluster.open()
        election, _, session = cluster.lead(ha)
        ha.get_leader_store(JOB).put("a/b", b"1", session=session)
        ha.cleanup(JOB)
        assert len(cluster.contenders()) == 1
        election.close()
        ha.cleanup(JOB)
        assert not cluster.exists(cluster.component)
        assert not cluster.exists(f"{cluster.top}/store/{JOB}")
        _, _, again = cluster.lead(cluster.open(), "b:1")
        assert again.epoch > session.epoch


class TestWatches:
    """Who watches what, and what becomes of watches."""

    def test_a_contender_watches_only_the_one_before_it(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """E1: no herd: the end of a leader wakes one contender and its own."""
        elections = [cluster.contend(cluster.open(), f"c{n}:1")[0] for n in range(5)]

        def counts() -> list[int]:
            watchers = watcher_counts(zookeeper_server)
            return [watchers.get(node, 0) for node in cluster.contenders()]

        # Each by its own contender, and all but the last by the next one.
        wait_until(lambda: counts() == [2, 2, 2, 2, 1])
        elections[2].close()
        wait_until(lambda: counts() == [2, 2, 2, 1])

    def test_closed_retrievers_and_contenders_leave_no_watch(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """R5, E7: neither on the server nor in kazoo, while the session goes on."""
        cluster.lead(cluster.open())
        before = dict.fromkeys([cluster.leader, *cluster.contenders()], 1)
        wait_until(lambda: watcher_counts(zookeeper_server) == before)
        ha = cluster.open()
        kazoo_watchers = ha._session._connection._client._data_watchers
        for number in range(20):
            election, _ = cluster.contend(ha, "waiting:1")
            for job_id in (JOB, f"job-{number}"):
                with ha.get_leader_retriever(job_id) as retriever:
                    if job_id == JOB:
                        retriever.wait_for_leader(WAIT_SECONDS)
            election.close()
        wait_until(lambda: watcher_counts(zookeeper_server) == before)
        wait_until(lambda: not kazoo_watchers)

    def test_retrievers_of_one_service_share_one_watch(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """R2: however many retrievers a process has, ZooKeeper tells it once."""

        def count() -> int:
            return watcher_counts(zookeeper_server).get(cluster.leader, 0)

        cluster.lead(cluster.open())
        wait_until(lambda: count() == 1)  # the holder's own
        ha = cluster.open()
        for _ in range(10):
            listening(ha).wait_for_leader(lambda leader: leader is not None)
        assert count() == 2


class TestTampering:
    """Others have tools of their own."""

    def test_a_deleted_contender_is_revoked_and_queues_last(
        self, cluster: Cluster
    ) -> None:
        """E8: to delete the holder's node ends its leadership."""
        _, leader, first = cluster.lead(cluster.open())
        _, follower = cluster.contend(cluster.open(), "b:1")
        listener = listening(cluster.open())
        listener.wait_for_leader(lambda found: found is not None)
        cluster.client.delete(cluster.contenders()[0])
        leader.wait_for_revoke()
        second = follower.wait_for_confirm()
        listener.wait_for_latest(
            lambda found: found is not None and found.address == "b:1"
        )
        wait_until(lambda: len(cluster.contenders()) == 2)
        assert cluster.client.exists(cluster.contenders()[0]).czxid == second.epoch
        assert first.epoch < second.epoch
        assert leader.calls == (Granted(first), Revoked())

    def test_a_deleted_waiting_contender_registers_again(
        self, cluster: Cluster
    ) -> None:
        """E8: it does not wait for ever for a turn that cannot come."""
        cluster.lead(cluster.open())
        _, waiting = cluster.contend(cluster.open(), "b:1")
        node = cluster.contenders()[1]
        cluster.client.delete(node)
        wait_until(lambda: len(cluster.contenders()) == 2)
        assert cluster.contenders()[1] != node
        assert waiting.calls == ()

    def test_a_deleted_publication_ends_the_leadership(self, cluster: Cluster) -> None:
        """
        R2, R3: retrievers may have been told None of this epoch: it has ended.

        The next one may follow at once, before the None in between was read.
        """
        _, leader, first = cluster.lead(cluster.open())
        listener = listening(cluster.open())
        before = listener.wait_for_leader(lambda found: found is not None)
        cluster.client.delete(cluster.leader)
        second = leader.wait_for_confirm(2)
        assert second.epoch > first.epoch
        found = listener.wait_for_latest(
            lambda found: found is not None and found.epoch == second.epoch
        )
        assert leader.calls == (Granted(first), Revoked(), Granted(second))
        assert listener.leaders in ((before, None, found), (before, found))

    def test_a_leftover_publication_is_replaced(self, cluster: Cluster) -> None:
        """E3: the queue decides who leads, whatever stands in the leader's node."""
        cluster.client.create(cluster.leader, b"somebody else's", makepath=True)
        listener = listening(cluster.open())
        error = listener.record.wait_for_count(1)[0]
        _, _, session = cluster.lead(cluster.open())
        listener.wait_for_latest(
            lambda found: found is not None and found.epoch == session.epoch
        )
        assert not isinstance(error, Notified)
        assert isinstance(error.error, RemoteProtocolError)
        assert cluster.client.exists(cluster.leader).ephemeralOwner != 0

    def test_a_contenders_node_that_is_overwritten_ends_its_entry(
        self, cluster: Cluster
    ) -> None:
        """E8: what stands in it now is not known: revoked, and registered again."""
        _, leader, first = cluster.lead(cluster.open())
        cluster.client.set(cluster.contenders()[0], b"{}")
        second = leader.wait_for_confirm(2)
        assert second.epoch > first.epoch
        assert leader.calls == (Granted(first), Revoked(), Granted(second))

    def test_strangers_nodes_among_the_contenders_are_ignored(
        self, cluster: Cluster
    ) -> None:
        """E1, N6: they neither lead nor break what operators ask."""
        contenders = f"{cluster.component}/contenders"
        cluster.client.create(f"{contenders}/stranger", b"", makepath=True)
        cluster.client.create(f"{contenders}/{'0' * 32}-x", b"")
        ha = cluster.open()
        election, _, _ = cluster.lead(ha)
        assert [item.address for item in election.contenders()] == ["a:1"]
        assert [item.contender_count for item in ha.operations.leaders()] == [1]
        assert len(ha.operations.sessions()) == 1


class TestRevocation:
    """Operators end leaderships by marking: two holders never believe at once."""

    def test_the_marked_holder_stays_first_until_it_has_stopped_leading(
        self, cluster: Cluster
    ) -> None:
        """E4, E6: the successor is granted when the revoke callback has returned."""
        may_return = threading.Event()

        class Leaving(ConfirmingContender):
            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                assert may_return.wait(WAIT_SECONDS)

        ha = cluster.open(session_timeout_seconds=60.0)
        election = ha.get_leader_election(JOB)
        leader = Leaving(election, "a:1")
        election.start(leader)
        session = leader.wait_for_confirm()
        _, follower = cluster.contend(cluster.open(), "b:1")
        assert cluster.open().operations.revoke(JOB) == session
        leader.wait_for_revoke()
        assert not election.has_leadership(session.leader_session_id)
        assert not cluster.exists(cluster.leader)
        (first, _) = cluster.contenders()
        assert cluster.read(first)["is_ended"] is True
        assert follower.calls == ()
        with pytest.raises(StaleEpochError):
            ha.get_leader_store(JOB).put("a", b"", session=session)
        with pytest.raises(LeadershipLostError):
            election.confirm_leadership(session.leader_session_id, "a:2")
        with pytest.raises(NoLeaderError):
            cluster.open().operations.revoke(JOB)
        may_return.set()
        follower.wait_for_confirm()

    def test_a_callback_that_hangs_is_waited_for_one_session_timeout(
        self, cluster: Cluster
    ) -> None:
        """E4: belief is over for sure by then; others need not wait for ever."""
        may_return = threading.Event()

        class Hanging(ConfirmingContender):
            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                assert may_return.wait(WAIT_SECONDS)

        ha = cluster.open(session_timeout_seconds=SESSION_TIMEOUT_SECONDS)
        election = ha.get_leader_election(JOB)
        leader = Hanging(election, "a:1")
        election.start(leader)
        leader.wait_for_confirm()
        _, follower = cluster.contend(cluster.open(), "b:1")
        cluster.open().operations.revoke(JOB)
        follower.wait_for_confirm()
        assert leader.revoked_count == 1
        may_return.set()

    def test_a_holder_that_dies_marked_gives_way_with_its_session(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """E4: cut off, it cannot be told: its successor waits for its session."""
        with TCPProxy(zookeeper_server.port) as proxy:
            ha = cluster.open(
                url=f"zookeeper://{proxy.address}{urlsplit(cluster.url).path}",
                session_timeout_seconds=SESSION_TIMEOUT_SECONDS,
            )
            election, _, session = cluster.lead(ha)
            _, follower = cluster.contend(cluster.open(), "b:1")
            proxy.cut()
            cluster.open().operations.revoke(JOB)
            follower.wait_for_confirm()
            assert not election.has_leadership(session.leader_session_id)
            proxy.heal()

    def test_servers_that_answer_late_are_not_given_up_for_ever(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """
        A greeting has twice the time in each round.

        Each was given up after the same time, and was another write for servers that
        had too much to do already.
        """
        with late_server(zookeeper_server.port) as server:
            ha = cluster.open(
                url=f"zookeeper://{server.address}{urlsplit(cluster.url).path}",
                connect_timeout_seconds=1.0,
                session_timeout_seconds=20.0,
            )
            session_id = ha.session_id
            server.late_seconds = 0.7
            server.cut()
            store = ha.get_leader_store(JOB)
            while True:
                with contextlib.suppress(UnreachableError):
                    assert store.get("no such path") is None
                    break
            assert ha.session_id == session_id

    def test_expiring_ends_every_entry_of_a_session(self, cluster: Cluster) -> None:
        """N6: the leader is revoked, waiting contenders queue last, nothing else."""
        ha = cluster.open()
        other = cluster.open()
        _, leader, first = cluster.lead(ha)
        _, follower = cluster.contend(other, "b:1")
        cluster.contend(ha, "c:1")
        assert ha.session_id is not None
        other.operations.expire(ha.session_id)
        leader.wait_for_revoke()
        assert follower.wait_for_confirm().epoch > first.epoch
        wait_until(lambda: len(cluster.contenders()) == 3)
        with pytest.raises(UnknownSessionError):
            other.operations.expire("0x1")


class TestSessions:
    """What becomes of a session, and of what hangs on it."""

    def test_the_negotiated_timeout_counts_not_the_one_asked_for(
        self, resources: contextlib.ExitStack
    ) -> None:
        """E4: a server that grants less is believed, and operators see it."""
        server = resources.enter_context(
            ZooKeeperServer(session_timeout_seconds_max=2.0)
        )
        ha = resources.enter_context(open_ha_services(server.url))
        election = ha.get_leader_election(JOB)
        contender = ConfirmingContender(election, "a:1")
        election.start(contender)
        session = contender.wait_for_confirm()
        (information,) = ha.operations.sessions()
        assert information.timeout_seconds == 2.0
        wait_until(lambda: election.has_leadership(session.leader_session_id))
        server.pause()
        began = time.monotonic()
        wait_until(lambda: not election.has_leadership(session.leader_session_id))
        assert time.monotonic() - began < 2.0
        server.resume()

    def test_a_session_that_is_really_over_is_replaced(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """E8: revoked, a new session, registered at the end; retrievers go on."""
        ha = cluster.open()
        election, leader, first = cluster.lead(ha)
        listener = listening(ha)
        listener.wait_for_leader(lambda found: found is not None)
        ended = ha.session_id
        identity = ha._session._connection._client.client_id
        # One that holds id and password of a session may close it.
        thief = KazooClient(hosts=zookeeper_server.address, client_id=identity)
        thief.start()
        thief.stop()
        thief.close()
        second = leader.wait_for_confirm(2)
        assert second.epoch > first.epoch
        assert ha.session_id not in (None, ended)
        assert leader.calls == (Granted(first), Revoked(), Granted(second))
        wait_until(lambda: election.has_leadership(second.leader_session_id))
        listener.wait_for_latest(
            lambda found: found is not None and found.epoch == second.epoch
        )

    def test_a_broken_connection_costs_nothing(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """E5: reset again and again, the session and the leadership go on."""
        with TCPProxy(zookeeper_server.port) as proxy:
            ha = cluster.open(
                url=f"zookeeper://{proxy.address}{urlsplit(cluster.url).path}"
            )
            _, leader, session = cluster.lead(ha)
            store = ha.get_leader_store(JOB)
            written = 0
            for number in range(10):
                proxy.reset()
                try:
                    store.put("n", str(number).encode(), session=session)
                except (DidNotHappenError, MayHaveHappenedError):
                    continue
                written = number
            store.put("n", b"last", session=session)
            value = store.get("n")
            assert value is not None
            assert value.value == b"last"
            assert written > 0
            assert leader.calls == (Granted(session),)

    def test_a_silent_connection_is_given_up_while_the_session_lives(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """E5: two thirds of the timeout of silence, then another server is tried."""
        with TCPProxy(zookeeper_server.port) as proxy:
            ha = cluster.open(
                url=f"zookeeper://{proxy.address}{urlsplit(cluster.url).path}",
                session_timeout_seconds=6.0,
            )
            before = ha.session_id
            _, leader, session = cluster.lead(ha)
            # From now on the server is somewhere else.
            client = ha._session._connection._client
            client.set_hosts(zookeeper_server.address)
            proxy.cut()
            store = ha.get_leader_store(JOB)

            def is_written() -> bool:
                try:
                    store.put("path", b"", session=session)
                except (DidNotHappenError, MayHaveHappenedError):
                    return False
                return True

            wait_until(is_written)
            assert ha.session_id == before
            assert leader.calls == (Granted(session),)

    def test_closing_while_out_of_contact_is_bounded(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """E7: close() returns though there is no answer; the session ends later."""
        with TCPProxy(zookeeper_server.port) as proxy:
            ha = cluster.open(
                url=f"zookeeper://{proxy.address}{urlsplit(cluster.url).path}",
                session_timeout_seconds=SESSION_TIMEOUT_SECONDS,
                connect_timeout_seconds=0.5,
            )
            cluster.lead(ha)
            for number in range(5):
                ha.get_leader_election(f"job-{number}").start(RecordingContender())
            proxy.cut()
            began = time.monotonic()
            ha.close()
            assert time.monotonic() - began < 10.0
        wait_until(lambda: cluster.contenders() == [])

    def test_an_election_closed_while_it_registers_leaves_nothing(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """E8: the answer to the registration comes when the election is closed."""
        with TCPProxy(zookeeper_server.port) as proxy:
            ha = cluster.open(
                url=f"zookeeper://{proxy.address}{urlsplit(cluster.url).path}",
                session_timeout_seconds=60.0,
                connect_timeout_seconds=0.5,
            )
            for deliver in (True, False):
                election = ha.get_leader_election(JOB)
                contender = RecordingContender()
                proxy.cut_replies()
                election.start(contender)
                wait_until(lambda: len(cluster.contenders()) == 1)
                election.close()
                assert len(cluster.contenders()) == 1
                proxy.heal(deliver=deliver)
                wait_until(lambda: cluster.contenders() == [])
                assert contender.calls == ()


class TestStore:
    """One node per path, one transaction per commit."""

    def test_what_others_write_is_a_version_like_any_other(
        self, cluster: Cluster
    ) -> None:
        """L1: ZooKeeper's version plus one; a guess that was wrong is corrected."""
        ha = cluster.open()
        _, _, session = cluster.lead(ha)
        store = ha.get_leader_store(JOB)
        store.put("a", b"1", session=session)
        node = f"{cluster.top}/store/{JOB}/a"
        cluster.client.set(node, b"=theirs")
        value = store.get("a")
        assert value is not None
        assert (value.value, value.version) == (b"theirs", 2)
        cluster.client.delete(node)
        store.put("a", b"2", session=session)
        cluster.client.delete(node)
        store.delete("a", session=session)
        assert store.list() == []
        cluster.client.create(node, b"not ours")
        with pytest.raises(RemoteProtocolError):
            store.get("a")

    def test_commits_of_many_values_are_one_all_the_same(
        self, cluster: Cluster
    ) -> None:
        """L3: 1,000,000 bytes in 1,000 values: written, replaced and removed again."""
        ha, store, session = cluster.lead_patiently()
        bundles = f"{cluster.top}/bundles/{JOB}"
        paths = [f"part/{number:04}" for number in range(1_000)]
        for fill in (b"a", b"b", b"c"):
            store.commit([Put(path, fill * 1_000) for path in paths], session=session)
            values = [store.get(path) for path in (paths[0], paths[499], paths[-1])]
            assert {value and value.value for value in values} == {fill * 1_000}
            assert len(cluster.client.get_children(bundles)) <= 2
        stale = LeaderSession(
            leader_session_id=session.leader_session_id, epoch=session.epoch - 1
        )
        with pytest.raises(StaleEpochError):
            store.commit([Put(path, b"z" * 1_000) for path in paths], session=stale)
        store.commit([Delete(path) for path in paths], session=session)
        assert store.list() == []
        ha.cleanup(JOB)
        assert not cluster.exists(bundles)

    @pytest.mark.proves("L1")
    @pytest.mark.parametrize("when", ["listed", "looked", "afterwards"])
    def test_commits_of_many_values_at_once_keep_what_each_has_written(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        """L1: one that looks for unused values takes none that is just being used."""
        _, store, session = cluster.lead_patiently()
        other = _commit_before_transaction(monkeypatch, store, session)

        def read(session: ZooKeeperSession, path: str) -> Sequence[str]:
            found = read_children(session, path)
            if when == "listed":
                other.finish()
            return found

        def look(names: Sequence[str], values: Iterable[bytes]) -> list[str]:
            unused = unused_bundles(names, values)
            if when == "looked":
                other.finish()
            return unused

        monkeypatch.setattr("haservices.zookeeper.bundles.unused_bundles", look)
        monkeypatch.setattr("haservices.zookeeper.bundles.read_children", read)
        store.commit(_many_values("mine"), session=session)
        other.finish()
        for path in ("mine/0000", "other/0000"):
            value = store.get(path)
            assert value is not None
            assert value.value == b"v" * 1_000

    @pytest.mark.proves("L1")
    def test_values_that_are_replaced_go_however_often_another_thread_commits(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L1: a leader that never rests does not fill ZooKeeper with what it was."""
        _, store, session = cluster.lead_patiently()

        def look(names: Sequence[str], values: Iterable[bytes]) -> list[str]:
            store.put("heartbeat", b"now", session=session)
            return unused_bundles(names, values)

        monkeypatch.setattr("haservices.zookeeper.bundles.unused_bundles", look)
        for _ in range(4):
            store.commit(_many_values("mine"), session=session)
        names = cluster.client.get_children(f"{cluster.top}/bundles/{JOB}")
        assert len(names) == 2  # what is there, and what was there before

    @pytest.mark.proves("L3")
    def test_a_cleanup_takes_no_part_of_what_is_written_meanwhile(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L3: a value is there or is not; it is never there and unreadable."""
        ha, store, session = cluster.lead_patiently()
        other = _commit_before_transaction(monkeypatch, store, session)

        def read(session: ZooKeeperSession, path: str) -> Sequence[str]:
            found = read_children(session, path)
            if path.endswith(f"/bundles/{JOB}"):
                other.finish()
            return found

        for module in ("store", "bundles"):
            monkeypatch.setattr(f"haservices.zookeeper.{module}.read_children", read)
        ha.cleanup(JOB)
        for path in store.list():
            value = store.get(path)
            assert value is not None
            assert value.value == b"v" * 1_000

    @pytest.mark.proves("L1")
    def test_a_path_that_a_commit_deletes_is_gone_with_it_or_never_was_there(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L1: what another client puts there meanwhile goes too."""
        ha = cluster.open()
        _, _, session = cluster.lead(ha)
        store = ha.get_leader_store(JOB)
        store.put("state", b"begun", session=session)
        look = ZooKeeperStoreDriver._look
        others = [b"=other"]

        def look_and_write(
            driver: ZooKeeperStoreDriver, paths: Sequence[str]
        ) -> Looked:
            looked = look(driver, paths)
            while others:
                other = others.pop()
                cluster.client.create(f"{cluster.top}/store/{JOB}/lock", other)
                cluster.client.set(f"{cluster.top}/store/{JOB}/state", other)
            return looked

        monkeypatch.setattr(ZooKeeperStoreDriver, "_look", look_and_write)
        store.commit([Delete("lock"), Put("state", b"mine")], session=session)
        found = {path: store.get(path) for path in ("lock", "state")}
        values = {path: value and value.value for path, value in found.items()}
        assert values == {"lock": None, "state": b"mine"}

    @pytest.mark.proves("L1")
    def test_commits_of_one_leader_over_the_same_paths_do_not_fail_one_another(
        self, cluster: Cluster
    ) -> None:
        """L1: four threads put and delete the same path, and no other client writes."""
        _, store, session = cluster.lead_patiently()

        def commit(thread_index: int) -> None:
            for round_index in range(thread_index, thread_index + 50):
                if round_index % 2:
                    store.put("a", b"1", session=session)
                else:
                    store.delete("a", session=session)

        with ThreadPoolExecutor(4) as threads:
            for committing in [threads.submit(commit, index) for index in range(4)]:
                committing.result()

    def test_a_version_that_must_not_exist_is_checked_for_deletions_too(
        self, cluster: Cluster
    ) -> None:
        """L1: deleting what must not be there succeeds only if it is not."""
        ha = cluster.open()
        _, _, session = cluster.lead(ha)
        store = ha.get_leader_store(JOB)
        store.delete("a", version=0, session=session)
        store.put("a", b"", session=session)
        with pytest.raises(DidNotHappenError):
            store.delete("a", version=0, session=session)
        assert store.list() == ["a"]


def _many_values(name: str) -> list[Put]:
    """Return what is too much for one request with all its paths."""
    return [Put(f"{name}/{number:04}", b"v" * 1_000) for number in range(1_000)]


class _OtherCommit:
    """A commit on a thread of its own, whose values are written beforehand."""

    def __init__(self, commit: Callable[[], None]) -> None:
        self.may_go_on = threading.Event()
        self.thread = threading.Thread(target=commit)

    def finish(self) -> None:
        """Have it end, unless it is itself that calls; again changes nothing."""
        self.may_go_on.set()
        if threading.current_thread() is not self.thread:
            self.thread.join()


def _commit_before_transaction(
    monkeypatch: pytest.MonkeyPatch, store: LeaderStore, session: LeaderSession
) -> _OtherCommit:
    """Begin a commit of many values, and return when only its transaction is left."""
    is_written = threading.Event()
    other = _OtherCommit(lambda: store.commit(_many_values("other"), session=session))
    transact = ZooKeeperStoreDriver._transact

    def wait(driver: ZooKeeperStoreDriver, *arguments: Any) -> None:
        if threading.current_thread() is other.thread:
            is_written.set()
            other.may_go_on.wait()
        transact(driver, *arguments)

    monkeypatch.setattr(ZooKeeperStoreDriver, "_transact", wait)
    other.thread.start()
    is_written.wait()
    return other


@pytest.mark.proves("L4")
class TestClosedMeanwhile:
    @pytest.mark.parametrize(
        "ask",
        [
            lambda ha: ha.get_leader_store(JOB).get("a"),
            lambda ha: ha.operations.contenders(JOB),
            lambda ha: ha.cleanup(JOB),
        ],
        ids=["get", "contenders", "cleanup"],
    )
    def test_what_another_thread_is_just_asking_ends_with_the_services(
        self,
        cluster: Cluster,
        monkeypatch: pytest.MonkeyPatch,
        ask: Callable[[HAServices], object],
    ) -> None:
        """L4: it is told that they are closed, and not after its whole timeout."""
        ha = cluster.open(connect_timeout_seconds=5.0)
        request = BlockingCalls.request

        def close_and_request(calls: BlockingCalls, asked: Callable[[], Any]) -> Any:
            closing = threading.Thread(target=ha.close)
            closing.start()
            closing.join()
            return request(calls, asked)

        monkeypatch.setattr(BlockingCalls, "request", close_and_request)
        with pytest.raises(LocalProtocolError, match="closed"):
            ask(ha)

    def test_what_is_just_being_deleted_ends_with_the_services(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L4: nothing more was sent, and so it is told, at once."""
        ha = cluster.open(connect_timeout_seconds=5.0)
        _, _, session = cluster.lead(ha)
        ha.get_leader_store(JOB).put("a", b"1", session=session)

        def read_and_close(session: ZooKeeperSession, path: str) -> Sequence[str]:
            found = read_children(session, path)
            closing = threading.Thread(target=ha.close)
            closing.start()
            closing.join()
            return found

        monkeypatch.setattr("haservices.zookeeper.store.read_children", read_and_close)
        with pytest.raises(LocalProtocolError, match="closed"):
            ha.cleanup(JOB)

    @pytest.mark.parametrize("is_amid", [False, True])
    def test_a_connection_that_ends_before_it_has_started_does_not_start(
        self, zookeeper_server: ZooKeeperServer, *, is_amid: bool
    ) -> None:
        """L4: kazoo stopped amid a start had no pipe yet, and ran on for ever."""
        before = own_threads()
        loop = EventLoop("test-loop", SystemClock())
        loop.start()
        connection = ZooKeeperConnection(
            HAConfig(url=zookeeper_server.url),
            loop=loop,
            clock=SystemClock(),
            on_event=lambda _: None,
            on_node_changed=lambda _: None,
        )
        ending = threading.Thread(target=connection.stop, args=(WAIT_SECONDS,))
        handler = connection._client.handler
        start_handler = handler.start

        def start_amid_the_end() -> None:
            start_handler()
            ending.start()
            ending.join(AMID_SECONDS)  # it may have to wait for the start

        if is_amid:
            handler.start = start_amid_the_end
        else:
            ending.start()
            ending.join(WAIT_SECONDS)
        loop.submit(connection.start).result(WAIT_SECONDS)
        ending.join(WAIT_SECONDS)
        loop.stop()
        wait_until(lambda: own_threads() <= before)

    def test_a_connection_that_is_made_while_all_is_closed_does_not_start(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L4: the one before was ended, and its successor went on without an owner."""
        before = own_threads()
        ha = cluster.open()
        session = ha._session
        make = session._make_connection
        closing = threading.Thread(target=ha.close)

        def make_while_closing() -> ZooKeeperConnection:
            closing.start()
            wait_until(lambda: session.calls.is_closed)
            closing.join(AMID_SECONDS)  # it may have to wait for this loop
            return make()

        monkeypatch.setattr(session, "_make_connection", make_while_closing)
        broken = session.connection
        session.loop.call(lambda: broken.stop(WAIT_SECONDS))
        wait_until(lambda: session.connection is not broken)
        wait_until(lambda: own_threads() <= before)

    def test_a_file_that_is_just_being_replaced_costs_no_session_for_ever(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L4: a connection that cannot be made is made a little later."""
        session = cluster.open()._session
        make = session._make_connection
        errors: list[Exception] = [ConfigurationError("no such file"), OSError("full")]

        def make_in_the_end() -> ZooKeeperConnection:
            if errors:
                raise errors.pop()
            return make()

        monkeypatch.setattr(session, "_make_connection", make_in_the_end)
        broken = session.connection
        session.loop.call(lambda: broken.stop(WAIT_SECONDS))
        wait_until(lambda: session.connection is not broken and session.is_connected)
        assert errors == []

    def test_a_connection_that_cannot_start_is_replaced(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L4: without descriptors it has no pipe to be woken by, and still ends."""
        before = own_threads()
        ha = cluster.open()
        session = ha._session
        make = session._make_connection
        made: list[ZooKeeperConnection] = []

        def refuse() -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        def make_with_too_few_files() -> ZooKeeperConnection:
            made.append(make())
            if len(made) == 1:
                made[0]._client.handler.create_socket_pair = refuse
            return made[-1]

        monkeypatch.setattr(session, "_make_connection", make_with_too_few_files)
        broken = session.connection
        with capture_logs() as logs:
            session.loop.call(lambda: broken.stop(WAIT_SECONDS))
            wait_until(lambda: len(made) == 2 and session.is_connected)
            session.loop.submit(lambda: None).result(WAIT_SECONDS)
        assert not [entry for entry in logs if entry["event"] == "loop.failed"]
        assert session.connection is made[1]
        ha.close()
        wait_until(lambda: own_threads() <= before)

    def test_what_is_interrupted_while_it_opens_leaves_nothing(
        self, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L4: a Ctrl-C while one waits for a session that does not come."""
        before = own_threads()
        open_session = ZooKeeperSession.open

        def interrupt(_: float | None) -> bool:
            raise KeyboardInterrupt

        def open_and_interrupt(session: ZooKeeperSession) -> None:
            monkeypatch.setattr(session.calls.is_reachable, "wait", interrupt)
            open_session(session)

        monkeypatch.setattr(ZooKeeperSession, "open", open_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_ha_services(zookeeper_server.url)
        wait_until(lambda: own_threads() <= before)

    @pytest.mark.proves("E7")
    def test_what_is_asked_amid_the_end_of_the_session_blocks_no_loop(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        E7: of several questions the last may fail at once, the first unanswered.

        The session's loop waited for that answer, which it would have had to take
        itself: what withdrew or closed waited for ever.
        """
        session = cluster.open()._session
        connection = session.connection
        create = connection.create
        created: list[Future[None]] = []

        def create_amid_the_end(path: str, value: bytes = b"") -> Future[None]:
            if created:  # it is asked for by now, and its answer waits for the loop
                connection.stop(WAIT_SECONDS)
            created.append(create(path, value))
            return created[-1]

        monkeypatch.setattr(connection, "create", create_amid_the_end)
        asked = session.loop.submit(lambda: session.parents.create("/a/b"))
        assert asked.result(WAIT_SECONDS).exception(WAIT_SECONDS)
        assert len(created) == 2


class TestOperations:
    """What ZooKeeper tells operators, and what it does not."""

    def test_status_is_mntr_where_it_is_allowed(
        self, cluster: Cluster, zookeeper_server: ZooKeeperServer
    ) -> None:
        """N6: numbers are numbers, and the server that answered is named."""
        status = cluster.open().operations.status()
        assert status["server"] == zookeeper_server.address
        assert status["zk_server_state"] == "standalone"
        assert isinstance(status["zk_znode_count"], int)
        assert isinstance(status["zk_avg_latency"], float)

    def test_status_is_srvr_where_that_is_all(
        self, resources: contextlib.ExitStack
    ) -> None:
        """N6: ZooKeeper's default allows srvr alone."""
        server = resources.enter_context(
            ZooKeeperServer(settings={"4lw.commands.whitelist": "srvr"})
        )
        ha = resources.enter_context(open_ha_services(server.url))
        status = ha.operations.status()
        assert status["mode"] == "standalone"
        assert isinstance(status["node_count"], int)

    def test_what_zookeeper_does_not_tell_is_none(self, cluster: Cluster) -> None:
        """N6: ages are not made up; sessions that do not contend are not known."""
        ha = cluster.open()
        cluster.open()
        election, _, session = cluster.lead(ha)
        (contender,) = election.contenders()
        assert contender.is_leader
        assert contender.session_id == ha.session_id
        assert contender.session_age_seconds is None
        assert contender.last_heard_seconds is None
        (information,) = ha.operations.sessions()
        assert information.session_id == ha.session_id
        assert information.leads_component_ids == [JOB]
        assert f"[{os.getpid()}]" in information.client
        (component,) = ha.operations.leaders()
        assert component.epoch == session.epoch

    @pytest.mark.proves("N6")
    def test_a_leader_is_never_shown_beside_an_older_epoch(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N6: also where the leadership changes hands while it is looked at."""
        old, new = cluster.open(), cluster.open()
        cluster.lead(old, "old:1")
        _, successor = cluster.contend(new, "new:1")
        read = ZooKeeperOperations._queues

        def read_and_hand_over(
            operations: ZooKeeperOperations, components: Sequence[ComponentPaths]
        ) -> object:
            queues = read(operations, components)
            old.close()
            successor.wait_for_confirm()
            return queues

        monkeypatch.setattr(ZooKeeperOperations, "_queues", read_and_hand_over)
        (component,) = new.operations.leaders()
        assert component.leader is not None
        assert component.leader.address == "new:1"
        assert component.epoch == component.leader.epoch

    def test_guarantees(self, cluster: Cluster) -> None:
        """What is promised beyond the common contract, and what is not."""
        assert cluster.open().guarantees == {
            Guarantee.ACROSS_PROCESSES,
            Guarantee.SURVIVES_SERVER_LOSS,
            Guarantee.SURVIVES_SERVER_RESTART,
        }
