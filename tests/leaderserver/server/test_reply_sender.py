"""`ReplySender` over a real ROUTER: who does not read is handed no more (N3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import zmq

from leaderserver.messages import Reply
from leaderserver.server.core.reply_queues import QueueLimits
from leaderserver.server.reply_sender import ReplySender
from leaderserver.store_messages import ValueReply
from nameservice import SystemClock
from zmqtransport import (
    ConnectionId,
    SocketLimits,
    bind_socket,
    connect_socket,
    connection_of,
    new_context,
    open_socket,
    parse_endpoint,
    receive_now,
)


pytestmark = pytest.mark.shells

WAIT_MS = 20_000
LARGE = Reply(number=1, body=ValueReply(value=bytes(1_000_000), version=1))
SMALL = Reply(number=2, body=ValueReply(value=b"1", version=1))


class Peer:
    """A client that reads nothing, and the sender of its replies."""

    def __init__(self, router: zmq.Socket[bytes], frames: list[zmq.Frame]) -> None:
        self.ended: list[ConnectionId] = []
        self.counts: Counter[str] = Counter()
        self.routing_id = frames[0].bytes
        self.connection = connection_of(frames[0])
        self.sender = ReplySender(
            router,
            QueueLimits(
                bytes_per_peer_max=4_000_000, bytes_max=2_000_000, count_per_peer_max=9
            ),
            clock=SystemClock(),
            disconnect=self.ended.append,
            count=lambda name: self.counts.update([name]),
            may_log=lambda _: True,
        )


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Yield a client that is connected."""
    context = new_context()
    router = open_socket(context, zmq.ROUTER, SocketLimits(kernel_buffer_bytes=65_536))
    dealer = open_socket(
        context,
        zmq.DEALER,
        SocketLimits(kernel_buffer_bytes=65_536, receive_queue_count_max=1),
    )
    try:
        endpoint = bind_socket(router, parse_endpoint("tcp://127.0.0.1:0"))
        connect_socket(dealer, endpoint)
        dealer.send(b"hello")
        assert router.poll(WAIT_MS)
        yield Peer(router, receive_now(router, frame_count_max=2))
    finally:
        dealer.close()
        router.close()
        context.term()


@pytest.mark.proves("N3")
def test_a_connection_that_was_ended_is_handed_nothing_more(peer: Peer) -> None:
    """N3: ZeroMQ takes it until what the connection brought before is read."""
    sender = peer.sender
    handed_bytes = send_until_ended(peer)
    for _ in range(10):
        assert not sender.heard(peer.routing_id, peer.connection)
        sender.send(peer.routing_id, LARGE)
    assert peer.ended == [peer.connection]
    assert sender.sent_bytes == handed_bytes
    assert sender.queued_bytes == 0
    assert peer.counts["replies_unroutable"] >= 10

    sender.closed(peer.routing_id, peer.connection)
    assert sender.heard(peer.routing_id, peer.connection)  # another of that number
    sender.send(peer.routing_id, SMALL)
    assert sender.sent_bytes > handed_bytes


@pytest.mark.proves("N3")
def test_a_client_that_comes_back_under_its_name_is_answered(peer: Peer) -> None:
    """N3: its new connection may be heard before the end of the old one is told."""
    sender = peer.sender
    handed_bytes = send_until_ended(peer)
    assert sender.heard(peer.routing_id, ConnectionId(peer.connection + 1))
    sender.send(peer.routing_id, SMALL)
    assert sender.sent_bytes > handed_bytes
    for _ in range(3):
        sender.send(peer.routing_id, LARGE)
    queued_bytes = sender.queued_bytes
    sender.closed(peer.routing_id, peer.connection)
    assert sender.queued_bytes == queued_bytes


def send_until_ended(peer: Peer) -> int:
    """Send to a client until that is enough; return how many bytes ZeroMQ took."""
    assert peer.sender.heard(peer.routing_id, peer.connection)
    for _ in range(20):  # the client's ZeroMQ takes some
        peer.sender.send(peer.routing_id, LARGE)
        if peer.ended:
            break
    assert peer.ended == [peer.connection]
    return peer.sender.sent_bytes
