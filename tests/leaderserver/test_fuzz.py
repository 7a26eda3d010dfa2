"""
At least 20,000 bad frames against one server, over real sockets; at night 100,000.

Two good clients lead a component each and go on heartbeating while strangers send
everything that is wrong: bytes that are no message, messages of another version, of
other types and sizes, damaged and truncated ones, recorded ones of the good clients,
requests under guessed and under stolen secrets, under the good clients' own routing
ids, greetings, and floods of subscriptions.  Afterwards each leads as before, with the
same id and epoch, nothing was granted, revoked or written, and the server serves.

What is sent is drawn from a seed, so a failure can be repeated.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from leaderserver import LeaderServer, ServerConfig, codec
from leaderserver.messages import (
    CloseSessionRequest,
    ConfirmRequest,
    Granted,
    HeartbeatRequest,
    Hello,
    RegisterRequest,
    Request,
    RequestBody,
    RevocationFinishedRequest,
    SessionUnknown,
    SubscribeRequest,
    UnsubscribeRequest,
    WithdrawRequest,
)
from leaderserver.operator_messages import (
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
    RevokeRequest,
    SessionsRequest,
    StatusRequest,
    TransferRequest,
)
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    DeleteRecord,
    GetRequest,
    ListRequest,
    PutRecord,
    UnwatchStoreRequest,
    WatchStoreRequest,
)
from tests.leaderserver.scripted_client import ScriptedClient, ScriptedSubscriber
from tests.tiers import nightly_after
from zmqtransport import CurveKeyPair, framing, write_key_pair


pytestmark = pytest.mark.shells

SEED: Final = 20_261_121
FRAME_COUNTS: Final = (20_000, 100_000)
BURST_COUNT: Final = 500
HEARTBEAT_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 60.0

Frames: TypeAlias = tuple[bytes, ...]
Kind: TypeAlias = Callable[["Fuzzer"], Frames]


class GoodClient:
    """
    A leader that heartbeats in a thread of its own, and takes note of each answer.

    Args:
        client: Its session; used by that thread alone once it has begun.
        granted: What it leads.
    """

    def __init__(self, client: ScriptedClient, granted: Granted) -> None:
        self.client = client
        self.granted = granted
        self.delay_seconds_max = 0.0
        self.problems: list[str] = []
        self.answered = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="good client")

    def start(self) -> None:
        """Begin to heartbeat."""
        self._thread.start()

    def stop(self) -> None:
        """Cease, and return when that is so."""
        self._is_over.set()
        self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(HEARTBEAT_SECONDS):
                sent = time.monotonic()
                answer = self.client.heartbeat()
                delay_seconds = time.monotonic() - sent
                self.delay_seconds_max = max(self.delay_seconds_max, delay_seconds)
                self.answered.set()
                if answer.affirmations != [self.granted.affirmation]:
                    self.problems.append(f"affirmed: {answer.affirmations}")
                if self.client.pushed:
                    self.problems.append(f"pushed: {self.client.pushed}")
                    self.client.pushed.clear()
        except Exception as error:  # noqa: BLE001 (told to the test, which fails)
            self.problems.append(repr(error))


class Fuzzer:
    """
    Draws bad frames.

    Args:
        seed: The same seed draws the same frames.
        good: Whose leaderships are aimed at.
        recorded: Requests that the good clients have sent, as they went.
        own_secret: The secret of a session that the stranger may have, or None.
    """

    def __init__(
        self,
        seed: int,
        good: list[GoodClient],
        recorded: list[bytes],
        own_secret: bytes | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.good = good
        self.recorded = recorded
        self.own_secret = own_secret

    def forged_secret(self) -> bytes:
        """Return a guess; now and then one that is almost right."""
        if self.random.random() < 0.5:
            return self.random.randbytes(32)
        secret = bytearray(self.random.choice(self.good).client.secret)
        secret[self.random.randrange(32)] ^= 1 << self.random.randrange(8)
        return bytes(secret)

    def body(self) -> RequestBody:
        """Return a request that would do harm if it were believed."""
        target = self.random.choice(self.good)
        affirmation = target.granted.affirmation
        component_id = affirmation.component_id
        contender_id = affirmation.contender_id
        bodies: list[RequestBody] = [
            HeartbeatRequest(acknowledged=self.random.randrange(2**63)),
            WithdrawRequest(component_id=component_id, contender_id=contender_id),
            RevocationFinishedRequest(
                component_id=component_id,
                contender_id=contender_id,
                epoch=affirmation.epoch,
            ),
            ConfirmRequest(
                component_id=component_id,
                contender_id=contender_id,
                leader_session_id=affirmation.leader_session_id,
                confirm_count=1_000,
                address="evil:666",
            ),
            RegisterRequest(
                component_id=component_id,
                contender_id=contender_id,
                confirm_timeout_ns=1,
                ticket=1,
                epoch_ended=affirmation.epoch + 1,
                claim=None,
            ),
            CommitRequest(
                component_id=component_id,
                leader_session_id=affirmation.leader_session_id,
                epoch=affirmation.epoch,
                operations=[
                    PutRecord(path="evil", value=b"evil", version=None),
                    DeleteRecord(path="good", version=None),
                ],
            ),
            CleanupRequest(component_id=component_id),
            SubscribeRequest(
                component_id=component_id,
                epoch_seen=affirmation.epoch + 1,
                is_ended_seen=True,
            ),
            UnsubscribeRequest(component_id=component_id),
            CloseSessionRequest(),
            RevokeRequest(component_id=component_id),
            TransferRequest(
                component_id=component_id, contender_id=affirmation.contender_id
            ),
            ExpireRequest(session_id=target.client.session_id),
            ContendersRequest(component_id=component_id),
            GetRequest(component_id=component_id, path="good"),
            ListRequest(component_id=component_id, prefix="", after=""),
            WatchStoreRequest(
                component_id=component_id, incarnation_seen=0, revision_seen=None
            ),
            UnwatchStoreRequest(component_id=component_id),
            LeadersRequest(prefix="", after=""),
            SessionsRequest(after=""),
            StatusRequest(),
        ]
        return self.random.choice(bodies)

    def request(self, secret: bytes) -> bytes:
        """Return a harmful request under *secret*."""
        number = self.random.choice([1, 2, 1_000_000, 2**62, 2**63 - 1])
        return codec.encode(Request(secret=secret, number=number, body=self.body()))

    def as_map(self) -> dict[str, Any]:
        """Return a harmful request as the map that it is on the wire."""
        fields: dict[str, Any] = msgspec.msgpack.decode(
            self.request(self.forged_secret())
        )
        return fields

    def junk(self) -> object:
        """Return a value of any type."""
        return self.random.choice(
            [
                None,
                True,
                -1,
                2**64 - 1,
                1.5,
                float("nan"),
                "",
                "\0",
                "x" * 600,
                b"",
                b"\xff" * 40,
                [],
                [[[]]],
                {},
                {"type": "hello"},
                UUID(int=0).hex,
                msgspec.msgpack.Ext(5, b"ext"),
            ]
        )


def random_bytes(fuzzer: Fuzzer) -> Frames:
    """Any number of frames of anything."""
    draw = fuzzer.random
    return tuple(
        draw.randbytes(draw.randrange(60)) for _ in range(draw.randrange(1, 6))
    )


def random_payload(fuzzer: Fuzzer) -> Frames:
    """The right header, then anything."""
    draw = fuzzer.random
    return tuple(framing.encode(draw.randbytes(draw.randrange(200))))


def truncated(fuzzer: Fuzzer) -> Frames:
    """A message that ends too soon: in a frame, or after one."""
    draw = fuzzer.random
    header, payload = framing.encode(fuzzer.request(fuzzer.forged_secret()))
    return draw.choice(
        [
            (header, payload[: draw.randrange(len(payload))]),
            (header[: draw.randrange(4)], payload),
            (header,),
            (payload,),
        ]
    )


def too_many_frames(fuzzer: Fuzzer) -> Frames:
    """A good message with more behind it."""
    frames = framing.encode(fuzzer.request(fuzzer.forged_secret()))
    return (*frames, *[b"more"] * fuzzer.random.randrange(1, 20))


def oversized(fuzzer: Fuzzer) -> Frames:
    """A frame above the limit of the server of this test, of good MessagePack."""
    return tuple(framing.encode(msgspec.msgpack.encode(bytes(66_000))))


def wrong_version(fuzzer: Fuzzer) -> Frames:
    """Another version, or another protocol."""
    draw = fuzzer.random
    version = draw.choice([0, 2, 3, 255])
    header = draw.choice([b"LDS" + bytes([version]), b"LDT\x01", b"MDPC01", b"\0" * 4])
    return (header, fuzzer.request(fuzzer.forged_secret()))


def wrong_type(fuzzer: Fuzzer) -> Frames:
    """A good request, one field of which is something else, missing, or one more."""
    draw = fuzzer.random
    fields = fuzzer.as_map()
    target = draw.choice([fields, fields["body"]])
    name = draw.choice([*target, "unknown"])
    if name != "unknown" and draw.random() < 0.3:
        del target[name]
    else:
        target[name] = fuzzer.junk()
    return tuple(framing.encode(msgspec.msgpack.encode(fields)))


def damaged(fuzzer: Fuzzer) -> Frames:
    """A good request with some bits turned."""
    draw = fuzzer.random
    while True:
        payload = bytearray(fuzzer.request(fuzzer.forged_secret()))
        for _ in range(draw.randrange(1, 5)):
            payload[draw.randrange(len(payload))] ^= 1 << draw.randrange(8)
        # A guess that is almost right may have become right: its sender would be in.
        if not any(leader.client.secret in payload for leader in fuzzer.good):
            return tuple(framing.encode(bytes(payload)))


def nested(fuzzer: Fuzzer) -> Frames:
    """Lists in lists, and lengths that nothing follows."""
    draw = fuzzer.random
    payload = draw.choice(
        [
            b"\x91" * draw.randrange(1, 5_000),
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
        ]
    )
    return tuple(framing.encode(payload))


def replayed(fuzzer: Fuzzer) -> Frames:
    """What a good client has sent before, recorded from the wire."""
    return tuple(framing.encode(fuzzer.random.choice(fuzzer.recorded)))


def forged(fuzzer: Fuzzer) -> Frames:
    """A harmful request under a guessed secret."""
    return tuple(framing.encode(fuzzer.request(fuzzer.forged_secret())))


def bad_hello(fuzzer: Fuzzer) -> Frames:
    """A greeting that is not one."""
    draw = fuzzer.random
    hello = {
        "type": "hello",
        "nonce": bytes(16),
        "session_timeout_ns": 10**9,
        "lease_ns": 10**8,
        "client": "evil",
    }
    hello[draw.choice(sorted(hello))] = fuzzer.junk()
    hello["lease_ns"] = draw.choice([0, -1, 2**63, "1"])
    return tuple(framing.encode(msgspec.msgpack.encode(hello)))


def hello_again(fuzzer: Fuzzer) -> Frames:
    """One greeting over and over: it opens one session at most."""
    hello = Hello(
        nonce=b"the same nonce..",
        session_timeout_ns=1,
        lease_ns=2**62,
        client="\x1b[2J",
    )
    return tuple(framing.encode(codec.encode(hello)))


def stolen(fuzzer: Fuzzer) -> Frames:
    """A harmful request under the true secret of a good client; only for CURVE."""
    secret = fuzzer.random.choice(fuzzer.good).client.secret
    return tuple(framing.encode(fuzzer.request(secret)))


def own(fuzzer: Fuzzer) -> Frames:
    """A harmful request under the stranger's own session; only for CURVE."""
    assert fuzzer.own_secret is not None
    body = fuzzer.body()
    while isinstance(body, CloseSessionRequest | SubscribeRequest):
        # Closing is its right; and what it reports having seen is believed (E9).
        body = fuzzer.body()
    request = Request(
        secret=fuzzer.own_secret, number=fuzzer.random.randrange(1, 2**40), body=body
    )
    return tuple(framing.encode(codec.encode(request)))


ANYBODYS: Final[tuple[Kind, ...]] = (
    random_bytes,
    random_payload,
    truncated,
    too_many_frames,
    wrong_version,
    wrong_type,
    damaged,
    nested,
    replayed,
    forged,
    bad_hello,
    hello_again,
)
"""Kinds that are drawn alike; `oversized` is rarer, because it is large."""


def config_of(directory: Path, **settings: Any) -> ServerConfig:
    """Return the configuration of a server with narrow limits."""
    return ServerConfig(
        bind="tcp://127.0.0.1:0",
        data_dir=directory / "data",
        lease_seconds_max=1.0,
        frame_size_bytes_max=65_536,
        subscriptions_per_session_max=100,
        components_max=1_000,
        **settings,
    )


def lead(client: ScriptedClient, index: int) -> GoodClient:
    """Return *client* as the leader of a component, with something stored."""
    client.hello()
    granted = client.lead(f"c/job{index}", f"good{index}", address=f"good:{index}")
    client.ask(
        CommitRequest(
            component_id=f"c/job{index}",
            leader_session_id=granted.affirmation.leader_session_id,
            epoch=granted.affirmation.epoch,
            operations=[PutRecord(path="good", value=b"good", version=0)],
        )
    )
    client.heartbeat()
    client.pushed.clear()
    return GoodClient(client, granted)


def record(good: list[GoodClient]) -> list[bytes]:
    """Return requests as the good clients have sent them: numbers that are used."""
    recorded = []
    fuzzer = Fuzzer(SEED, good, [])
    for client in good:
        for number in range(1, client.client.number + 1):
            for _ in range(20):
                body = fuzzer.body()
                request = Request(secret=client.client.secret, number=number, body=body)
                recorded.append(codec.encode(request))
    return recorded


def send(stranger: ScriptedClient, frames: Frames) -> None:
    """Send *frames*, and read away what was answered."""
    stranger.send(*frames)
    while stranger.socket.poll(0):
        stranger.socket.recv_multipart()


_questions = itertools.count(2**62)


def settle(stranger: ScriptedClient) -> None:
    """Return when the server has seen all that *stranger* has sent."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        # Asked again in time: who does not read for long loses answers (N3).
        number = next(_questions)
        question = Request(secret=bytes(32), number=number, body=StatusRequest())
        stranger.send(*framing.encode(codec.encode(question)))
        while stranger.socket.poll(1_000):
            message = codec.decode_to_client(stranger.socket.recv_multipart()[1])
            if isinstance(message, SessionUnknown) and message.number == number:
                return
    raise AssertionError("the server does not answer")


def check(server: LeaderServer, good: list[GoodClient]) -> None:
    """Check that every leadership is as it was, and that all are served."""
    for leader in good:
        leader.answered.clear()
        leader.answered.wait(TIMEOUT_SECONDS)
        leader.stop()
    for index, leader in enumerate(good):
        assert leader.problems == []
        assert leader.answered.is_set()
        client = leader.client
        assert client.heartbeat().affirmations == [leader.granted.affirmation]
        component_id = leader.granted.affirmation.component_id
        reply = client.ask(ListRequest(component_id=component_id, prefix="", after=""))
        assert msgspec.structs.asdict(reply)["paths"] == ["good"]
        components = client.ask(LeadersRequest(prefix="", after=""))
        (component,) = (
            c
            for c in msgspec.structs.asdict(components)["components"]
            if c.component_id == component_id
        )
        assert component.contender_count == 1
        assert component.publication.address == f"good:{index}"
        assert component.publication.confirm_count == 1
    figures = server.status()
    assert figures["grants_total"] == len(good)
    assert figures["failures_total"] == 0
    assert server.failure is None


@pytest.fixture
def resources() -> Iterator[list[ScriptedClient]]:
    """Yield a list of clients that are closed in the end."""
    clients: list[ScriptedClient] = []
    yield clients
    for client in clients:
        client.close()


class TestFuzz:
    @pytest.mark.proves("N3")
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("frame_count", nightly_after(1, FRAME_COUNTS))
    def test_bad_frames_have_no_effect(
        self, tmp_path: Path, resources: list[ScriptedClient], frame_count: int
    ) -> None:
        """Many thousands change no leadership, and the server serves (N1, N3)."""
        with (
            LeaderServer(config_of(tmp_path)) as server,
            capture_logs() as logs,
        ):
            good = []
            for index in range(2):
                client = ScriptedClient(server)
                resources.append(client)
                good.append(lead(client, index))
            for leader in good:
                leader.start()
            fuzzer = Fuzzer(SEED, good, record(good))
            began = time.monotonic()
            count = 0
            while count < frame_count:
                # A new connection for each part: descriptors are used again.
                with ScriptedClient(server) as stranger:
                    settle(stranger)
                    for _ in range(BURST_COUNT):
                        kind = fuzzer.random.choice(ANYBODYS)
                        if fuzzer.random.random() < 0.002:
                            kind = oversized
                        send(stranger, kind(fuzzer))
                    settle(stranger)
                count += BURST_COUNT
            duration_seconds = time.monotonic() - began
            check(server, good)
            figures = server.status()
        dropped = sum(
            int(value)
            for name, value in figures.items()
            if name.startswith(("frames_", "requests_session", "requests_repeated"))
        )
        assert dropped >= frame_count
        for kind_name in (
            "truncated",
            "malformed",
            "oversized",
            "wrong_version",
            "wrong_magic",
        ):
            assert figures[f"frames_{kind_name}_total"]
        assert figures["requests_session_unknown_total"]
        assert figures["requests_repeated_total"]
        warnings = [line for line in logs if line["log_level"] == "warning"]
        # Ten lines in ten seconds, and one that counts what was left out, of each of
        # the three that log: the service, the request port and the publishing port.
        assert len(warnings) <= 3 * 12 * (duration_seconds / 10 + 2)
        print(
            f"{count} frames in {duration_seconds:.1f} s; slowest heartbeat "
            f"{max(leader.delay_seconds_max for leader in good) * 1e3:.0f} ms"
        )

    @pytest.mark.proves("N4")
    def test_stolen_secrets_have_no_effect(
        self, tmp_path: Path, resources: list[ScriptedClient]
    ) -> None:
        """With CURVE, 10,000 requests under secrets of others, and own (N1, N4)."""
        keys = {name: CurveKeyPair.generate() for name in ("server", "good", "evil")}
        files = write_key_pair(keys["server"], tmp_path / "server")
        allow_list = tmp_path / "clients.toml"
        allow_list.write_text(
            f'[clients.good]\npublic_key = "{keys["good"].public_key}"\n'
            'roles = ["contend:*"]\n'
            f'[clients.evil]\npublic_key = "{keys["evil"].public_key}"\n'
            'roles = ["observe"]\n'
        )
        config = config_of(
            tmp_path,
            curve_public_key_file=files.public_file,
            curve_secret_key_file=files.secret_file,
            allow_list_file=allow_list,
        )
        server_key = keys["server"].public_key
        with LeaderServer(config) as server, capture_logs():
            client = ScriptedClient(server, keys=(keys["good"], server_key))
            resources.append(client)
            good = [lead(client, 0)]
            good[0].start()
            stranger = ScriptedClient(server, keys=(keys["evil"], server_key))
            resources.append(stranger)
            stranger.hello(nonce=b"of the stranger.")
            fuzzer = Fuzzer(SEED, good, record(good), own_secret=stranger.secret)
            for _ in range(10_000):
                kind = fuzzer.random.choice((stolen, replayed, own, forged))
                send(stranger, kind(fuzzer))
            settle(stranger)
            check(server, good)
            figures = server.status()
        assert int(figures["requests_foreign_key_total"]) > 4_000
        assert int(figures["requests_failed_total"]) > 0

    def test_a_taken_routing_id_takes_nothing_else(
        self, tmp_path: Path, resources: list[ScriptedClient]
    ) -> None:
        """Who calls himself like a good client gets neither news nor rights (N1)."""
        with LeaderServer(config_of(tmp_path)) as server:
            client = ScriptedClient(server, routing_id=b"good")
            resources.append(client)
            good = [lead(client, 0)]
            good[0].start()
            fuzzer = Fuzzer(SEED, good, record(good))
            thieves = [ScriptedClient(server, routing_id=b"good") for _ in range(20)]
            resources.extend(thieves)
            for thief in thieves:
                for _ in range(100):
                    thief.send(*forged(fuzzer))
                    thief.send(*replayed(fuzzer))
            for thief in thieves:
                assert not thief.socket.poll(50)
            check(server, good)

    @pytest.mark.proves("N3")
    def test_floods_of_subscriptions_leave_others_their_news(
        self, tmp_path: Path, resources: list[ScriptedClient]
    ) -> None:
        """10,000 topics, and as many changes of one, end only their senders (N3)."""
        with (
            LeaderServer(config_of(tmp_path)) as server,
            ScriptedSubscriber(server, codec.publication_topic("c/job0")) as hearer,
            capture_logs(),
        ):
            client = ScriptedClient(server)
            resources.append(client)
            client.hello()
            client.ask(
                SubscribeRequest(
                    component_id="c/job0", epoch_seen=0, is_ended_seen=False
                )
            )
            client.close()
            client = ScriptedClient(server)
            resources.append(client)
            good = [lead(client, 0)]
            client.ask(
                SubscribeRequest(
                    component_id="c/job0", epoch_seen=0, is_ended_seen=False
                )
            )
            client.pushed.clear()
            draw = random.Random(SEED)
            good[0].start()
            for index in range(10):
                with ScriptedSubscriber(server) as flood:
                    for number in range(1_000):
                        size_bytes = draw.choice([codec.TOPIC_SIZE_BYTES] * 99 + [40])
                        topic = draw.randbytes(size_bytes)
                        if index % 2:
                            topic = bytes(codec.TOPIC_SIZE_BYTES)
                        flood.socket.send(bytes([number % 2 or index % 2 == 0]) + topic)
                        if number % 100 == 0:
                            flood.socket.send(b"\x01" + bytes(5_000))
            check(server, good)
            client.ask(
                ConfirmRequest(
                    component_id="c/job0",
                    contender_id="good0",
                    leader_session_id=good[0].granted.affirmation.leader_session_id,
                    confirm_count=2,
                    address="good:again",
                )
            )
            addresses: list[str | None] = []
            while not addresses or addresses[-1] != "good:again":
                frames = hearer.receive()
                assert frames is not None
                published = codec.decode_to_client(frames[2])
                addresses.append(
                    msgspec.structs.asdict(published)["publication"].address
                )

    @pytest.mark.proves("N3")
    def test_bytes_that_are_no_zeromq_have_no_effect(
        self, tmp_path: Path, resources: list[ScriptedClient]
    ) -> None:
        """Neither HTTP, nor ZMTP 1.0, nor noise, nor silence gets anywhere (N3)."""
        draw = random.Random(SEED)
        with LeaderServer(config_of(tmp_path)) as server:
            client = ScriptedClient(server)
            resources.append(client)
            good = [lead(client, 0)]
            good[0].start()
            port = int(server.endpoint.rpartition(":")[2])
            for index in range(200):
                noise = draw.choice(
                    [
                        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                        b"\x01\x00\x05\x00LDS\x01",
                        b"\xff" + struct.pack(">Q", 1) + b"\x7f\x03\x00NULL",
                        draw.randbytes(draw.randrange(1, 200)),
                        b"",
                    ]
                )
                target = (port, server.publish_port)[index % 2]
                with socket.create_connection(("127.0.0.1", target), 10) as raw:
                    raw.sendall(noise)
                    if draw.random() < 0.5:
                        # An abortive end: the other side reads an error.
                        raw.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
            check(server, good)
