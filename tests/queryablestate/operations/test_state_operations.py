from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from haservices import HAServices, open_ha_services
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    UnreachableError,
)
from queryablestate import DeadlineExceededError, UnknownJobError, UnknownStateError
from queryablestate.client.client import QueryableStateClient
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.operations import move_waiting
from queryablestate.operations.move_progress import MoveFigures
from queryablestate.operations.rescaling_information import RescalingInformation
from queryablestate.operations.state_operations import StateOperations
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import NUMBERS
from tests.recording import wait_until


pytestmark = pytest.mark.shells


TIMEOUT_SECONDS = 60.0


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of the test's own."""
    with open_ha_services("embedded:") as ha:
        yield ha


class TestNodes:
    def test_who_is_there_and_who_is_away(self, ha: HAServices) -> None:
        """N6: a node that has left is still known; how far it is, is not known."""
        with (
            LocalStateCluster(ha, nodes=2) as cluster,
            StateOperations(ha) as operations,
        ):
            Publisher(ha, "job", {"state": NUMBERS}).write({"state": [(1, 1)]})
            first, second = operations.nodes()
            assert (first.node_id, second.node_id) == ("node-1", "node-2")
            assert first.address == cluster.nodes[0].address
            assert first.last_heard_seconds is not None
            assert first.key_group_counts == {"job": 64}
            assert first.behind_counts == {"job": 0}
            assert first.copy_counts == {"job": 64}
            assert not first.is_draining

            cluster.nodes[1].close()
            with QueryableStateClient(ha) as client:
                # Half of the keys say so: then the proxy knows.
                client.get_many("job", "state", range(50), partial=True)
            _, second = operations.nodes()
            assert (second.address, second.last_heard_seconds) == (None, None)
            assert second.key_group_counts == {"job": 64}
            assert second.behind_counts == {}


class TestRescaling:
    """Jobs on more and on fewer nodes (O6, S1)."""

    @pytest.mark.proves("O6")
    def test_there_and_back(self, ha: HAServices) -> None:
        """O6: how far it is, is told until nothing is left; nothing gets lost."""
        with (
            LocalStateCluster(ha, nodes=1) as cluster,
            StateOperations(ha) as operations,
            QueryableStateClient(ha) as client,
        ):
            keys = range(300)
            publisher = Publisher(ha, "job", {"state": NUMBERS})
            publisher.write({"state": [(key, 1) for key in keys]})
            cluster.add_node()
            seen: list[MoveFigures] = []

            def note(_: Sequence[RescalingInformation], figures: MoveFigures) -> None:
                seen.append(figures)

            for node_count in (2, 1):
                begun = operations.rescale("job", node_count=node_count)
                assert (begun.node_count, begun.planned_count) == (node_count, 64)
                assert not begun.is_done
                (done,) = operations.wait_until_rescaled(
                    "job",
                    since=begun,
                    timeout_seconds=TIMEOUT_SECONDS,
                    on_progress=note,
                )
                assert done.is_done
                assert sum(done.key_group_counts.values()) == 128
                assert (seen[-1].done_count, seen[-1].left_count) == (64, 0)
                assert client.get_many("job", "state", keys) == {
                    key: {"v": 1} for key in keys
                }
            assert operations.rescalings() == operations.rescalings("job")

    @pytest.mark.proves("O6")
    def test_what_cannot_be_is_refused(self, ha: HAServices) -> None:
        """O6: no more nodes than there are, no job that there is not."""
        with LocalStateCluster(ha, nodes=1), StateOperations(ha) as operations:
            Publisher(ha, "job", {"state": NUMBERS}).write({"state": [(1, 1)]})
            with pytest.raises(ConfigurationError, match="being drained: 1;"):
                operations.rescale("job", node_count=2)
            with pytest.raises(ConfigurationError, match="2 copies"):
                operations.rescale("job", replica_count=2)
            with pytest.raises(ConfigurationError, match="node_count must be 1 to"):
                operations.rescale("job", node_count=0)
            with pytest.raises(ConfigurationError, match="replica_count must be 1 to"):
                operations.rescale("job", replica_count=17)
            with pytest.raises(UnknownJobError):
                operations.rescale("none", node_count=1)
            with pytest.raises(UnknownJobError):
                operations.rescalings("none")
            with pytest.raises(UnknownJobError):
                operations.wait_until_rescaled("none", timeout_seconds=5.0)
            with pytest.raises(ConfigurationError, match="no node is called"):
                operations.drain("none")

    @pytest.mark.proves("S1")
    def test_a_node_is_drained_and_takes_part_again(self, ha: HAServices) -> None:
        """S1: it has nothing then, and gets something again when that is undone."""
        with LocalStateCluster(ha, nodes=2), StateOperations(ha) as operations:
            Publisher(ha, "job", {"state": NUMBERS}).write({"state": [(1, 1)]})
            begun = operations.drain("node-1")
            assert begun.is_draining
            done = operations.wait_until_drained(
                "node-1", timeout_seconds=TIMEOUT_SECONDS
            )
            assert done.is_empty
            with pytest.raises(ConfigurationError):
                operations.rescale("job", node_count=2)
            assert not operations.drain("node-1", undo=True).is_draining
            operations.rescale("job", node_count=2)
            operations.wait_until_rescaled("job", timeout_seconds=TIMEOUT_SECONDS)
            first, second = operations.nodes()
            assert first.copy_counts == second.copy_counts == {"job": 64}

    @pytest.mark.proves("O6")
    def test_a_node_is_drained_while_another_one_is_away(
        self, ha: HAServices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        O6: a node that is here takes it all; without one, that is said.

        `drain` waited for ever, for a node that might never be back.
        """
        monkeypatch.setattr(move_waiting, "_STUCK_SECONDS", 3.0)  # expected for 2 s
        with (
            LocalStateCluster(ha, nodes=3) as cluster,
            StateOperations(ha) as operations,
        ):
            Publisher(ha, "job", {"state": NUMBERS}).write({"state": [(1, 1)]})
            counts = [one.copy_counts["job"] for one in operations.nodes()]
            cluster.nodes[2].close()
            wait_until(lambda: operations.nodes()[2].address is None)
            operations.drain("node-1")
            operations.wait_until_drained("node-1", timeout_seconds=TIMEOUT_SECONDS)
            _, second, third = operations.nodes()
            assert second.copy_counts == {"job": counts[0] + counts[1]}
            assert third.copy_counts == {"job": counts[2]}
            operations.drain("node-2")
            with pytest.raises(DidNotHappenError, match="no other node can take the"):
                operations.wait_until_drained("node-2", timeout_seconds=TIMEOUT_SECONDS)

    @pytest.mark.proves("O6")
    def test_waiting_ends_in_time(self, ha: HAServices) -> None:
        """O6: with what is left; or at once, when somebody thinks better of it."""
        with LocalStateCluster(ha, nodes=1), StateOperations(ha) as operations:
            Publisher(ha, "job", {"state": NUMBERS}).write({"state": [(1, 1)]})
            operations.drain("node-1")
            with pytest.raises(DeadlineExceededError, match="128 copies"):
                operations.wait_until_drained("node-1", timeout_seconds=0.2)
            operations.drain("node-1", undo=True)
            with pytest.raises(DidNotHappenError, match="take part again"):
                operations.wait_until_drained("node-1", timeout_seconds=5.0)

    @pytest.mark.proves("O6")
    def test_two_operators_at_once(self, ha: HAServices) -> None:
        """O6: the job is as the last one wants it, and the first one is told."""
        with LocalStateCluster(ha, nodes=2), StateOperations(ha) as operations:
            Publisher(ha, "job", {"state": NUMBERS}).write({"state": [(1, 1)]})
            first = operations.rescale("job", node_count=1)
            second = operations.rescale("job", node_count=2)
            with pytest.raises(DidNotHappenError, match="2 nodes and 1 copy"):
                operations.wait_until_rescaled(
                    "job", since=first, timeout_seconds=TIMEOUT_SECONDS
                )
            (done,) = operations.wait_until_rescaled(
                "job", since=second, timeout_seconds=TIMEOUT_SECONDS
            )
            assert done.node_count == 2

    @pytest.mark.proves("S2")
    def test_waiting_survives_the_proxy(self, ha: HAServices) -> None:
        """S2: the next proxy goes on with the move, and who waits asks that one."""
        with (
            LocalStateCluster(ha, nodes=1, proxies=2) as cluster,
            StateOperations(ha) as operations,
        ):
            Publisher(ha, "job", {"state": NUMBERS}).write({"state": [(1, 1)]})
            cluster.add_node()
            leader = next(proxy for proxy in cluster.proxies if proxy.is_leader)
            begun = operations.rescale("job", node_count=2)
            leader.close()
            (done,) = operations.wait_until_rescaled(
                "job", since=begun, timeout_seconds=TIMEOUT_SECONDS
            )
            assert done.key_group_counts == {"node-1": 64, "node-2": 64}


class TestDropState:
    @pytest.mark.proves("W5")
    def test_it_is_gone_for_every_reader(self, ha: HAServices) -> None:
        """W5: what was dropped is unknown, and dropping it again says so."""
        with LocalStateCluster(ha, nodes=1), StateOperations(ha) as operations:
            publisher = Publisher(ha, "job", {"a": NUMBERS, "b": NUMBERS})
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

    @pytest.mark.proves("W5")
    @pytest.mark.parametrize("proxies", [1, 2])
    def test_the_proxy_is_gone_before_it_answers(
        self, ha: HAServices, proxies: int
    ) -> None:
        """
        W5: it is not told as if there had never been such a state, nor as undone.

        The next proxy says that there is none: it was dropped by the one before, which
        waited for a node that clients may still ask.  With no other proxy all that is
        known is that no answer came.
        """
        with (
            LocalStateCluster(ha, nodes=2, proxies=proxies) as cluster,
            StateOperations(ha, deadline_seconds=2.0) as operations,
            QueryableStateClient(ha) as client,
            ThreadPoolExecutor(1) as executor,
        ):
            publisher = Publisher(ha, "job", {"a": NUMBERS, "b": NUMBERS})
            publisher.write({"a": [(1, 1)], "b": [(1, 2)]})
            client.get_many("job", "a", range(50))  # now the client has a ticket
            cluster.nodes[1].close()
            (leader,) = (proxy for proxy in cluster.proxies if proxy.is_leader)
            dropping = executor.submit(operations.drop_state, "job", "a")
            wait_until(lambda: leader.status()["states"] == 1)
            assert not dropping.done()
            leader.close()
            error = dropping.exception(TIMEOUT_SECONDS)
            if proxies == 2:
                assert isinstance(error, MayHaveHappenedError)
                assert "has no state 'a'; it was asked for more than once" in str(error)
                with pytest.raises(UnknownStateError):
                    operations.drop_state("job", "a")
            else:
                assert isinstance(error, NoLeaderError | UnreachableError)
                assert error.__notes__ == [
                    "it was asked for, and may have been done all the same"
                ]

    def test_a_closed_one_says_so(self, ha: HAServices) -> None:
        """One that uses it after its end is told."""
        operations = StateOperations(ha)
        operations.close()
        with pytest.raises(LocalProtocolError):
            operations.nodes()
