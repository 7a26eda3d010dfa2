"""What a node says to others that copy its rows: honest ones, slow ones, strangers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec
import pytest
import zmq
from msgspec.structs import replace
from structlog.testing import capture_logs

from nameservice import SystemClock
from queryablestate.node.copying.limits import CopyLimits
from queryablestate.node.copying.serving import CopyServer
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import (
    ENVELOPE_SIZE_BYTES_MAX,
    decode_from_copy_source,
    encode,
)
from queryablestate.wire.copy_messages import (
    AllowPages,
    CloseCopy,
    CopyContinues,
    CopyOpened,
    CopyPage,
    CopyRefused,
    FromCopySource,
    OpenCopy,
    ReadStages,
    StagesPage,
    StagesRead,
)
from queryablestate.wire.records import StageRecord
from tests.queryablestate.copying_nodes import (
    ALL_GROUPS,
    JOB,
    CopyingNode,
    wait_until,
)
from tests.queryablestate.proxy_for_nodes import (
    COPY_SECRET,
    TIMEOUT_SECONDS,
    rows,
    rows_of,
    storage_key,
)
from tests.queryablestate.store_batches import key, write
from zmqtransport import parse_endpoint


pytestmark = pytest.mark.shells

SEED: Final = 20_261_121
FRAME_COUNT: Final = 20_000
BURST_COUNT: Final = 200
RUNS: Final = ((0, 63),)


def open_copy(
    copy_id: int = 1,
    *,
    job_id: str = JOB,
    key_groups: tuple[tuple[int, int], ...] = RUNS,
    sequence_min: int = 0,
    page_count: int = 100,
    secret: bytes = COPY_SECRET,
) -> OpenCopy:
    """Return what a node asks for, in pages of a few rows."""
    return OpenCopy(
        copy_id=copy_id,
        job_id=job_id,
        key_groups=key_groups,
        sequence_min=sequence_min,
        page_count=page_count,
        page_size_bytes=1 << 10,
        secret=secret,
    )


class OtherNode:
    """A node that asks, message by message; a context manager."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.connect(str(parse_endpoint(address)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close(0)
        self._context.term()

    def say(self, message: msgspec.Struct) -> None:
        """Send *message*."""
        self.socket.send(encode(message))

    def hear(self, timeout_seconds: float = TIMEOUT_SECONDS) -> FromCopySource:
        """Return the next answer that is more than a sign of life."""
        while True:
            if not self.socket.poll(round(timeout_seconds * 1_000)):
                raise TimeoutError
            message = decode_from_copy_source(self.socket.recv_multipart()[0])
            if not isinstance(message, CopyContinues):
                return message

    def pages(self) -> int:
        """Return how many pages come up to the last one."""
        count = 0
        while True:
            message = self.hear()
            assert isinstance(message, CopyPage), message
            assert message.page_index == count
            count += 1
            if message.is_last:
                return count


@pytest.fixture
def a(tmp_path: Path) -> Iterator[CopyingNode]:
    """Return a node with some pages of rows."""
    with CopyingNode("a", tmp_path) as one:
        one.register(one.assignment(held=ALL_GROUPS))
        values: dict[str, bytes | None] = {f"{i:04}": bytes(100) for i in range(200)}
        one.write(1, rows_of(values))
        yield one


@pytest.fixture
def other(a: CopyingNode) -> Iterator[OtherNode]:
    """Return a node that has not asked yet."""
    with OtherNode(a.node.address) as one:
        yield one


def served(node: CopyingNode) -> int:
    """Return how many copies a node reads for others."""
    return int(node.node.status()["copies_served"])


class TestConversation:
    """S2: one question, and pages as they are allowed."""

    def test_pages_come_as_they_are_allowed(
        self, a: CopyingNode, other: OtherNode
    ) -> None:
        """Never one more; and when the last was sent, nothing is kept."""
        other.say(open_copy(page_count=2))
        opened = other.hear()
        assert isinstance(opened, CopyOpened)
        assert opened.states.sequence == 1
        for index in range(2):
            page = other.hear()
            assert isinstance(page, CopyPage)
            assert page.page_index == index
        with pytest.raises(TimeoutError):
            other.hear(0.3)
        assert served(a) == 1
        other.say(AllowPages(copy_id=1, page_count=100))
        message = other.hear()
        while isinstance(message, CopyPage) and not message.is_last:
            message = other.hear()
        assert isinstance(message, CopyPage)
        assert wait_until(lambda: served(a) == 0)

    def test_several_copies_share_a_connection(self, other: OtherNode) -> None:
        """Each says which it is."""
        other.say(open_copy(1))
        other.say(open_copy(2, key_groups=((1, 1),)))
        found = {1: 0, 2: 0}
        last: set[int] = set()
        while last != {1, 2}:
            message = other.hear()
            found[message.copy_id] += 1
            if isinstance(message, CopyPage) and message.is_last:
                last.add(message.copy_id)
        assert found[1] > 3
        assert found[2] == 2  # what states there are, and one page without rows

    def test_what_is_closed_is_over(self, a: CopyingNode, other: OtherNode) -> None:
        """And what is said of it later is answered: it is unknown."""
        other.say(open_copy(page_count=1))
        assert isinstance(other.hear(), CopyOpened)
        assert isinstance(other.hear(), CopyPage)
        other.say(CloseCopy(copy_id=1))
        assert wait_until(lambda: served(a) == 0)
        other.say(AllowPages(copy_id=1, page_count=1))
        refused = other.hear()
        assert isinstance(refused, CopyRefused)
        assert refused.reason == "unknown"

    @pytest.mark.proves("S2")
    def test_a_lost_connection_ends_its_copies(
        self, a: CopyingNode, other: OtherNode
    ) -> None:
        """S2: a snapshot that is not read any more is released, soon."""
        with OtherNode(a.node.address) as lost:
            lost.say(open_copy(page_count=1))
            assert isinstance(lost.hear(), CopyOpened)
            other.say(open_copy(page_count=1))
            assert isinstance(other.hear(), CopyOpened)
            assert served(a) == 2
        assert wait_until(lambda: served(a) == 1)
        other.say(AllowPages(copy_id=1, page_count=100))
        other.pages()

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [
            (open_copy(key_groups=((0, 64),)), "not-held"),
            # A directory that is new has nothing, and does not say so (W7).
            (open_copy(job_id="never assigned"), "not-held"),
            (open_copy(secret=b""), "not-allowed"),
            (open_copy(secret=COPY_SECRET[:-1]), "not-allowed"),
            (open_copy(key_groups=((3, 2),)), "malformed"),
            (open_copy(key_groups=((3, 4), (4, 5))), "malformed"),
        ],
    )
    def test_what_cannot_be_copied_is_refused(
        self,
        a: CopyingNode,
        other: OtherNode,
        request_: OpenCopy,
        reason: str,
    ) -> None:
        """With a reason, at once."""
        other.say(request_)
        refused = other.hear()
        assert isinstance(refused, CopyRefused)
        assert refused.reason == reason
        assert served(a) == 0

    def test_who_may_bring_rows_may_not_read_them(
        self, a: CopyingNode, other: OtherNode
    ) -> None:
        """C1: rows that are staged are sent to nodes alone."""
        stage = a.stage(2, rows(x=b"1"))
        read = ReadStages(
            copy_id=1,
            job_id=JOB,
            writer_epoch=1,
            batch_id=2,
            stages=(stage,),
            key_groups=RUNS,
            page_count=5,
        )
        other.say(read)
        refused = other.hear()
        assert isinstance(refused, CopyRefused)
        assert refused.reason == "not-allowed"
        other.say(replace(read, copy_id=2, secret=COPY_SECRET))
        assert isinstance(other.hear(), StagesPage)
        assert a.node.status()["frames_unauthorized_total"] == 1

    @pytest.mark.proves("N3")
    def test_of_a_large_request_the_secret_is_looked_at_first(
        self, a: CopyingNode, other: OtherNode
    ) -> None:
        """N3: to decode it takes a second; that it makes no sense is not found out."""
        read = ReadStages(
            copy_id=1,
            job_id=JOB,
            writer_epoch=1,
            batch_id=2,
            stages=("none",) * 20_000,  # type: ignore[arg-type]
            key_groups=RUNS,
            page_count=5,
        )
        other.say(read)
        refused = other.hear()
        assert isinstance(refused, CopyRefused)
        assert (refused.copy_id, refused.reason) == (1, "not-allowed")
        assert "frames_malformed_total" not in a.node.status()
        other.say(replace(read, secret=COPY_SECRET))
        wait_until(lambda: a.node.status().get("frames_malformed_total") == 1)

    @pytest.mark.proves("N3")
    def test_a_chunk_whose_envelope_is_large_is_refused(
        self, a: CopyingNode, other: OtherNode
    ) -> None:
        """N3: nothing in it can be, and anyone may send one."""
        other.socket.send_multipart([bytes(ENVELOPE_SIZE_BYTES_MAX + 1), b""])
        wait_until(lambda: a.node.status().get("frames_oversized_total") == 1)

    def test_nothing_is_sent_before_there_is_a_secret(self, tmp_path: Path) -> None:
        """C1: a node that no proxy has taken in yet knows none."""
        with (
            CopyingNode("a", tmp_path) as node,
            OtherNode(node.node.address) as other,
        ):
            other.say(open_copy(secret=b""))
            refused = other.hear()
            assert isinstance(refused, CopyRefused)
            assert refused.reason == "not-allowed"

    def test_a_name_is_used_once(self, other: OtherNode) -> None:
        """Otherwise it could not be told what a page is of."""
        other.say(open_copy(page_count=0))
        assert isinstance(other.hear(), CopyOpened)
        other.say(open_copy(page_count=0))
        assert isinstance(other.hear(), CopyRefused)

    @pytest.mark.proves("S2")
    def test_staged_rows_are_read_stage_by_stage(
        self, a: CopyingNode, other: OtherNode
    ) -> None:
        """S2: chunks of the key groups, and which stages are not complete."""
        stage = a.stage(2, rows(x=b"1"), rows(key_group=9, y=b"2"))
        missing = StageRecord(stage_id=b"m" * 16, chunk_counts={"a": 1}, row_count=1)
        other.say(
            ReadStages(
                copy_id=1,
                job_id=JOB,
                writer_epoch=1,
                batch_id=2,
                stages=(missing, stage),
                key_groups=((9, 9),),
                page_count=5,
                secret=COPY_SECRET,
            )
        )
        page = other.hear()
        assert page == StagesPage(copy_id=1, page_index=0, stage_index=1)
        read = other.hear()
        assert read == StagesRead(copy_id=1, page_count=1, missing=(b"m" * 16,))


class Served:
    """A server with a store of its own, and what it sends."""

    def __init__(self, path: Path, **limits: int) -> None:
        self.store = StateStore.open(path, node_id="node-1", is_durable=False)
        write(self.store, [(key(0, "x"), b"1")], job_id=JOB)
        self.store.hold(JOB, ALL_GROUPS, [])
        self.sent: list[FromCopySource] = []
        self.arrived = threading.Condition()
        self.server = CopyServer(
            self.store,
            clock=SystemClock(),
            send=self.take,
            limits=CopyLimits(**limits),
        )

    def take(self, peer: bytes, frames: object) -> None:
        """Take note of what is sent."""
        assert peer == b"peer"
        assert isinstance(frames, list)
        with self.arrived:
            self.sent.append(decode_from_copy_source(frames[0]))
            self.arrived.notify_all()

    def wait_for(self, kind: type[FromCopySource]) -> FromCopySource:
        """Return the first message of a kind."""
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: any(isinstance(one, kind) for one in self.sent),
                TIMEOUT_SECONDS,
            )
            return next(one for one in self.sent if isinstance(one, kind))

    def close(self) -> None:
        """End it."""
        self.server.close()
        self.store.close()


class TestLimits:
    """S2: what one node costs another is bounded."""

    def test_who_is_silent_is_given_up(self, tmp_path: Path) -> None:
        """A snapshot ends though its connection is there."""
        served = Served(tmp_path, silence_ns=200_000_000)
        served.server.receive(b"peer", open_copy(page_count=0))
        served.wait_for(CopyOpened)
        refused = served.wait_for(CopyRefused)
        assert isinstance(refused, CopyRefused)
        assert refused.reason == "unknown"
        assert len(served.server) == 0
        served.close()

    def test_it_says_that_it_is_there(self, tmp_path: Path) -> None:
        """Also while it waits for an entry."""
        served = Served(tmp_path, alive_ns=10_000_000)
        served.server.receive(b"peer", open_copy(sequence_min=2))
        served.wait_for(CopyContinues)
        write(served.store, [(key(0, "y"), b"2")], job_id=JOB)
        served.server.advance()
        opened = served.wait_for(CopyOpened)
        assert isinstance(opened, CopyOpened)
        assert opened.states.sequence == 2
        served.wait_for(CopyPage)
        served.close()

    def test_an_entry_is_not_awaited_for_ever(self, tmp_path: Path) -> None:
        """Another source may have it."""
        served = Served(tmp_path, behind_ns=100_000_000)
        served.server.receive(b"peer", open_copy(sequence_min=2))
        refused = served.wait_for(CopyRefused)
        assert isinstance(refused, CopyRefused)
        assert refused.reason == "behind"
        served.close()

    def test_only_so_many_are_read_at_once(self, tmp_path: Path) -> None:
        """One more is told to come later; staged rows have places of their own."""
        served = Served(tmp_path, copies_max=2)
        for copy_id in (1, 2, 3):
            served.server.receive(b"peer", open_copy(copy_id, page_count=0))
        refused = served.wait_for(CopyRefused)
        assert isinstance(refused, CopyRefused)
        assert (refused.copy_id, refused.reason) == (3, "busy")
        read = ReadStages(
            copy_id=4,
            job_id=JOB,
            writer_epoch=1,
            batch_id=1,
            stages=(),
            key_groups=RUNS,
            page_count=1,
        )
        served.server.receive(b"peer", read)
        served.wait_for(StagesRead)
        served.close()

    @pytest.mark.proves("S2")
    def test_what_is_open_ends_with_the_server(self, tmp_path: Path) -> None:
        """S2: no read transaction is left, so the store can be closed."""
        served = Served(tmp_path)
        served.server.receive(b"peer", open_copy(page_count=0))
        served.wait_for(CopyOpened)
        served.close()
        with StateStore.open(tmp_path, node_id="node-1", is_durable=False) as store:
            assert store.positions() == {JOB: 1}

    def test_requests_that_wait_are_bounded(self, tmp_path: Path) -> None:
        """A flood of them takes no memory."""
        served = Served(tmp_path, requests_waiting_max=0)
        assert not served.server.receive(b"peer", open_copy())
        served.close()


class Stranger:
    """Draws bad messages of the conversation; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def damaged(self, data: bytes) -> bytes:
        """Return *data* with a few bytes changed, or cut."""
        if self.random.random() < 0.3:
            return data[: self.random.randrange(len(data) + 1)]
        changed = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            changed[self.random.randrange(len(changed))] = self.random.randrange(256)
        return bytes(changed)

    def message(self) -> list[bytes]:
        """Return the frames of one message."""
        draw = self.random
        copy_id = draw.randrange(1, 2**31)
        opened = open_copy(copy_id, job_id=draw.choice([JOB, "", "x" * 300]))
        match draw.randrange(7):
            case 0:
                return [draw.randbytes(draw.randrange(300))]
            case 1:
                return [self.damaged(encode(opened))]
            case 2:
                return [encode(AllowPages(copy_id=copy_id, page_count=1))]
            case 3:
                return [encode(CloseCopy(copy_id=copy_id))]
            case 4:
                return [encode(msgspec.structs.replace(opened, sequence_min=2**40))]
            case 5:
                wrong = ((draw.randrange(2**16), draw.randrange(2**16)),)
                return [encode(msgspec.structs.replace(opened, key_groups=wrong))]
            case _:
                answer = CopyRefused(copy_id=copy_id, reason="x", detail="")
                return [encode(answer), draw.randbytes(20)]


def send_all(address: str, problems: list[str]) -> None:
    """Send everything, reading what comes back now and then."""
    stranger = Stranger(SEED)
    context = zmq.Context()
    try:
        left = FRAME_COUNT
        while left:
            socket = context.socket(zmq.DEALER)
            socket.connect(str(parse_endpoint(address)))
            for _ in range(10):
                for _ in range(BURST_COUNT):
                    socket.send_multipart(stranger.message())
                left -= BURST_COUNT
                while socket.poll(50):
                    socket.recv_multipart()
                if not left:
                    break
            socket.close(0)
    except Exception as error:  # noqa: BLE001 (told to the test, which fails)
        problems.append(repr(error))
    finally:
        context.term()


@pytest.mark.proves("S2")
def test_a_flood_of_bad_frames_has_no_effect(tmp_path: Path) -> None:
    """S2, N3: copies go on, questions are answered (Q1), nothing is left behind."""
    problems: list[str] = []
    with (
        capture_logs() as logs,
        CopyingNode("a", tmp_path) as a,
    ):
        a.register(a.assignment(held=ALL_GROUPS))
        values: dict[str, bytes | None] = {f"{i:04}": bytes(100) for i in range(200)}
        a.write(1, rows_of({"a": b"1", **values}))
        flood = threading.Thread(target=send_all, args=(a.node.address, problems))
        flood.start()
        page_counts = set()
        busy_count = 0
        while flood.is_alive():
            assert a.get(storage_key("a")) == [b"1"]
            with OtherNode(a.node.address) as other:
                other.say(open_copy())
                message = other.hear()
                if isinstance(message, CopyRefused):
                    assert message.reason == "busy"
                    busy_count += 1
                    continue
                assert isinstance(message, CopyOpened)
                page_counts.add(other.pages())
        flood.join()
        assert problems == []
        assert len(page_counts) <= 1
        assert page_counts or busy_count
        with OtherNode(a.node.address) as other:
            assert wait_until(lambda: served(a) == 0)
            other.say(open_copy())
            assert isinstance(other.hear(), CopyOpened)
            page_counts.add(other.pages())
        assert len(page_counts) == 1
        assert a.node.status()["failures_total"] == 0
    assert len(logs) < 200
    assert not [log for log in logs if log["log_level"] == "error"]
