"""Clients that take what they can: the server's memory stays below its limit (N3)."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import zmq

from leaderserver import codec
from leaderserver.messages import (
    DoneReply,
    HeartbeatRequest,
    Hello,
    Request,
    SubscribeRequest,
    Welcome,
)
from leaderserver.store_messages import CommitRequest, GetRequest, PutRecord
from tests.drills.memory import MEBIBYTE, Memory
from tests.drills.processes import Contender, Server
from tests.leaderserver.scripted_client import ScriptedClient
from tests.zmqtransport.raw_peer import send_without_end
from zmqtransport import framing


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.drills.reporting import Report


LIMIT_BYTES: Final = 256 * MEBIBYTE
JOB: Final = "flights"
STORE_JOB: Final = "default/values"
SECONDS: Final = 8.0


class Greed:
    """What greedy peers share: where the server is, and how many sockets they have."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.endpoint = f"tcp://127.0.0.1:{server.port}"
        self.publish_endpoint = f"tcp://127.0.0.1:{server.publish_port}"
        self.until = time.monotonic() + SECONDS

    @property
    def is_over(self) -> bool:
        """Return whether that was enough."""
        return time.monotonic() >= self.until

    @contextlib.contextmanager
    def sockets(
        self, socket_type: int, count: int
    ) -> Iterator[list[zmq.Socket[bytes]]]:
        """Yield connected sockets that read nothing by themselves."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, count + 10)
        sockets = []
        try:
            for _ in range(count):
                peer = context.socket(socket_type)
                peer.setsockopt(zmq.LINGER, 0)
                peer.setsockopt(zmq.SNDHWM, 50)
                peer.setsockopt(zmq.RCVHWM, 1)
                peer.setsockopt(zmq.RCVBUF, 65_536)
                peer.connect(
                    self.endpoint
                    if socket_type == zmq.DEALER
                    else self.publish_endpoint
                )
                sockets.append(peer)
            yield sockets
        finally:
            for peer in sockets:
                peer.close()
            context.term()


def hello() -> list[bytes]:
    """Return the frames of a greeting."""
    message = Hello(
        nonce=secrets.token_bytes(16),
        session_timeout_ns=60_000_000_000,
        lease_ns=500_000_000,
        client="greedy",
    )
    return framing.encode(codec.encode(message))


def welcome(peer: zmq.Socket[bytes]) -> Welcome | None:
    """Return what a greeting brings, if it is a session."""
    peer.send_multipart(hello())
    if not peer.poll(20_000):
        return None
    answer = codec.decode_to_client(
        framing.decode(peer.recv_multipart(), size_bytes_max=2**20)
    )
    return answer if isinstance(answer, Welcome) else None


def send(peer: zmq.Socket[bytes], frames: list[bytes]) -> bool:
    """Send if there is room at once; return whether there was."""
    try:
        peer.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def flood(greed: Greed, sockets: list[zmq.Socket[bytes]], frames: list[bytes]) -> None:
    """Send *frames* over all *sockets*, as fast as they go, until it is over."""
    pause = threading.Event()  # is never set: it waits
    while not greed.is_over:
        went = [send(peer, frames) for peer in sockets]
        if not any(went):
            pause.wait(0.001)


def unread_replies(greed: Greed) -> None:
    """Ask for values of 1 MB again and again, and read none."""
    with ScriptedClient(greed.endpoint) as writer:
        writer.hello()
        affirmation = writer.lead(STORE_JOB, "writer").affirmation
        commit = CommitRequest(
            component_id=STORE_JOB,
            leader_session_id=affirmation.leader_session_id,
            epoch=affirmation.epoch,
            operations=[PutRecord(path="large", value=bytes(999_000), version=None)],
        )
        assert writer.ask(commit) == DoneReply()
    with greed.sockets(zmq.DEALER, 40) as sockets:
        secrets_ = [welcome(peer) for peer in sockets]
        for number in range(1, 601):
            for peer, session in zip(sockets, secrets_, strict=True):
                if session is not None:
                    get = Request(
                        secret=session.secret,
                        number=number,
                        body=GetRequest(component_id=STORE_JOB, path="large"),
                    )
                    send(peer, framing.encode(codec.encode(get)))
            if greed.is_over:
                return
        threading.Event().wait(max(0.0, greed.until - time.monotonic()))


def big_frames(greed: Greed) -> None:
    """Flood it with frames of 2 MB."""
    with greed.sockets(zmq.DEALER, 100) as sockets:
        flood(greed, sockets, framing.encode(bytes(2_000_000)))


def big_frames_while_stopped(greed: Greed) -> None:
    """Flood it with frames of 2 MB while it is stopped, again and again."""
    has_ended = threading.Event()

    def stop_and_go() -> None:
        while not has_ended.wait(0.2):
            greed.server.process.pause()
            has_ended.wait(0.15)
            greed.server.process.resume()

    stopper = threading.Thread(target=stop_and_go)
    stopper.start()
    try:
        big_frames(greed)
    finally:
        has_ended.set()
        stopper.join()


def messages_that_never_end(greed: Greed) -> None:
    """Send frame after frame of messages that have no last one, in ZMTP by hand."""
    send_without_end(greed.server.port, until=greed.until)


def many_topics(greed: Greed) -> None:
    """Subscribe to topics of the right size, each another one."""
    subscribe_to_many(greed, codec.TOPIC_SIZE_BYTES)


def long_topics(greed: Greed) -> None:
    """Subscribe to topics that are as long as a frame may be."""
    subscribe_to_many(greed, 511)


def longer_topics(greed: Greed) -> None:
    """Subscribe to topics that are longer than a frame may be."""
    subscribe_to_many(greed, 1_800)


def subscribe_to_many(greed: Greed, size_bytes: int) -> None:
    """Subscribe to topics of that size, each another one."""
    with greed.sockets(zmq.XSUB, 50) as sockets:
        pause = threading.Event()
        while not greed.is_over:
            topic = b"\x01" + secrets.token_bytes(size_bytes)
            went = [send(peer, [topic]) for peer in sockets]
            if not any(went):
                pause.wait(0.001)


def many_subscriptions(greed: Greed) -> None:
    """Subscribe many sessions to many components of long names."""
    with greed.sockets(zmq.DEALER, 60) as sockets:
        sessions = [welcome(peer) for peer in sockets]
        number = 0
        while not greed.is_over:
            number += 1
            name = f"default/{number:06}{'x' * 200}"
            for peer, session in zip(sockets, sessions, strict=True):
                if session is None:
                    continue
                subscribe = SubscribeRequest(
                    component_id=name, epoch_seen=0, is_ended_seen=False
                )
                body = (
                    HeartbeatRequest(acknowledged=0) if number % 500 == 0 else subscribe
                )
                request = Request(secret=session.secret, number=number, body=body)
                send(peer, framing.encode(codec.encode(request)))
                while peer.poll(0):
                    peer.recv_multipart()


def many_connections(greed: Greed) -> None:
    """Open more connections to both ports than there is room for."""
    with (
        greed.sockets(zmq.DEALER, 2_500) as requests,
        greed.sockets(zmq.XSUB, 2_500) as subscribers,
    ):
        for peer in requests:
            send(peer, hello())
        for peer in subscribers:
            send(peer, [b"\x01topic"])
        threading.Event().wait(max(1.0, greed.until - time.monotonic()))


GREEDY: Final[tuple[Callable[[Greed], None], ...]] = (
    unread_replies,
    big_frames,
    big_frames_while_stopped,
    messages_that_never_end,
    many_topics,
    long_topics,
    longer_topics,
    many_subscriptions,
    many_connections,
)


@pytest.mark.proves("N3")
@pytest.mark.drill
@pytest.mark.parametrize("greedy", GREEDY, ids=lambda greedy: greedy.__name__)
def test_greedy_peers_do_not_exhaust_the_server(
    greedy: Callable[[Greed], None], tmp_path: Path, report: Report
) -> None:
    """N3: whatever clients do, memory stays below the limit, and a leader leads on."""
    options = ["--memory-limit-bytes", str(LIMIT_BYTES)]
    with (
        Server(tmp_path, lease_seconds_max=1.0, options=options) as server,
        Contender(
            "leader",
            tmp_path,
            job_ids=[JOB],
            url=server.url,
            lease_seconds=1.0,
            session_timeout_seconds=10.0,
        ) as leader,
    ):
        granted = leader.wait_for("confirmed")
        leader.wait_until_believing(JOB, granted.epoch)
        with Memory(server.process.pid) as memory:
            greedy(Greed(server))
        leader.wait_until_believing(JOB, granted.epoch)
        doubts = len(leader.all("doubted"))
        assert leader.all("revoked") == []
        assert len(leader.all("granted")) == 1
        name = greedy.__name__.replace("_", " ")
        report.say(
            f"{name}: {memory.before_bytes / MEBIBYTE:.0f} MiB before, at most "
            f"{memory.peak_bytes / MEBIBYTE:.0f} MiB of {LIMIT_BYTES // MEBIBYTE}; "
            f"the leader doubted {doubts} times and led on",
            **{f"peak_mebibytes ({name})": memory.peak_bytes / MEBIBYTE},
        )
        leader.end()
        assert memory.peak_bytes < LIMIT_BYTES
