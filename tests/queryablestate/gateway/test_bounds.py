"""No client, however slow, large or mad, holds a gateway (F4)."""

from __future__ import annotations

import contextlib
import http.client
import random
import resource
import socket
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from attrs import evolve

from haservices import HAConfig, HAServices, open_ha_services
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.asking import WAIT_SECONDS, Asker
from tests.recording import wait_until


pytestmark = [pytest.mark.shells, pytest.mark.proves("F4")]

BLOBS = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("name", AtomicType.STRING),),
    value=(Field("text", AtomicType.STRING),),
)
STATE = "/v1/jobs/flights/states/blobs"
MANY = "/v1/jobs/flights/states/many"
COUNT, SIZE = 200, 60_000
MANY_COUNT = 5_000
QUICK = GatewayConfig(
    request_seconds=0.5,
    idle_seconds=1.0,
    write_seconds=0.5,
    connection_count_max=12,
    request_count_max=2,
    watch_count_max=3,
    watch_count_per_caller_max=2,
    large_read_count_per_caller_max=1,
    heartbeat_seconds=0.2,
    body_size_bytes_max=10_000,
    header_size_bytes_max=2_000,
)


@pytest.fixture(scope="module")
def ha(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HAServices]:
    """Return a name service, with a cluster whose answers are large."""
    config = HAConfig(url="embedded:bounds")
    directory: Path = tmp_path_factory.mktemp("rows")
    with (
        open_ha_services(config) as services,
        LocalStateCluster(services, nodes=1, data_dir=directory),
    ):
        publisher = Publisher(config, "flights", {"blobs": BLOBS, "many": BLOBS})
        rows = [(f"b{n:03}", "x" * SIZE) for n in range(COUNT)]
        many = [(f"m{n:04}", "") for n in range(MANY_COUNT)]
        publisher.write({"blobs": rows, "many": many})
        yield services


@pytest.fixture
def gateway(ha: HAServices) -> Iterator[GatewayServer]:
    """Return a gateway with small limits."""
    with GatewayServer(ha, QUICK) as serving:
        yield serving
        assert serving.observe().figures["failures_total"] == 0


@pytest.fixture
def ask(gateway: GatewayServer) -> Asker:
    """Return what asks it."""
    return Asker(gateway.url)


@contextlib.contextmanager
def connected(asker: Asker, *, is_slow: bool = False) -> Iterator[socket.socket]:
    """Yield a connection; a slow one has little room for what it does not read."""
    with socket.socket() as sock:
        if is_slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(WAIT_SECONDS)
        sock.connect(asker.address)
        yield sock


def keep_little(gateway: GatewayServer) -> None:
    """Have the system take little of an answer; the gateway has the rest."""
    assert gateway._server is not None
    for listener in gateway._server.servers[0].sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)


def read_all(sock: socket.socket) -> None:
    """Read until the other side has ended what it sends."""
    while sock.recv(65_536):
        pass


def is_ended(sock: socket.socket) -> bool:
    """Return whether the other side has ended the connection; what came goes."""
    try:
        while sock.recv(65_536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def drip(sock: socket.socket, data: bytes) -> bytes:
    """Send *data* byte by byte, and return what has come when it is ended."""
    sock.settimeout(0.02)
    received = b""
    for place in range(len(data)):
        try:
            sock.sendall(data[place : place + 1])
            while part := sock.recv(65_536):
                received += part
            return received
        except TimeoutError:
            continue  # it has not ended yet, and a moment is gone
        except ConnectionError:
            return received
    raise AssertionError("the gateway has read all of it")


class TestSlowClients:
    """F4: what comes slowly, and what is read slowly, ends."""

    def test_a_head_that_does_not_come(self, gateway: GatewayServer) -> None:
        """Neither one that has not begun nor one that never ends."""
        asker = Asker(gateway.url)
        with connected(asker) as silent, connected(asker) as slow:
            assert drip(slow, b"GET /v1/leaders HTTP/1.1\r\nX: " + b"x" * 200) == b""
            assert is_ended(silent)
        assert gateway.observe().figures["ended_late_total"] == 2

    def test_a_second_head_that_does_not_come(self, ask: Asker) -> None:
        """A connection that has been answered once has no longer patience."""
        with connected(ask) as sock:
            sock.sendall(b"GET /v1/leaders HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(1_000).startswith(b"HTTP/1.1 200")
            drip(sock, b"GET /v1/leaders HTTP/1.1\r\nX: " + b"x" * 200)

    def test_a_body_that_does_not_come(self, ask: Asker) -> None:
        """408, and the connection ends."""
        head = (
            f"POST {STATE}/keys:batchGet HTTP/1.1\r\nHost: x\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        with connected(ask) as sock:
            sock.sendall(head.encode())
            answer = drip(sock, b" " * 500)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"urn:lodestar:problem:too-slow" in answer

    def test_a_body_that_nobody_reads(self, ask: Asker) -> None:
        """The body of a GET is of no meaning, and is not waited for."""
        with connected(ask) as sock:
            sock.sendall(
                b"GET /v1/leaders HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
            )
            assert drip(sock, b" " * 500).startswith(b"HTTP/1.1 200 ")

    @pytest.mark.parametrize("query", ["format=csv", "format=ndjson"])
    def test_an_answer_that_is_not_read(
        self, gateway: GatewayServer, query: str
    ) -> None:
        """Its connection ends, and what was held for it goes; others are answered."""
        asker = Asker(gateway.url)
        with connected(asker, is_slow=True) as sock:
            sock.sendall(
                f"GET {STATE}/rows?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            assert sock.recv(10).startswith(b"HTTP/1.1")
            while not gateway.observe().figures.get("ended_unfinished_total"):
                assert asker.get("/v1/leaders").status == 200
            assert gateway.observe().figures["requests"] == 0

    def test_a_watcher_that_does_not_read(self, gateway: GatewayServer) -> None:
        """It is dropped; nothing is kept for it."""
        asker = Asker(gateway.url)
        with connected(asker, is_slow=True) as sock:
            path = f"{STATE}/keys/b001/watch"
            for _ in range(2):  # the first one begins, the other one never will
                sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert sock.recv(10).startswith(b"HTTP/1.1")
            sock.shutdown(socket.SHUT_RDWR)
        while gateway.observe().figures["watches"]:
            assert asker.get("/v1/leaders").status == 200
        assert gateway.observe().figures["watched_keys"] == 0

    @pytest.mark.proves("F2")
    def test_a_body_that_is_wrong_while_rows_are_sent(self, ask: Asker) -> None:
        """They break off: what has come of them is not taken for all rows."""
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            ask.ask("GET", f"{MANY}/rows?format=ndjson", b"x" * 20_000)
        answer = ask.ask("GET", f"{MANY}/rows?format=ndjson", b"x")
        assert answer.body.count(b"\n") == MANY_COUNT

    @pytest.mark.proves("F2")
    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    def test_a_body_that_is_no_body_while_events_are_sent(
        self, ask: Asker, version: str
    ) -> None:
        """The connection is reset: a problem in the midst would be a part of them."""
        head = (
            f"GET {STATE}/keys/N1/watch HTTP/{version}\r\nHost: x\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        received = b""
        with connected(ask) as sock:
            sock.sendall(head.encode())
            while b"id: " not in received:
                received += sock.recv(65_536)
            sock.sendall(b"this is no chunk\r\n")
            with pytest.raises(ConnectionResetError):
                read_all(sock)

    @pytest.mark.proves("F2")
    def test_rows_that_break_off_for_a_client_of_before(self, ask: Asker) -> None:
        """Where the end of the connection is that of the rows, it is reset instead."""
        head = (
            f"GET {MANY}/rows?format=ndjson HTTP/1.0\r\nHost: x\r\n"
            "Content-Length: 20000\r\n\r\n"
        )
        with connected(ask) as sock:
            sock.sendall(head.encode() + b"x" * 20_000)
            with pytest.raises(ConnectionResetError):
                read_all(sock)

    @pytest.mark.proves("F2")
    def test_rows_that_a_gateway_has_no_time_to_send(self, ha: HAServices) -> None:
        """So it is where it ends before they do."""
        config = evolve(QUICK, write_seconds=WAIT_SECONDS, drain_seconds=1.0)
        with GatewayServer(ha, config) as gateway:
            asker = Asker(gateway.url)
            with connected(asker, is_slow=True) as sock:
                sock.sendall(
                    f"GET {STATE}/rows?format=csv HTTP/1.0\r\nHost: x\r\n\r\n".encode()
                )
                assert sock.recv(10).startswith(b"HTTP/1.1")
                gateway.close()
                with pytest.raises(ConnectionResetError):
                    read_all(sock)

    def test_an_answer_that_is_not_read_to_its_end(
        self, gateway: GatewayServer
    ) -> None:
        """One who has asked to close ends, too, with what is still to be read."""
        asker = Asker(gateway.url)
        keep_little(gateway)
        with connected(asker, is_slow=True) as sock:
            sock.sendall(
                f"GET {STATE}/keys/b001 HTTP/1.1\r\nHost: x\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            wait_until(lambda: gateway.observe().figures.get("answers_200_total") == 1)
            wait_until(lambda: gateway.observe().figures["connections"] == 0)

    @pytest.mark.proves("F2")
    @pytest.mark.parametrize("is_crowded", [False, True])
    def test_rows_that_are_not_read_to_their_end(
        self, ha: HAServices, *, is_crowded: bool
    ) -> None:
        """Nor are these taken for all: the gateway had sent them, and their end."""
        write_seconds = WAIT_SECONDS if is_crowded else 0.5
        config = evolve(
            QUICK,
            request_seconds=WAIT_SECONDS,  # no other one goes because it is silent
            write_seconds=write_seconds,
            drain_seconds=1.0,
        )
        with contextlib.ExitStack() as stack:
            gateway = stack.enter_context(GatewayServer(ha, config))
            asker = Asker(gateway.url)
            keep_little(gateway)
            sock = stack.enter_context(connected(asker, is_slow=True))
            sock.sendall(
                f"GET {STATE}/rows?format=ndjson&start=b000&stop=b001 HTTP/1.0\r\n"
                "Host: x\r\n\r\n".encode()
            )

            def figure(name: str) -> int:
                return int(gateway.observe().figures.get(name, 0))

            wait_until(lambda: figure("sent_bytes_total") > SIZE)
            wait_until(lambda: figure("requests") == 0)
            if is_crowded:
                while not figure("ended_crowded_total"):
                    stack.enter_context(connected(asker))
            else:
                wait_until(lambda: figure("connections") == 0)
            with pytest.raises(ConnectionResetError):
                read_all(sock)

    def test_an_idle_connection_ends(self, ask: Asker) -> None:
        """One who might ask again is not waited for, for ever."""
        with connected(ask) as sock:
            sock.sendall(b"GET /v1/leaders HTTP/1.1\r\nHost: x\r\n\r\n")
            assert is_ended(sock)


class TestManyClients:
    """F4: what is too much is refused, or pushes out what is idle."""

    def test_more_connections_than_there_is_room_for(self, ha: HAServices) -> None:
        """The oldest one without a request goes; one that asks is answered."""
        # None of them goes because it is silent.
        config = evolve(QUICK, request_seconds=WAIT_SECONDS)
        with contextlib.ExitStack() as stack:
            gateway = stack.enter_context(GatewayServer(ha, config))
            asker = Asker(gateway.url)
            first = stack.enter_context(connected(asker))
            for _ in range(30):
                stack.enter_context(connected(asker))
                assert asker.get("/v1/leaders").status == 200
            assert is_ended(first)
            figures = gateway.observe().figures
            assert int(figures["ended_crowded_total"]) >= 18
            assert int(figures["connections"]) <= 12

    @pytest.mark.proves("B2", "F4")
    def test_more_connections_than_the_process_may_have_files(
        self, ha: HAServices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        B2: the oldest one without a request goes before there is no file left.

        5,000 may be configured where `ulimit -n` is 1,024: a thousand connections that
        say nothing had the gateway take no other ones.
        """
        monkeypatch.setattr(resource, "getrlimit", lambda _: (138, 138))
        config = evolve(QUICK, request_seconds=WAIT_SECONDS, connection_count_max=5_000)
        with contextlib.ExitStack() as stack:
            gateway = stack.enter_context(GatewayServer(ha, config))
            asker = Asker(gateway.url)
            first = stack.enter_context(connected(asker))
            for _ in range(9):
                stack.enter_context(connected(asker))
            assert asker.get("/v1/leaders").status == 200
            assert int(gateway.observe().figures["connections"]) <= 8
            assert is_ended(first)

    def test_more_connections_at_one_moment(self, gateway: GatewayServer) -> None:
        """Each goes for another one, not one for all of them."""
        asker = Asker(gateway.url)
        is_busy, is_free = threading.Event(), threading.Event()

        def hold() -> None:
            is_busy.set()
            is_free.wait()

        with contextlib.ExitStack() as stack:
            stack.callback(is_free.set)
            assert gateway._loop is not None
            gateway._loop.call_soon_threadsafe(hold)
            is_busy.wait()
            for _ in range(40):  # they wait at its door
                stack.enter_context(connected(asker))
            is_free.set()
            while not gateway.observe().figures.get("ended_crowded_total"):
                pass
            assert int(gateway.observe().figures["connections"]) <= 12

    @pytest.mark.parametrize("path", [f"{STATE}/keys/b001", f"{STATE}/count"])
    def test_a_request_whose_client_leaves(self, ha: HAServices, path: str) -> None:
        """Its place is free, although its answer would have been waited for longer."""
        config = evolve(QUICK, deadline_seconds_max=80_000.0)
        with GatewayServer(ha, config) as gateway:
            asker = Asker(gateway.url)
            request = (
                f"GET {path}?min_batch_id=9&deadline=80000 HTTP/1.1\r\nHost: x\r\n"
            )
            for _ in range(3):
                with connected(asker) as sock:
                    sock.sendall(f"{request}\r\n".encode())
                    wait_until(lambda: gateway.observe().figures["requests"] == 1)
                wait_until(lambda: gateway.observe().figures["requests"] == 0)
            assert asker.get(f"{STATE}/count").status == 200

    @pytest.mark.parametrize("path", ["jobs", "jobs/flights/states"])
    def test_a_list_whose_client_leaves(self, tmp_path: Path, path: str) -> None:
        """So it is with a list that waits for a proxy which is gone."""
        config = evolve(QUICK, deadline_seconds_max=80_000.0)
        service = HAConfig(url=f"embedded:lists-{path}".replace("/", "-"))
        with open_ha_services(service) as ha, GatewayServer(ha, config) as one:
            asker = Asker(one.url)
            with LocalStateCluster(ha, nodes=1, data_dir=tmp_path):
                publisher = Publisher(service, "flights", {"many": BLOBS})
                publisher.write({"many": [("m", "")]})
                assert asker.get(f"/v1/{path}").status == 200
            with connected(asker) as sock:
                request = f"GET /v1/{path}?deadline=80000 HTTP/1.1\r\nHost: x\r\n"
                sock.sendall(f"{request}\r\n".encode())
                wait_until(lambda: one.observe().figures["requests"] == 1)
            wait_until(lambda: one.observe().figures["requests"] == 0)

    def test_more_requests_than_are_answered_at_once(self, ask: Asker) -> None:
        """503 says when to ask again; watches do not count."""
        late = (
            f"GET {STATE}/keys/b001?min_batch_id=9&deadline=2 HTTP/1.1\r\nHost: x\r\n"
        )
        with (
            ask.watch(f"{STATE}/keys/b001/watch") as watching,
            connected(ask) as one,
            connected(ask) as two,
        ):
            watching.next()
            for sock in (one, two):
                sock.sendall(f"{late}\r\n".encode())
            while (answer := ask.get("/v1/leaders")).status == 200:
                pass  # until both are there
            assert (answer.status, answer.problem) == (503, "busy")
            assert answer.headers["retry-after"] == "1"
            for sock in (one, two):
                assert sock.recv(100).startswith(b"HTTP/1.1 50")
        assert ask.get("/v1/leaders").status == 200

    def test_more_watches_than_there_is_room_for(self, ask: Asker) -> None:
        """429 for a caller that has too many, 503 if all have."""
        path = f"{STATE}/keys/b001/watch"
        with ask.watch(path) as one, ask.watch(path) as two:
            one.next()
            two.next()
            answer = ask.get(path)
            assert (answer.status, answer.problem) == (429, "too-many-watches")
            with ask.watch("/v1/leaders/x/watch") as three:
                three.next()
                answer = ask.get("/v1/leaders/y/watch")
                assert (answer.status, answer.problem) == (503, "busy")

    @pytest.mark.proves("B2", "F3")
    def test_watches_of_leaders_leave_room_for_others(self, ask: Asker) -> None:
        """B2: one client that watched leaders could have all watches."""
        with (
            ask.watch("/v1/leaders/x/watch") as one,
            ask.watch("/v1/leaders/y/watch") as two,
        ):
            one.next()
            two.next()
            with ask.watch("/v1/leaders/z/watch") as refused:
                assert refused.response.status == 429
            with ask.watch(f"{STATE}/keys/b001/watch") as three:
                three.next()

    def test_more_bytes_than_a_batch_may_have(self, ha: HAServices) -> None:
        """400 says to ask for fewer keys."""
        config = evolve(QUICK, batch_size_bytes_max=1_000_000)
        with GatewayServer(ha, config) as gateway:
            ask = Asker(gateway.url)
            keys = [f"b{n:03}" for n in range(COUNT)]
            answer = ask.post(f"{STATE}/keys:batchGet", {"keys": keys})
            assert (answer.status, answer.problem) == (400, "wrong-question")
            answer = ask.post(f"{STATE}/keys:batchGet", {"keys": keys[:10]})
            assert len(answer.document["results"]) == 10

    def test_more_streams_than_a_caller_may_read(self, ask: Asker) -> None:
        """429: one that reads whole states reads a few at a time."""
        with connected(ask, is_slow=True) as sock:
            sock.sendall(
                f"GET {STATE}/rows?format=csv HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            assert sock.recv(10).startswith(b"HTTP/1.1 2"[:10])
            answer = ask.get(f"{STATE}/rows?format=csv")
            assert (answer.status, answer.problem) == (429, "too-many-watches")
            # Pages of the console read as much.
            for page in ("rows", "chart"):
                path = STATE.replace("/v1/", "/console/")
                assert ask.get(f"{path}/{page}").status == 429


class TestLargeRequests:
    """F4: sizes."""

    def test_a_large_body(self, ask: Asker) -> None:
        """413, whether it says its size or not."""
        path = f"{STATE}/keys:batchGet"
        answer = ask.post(path, {"keys": ["x" * 20_000]})
        assert (answer.status, answer.problem) == (413, "too-large")
        chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
        request = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            "Content-Type: application/json\r\n\r\n"
        ).encode()
        assert b" 413 " in ask.raw(request + chunk * 3).split(b"\r\n")[0]

    def test_a_large_head(self, ask: Asker) -> None:
        """400 while it comes, 431 if it came at once; the connection ends."""
        for request, status in (
            (b"GET /v1/leaders HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000, b"400"),
            (b"GET /" + b"x" * 3_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"431"),
        ):
            answer = ask.raw(request)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"application/problem+json" in answer

    def test_a_body_with_two_lengths(self, ask: Asker) -> None:
        """
        400, and the end of the connection: what follows is no request of its own.

        A proxy in front that goes by the length has sent one request; two answers came,
        and the second one was that of the next who asked.
        """
        hidden = b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = ask.raw(
            f"POST {STATE}/keys:batchGet HTTP/1.1\r\nHost: x\r\n".encode()
            + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
            + f"Content-Length: {len(hidden) + 5}\r\n\r\n".encode()
            + b"0\r\n\r\n"
            + hidden
        )
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1 ") == 1

    @pytest.mark.parametrize(
        "request_line",
        [
            b"GET http://example.com/v1/leaders HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
            b"GET //v1/leaders HTTP/1.1",
            b"GET /v1/../v1/leaders HTTP/1.1",
            b"GET /v1/leaders/ HTTP/1.1",
            b"CONNECT example.com:80 HTTP/1.1",
        ],
    )
    def test_a_path_that_is_none(self, ask: Asker, request_line: bytes) -> None:
        """No proxying, no way around: such paths are not there."""
        answer = ask.raw(request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.split(b" ")[1] in {b"400", b"404", b"405"}


# -- rubbish ---------------------------------------------------------------------------

PARTS = (
    *("", "v1", "jobs", "flights", "states", "blobs", "keys", "rows", "count", "watch"),
    *("leaders", "entries", "keys:batchGet", "b001", "x", "..", ".", "%", "%2F", "%00"),
    *("%FF", "%C3%A9", "a" * 300, "openapi.json", "docs", "-1", "null", "'", "<b>"),
)
NAMES = (
    *("prefix", "start", "stop", "limit", "page_token", "format", "json_key"),
    *("deadline", "min_batch_id", "min_generation", "last_event_id", "x", ""),
)
VALUES = (
    *("", "0", "1", "-1", "true", "csv", "arrow", "nan", "1e999", "b", "%", "%FF"),
    *("[]", "{}", '"b001"', "null", "9" * 30, "0.01", "json", "[" * 99),
)
GOOD_PATHS = (
    *("/v1/jobs", "/v1/leaders", "/openapi.json", f"{STATE}/count", f"{STATE}/rows"),
    *(f"{STATE}/keys/b001", f"{STATE}/keys/b001/watch", f"{STATE}/keys/b001/entries"),
)
HEADERS = (
    *("Accept: application/json", "Accept: */*;q=x", "Accept: text/event-stream"),
    *("Authorization: Bearer", "Authorization: x", "If-None-Match: *"),
    *('If-None-Match: "', "Last-Event-ID: 1.1.-", "Last-Event-ID: \xe9"),
    *("Content-Type: text/plain", "Content-Length: 5", "Content-Length: x"),
    *("Transfer-Encoding: chunked", "Expect: 100-continue", "Upgrade: websocket"),
    *("Connection: upgrade", "X: " + "y" * 500, ": x", "Host: a", " folded"),
)
BODIES = (
    "",
    "x",
    "{}",
    '{"keys": ["b001"]}',
    '{"keys": [1, null]}',
    "[" * 500,
    "5\r\n",
)


def rubbish(rng: random.Random) -> bytes:
    """Return a request that is wrong in some way, or several, or happens to be none."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randint(0, 300))
    method = rng.choice(
        ("GET", "GET", "GET", "POST", "HEAD", "PUT", "get", "", "X" * 50)
    )
    path = "/" + "/".join(rng.choices(PARTS, k=rng.randint(0, 9)))
    if rng.random() < 0.7:
        path = f"{STATE}/{'/'.join(rng.choices(PARTS, k=rng.randint(0, 4)))}"
    if rng.random() < 0.3:
        method, path = "GET", rng.choice(GOOD_PATHS)
    if rng.random() < 0.5:
        pairs = [
            f"{rng.choice(NAMES)}={rng.choice((quote, str))(rng.choice(VALUES))}"
            for _ in range(rng.randint(1, 4))
        ]
        path += "?" + "&".join(pairs)
    if rng.random() < 0.1:
        path += "".join(rng.choices(string.printable, k=20))
    version = rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTTP/9.9", ""))
    lines = [f"{method} {path} {version}", "Host: x"]
    lines += rng.choices(HEADERS, k=rng.randint(0, 3))
    if rng.random() < 0.8:
        lines.append("Connection: close")
    text = "\r\n".join(lines) + "\r\n\r\n" + rng.choice(BODIES)
    data = text.encode("latin-1", "replace")
    if rng.random() < 0.1:
        data = data[: rng.randint(0, len(data))]
    return data


def ask_rubbish(ha: HAServices, count: int, seed: int) -> None:
    """Ask *count* times; the gateway fails at none, and goes on."""
    rng = random.Random(seed)
    config = GatewayConfig(
        request_seconds=2.0, heartbeat_seconds=0.05, deadline_seconds=1.0
    )
    with GatewayServer(ha, config) as gateway:
        asker = Asker(gateway.url)
        statuses: set[bytes] = set()
        for number in range(count):
            data = rubbish(rng)
            start = b""
            # What is not whole is not answered.
            with (
                connected(asker) as sock,
                contextlib.suppress(ConnectionError, TimeoutError),
            ):
                sock.sendall(data)
                sock.settimeout(0.02)
                start = sock.recv(4_096)
            if start.startswith(b"HTTP/1."):
                statuses.add(status := start[9:12])
                assert not status.startswith(b"5") or status in {b"503", b"504"}, (
                    seed,
                    number,
                    data,
                )
            if number % 100 == 99:
                assert asker.get("/v1/jobs").document == {"jobs": [{"job": "flights"}]}
        figures = gateway.observe().figures
        assert figures["failures_total"] == 0
        assert {b"200", b"400", b"404", b"405"} <= statuses
        assert asker.get(f"{STATE}/keys/b001").status == 200


def test_rubbish(ha: HAServices, caplog: pytest.LogCaptureFixture) -> None:
    """F4: a thousand bad requests leave it serving, and fill no log."""
    ask_rubbish(ha, 1_000, seed=7)
    assert caplog.records == []


def test_a_client_that_leaves_is_no_event(
    ha: HAServices, gateway: GatewayServer, caplog: pytest.LogCaptureFixture
) -> None:
    """F4: nothing more is written to it, so asyncio warns of nothing."""
    asker = Asker(gateway.url)
    for _ in range(30):
        with connected(asker) as sock:
            request = f"GET {STATE}/rows?format=csv HTTP/1.1\r\nHost: x\r\n\r\n"
            sock.sendall(request.encode())
            assert sock.recv(10)
        while gateway.observe().figures["requests"]:
            asker.get("/v1/leaders")
    assert caplog.records == []


@pytest.mark.nightly
def test_much_rubbish(ha: HAServices) -> None:
    """F4: so do a hundred thousand."""
    ask_rubbish(ha, 100_000, seed=random.SystemRandom().randrange(2**32))
