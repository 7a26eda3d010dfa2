"""L4: what is no timeout is refused at once, wherever the public API takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from haservices import open_ha_services
from haservices.testing import LeaderServer, ServerConfig
from nameservice import ConfigurationError
from queryablestate import LocalStateCluster, QueryableStateClient, StateOperations


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from haservices import HAServices


WRONG = [float("nan"), float("inf"), -1, 10**400, cast("float", "1"), True]


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Services of their own."""
    with open_ha_services("embedded:") as services:
        yield services


@pytest.mark.parametrize("wrong", WRONG)
class TestTimeouts:
    def test_of_a_leader_server(self, wrong: float) -> None:
        """`LeaderServer.join`."""
        with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
            refuse(lambda: server.join(wrong))

    def test_of_a_retriever(self, wrong: float, ha: HAServices) -> None:
        """`LeaderRetriever.wait_for_leader`."""
        with ha.get_leader_retriever("job") as retriever:
            refuse(lambda: retriever.wait_for_leader(wrong))

    def test_of_a_local_cluster(self, wrong: float, ha: HAServices) -> None:
        """`LocalStateCluster` and its nodes."""
        refuse(lambda: LocalStateCluster(ha, timeout_seconds=wrong))
        with LocalStateCluster(ha, nodes=1) as cluster:
            node = cluster.nodes[0]
            refuse(lambda: cluster.remove_node(node.node_id, timeout_seconds=wrong))
            refuse(lambda: node.join(wrong))
            refuse(lambda: node.leave(wrong))
            refuse(lambda: node.wait_until_registered(wrong))

    def test_of_queries(self, wrong: float, ha: HAServices) -> None:
        """`QueryableStateClient`."""
        refuse(lambda: QueryableStateClient(ha, deadline_seconds=wrong))

    def test_of_operators(self, wrong: float, ha: HAServices) -> None:
        """`StateOperations`; none of it is sent."""
        refuse(lambda: StateOperations(ha, deadline_seconds=wrong))
        with StateOperations(ha) as operations:
            refuse(lambda: operations.wait_until_rescaled(timeout_seconds=wrong))
            refuse(lambda: operations.wait_until_drained("n", timeout_seconds=wrong))


def test_what_has_to_end_is_not_given_none(ha: HAServices) -> None:
    """None is refused at once where it does not mean "as long as it takes"."""
    none = cast("float", None)
    refuse(lambda: LocalStateCluster(ha, timeout_seconds=none))
    refuse(lambda: StateOperations(ha, deadline_seconds=none))
    refuse(lambda: QueryableStateClient(ha, deadline_seconds=none))


def refuse(call: Callable[[], object]) -> None:
    """Check that *call* is refused."""
    with pytest.raises(ConfigurationError):
        call()
