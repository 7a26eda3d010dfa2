"""What binds readers: the page before anything is told, and one part throughout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from nameservice import ManualClock
from nameservice.observation import Latencies
from queryablestate import StateOperations
from queryablestate.node.core.job import served_part
from queryablestate.node.direct import DirectAnswerer
from queryablestate.node.proxy_client import QueryStateProxyClient
from queryablestate.node.readers.page import PageWriter, key_groups_in
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import decode_to_client
from queryablestate.wire.direct import (
    ASK_PROXY,
    AskNode,
    DirectTicket,
    ShowTicket,
    seal_ticket,
)
from queryablestate.wire.questions import GetValues, Refusal
from queryablestate.wire.refusals import STALE_ROUTE
from tests.queryablestate.node.test_direct_reads import Scripted
from tests.queryablestate.proxy_stage import JOB, STATE, ProxyStage
from zmqtransport import ConnectionId, Peer


SECRET: Final = b"s" * 32
PEER: Final = Peer(1, ConnectionId(1), b"peer")


class Store(Scripted):
    """A store without rows."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.store = StateStore.open(directory, is_durable=False)

    def reader(self) -> Any:
        """Return what reads it."""
        return self.store.reader()


def code_of(directory: Path, standing: Callable[[str], object]) -> str:
    """Return what is told of a key that another node has, under a good ticket."""
    sent: list[bytes] = []
    store = Store(directory)

    def send(_: bytes, frames: Sequence[bytes]) -> bool:
        sent.extend(frames)
        return True

    answerer = DirectAnswerer(
        store,
        answer_size_bytes_max=1 << 20,
        clock=ManualClock(),
        wall_clock_us=lambda: 0,
        is_current=lambda _: True,
        admit=lambda *_: served_part(JOB, 1, (0,)),
        send=send,
        latencies=Latencies(),
        standing=standing,
    )
    answerer.keep_secret(SECRET)
    ticket = DirectTicket(
        caller="c",
        public_key=None,
        job_id=JOB,
        state_number=1,
        leader_epoch=1,
        assignment_version=1,
        expires_ms=1,
    )
    shown = ShowTicket(ticket_id=1, ticket=seal_ticket(SECRET, ticket))
    assert answerer.show(PEER, shown, None) == 1
    question = AskNode(
        request_id=1, ticket_id=1, operation=GetValues(), deadline_ms=100
    )
    answerer.ask(PEER, question, msgspec.msgpack.encode([b"\0\1key"]))
    store.store.close()
    answer = decode_to_client(sent[0])
    assert isinstance(answer, Refusal)
    return answer.code


@pytest.mark.proves("S3", "Q4")
def test_a_part_that_changes_while_rows_are_read(tmp_path: Path) -> None:
    """
    S3: what was read then is not told, though the node may answer before and after.

    A process that stands still in between may have met rows of a job that was begun
    anew, and finds the job whole again when it goes on.
    """
    standings = iter([(1, 1), (1, 2)])
    assert code_of(tmp_path / "1", lambda _: next(standings)) == ASK_PROXY
    assert code_of(tmp_path / "2", lambda _: (1, 1)) == STALE_ROUTE


@pytest.mark.shells
@pytest.mark.proves("D2", "S3", "Q4")
def test_nothing_is_told_before_readers_are_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: whatever a node says, its page says what the node goes by at that moment."""
    send = QueryStateProxyClient.send
    publish = PageWriter.publish
    published: list[Any] = []
    said: list[str] = []
    unbound: list[str] = []

    def publish_and_note(self: PageWriter, *args: Any, **settings: Any) -> None:
        publish(self, *args, **settings)
        published.append(self._last)

    def look_and_send(self: QueryStateProxyClient, *args: Any, **settings: Any) -> bool:
        running = stage.nodes[0]._running if stage.nodes else None
        if running is not None and running.client is self:
            standing, page = running._core.standing(), published[-1]
            jobs = [
                (
                    one.assignment_version,
                    key_groups_in(one.key_groups),
                    one.is_caught_up,
                )
                for one in page.jobs
            ]
            name = type(args[0]).__name__
            said.append(name)
            if (
                page.leader_epoch != standing.leader_epoch
                or page.direct_until_ns != standing.direct_until_ns
                or page.lease_until_ns != standing.lease_until_ns
                or jobs
                != [
                    (one.assignment_version, one.key_groups, caught_up)
                    for one, caught_up in standing.jobs
                ]
            ):
                unbound.append(name)
        return send(self, *args, **settings)

    monkeypatch.setattr(PageWriter, "publish", publish_and_note)
    monkeypatch.setattr(QueryStateProxyClient, "send", look_and_send)
    with ProxyStage(tmp_path, readers=1, node_count=0) as stage:
        stage.add_node("first")
        stage._node.pop("readers")  # the other one has no page
        publisher = stage.publisher()
        publisher.write({STATE: [(f"N{n}", n) for n in range(200)]})
        stage.add_node("second")
        with StateOperations(stage.ha) as operations:
            operations.rescale(JOB, node_count=2)
        publisher.write({STATE: [("N1", 2)]})
    assert {"NodeHeartbeat", "EntriesApplied"} <= set(said)
    assert not unbound
