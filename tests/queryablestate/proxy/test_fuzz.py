"""
At least 20,000 bad messages against one proxy and one node; at night 100,000.

A good client reads all the while, and strangers send everything that is wrong: bytes
that are no message, messages of another version, of other types and sizes, damaged and
truncated ones, recorded ones, requests under guessed and under stolen secrets, forged
answers of nodes, and greetings without end.  Afterwards the leader store and the state
are as they were, everybody serves, and the next batch can be written.

What is sent is drawn from a seed, so a failure can be repeated.
"""

from __future__ import annotations

import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, final

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from nameservice import QUERY_PROXY, RemoteProtocolError
from queryablestate.client.client import QueryableStateClient
from queryablestate.node.node import StateNode
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from queryablestate.proxy.config import ProxyConfig
from queryablestate.wire.clients import (
    BindRun,
    CommitBatch,
    DescribeState,
    DrawTicket,
    DropState,
    Hello,
    JobsListed,
    ListJobs,
    ListNodes,
    ListStates,
    StateDeclaration,
    Welcome,
    WriterRun,
)
from queryablestate.wire.codec import decode_to_client, encode, encode_payload
from queryablestate.wire.node_messages import (
    EntriesApplied,
    NodeHeartbeat,
    NodeRegistered,
    RegisterNode,
    StagesVerified,
)
from queryablestate.wire.questions import (
    Answer,
    Ask,
    CountKeys,
    GetItems,
    GetValues,
    Operation,
    Question,
    Reading,
    Refusal,
    ScanRows,
    Told,
)
from queryablestate.wire.records import StageRecord
from queryablestate.wire.staging_messages import ChunkStaged, StageChunk, StagedRows
from tests.queryablestate.control_plane import VALUE
from tests.queryablestate.proxy_peers import ScriptedPeer
from tests.queryablestate.proxy_stage import JOB, STATE, ProxyStage
from tests.recording import wait_until
from tests.tiers import nightly_after
from zmqtransport import CurveKeyPair, ZMQContext, write_key_pair


pytestmark = pytest.mark.shells

SEED: Final = 20_261_121
PROXY_COUNTS: Final = (20_000, 100_000)
NODE_COUNT: Final = 10_000
BURST_COUNT: Final = 2_000
LAST_REQUEST_ID: Final = 1_234_567
MEMORY_BYTES_MAX: Final = 300_000_000

Frames: TypeAlias = tuple[bytes, ...]


OPERATIONS: Final[tuple[Operation, ...]] = (
    GetValues(),
    GetItems(start=-(2**60)),
    ScanRows(start=b"", stop=None, limit=10_000),
    CountKeys(schema="{"),
)


def entry(name: str, **rights: Any) -> CallerEntry:
    """Return a caller whose token is its name."""
    return CallerEntry(name=name, token_sha256=token_sha256(name), **rights)


ACCESS: Final = AccessList(
    callers=[
        entry("operator", admin=True),
        entry("reader", read=["flights/*"]),
        entry("evil", read=["x/*"], write=["x/y"]),
    ]
)


@final
class GoodReader:
    """Reads one key over and over, in a thread of its own; a context manager."""

    def __init__(self, stage: ProxyStage, token: str | None) -> None:
        self._client = QueryableStateClient(stage.ha, token, deadline_seconds=20.0)
        self._is_over = threading.Event()
        self.delays: list[float] = []
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        self._client.close()

    def _run(self) -> None:
        while not self._is_over.wait(0.002):
            began = time.monotonic()
            try:
                found = self._client.lookup(JOB, STATE, "a")
            except Exception as error:  # noqa: BLE001 (told to the test, which fails)
                self.problems.append(repr(error))
                return
            self.delays.append(time.monotonic() - began)
            if (found.value, found.batch_id) != ({"delay": 1}, 0):
                self.problems.append(repr(found))


@final
class Fuzzer:
    """
    Draws bad messages.

    Args:
        seed: The same seed draws the same messages.
        secrets: Of the good callers' sessions.
        own: The secret of a session that may do nothing here.
        registration_id: Of the good node.
    """

    def __init__(
        self, seed: int, *, secrets: list[bytes], own: bytes, registration_id: str
    ) -> None:
        self.random = random.Random(seed)
        self._secrets = secrets
        self._own = own
        self._registration_id = registration_id

    def secret(self) -> bytes:
        """Return a guess, one that is almost right, or that of a stranger."""
        draw = self.random.random()
        if draw < 0.3:
            return self.random.randbytes(self.random.choice([0, 1, 16, 16, 17, 500]))
        if draw < 0.6:
            secret = bytearray(self.random.choice(self._secrets))
            secret[self.random.randrange(16)] ^= 1 << self.random.randrange(8)
            return bytes(secret)
        return self._own

    def number(self) -> int:
        """Return a number that is often a bad one."""
        return self.random.choice([0, 1, 2, 3, -1, 2**31, 2**63 - 1, 2**64 - 1])

    def text(self) -> str:
        """Return a name, or what is none."""
        return self.random.choice(
            [JOB, STATE, "x", "y", "a/b", "*", "\0", "\u202e", "x" * 255, "node-0"]
        )

    def request(self, secret: bytes | None = None) -> msgspec.Struct:
        """Return a request that would do harm if it were believed."""
        session = self.secret() if secret is None else secret
        declaration = StateDeclaration(state_name=STATE, schema=VALUE)
        number = self.number()
        requests: list[Callable[[], msgspec.Struct]] = [
            lambda: ListJobs(request_id=number, session=session),
            lambda: ListNodes(request_id=number, session=session),
            lambda: ListStates(request_id=number, session=session, job_id=self.text()),
            lambda: DescribeState(
                request_id=number,
                session=session,
                job_id=self.text(),
                state_name=self.text(),
            ),
            lambda: DropState(
                request_id=number, session=session, job_id=JOB, state_name=STATE
            ),
            lambda: DrawTicket(
                request_id=number,
                session=session,
                job_id=JOB,
                max_parallelism=self.random.choice([1, 128, 32_768]),
                states=(declaration,) * self.random.randrange(3),
            ),
            lambda: DrawTicket(
                request_id=number,
                session=session,
                job_id=JOB,
                max_parallelism=self.random.choice([1, 128, 32_768]),
                states=(
                    self.random.choice([declaration, declaration.as_registered()]),
                ),
                run=WriterRun(
                    query_id="evil",
                    run_id=self.text(),
                    on_new_query="replace",
                    born_epoch=self.random.choice([1, 2, 2**60]),
                ),
            ),
            lambda: BindRun(
                request_id=number,
                session=session,
                job_id=JOB,
                ticket=self.number(),
                query_id="evil",
                run_id=self.text(),
                states=(declaration,),
                on_new_query="replace",
            ),
            lambda: CommitBatch(
                request_id=number,
                session=session,
                job_id=JOB,
                query_id="evil",
                run_id="evil",
                writer_epoch=self.number(),
                batch_id=self.random.choice([None, 0, 1, -1, 2**60]),
                assignment_version=1,
                state_numbers=(1,) * self.random.randrange(3),
                is_complete=True,
                on_new_query="replace",
                stages=(
                    StageRecord(
                        stage_id=bytes(16), chunk_counts={"node-0": 1}, row_count=1
                    ),
                ),
                timeout_ms=self.random.choice([1, 2**60]),
            ),
            lambda: Ask(
                request_id=number,
                session=session,
                state_number=self.random.choice([1, 1, 0, -1, 2**40]),
                assignment_version=self.random.choice([1, 1, 0, 2]),
                node_index=self.random.choice([0, 0, -1, 1, 2**40]),
                operation=self.random.choice(OPERATIONS),
                key_count=self.random.choice([0, 1, 1, 2**40]),
                deadline_ms=self.random.choice([None, 1, 2**60]),
                min_batch_id=self.random.choice([None, 2**60]),
            ),
        ]
        return self.random.choice(requests)()

    def of_a_node(self) -> msgspec.Struct:
        """Return what only a node may say."""
        registration_id = self.random.choice([self._registration_id, "evil", ""])
        number = self.number() % 2**63
        return self.random.choice(
            [
                RegisterNode(
                    token=self.random.choice([None, "", "evil", "reader", "x" * 9_999]),
                    node_id=self.random.choice(["node-0", "", "x" * 500, "\0"]),
                    store_id="evil",
                    registration_id=registration_id,
                    address=self.random.choice(["tcp://127.0.0.1:1", "evil", ""]),
                    positions=(),
                ),
                NodeHeartbeat(registration_id=registration_id, number=number),
                EntriesApplied(
                    registration_id=registration_id,
                    job_id=JOB,
                    sequence=number,
                    failure="evil",
                ),
                StagesVerified(
                    registration_id=registration_id,
                    verify_id=number,
                    missing=(bytes(16),),
                ),
                Answer(
                    question_id=self.random.randrange(1_000),
                    reading=Reading(generation=1, batch_id=99, age_ms=0),
                    has_missing=False,
                ),
                Refusal(
                    request_id=self.random.randrange(1_000),
                    code=self.random.choice(["not-leader", "storage", "evil"]),
                    data=("evil",),
                ),
            ]
        )

    def of_a_server(self) -> msgspec.Struct:
        """Return what is never said to a proxy."""
        return self.random.choice(
            [
                Welcome(
                    request_id=1,
                    session=self._own,
                    leader_epoch=2**60,
                    keys_per_request_max=1,
                    frame_size_bytes_max=1,
                ),
                Told(request_id=1, reading=Reading(generation=1, batch_id=1, age_ms=0)),
                Question(
                    leader_epoch=1,
                    question_id=1,
                    state_number=1,
                    assignment_version=1,
                    operation=GetValues(),
                    deadline_ms=1,
                ),
                NodeRegistered(
                    leader_epoch=2**60, control_id="evil", session_timeout_ms=1, jobs=()
                ),
            ]
        )

    def chunk(self) -> msgspec.Struct:
        """Return a chunk that was not asked for."""
        return StageChunk(
            request_id=self.number() % 2**63,
            job_id=self.text(),
            query_id=self.text(),
            writer_epoch=self.number() % 2**63,
            batch_id=self.random.choice([0, 1, -1, 2**60]),
            stage_id=self.random.randbytes(self.random.choice([0, 16, 16, 500])),
            chunk_index=self.number() % 2**63,
            assignment_version=1,
        )

    def payload(self) -> bytes:
        """Return a second frame of anything."""
        return self.random.choice(
            [
                b"",
                b"\x91\xc4\x01a",
                b"\xdd\xff\xff\xff\xff",
                self.random.randbytes(self.random.randrange(100)),
                encode_payload([b"key"] * 3),
                encode_payload(StagedRows(state_number=1, keys=[b"a"], values=[b"b"])),
                encode_payload(StagedRows(state_number=1, keys=[], values=[b"b"])),
            ]
        )

    def junk(self) -> object:
        """Return a value of any type."""
        return self.random.choice(
            [
                *(None, True, -1, 2**64 - 1, 1.5, float("nan"), "", "x" * 600, b""),
                *([], [[[]]], {}, {"type": "hello"}, msgspec.msgpack.Ext(5, b"ext")),
            ]
        )

    def wrong_type(self, message: msgspec.Struct) -> bytes:
        """Return *message* with one field that is something else, or missing."""
        fields: dict[str, object] = msgspec.msgpack.decode(encode(message)[4:])
        name = self.random.choice([*fields, "unknown"])
        if name != "unknown" and self.random.random() < 0.3:
            del fields[name]
        else:
            fields[name] = self.junk()
        return b"LDQ\x01" + msgspec.msgpack.encode(fields)

    def damaged(self, message: msgspec.Struct) -> bytes:
        """Return *message* with some bits turned, or without its end."""
        envelope = bytearray(encode(message))
        if self.random.random() < 0.4:
            return bytes(envelope[: self.random.randrange(len(envelope))])
        for _ in range(self.random.randrange(1, 5)):
            envelope[self.random.randrange(len(envelope))] ^= 1 << (
                self.random.randrange(8)
            )
        return bytes(envelope)

    def nested(self) -> bytes:
        """Return lists in lists, and lengths that nothing follows."""
        return b"LDQ\x01" + self.random.choice(
            [
                b"\x91" * self.random.randrange(1, 5_000),
                b"\x81" * self.random.randrange(1, 5_000),
                *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"),
                *(b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
            ]
        )

    def frames(self, message: Callable[[], msgspec.Struct]) -> Frames:
        """Return one bad message; what it is made of is drawn by *message*."""
        draw = self.random
        match draw.randrange(10):
            case 0:
                return tuple(
                    draw.randbytes(draw.randrange(60))
                    for _ in range(draw.randrange(1, 6))
                )
            case 1:
                return (b"LDQ\x01" + draw.randbytes(draw.randrange(200)),)
            case 2:
                version = draw.choice([0, 2, 3, 255])
                return (b"LDQ" + bytes([version]) + encode(message())[4:],)
            case 3:
                return (self.wrong_type(message()), self.payload())
            case 4:
                return (self.damaged(message()), self.payload())
            case 5:
                return (self.nested(),)
            case 6:
                more = [b"more"] * draw.randrange(2, 20)
                return (encode(message()), *more)
            case 7 if draw.random() < 0.02:
                return (encode(message()), bytes(70_000))
            case _:
                return (encode(message()), self.payload())

    def to_proxy(self) -> Frames:
        """Return a bad message for a proxy."""

        def message() -> msgspec.Struct:
            match self.random.randrange(8):
                case 0 | 1:
                    return self.of_a_node()
                case 2:
                    return self.of_a_server()
                case 3:
                    token = self.random.choice(
                        [None, "", "evil", "READER", "x" * 5_000]
                    )
                    return Hello(request_id=self.number(), token=token)
                case _:
                    return self.request()

        return self.frames(message)

    def to_node(self) -> Frames:
        """Return a bad message for a node's port for writers."""

        def message() -> msgspec.Struct:
            match self.random.randrange(6):
                case 0:
                    return self.of_a_node()
                case 1:
                    return self.of_a_server()
                case 2:
                    return self.request()
                case 3:
                    return ChunkStaged(request_id=1)
                case _:
                    return self.chunk()

        return self.frames(message)


def stored(stage: ProxyStage) -> dict[str, bytes]:
    """Return everything that the control plane has stored."""
    store = stage.ha.get_leader_store(QUERY_PROXY)
    found = {path: store.get(path) for path in store.list()}
    return {path: value.value for path, value in found.items() if value is not None}


def shower(
    address: str,
    count: int,
    draw: Callable[[], Frames],
    keys: CurveKeyPair | None = None,
) -> None:
    """Send that many messages, over a new connection for each burst."""
    sent_count = 0
    while sent_count < count:
        # Descriptors are used again, and what was not read is thrown away.
        with ScriptedPeer(address) as stranger:
            for _ in range(BURST_COUNT):
                stranger.send_frames(*draw())
                while stranger.socket.poll(0):
                    stranger.socket.recv_multipart()
            # Messages of one connection are seen in their order.
            stranger.send(Hello(request_id=LAST_REQUEST_ID))
            while not is_last(stranger.receive_frames()[0]):
                pass
        sent_count += BURST_COUNT


def is_last(envelope: bytes) -> bool:
    """Return whether *envelope* answers the last question of a burst."""
    try:
        return decode_to_client(envelope).request_id == LAST_REQUEST_ID
    except RemoteProtocolError:
        return False  # it is what nodes are told


def memory_bytes() -> int:
    """Return how much memory this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def check(stage: ProxyStage, before: dict[str, bytes]) -> None:
    """Check that nothing has changed, and that everybody goes on."""
    assert stored(stage) == before
    figures = stage.proxy.status()
    assert figures["failures_total"] == 0
    assert figures["leads"] == 1
    assert (figures["jobs"], figures["states"]) == (1, 1)
    assert (figures["nodes"], figures["nodes_present"]) == (1, 1)
    assert stage.proxy.failure is None
    (node,) = stage.nodes
    assert node.failure is None
    assert node.is_registered


def fuzzer_of(stage: ProxyStage, peers: list[ScriptedPeer], evil: bytes) -> Fuzzer:
    """Return a fuzzer that knows as much as a stranger could."""
    (node,) = stage.nodes
    running = node._running
    assert running is not None
    return Fuzzer(
        SEED,
        secrets=[peer.session for peer in peers],
        own=evil,
        registration_id=running._core._registration._identity.registration_id,
    )


class TestFuzz:
    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("proxy_count", nightly_after(1, PROXY_COUNTS))
    def test_bad_messages_have_no_effect(
        self, tmp_path: Path, proxy_count: int
    ) -> None:
        """Many thousands change nothing and end nothing (N3, C1)."""
        config = ProxyConfig(
            access=ACCESS, frame_size_bytes_max=65_536, session_count_max=100
        )
        with (
            ProxyStage(
                tmp_path, config, token="operator", chunk_size_bytes_max=65_536
            ) as stage,
            ScriptedPeer(stage.proxy.address) as operator,
            ScriptedPeer(stage.proxy.address) as evil,
            capture_logs() as logs,
        ):
            publisher = stage.publisher()
            publisher.write({STATE: [("a", 1), ("b", 2)]})
            operator.hello("operator")
            evil.hello("evil")
            before, memory_before = stored(stage), memory_bytes()
            (node,) = stage.nodes
            with GoodReader(stage, "reader") as reader:
                fuzzer = fuzzer_of(stage, [operator], evil.session)
                began = time.monotonic()
                shower(stage.proxy.address, proxy_count, fuzzer.to_proxy)
                shower_node(node, fuzzer)
                duration_seconds = time.monotonic() - began
            check(stage, before)
            figures, node_figures = stage.proxy.status(), node.status()
            assert reader.problems == []
            assert isinstance(operator.ask(ListJobs), JobsListed)
            assert publisher.write({STATE: [("a", 3)]}) == 1
            memory = memory_bytes() - memory_before
        dropped = sum(
            int(value) for name, value in figures.items() if name.startswith("frames_")
        )
        assert dropped > proxy_count // 2
        for name in ("malformed", "oversized", "wrong_version", "wrong_magic"):
            assert figures[f"frames_{name}_total"]
            assert node_figures[f"frames_{name}_total"]
        assert figures["sessions_unknown_total"]
        assert figures["hellos_refused_total"]
        assert figures["nodes_refused_total"]
        assert int(figures["sessions"]) <= 100
        warnings = [line for line in logs if line["log_level"] == "warning"]
        # Each of two budgets: ten lines in ten seconds, and some that count the rest.
        assert len(warnings) <= 2 * 20 * (duration_seconds / 10 + 2)
        assert [line for line in logs if line["log_level"] == "error"] == []
        assert memory < MEMORY_BYTES_MAX
        delays = sorted(reader.delays)
        print(
            f"{proxy_count + NODE_COUNT:,} messages in {duration_seconds:.1f} s; "
            f"{len(delays):,} reads meanwhile, median "
            f"{delays[len(delays) // 2] * 1e3:.1f} ms, slowest {delays[-1] * 1e3:.0f} "
            f"ms; {memory / 1e6:.0f} MB more"
        )

    def test_stolen_secrets_have_no_effect(self, tmp_path: Path) -> None:
        """With CURVE, 5,000 requests under the true secrets of others (C1)."""
        proxy_keys = write_key_pair(CurveKeyPair.generate(), tmp_path / "proxy")
        config = ProxyConfig(
            access=ACCESS,
            curve_public_key_file=proxy_keys.public_file,
            curve_secret_key_file=proxy_keys.secret_file,
        )
        with (
            ProxyStage(tmp_path, config, token="operator") as stage,
            ScriptedPeer(stage.proxy.address) as operator,
            ScriptedPeer(stage.proxy.address) as evil,
            capture_logs(),
        ):
            stage.publisher().write({STATE: [("a", 1)]})
            operator.hello("operator")
            evil.hello("evil")
            before = stored(stage)
            fuzzer = fuzzer_of(stage, [operator], evil.session)
            stolen = operator.session
            with GoodReader(stage, "reader") as reader:
                shower(
                    stage.proxy.address,
                    5_000,
                    lambda: (encode(fuzzer.request(stolen)), fuzzer.payload()),
                )
            check(stage, before)
            assert reader.problems == []
            assert int(stage.proxy.status()["sessions_unknown_total"]) >= 5_000
            assert isinstance(operator.ask(ListJobs), JobsListed)

    def test_recorded_questions_change_nothing(self, tmp_path: Path) -> None:
        """Without CURVE a secret can be overheard; what it reads, it reads."""
        with (
            ProxyStage(tmp_path, ProxyConfig(access=ACCESS), token="operator") as stage,
            ScriptedPeer(stage.proxy.address) as peer,
            capture_logs(),
        ):
            publisher = stage.publisher()
            publisher.write({STATE: [("a", 1)]})
            peer.hello("operator")
            state = peer.describe(JOB, STATE)
            recorded = encode(
                Ask(
                    request_id=1,
                    session=peer.session,
                    state_number=state.state_number,
                    assignment_version=state.assignment_version,
                    node_index=0,
                    operation=GetValues(),
                    key_count=1,
                )
            )
            before = stored(stage)
            with GoodReader(stage, "reader") as reader:
                shower(stage.proxy.address, 5_000, lambda: (recorded, b"\x91\xc4\x01a"))
            check(stage, before)
            assert reader.problems == []
            assert publisher.write({STATE: [("a", 2)]}) == 1

    def test_who_never_reads_costs_a_bounded_amount(self, tmp_path: Path) -> None:
        """N3: what cannot be sent is the end of it, and no other waits for it."""
        with (
            ProxyStage(tmp_path, ProxyConfig(access=ACCESS), token="operator") as stage,
            capture_logs(),
        ):
            stage.publisher().write({STATE: [("a", 1)]})
            before, memory_before = stored(stage), memory_bytes()
            context: ZMQContext = zmq.Context()
            deaf = context.socket(zmq.DEALER)
            deaf.setsockopt(zmq.LINGER, 0)
            deaf.setsockopt(zmq.RCVHWM, 1)
            deaf.setsockopt(zmq.RCVBUF, 4_096)
            with GoodReader(stage, "reader") as reader:
                deaf.connect(stage.proxy.address)
                for number in range(100_000):
                    if not deaf.poll(1_000, zmq.POLLOUT):
                        break  # it was ended, and does not read even that
                    deaf.send(encode(Hello(request_id=number)))
                wait_until(lambda: "messages_full_total" in stage.proxy.status())
                assert "peers_ended_total" in stage.proxy.status()
                assert memory_bytes() - memory_before < MEMORY_BYTES_MAX
                deaf.close()
                context.term()
            check(stage, before)
            assert reader.problems == []

    def test_bytes_that_are_no_zeromq_have_no_effect(self, tmp_path: Path) -> None:
        """Neither HTTP, nor ZMTP 1.0, nor noise, nor silence gets anywhere (N3)."""
        draw = random.Random(SEED)
        with (
            ProxyStage(tmp_path, ProxyConfig(access=ACCESS), token="operator") as stage,
            capture_logs(),
        ):
            stage.publisher().write({STATE: [("a", 1)]})
            before = stored(stage)
            ports = [
                int(address.rpartition(":")[2])
                for address in (stage.proxy.address, stage.nodes[0].address)
            ]
            with GoodReader(stage, "reader") as reader:
                for index in range(300):
                    noise = draw.choice(
                        [
                            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                            b"\x01\x00\x05\x00LDQ\x01",
                            b"\xff" + struct.pack(">Q", 1) + b"\x7f\x03\x00NULL",
                            draw.randbytes(draw.randrange(1, 200)),
                            b"",
                        ]
                    )
                    target = ("127.0.0.1", ports[index % 2])
                    with socket.create_connection(target, 10) as raw:
                        raw.sendall(noise)
                        if draw.random() < 0.5:
                            # An abortive end: the other side reads an error.
                            raw.setsockopt(
                                socket.SOL_SOCKET,
                                socket.SO_LINGER,
                                struct.pack("ii", 1, 0),
                            )
            check(stage, before)
            assert reader.problems == []
            wait_until(lambda: int(stage.proxy.status()["links"]) <= 3)


def shower_node(node: StateNode, fuzzer: Fuzzer) -> None:
    """Send bad messages to the port of *node* for writers."""
    sent_count = 0
    while sent_count < NODE_COUNT:
        with ScriptedPeer(node.address) as stranger:
            for _ in range(BURST_COUNT):
                stranger.send_frames(*fuzzer.to_node())
                while stranger.socket.poll(0):
                    stranger.socket.recv_multipart()
        sent_count += BURST_COUNT
    wait_until(lambda: _seen(node) >= NODE_COUNT // 2)


def _seen(node: StateNode) -> int:
    figures = node.status()
    return sum(
        int(value)
        for name, value in figures.items()
        if name.startswith(("frames_", "chunks_"))
    )
