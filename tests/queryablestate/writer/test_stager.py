"""The stager over real sockets, against a node that behaves as a test wants it."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from attrs import evolve

from haservices.testing.reserved_port import ReservedPort
from nameservice import ConfigurationError, LocalProtocolError
from queryablestate import (
    AccessDeniedError,
    StaleWriterError,
    StateUnavailableError,
)
from queryablestate.wire.clients import NodeAddress, StateDeclaration
from queryablestate.wire.staging_messages import ChunkRefused, ChunkStaged, StageChunk
from queryablestate.writer.batches import StageMessage, WriteOrigin, WritePlan, WriteRun
from queryablestate.writer.connections import WriterConnections
from queryablestate.writer.rows import StateRows
from queryablestate.writer.stager import StageLimits, Stager
from tests.forking import run_in_child
from tests.queryablestate.staging_node import Reply, staged, staging_node


pytestmark = pytest.mark.shells

LIMITS = StageLimits(timeout_seconds=20.0)


@pytest.fixture
def vacant(reserved: ReservedPort) -> str:
    """Return an address where no node is, unless the test starts one there."""
    return f"tcp://127.0.0.1:{reserved.port}"


def _denied(chunk: StageChunk) -> Reply:
    return ChunkRefused(
        request_id=chunk.request_id, code="access-denied", data=("stage rows",)
    )


def write_run(
    addresses: Sequence[str | None], owners: Sequence[tuple[int, ...]]
) -> WriteRun:
    """Return a run whose rows go to *addresses*."""
    plan = WritePlan(
        job_id="flights",
        states=tuple(
            StateDeclaration(state_name=name, schema="a schema") for name in "ab"
        ),
        max_parallelism=len(owners),
        on_new_query="refuse",
        ticket=7,
        assignment_version=3,
        nodes=tuple(
            NodeAddress(node_id=f"n{index}", address=address)
            for index, address in enumerate(addresses)
        ),
        owners=tuple(owners),
        proxy_address=None,
    )
    origin = WriteOrigin(
        job_id="flights",
        query_id="query",
        run_id="run",
        writer_epoch=7,
        assignment_version=3,
        state_numbers=(1, 2),
        on_new_query="refuse",
    )
    return WriteRun(plan=plan, origin=origin, batch_id_last=None)


@pytest.mark.proves("W4")
def test_a_batch_that_is_decided_is_compared_and_not_staged(
    connections: WriterConnections,
) -> None:
    """W4: its rows go nowhere, and their digest is that of the first time."""
    rows = some_rows(50)
    with staging_node() as node:
        run = write_run([node.address], [(0,)] * 4)
        with Stager(run, 3, connections=connections) as stager:
            stager.add(1, rows, is_list=False)
            first = stager.finish()
        count = len(node.chunks)
        again = evolve(run, batch_id_last=3)
        with Stager(again, 3, connections=connections) as stager:
            half = StateRows(keys=rows.keys[:20], values=rows.values[:20])
            stager.add(1, half, is_list=False)
            rest = StateRows(keys=rows.keys[20:], values=rows.values[20:])
            stager.add(1, rest, is_list=False)
            second = stager.finish()
        assert len(node.chunks) == count
        assert (second.stage.chunk_counts, second.stage.row_count) == ({}, 0)
        assert second.digests == first.digests
        with Stager(again, 3, connections=connections) as stager:
            stager.add(1, half, is_list=False)
            assert stager.finish().digests != first.digests


def some_rows(count: int, *, group_count: int = 4, size_bytes: int = 10) -> StateRows:
    """Return *count* rows, dealt over the key groups."""
    keys = [
        (number % group_count).to_bytes(2, "big") + b"%06d" % number
        for number in range(count)
    ]
    return StateRows(keys=keys, values=[b"x" * size_bytes for _ in keys])


@pytest.fixture
def connections() -> Iterator[WriterConnections]:
    """Yield connections of the test's own."""
    held = WriterConnections()
    yield held
    held.close()


class TestStaging:
    @pytest.mark.proves("W2")
    def test_rows_reach_every_owner(self, connections: WriterConnections) -> None:
        """Each owner of a key group has its rows; the message counts them (W2)."""
        with staging_node() as one, staging_node() as two:
            run = write_run([one.address, two.address], [(0,), (1,), (0, 1), (1,)])
            rows = some_rows(1_000)
            with Stager(run, 5, connections=connections) as stager:
                stager.add(1, rows, is_list=False)
                message = stager.finish()
        for node, groups in ((one, {0, 2}), (two, {1, 2, 3})):
            assert node.rows == {
                key: value
                for key, value in zip(rows.keys, rows.values, strict=True)
                if key[1] in groups
            }
        assert message.batch_id == 5
        assert message.origin == run.origin
        assert message.stage.chunk_counts == {"n0": 1, "n1": 1}
        assert message.stage.row_count == 1_000
        for node in (one, two):
            ((chunk, _),) = node.chunks
            assert chunk.stage_id == message.stage.stage_id
            assert (chunk.writer_epoch, chunk.batch_id) == (7, 5)
            assert (chunk.assignment_version, chunk.chunk_index) == (3, 0)
        assert pickle.loads(pickle.dumps(message)) == message
        assert StageMessage.from_bytes(message.to_bytes()) == message

    def test_many_chunks_go_in_order_within_a_window(
        self, connections: WriterConnections
    ) -> None:
        """Chunks are numbered from 0 for each node, and none is left behind."""
        with staging_node() as node:
            run = write_run([node.address], [(0,)] * 4)
            limits = StageLimits(chunk_size_bytes_max=2_000, window_count=2)
            with Stager(run, 0, connections=connections, limits=limits) as stager:
                for _ in range(5):
                    stager.add(1, some_rows(500), is_list=False)
                stager.add(2, some_rows(50), is_list=True)
                message = stager.finish()
            indexes = [chunk.chunk_index for chunk, _ in node.chunks]
            assert indexes == list(range(len(indexes)))
            assert len(indexes) > 20
            assert message.stage.chunk_counts == {"n0": len(indexes)}
            assert message.stage.row_count == 2_550
            assert {rows.state_number for _, rows in node.chunks} == {1, 2}

    def test_nothing_staged_is_a_message_too(
        self, connections: WriterConnections
    ) -> None:
        """A task without rows does not connect."""
        run = write_run(["tcp://127.0.0.1:1"], [(0,)])
        with Stager(run, 0, connections=connections) as stager:
            message = stager.finish()
        assert message.stage.chunk_counts == {}
        assert message.stage.row_count == 0

    @pytest.mark.proves("W2")
    def test_each_execution_has_an_id_of_its_own(
        self, connections: WriterConnections
    ) -> None:
        """Attempt numbers repeat after a fetch failure, stage ids do not (W2)."""
        run = write_run([], [])
        ids = {
            Stager(run, 0, connections=connections).finish().stage.stage_id
            for _ in range(3)
        }
        assert len(ids) == 3

    def test_links_are_used_again(self, connections: WriterConnections) -> None:
        """The second task of a process pays no handshake."""
        with staging_node() as node:
            run = write_run([node.address], [(0,)] * 4)
            for batch_id in range(3):
                with Stager(run, batch_id, connections=connections) as stager:
                    stager.add(1, some_rows(10), is_list=False)
                    stager.finish()
            assert len(node.senders) == 1

    def test_a_forked_child_opens_its_own(self) -> None:
        """Links of the parent are not used in a child, nor disturbed by it."""
        with staging_node() as node:
            run = write_run([node.address], [(0,)] * 4)

            def stage() -> int:
                with Stager(run, 0) as stager:
                    stager.add(1, some_rows(10), is_list=False)
                    return stager.finish().stage.row_count

            assert stage() == 10
            assert run_in_child(stage) == "10"
            assert stage() == 10
            assert len(node.senders) == 2

    def test_a_finished_stage_takes_no_more(
        self, connections: WriterConnections
    ) -> None:
        """What came after the message would be lost."""
        stager = Stager(write_run([], []), 0, connections=connections)
        stager.finish()
        with pytest.raises(LocalProtocolError, match="make a new one"):
            stager.add(1, some_rows(1), is_list=False)


class TestTrouble:
    def test_a_chunk_that_was_not_kept_goes_again(
        self, connections: WriterConnections
    ) -> None:
        """The node could not write just then: the writer asks again."""
        refused: list[int] = []

        def answer(chunk: StageChunk) -> Reply:
            if len(refused) < 2:
                refused.append(chunk.chunk_index)
                return ChunkRefused(
                    request_id=chunk.request_id,
                    code="did-not-happen",
                    data=("the disk is full",),
                )
            return staged(chunk)

        with staging_node(answer) as node:
            run = write_run([node.address], [(0,)] * 4)
            with Stager(run, 0, connections=connections, limits=LIMITS) as stager:
                stager.add(1, some_rows(10), is_list=False)
                stager.finish()
            assert refused == [0, 0]
            assert len(node.chunks) == 3

    @pytest.mark.proves("W1")
    def test_a_refusal_ends_the_stage(self, connections: WriterConnections) -> None:
        """A zombie's rows are refused, and it is told why (W1)."""

        def answer(chunk: StageChunk) -> Reply:
            return ChunkRefused(
                request_id=chunk.request_id, code="stale-writer", data=("query", 7, 9)
            )

        with staging_node(answer) as node:
            run = write_run([node.address], [(0,)] * 4)
            with Stager(run, 0, connections=connections, limits=LIMITS) as stager:
                with pytest.raises(StaleWriterError) as caught:  # noqa: PT012 (either may)
                    stager.add(1, some_rows(10), is_list=False)
                    stager.finish()
                assert caught.value.writer_epoch_max == 9

    @pytest.mark.proves("C1")
    def test_a_grant_that_is_refused_is_renewed(
        self, connections: WriterConnections
    ) -> None:
        """A node may have heard of the present proxy leader later than the writer."""
        grants = iter((b"of another", b"of another", b"the present"))

        def answer(chunk: StageChunk) -> Reply:
            if chunk.grant == b"the present":
                return staged(chunk)
            return _denied(chunk)

        with staging_node(answer) as node:
            run = evolve(write_run([node.address], [(0,)] * 4), grant=b"of long ago")
            with Stager(
                run,
                0,
                connections=connections,
                limits=LIMITS,
                renew_grant=lambda: next(grants),
            ) as stager:
                stager.add(1, some_rows(10), is_list=False)
                assert stager.finish().stage.row_count == 10
        assert [chunk.grant for chunk, _ in node.chunks] == [
            b"of long ago",
            b"of another",
            b"of another",
            b"the present",
        ]

    @pytest.mark.proves("C1")
    @pytest.mark.parametrize("is_renewed", [True, False])
    def test_who_may_not_write_is_told_in_time(
        self, connections: WriterConnections, is_renewed: bool
    ) -> None:
        """C1: at once without a way to another grant, and in bounded time with one."""
        limits = StageLimits(timeout_seconds=0.3)
        with staging_node(_denied) as node:
            run = write_run([node.address], [(0,)] * 4)
            with Stager(
                run,
                0,
                connections=connections,
                limits=limits,
                renew_grant=(lambda: b"another") if is_renewed else None,
            ) as stager:

                def stage() -> None:  # whichever of the two hears of it
                    stager.add(1, some_rows(1), is_list=False)
                    stager.finish()

                with pytest.raises(AccessDeniedError):
                    stage()
        assert (len(node.chunks) > 1) is is_renewed

    def test_a_silent_node_is_unavailable_in_time(
        self, connections: WriterConnections
    ) -> None:
        """The error names the node and its key groups; it comes in bounded time."""
        limits = StageLimits(timeout_seconds=0.3)
        with staging_node(lambda _: None) as silent, staging_node() as node:
            run = write_run([silent.address, node.address], [(0,), (1,), (0,), (1,)])
            with Stager(run, 0, connections=connections, limits=limits) as stager:
                stager.add(1, some_rows(10), is_list=False)
                with pytest.raises(StateUnavailableError, match="node n0") as caught:
                    stager.finish()
            assert caught.value.key_groups == (0, 2)

    @pytest.mark.proves("W2")
    def test_a_task_that_computes_for_long_finds_no_node_silent(
        self, connections: WriterConnections
    ) -> None:
        """W2: no one has listened meanwhile: what nodes have said is heard first."""
        limits = StageLimits(timeout_seconds=0.5)
        with staging_node() as node:
            run = write_run([node.address], [(0,)] * 4)
            with Stager(run, 0, connections=connections, limits=limits) as stager:
                for _ in range(3):
                    stager.add(1, some_rows(10), is_list=False)
                    threading.Event().wait(2 * limits.timeout_seconds)
                assert stager.finish().stage.row_count == 30

    def test_a_node_that_is_not_there_is_unavailable_in_time(
        self, connections: WriterConnections, vacant: str
    ) -> None:
        """None listens: the stage ends, it does not hang."""
        limits = StageLimits(timeout_seconds=0.3)
        run = write_run([vacant], [(0,)] * 4)
        with Stager(run, 0, connections=connections, limits=limits) as stager:
            stager.add(1, some_rows(10), is_list=False)
            with pytest.raises(StateUnavailableError):
                stager.finish()

    @pytest.mark.parametrize("has_moved", [False, True])
    def test_a_node_that_starts_again_gets_what_it_had_not_answered(
        self, connections: WriterConnections, vacant: str, has_moved: bool
    ) -> None:
        """Nothing is lost when a node goes and comes back, there or elsewhere."""
        answered: list[int] = []

        def answer(chunk: StageChunk) -> Reply:
            if answered:
                return None
            answered.append(chunk.chunk_index)
            return ChunkStaged(request_id=chunk.request_id)

        limits = StageLimits(
            chunk_size_bytes_max=2_000, window_count=3, timeout_seconds=20.0
        )
        with ExitStack() as first_life:
            first = first_life.enter_context(staging_node(answer, address=vacant))
            run = write_run([first.address], [(0,)] * 4)
            addresses: list[str] = []

            def find(node_id: str) -> str | None:
                assert node_id == "n0"
                return addresses[0] if addresses else None

            with Stager(
                run, 0, connections=connections, limits=limits, find_node=find
            ) as stager:
                stager.add(1, some_rows(200), is_list=False)
                stager._work(lambda: bool(answered))
                first_life.close()
                address = "tcp://127.0.0.1:0" if has_moved else vacant
                with staging_node(address=address) as second:
                    if has_moved:
                        addresses.append(second.address)
                    message = stager.finish()
        count = message.stage.chunk_counts["n0"]
        assert count > 3
        indexes = [chunk.chunk_index for chunk, _ in second.chunks]
        assert indexes == sorted(set(indexes))
        assert set(indexes) | set(answered) == set(range(count))

    def test_a_machine_that_says_nothing_is_not_waited_for(
        self, connections: WriterConnections
    ) -> None:
        """One that is gone refuses no connection; its node may be elsewhere by now."""
        with socket.create_server(("127.0.0.1", 0)) as mute, staging_node() as node:
            run = write_run([f"tcp://127.0.0.1:{mute.getsockname()[1]}"], [(0,)] * 4)
            with Stager(
                run,
                0,
                connections=connections,
                limits=evolve(LIMITS, open_timeout_seconds=0.1),
                find_node=lambda _: node.address,
            ) as stager:
                stager.add(1, some_rows(10), is_list=False)
                stager.finish()
            assert len(node.chunks) == 1

    def test_a_row_that_no_frame_can_hold_is_refused(
        self, connections: WriterConnections
    ) -> None:
        """It would end the connection again and again; the error says what to do."""
        run = write_run(["tcp://127.0.0.1:1"], [(0,)] * 4)
        with Stager(run, 0, connections=connections, limits=LIMITS) as stager:
            rows = some_rows(1, size_bytes=17 * 1024 * 1024)
            with pytest.raises(ConfigurationError, match="keep a reference"):
                stager.add(1, rows, is_list=False)


class TestCopies:
    """S4: every key group has another node that gets its rows."""

    BOTH = ((0, 1), (1, 0), (0, 1), (1, 0))

    @pytest.mark.parametrize("is_known", [False, True])
    def test_a_node_that_is_away_is_given_up(
        self, connections: WriterConnections, vacant: str, is_known: bool
    ) -> None:
        """The stage goes on without it, and says so; the other has all rows."""
        limits = StageLimits(timeout_seconds=20.0, give_up_seconds=0.1)
        with staging_node() as node:
            run = write_run([vacant if is_known else None, node.address], self.BOTH)
            rows = some_rows(100)
            with Stager(
                run,
                0,
                connections=connections,
                limits=limits,
                find_node=lambda _: None,
            ) as stager:
                stager.add(1, rows, is_list=False)
                first = stager.finish()
            assert node.rows == dict(zip(rows.keys, rows.values, strict=True))
        assert first.stage.chunk_counts == {"n1": 1}
        assert first.stage.given_up == ("n0",)
        assert first.stage.row_count == 100

    def test_a_node_that_goes_is_given_up_and_gets_nothing_more(
        self, connections: WriterConnections, vacant: str
    ) -> None:
        """What it had taken counts for nothing: it has not all of the batch."""
        limits = StageLimits(
            chunk_size_bytes_max=2_000, timeout_seconds=20.0, give_up_seconds=0.1
        )
        with staging_node() as node, ExitStack() as life:
            mortal = life.enter_context(staging_node(address=vacant))
            run = write_run([mortal.address, node.address], self.BOTH)
            with Stager(
                run,
                0,
                connections=connections,
                limits=limits,
                find_node=lambda _: None,
            ) as stager:
                stager.add(1, some_rows(200), is_list=False)
                stager._work(lambda: bool(mortal.chunks))
                life.close()
                stager.add(1, some_rows(100), is_list=False)
                stager._work(lambda: stager._core._nodes[0].is_given_up)
                stager.add(2, some_rows(50), is_list=False)
                message = stager.finish()
        assert message.stage.given_up == ("n0",)
        assert message.stage.chunk_counts == {"n1": len(node.chunks)}
        assert len({key for _, rows in node.chunks for key in rows.keys}) == 200

    def test_a_node_that_the_proxy_knows_is_waited_for(
        self, connections: WriterConnections, vacant: str
    ) -> None:
        """It is starting again: what it lacks it need not fetch from others."""
        limits = StageLimits(timeout_seconds=20.0, give_up_seconds=0.1)
        asked: list[str] = []
        with staging_node() as node, ExitStack() as life:
            run = write_run([vacant, node.address], self.BOTH)

            def find(node_id: str) -> str:
                asked.append(node_id)
                if len(asked) == 3:  # well after the moment at which it is given up
                    life.enter_context(staging_node(address=vacant))
                return vacant

            with Stager(
                run, 0, connections=connections, limits=limits, find_node=find
            ) as stager:
                stager.add(1, some_rows(100), is_list=False)
                message = stager.finish()
        assert message.stage.given_up == ()
        assert message.stage.chunk_counts == {"n0": 1, "n1": 1}
        assert set(asked) == {"n0"}

    @pytest.mark.proves("W4")
    def test_the_last_one_is_never_given_up(
        self, connections: WriterConnections
    ) -> None:
        """W4: rows that were not taken fail the stage; nothing is lost silently."""
        limits = StageLimits(timeout_seconds=0.5, give_up_seconds=0.1)
        run = write_run([None, None], self.BOTH)
        with Stager(
            run, 0, connections=connections, limits=limits, find_node=lambda _: None
        ) as stager:
            stager.add(1, some_rows(100), is_list=False)
            with pytest.raises(StateUnavailableError):
                stager.finish()

    @pytest.mark.proves("W7")
    def test_a_node_with_a_key_group_of_its_own_is_not_given_up(
        self, connections: WriterConnections
    ) -> None:
        """W7: no other would have the rows of that one."""
        limits = StageLimits(timeout_seconds=0.5, give_up_seconds=0.1)
        with staging_node() as node:
            run = write_run([None, node.address], ((0, 1), (1, 0), (0,), (1,)))
            with Stager(
                run, 0, connections=connections, limits=limits, find_node=lambda _: None
            ) as stager:
                stager.add(1, some_rows(100), is_list=False)
                with pytest.raises(StateUnavailableError, match="n0"):
                    stager.finish()

    def test_without_a_proxy_to_ask_it_is_given_up_when_its_time_is_up(
        self, connections: WriterConnections
    ) -> None:
        """It is not said that it is away; but then it would have come back by now."""
        limits = StageLimits(timeout_seconds=0.5, give_up_seconds=0.1)
        with staging_node() as node:
            run = write_run([None, node.address], self.BOTH)
            with Stager(run, 0, connections=connections, limits=limits) as stager:
                stager.add(1, some_rows(100), is_list=False)
                message = stager.finish()
        assert message.stage.given_up == ("n0",)

    def test_a_node_that_is_there_and_silent_fails_the_stage(
        self, connections: WriterConnections
    ) -> None:
        """It owns its key groups still, and a commit would wait for it in vain."""
        limits = StageLimits(timeout_seconds=0.5, give_up_seconds=0.1)
        with staging_node(lambda _: None) as silent, staging_node() as node:
            run = write_run([silent.address, node.address], self.BOTH)
            with Stager(
                run, 0, connections=connections, limits=limits, find_node=lambda _: None
            ) as stager:
                stager.add(1, some_rows(100), is_list=False)
                with pytest.raises(StateUnavailableError, match="n0"):
                    stager.finish()
