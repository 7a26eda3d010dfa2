"""The socket of a proxy: what comes in, what does not, and whose connection is over."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import pytest
import zmq
from structlog.testing import capture_logs

from nameservice import (
    NS_PER_SECOND,
    AuthenticationError,
    Clock,
    ConfigurationError,
    ManualClock,
    SystemClock,
)
from queryablestate.control.events import LinkId
from queryablestate.proxy import encoded_routes
from queryablestate.proxy import port as proxy_port
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.port import ProxyPort
from queryablestate.wire import codec
from queryablestate.wire.address import parse_address
from queryablestate.wire.clients import (
    JobsListed,
    ListJobs,
    StateDescribed,
    StateDescription,
    ToProxy,
    Welcome,
)
from queryablestate.wire.node_messages import ApplyEntries, NodeRefused
from queryablestate.wire.questions import (
    Answer,
    GetValues,
    Question,
    Reading,
    Refusal,
)
from tests.queryablestate.proxy_peers import ScriptedPeer, check_not_let_in
from tests.recording import WAIT_SECONDS, Record, wait_until
from zmqtransport import CurveKeyPair, PollLoop, write_key_pair


pytestmark = pytest.mark.shells

ALICE = CurveKeyPair.generate()
MALLORY = CurveKeyPair.generate()
GREETING = ListJobs(request_id=1, session=b"x")
WELCOME = Welcome(
    request_id=1,
    session=b"s",
    leader_epoch=1,
    keys_per_request_max=1,
    frame_size_bytes_max=1,
)


@final
class Port:
    """
    A `ProxyPort` in a loop of its own.

    Attributes:
        came: What came in: link, message, second frame, key.
        closed: The links that are over.
    """

    def __init__(self, clock: Clock | None = None, **settings: Any) -> None:
        self.came: Record[tuple[LinkId, ToProxy, bytes | memoryview, str | None]] = (
            Record()
        )
        self.closed: Record[LinkId] = Record()
        self.loop = PollLoop(name="port")
        self.port = ProxyPort(
            ProxyConfig(**settings),
            loop=self.loop,
            clock=SystemClock() if clock is None else clock,
            on_message=lambda *message: self.came.add(message),
            on_closed=self._closed,
            why_not=lambda *_: None,
        )
        self.loop.at_end(self.port.close)
        self.loop.start()

    def _closed(self, links: Sequence[LinkId]) -> None:
        for link in links:
            self.closed.add(link)

    @property
    def address(self) -> str:
        """Return where it listens."""
        return self.port.address

    def call(self, action: Callable[[], object]) -> None:
        """Do something in the loop's thread, and wait for it."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self.loop.call_soon_threadsafe(act)
        assert done.wait(WAIT_SECONDS)

    def figure(self, name: str) -> int:
        """Return one of its figures."""
        found: list[int] = []
        self.call(lambda: found.append(self.port.figures().get(name, 0)))
        return found[0]

    def close(self) -> None:
        """End."""
        self.loop.stop()
        self.loop.join()


@contextlib.contextmanager
def opened(clock: Clock | None = None, **settings: Any) -> Iterator[Port]:
    """Yield a port."""
    port = Port(clock, **settings)
    try:
        yield port
    finally:
        port.close()


@pytest.fixture
def port() -> Iterator[Port]:
    """A port without CURVE."""
    with opened(frame_size_bytes_max=65_536) as port:
        yield port


def key_files(directory: Path) -> dict[str, Any]:
    """Return the settings of a proxy with keys."""
    files = write_key_pair(CurveKeyPair.generate(), directory / "proxy")
    return {
        "curve_public_key_file": files.public_file,
        "curve_secret_key_file": files.secret_file,
    }


def with_key(name: str, keys: CurveKeyPair) -> CallerEntry:
    """Return a caller with a key."""
    return CallerEntry(name=name, public_key=keys.public_key, read=["*/*"])


def with_token(name: str) -> CallerEntry:
    """Return a caller with a token."""
    return CallerEntry(name=name, token_sha256=token_sha256(name), read=["*/*"])


@contextlib.contextmanager
def deaf_peer(port: Port) -> Iterator[tuple[zmq.Socket[bytes], LinkId]]:
    """Yield one that reads when it is told to, and its link."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.RCVHWM, 1)
        peer.setsockopt(zmq.RCVBUF, 4_096)
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(port.address)
        count = len(port.came.items)
        peer.send(codec.encode(GREETING))
        yield peer, port.came.wait_for_count(count + 1)[count][0]


def description_of(owners: tuple[int, ...]) -> StateDescription:
    """Return what is known of a state with that route."""
    return StateDescription(
        job_id="job",
        state_name="state",
        state_number=1,
        schema="{}",
        max_parallelism=len(owners),
        generation=1,
        batch_id=1,
        query_id="query",
        age_ms=1,
        assignment_version=1,
        node_ids=("node-a",),
        owners=owners,
    )


@pytest.mark.proves("B1")
class TestBytes:
    """What waits for a peer that does not read is bounded in bytes."""

    def test_a_peer_that_does_not_read_is_sent_no_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B1: beyond its limit; small messages go on, and all that was taken comes."""
        monkeypatch.setattr(proxy_port, "_LINK_SIZE_BYTES_MAX", 8 << 20)
        payload = bytes(4 << 20)
        sent: list[bool] = []
        with (
            opened(frame_size_bytes_max=16 << 20) as port,
            zmq.Context() as context,
            context.socket(zmq.DEALER) as peer,
        ):
            peer.setsockopt(zmq.RCVHWM, 1)
            peer.setsockopt(zmq.LINGER, 0)
            peer.connect(port.address)
            peer.send(codec.encode(GREETING))
            link = port.came.wait_for_count(1)[0][0]
            for _ in range(40):
                port.call(lambda: sent.append(port.port.send(link, WELCOME, payload)))
            assert sent[0]
            assert not sent[-1]
            held_back = port.figure("messages_held_back_total")
            assert held_back == sent.count(False)
            told: list[bool] = []
            port.call(lambda: told.append(port.port.send(link, WELCOME)))
            assert told == [True]
            for _ in range(sent.count(True)):
                assert peer.recv_multipart() == [codec.encode(WELCOME), payload]
            assert peer.recv_multipart() == [codec.encode(WELCOME)]
            port.call(lambda: told.append(port.port.send(link, WELCOME, payload)))
            assert told[-1]

    def test_all_peers_together_have_a_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B1: beyond it large payloads wait for their turn; small ones do not."""
        monkeypatch.setattr(proxy_port, "_ALL_SIZE_BYTES_MAX", 100_000)
        with (
            opened(frame_size_bytes_max=1 << 20) as port,
            ScriptedPeer(port.address) as peer,
        ):
            peer.send(GREETING)
            link = port.came.wait_for_count(1)[0][0]
            sent: list[bool] = []
            for size_bytes in (200_000, 1_000):
                payload = bytes(size_bytes)
                port.call(
                    lambda one=payload: sent.append(  # type: ignore[misc]  # bound at once
                        port.port.send(link, WELCOME, one)
                    )
                )
            assert sent == [False, True]
            assert peer.receive_frames() == [codec.encode(WELCOME), bytes(1_000)]

    def test_a_list_counts_as_much_as_a_payload(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B1: 2 clients that read no descriptions of wide states cost 700 MB."""
        monkeypatch.setattr(proxy_port, "_LINK_SIZE_BYTES_MAX", 4 << 20)
        jobs = JobsListed(request_id=1, job_ids=("job" * 80,) * 130)
        size_bytes = len(codec.encode(jobs))
        sent: list[bool] = []
        with opened() as port, deaf_peer(port) as (peer, link):
            for _ in range(400):
                port.call(lambda: sent.append(port.port.send(link, jobs)))
            held_back = port.figure("messages_held_back_total")
            assert held_back == sent.count(False) > 0
            assert sent.index(False) * size_bytes > 4 << 20
            # What the kernel takes comes on top.
            assert port.figure("in_flight_bytes") <= (4 << 20) + size_bytes
            for _ in range(sent.count(True)):
                assert peer.recv_multipart() == [codec.encode(jobs)]
            port.call(lambda: sent.append(port.port.send(link, jobs)))
            assert sent[-1]

    def test_those_that_do_not_read_leave_room(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B2: none has more than it leaves to others; and in time none has anything."""
        monkeypatch.setattr(proxy_port, "_ALL_SIZE_BYTES_MAX", 4 << 20)
        jobs = JobsListed(request_id=1, job_ids=("job" * 80,) * 130)
        large = bytes(300_000)
        clock = ManualClock()
        sent: list[bool] = []
        with (
            capture_logs(),
            opened(
                clock, frame_size_bytes_max=1 << 20, session_timeout_seconds=10.0
            ) as port,
            ScriptedPeer(port.address) as peer,
            contextlib.ExitStack() as resources,
        ):
            peer.send(GREETING)
            link = port.came.wait_for_count(1)[0][0]

            def is_told() -> bool:
                port.call(lambda: sent.append(port.port.send(link, WELCOME, large)))
                if sent[-1]:
                    assert peer.receive_frames() == [codec.encode(WELCOME), large]
                return sent[-1]

            deaf: list[LinkId] = []

            def tell(link: LinkId) -> None:
                for _ in range(300):
                    port.port.send(link, jobs)

            def tell_deaf() -> None:
                for link in deaf:
                    port.call(partial(tell, link))
                assert port.figure("in_flight_bytes") <= 4 << 20

            def leaves_none() -> bool:
                tell_deaf()  # the system takes more of it yet
                return not is_told()

            for is_late in (False, True):
                for _ in range(3):
                    deaf.append(resources.enter_context(deaf_peer(port))[1])
                    tell_deaf()
                assert is_late or is_told()
            wait_until(leaves_none)

            def has_ended_one() -> bool:
                clock.advance(10 * NS_PER_SECOND)
                is_told()
                return port.figure("peers_ended_total") == 1

            wait_until(has_ended_one)
            port.closed.wait_for_count(1)
            assert is_told()

    @pytest.mark.parametrize("is_node", [False, True])
    def test_who_cannot_be_told_half_is_ended(
        self, monkeypatch: pytest.MonkeyPatch, is_node: bool
    ) -> None:
        """N3: a peer that reads nothing, of what cannot be held back, hears no more."""
        monkeypatch.setattr(proxy_port, "_LINK_SIZE_BYTES_MAX", 1 << 20)
        told = (
            ApplyEntries(leader_epoch=1, job_id="j" * 4_000, entries=())
            if is_node
            else Refusal(request_id=1, code="c" * 4_000)
        )
        clock = ManualClock()
        sent: list[bool] = []
        with (
            capture_logs() as logs,
            opened(clock, session_timeout_seconds=10.0) as port,
            deaf_peer(port) as (peer, link),
        ):

            def tell(count: int = 1) -> bool:
                for _ in range(count):
                    port.call(lambda: sent.append(port.port.send(link, told)))
                return sent[-1]

            assert tell(3_000), "as long as it may come to read it"
            assert port.figure("in_flight_bytes") > 1 << 20
            clock.advance(10 * NS_PER_SECOND - 1)
            assert tell()

            def is_silent() -> bool:
                clock.advance(10 * NS_PER_SECOND)
                return not tell()

            wait_until(is_silent)  # the kernel may take some more for it
            assert not tell()
            assert port.figure("peers_ended_total") == 1
            # What it has asked meanwhile is not done: it would not be answered.
            peer.send(codec.encode(GREETING))
            assert port.closed.wait_for_count(1) == (link,)
            assert [line["event"] for line in logs] == ["peer.ended"]

    def test_a_node_that_reads_slowly_is_told_all(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """W7: however much it has missed, and however long it takes to read it."""
        monkeypatch.setattr(proxy_port, "_LINK_SIZE_BYTES_MAX", 1 << 20)
        command = ApplyEntries(leader_epoch=1, job_id="j" * 50_000, entries=())
        clock = ManualClock()
        sent: list[bool] = []
        with opened(clock) as port, deaf_peer(port) as (peer, link):
            for _ in range(400):
                port.call(lambda: sent.append(port.port.send(link, command)))
            for _ in range(4):
                for _ in range(100):
                    assert peer.recv_multipart() == [codec.encode(command)]
                clock.advance(60 * NS_PER_SECOND)
                port.call(lambda: sent.append(port.port.send(link, command)))
            assert all(sent)

    def test_what_others_leave_unread_stops_no_question(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B2: small ones are asked of a node, up to the limit of its own link."""
        monkeypatch.setattr(proxy_port, "_ALL_SIZE_BYTES_MAX", 100_000)
        question = Question(
            leader_epoch=1,
            question_id=1,
            state_number=1,
            assignment_version=1,
            operation=GetValues(),
            deadline_ms=1_000,
        )
        sent: list[bool] = []
        with opened() as port, deaf_peer(port) as (_, link):
            for _ in range(500):
                port.call(
                    lambda: sent.append(port.port.send(link, question, bytes(50_000)))
                )
            assert all(sent)
            assert port.figure("in_flight_bytes") > 100_000

    def test_who_is_no_node_is_refused_as_any_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N3: everybody may say that they are a node."""
        monkeypatch.setattr(proxy_port, "_ALL_SIZE_BYTES_MAX", 100_000)
        refused = NodeRefused(reason="not-allowed", detail="d" * 4_000)
        clock = ManualClock()
        sent: list[bool] = []
        with capture_logs(), opened(clock) as port, deaf_peer(port) as (_, link):
            for _ in range(3_000):
                port.call(lambda: sent.append(port.port.send(link, refused)))

            def is_silent() -> bool:
                clock.advance(60 * NS_PER_SECOND)
                port.call(lambda: sent.append(port.port.send(link, refused)))
                return not sent[-1]

            wait_until(is_silent)
            assert port.closed.wait_for_count(1) == (link,)

    @pytest.mark.proves("B2")
    def test_a_route_is_encoded_once_for_all(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B2: what 30 connections ask for again and again held all others up."""
        encoded: list[object] = []

        def encode_and_note(payload: object) -> bytes:
            encoded.append(payload)
            return codec.encode_payload(payload)

        monkeypatch.setattr(encoded_routes, "encode_payload", encode_and_note)
        owners = (0,) * 32_768
        with opened() as port, ScriptedPeer(port.address) as peer:
            peer.send(GREETING)
            link = port.came.wait_for_count(1)[0][0]
            for number in range(10):
                message = StateDescribed(
                    request_id=number, description=description_of(owners)
                )
                port.call(lambda one=message: port.port.send(link, one))  # type: ignore[misc]  # bound at once
                (envelope,) = peer.receive_frames()
                assert envelope == codec.encode(message)
        assert len(encoded) == 1

    def test_large_values_are_passed_on_as_they_came(self) -> None:
        """Without a copy: the buffer of what was received is what is sent."""
        reading = Reading(generation=1, batch_id=1, age_ms=0)
        answer = Answer(question_id=1, reading=reading, has_missing=False)
        values = bytes(range(256)) * 1_000
        with (
            opened(frame_size_bytes_max=1 << 20) as port,
            ScriptedPeer(port.address) as peer,
        ):
            peer.send(answer, values)
            peer.send(GREETING, values)
            (first, second) = port.came.wait_for_count(2)
            assert isinstance(first[2], memoryview)
            assert second[2] == values
            port.call(lambda: port.port.send(first[0], WELCOME, first[2]))
            assert peer.receive_frames() == [codec.encode(WELCOME), values]


class TestMessages:
    def test_a_message_comes_with_its_link_and_its_second_frame(
        self, port: Port
    ) -> None:
        """And goes back over that link."""
        with ScriptedPeer(port.address) as peer, ScriptedPeer(port.address) as other:
            peer.send(GREETING, b"payload")
            other.send(GREETING)
            (first, second) = port.came.wait_for_count(2)
            links = {payload: link for link, _, payload, _ in (first, second)}
            assert first[1] == second[1] == GREETING
            assert first[3] is None
            assert links.keys() == {b"payload", b""}
            port.call(lambda: port.port.send(links[b"payload"], WELCOME, b"values"))
            assert peer.receive_frames() == [codec.encode(WELCOME), b"values"]
            peer.send(GREETING)
            assert port.came.wait_for_count(3)[2][0] == links[b"payload"]

    @pytest.mark.parametrize(
        ("frames", "reason"),
        [
            ((b"",), "wrong_magic"),
            ((b"LDQ",), "wrong_magic"),
            ((b"LDQ\x02rest",), "wrong_version"),
            ((b"LDS\x01",), "wrong_magic"),
            ((b"LDQ\x01",), "malformed"),
            ((codec.encode(WELCOME),), "malformed"),
            ((codec.encode(GREETING)[:-1],), "malformed"),
            ((codec.encode(GREETING) + b"\0",), "malformed"),
            ((codec.encode(GREETING), b"", b""), "malformed"),
            ((codec.encode(GREETING), *[b""] * 1_000), "malformed"),
            ((b"LDQ\x01" + b"\x91" * 50_000,), "malformed"),
            ((b"LDQ\x01\xdd\xff\xff\xff\xff",), "malformed"),
            ((codec.encode(GREETING), bytes(65_536)), "oversized"),
            ((bytes(65_537),), "oversized"),
        ],
    )
    def test_what_is_no_message_is_answered_and_counted(
        self, port: Port, frames: tuple[bytes, ...], reason: str
    ) -> None:
        """N3: and comes to none."""
        with capture_logs() as logs, ScriptedPeer(port.address) as peer:
            peer.send_frames(*frames)
            (envelope,) = peer.receive_frames()
            refusal = codec.decode_to_client(envelope)
            assert isinstance(refusal, Refusal)
            assert (refusal.request_id, refusal.code) == (0, "malformed")
            assert port.figure(f"frames_{reason}_total") == 1
        assert [line["event"] for line in logs] == ["frame.dropped"]
        assert port.came.items == ()

    def test_the_largest_message_is_taken(self, port: Port) -> None:
        """To the byte."""
        envelope = codec.encode(GREETING)
        payload = bytes(65_536 - len(envelope))
        with ScriptedPeer(port.address) as peer:
            peer.send_frames(envelope, payload)
            ((_, message, came, _),) = port.came.wait_for_count(1)
            assert message == GREETING
            assert came == payload

    def test_who_sends_much_more_is_disconnected(self, port: Port) -> None:
        """ZeroMQ does not even read it."""
        with ScriptedPeer(port.address) as peer:
            peer.send(GREETING)
            ((link, *_),) = port.came.wait_for_count(1)
            peer.send_frames(bytes(1_000_000))
            assert port.closed.wait_for_count(1) == (link,)

    def test_the_log_of_rubbish_is_bounded(self, port: Port) -> None:
        """N3: every peer that connects can send it without end."""
        with capture_logs() as logs, ScriptedPeer(port.address) as peer:
            for _ in range(1_000):
                peer.send_frames(b"rubbish")
            wait_until(lambda: port.figure("frames_wrong_magic_total") == 1_000)
        assert 0 < len(logs) <= 20


class TestConnections:
    def test_whose_connection_closes_is_told_once(self, port: Port) -> None:
        """And nothing can be sent there any more."""
        with ScriptedPeer(port.address) as peer:
            peer.send(GREETING)
            ((link, *_),) = port.came.wait_for_count(1)
        assert port.closed.wait_for_count(1) == (link,)
        sent: list[bool] = []
        port.call(lambda: sent.append(port.port.send(link, WELCOME)))
        assert sent == [False]
        assert port.figure("links") == 0

    def test_many_that_come_and_go_leave_nothing(self, port: Port) -> None:
        """Descriptors are used again; each connection is a link of its own."""
        for _ in range(50):
            with ScriptedPeer(port.address) as peer:
                peer.send(GREETING)
        links = [link for link, *_ in port.came.wait_for_count(50)]
        assert sorted(port.closed.wait_for_count(50)) == sorted(links)
        assert len(set(links)) == 50
        assert port.figure("links") == 0

    def test_there_are_so_many_at_most(self) -> None:
        """N3: those who are connected are not disturbed by those who come."""
        with (
            opened(connections_max=2) as port,
            ScriptedPeer(port.address) as first,
            ScriptedPeer(port.address) as second,
            capture_logs(),
        ):
            for peer in (first, second):
                peer.send(GREETING)
            links = [link for link, *_ in port.came.wait_for_count(2)]
            for link in links:
                port.call(partial(port.port.admitted, link))
            with ScriptedPeer(port.address):
                wait_until(lambda: port.figure("connections_refused_total") > 0)
            first.send(GREETING)
            port.came.wait_for_count(3)
            assert port.figure("connections") == 2


class TestCurve:
    def test_listed_keys_are_let_in_and_known(self, tmp_path: Path) -> None:
        """C1: where every caller has a key, no other key comes in."""
        access = AccessList(callers=[with_key("alice", ALICE)])
        with (
            opened(access=access, **key_files(tmp_path)) as port,
            ScriptedPeer(port.address, keys=ALICE) as alice,
            ScriptedPeer(port.address, keys=MALLORY) as mallory,
            capture_logs(),
        ):
            alice.send(GREETING)
            ((_, _, _, public_key),) = port.came.wait_for_count(1)
            assert public_key == ALICE.public_key
            check_not_let_in(mallory)
            assert parse_address(port.address).server_public_key is not None

    @pytest.mark.parametrize("is_open", [False, True])
    def test_any_key_is_let_in_where_a_token_will_do(
        self, tmp_path: Path, is_open: bool
    ) -> None:
        """C1: so that a token need not travel in clear; the key says who it is not."""
        callers = None if is_open else [with_key("alice", ALICE), with_token("t")]
        with (
            opened(access=AccessList(callers=callers), **key_files(tmp_path)) as port,
            ScriptedPeer(port.address, keys=MALLORY) as mallory,
            ScriptedPeer(port.address) as nobody,
        ):
            mallory.send(GREETING)
            ((_, _, _, public_key),) = port.came.wait_for_count(1)
            assert public_key == MALLORY.public_key
            nobody.send(GREETING)  # under a key that was drawn for it
            port.came.wait_for_count(2)

    def test_nobody_comes_in_without_a_key(self, tmp_path: Path) -> None:
        """What is said there is encrypted, or is not said."""
        access = AccessList(callers=[with_token("t")])
        with opened(access=access, **key_files(tmp_path)) as port:
            bare = port.address.partition("?")[0]
            with (
                ScriptedPeer(bare) as peer,
                capture_logs(),
                pytest.raises((AuthenticationError, AssertionError)),
            ):
                peer.wait_until_open(timeout_seconds=1.0)
            assert port.came.items == ()

    def test_who_is_admitted_can_change(self, tmp_path: Path) -> None:
        """C4: for connections to come; what those that are open may do, others say."""
        files = key_files(tmp_path)
        only_alice = AccessList(callers=[with_key("alice", ALICE)])
        with opened(access=only_alice, **files) as port, capture_logs():
            for callers, is_let_in in (
                ([with_token("t")], True),
                ([with_key("alice", ALICE)], False),
                ([with_key("mallory", MALLORY)], True),
                (None, True),
                ([with_key("alice", ALICE)], False),
            ):
                config = ProxyConfig(access=AccessList(callers=callers), **files)
                port.call(lambda config=config: port.port.admit(config))  # type: ignore[misc]  # bound at once
                with ScriptedPeer(port.address, keys=MALLORY) as mallory:
                    if is_let_in:
                        mallory.wait_until_open()
                    else:
                        check_not_let_in(mallory)

    def test_who_is_taken_off_is_still_heard(self, tmp_path: Path) -> None:
        """Only who is heard can be told that access is denied."""
        files = key_files(tmp_path)
        both = AccessList(callers=[with_key("a", ALICE), with_key("m", MALLORY)])
        with (
            opened(access=both, **files) as port,
            ScriptedPeer(port.address, keys=MALLORY) as mallory,
        ):
            mallory.send(GREETING)
            port.came.wait_for_count(1)
            only_alice = AccessList(callers=[with_key("alice", ALICE)])
            config = ProxyConfig(access=only_alice, **files)
            port.call(lambda: port.port.admit(config))
            mallory.send(GREETING)
            assert port.came.wait_for_count(2)[1][3] == MALLORY.public_key


class TestOpening:
    def test_what_is_published_can_be_another_host(self) -> None:
        """Behind an address that is not this machine's own."""
        with opened(advertised_host="proxy.example.org") as port:
            endpoint = parse_address(port.address).endpoint
            assert endpoint.host == "proxy.example.org"
            assert endpoint.port == port.port.endpoint.port

    def test_a_port_that_is_taken_is_told(self, port: Port) -> None:
        """And nothing stays open: the same again fails in the same way."""
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="in use"):
                Port(bind=str(port.port.endpoint))

    def test_keys_that_are_not_there_are_told(self, tmp_path: Path) -> None:
        """With the name of the file."""
        with pytest.raises(ConfigurationError, match="missing"):
            Port(
                curve_public_key_file=tmp_path / "missing.key",
                curve_secret_key_file=tmp_path / "missing.key_secret",
            )
