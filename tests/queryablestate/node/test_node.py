from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest
import zmq
from structlog.testing import capture_logs

from haservices import HAServices, open_ha_services
from haservices.testing import TCPProxy
from leaderserver import LeaderServer, ServerConfig
from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    NoLeaderError,
    RemoteProtocolError,
    StorageError,
    UnreachableError,
)
from nameservice.observation import StoppedJob
from queryablestate import DeadlineExceededError, StateUnavailableError
from queryablestate.node.config import NodeConfig
from queryablestate.node.core.read_schedule import ReadAsked
from queryablestate.node.node import StateNode
from queryablestate.node.reading import LongRead
from queryablestate.node.reads import read
from queryablestate.schema.key_columns import KeyColumns
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.schema_json import schema_json
from queryablestate.store.reader import StoreReader
from queryablestate.store.steps import ReadWork, Steps
from queryablestate.wire.address import parse_address
from queryablestate.wire.codec import (
    decode_count,
    decode_flags,
    decode_items,
    decode_keys,
    decode_values,
    encode,
    encode_payload,
)
from queryablestate.wire.job_assignment import JobAssignment, WriterFence
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    EntriesApplied,
    FenceWriters,
    HeartbeatAcknowledged,
    JobPosition,
    NodeHeartbeat,
    NodeRefused,
    RegisterNode,
    ResetJob,
    StagesVerified,
    VerifyStages,
)
from queryablestate.wire.questions import (
    Answer,
    CancelQuestions,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Operation,
    Question,
    Refusal,
    ScanRows,
    WalkRows,
)
from queryablestate.wire.records import BatchDecided, StageRecord
from queryablestate.wire.refusals import NOT_LEADER, STALE_ROUTE, error_of
from queryablestate.wire.staging_messages import ChunkRefused, ChunkStaged, StagedRows
from tests.exhausted_threads import no_more_threads
from tests.forking import run_in_child
from tests.queryablestate.node_entries import assignment, batch, drop
from tests.queryablestate.proxy_for_nodes import (
    TIMEOUT_SECONDS,
    NodeProxy,
    Writer,
    rows,
    rows_of,
    storage_key,
)
from zmqtransport import CurveKeyPair, parse_endpoint, write_key_pair


pytestmark = pytest.mark.shells

NODE: Final = "node-1"


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of its own."""
    with open_ha_services("embedded:") as services:
        yield services


@pytest.fixture
def proxy(ha: HAServices) -> Iterator[NodeProxy]:
    """Return the proxy leader."""
    with NodeProxy(ha) as leader:
        yield leader


def config(tmp_path: Path, **settings: object) -> NodeConfig:
    """Return a configuration that does not wait for the disk."""
    return NodeConfig(
        data_dir=tmp_path / "data",
        node_id=NODE,
        is_durable=False,
        **settings,  # type: ignore[arg-type]  # a test names them
    )


@pytest.fixture
def node(ha: HAServices, tmp_path: Path) -> Iterator[StateNode]:
    """Return a node that has nothing."""
    with StateNode(ha, config(tmp_path)) as one:
        yield one


def wait_until(
    condition: Callable[[], bool], timeout_seconds: float = TIMEOUT_SECONDS
) -> bool:
    """Return whether *condition* comes true in good time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.01)
    return True


class Detour:
    """A way to a proxy that can be cut."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        self.link: TCPProxy

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def lead(self, address: str) -> str:
        """Return an address that leads to *address* as long as it may."""
        port = parse_endpoint(address).port
        self.link = self._resources.enter_context(TCPProxy(port))
        return f"tcp://{self.link.address}"


def hold_reading(node: StateNode) -> threading.Event:
    """Keep the reading thread of *node* busy until the event is set."""
    assert node._running is not None
    go, begun = threading.Event(), threading.Event()

    def hold(_: StoreReader, __: ReadWork) -> Steps[None]:
        begun.set()
        go.wait(TIMEOUT_SECONDS)
        yield

    asked = ReadAsked(
        read_id=(-7, 0), asker="hold", deadline_ns=1 << 62, holds_rows=False
    )
    node._running._store.opened.reading.read(
        LongRead(
            asked=asked,
            begin=hold,
            size_of=lambda _: 0,
            done=lambda _: None,
            failed=lambda _, __: None,
            dropped=lambda _, __: None,
        )
    )
    assert begun.wait(TIMEOUT_SECONDS)
    return go


def known(asked: RegisterNode) -> list[tuple[str, int]]:
    """Return how far a node says that it is, for each job."""
    return [(one.job_id, one.sequence) for one in asked.positions]


class Job:
    """A job on one node: what is staged, decided, and asked."""

    def __init__(self, node: StateNode, proxy: NodeProxy) -> None:
        self.node = node
        self.proxy = proxy
        self.sequence = 0
        self.question_id = 0

    def serve(self, *, version: int = 1, groups: tuple[int, ...] = (0, 1)) -> None:
        """Have the node registered, for key groups 0 and 1."""
        self.proxy.register(self.assignment(version=version, groups=groups))
        self.node.wait_until_registered(TIMEOUT_SECONDS)

    def assignment(
        self, *, version: int = 1, groups: tuple[int, ...] = (0, 1)
    ) -> JobAssignment:
        """Return what the node answers for."""
        return assignment(version=version, key_groups=groups)

    def verify(self, stage: StageRecord, *, batch_id: int = 1) -> str | None:
        """Return why the node could not apply a batch of one stage, or None."""
        self.proxy.send(
            VerifyStages(
                leader_epoch=self.proxy.leader_epoch,
                verify_id=batch_id,
                job_id="job",
                writer_epoch=1,
                batch_id=batch_id,
                stages=(stage,),
                query_id="query",
                states=batch(1, stages=()).states,
            )
        )
        verified, _ = self.proxy.receive(StagesVerified)
        assert (verified.verify_id, verified.missing) == (batch_id, ())
        return verified.failure

    def stage(
        self, *chunks: StagedRows, writer_epoch: int = 1, batch_id: int | None = None
    ) -> StageRecord:
        """Have rows staged for the next batch."""
        batch_id = self.sequence + 1 if batch_id is None else batch_id
        with Writer(
            self.node.address,
            stage_id=batch_id.to_bytes(16, "big"),
            writer_epoch=writer_epoch,
            batch_id=batch_id,
        ) as writer:
            for chunk in chunks:
                assert writer.bring(chunk) == ChunkStaged(request_id=writer.request_id)
            return writer.stage(self.node.node_id)

    def decide(self, *chunks: StagedRows, **settings: object) -> BatchDecided:
        """Have rows staged, and return the batch that names them."""
        stage = self.stage(*chunks)
        self.sequence += 1
        return batch(self.sequence, stages=(stage,), **settings)  # type: ignore[arg-type]  # a test names them

    def write(self, *chunks: StagedRows, **settings: object) -> None:
        """Have rows staged, decided and applied."""
        entry = self.decide(*chunks, **settings)
        assert self.proxy.apply(entry).sequence == self.sequence

    def question(
        self, operation: Operation | None = None, **settings: int | str | None
    ) -> Question:
        """Return a question of the leader."""
        self.question_id += 1
        fields: dict[str, int | str | None] = {
            "leader_epoch": self.proxy.leader_epoch,
            "state_number": 1,
            "assignment_version": 1,
            "deadline_ms": 10_000,
            "min_batch_id": None,
            **settings,
        }
        return Question(
            question_id=self.question_id,
            operation=GetValues() if operation is None else operation,
            **fields,  # type: ignore[arg-type]  # a test names them
        )

    def get(self, *names: str, **settings: int | str | None) -> list[bytes | None]:
        """Return the values under some keys of key group 0."""
        keys = [storage_key(name) for name in names]
        answered = self.proxy.ask(self.question(None, **settings), keys)
        assert not isinstance(answered, Refusal), error_of(answered)
        return decode_values(answered[1])

    def refusal(
        self,
        operation: Operation | None = None,
        keys: list[bytes] | None = None,
        **settings: int | str | None,
    ) -> Refusal:
        """Return what the node says instead of an answer."""
        if keys is None:
            keys = [storage_key("a")]
        answered = self.proxy.ask(self.question(operation, **settings), keys)
        assert isinstance(answered, Refusal)
        assert answered.request_id == self.question_id
        return answered

    def answer(
        self, operation: Operation, keys: list[bytes] | None = None
    ) -> tuple[Answer, bytes]:
        """Return an answer."""
        answered = self.proxy.ask(self.question(operation), keys)
        assert not isinstance(answered, Refusal), error_of(answered)
        assert answered[0].question_id == self.question_id
        return answered


@pytest.fixture
def job(node: StateNode, proxy: NodeProxy) -> Job:
    """Return a job whose node is registered."""
    one = Job(node, proxy)
    one.serve()
    return one


class TestLife:
    """How a node begins and ends."""

    def test_it_registers_with_the_proxy_leader(
        self, node: StateNode, proxy: NodeProxy
    ) -> None:
        """It finds the proxy by the name service, and says who and where it is."""
        asked = proxy.register()
        node.wait_until_registered(TIMEOUT_SECONDS)
        assert asked.node_id == node.node_id == NODE
        assert asked.address == node.address
        assert asked.positions == ()
        assert asked.token is None
        assert node.is_registered
        status = node.status()
        assert status["leader_epoch"] == proxy.leader_epoch
        assert status["failures_total"] == 0

    def test_it_shows_its_token(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """A token may be given, or be in a file that its owner alone can read."""
        token_file = tmp_path / "token"
        token_file.write_text("secret\n")
        token_file.chmod(0o600)
        settings = config(tmp_path, token_file=token_file)
        assert "secret" not in repr(settings)
        with StateNode(ha, settings):
            assert proxy.register().token == "secret"

    def test_it_starts_once(self, node: StateNode, tmp_path: Path) -> None:
        """Neither twice, nor after it was closed; closing twice is nothing."""
        with pytest.raises(LocalProtocolError):
            node.start()
        node.close()
        node.close()
        with pytest.raises(LocalProtocolError):
            node.start()

    def test_what_was_not_started_knows_nothing(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """Questions before the start are mistakes; closing is none."""
        one = StateNode(ha, config(tmp_path))
        with pytest.raises(LocalProtocolError):
            one.status()
        assert one.failure is None
        one.close()

    def test_it_ends_when_it_is_closed(self, ha: HAServices, tmp_path: Path) -> None:
        """Nothing of it is left: no thread, no lock on its directory."""
        before = set(threading.enumerate())
        one = StateNode(ha, config(tmp_path))
        one.start()
        assert not one.join(0.0)
        one.close()
        assert one.join(TIMEOUT_SECONDS)
        assert set(threading.enumerate()) == before
        with StateNode(ha, config(tmp_path)):
            pass

    def test_one_that_has_got_no_thread_leaves_nothing(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """A process may have no more threads; another node may use its directory."""
        before = set(threading.enumerate())
        one = StateNode(ha, config(tmp_path))
        with (
            no_more_threads("state-node"),
            pytest.raises(RuntimeError, match="new thread"),
        ):
            one.start()
        one.close()
        assert set(threading.enumerate()) == before
        with StateNode(ha, config(tmp_path)):
            pass

    def test_one_node_uses_a_directory_at_a_time(
        self, node: StateNode, ha: HAServices, tmp_path: Path
    ) -> None:
        """A second one is told so, and leaves nothing open."""
        second = StateNode(ha, config(tmp_path))
        with pytest.raises(StorageError):
            second.start()
        second.close()

    def test_its_name_may_be_drawn(self, ha: HAServices, tmp_path: Path) -> None:
        """A directory keeps the name that was drawn when it was made."""
        settings = NodeConfig(data_dir=tmp_path)
        with StateNode(ha, settings) as one:
            name = one.node_id
        assert name
        with StateNode(ha, settings) as one:
            assert one.node_id == name

    def test_a_port_that_is_taken_is_told(
        self, node: StateNode, ha: HAServices, tmp_path: Path
    ) -> None:
        """The node does not start, and says which setting to change."""
        bind = str(parse_address(node.address).endpoint)
        second = StateNode(ha, NodeConfig(data_dir=tmp_path / "other", bind=bind))
        with pytest.raises(ConfigurationError, match="is in use"):
            second.start()

    def test_waiting_without_a_proxy_ends(self, node: StateNode) -> None:
        """One that waits learns that there is no leader."""
        with pytest.raises(NoLeaderError):
            node.wait_until_registered(0.05)

    def test_waiting_for_one_that_refuses_ends(
        self, node: StateNode, proxy: NodeProxy
    ) -> None:
        """One that waits learns why the proxy does not take the node."""
        proxy.receive(RegisterNode)
        proxy.send(NodeRefused(reason="name-taken", detail="another is called so"))
        proxy.receive(RegisterNode)
        with pytest.raises(UnreachableError, match="another is called so"):
            node.wait_until_registered(0.05)

    def test_a_forked_child_cannot_use_it(self, node: StateNode) -> None:
        """E10: its use raises, its close is silent, the parent is not disturbed."""
        assert run_in_child(node.status) == "ForkedClientError"
        assert run_in_child(node.close) == "None"
        assert node.status()["node_id"] == NODE

    def test_what_is_advertised_is_its_own_affair(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """Writers are told the host that was configured, with the real port."""
        with StateNode(ha, config(tmp_path, advertised_host="localhost")) as one:
            endpoint = parse_address(one.address).endpoint
            assert endpoint.host == "localhost"
            assert endpoint.port > 0

    def test_every_interface_is_advertised_as_one(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """A wildcard is no place to connect to; within one process loopback will do."""
        settings = config(tmp_path, bind="tcp://*:0", is_insecure_allowed=True)
        with StateNode(ha, settings) as one:
            assert parse_address(one.address).endpoint.host == "127.0.0.1"

    def test_it_is_advertised_as_the_name_service_is_reached(
        self, tmp_path: Path
    ) -> None:
        """The interface that leads to the name service leads to the writers, too."""
        settings = config(tmp_path, bind="tcp://0.0.0.0:0", is_insecure_allowed=True)
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as services,
            StateNode(services, settings) as one,
        ):
            assert parse_address(one.address).endpoint.host == "127.0.0.1"


class TestWriting:
    """W1, W2: rows are brought, and on disk before they are acknowledged."""

    @pytest.mark.proves("W2", "W3")
    def test_a_batch_is_staged_verified_applied_and_answered(self, job: Job) -> None:
        """W2, W3: from a writer's chunk to a reader's answer."""
        stage = job.stage(rows(a=b"1", b=b"2"), rows(c=b"3"))
        job.proxy.send(
            VerifyStages(
                leader_epoch=job.proxy.leader_epoch,
                verify_id=9,
                job_id="job",
                writer_epoch=1,
                batch_id=1,
                stages=(stage,),
                query_id="q",
            )
        )
        verified, _ = job.proxy.receive(StagesVerified)
        assert (verified.verify_id, verified.missing) == (9, ())
        applied = job.proxy.apply(batch(1, stages=(stage,)))
        assert (applied.sequence, applied.failure) == (1, None)
        assert job.get("a", "b", "c", "d") == [b"1", b"2", b"3", None]

    @pytest.mark.proves("W4")
    def test_what_is_missing_is_told(self, job: Job) -> None:
        """W4: a stage of which a chunk is not there is named."""
        there = job.stage(rows(a=b"1"))
        absent = StageRecord(stage_id=b"x" * 16, chunk_counts={NODE: 1}, row_count=1)
        elsewhere = StageRecord(
            stage_id=b"y" * 16, chunk_counts={"other": 1}, row_count=1
        )
        job.proxy.send(
            VerifyStages(
                leader_epoch=job.proxy.leader_epoch,
                verify_id=1,
                job_id="job",
                writer_epoch=1,
                batch_id=1,
                stages=(there, absent, elsewhere),
                query_id="q",
            )
        )
        verified, _ = job.proxy.receive(StagesVerified)
        assert verified.missing == (b"x" * 16,)

    @pytest.mark.proves("W3")
    def test_a_batch_without_room_is_not_to_be_decided(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """W3: the node says why; with a greater limit it goes on with what it has."""
        chunk = StagedRows(
            1, [storage_key(f"{n:04}") for n in range(1_500)], [bytes(500)] * 1_500
        )
        with StateNode(ha, config(tmp_path, size_bytes_max=3 << 19)) as node:
            job = Job(node, proxy)
            job.serve()
            stage = job.stage(chunk)
            failure = job.verify(stage)
            assert failure is not None
            assert str(tmp_path / "data") in failure
            assert "no room for it within 1,572,864 bytes, of which" in failure
            small = job.stage(StagedRows(1, [storage_key("a")], [b"1"]), batch_id=2)
            assert job.verify(small, batch_id=2) is None
        with StateNode(ha, config(tmp_path, size_bytes_max=16 << 20)) as node:
            job = Job(node, proxy)
            job.serve()
            assert job.verify(stage) is None
            job.sequence = 1
            assert proxy.apply(batch(1, stages=(stage,))).failure is None
            assert job.get("0007") == [bytes(500)]

    @pytest.mark.proves("F1")
    def test_why_a_job_is_stopped_is_told_in_a_word(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """F1: by its metrics, until it goes on; what is staged is told as well."""
        chunk = StagedRows(
            1, [storage_key(f"{n:04}") for n in range(1_500)], [bytes(500)] * 1_500
        )
        with StateNode(ha, config(tmp_path, size_bytes_max=3 << 19)) as node:
            job = Job(node, proxy)
            job.serve()
            stage = job.stage(chunk)
            assert node.observe().stopped == []
            assert proxy.apply(batch(1, stages=(stage,))).failure is not None
            told = node.observe()
            assert told.stopped == [StoppedJob(job_id="job", reason="store_full")]
            assert told.figures["jobs_failed"] == 1
            assert int(told.figures["staged_bytes"]) > 1_500 * 500
            assert told.figures["store_size_bytes_max"] == 3 << 19

    def test_many_stages_are_looked_for_beside_the_loop(self, job: Job) -> None:
        """However many chunks there may be, other questions are answered."""
        stage = job.stage(rows(a=b"1"))
        more = StageRecord(
            stage_id=stage.stage_id, chunk_counts={NODE: 2_000}, row_count=1
        )
        job.proxy.send(
            VerifyStages(
                leader_epoch=job.proxy.leader_epoch,
                verify_id=1,
                job_id="job",
                writer_epoch=1,
                batch_id=1,
                stages=(more,),
                query_id="q",
            )
        )
        verified, _ = job.proxy.receive(StagesVerified)
        assert verified.missing == (stage.stage_id,)

    def test_chunks_side_by_side_are_all_acknowledged(self, job: Job) -> None:
        """However many wait together, each is told of."""
        with Writer(job.node.address) as writer:
            for number in range(50):
                writer.put(rows(a=str(number).encode()))
            replies = [writer.reply() for _ in range(50)]
        assert {reply.request_id for reply in replies} == set(range(1, 51))
        assert all(isinstance(reply, ChunkStaged) for reply in replies)

    @pytest.mark.proves("W1")
    def test_a_run_that_is_over_is_refused(self, job: Job) -> None:
        """W1: a zombie's chunk is refused, with both epochs."""
        fence = WriterFence(job_id="job", query_id="q", writer_epoch=7)
        job.proxy.send(
            FenceWriters(leader_epoch=job.proxy.leader_epoch, fences=(fence,))
        )
        # The command and the chunk come over different connections.
        job.proxy.apply(job.decide())
        with Writer(job.node.address, writer_epoch=6) as writer:
            refused = ChunkRefused(request_id=1, code="stale-writer", data=("q", 6, 7))
            assert writer.bring(rows(a=b"1")) == refused
        with Writer(job.node.address, writer_epoch=7) as writer:
            assert writer.bring(rows(a=b"1")) == ChunkStaged(request_id=1)

    @pytest.mark.proves("W1")
    def test_a_fence_outlives_the_node(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """W1: after a restart the zombie is refused, whatever the proxy says of it."""
        with StateNode(ha, config(tmp_path)) as one:
            fence = WriterFence(job_id="job", query_id="q", writer_epoch=7)
            proxy.register(assignment(fences=(fence,)))
            proxy.apply(batch(1))  # the writer's thread works in order
        with StateNode(ha, config(tmp_path)) as one, Writer(one.address) as writer:
            proxy.register()
            reply = writer.bring(rows(a=b"1"))
            assert isinstance(reply, ChunkRefused)
            assert reply.code == "stale-writer"

    @pytest.mark.parametrize(
        ("payload", "code"),
        [
            (b"\xc1", "malformed"),
            (encode_payload([1, [b"\0\0a"], []]), "malformed"),
            (encode_payload([1, [b"\0\0b", b"\0\0a"], [b"", b""]]), "malformed"),
            (encode_payload([1, [b"\0"], [b""]]), "malformed"),
            (encode_payload([1, [bytes(483)], [b""]]), "key-too-large"),
        ],
    )
    def test_rows_that_could_not_be_applied_are_not_staged(
        self, job: Job, payload: bytes, code: str
    ) -> None:
        """They would stop the chain of the job once they are decided."""
        with Writer(job.node.address) as writer:
            reply = writer.bring(payload)
            assert isinstance(reply, ChunkRefused)
            assert (reply.request_id, reply.code) == (1, code)
            assert writer.bring(rows(a=b"1")) == ChunkStaged(request_id=2)

    @pytest.mark.parametrize(
        "frames",
        [
            [b""],
            [b"LDQ\1"],
            [b"LDQ\2", b""],
            [b"GET / HTTP/1.1\r\n", b""],
            [b"LDQ\1" + b"\xff" * 10, b""],
            [encode(ChunkStaged(request_id=1)), b""],
            [b"LDQ\1", b"", b""],
            [b"x"] * 50,
        ],
    )
    def test_what_is_no_chunk_is_answered(self, job: Job, frames: list[bytes]) -> None:
        """A peer that speaks something else is told so, and does no harm."""
        with Writer(job.node.address) as writer:
            writer.socket.send_multipart(frames)
            reply = writer.reply()
            assert isinstance(reply, ChunkRefused)
            assert reply.request_id == 0
            error = error_of(
                Refusal(request_id=0, code=reply.code, data=tuple(reply.data))
            )
            assert isinstance(error, RemoteProtocolError)

    @pytest.mark.proves("B3")
    def test_a_chunk_that_is_too_large_is_refused(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """B3: the limit itself is taken; a little more is told why not, by number."""
        settings = config(tmp_path, chunk_size_bytes_max=65_536)
        with StateNode(ha, settings) as one, Writer(one.address) as writer:
            proxy.register()
            empty = len(encode_payload(rows(a=bytes(60_000)))) - 60_000
            fitting = rows(a=bytes(65_536 - empty))
            assert writer.bring(fitting) == ChunkStaged(request_id=1)
            reply = writer.bring(rows(a=bytes(65_537 - empty)))
            assert isinstance(reply, ChunkRefused)
            assert reply.request_id == 2
            assert "at most 65,536 are taken" in str(reply.data)

    @pytest.mark.proves("C1")
    def test_a_node_that_no_proxy_has_taken_in_takes_no_rows(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """C1: it cannot tell who may write; the writer sends them again in a moment."""
        with StateNode(ha, config(tmp_path)) as one, Writer(one.address) as writer:
            reply = writer.bring(rows(a=b"1"))
            assert isinstance(reply, ChunkRefused)
            assert reply.code == "did-not-happen"
            proxy.register()
            assert writer.bring(rows(a=b"1")) == ChunkStaged(request_id=2)

    @pytest.mark.proves("B4")
    def test_what_a_job_may_stage_is_bounded(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """B4: the writer is told why, also when the node has been started again."""
        settings = config(
            tmp_path, chunk_size_bytes_max=1 << 20, staged_bytes_per_job_max=1 << 20
        )
        with StateNode(ha, settings) as one, Writer(one.address) as writer:
            proxy.register()
            reply = writer.bring(rows(a=bytes(600_000)))
            assert reply == ChunkStaged(request_id=1)
        with StateNode(ha, settings) as one, Writer(one.address) as writer:
            proxy.register()
            writer.chunk_count += 1
            reply = writer.bring(rows(a=bytes(500_000)))
            assert isinstance(reply, ChunkRefused)
            assert reply.code == "staging-quota"
            assert reply.data[1] == writer.job_id
            assert reply.data[3] == 1 << 20

    def test_what_waits_for_the_disk_is_bounded(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """N3: a writer that brings too much at once is told to bring it again."""
        settings = config(tmp_path, chunks_per_writer_max=1)
        with StateNode(ha, settings) as one, Writer(one.address) as writer:
            proxy.register()
            for _ in range(200):
                writer.put(rows(a=b"1"))
            replies = [writer.reply() for _ in range(200)]
            refused = [reply for reply in replies if isinstance(reply, ChunkRefused)]
            assert {reply.code for reply in refused} == {"did-not-happen"}
            assert len(refused) < 200
            assert writer.bring(rows(a=b"1")) == ChunkStaged(request_id=201)
            assert one.status()["chunks_waiting"] == 0


class TestReading:
    """Q1, Q2, Q3: what readers are told."""

    @pytest.mark.proves("Q2")
    def test_values_come_with_what_they_are_of(self, job: Job) -> None:
        """Q2: generation, batch and age; and whether something is not there."""
        job.write(rows(a=b"1"))
        answer, payload = job.answer(GetValues(), [storage_key("a")])
        assert decode_values(payload) == [b"1"]
        assert (answer.reading.generation, answer.reading.batch_id) == (1, 1)
        assert answer.reading.age_ms > 0
        assert not answer.reading.is_cached
        assert (answer.has_missing, answer.valid_ms) == (False, None)
        answer, _ = job.answer(GetValues(), [storage_key("a"), storage_key("z")])
        assert answer.has_missing

    @pytest.mark.proves("Q3", "W6")
    def test_values_say_how_long_they_hold(self, job: Job) -> None:
        """W6, Q3: a value that expires is kept no longer than that, and then absent."""
        now_us = time.time_ns() // 1_000
        soon, past = now_us + 3_600_000_000, now_us - 1
        value = soon.to_bytes(8, "big") + b"1"
        gone = past.to_bytes(8, "big") + b"2"
        job.write(rows(a=value, b=gone), has_ttl=True)
        answer, payload = job.answer(GetValues(), [storage_key("a"), storage_key("b")])
        assert decode_values(payload) == [b"1", None]
        assert answer.valid_ms is not None
        assert 3_500_000 < answer.valid_ms <= 3_600_000

    @pytest.mark.proves("Q1")
    def test_a_batch_that_is_not_decided_is_not_seen(self, job: Job) -> None:
        """Q1: readers see applied batches only."""
        job.write(rows(a=b"1"))
        job.stage(rows(a=b"2"))
        assert job.get("a") == [b"1"]

    def test_lists_are_sliced(self, job: Job) -> None:
        """Items in their order, as a Python slice means it."""
        key = storage_key("a")
        chunk = StagedRows(state_number=1, keys=[key] * 3, values=[b"1", b"2", b"3"])
        job.write(chunk, kind="list")
        for operation, expected in (
            (GetItems(), [b"1", b"2", b"3"]),
            (GetItems(start=-2), [b"2", b"3"]),
            (GetItems(start=0, stop=1), [b"1"]),
            (GetItems(start=1, stop=-1), [b"2"]),
        ):
            _, payload = job.answer(operation, [key, storage_key("z")])
            assert decode_items(payload) == [expected, None]

    def test_maps_are_read_whole(self, job: Job) -> None:
        """Map key, value, map key, … in the order of map keys."""
        key = storage_key("a")
        chunk = StagedRows(
            state_number=1, keys=[key + b"\1x", key + b"\1y"], values=[b"1", b"2"]
        )
        job.write(chunk, kind="map")
        answer, payload = job.answer(GetEntries(), [key, storage_key("z")])
        assert decode_items(payload) == [[b"\1x", b"1", b"\1y", b"2"], None]
        assert answer.has_missing

    def test_scans_go_over_all_key_groups_in_order(self, job: Job) -> None:
        """Pages in the order of encoded keys, each says where the next begins."""
        job.write(rows(key_group=0, a=b"1", c=b"3"), rows(key_group=1, b=b"2"))
        scan = ScanRows(start=b"", stop=None, limit=2)
        answer, payload = job.answer(scan)
        encoded = [storage_key(name)[2:] for name in "abc"]
        assert decode_values(payload) == [encoded[0], b"1", encoded[1], b"2"]
        assert answer.next_start == encoded[2]
        answer, payload = job.answer(ScanRows(start=encoded[2], stop=None, limit=2))
        assert decode_values(payload) == [encoded[2], b"3"]
        assert answer.next_start is None

    def test_keys_are_counted(self, job: Job) -> None:
        """All key groups of the node together."""
        job.write(rows(key_group=0, a=b"1", c=b"3"), rows(key_group=1, b=b"2"))
        _, payload = job.answer(CountKeys())
        assert decode_count(payload) == 3

    @pytest.mark.proves("S3")
    def test_scans_and_counts_leave_out_other_groups(
        self, node: StateNode, proxy: NodeProxy
    ) -> None:
        """S3: of a key group that another node is the primary of nothing is told."""
        job = Job(node, proxy)
        job.serve(groups=(1,))
        job.write(rows(key_group=0, a=b"1"), rows(key_group=1, b=b"2"))
        _, payload = job.answer(CountKeys())
        assert decode_count(payload) == 1
        _, payload = job.answer(ScanRows(start=b"", stop=None, limit=9))
        assert decode_values(payload) == [storage_key("b")[2:], b"2"]

    @pytest.mark.proves("W7")
    def test_a_key_of_another_node_is_never_missing(self, job: Job) -> None:
        """W7: who asks the wrong node learns so, not that the key is unknown."""
        job.write(rows(a=b"1"))
        refusal = job.refusal(keys=[storage_key("a"), storage_key("a", 2)])
        assert refusal.code == STALE_ROUTE

    def test_keys_that_are_none_are_malformed(self, job: Job) -> None:
        """What does not decode is answered, not dropped."""
        job.write(rows(a=b"1"))
        for payload in (b"\xc1", b"", encode_payload(["text"]), encode_payload(7)):
            job.proxy.send_frames(encode(job.question()), payload)
            refusal = job.proxy.answer()
            assert isinstance(refusal, Refusal)
            assert refusal.code == "malformed"

    @pytest.mark.parametrize("key", [b"", b"\0", b"\0\0" + b"x" * 600])
    def test_keys_that_could_not_be_stored_do_no_harm(
        self, job: Job, key: bytes
    ) -> None:
        """A key of no key group is asked elsewhere, one that is too long is absent."""
        job.write(rows(a=b"1"))
        answered = job.proxy.ask(job.question(), [key, storage_key("a")])
        if isinstance(answered, Refusal):
            assert answered.code == STALE_ROUTE
        else:
            assert decode_values(answered[1]) == [None, b"1"]

    @pytest.mark.proves("B1", "B2")
    def test_several_keys_have_a_small_answer(self, job: Job) -> None:
        """B1, B2: what one key holds goes whole, several in parts, between others."""
        names = "ab"
        job.write(rows_of({name: bytes(600 << 10) for name in names}))
        keys = [storage_key(name) for name in names]
        assert "1,048,576 bytes" in str(error_of(job.refusal(keys=keys)))
        job.write(rows_of({"a": bytes(2 << 20)}))
        _, payload = job.answer(GetValues(), keys[:1])
        assert len(payload) > 2 << 20

    @pytest.mark.proves("Q3")
    def test_an_answer_that_is_too_large_is_refused(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """Q3: the proxy would drop the connection; the reader is told what to do."""
        settings = config(tmp_path, answer_size_bytes_max=65_536)
        with StateNode(ha, settings) as one:
            job = Job(one, proxy)
            job.serve()
            names = "abcd"
            job.write(rows_of({name: bytes(30_000) for name in names}))
            keys = [storage_key(name) for name in names]
            refusal = job.refusal(keys=keys)
            assert "ask for fewer keys" in str(error_of(refusal))
            # A page of a scan ends early instead.
            answer, payload = job.answer(ScanRows(start=b"", stop=None, limit=9))
            assert len(payload) <= 65_536
            assert answer.next_start is not None
            assert len(decode_values(payload)) >= 2

    @pytest.mark.proves("B1")
    def test_a_key_that_is_named_often_takes_no_memory(self, job: Job) -> None:
        """B1: one row of 8 MB, its key 600 times: 64 MiB above rest at most."""
        job.write(rows(a=bytes(8_000_000)))
        tracemalloc.start()
        try:
            refusal = job.refusal(keys=[storage_key("a")] * 600)
            assert tracemalloc.get_traced_memory()[1] <= 64 << 20
        finally:
            tracemalloc.stop()
        assert refusal.code == "illegal"

    @pytest.mark.proves("B1")
    def test_the_loop_does_not_read_large_values(self, job: Job) -> None:
        """B1: they wait for their turn; small ones, and heartbeats, do not."""
        job.write(rows(a=b"1", b=bytes(2_000_000)))
        go = hold_reading(job.node)
        job.proxy.put(job.question(None), [storage_key("b")])
        assert job.get("a") == [b"1"]
        go.set()
        answered = job.proxy.answer()
        assert not isinstance(answered, Refusal)
        assert decode_values(answered[1]) == [bytes(2_000_000)]

    @pytest.mark.proves("B1")
    def test_existence_is_told_without_the_value(self, job: Job) -> None:
        """B1: of a value of 2 MB no byte is read, so that nothing need wait."""
        job.write(rows(a=b"1", b=bytes(2_000_000)))
        go = hold_reading(job.node)
        keys = [storage_key(name) for name in "bzab"]
        answer, payload = job.answer(HasRows(), keys)
        assert decode_flags(payload) == [True, False, True, True]
        assert answer.has_missing
        answer, _ = job.answer(HasRows(), keys[:1])
        assert not answer.has_missing
        go.set()

    def test_an_unknown_state_is_a_stale_route(self, job: Job) -> None:
        """The reader asks what the state is, and where."""
        job.write(rows(a=b"1"))
        for operation in (GetValues(), GetEntries(), CountKeys()):
            refusal = job.refusal(operation, [], state_number=99)
            assert refusal.code == STALE_ROUTE

    def test_a_dropped_state_is_a_stale_route(self, job: Job) -> None:
        """What is gone is gone for every reader."""
        job.write(rows(a=b"1"))
        job.sequence += 1
        job.proxy.apply(drop(job.sequence))
        assert job.refusal().code == STALE_ROUTE

    @pytest.mark.proves("S2")
    def test_another_assignment_is_a_stale_route(self, job: Job) -> None:
        """S2: a route of before is not answered by, nor one that is yet to come."""
        job.write(rows(a=b"1"))
        assert job.refusal(assignment_version=2).code == STALE_ROUTE
        job.proxy.send(
            AssignJob(
                leader_epoch=job.proxy.leader_epoch, job=job.assignment(version=2)
            )
        )
        job.proxy.receive(NodeHeartbeat)
        assert job.refusal(assignment_version=1).code == STALE_ROUTE
        assert job.get("a", assignment_version=2) == [b"1"]

    def test_many_keys_are_answered_in_their_order(self, job: Job) -> None:
        """One message for many keys, values in the order of the keys."""
        names = [f"key-{number:04}" for number in range(1_000)]
        job.write(rows_of({name: name.encode() for name in names}))
        shuffled = sorted(names, key=lambda name: name[::-1])
        assert job.get(*shuffled) == [name.encode() for name in shuffled]

    def test_scans_that_wait_are_bounded(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """N3: beyond the limit a scan is refused at once, and may be asked again."""
        with StateNode(ha, config(tmp_path, questions_waiting_max=2)) as one:
            job = Job(one, proxy)
            job.serve()
            job.write(rows(a=b"1"))
            go = hold_reading(one)
            job.proxy.put(job.question(CountKeys()))
            job.proxy.put(job.question(CountKeys()))
            assert job.get("a") == [b"1"]  # points do not wait for scans
            go.set()
            refusal, answer = job.proxy.answer(), job.proxy.answer()
            assert isinstance(refusal, Refusal)
            assert refusal.code == "state-unavailable"
            assert not isinstance(answer, Refusal)

    @pytest.mark.proves("Q3")
    def test_a_scan_whose_deadline_has_passed_is_not_read(self, job: Job) -> None:
        """Q3: it is not waited for any more."""
        job.write(rows(a=b"1"))
        go = hold_reading(job.node)
        job.proxy.put(job.question(CountKeys(), deadline_ms=1))
        assert job.get("a") == [b"1"]
        threading.Timer(0.05, go.set).start()
        refusal = job.proxy.answer()
        assert isinstance(refusal, Refusal)
        assert isinstance(error_of(refusal), DeadlineExceededError)

    @pytest.mark.proves("B1")
    def test_a_proxy_that_does_not_read_costs_little_memory(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """B1: no more is read than may wait to be sent; all is answered in the end."""
        size_bytes, question_count = 4 << 20, 40
        with (
            NodeProxy(ha, session_timeout_ms=120_000, receive_queue_count_max=1) as far,
            StateNode(ha, config(tmp_path)) as one,
        ):
            job = Job(one, far)
            job.serve()
            job.write(rows(b=bytes(size_bytes)))
            for _ in range(question_count):
                question = job.question(None, deadline_ms=100_000)
                far.put(question, [storage_key("b")])
            held = []

            def are_most_waiting() -> bool:
                status = one.status()
                held.append(int(status["reads_held_bytes"]))
                return int(status["reads_waiting"]) > question_count / 2

            assert wait_until(are_most_waiting)
            for _ in range(question_count):
                answered = far.answer()
                assert not isinstance(answered, Refusal)
                assert decode_values(answered[1]) == [bytes(size_bytes)]
                are_most_waiting()
            # One answer beyond what may wait, and one that is read meanwhile.
            assert size_bytes <= max(held) <= 4 * size_bytes
            assert wait_until(lambda: one.status()["reads_held_bytes"] == 0)

    @pytest.mark.proves("B2")
    def test_what_is_cancelled_is_not_read(self, job: Job) -> None:
        """B2: what its proxy wants no more; the other question is answered."""
        job.write(rows(a=b"1"))
        go = hold_reading(job.node)
        job.proxy.put(job.question(CountKeys()))
        cancelled_id = job.question_id
        job.proxy.put(job.question(CountKeys()))
        job.proxy.send(
            CancelQuestions(
                leader_epoch=job.proxy.leader_epoch, question_ids=(cancelled_id, 999)
            )
        )
        assert job.get("a") == [b"1"]  # so that it has heard of that
        go.set()
        refusal, answer = job.proxy.answer(), job.proxy.answer()
        assert isinstance(refusal, Refusal)
        assert (refusal.request_id, refusal.code) == (cancelled_id, "did-not-happen")
        assert not isinstance(answer, Refusal)
        assert answer[0].question_id == cancelled_id + 1

    @pytest.mark.proves("B2")
    def test_askers_take_turns(self, job: Job) -> None:
        """B2: one that comes after many of another one is not the last."""
        job.write(rows(a=b"1"))
        go = hold_reading(job.node)
        numbers = []
        for asker in ("greedy", "greedy", "greedy", "modest"):
            job.proxy.put(job.question(CountKeys(), asker=asker))
            numbers.append(job.question_id)
        assert job.get("a") == [b"1"]
        go.set()
        told = []
        for _ in numbers:
            answered = job.proxy.answer()
            assert not isinstance(answered, Refusal)
            told.append(answered[0].question_id)
        assert told == [numbers[0], numbers[3], numbers[1], numbers[2]]

    @pytest.mark.proves("B2")
    def test_small_lists_and_maps_do_not_wait(self, job: Job) -> None:
        """B2: they are read like points; what takes longer has its turn."""
        job.write(rows_of({f"m{number:04}": b"1" for number in range(2_000)}))
        go = hold_reading(job.node)
        _, payload = job.answer(GetEntries(), [storage_key("m0001")[:7]])
        assert len(decode_items(payload)[0] or ()) == 20
        job.proxy.put(job.question(GetEntries()), [storage_key("m")[:4]])
        assert job.get("m0001") == [b"1"]
        go.set()
        answered = job.proxy.answer()
        assert not isinstance(answered, Refusal)
        assert len(decode_items(answered[1])[0] or ()) == 4_000

    @pytest.mark.proves("B2", "C2")
    def test_an_answer_tells_how_much_was_read(self, job: Job) -> None:
        """B2, C2: that is what its asker is charged for."""
        job.write(rows_of({f"k{number:04}": b"1" for number in range(1_000)}))
        answer, _ = job.answer(ScanRows(start=b"", stop=None, limit=10), [])
        assert answer.row_count == 10
        answer, _ = job.answer(GetValues(), [storage_key("k0001"), storage_key("z")])
        assert answer.row_count == 2

    @pytest.mark.proves("S2", "S3")
    def test_key_groups_can_be_walked_over(self, job: Job) -> None:
        """In the order in which they are stored; those of others are a stale route."""
        job.write(rows(a=b"1", b=b"2"))
        names: list[bytes] = []
        start: bytes | None = b""
        while start is not None:
            walk = WalkRows(key_groups=((0, 0),), start=start, limit=1)
            answer, payload = job.answer(walk, [])
            names += decode_keys(payload)[::2]
            start = answer.next_start
        assert names == [storage_key("a")[2:], storage_key("b")[2:]]
        refused: list[tuple[tuple[tuple[int, int], ...], str]] = [
            (((0, 2),), STALE_ROUTE),
            (((5, 5),), STALE_ROUTE),
            (((1, 0),), "malformed"),
            (((0, 0), (0, 1)), "malformed"),
            (((0, 1 << 16),), "malformed"),
            (((-1, 0),), "malformed"),
        ]
        for runs, code in refused:
            walk = WalkRows(key_groups=runs, start=b"", limit=1)
            assert job.refusal(walk, []).code == code

    def test_maps_are_counted_by_keys_that_python_has_not(self, job: Job) -> None:
        """
        A year of Spark's is a key like any other: nodes make no values of keys.

        One map under a date after 9999 ended each count of the state with an error.
        """
        day, month = Field("day", AtomicType.DATE), Field("month", AtomicType.INT)
        schema = StateSchema(kind=StateKind.MAP, key=(day,), map_key=(month,))
        columns = KeyColumns((day, month))
        keys = [
            bytes(2) + columns.to_bytes((days, number))
            for days in (-1_000_000, 0, 3_000_000)
            for number in (1, 2)
        ]
        chunk = StagedRows(state_number=1, keys=keys, values=[b"\x90"] * len(keys))
        job.write(chunk, kind="map")
        _, payload = job.answer(CountKeys(schema=schema_json(schema)))
        assert decode_count(payload) == 3

    def test_a_count_of_a_schema_that_is_none_is_refused(self, job: Job) -> None:
        """What a reader sends is checked here: nodes know no schemas."""
        job.write(rows(a=b"1"))
        for schema in ("", "{}", "[]"):
            refusal = job.refusal(CountKeys(schema=schema), [])
            assert refusal.code in {"invalid", "malformed"}


class TestWaiting:
    """Q2: a question may wait for a batch, within its deadline."""

    def test_it_is_answered_when_the_batch_is_applied(self, job: Job) -> None:
        """Before, there is no answer; then the answer is of that batch."""
        job.write(rows(a=b"1"))
        job.proxy.put(job.question(min_batch_id=2), [storage_key("a")])
        assert job.get("a") == [b"1"]  # a later question is not held up
        entry = job.decide(rows(a=b"2"))
        job.proxy.send(
            ApplyEntries(
                leader_epoch=job.proxy.leader_epoch, job_id="job", entries=(entry,)
            )
        )
        answered = job.proxy.answer()
        assert not isinstance(answered, Refusal)
        assert decode_values(answered[1]) == [b"2"]
        assert answered[0].reading.batch_id == 2

    def test_at_its_deadline_it_is_refused(self, job: Job) -> None:
        """No answer that is late, and none that is wrong."""
        job.write(rows(a=b"1"))
        began = time.monotonic()
        refusal = job.refusal(min_batch_id=2, deadline_ms=200)
        assert time.monotonic() - began >= 0.19
        error = error_of(refusal)
        assert isinstance(error, DeadlineExceededError)
        assert "batch 2 is not applied yet" in str(error)
        # Metrics tell of it, though it is refused elsewhere than others (F1).
        figures = job.node.observe().figures
        assert figures["questions_refused_total"] == 1
        assert figures["errors_deadline_exceeded_total"] == 1

    def test_a_scan_may_wait_too(self, job: Job) -> None:
        """What is read beside the loop waits like any other."""
        job.write(rows(a=b"1"))
        job.proxy.put(job.question(CountKeys(), min_batch_id=2))
        entry = job.decide(rows(b=b"2"))
        job.proxy.send(
            ApplyEntries(
                leader_epoch=job.proxy.leader_epoch, job_id="job", entries=(entry,)
            )
        )
        answered = job.proxy.answer()
        assert not isinstance(answered, Refusal)
        assert decode_count(answered[1]) == 2

    def test_a_batch_that_comes_while_a_scan_goes_on_is_not_missed(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was read is too old, and the batch that would wake it is applied."""
        job.write(rows(a=b"1"))
        has_read, may_end = threading.Event(), threading.Event()

        def read_slowly(*arguments: Any) -> Any:
            found = yield from read(*arguments)
            has_read.set()
            assert may_end.wait(TIMEOUT_SECONDS)
            return found

        monkeypatch.setattr("queryablestate.node.answering.read", read_slowly)
        job.proxy.put(job.question(CountKeys(), min_batch_id=2, deadline_ms=60_000))
        assert has_read.wait(TIMEOUT_SECONDS)
        job.write(rows(b=b"2"))
        may_end.set()
        answered = job.proxy.answer()
        assert not isinstance(answered, Refusal), error_of(answered)
        assert decode_count(answered[1]) == 2

    def test_an_unknown_state_may_come_with_what_is_being_applied(
        self, job: Job
    ) -> None:
        """Its first batch has been decided, and the node is about to apply it."""
        entry = job.decide(rows(a=b"1"))
        job.proxy.send(
            ApplyEntries(
                leader_epoch=job.proxy.leader_epoch, job_id="job", entries=(entry,)
            )
        )
        assert job.get("a") == [b"1"]


class TestLease:
    """Q4, S2: who may be answered, and until when."""

    def test_without_acknowledgements_nothing_is_answered(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """After the session timeout the node is silent; then it connects anew."""
        with (
            NodeProxy(ha, session_timeout_ms=500) as proxy,
            StateNode(ha, config(tmp_path)) as one,
        ):
            job = Job(one, proxy)
            job.serve()
            job.write(rows(a=b"1"))
            assert job.get("a") == [b"1"]
            proxy.acknowledges = False
            job_question = job.question()
            asked, _ = proxy.receive(RegisterNode)
            assert known(asked) == [("job", 1)]
            # Registered nowhere, it answers none.
            refusal = proxy.ask(job_question, [storage_key("a")])
            assert isinstance(refusal, Refusal)
            assert refusal.code == "state-unavailable"
            proxy.acknowledges = True
            proxy.take_in(job.assignment())
            proxy.receive(NodeHeartbeat)
            assert job.get("a") == [b"1"]

    @pytest.mark.proves("S2")
    def test_a_question_of_an_older_leader_is_refused(self, job: Job) -> None:
        """S2: a proxy that leads no more is told so."""
        job.write(rows(a=b"1"))
        epoch = job.proxy.leader_epoch - 1
        assert job.refusal(leader_epoch=epoch).code == NOT_LEADER

    @pytest.mark.proves("S2")
    def test_commands_of_an_older_leader_do_nothing(self, job: Job) -> None:
        """S2: its entries are not applied, its resets not followed; both are logged."""
        job.write(rows(a=b"1"))
        epoch = job.proxy.leader_epoch - 1
        entry = job.decide(rows(a=b"2"))
        with capture_logs() as logs:
            job.proxy.send(
                ApplyEntries(leader_epoch=epoch, job_id="job", entries=(entry,))
            )
            job.proxy.send(
                ResetJob(
                    leader_epoch=epoch, job_id="job", sequence=9, state_numbers=(1,)
                )
            )
            assert job.get("a") == [b"1"]
        assert [log["event"] for log in logs] == ["command.stale"] * 2

    @pytest.mark.proves("S2")
    def test_a_new_leader_is_gone_to(
        self, ha: HAServices, node: StateNode, tmp_path: Path
    ) -> None:
        """S2: the node leaves the old proxy, and tells the new one how far it is."""
        with NodeProxy(ha) as first:
            job = Job(node, first)
            job.serve()
            job.write(rows(a=b"1"))
        with NodeProxy(ha) as second:
            assert second.leader_epoch > first.leader_epoch
            job.proxy = second
            asked = second.register(job.assignment())
            assert known(asked) == [("job", 1)]
            assert job.get("a") == [b"1"]
            job.write(rows(a=b"2"))
            assert job.get("a") == [b"2"]

    def test_a_broken_connection_is_registered_over_again(
        self, ha: HAServices, node: StateNode
    ) -> None:
        """The same leader after its connections broke: the node asks anew."""
        with Detour() as detour, NodeProxy(ha, published=detour.lead) as proxy:
            job = Job(node, proxy)
            job.serve()
            job.write(rows(a=b"1"))
            detour.link.reset()
            asked = proxy.register(job.assignment())
            assert known(asked) == [("job", 1)]
            assert job.get("a") == [b"1"]

    @pytest.mark.proves("Q4")
    def test_a_silent_connection_is_left(self, ha: HAServices, node: StateNode) -> None:
        """Q4: cut off, the node stops answering within the timeout, and comes back."""
        with (
            Detour() as detour,
            NodeProxy(ha, published=detour.lead, session_timeout_ms=500) as proxy,
        ):
            job = Job(node, proxy)
            job.serve()
            job.write(rows(a=b"1"))
            detour.link.cut()
            assert wait_until(lambda: not node.is_registered)
            assert node.status()["lease_remaining_ms"] == 0
            detour.link.heal(deliver=False)
            asked = proxy.register(job.assignment())
            assert known(asked) == [("job", 1)]
            assert job.get("a") == [b"1"]

    def test_a_proxy_that_has_forgotten_is_told(self, job: Job) -> None:
        """``unknown``: the node registers again over the same connection."""
        job.write(rows(a=b"1"))
        job.proxy.send(NodeRefused(reason="unknown", detail="register first"))
        asked = job.proxy.register(job.assignment())
        assert known(asked) == [("job", 1)]
        assert job.get("a") == [b"1"]


class TestChain:
    """W3, W7: what the node applies, what it has missed, what it has lost."""

    @pytest.mark.proves("W7")
    def test_a_restarted_node_goes_on_where_it_was(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """W7: it says how far it is, applies what it missed, and then answers."""
        with StateNode(ha, config(tmp_path)) as one:
            job = Job(one, proxy)
            job.serve()
            job.write(rows(a=b"1"))
            missed = job.decide(rows(a=b"2"))
        with StateNode(ha, config(tmp_path)) as one:
            job.node = one
            asked, _ = proxy.receive(RegisterNode)
            assert known(asked) == [("job", 1)]
            proxy.take_in(job.assignment())
            proxy.send(
                ApplyEntries(
                    leader_epoch=proxy.leader_epoch, job_id="job", entries=(missed,)
                )
            )
            # Asked at once, and answered from what it had missed, not from before.
            proxy.put(job.question(), [storage_key("a")])
            answered = proxy.answer()
            assert not isinstance(answered, Refusal)
            assert decode_values(answered[1]) == [b"2"]

    def test_a_gap_is_asked_for(self, job: Job) -> None:
        """What is missing between is never jumped: the node asks, and is sent it."""
        job.write(rows(a=b"1"))
        second = job.decide(rows(a=b"2"))
        third = job.decide(rows(a=b"3"))
        job.proxy.send(
            ApplyEntries(
                leader_epoch=job.proxy.leader_epoch, job_id="job", entries=(third,)
            )
        )
        asked = job.proxy.register(job.assignment())
        assert known(asked) == [("job", 1)]
        assert job.proxy.apply(second, third).sequence == 3
        assert job.get("a") == [b"3"]

    def test_entries_that_overlap_are_applied_once(self, job: Job) -> None:
        """A repeated entry changes nothing, and is answered."""
        first = job.decide(rows(a=b"1"))
        assert job.proxy.apply(first).sequence == 1
        assert job.proxy.apply(first).sequence == 1
        second = job.decide(rows(a=b"2"))
        assert job.proxy.apply(first, second).sequence == 2
        assert job.get("a") == [b"2"]

    @pytest.mark.proves("W4")
    def test_rows_that_are_missing_stop_the_job_and_are_told(self, job: Job) -> None:
        """W4: the node says why, keeps what it has, and goes on when it can."""
        job.write(rows(a=b"1"))
        absent = StageRecord(stage_id=b"x" * 16, chunk_counts={NODE: 1}, row_count=1)
        applied = job.proxy.apply(batch(2, stages=(absent,)))
        assert applied.sequence == 1
        assert applied.failure is not None
        assert "missing" in applied.failure
        assert job.get("a") == [b"1"]
        assert job.node.status()["jobs_failed"] == 1
        with Writer(job.node.address, stage_id=absent.stage_id, batch_id=2) as writer:
            writer.bring(rows(a=b"2"))
        assert job.proxy.apply(batch(2, stages=(absent,))).failure is None
        assert job.get("a") == [b"2"]

    @pytest.mark.proves("W7")
    def test_lost_rows_are_unavailable_until_they_are_replaced(self, job: Job) -> None:
        """W7: never as if the keys did not exist."""
        job.proxy.send(
            ResetJob(
                leader_epoch=job.proxy.leader_epoch,
                job_id="job",
                sequence=5,
                state_numbers=(1,),
            )
        )
        applied, _ = job.proxy.receive(EntriesApplied)
        assert (applied.sequence, applied.lost_state_numbers) == (5, (1,))
        for operation in (GetValues(), GetEntries(), CountKeys()):
            keys = [] if isinstance(operation, CountKeys) else [storage_key("a")]
            error = error_of(job.refusal(operation, keys))
            assert isinstance(error, StateUnavailableError)
            assert error.job_id == "job"
            assert error.key_groups == ((0, 1) if not keys else (0,))
        job.sequence = 5
        job.write(rows(a=b"1"))
        assert isinstance(error_of(job.refusal()), StateUnavailableError)
        job.write(rows(b=b"2"), is_replaced=True)
        assert job.get("a", "b") == [None, b"2"]

    @pytest.mark.proves("W7")
    def test_what_was_lost_is_told_after_a_restart(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """W7: the control plane hears it from the node that is asked."""
        with StateNode(ha, config(tmp_path)) as one:
            Job(one, proxy).serve()
            proxy.send(
                ResetJob(
                    leader_epoch=proxy.leader_epoch,
                    job_id="job",
                    sequence=5,
                    state_numbers=(1, 3),
                )
            )
            proxy.receive(EntriesApplied)
        with StateNode(ha, config(tmp_path)):
            asked, _ = proxy.receive(RegisterNode)
            position = JobPosition(job_id="job", sequence=5, lost_state_numbers=(1, 3))
            assert asked.positions == (position,)


class TestControlPlane:
    """A name service that has lost its store begins a control plane of its own."""

    def test_rows_of_another_one_are_set_aside(
        self, ha: HAServices, node: StateNode
    ) -> None:
        """They are not used, not removed, and used again if it comes back."""
        with NodeProxy(ha, control_id="first") as proxy:
            job = Job(node, proxy)
            job.serve()
            job.write(rows(a=b"1"))
        with NodeProxy(ha, control_id="second") as proxy:
            asked, _ = proxy.receive(RegisterNode)
            store_id = asked.store_id
            proxy.take_in(job.assignment())
            asked = proxy.register(job.assignment())
            assert asked.store_id != store_id
            assert asked.node_id == NODE
            assert asked.positions == ()
            job.proxy = proxy
            assert job.refusal().code == STALE_ROUTE
            job.sequence = 0
            job.write(rows(a=b"other"))
            assert job.get("a") == [b"other"]
        with NodeProxy(ha, control_id="first") as proxy:
            proxy.receive(RegisterNode)
            proxy.take_in(job.assignment())
            asked = proxy.register(job.assignment())
            assert asked.store_id == store_id
            assert known(asked) == [("job", 1)]
            job.proxy = proxy
            assert job.get("a") == [b"1"]


class TestStrangers:
    """N3, N4: who may connect, and what none can do."""

    def test_frames_of_a_proxy_that_are_none_do_no_harm(self, job: Job) -> None:
        """They are counted and logged, and the node goes on."""
        job.write(rows(a=b"1"))
        with capture_logs() as logs:
            for frames in (
                [b""],
                [b"LDQ\2"],
                [b"LDQ\1" + b"\xff" * 9],
                [encode(NodeHeartbeat(registration_id="x", number=1))],
                [
                    encode(
                        AssignJob(
                            leader_epoch=job.proxy.leader_epoch,
                            job=assignment(key_groups=(70_000,)),
                        )
                    )
                ],
                [b"x"] * 9,
            ):
                job.proxy.send_frames(*frames)
            assert job.get("a") == [b"1"]
        assert {log["event"] for log in logs} == {"proxy.frame_dropped"}
        assert job.node.status()["failures_total"] == 0

    def test_an_acknowledgement_of_nothing_is_nothing(self, job: Job) -> None:
        """Neither a heartbeat that was never sent, nor one of another epoch."""
        job.write(rows(a=b"1"))
        for epoch, number in ((job.proxy.leader_epoch, 10**9), (99, 1)):
            acknowledged = HeartbeatAcknowledged(leader_epoch=epoch, number=number)
            job.proxy.send(acknowledged)
        assert job.get("a") == [b"1"]

    def test_writers_must_be_on_the_list(self, ha: HAServices, tmp_path: Path) -> None:
        """N4: with CURVE, who is not on the allow-list brings nothing."""
        keys, writer_keys = CurveKeyPair.generate(), CurveKeyPair.generate()
        files = write_key_pair(keys, tmp_path / "node")
        allow_list = tmp_path / "writers.toml"
        allow_list.write_text(
            "[clients.writer]\n"
            f"public_key = '{writer_keys.public_key}'\n"
            "roles = ['observe']\n"
        )
        settings = config(
            tmp_path,
            curve_public_key_file=files.public_file,
            curve_secret_key_file=files.secret_file,
            allow_list_file=allow_list,
        )
        with (
            NodeProxy(ha, key_pair=CurveKeyPair.generate()) as proxy,
            StateNode(ha, settings) as one,
        ):
            proxy.register()
            address = parse_address(one.address)
            assert address.server_public_key == keys.public_key
            for pair, is_taken in (
                (writer_keys, True),
                (CurveKeyPair.generate(), False),
                (None, False),
            ):
                with Writer(one.address) as writer:
                    socket = writer._context.socket(zmq.DEALER)
                    if pair is not None:
                        socket.curve_serverkey = keys.public_key.encode()
                        socket.curve_publickey = pair.public_key.encode()
                        socket.curve_secretkey = pair.secret_key.encode()
                    socket.connect(str(address.endpoint))
                    writer.socket.close(0)
                    writer.socket = socket
                    writer.put(rows(a=b"1"))
                    if is_taken:
                        assert writer.reply() == ChunkStaged(request_id=1)
                    else:
                        with pytest.raises(TimeoutError):
                            writer.reply(0.3)

    def test_connections_are_bounded(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """N3: beyond the limit the newest goes, and those there are not disturbed."""
        settings = config(tmp_path, connections_max=1)
        with StateNode(ha, settings) as one, Writer(one.address) as writer:
            proxy.register()
            assert writer.bring(rows(a=b"1")) == ChunkStaged(request_id=1)
            with Writer(one.address) as second:
                second.put(rows(a=b"1"))
                with pytest.raises(TimeoutError):
                    second.reply(0.3)
            assert writer.bring(rows(a=b"1")) == ChunkStaged(request_id=2)
            assert int(one.status()["connections_refused_total"]) >= 1

    @pytest.mark.proves("N3")
    def test_a_silent_flood_keeps_nobody_out(
        self, ha: HAServices, proxy: NodeProxy, tmp_path: Path
    ) -> None:
        """N3: connections over which nothing comes hold no place for good."""
        settings = config(tmp_path, connections_max=4)
        with (
            StateNode(ha, settings) as one,
            ExitStack() as strangers,
            capture_logs(),
        ):
            proxy.register()
            for _ in range(4):
                strangers.enter_context(Writer(one.address))
            assert wait_until(lambda: one.status()["connections"] == 4)
            with Writer(one.address) as writer:
                assert writer.bring(rows(a=b"1")) == ChunkStaged(request_id=1)
