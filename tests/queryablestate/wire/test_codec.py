"""Bytes to messages and back; whatever does not decode is the peer's fault."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, strategies
from msgspec import Struct

from nameservice import RemoteProtocolError
from queryablestate.wire import codec
from queryablestate.wire.adoption_messages import (
    AdoptedState,
    AdoptJob,
    ControlTaken,
    JobAdopted,
    TakeControl,
)
from queryablestate.wire.clients import (
    BatchCommitted,
    BoundRun,
    BoundState,
    DescribeState,
    Hello,
    JobsListed,
    ListJobs,
    ListNodes,
    ListStates,
    NodeAddress,
    NodesListed,
    NodeSummary,
    RunBound,
    StateDescribed,
    StateDescription,
    StateDropDone,
    StatesListed,
    TicketDrawn,
    ToClient,
    ToNodeFrame,
    ToProxy,
    Welcome,
)
from queryablestate.wire.job_assignment import CopySource, JobAssignment, WriterFence
from queryablestate.wire.job_plan import JobPlan
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    CollectStages,
    ConnectionJoined,
    FenceWriters,
    HeartbeatAcknowledged,
    JoinConnection,
    KeepPlan,
    KeyGroupsCopied,
    LeaveNode,
    NodeEmptied,
    NodeRefused,
    NodeRegistered,
    PlanTold,
    ResetJob,
    StagesCollected,
    TellPlan,
    VerifyStages,
)
from queryablestate.wire.operation_messages import (
    AwayNodeForgotten,
    DrainNode,
    DrainStarted,
    ForgetAwayNode,
    ForgetJob,
    JobForgotten,
    JobRescaling,
    KeyGroupMoves,
    ListRescalings,
    RescaleJob,
    RescaleStarted,
    RescalingsListed,
)
from queryablestate.wire.questions import (
    Answer,
    Ask,
    CancelQuestions,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    Operation,
    Question,
    Reading,
    Refusal,
    ScanRows,
    Told,
    WalkRows,
)
from queryablestate.wire.records import (
    AssignmentRecord,
    BatchDecided,
    BatchState,
    QueryProgress,
    SnapshotMarked,
    SnapshotRestored,
    StateDropped,
    StateProgress,
    StateRecord,
)
from queryablestate.wire.snapshot_manifest import (
    SnapshotFile,
    SnapshotManifest,
    SnapshotState,
)
from queryablestate.wire.snapshot_messages import (
    DropLoaded,
    JobRestored,
    LoadedState,
    LoadSnapshot,
    RestoreJob,
    SnapshotLoaded,
    SnapshotTaken,
    SnapshotWritten,
    TakeSnapshot,
    WriteSnapshot,
)
from queryablestate.wire.staging_messages import (
    ChunkRefused,
    ChunkStaged,
    StageChunk,
    StagedRows,
)
from tests.queryablestate.control_plane import (
    APP,
    SESSION,
    applied,
    bind,
    commit,
    draw,
    drop,
    heartbeat,
    node_register,
    stage,
    verified,
)


DRAWN_ID = "0a" * 16
READING = Reading(generation=1, batch_id=None, age_ms=5)
JOB = JobAssignment(
    job_id=APP,
    assignment_version=1,
    max_parallelism=4,
    key_groups=(0, 3),
    fences=(WriterFence(job_id="flights", query_id="q", writer_epoch=2),),
)
DESCRIPTION = StateDescription(
    job_id=APP,
    state_name="log",
    state_number=1,
    schema="{}",
    max_parallelism=2,
    generation=1,
    batch_id=None,
    query_id="q",
    age_ms=None,
    assignment_version=1,
    node_ids=("a",),
    owners=(0, 0),
)
PLAN = JobPlan(
    job_id=APP,
    job_number=1,
    max_parallelism=2,
    sequence=3,
    ticket_limit=1_001,
    runs=(),
    fence=0,
    assignment=AssignmentRecord(
        version=1,
        node_ids=("a",),
        store_ids=("s",),
        since_sequences=(0,),
        owners=((0,), (0,)),
    ),
    states=(),
)
ENTRIES = (
    BatchDecided(
        sequence=1,
        query_id="q",
        writer_epoch=2,
        batch_id=3,
        assignment_version=4,
        decided_at_us=5,
        states=(
            BatchState(
                state_number=1,
                kind="list",
                has_ttl=True,
                generation=1,
                is_replaced=False,
            ),
        ),
        stages=(stage(1, a=2),),
    ),
    StateDropped(sequence=2, state_number=1),
    SnapshotMarked(sequence=3, snapshot_id=DRAWN_ID),
    SnapshotRestored(sequence=4, restore_id="r-1", state_numbers=(1, 2)),
)


def ask(operation: Operation) -> Ask:
    """Return a question of a client."""
    return Ask(
        request_id=1,
        session=SESSION,
        state_number=1,
        assignment_version=1,
        node_index=0,
        operation=operation,
        key_count=2,
        deadline_ms=100,
        min_batch_id=7,
    )


FILE = SnapshotFile(
    name=f"data-{DRAWN_ID}/at-2/node-0/0.arrow",
    state_number=1,
    key_group_first=0,
    key_group_last=3,
    row_count=4,
    size_bytes=5,
    checksum="ab" * 32,
)
SNAPSHOT_STATE = SnapshotState(
    state=StateRecord(state_name="log", state_number=1, schema="{}"),
    progress=StateProgress(
        state_number=1,
        query_id="q",
        owner_epoch=1,
        generation=1,
        batch_id=None,
        decided_at_us=0,
        queries=(QueryProgress(query_id="q", batch_id=2, writer_epoch=3, sequence=4),),
    ),
)
RESCALING = JobRescaling(
    job_id=APP,
    assignment_version=1,
    node_count=2,
    replica_count=1,
    key_group_counts={"a": 4},
    copy_counts={"a": 4},
    planned_count=2,
    left_count=1,
    surplus_count=0,
    missing_count=0,
    moves=(
        KeyGroupMoves(
            node_id="b",
            source_ids=("a",),
            waiting_count=0,
            copying_count=1,
            row_count=2,
            size_bytes=3,
        ),
    ),
)
TO_PROXY: list[Struct] = [
    JoinConnection(node_id="a", registration_id="r", copy_secret=bytes(16)),
    RescaleJob(request_id=1, session=SESSION, job_id=APP, node_count=2),
    ListRescalings(request_id=1, session=SESSION),
    DrainNode(request_id=1, session=SESSION, node_id="a"),
    ForgetJob(request_id=1, session=SESSION, job_id=APP),
    ForgetAwayNode(request_id=1, session=SESSION, node_id="a"),
    StagesCollected(
        registration_id="p", verify_id=1, chunk_counts=(0, 2), missing=(bytes(16),)
    ),
    KeyGroupsCopied(
        registration_id="p",
        job_id=APP,
        assignment_version=1,
        key_groups=(1, 2),
        row_count=3,
        size_bytes=4,
    ),
    LeaveNode(registration_id="p"),
    PlanTold(
        registration_id="p", job_id=APP, sequence=1, plan=PLAN, entries=(), failure="x"
    ),
    TakeControl(request_id=1, session=SESSION, control_id="c"),
    AdoptJob(request_id=1, session=SESSION, job_id=APP, is_preview=True),
    TakeSnapshot(
        request_id=1,
        session=SESSION,
        job_id=APP,
        snapshot_id=DRAWN_ID,
        uri="/s",
        timeout_ms=2,
    ),
    RestoreJob(
        request_id=1,
        session=SESSION,
        job_id=APP,
        restore_id=DRAWN_ID,
        uri="/s",
        manifest_checksum="ab",
        max_parallelism=4,
        sequence=2,
        states=(SNAPSHOT_STATE,),
        timeout_ms=3,
    ),
    SnapshotWritten(
        registration_id="p", snapshot_id=DRAWN_ID, sequence=2, files=(FILE,)
    ),
    SnapshotLoaded(registration_id="p", restore_id="r-1", row_count=3, failure="no"),
    Hello(request_id=1, token="t"),
    draw(),
    bind(1),
    commit(1, None, stage(1, a=1)),
    commit(1, 5),
    drop(),
    DescribeState(request_id=1, session=SESSION, job_id=APP, state_name="log"),
    ListJobs(request_id=1, session=SESSION),
    ListStates(request_id=1, session=SESSION, job_id=APP),
    ListNodes(request_id=1, session=SESSION),
    *(
        ask(operation)
        for operation in (
            GetValues(),
            GetItems(start=-1),
            GetEntries(),
            ScanRows(start=b"", stop=None, limit=5),
            CountKeys(),
        )
    ),
    node_register("a", positions={APP: 5}),
    heartbeat("a", 1),
    verified("a", 2, stage(1)),
    applied("a", 3, failure="no"),
    Answer(question_id=1, reading=READING, has_missing=True, next_start=b"x"),
    Refusal(request_id=1, code="stale-route"),
]
RUN = BoundRun(
    writer_epoch=2,
    states=(BoundState(state_name="log", state_number=1),),
    batch_id=None,
)
TO_CLIENT: list[Struct] = [
    RescaleStarted(request_id=1, rescaling=RESCALING),
    RescalingsListed(request_id=1, rescalings=(RESCALING,), is_settled=True),
    DrainStarted(request_id=1, node_id="a", job_ids=(APP,)),
    JobForgotten(request_id=1, node_ids=("a",)),
    AwayNodeForgotten(request_id=1, node_id="a"),
    ControlTaken(request_id=1),
    JobAdopted(
        request_id=1,
        job_id=APP,
        known_sequence=1,
        sequence=3,
        states=(AdoptedState(state_name="s", batch_id=2, decided_at_us=1),),
        node_ids=("a", "b"),
        away_ids=("b",),
        lost_ids=(),
    ),
    SnapshotTaken(
        request_id=1,
        manifest=SnapshotManifest(
            format=1,
            snapshot_id=DRAWN_ID,
            job_id=APP,
            max_parallelism=4,
            sequence=2,
            taken_at_us=3,
            states=(SNAPSHOT_STATE,),
            files=(FILE,),
        ),
    ),
    JobRestored(request_id=1, node_ids=("a", "b"), sequence=3),
    Welcome(
        request_id=1,
        session=SESSION,
        leader_epoch=2,
        keys_per_request_max=3,
        frame_size_bytes_max=4,
    ),
    StateDescribed(request_id=1, description=DESCRIPTION),
    JobsListed(request_id=1, job_ids=(APP,)),
    StatesListed(request_id=1, states=(DESCRIPTION,)),
    NodesListed(
        request_id=1,
        nodes=(
            NodeSummary(
                node_id="a",
                address=None,
                last_heard_ms=None,
                key_group_counts={APP: 2},
                behind_counts={APP: 0},
            ),
        ),
    ),
    StateDropDone(request_id=1),
    TicketDrawn(
        request_id=1,
        ticket=2,
        assignment_version=3,
        nodes=(NodeAddress(node_id="a", address=None),),
        owners=((0,), (0,)),
    ),
    TicketDrawn(
        request_id=1, ticket=2, assignment_version=3, nodes=(), owners=(), run=RUN
    ),
    RunBound(request_id=1, run=RUN),
    BatchCommitted(request_id=1, batch_id=2, is_repeated=True),
    Told(request_id=1, reading=READING),
    Refusal(request_id=1, code="rate-limited", data=(0.5, "caller")),
]
TO_NODE: list[Struct] = [
    ConnectionJoined(),
    CancelQuestions(leader_epoch=1, question_ids=(1, 2)),
    CollectStages(
        leader_epoch=1,
        verify_id=2,
        job_id=APP,
        query_id="q",
        writer_epoch=3,
        batch_id=4,
        assignment_version=5,
        stages=(stage(1, a=1),),
        sources=(CopySource(node_id="a", address=None, key_groups=(1,)),),
        timeout_ms=6,
    ),
    NodeEmptied(leader_epoch=1, reason="empty"),
    KeepPlan(leader_epoch=1, plan=PLAN),
    TellPlan(leader_epoch=1, job_id=APP),
    WriteSnapshot(
        leader_epoch=1,
        snapshot_id=DRAWN_ID,
        job_id=APP,
        sequence=2,
        uri="/s",
        directory="d",
        key_groups=(0, 3),
    ),
    LoadSnapshot(
        leader_epoch=1,
        restore_id="r-1",
        job_id=APP,
        uri="/s",
        manifest_checksum="ab",
        key_groups=(0, 3),
        states=(
            LoadedState(
                snapshot_number=1,
                state_number=2,
                kind="list",
                has_ttl=False,
                generation=1,
                batch_id=2,
                decided_at_us=3,
            ),
        ),
    ),
    DropLoaded(leader_epoch=1, restore_id="r-1"),
    NodeRegistered(leader_epoch=1, control_id="c", session_timeout_ms=5, jobs=(JOB,)),
    NodeRefused(reason="unknown", detail="register first"),
    HeartbeatAcknowledged(leader_epoch=1, number=2),
    AssignJob(leader_epoch=1, job=JOB),
    FenceWriters(leader_epoch=1, fences=JOB.fences),
    VerifyStages(
        leader_epoch=1,
        verify_id=2,
        job_id=APP,
        writer_epoch=3,
        batch_id=4,
        stages=(stage(1, a=1),),
        query_id="q",
    ),
    ApplyEntries(leader_epoch=1, job_id=APP, entries=ENTRIES),
    ResetJob(leader_epoch=1, job_id=APP, sequence=2, state_numbers=(1,)),
    Question(
        leader_epoch=1,
        question_id=2,
        state_number=3,
        assignment_version=4,
        operation=CountKeys(),
        deadline_ms=5,
    ),
]
CHUNK = StageChunk(
    request_id=1,
    job_id=APP,
    query_id="q",
    writer_epoch=2,
    batch_id=3,
    stage_id=bytes(16),
    chunk_index=0,
    assignment_version=1,
)
FROM_NODE: list[Struct] = [
    ChunkStaged(request_id=1),
    ChunkRefused(request_id=1, code="stale-writer", data=("q", 1, 2)),
]
DECODERS: list[Callable[[bytes], object]] = [
    codec.decode_to_proxy,
    codec.decode_to_client,
    codec.decode_to_node,
    codec.decode_at_node,
    codec.decode_from_node,
]
PAYLOAD_DECODERS: list[Callable[[bytes], object]] = [
    codec.decode_rows,
    codec.decode_keys,
    codec.decode_values,
    codec.decode_items,
    codec.decode_count,
]


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        *((codec.decode_to_proxy, message) for message in TO_PROXY),
        *((codec.decode_to_client, message) for message in TO_CLIENT),
        *((codec.decode_to_node, message) for message in TO_NODE),
        (codec.decode_at_node, CHUNK),
        *((codec.decode_from_node, message) for message in FROM_NODE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_comes_back(
    decode: Callable[[bytes | memoryview], Struct], message: Struct
) -> None:
    """Everything that is sent is understood, from bytes as from a frame's buffer."""
    envelope = codec.encode(message)
    assert decode(envelope) == message
    assert decode(memoryview(envelope)) == message


def test_a_payload_comes_back() -> None:
    """Rows, keys and values; with what may be missing missing."""
    rows = StagedRows(state_number=1, keys=[b"a", b"b"], values=[b"1", None])
    assert codec.decode_rows(codec.encode_payload(rows)) == rows
    ordered = StagedRows(state_number=1, keys=[b"a"], values=[None], orders=[b"o"])
    assert codec.decode_rows(codec.encode_payload(ordered)) == ordered
    assert codec.decode_keys(codec.encode_payload([b"a"])) == [b"a"]
    values = [b"a", None]
    assert codec.decode_values(codec.encode_payload(values)) == values
    items = [[b"a", b"b"], [], None]
    assert codec.decode_items(codec.encode_payload(items)) == items
    assert codec.decode_count(codec.encode_payload(5)) == 5


@pytest.mark.parametrize("decode", DECODERS)
def test_a_stray_peer_is_recognized(decode: Callable[[bytes], object]) -> None:
    """N3: magic and version stand in every message."""
    for envelope in (b"", b"LD", b"LDQ", b"XXX\x01\x80"):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(envelope)
        assert caught.value.reason == "wrong-magic"


@pytest.mark.parametrize("decode", DECODERS)
def test_another_version_is_said_to_be_one(decode: Callable[[bytes], object]) -> None:
    """N1: one that upgrades one side only reads which version each speaks."""
    with pytest.raises(
        RemoteProtocolError, match="speaks protocol version 2, we speak"
    ):
        decode(b"LDQ\x02\x80")


@pytest.mark.parametrize("decode", DECODERS)
def test_a_message_for_somebody_else_is_malformed(
    decode: Callable[[bytes], object],
) -> None:
    """N3: what is legal elsewhere, or incomplete, or followed by more, is not taken."""
    stray = codec.encode(BoundState(state_name="s", state_number=1))
    for envelope in (
        stray,
        stray[:-1],
        stray + b"\x00",
        b"LDQ\x01",
        b"LDQ\x01\xa1\xff",
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(envelope)
        assert caught.value.reason == "malformed"


@pytest.mark.parametrize(
    "message",
    [
        draw(max_parallelism=0),
        draw(max_parallelism=32_769),
        draw(job_id=""),
        bind(1, query_id="q" * 256),
        commit(1, 0, timeout_ms=0),
        Ask(
            request_id=1,
            session=b"",
            state_number=1,
            assignment_version=1,
            node_index=0,
            operation=WalkRows(key_groups=((0, 0),) * 32_769, start=b"", limit=1),
            key_count=1,
        ),
    ],
)
def test_what_is_out_of_range_is_malformed(message: Struct) -> None:
    """N3: limits of the wire hold before anything looks at a message."""
    with pytest.raises(RemoteProtocolError):
        codec.decode_to_proxy(codec.encode(message))


def test_a_deep_message_is_malformed() -> None:
    """N3: nesting does not exhaust the stack."""
    envelope = b"LDQ\x01" + b"\x91" * 100_000
    for decode in DECODERS:
        with pytest.raises(RemoteProtocolError):
            decode(envelope)


@given(strategies.binary(max_size=64))
def test_rubbish_raises_nothing_else(rubbish: bytes) -> None:
    """N3: whatever comes, it is an error that names the peer."""
    for decode in (*DECODERS, *PAYLOAD_DECODERS):
        for frame in (rubbish, b"LDQ\x01" + rubbish):
            try:
                decode(frame)
            except RemoteProtocolError:
                continue


@given(strategies.data())
def test_a_damaged_message_raises_nothing_else(data: strategies.DataObject) -> None:
    """N3: also if only one byte of it is another."""
    message = data.draw(strategies.sampled_from([*TO_PROXY, *TO_CLIENT, *TO_NODE]))
    envelope = bytearray(codec.encode(message))
    index = data.draw(strategies.integers(0, len(envelope) - 1))
    envelope[index] = data.draw(strategies.integers(0, 255))
    for decode in DECODERS:
        try:
            decode(bytes(envelope))
        except RemoteProtocolError:
            continue


def test_every_message_of_a_union_is_tried_here() -> None:
    """A message that is added is added to these tests."""
    for union, messages in (
        (ToProxy, TO_PROXY),
        (ToClient, TO_CLIENT),
        (ToNodeFrame, TO_NODE),
    ):
        types = {one.cls for one in _structs(msgspec.inspect.type_info(union))}
        assert types == {type(message) for message in messages}


def _structs(info: msgspec.inspect.Type) -> list[msgspec.inspect.StructType]:
    assert isinstance(info, msgspec.inspect.UnionType)
    return [one for one in info.types if isinstance(one, msgspec.inspect.StructType)]
