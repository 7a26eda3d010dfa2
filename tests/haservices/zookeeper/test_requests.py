"""What is too large or cannot be encoded never reaches kazoo's thread (L3, L4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    SetData,
    Transaction,
)
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from election import LeaderElection, LeaderSession, LeaderStore, Put, VersionedValue
from haservices import HAConfig, open_ha_services
from haservices.zookeeper.backend import ZooKeeperHAServices
from haservices.zookeeper.nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeOperation,
    SetNode,
)
from haservices.zookeeper.requests import (
    REQUEST_SIZE_BYTES_MAX,
    encoded_acl,
    request_size_bytes,
)
from nameservice import ConfigurationError, LocalProtocolError
from tests.recording import ConfirmingContender
from tests.tiers import nightly_after


JOB: Final = "flights"
CLUSTER: Final = "test"
LONGEST: Final = "𝄞" * 255
CONTENDER_NAME_SIZE_BYTES: Final = 44

paths = st.text(min_size=1, max_size=50).map(lambda text: "/" + text)
values = st.binary(max_size=200)
versions = st.integers(min_value=-1, max_value=2**31 - 1)
operations = st.one_of(
    st.builds(CheckNode, path=paths, version=versions),
    st.builds(CreateNode, path=paths, value=values, is_ephemeral=st.booleans()),
    st.builds(SetNode, path=paths, value=values, version=versions),
    st.builds(DeleteNode, path=paths, version=versions),
)


def request_of(nodes: list[NodeOperation], acl: Any) -> bytes:
    """Return the transaction of *nodes* as kazoo sends it, after the length."""
    requests: list[Any] = []
    for node in nodes:
        match node:
            case CheckNode(path=path, version=version):
                requests.append(CheckVersion(path, version))
            case CreateNode(path=path, value=value, is_ephemeral=is_ephemeral):
                requests.append(Create(path, value, acl, int(is_ephemeral)))
            case SetNode(path=path, value=value, version=version):
                requests.append(SetData(path, value, version))
            case DeleteNode(path=path, version=version):
                requests.append(Delete(path, version))
    return bytes(8) + bytes(Transaction(requests).serialize())


class TestRequestSizeBytes:
    @pytest.mark.proves("L3")
    @pytest.mark.parametrize(
        "acl", [OPEN_ACL_UNSAFE, CREATOR_ALL_ACL + READ_ACL_UNSAFE], ids=["open", "own"]
    )
    @given(nodes=st.lists(operations, max_size=5))
    def test_it_is_what_kazoo_sends(self, acl: Any, nodes: list[NodeOperation]) -> None:
        """L3: to the byte, for every operation and access list."""
        nodes = [node for node in nodes if _is_encodable(node.path)]
        assert request_size_bytes(nodes, acl_size_bytes=len(encoded_acl(acl))) == len(
            request_of(nodes, acl)
        )


def _is_encodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class Leader:
    """A contender that leads a job on ZooKeeper."""

    def __init__(
        self,
        url: str,
        resources: contextlib.ExitStack,
        *,
        job_id: str = JOB,
        cluster_id: str = CLUSTER,
    ) -> None:
        opened = open_ha_services(
            HAConfig(url=url, cluster_id=cluster_id, session_timeout_seconds=30)
        )
        assert isinstance(opened, ZooKeeperHAServices)
        self.ha: ZooKeeperHAServices = opened
        resources.callback(self.ha.close)
        self.paths = self.ha._component(job_id)
        self.election: LeaderElection = self.ha.get_leader_election(job_id)
        contender = ConfirmingContender(self.election, "a:1")
        self.election.start(contender)
        self.session: LeaderSession = contender.wait_for_confirm()
        self.store: LeaderStore = self.ha.get_leader_store(job_id)

    def request_size_bytes(self, puts: list[Put], *, is_bundled: bool) -> int:
        """Return what kazoo sends for *puts* if all of them create a node."""
        nodes: list[NodeOperation] = [
            CheckNode(path=f"{self.paths.contenders}/{'0' * CONTENDER_NAME_SIZE_BYTES}")
        ]
        start = 0
        for put in puts:
            value = b"=" + put.value
            if is_bundled:
                stop = start + len(put.value)
                value = b"@" + f"{'0' * 32} {start} {stop}".encode()
                start = stop
            nodes.append(CreateNode(path=self.paths.stored(put.path), value=value))
        if is_bundled:
            nodes.append(CheckNode(path=f"{self.paths.bundles}/{'0' * 32}"))
        nodes.append(SetNode(path=self.paths.store, value=b""))
        return len(request_of(nodes, OPEN_ACL_UNSAFE))

    def puts_of(self, size_bytes: int) -> list[Put]:
        """Return a commit that takes *size_bytes* with its values in a bundle."""
        puts: list[Put] = []
        while True:
            left = size_bytes - self.request_size_bytes(puts, is_bundled=True)
            if left < 10_000:
                break
            puts.append(Put(f"{len(puts):03}" + "𝄞" * 252, b"x" * 200))
        while True:
            filler = Put(f"{len(puts):03}", b"x" * 200)
            left = size_bytes - self.request_size_bytes(
                [*puts, filler], is_bundled=True
            )
            if left <= 200:
                return [*puts, Put(filler.path + "p" * left, filler.value)]
            # What is left after this one is enough for another.
            count = min(250, (left - 500) // 12) if left > 512 else 0
            puts.append(Put(filler.path + "𝄞" * count, filler.value))

    def check_that_it_still_leads(self) -> None:
        """Hold it to the leadership that it was granted."""
        assert self.election.has_leadership(self.session.leader_session_id)
        self.store.put("still", b"", session=self.session)


@pytest.fixture
def leader(zookeeper_url: str) -> Iterator[Leader]:
    """Return a leader of a chroot of its own."""
    with contextlib.ExitStack() as resources:
        yield Leader(zookeeper_url, resources)


@pytest.mark.proves("L3")
@pytest.mark.shells
class TestLimits:
    def test_one_value_is_as_large_under_the_longest_names(
        self, zookeeper_url: str
    ) -> None:
        """L3: 1,000,000 bytes, whatever cluster, job and path are called."""
        value = b"x" * 1_000_000
        with contextlib.ExitStack() as resources:
            leader = Leader(
                zookeeper_url, resources, job_id=LONGEST, cluster_id=LONGEST
            )
            leader.store.put(LONGEST, value, session=leader.session)
            found = leader.store.get(LONGEST)
            assert found == VersionedValue(value=value, version=1)

    @pytest.mark.parametrize("excess", nightly_after(2, [0, 1, -1]))
    def test_values_beside_their_paths(
        self, leader: Leader, zookeeper_client: KazooClient, excess: int
    ) -> None:
        """L3: up to the largest request they go as they are, from there in a bundle."""
        puts = [Put(f"{number:02}" + "𝄞" * 250, b"x" * 10_000) for number in range(50)]
        filler = REQUEST_SIZE_BYTES_MAX - leader.request_size_bytes(
            [*puts, Put("filler", b"")], is_bundled=False
        )
        puts.append(Put("filler", b"x" * (filler + excess)))
        size_bytes = leader.request_size_bytes(puts, is_bundled=False)
        assert size_bytes == REQUEST_SIZE_BYTES_MAX + excess
        leader.store.commit(puts, session=leader.session)
        for put in puts:
            assert leader.store.get(put.path) == VersionedValue(
                value=put.value, version=1
            )
        is_bundled = zookeeper_client.exists(leader.paths.bundles) is not None
        assert is_bundled == (excess > 0)
        leader.check_that_it_still_leads()

    @pytest.mark.parametrize("excess", nightly_after(1, [0, -1]))
    def test_paths_up_to_the_largest_request(self, leader: Leader, excess: int) -> None:
        """L3: the paths of a commit are as many as one request takes."""
        puts = leader.puts_of(REQUEST_SIZE_BYTES_MAX + excess)
        size_bytes = leader.request_size_bytes(puts, is_bundled=True)
        assert size_bytes == REQUEST_SIZE_BYTES_MAX + excess
        leader.store.commit(puts, session=leader.session)
        assert leader.store.list() == sorted(put.path for put in puts)
        assert leader.store.get(puts[-1].path) == VersionedValue(
            value=puts[-1].value, version=1
        )
        leader.check_that_it_still_leads()

    def test_one_byte_more_is_refused_before_it_is_sent(
        self, leader: Leader, zookeeper_client: KazooClient
    ) -> None:
        """L3: the refusal says how large it is; nothing was written, none is hurt."""
        puts = leader.puts_of(REQUEST_SIZE_BYTES_MAX + 1)
        with pytest.raises(
            ConfigurationError, match=r"1,048,576 bytes of .* 1,048,575"
        ):
            leader.store.commit(puts, session=leader.session)
        assert zookeeper_client.exists(leader.paths.bundles) is None
        assert leader.store.list() == []
        leader.check_that_it_still_leads()


@pytest.mark.shells
class TestCheckedKazooClient:
    def test_what_cannot_be_encoded_fails_alone(self, leader: Leader) -> None:
        """L4: an encoder that fails harms one call; the session goes on."""
        session = leader.ha._session
        session_id = session.session_id
        connection = session.connection
        path = leader.paths.node
        bad: list[Any] = [
            lambda: connection.set(path, b"", 2**40),
            lambda: connection.delete(path + "/\ud800"),
            lambda: connection.get(path + "/\ud800"),
            lambda: connection.transact([SetNode(path=path, value=b"", version=2**40)]),
            lambda: connection.create(path + "/a", "text"),  # type: ignore[arg-type]
            lambda: connection.get(None),  # type: ignore[arg-type]
        ]
        for ask in bad:
            with pytest.raises((LocalProtocolError, TypeError)):
                session.calls.request(ask).result(30)
        assert session.session_id == session_id
        leader.check_that_it_still_leads()

    @pytest.mark.proves("L3")
    def test_largest_request_is_taken_and_no_larger_one_sent(
        self, leader: Leader
    ) -> None:
        """L3: ZooKeeper closes the connection at one byte more: it never sees that."""
        session = leader.ha._session
        session_id = session.session_id
        path = f"{leader.paths.store}/limit"
        leader.store.put("a", b"", session=leader.session)
        fixed = len(request_of([SetNode(path=path, value=b"")], None)) - 9 - 9
        session.calls.write(lambda: session.connection.create(path))
        largest = b"x" * (REQUEST_SIZE_BYTES_MAX - fixed)
        session.calls.write(lambda: session.connection.set(path, largest, -1))
        with pytest.raises(ConfigurationError, match="1,048,576"):
            session.calls.write(
                lambda: session.connection.set(path, largest + b"x", -1)
            )
        assert session.session_id == session_id
        leader.check_that_it_still_leads()
