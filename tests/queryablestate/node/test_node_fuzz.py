"""
20,000 bad frames against one node, over real sockets, while it answers and stages.

A stranger sends everything that is wrong to the port for writers: bytes that are no
message, other versions and types, damaged and truncated chunks, chunks of older runs,
rows that could not be applied, frames without end.  A proxy asks meanwhile, and a good
writer stages.  Afterwards every question was answered rightly and in time, the good
writer's rows are there, and nothing of the stranger's.

What is sent is drawn from a seed, so a failure can be repeated.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from haservices import open_ha_services
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.wire.codec import decode_values, encode, encode_payload
from queryablestate.wire.job_assignment import WriterFence
from queryablestate.wire.node_messages import FenceWriters, NodeHeartbeat, RegisterNode
from queryablestate.wire.questions import GetValues, Refusal
from queryablestate.wire.staging_messages import ChunkRefused, ChunkStaged, StageChunk
from tests.queryablestate.node_entries import assignment, batch, question
from tests.queryablestate.proxy_for_nodes import (
    NodeProxy,
    Writer,
    rows,
    storage_key,
)
from zmqtransport import parse_endpoint


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.shells

SEED: Final = 20_261_121
FRAME_COUNT: Final = 20_000
BURST_COUNT: Final = 200
ANSWER_SECONDS_MAX: Final = 10.0


class Stranger:
    """Draws bad messages; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chunk(self) -> StageChunk:
        """Return the envelope of a chunk that is not wanted."""
        draw = self.random
        return StageChunk(
            request_id=draw.randrange(2**31),
            job_id=draw.choice(["job", "", "x" * 300]),
            query_id="q",
            writer_epoch=draw.choice([-1, 0, 1, 4]),
            batch_id=draw.choice([-(2**63), -1, 0, 2, 2**63 - 1]),
            stage_id=draw.randbytes(16),
            chunk_index=draw.choice([-1, 0, 2**32, 2**63 - 1]),
            assignment_version=draw.randrange(3),
        )

    def damaged(self, data: bytes) -> bytes:
        """Return *data* with a few bytes changed, or cut."""
        if self.random.random() < 0.3:
            return data[: self.random.randrange(len(data) + 1)]
        changed = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            changed[self.random.randrange(len(changed))] = self.random.randrange(256)
        return bytes(changed)

    def payload(self) -> bytes:
        """Return rows that cannot be applied."""
        draw = self.random
        return draw.choice(
            [
                b"",
                b"\xc1",
                draw.randbytes(draw.randrange(200)),
                encode_payload([1, [b"\0\0b", b"\0\0a"], [b"", b""]]),
                encode_payload([1, [b"\0\0a"], [b"", b""]]),
                encode_payload([1, [b""], [b""]]),
                encode_payload([1, [bytes(600)], [b""]]),
                encode_payload(["one", [], []]),
                b"\x91" * 5_000,
            ]
        )

    def message(self) -> list[bytes]:
        """Return the frames of one message."""
        draw = self.random
        good = rows(stranger=b"evil")
        match draw.randrange(8):
            case 0:
                return [draw.randbytes(draw.randrange(300)) for _ in range(2)]
            case 1:
                frames = [b"LDQ\1", b"LDQ", b"LDQ\2", b"", b"GET / HTTP/1.1\r\n"]
                return [draw.choice(frames) for _ in range(draw.randint(1, 6))]
            case 2:
                return [self.damaged(encode(self.chunk())), encode_payload(good)]
            case 3:  # a run that is over
                return [encode(self.chunk()), encode_payload(good)]
            case 4:
                chunk = msgspec.structs.replace(self.chunk(), writer_epoch=9)
                return [encode(chunk), self.payload()]
            case 5:
                stray = [
                    ChunkStaged(request_id=1),
                    ChunkRefused(request_id=1, code="x", data=()),
                    NodeHeartbeat(registration_id="r", number=1),
                    question(operation=GetValues()),
                    RegisterNode(
                        token=None,
                        node_id="n",
                        store_id="s",
                        registration_id="r",
                        address="a",
                        positions=(),
                    ),
                ]
                return [encode(draw.choice(stray)), encode_payload([b"\0\0"])]
            case 6:
                return [encode(self.chunk())]
            case _:
                return [encode(self.chunk()), encode_payload(good), b"more"]


def send_all(address: str, problems: list[str]) -> None:
    """Send everything, reading what comes back now and then."""
    stranger = Stranger(SEED)
    context = zmq.Context()
    try:
        left = FRAME_COUNT
        while left:
            # A new connection now and then: what is malformed enough costs the old one.
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


def test_a_node_answers_through_a_flood_of_bad_frames(tmp_path: Path) -> None:
    """N3: nothing that comes in harms a question, a chunk or the rows (W1, W2, Q1)."""
    config = NodeConfig(data_dir=tmp_path, node_id="n", is_durable=False)
    problems: list[str] = []
    with (
        capture_logs() as logs,
        open_ha_services("embedded:") as ha,
        NodeProxy(ha) as proxy,
        StateNode(ha, config) as node,
        Writer(node.address, writer_epoch=9) as writer,
    ):
        proxy.register(assignment())
        fence = WriterFence(job_id="job", query_id="q", writer_epoch=9)
        proxy.send(FenceWriters(leader_epoch=proxy.leader_epoch, fences=(fence,)))
        writer.bring(rows(a=b"1"))
        stage = writer.stage("n")
        assert proxy.apply(batch(1, writer_epoch=9, stages=(stage,))).failure is None

        flood = threading.Thread(target=send_all, args=(node.address, problems))
        flood.start()
        slowest, answer_count = 0.0, 0
        writer.batch_id, writer.chunk_count = 2, 0
        while flood.is_alive():
            began = time.monotonic()
            one = question(answer_count + 1, leader_epoch=proxy.leader_epoch)
            answered = proxy.ask(one, [storage_key("a"), storage_key("stranger")])
            assert not isinstance(answered, Refusal)
            assert decode_values(answered[1]) == [b"1", None]
            slowest = max(slowest, time.monotonic() - began)
            answer_count += 1
            if answer_count % 20 == 0:
                number = str(writer.chunk_count).encode()
                reply = writer.bring(rows(a=number))
                assert reply == ChunkStaged(request_id=writer.request_id)
        flood.join()

        assert problems == []
        assert answer_count > 0
        assert slowest < ANSWER_SECONDS_MAX
        stage = writer.stage("n")
        assert proxy.apply(batch(2, writer_epoch=9, stages=(stage,))).failure is None
        last = str(writer.chunk_count - 1).encode() if writer.chunk_count else b"1"
        one = question(answer_count + 1, leader_epoch=proxy.leader_epoch)
        answered = proxy.ask(one, [storage_key("a"), storage_key("stranger")])
        assert not isinstance(answered, Refusal)
        assert decode_values(answered[1]) == [last, None]
        status = node.status()
        assert status["failures_total"] == 0
        assert status["chunks_waiting"] == 0
        dropped = sum(
            int(value)
            for name, value in status.items()
            if name.startswith("frames_") or name == "chunks_refused_total"
        )
        assert dropped > FRAME_COUNT / 2
    # The log has a budget, whatever is sent.
    assert len(logs) < 200
    assert not [log for log in logs if log["log_level"] == "error"]
