"""What a node does with another one that does not say what it should (S2, N3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from queryablestate.wire.codec import decode_to_copy_source, encode, encode_payload
from queryablestate.wire.copy_messages import (
    AllowPages,
    CopiedRows,
    CopiedStates,
    CopyContinues,
    CopyOpened,
    CopyPage,
    OpenCopy,
    StagesRead,
)
from tests.queryablestate.copying_nodes import JOB, CopyingNode


pytestmark = pytest.mark.shells

GROUPS = (3, 4)
ROWS = encode_payload(CopiedRows(state_number=1, keys=[b"\0\3k"], values=[b"v"]))


def opened(
    *, sequence: int = 1, key_groups: tuple[tuple[int, int], ...] = ((3, 4),)
) -> bytes:
    """Return the first answer."""
    states = CopiedStates(sequence=sequence, states=(), key_groups=key_groups)
    return encode(CopyOpened(copy_id=1, states=states))


def page(index: int, *, copy_id: int = 1) -> bytes:
    """Return the envelope of one more page."""
    return encode(CopyPage(copy_id=copy_id, page_index=index, is_last=False))


class BadSource:
    """A node that answers with whatever a test wants; a context manager."""

    def __init__(self, messages: list[list[bytes]]) -> None:
        self.name = "bad"
        self.node = self
        self.requests: list[msgspec.Struct] = []
        self._messages = messages
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:0")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            if not self._router.poll(20):
                continue
            peer, envelope = self._router.recv_multipart()
            request = decode_to_copy_source(envelope)
            self.requests.append(request)
            if isinstance(request, OpenCopy):
                for frames in self._messages:
                    self._router.send_multipart([peer, *frames])

    def close(self) -> None:
        """End it."""
        self._stopping.set()
        self._thread.join()
        self._router.close(0)
        self._context.term()


@pytest.fixture
def failure(tmp_path: Path) -> Iterator[Callable[[list[list[bytes]]], str]]:
    """Return what says how a copy fails whose source answers so."""
    sources: list[BadSource] = []
    with CopyingNode("b", tmp_path) as b:

        def fails(messages: list[list[bytes]]) -> str:
            source = BadSource(messages)
            sources.append(source)
            job = b.assignment(joining=GROUPS, since=1, source=source)  # type: ignore[arg-type]  # it has what is looked at
            b.register(job, begin=1)
            reason = b.failed()
            assert b.node.status()["failures_total"] == 0
            assert b.store.positions() == {JOB: 1}
            return reason

        yield fails
    for source in sources:
        source.close()


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([[b""]], "LDQ"),
        ([[b"LDQ\1\xc1"]], "malformed"),
        ([[opened(), b"", b""]], "3 frames"),
        ([[opened(sequence=0)]], "too old"),
        ([[opened(key_groups=((3, 5),))]], "other key groups"),
        ([[opened()], [opened()]], "makes no sense"),
        ([[page(0), ROWS]], "makes no sense"),
        ([[opened()], [page(0)]], "makes no sense"),
        ([[opened()], [page(1), ROWS]], "not next"),
        ([[opened()], [page(0, copy_id=2), ROWS]], "another copy_id"),
        ([[opened()], [page(0), b"\xc1"]], "malformed"),
        ([[opened()], [page(0), encode_payload([1, [b"k"], []])]], "without values"),
        (
            [[encode(StagesRead(copy_id=1, page_count=0, missing=()))]],
            "makes no sense",
        ),
        (
            [[encode(CopyContinues(copy_id=1))], [opened()], [b"LDQ\2"]],
            "version",
        ),
    ],
)
def test_a_source_that_makes_no_sense_is_left(
    failure: Callable[[list[list[bytes]]], str],
    messages: list[list[bytes]],
    reason: str,
) -> None:
    """S2: the copy comes to nothing, the proxy learns why, and nothing else happens."""
    assert reason in failure(messages)


@pytest.mark.proves("S2")
def test_more_pages_than_were_allowed_are_not_taken(tmp_path: Path) -> None:
    """S2: what waits for the disk is bounded, whatever the source does."""
    count = 20
    whole = opened(key_groups=((0, 63),))
    source = BadSource([[whole], *([page(index), ROWS] for index in range(count))])
    with CopyingNode("b", tmp_path) as b:
        go = b.begin_to_copy(source)  # type: ignore[arg-type]  # it has what is looked at
        assert "more pages" in b.failed()
        go.set()
        assert not any(isinstance(one, AllowPages) for one in source.requests[:2])
    source.close()
