from __future__ import annotations

from collections.abc import Iterator

import pytest

from haservices import HAServices, open_ha_services
from nameservice import LocalProtocolError, UnknownJobError, UnknownStateError
from queryablestate.client import QueryableStateClient
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.state_operations import StateOperations
from tests.lodestar.publishing import Publisher


pytestmark = pytest.mark.shells

SCHEMA = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("k", AtomicType.INT),),
    value=(Field("v", AtomicType.INT),),
)


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of the test's own."""
    with open_ha_services("embedded:") as ha:
        yield ha


class TestNodes:
    def test_who_is_there_and_who_is_away(self, ha: HAServices) -> None:
        """N6: a node that has left is still known; how far it is, nobody knows."""
        with (
            LocalStateCluster(ha, nodes=2) as cluster,
            StateOperations(ha) as operations,
        ):
            Publisher(ha, "job", {"state": SCHEMA}).write({"state": [(1, 1)]})
            first, second = operations.nodes()
            assert (first.node_id, second.node_id) == ("node-1", "node-2")
            assert first.address == cluster.nodes[0].address
            assert first.last_heard_seconds is not None
            assert first.key_group_counts == {"job": 64}
            assert first.behind_counts == {"job": 0}

            cluster.nodes[1].close()
            with QueryableStateClient(ha) as client:
                # Half of the keys say so: then the proxy knows.
                client.get_many("job", "state", range(50), partial=True)
            _, second = operations.nodes()
            assert (second.address, second.last_heard_seconds) == (None, None)
            assert second.key_group_counts == {"job": 64}
            assert second.behind_counts == {}


class TestDropState:
    def test_it_is_gone_for_every_reader(self, ha: HAServices) -> None:
        """W5: what was dropped is unknown, and dropping it again says so."""
        with LocalStateCluster(ha, nodes=1), StateOperations(ha) as operations:
            publisher = Publisher(ha, "job", {"a": SCHEMA, "b": SCHEMA})
            publisher.write({"a": [(1, 1)], "b": [(1, 2)]})
            operations.drop_state("job", "a")
            with QueryableStateClient(ha) as client:
                assert client.states("job") == ["b"]
                with pytest.raises(UnknownStateError):
                    client.get("job", "a", 1)
                assert client.get("job", "b", 1) == {"v": 2}
            with pytest.raises(UnknownStateError):
                operations.drop_state("job", "a")
            with pytest.raises(UnknownJobError):
                operations.drop_state("none", "a")

    def test_a_closed_one_says_so(self, ha: HAServices) -> None:
        """Whoever uses it after its end is told."""
        operations = StateOperations(ha)
        operations.close()
        with pytest.raises(LocalProtocolError):
            operations.nodes()
