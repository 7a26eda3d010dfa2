"""Metrics and health over real sockets, of servers that run, hang and end."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import final

import pytest
from attrs import define
from prometheus_client.parser import text_string_to_metric_families

from haservices import HAServices, open_ha_services
from haservices.metrics import MetricsServer, serve_metrics
from haservices.metrics.http import parse_address
from haservices.testing import LeaderServer, ServerConfig
from haservices.testing.reserved_port import ReservedPort
from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    ManualClock,
    NoLeaderError,
    UnreachableError,
)
from nameservice.clock import NS_PER_SECOND
from nameservice.observation import (
    Latencies,
    Observation,
    StateFreshness,
    StoppedJob,
)
from queryablestate import QueryableStateClient
from queryablestate.errors import AccessDeniedError
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import MAX_PARALLELISM, Publisher


pytestmark = [pytest.mark.shells, pytest.mark.proves("F1")]

WAIT_SECONDS = 30.0
AIRCRAFT = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("flights", AtomicType.INT),),
)


@final
@define
class Observed:
    """A server that says what it is told to say."""

    found: Observation | Exception
    count: int = 0
    state_count_max: int = -1

    def observe(
        self, *, timeout_seconds: float = 30.0, state_count_max: int = 0
    ) -> Observation:
        """Return or raise it."""
        self.count += 1
        self.state_count_max = state_count_max
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def observation(problem: str | None = None) -> Observation:
    """Return what a node would say."""
    return Observation(role="node", figures={"jobs": 3}, problem=problem)


def port_of(metrics: MetricsServer) -> int:
    """Return the port on which metrics are served."""
    return int(metrics.url.rpartition(":")[2])


def ask(metrics: MetricsServer, path: str, method: str = "GET") -> tuple[int, str]:
    """Return status and body."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", port_of(metrics), timeout=WAIT_SECONDS
    )
    with closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of *text*, as Prometheus' own parser reads it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def connected(metrics: MetricsServer) -> socket.socket:
    """Return a connection."""
    return socket.create_connection(
        ("127.0.0.1", port_of(metrics)), timeout=WAIT_SECONDS
    )


def has_ended(connection: socket.socket) -> bool:
    """Return whether the server ended a connection, without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # what the client had said was not read
        return True


class TestServers:
    """Server, proxy and node."""

    @pytest.fixture
    def server(self) -> Iterator[LeaderServer]:
        """A LeaderServer."""
        with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as running:
            yield running

    @pytest.fixture
    def ha(self, server: LeaderServer) -> Iterator[HAServices]:
        """A client of it."""
        with open_ha_services(server.url) as services:
            yield services

    def test_a_cluster(self, server: LeaderServer, ha: HAServices) -> None:
        """Each has its figures; the proxy states, the node how long answers took."""
        with ExitStack() as stack:
            cluster = stack.enter_context(LocalStateCluster(ha, nodes=1))
            Publisher(ha, "flights", {"aircraft": AIRCRAFT}).write(
                {"aircraft": [("N1", 3), ("N2", 4)]}
            )
            with QueryableStateClient(ha) as client:
                assert client.get("flights", "aircraft", "N1") == {"flights": 3}
                assert client.count("flights", "aircraft") == 2
            with QueryableStateClient(ha, direct=False) as client:
                assert client.count("flights", "aircraft") == 2
            found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
            for one in (server, cluster.proxies[0], cluster.nodes[0]):
                metrics = stack.enter_context(serve_metrics(one, "127.0.0.1:0"))
                assert ask(metrics, "/healthz") == (200, "ok\n")
                assert ask(metrics, "/readyz") == (200, "ok\n")
                status, text = ask(metrics, "/metrics")
                assert status == 200
                found |= samples(text)
        assert found["lodestar_server_leaders", ()] >= 1
        assert found["lodestar_server_grants_total", ()] >= 1
        assert found["lodestar_proxy_leads", ()] == 1
        assert found["lodestar_proxy_nodes_present", ()] == 1
        assert found["lodestar_node_registered", ()] == 1
        state = (("job_id", "flights"), ("state", "aircraft"))
        assert found["lodestar_proxy_state_last_batch_id", state] == 0
        assert found["lodestar_proxy_state_generation", state] == 1
        assert found["lodestar_proxy_state_age_seconds", state] >= 0
        assert found["lodestar_proxy_states_left_out", ()] == 0
        name = "lodestar_node_answer_duration_seconds"
        for kind in ("get", "count"):
            assert found[f"{name}_count", (("kind", kind),)] >= 1
            whole = found[f"{name}_bucket", (("kind", kind), ("le", "+Inf"))]
            assert whole == found[f"{name}_count", (("kind", kind),)]
        assert any(name == "lodestar_node_info" for name, _ in found)
        assert found["lodestar_server_commits_total", ()] >= 1
        assert found["lodestar_proxy_batches_decided_total", ()] == 1
        commits = found[
            "lodestar_proxy_answer_duration_seconds_count", (("kind", "commit"),)
        ]
        assert commits == 1
        counts = found[
            "lodestar_proxy_answer_duration_seconds_count", (("kind", "count"),)
        ]
        assert counts >= 1
        for role in ("server", "proxy", "node"):
            for way in ("received", "sent"):
                assert found[f"lodestar_{role}_{way}_bytes_total", ()] > 0
        assert found["lodestar_node_proxy_received_bytes_total", ()] > 0
        assert found["lodestar_node_proxy_sent_bytes_total", ()] > 0
        job = (("job_id", "flights"),)
        assert found["lodestar_proxy_job_key_groups", job] == MAX_PARALLELISM
        assert found["lodestar_proxy_job_copies", job] == MAX_PARALLELISM
        for name in ("unavailable", "short"):
            assert found[f"lodestar_proxy_job_key_groups_{name}", job] == 0
        assert found["lodestar_proxy_job_copies_left", job] == 0
        assert found["lodestar_node_staged_bytes", ()] == 0
        used = found["lodestar_node_store_used_bytes", ()]
        assert 0 < used < found["lodestar_node_store_limit_bytes", ()]

    def test_errors_by_type(self, server: LeaderServer, ha: HAServices) -> None:
        """Who is refused is counted by why, at the proxy and at the name service."""
        entry = CallerEntry(
            name="job", token_sha256=token_sha256("job"), write=("flights/*",)
        )
        access = AccessList(callers=(entry,))
        with (
            QueryStateProxyServer(ha, ProxyConfig(access=access)) as proxy,
            QueryableStateClient(ha, "job") as client,
            serve_metrics(proxy, "0") as metrics,
        ):
            name = "lodestar_proxy_errors_total"
            code = (("code", "access_denied"),)
            # It is there before it happens, so that its growth can be seen.
            assert samples(ask(metrics, "/metrics")[1])[name, code] == 0
            with pytest.raises(AccessDeniedError):
                client.describe("secrets", "aircraft")
            assert proxy.observe().figures["errors_access_denied_total"] == 1
        with pytest.raises(NoLeaderError):
            ha.operations.revoke("nothing")
        figures = server.observe().figures
        assert figures["errors_no_leader_total"] == 1
        assert int(figures["requests_failed_total"]) >= 1

    def test_a_proxy_that_stands_by_is_not_ready(self, ha: HAServices) -> None:
        """It works, and tells nothing of states that it does not know."""
        with LocalStateCluster(ha, nodes=1, proxies=2) as cluster:
            (standby,) = [one for one in cluster.proxies if not one.is_leader]
            with serve_metrics(standby, "127.0.0.1:0") as metrics:
                assert ask(metrics, "/healthz")[0] == 200
                status, text = ask(metrics, "/readyz")
                assert (status, "stands by" in text) == (503, True)
                assert (
                    samples(ask(metrics, "/metrics")[1])["lodestar_proxy_leads", ()]
                    == 0
                )

    def test_before_and_after(self) -> None:
        """A server that is not started yet, or has ended, does not work."""
        server = LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0"))
        with serve_metrics(server, "0") as metrics:
            status, text = ask(metrics, "/healthz")
            assert (status, "not started" in text) == (503, True)

    def test_a_loop_that_hangs(self, server: LeaderServer) -> None:
        """The process is there, its loop does not turn: it does not work."""
        with serve_metrics(server, "0") as metrics:
            server.pause()
            try:
                for path in ("/healthz", "/readyz", "/metrics"):
                    status, text = ask(metrics, path)
                    assert (status, "hangs" in text) == (503, True)
            finally:
                server.resume()


class TestAnswers:
    """What is answered, whatever is observed."""

    @pytest.mark.parametrize(
        ("found", "statuses"),
        [
            (observation(), (200, 200, 200)),
            (observation("it sleeps é\n"), (200, 503, 200)),
            (UnreachableError("x", 2.0, "its thread hangs"), (503, 503, 503)),
            (LocalProtocolError("it is over"), (503, 503, 503)),
            (RuntimeError("a defect"), (500, 500, 500)),
        ],
    )
    def test_statuses(
        self, found: Observation | Exception, statuses: tuple[int, ...]
    ) -> None:
        """Works, would answer, and metrics; a defect of ours ends nothing."""
        with serve_metrics(Observed(found), "0") as metrics:
            paths = ("/healthz", "/readyz", "/metrics")
            assert tuple(ask(metrics, path)[0] for path in paths) == statuses
            assert ask(metrics, "/metrics?x=1")[0] == statuses[2]

    def test_what_is_asked_wrongly(self) -> None:
        """Says what to ask for."""
        with serve_metrics(Observed(observation()), "0") as metrics:
            assert ask(metrics, "/")[0] == 404
            assert "/readyz" in ask(metrics, "/x")[1]
            assert ask(metrics, "/metrics", "POST")[0] == 405
            assert ask(metrics, "/metrics", "HEAD") == (200, "")

    def test_the_loop_is_asked_rarely(self) -> None:
        """A hundred questions within a quarter of a second are one to it."""
        observed = Observed(observation())
        clock = ManualClock()
        with MetricsServer(observed, "0", clock=clock) as metrics:
            clock.advance(1)
            for _ in range(100):
                assert ask(metrics, "/metrics")[0] == 200
            assert observed.count == 1
            clock.advance(NS_PER_SECOND // 4)
            assert ask(metrics, "/healthz")[0] == 200
        assert observed.count == 2
        assert observed.state_count_max == 1_000

    def test_labels_are_bounded(self) -> None:
        """What is left out is counted; a family of figures ends at a hundred."""
        states = tuple(
            StateFreshness(
                job_id='j"\\\n',
                state_name=f"s{number}",
                generation=1,
                batch_id=None,
                age_seconds=None,
            )
            for number in range(3)
        )
        figures = {f"frames_reason{number}_total": 1 for number in range(500)}
        told = Observation(
            role="proxy",
            figures=figures,
            problem=None,
            states=states,
            states_left_out=7,
        )
        with serve_metrics(Observed(told), "0") as metrics:
            found = samples(ask(metrics, "/metrics")[1])
        names = [name for name, _ in found]
        assert names.count("lodestar_proxy_frames_dropped_total") == 100
        assert names.count("lodestar_proxy_state_generation") == 3
        assert names.count("lodestar_proxy_state_last_batch_id") == 0
        assert found["lodestar_proxy_states_left_out", ()] == 7
        labels = (("job_id", 'j"\\\n'), ("state", "s0"))
        assert ("lodestar_proxy_state_generation", labels) in found

    def test_figures_that_are_no_metric(self) -> None:
        """A figure that no table has is left out, and does no harm."""
        told = Observation(
            role="server",
            figures={"version": "1", "incarnation": "x", "news": 5, "sessions": 2},
            problem=None,
        )
        with serve_metrics(Observed(told), "0") as metrics:
            found = samples(ask(metrics, "/metrics")[1])
        assert found["lodestar_server_sessions", ()] == 2
        assert found["lodestar_server_info", (("version", "1"),)] == 1
        assert [name for name, _ in found if "news" in name or "incarn" in name] == []
        assert ("lodestar_server_leaders", ()) not in found  # a gauge is not made up

    def test_what_has_not_happened_yet(self) -> None:
        """A counter is there from the beginning: its first step is seen, too."""
        told = Observation(role="server", figures={}, problem=None)
        with serve_metrics(Observed(told), "0") as metrics:
            found = samples(ask(metrics, "/metrics")[1])
        assert found["lodestar_server_storage_failures_total", ()] == 0
        assert all(name.endswith("_total") for name, _ in found)

    def test_why_a_job_is_stopped(self) -> None:
        """It is a label: a job, and a word of ours."""
        told = Observation(
            role="node",
            figures={"jobs_failed": 1},
            problem=None,
            stopped=[StoppedJob(job_id="flights", reason="store_full")],
        )
        with serve_metrics(Observed(told), "0") as metrics:
            found = samples(ask(metrics, "/metrics")[1])
        labels = (("job_id", "flights"), ("reason", "store_full"))
        assert found["lodestar_node_job_stopped", labels] == 1

    def test_latencies(self) -> None:
        """Buckets count all that is not above their bound."""
        latencies = Latencies()
        for duration_ns in (0, 100_000, 100_001, 3_000_000_000, 99_000_000_000):
            latencies.add("get", duration_ns)
        told = Observation(
            role="node", figures={}, problem=None, latencies=latencies.buckets()
        )
        with serve_metrics(Observed(told), "0") as metrics:
            found = samples(ask(metrics, "/metrics")[1])
        name = "lodestar_node_answer_duration_seconds"
        buckets = {
            labels[1][1]: value
            for (sample, labels), value in found.items()
            if sample == f"{name}_bucket"
        }
        assert buckets["0.0001"] == 2
        assert buckets["0.00025"] == buckets["2.5"] == 3
        assert buckets["5.0"] == buckets["10.0"] == 4
        assert buckets["+Inf"] == found[f"{name}_count", (("kind", "get"),)] == 5
        total = found[f"{name}_sum", (("kind", "get"),)]
        assert total == pytest.approx(102.000200001)


class TestBounds:
    """Clients that are slow, many or large do not hold it."""

    @pytest.fixture
    def metrics(self) -> Iterator[MetricsServer]:
        """What serves a node."""
        with serve_metrics(Observed(observation()), "0") as serving:
            yield serving

    def test_slow_clients_do_not_delay_others(self, metrics: MetricsServer) -> None:
        """Hundreds that say half a request, and nothing more."""
        with ExitStack() as stack:
            slow = [stack.enter_context(connected(metrics)) for _ in range(300)]
            for one in slow:
                one.sendall(b"GET /met")
            for _ in range(20):
                assert ask(metrics, "/metrics")[0] == 200
            # The oldest ones were ended for those that came later.
            assert has_ended(slow[0])

    def test_a_client_that_says_nothing_is_ended(self, metrics: MetricsServer) -> None:
        """At its deadline, without a push from outside."""
        with connected(metrics) as silent:
            assert has_ended(silent)

    def test_a_client_that_does_not_read_is_no_harm(self) -> None:
        """What it does not take waits for it alone, until its deadline."""
        figures = {"jobs": 1}
        states = tuple(
            StateFreshness(
                job_id="j" * 255,
                state_name=f"{number}" * 50,
                generation=1,
                batch_id=1,
                age_seconds=1.0,
            )
            for number in range(1_000)
        )
        told = Observation(role="proxy", figures=figures, problem=None, states=states)
        with (
            serve_metrics(Observed(told), "0") as metrics,
            connected(metrics) as idle,
        ):
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            for _ in range(5):
                status, text = ask(metrics, "/metrics")
                assert status == 200
                assert text.count("lodestar_proxy_state_generation{") == 1_000

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, b"431"),
            (b"x" * 20_000, b"431"),
            (b"\x00\xff\r\n\r\n", b"400"),
            (b"GET /metrics\r\n\r\n", b"400"),
            (b"GET /\xff HTTP/1.1\n\n", b"404"),
            (b"GET /metrics HTTP/1.0\n\n", b"200"),
            (b"PUT /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        ],
    )
    def test_requests_of_any_bytes(
        self, metrics: MetricsServer, request_: bytes, status: bytes
    ) -> None:
        """Each is answered, and the next one, too."""
        with connected(metrics) as client:
            client.sendall(request_)
            assert client.recv(12) == b"HTTP/1.1 " + status
        assert ask(metrics, "/healthz")[0] == 200

    def test_a_request_that_comes_byte_by_byte(self, metrics: MetricsServer) -> None:
        """Is a request like any other."""
        with connected(metrics) as client:
            for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
                client.sendall(bytes([byte]))
            assert client.recv(12) == b"HTTP/1.1 200"

    def test_many_at_once(self, metrics: MetricsServer) -> None:
        """As many threads as there are connections are all answered."""
        statuses: list[int] = []

        def act() -> None:
            statuses.extend(ask(metrics, "/metrics")[0] for _ in range(10))

        threads = [threading.Thread(target=act) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert statuses == [200] * 300

    def test_it_ends_at_once(self, reserved: ReservedPort) -> None:
        """With connections open; twice is once; the port is free again."""
        at = str(reserved.port)
        with (
            serve_metrics(Observed(observation()), at) as metrics,
            connected(metrics) as client,
        ):
            client.sendall(b"GET")
            metrics.close()
            metrics.close()
            assert has_ended(client)
        with serve_metrics(Observed(observation()), at) as again:
            assert ask(again, "/healthz")[0] == 200


class TestAddresses:
    """Where it listens."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("9400", ("127.0.0.1", 9400)),
            (":9400", ("127.0.0.1", 9400)),
            ("localhost:0", ("localhost", 0)),
            ("*:9400", ("0.0.0.0", 9400)),
            ("[::1]:9400", ("::1", 9400)),
        ],
    )
    def test_addresses(self, text: str, expected: tuple[str, int]) -> None:
        """Loopback unless a host is named."""
        assert parse_address(text) == expected

    @pytest.mark.parametrize(
        "text",
        ["", "x", "host", "host:", "h:65536", "h:-1", "::1:80", "h:²", "h:123456"],
    )
    def test_what_is_none(self, text: str) -> None:
        """The error says how one is written."""
        with pytest.raises(ConfigurationError, match="HOST:PORT"):
            serve_metrics(Observed(observation()), text)

    def test_a_port_that_is_taken(self) -> None:
        """The error names it."""
        with serve_metrics(Observed(observation()), "0") as metrics:
            taken = f"127.0.0.1:{port_of(metrics)}"
            with pytest.raises(ConfigurationError, match=taken):
                serve_metrics(Observed(observation()), taken)

    @pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a" * 300])
    def test_a_host_that_is_not_ours(self, host: str) -> None:
        """Likewise."""
        with pytest.raises(ConfigurationError, match="cannot serve metrics"):
            serve_metrics(Observed(observation()), f"{host}:0")

    def test_by_itself_it_is_for_this_machine_alone(self) -> None:
        """A port without a host is that of the loopback address."""
        with serve_metrics(Observed(observation()), "0") as metrics:
            assert metrics.url.startswith("http://127.0.0.1:")


def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    """Before anything listens."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from haservices.metrics import serve_metrics\n"
        "from nameservice import ConfigurationError\n"
        "try:\n    serve_metrics(None, '0')\n"
        "except ConfigurationError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "pip install 'spark-lodestar[metrics]'" in done.stdout
