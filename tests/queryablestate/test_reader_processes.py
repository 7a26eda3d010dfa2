"""A node that answers with several processes, over real sockets (D1 to D5, B1)."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias

import pytest

from nameservice import ConfigurationError, ManualClock
from queryablestate import (
    QueryableStateClient,
    StateOperations,
    UnknownKeyError,
    UnknownStateError,
)
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.proxy.config import ProxyConfig
from queryablestate.wire.direct import TICKET_REFUSED
from queryablestate.wire.questions import CountKeys
from queryablestate.wire.refusals import STALE_ROUTE
from tests.queryablestate.direct_asking import (
    KEYS,
    ROWS,
    ask,
    ask_page,
    code_of,
    count,
    given_access,
    published,
    read_until_direct,
    ticket_of,
)
from tests.queryablestate.proxy_peers import ScriptedPeer
from tests.queryablestate.proxy_stage import JOB, STATE, ProxyStage
from tests.queryablestate.reader_children import is_alive, readers_of
from tests.recording import wait_until


pytestmark = [
    pytest.mark.shells,
    pytest.mark.proves("D1", "D2", "D3", "D5"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


Others: TypeAlias = "Callable[[], Sequence[int]]"


def is_answered(peer: ScriptedPeer, ticket: bytes) -> bool:
    """Return whether a reader process takes a ticket."""
    return code_of(ask(peer, ticket)) == ""


def status(stage: ProxyStage, name: str) -> int:
    """Return a figure of the first node."""
    return int(stage.nodes[0].status()[name])


def addresses_of(stage: ProxyStage) -> set[str]:
    """Return where ten clients, one after the other, are sent."""
    found = {given_access(stage).addresses[0] for _ in range(10)}
    return {address for address in found if address is not None}


def asked_at(stage: ProxyStage) -> ScriptedPeer:
    """Return a connection to a reader process."""
    address = given_access(stage).addresses[0]
    assert address is not None
    return ScriptedPeer(address)


@contextlib.contextmanager
def taken_descriptors(count: int) -> Iterator[None]:
    """Have this process hold *count* open files more, as a node holds connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 2 * count)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the hard limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with contextlib.ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(count):
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            files.callback(os.close, descriptor)
        yield


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyStage]:
    """Yield a node with two readers and a state; tests change nothing of it."""
    with published(tmp_path_factory.mktemp("readers"), readers=2) as stage:
        yield stage


@pytest.fixture
def others() -> Others:
    """Return what tells the readers that a test has started."""
    before = set(readers_of(os.getpid()))
    return lambda: [one for one in readers_of(os.getpid()) if one not in before]


class TestClients:
    """What users see of it: nothing but the time."""

    def test_clients_are_spread(self, stage: ProxyStage) -> None:
        """D1: each client asks one process, and the next one another."""
        addresses = addresses_of(stage)
        assert len(addresses) == 2
        assert stage.nodes[0].address not in addresses

    def test_every_read(self, stage: ProxyStage) -> None:
        """D1, D5: what a reader process says is what the proxy says."""
        with (
            QueryableStateClient(stage.ha) as client,
            QueryableStateClient(stage.ha, direct=False) as other,
        ):
            read_until_direct(stage, client)
            assert client.get_many(JOB, STATE, [*KEYS, "none"]) == {
                key: {"delay": delay} for key, delay in ROWS
            }
            assert client.exists(JOB, STATE, "N3")
            assert not client.exists(JOB, STATE, "none")
            with pytest.raises(UnknownKeyError):
                client.get(JOB, STATE, "none")
            assert client.lookup(JOB, STATE, "N3").batch_id == 0
            assert list(client.scan(JOB, STATE)) == list(other.scan(JOB, STATE))

            before = count(stage)

            def is_counted() -> bool:
                assert client.count(JOB, STATE) == len(ROWS)
                return count(stage) > before

            wait_until(is_counted)

    @pytest.mark.proves("F1")
    def test_figures(self, stage: ProxyStage) -> None:
        """F1: what readers do is in the node's metrics, and they are in its health."""
        node = stage.nodes[0]
        with QueryableStateClient(stage.ha) as client:
            read_until_direct(stage, client)
        seen = node.observe()
        assert seen.problem is None
        assert (seen.figures["readers"], seen.figures["readers_running"]) == (2, 2)
        assert any(sum(one.counts) for one in seen.latencies)


@pytest.mark.proves("C1")
class TestTickets:
    """A reader process under what it is shown, by hand."""

    def test_a_good_one(self, stage: ProxyStage) -> None:
        """D1: shown once, and good for many questions on that connection."""
        with asked_at(stage) as peer:
            wait_until(lambda: code_of(ask(peer, ticket_of(stage))) == "")
            # While the node writes the page, the proxy is to be asked.
            wait_until(lambda: code_of(ask(peer, None)) == "")
            wait_until(lambda: code_of(ask_page(peer, CountKeys())) == "")

    def test_none_a_forged_one_and_another_connections(self, stage: ProxyStage) -> None:
        """D2, C1: who shows no ticket of its own learns nothing."""
        ticket = ticket_of(stage)
        with asked_at(stage) as peer, asked_at(stage) as other:
            assert code_of(ask(peer, None)) == TICKET_REFUSED
            assert code_of(ask_page(peer, CountKeys())) == TICKET_REFUSED
            for index in (0, 31, 32, len(ticket) - 1):
                forged = bytearray(ticket)
                forged[index] ^= 1
                assert code_of(ask(peer, bytes(forged))) == TICKET_REFUSED
            wait_until(partial(is_answered, peer, ticket))
            assert code_of(ask(other, None)) == TICKET_REFUSED

    def test_one_that_is_over_and_one_of_an_old_leader(self, tmp_path: Path) -> None:
        """D2: also on a connection that has shown it, and shown once more."""
        config = ProxyConfig(direct_ticket_seconds=1.0)
        with published(tmp_path, config, readers=1) as stage, asked_at(stage) as peer:
            ticket = ticket_of(stage)
            wait_until(partial(is_answered, peer, ticket))
            # One refusal alone may be of a node that was not heard for a moment.
            wait_until(
                lambda: all(
                    code_of(ask(peer, ticket, ticket_id=number)) == TICKET_REFUSED
                    for number in (1, 2)
                )
            )
            old = ticket_of(stage)
            wait_until(lambda: code_of(ask(peer, ticket_of(stage))) == "")
            standby = stage.add_proxy()
            stage.proxy.close()
            standby.wait_until_leader(30)
            stage.proxy = standby
            stage.nodes[0].wait_until_registered(30)
            wait_until(lambda: code_of(ask(peer, ticket_of(stage))) == "")
            assert code_of(ask(peer, old)) == TICKET_REFUSED

    def test_what_is_no_question(self, stage: ProxyStage) -> None:
        """N3: it is counted, and others are answered."""
        with asked_at(stage) as peer:
            for frames in ((b"",), (b"LDQ\x01\x81", b"x"), (b"a", b"b", b"c")):
                peer.send_frames(*frames)
            wait_until(lambda: code_of(ask(peer, ticket_of(stage))) == "")


class Follower:
    """A client that reads all keys over and over, and never sees what is over."""

    def __init__(self, stage: ProxyStage) -> None:
        self._client = QueryableStateClient(stage.ha)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.committed = 0
        self.read_count = 0
        self.problem: BaseException | None = None

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                least = self.committed
                rows = self._client.get_many(JOB, STATE, KEYS)
                found = {row["delay"] for row in rows.values()}
                assert len(rows) == len(KEYS)
                assert min(found) >= least, (found, least)
                self.read_count += 1
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            self.problem = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()
        assert self.problem is None, self.problem


class TestNothingOld:
    """What is acknowledged is what every reader process says (Q1, S3, W5)."""

    @pytest.mark.proves("Q1", "S3")
    def test_batches_and_moves(self, tmp_path: Path) -> None:
        """Q1, S3: a batch that is committed is read, while key groups move, too."""
        with ProxyStage(tmp_path, readers=2) as stage:
            publisher = stage.publisher()
            publisher.write({STATE: [(key, 0) for key in KEYS]})
            with (
                Follower(stage) as follower,
                StateOperations(stage.ha) as operations,
                QueryableStateClient(stage.ha) as client,
            ):
                read_until = 0
                for number in range(1, 31):
                    if number == 10:
                        stage.add_node("another")
                        operations.rescale(JOB, node_count=2)
                    publisher.write({STATE: [(key, number) for key in KEYS]})
                    follower.committed = number
                    # A client whose floor is lower asks by hand what there is.
                    assert client.get(JOB, STATE, "N7") == {"delay": number}
                    read_until = max(read_until, follower.read_count)
                wait_until(
                    lambda: (
                        follower.read_count > read_until + 3
                        or follower.problem is not None
                    )
                )
            assert count(stage) > 0

    @pytest.mark.proves("W5")
    def test_a_state_that_is_dropped(self, tmp_path: Path) -> None:
        """W5: once that is said, its ticket is worth nothing at any reader."""
        names = [f"state-{number}" for number in range(5)]
        with ProxyStage(tmp_path, readers=1) as stage:
            stage.publisher(STATE, *names).write(dict.fromkeys((STATE, *names), ROWS))
            with StateOperations(stage.ha) as operations, asked_at(stage) as peer:
                for name in names:
                    ticket = given_access(stage, name).ticket
                    wait_until(partial(is_answered, peer, ticket))
                    operations.drop_state(JOB, name)
                    assert code_of(ask(peer, None))
                with QueryableStateClient(stage.ha) as client:
                    with pytest.raises(UnknownStateError):
                        client.get(JOB, names[0], "N7")
                    read_until_direct(stage, client)

    @pytest.mark.proves("B4")
    def test_a_job_that_is_forgotten(self, tmp_path: Path) -> None:
        """
        B4, D5: once that is said, its tickets are worth nothing at any reader.

        It was said at once, and a node that had not heard of it, as it stood still for
        a moment, had its readers tell clients of the job for seconds more.
        """
        with (
            published(tmp_path, readers=1) as stage,
            asked_at(stage) as peer,
            StateOperations(stage.ha, deadline_seconds=60.0) as operations,
        ):
            wait_until(partial(is_answered, peer, given_access(stage).ticket))
            holds, goes_on = threading.Event(), threading.Event()

            def hold() -> None:
                holds.set()
                goes_on.wait(60)

            node = stage.nodes[0]._started()
            node.loop.call_soon_threadsafe(hold)
            try:
                assert holds.wait(60)
                operations.forget_job(JOB)
                assert code_of(ask(peer, None))
            finally:
                goes_on.set()

    @pytest.mark.proves("S3")
    def test_a_key_group_that_has_moved(self, tmp_path: Path) -> None:
        """S3: a ticket comes with a version of the assignment, and goes with it."""
        with (
            published(tmp_path, readers=1) as stage,
            asked_at(stage) as peer,
            StateOperations(stage.ha) as operations,
        ):
            ticket = ticket_of(stage)
            wait_until(partial(is_answered, peer, ticket))
            stage.add_node("another")
            operations.rescale(JOB, node_count=2)
            wait_until(lambda: code_of(ask(peer, ticket)) == STALE_ROUTE)

    def test_a_state_that_is_new(self, tmp_path: Path) -> None:
        """D1: rows in a database that was made after the process had opened them."""
        with published(tmp_path, readers=1) as stage, asked_at(stage) as peer:
            wait_until(partial(is_answered, peer, ticket_of(stage)))
            stage.publisher("new", job_id="another").write({"new": ROWS})
            access = given_access(stage, "new", job_id="another")
            wait_until(partial(is_answered, peer, access.ticket))


@pytest.mark.proves("D3", "D4")
class TestFaults:
    """A reader process that is killed, or stopped, costs a client a retry at most."""

    def test_killed_and_stopped(self, tmp_path: Path, others: Others) -> None:
        """D3: reads go on; it comes back at its port, and the snapshot it had goes."""
        with (
            published(tmp_path, readers=1) as stage,
            QueryableStateClient(stage.ha) as client,
        ):
            addresses = addresses_of(stage)
            read_until_direct(stage, client)
            (first,) = others()
            os.kill(first, signal.SIGKILL)
            assert client.get(JOB, STATE, "N7") == {"delay": 7}
            wait_until(lambda: status(stage, "reader_restarts_total") == 1)
            wait_until(lambda: status(stage, "readers_running") == 1)
            read_until_direct(stage, client)
            assert addresses_of(stage) == addresses
            (second,) = others()
            assert second != first
            os.kill(second, signal.SIGSTOP)
            try:
                for key, delay in ROWS[:20]:
                    assert client.get(JOB, STATE, key) == {"delay": delay}
                assert client.count(JOB, STATE) == len(ROWS)
            finally:
                os.kill(second, signal.SIGCONT)
            read_until_direct(stage, client)
            assert status(stage, "direct_answered_total") >= 2  # of both processes

    def test_one_comes_back_to_a_node_with_many_connections(
        self, tmp_path: Path, others: Others
    ) -> None:
        """
        Its pipes have high numbers then, and are waited for all the same.

        What waited took numbers below 1,024 alone: the thread that starts readers ended
        with an error, so that no reader ran again, and the next leader's secret ended
        the node.
        """
        with published(tmp_path, readers=1) as stage, taken_descriptors(1_100):
            (first,) = others()
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: status(stage, "reader_restarts_total") == 1)
            wait_until(lambda: status(stage, "readers_running") == 1)
            standby = stage.add_proxy()
            stage.proxy.close()
            standby.wait_until_leader(30)
            stage.proxy = standby
            stage.nodes[0].wait_until_registered(30)
            with asked_at(stage) as peer:
                wait_until(lambda: is_answered(peer, ticket_of(stage)))

    def test_one_that_hangs_is_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Others
    ) -> None:
        """B1: it might keep pages of the store for ever."""
        monkeypatch.setattr("queryablestate.node.readers.crew._SILENCE_SECONDS", 2.0)
        with published(tmp_path, readers=1) as stage:
            (stopped,) = others()
            os.kill(stopped, signal.SIGSTOP)
            wait_until(lambda: not is_alive(stopped))
            wait_until(lambda: status(stage, "readers_running") == 1)

    def test_one_that_starts_slowly_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        It may take longer to start than it may be silent later.

        On a busy machine, or a cold disk, it was killed before its first word, again
        and again: the node did not start, and blamed the port.
        """
        monkeypatch.setattr("queryablestate.node.readers.crew._SILENCE_SECONDS", 2.0)
        modules = tmp_path / "modules"
        modules.mkdir()
        (modules / "sitecustomize.py").write_text(
            "import select\nselect.select([], [], [], 3.0)\n", encoding="utf-8"
        )
        path = os.pathsep.join(filter(None, [str(modules), os.getenv("PYTHONPATH")]))
        monkeypatch.setenv("PYTHONPATH", path)
        with published(tmp_path, readers=1) as stage:
            assert status(stage, "readers_running") == 1
            assert status(stage, "reader_restarts_total") == 0

    def test_a_port_that_is_taken(self, tmp_path: Path, others: Others) -> None:
        """N5: the node does not start, and says which port is in the way."""
        with ProxyStage(tmp_path / "1") as stage:
            taken = int(stage.nodes[0].address.rpartition(":")[2])
            bind = f"tcp://127.0.0.1:{taken - 1}"
            with (
                pytest.raises(ConfigurationError, match=f":({taken}|{taken - 1})"),
                ProxyStage(tmp_path / "2", readers=1, bind=bind),
            ):
                pass
        assert not others()

    def test_another_clock_than_the_machines(self, tmp_path: Path) -> None:
        """Q4: leases are on the page; a reader process could not tell when they end."""
        with ProxyStage(tmp_path, node_count=0) as stage:
            config = NodeConfig(data_dir=tmp_path / "node", readers=1)
            node = StateNode(stage.ha, config, clock=ManualClock())
            with pytest.raises(ConfigurationError, match="clock"):
                node.start()
            node.close()

    def test_they_end_with_their_node(self, tmp_path: Path, others: Others) -> None:
        """E10: nothing is left when it was closed."""
        with published(tmp_path, readers=2):
            readers = others()
            assert len(readers) == 2
        assert not any(map(is_alive, readers))
