"""`ProxyConnection` against proxies that lead, do not, restart, lie or are gone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    NoLeaderError,
    RemoteProtocolError,
    UnreachableError,
)
from queryablestate import DeadlineExceededError, StaleWriterError
from queryablestate.client.calls import ProxyConnection
from queryablestate.connect.credentials import Credentials
from queryablestate.wire.clients import Hello, JobsListed, ListJobs
from queryablestate.wire.codec import encode
from queryablestate.wire.refusals import refusal_of
from tests.forking import run_in_child
from tests.queryablestate.scripted_proxy import Lead, Reply, ScriptedProxy, error_frame
from zmqtransport import CurveKeyPair, Endpoint, parse_allow_list, write_key_pair


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 30.0

_names = itertools.count(1)


@pytest.fixture
def services() -> Iterator[HAServices]:
    """A name service of this test's own, in this process."""
    with open_ha_services(f"embedded:proxy-connection-{next(_names)}") as opened:
        yield opened


def list_jobs(request_id: int, session: bytes) -> ListJobs:
    """Return a request that needs nothing."""
    return ListJobs(request_id=request_id, session=session)


def answer_jobs(message: msgspec.Struct, _: bytes) -> Reply:
    """Answer `ListJobs` with one job."""
    assert isinstance(message, ListJobs)
    return JobsListed(request_id=message.request_id, job_ids=("flights",))


def ask(
    connection: ProxyConnection, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[str, ...]:
    """Return what `ListJobs` is answered."""
    reply = connection.call(list_jobs, timeout_seconds=timeout_seconds)
    assert isinstance(reply, JobsListed)
    return reply.job_ids


class TestFindingTheLeader:
    def test_it_asks_whom_the_name_service_names(self, services: HAServices) -> None:
        """Callers configure the name service and nothing else."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            assert ask(connection) == ("flights",)
            assert connection.leader_address == proxy.address

    def test_the_first_address_spares_the_name_service(self) -> None:
        """A task that is told where the proxy is opens no name service."""
        nowhere = HAConfig(url="leaderserver://127.0.0.1:1")
        with (
            ScriptedProxy(answer_jobs) as proxy,
            ProxyConnection(nowhere, first_address=proxy.address) as connection,
        ):
            assert ask(connection) == ("flights",)
            assert connection._shell is not None
            assert not connection._shell._finder.is_started

    def test_a_first_address_where_nobody_is_is_left(
        self, services: HAServices, reserved: ReservedPort
    ) -> None:
        """The name service is asked when the address given first does not answer."""
        gone = f"tcp://127.0.0.1:{reserved.port}"
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services, first_address=gone) as connection,
        ):
            assert ask(connection) == ("flights",)

    def test_a_first_address_that_does_not_lead_is_left(
        self, services: HAServices
    ) -> None:
        """``not-leader`` sends the caller to the name service."""
        with (
            ScriptedProxy(is_leading=False) as former,
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services, first_address=former.address) as connection,
        ):
            assert ask(connection) == ("flights",)
            assert connection.leader_address == proxy.address

    def test_a_first_address_that_is_silent_is_left(self, services: HAServices) -> None:
        """A paused proxy keeps none who could ask its successor."""
        with (
            ScriptedProxy() as paused,
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services, first_address=paused.address) as connection,
        ):
            paused.is_silent = True
            assert ask(connection) == ("flights",)

    def test_a_leader_that_comes_later_is_found(self, services: HAServices) -> None:
        """One that asks before there is a leader waits for one."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            ProxyConnection(services) as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            future = pool.submit(ask, connection)
            with Lead(services, proxy.address):
                assert future.result(TIMEOUT_SECONDS) == ("flights",)

    def test_nobody_leads(self, services: HAServices) -> None:
        """Without a leader the error says so, in time."""
        with ProxyConnection(services) as connection, pytest.raises(NoLeaderError):
            ask(connection, timeout_seconds=0.2)

    def test_a_leader_that_says_it_is_none(self, services: HAServices) -> None:
        """A proxy that has not begun to lead is asked again, and named no leader."""
        with (
            ScriptedProxy(answer_jobs, is_leading=False) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            with pytest.raises(NoLeaderError):
                ask(connection, timeout_seconds=0.3)
            proxy.is_leading = True
            assert ask(connection) == ("flights",)

    def test_no_name_service(self) -> None:
        """A name service that does not answer is another error than no leader."""
        nowhere = HAConfig(
            url="leaderserver://127.0.0.1:1", connect_timeout_seconds=0.2
        )
        with ProxyConnection(nowhere) as connection, pytest.raises(UnreachableError):
            ask(connection, timeout_seconds=1.0)

    def test_the_successor_is_asked(self, services: HAServices) -> None:
        """A request that its leader took to the grave is put to the next one."""
        with (
            ScriptedProxy() as dying,
            ScriptedProxy(answer_jobs) as successor,
            ProxyConnection(services) as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            first = Lead(services, dying.address)
            with first:
                future = pool.submit(ask, connection)
                dying.requests.wait_for_count(2)
                dying.close()
            with Lead(services, successor.address):
                assert future.result(TIMEOUT_SECONDS) == ("flights",)

    def test_a_paused_leader_is_left_for_its_successor(
        self, services: HAServices
    ) -> None:
        """A connection that lives is no reason to wait, once another leads."""
        with (
            ScriptedProxy() as paused,
            ScriptedProxy(answer_jobs) as successor,
            ProxyConnection(services) as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            with Lead(services, paused.address):
                future = pool.submit(ask, connection)
                paused.requests.wait_for_count(2)
            with Lead(services, successor.address):
                assert future.result(TIMEOUT_SECONDS) == ("flights",)


class TestSessions:
    def test_one_session_serves_many_calls(self, services: HAServices) -> None:
        """A session and a socket are kept from call to call."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services, "secret") as connection,
        ):
            for _ in range(5):
                ask(connection)
            hellos = [r for r in proxy.requests.items if isinstance(r, Hello)]
            assert [hello.token for hello in hellos] == ["secret"]

    def test_an_unknown_session_is_opened_anew(self, services: HAServices) -> None:
        """A proxy that restarted, or forgot us, is greeted again."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            ask(connection)
            proxy.call(proxy.forget_sessions)
            assert ask(connection) == ("flights",)

    def test_a_proxy_that_restarted_is_asked_again(
        self, services: HAServices, reserved: ReservedPort
    ) -> None:
        """A connection that closed while it was not used is no failure."""
        endpoint = Endpoint(host=reserved.host, port=reserved.port)
        proxy = ScriptedProxy(answer_jobs, endpoint=endpoint)
        with Lead(services, proxy.address), ProxyConnection(services) as connection:
            ask(connection)
            proxy.close()
            with ScriptedProxy(answer_jobs, endpoint=endpoint):
                assert ask(connection) == ("flights",)

    def test_a_late_answer_is_not_taken_for_another(self, services: HAServices) -> None:
        """Answers are told apart by number, whatever is sent."""

        def answer_twice(message: msgspec.Struct, _: bytes) -> Reply:
            assert isinstance(message, ListJobs)
            stale = JobsListed(request_id=message.request_id - 1, job_ids=("stale",))
            proxy.send(proxy.last_routing_id, stale)
            return answer_jobs(message, b"")

        with (
            ScriptedProxy(answer_twice) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            assert ask(connection) == ("flights",)


class TestRefusals:
    def test_a_refusal_is_its_error(self, services: HAServices) -> None:
        """What the proxy refuses with is raised, with its data."""
        error = StaleWriterError("query", 3, 7)
        with (
            ScriptedProxy(
                lambda message, _: refusal_of(error, message.request_id)  # type: ignore[attr-defined]  # every request has one
            ) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            with pytest.raises(StaleWriterError) as caught:
                ask(connection)
            assert caught.value.args == error.args

    def test_a_refused_credential_is_told_at_once(self, services: HAServices) -> None:
        """Who is not admitted hears so, not that time is over."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services, "wrong") as connection,
        ):
            proxy.greet = lambda hello: error_frame(
                "not-authenticated", hello.request_id, "the proxy", "unknown token"
            )
            with pytest.raises(AuthenticationError, match="unknown token"):
                ask(connection)

    def test_what_did_not_happen_is_tried_again(self, services: HAServices) -> None:
        """Requests are idempotent: a name service that is undecided is waited for."""
        refusals = iter(["did-not-happen", "may-have-happened"])

        def answer_at_last(message: msgspec.Struct, _: bytes) -> Reply:
            code = next(refusals, None)
            if code is None:
                return answer_jobs(message, b"")
            return error_frame(code, message.request_id, "undecided")  # type: ignore[attr-defined]  # every request has one

        with (
            ScriptedProxy(answer_at_last) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            assert ask(connection) == ("flights",)

    def test_what_never_happens_is_told_at_the_deadline(
        self, services: HAServices
    ) -> None:
        """The last reason says more than that time is over."""
        with (
            ScriptedProxy(
                lambda message, _: error_frame(
                    "did-not-happen",
                    message.request_id,  # type: ignore[attr-defined]  # every request has one
                    "undecided",
                )
            ) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
            pytest.raises(DidNotHappenError, match="undecided"),
        ):
            ask(connection, timeout_seconds=0.5)

    def test_a_request_that_could_not_be_read(self, services: HAServices) -> None:
        """A refusal without a number is about the one request that is out."""
        with (
            ScriptedProxy(
                lambda *_: error_frame("malformed", 0, "malformed", "not understood")
            ) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
            pytest.raises(RemoteProtocolError, match="not understood"),
        ):
            ask(connection)


class TestOddAnswers:
    @pytest.mark.parametrize(
        "rubbish",
        [
            [b""],
            [b"HTTP/1.1 400"],
            [b"LDQ\x01\xc1"],
            [b"LDQ\x01" + msgspec.msgpack.encode({"type": "no-such-thing"})],
            [b"", b"", b"", b""],
        ],
        ids=["empty", "stranger", "no-msgpack", "unknown-tag", "too-many-frames"],
    )
    def test_rubbish_is_passed_over(
        self, services: HAServices, rubbish: list[bytes]
    ) -> None:
        """A malformed answer ends nothing: the right one is still taken."""

        def answer_after_rubbish(message: msgspec.Struct, _: bytes) -> Reply:
            proxy.send(proxy.last_routing_id, rubbish)
            return answer_jobs(message, b"")

        with (
            ScriptedProxy(answer_after_rubbish) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            assert ask(connection) == ("flights",)

    def test_another_version_is_told_at_once(self, services: HAServices) -> None:
        """A proxy of another version never answers: it is not waited for."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            proxy.greet = lambda _: [b"LDQ\x63"]
            with pytest.raises(RemoteProtocolError, match="version 99"):
                ask(connection)

    def test_silence_ends_at_the_deadline(self, services: HAServices) -> None:
        """A proxy that takes everything and says nothing costs the deadline (Q3)."""
        with (
            ScriptedProxy() as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
            pytest.raises(DeadlineExceededError, match="gave no answer"),
        ):
            ask(connection, timeout_seconds=0.3)

    def test_a_leader_that_is_gone(
        self, services: HAServices, reserved: ReservedPort
    ) -> None:
        """An address without a listener is named at the deadline."""
        with (
            Lead(services, f"tcp://127.0.0.1:{reserved.port}"),
            ProxyConnection(services) as connection,
            pytest.raises(DeadlineExceededError, match="cannot be reached"),
        ):
            ask(connection, timeout_seconds=0.5)

    def test_a_published_address_that_is_none(self, services: HAServices) -> None:
        """An address that cannot be read is told, not waited for."""
        with (
            Lead(services, "nonsense"),
            ProxyConnection(services) as connection,
            pytest.raises(ConfigurationError, match="nonsense"),
        ):
            ask(connection)


class TestThreads:
    def test_a_slow_answer_delays_nobody_else(self, services: HAServices) -> None:
        """A commit that waits for its nodes leaves other threads alone."""
        held: list[bytes] = []

        def hold_first(message: msgspec.Struct, _: bytes) -> Reply:
            if not held:
                assert isinstance(message, ListJobs)
                held.append(
                    encode(JobsListed(request_id=message.request_id, job_ids=("slow",)))
                )
                held.append(proxy.last_routing_id)
                return None
            return answer_jobs(message, b"")

        with (
            ScriptedProxy(hold_first) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            slow = pool.submit(ask, connection)
            proxy.requests.wait_for_count(2)
            assert ask(connection) == ("flights",)
            proxy.call(lambda: proxy.send(held[1], held[:1]))
            assert slow.result(TIMEOUT_SECONDS) == ("slow",)

    def test_many_threads_share_a_connection(self, services: HAServices) -> None:
        """Every thread gets its own answer; they share a session."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
            ThreadPoolExecutor(16) as pool,
        ):
            answers = list(pool.map(lambda _: ask(connection), range(200)))
            assert answers == [("flights",)] * 200
            hellos = [r for r in proxy.requests.items if isinstance(r, Hello)]
            assert len(hellos) == 1

    def test_close_ends_calls_that_wait(self, services: HAServices) -> None:
        """None waits for a connection that is closed."""
        with (
            ScriptedProxy() as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            future = pool.submit(ask, connection)
            proxy.requests.wait_for_count(2)
            connection.close()
            with pytest.raises(LocalProtocolError):
                future.result(TIMEOUT_SECONDS)
            with pytest.raises(LocalProtocolError):
                ask(connection)

    def test_several_may_close_it_at_once(self, services: HAServices) -> None:
        """One that stops and one that was stopped both close; none waits for ever."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ThreadPoolExecutor(3) as pool,
        ):
            for _ in range(20):
                connection = ProxyConnection(services)
                assert ask(connection) == ("flights",)
                closing = [pool.submit(connection.close) for _ in range(3)]
                for one in closing:
                    one.result(TIMEOUT_SECONDS)
                with pytest.raises(LocalProtocolError):
                    ask(connection)

    def test_a_child_is_refused(self, services: HAServices) -> None:
        """After ``fork()`` a connection is the parent's alone (rule E10)."""
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services) as connection,
        ):
            ask(connection)
            assert run_in_child(lambda: ask(connection)) == "ForkedClientError"
            assert run_in_child(connection.close) == "None"
            assert ask(connection) == ("flights",)


class TestCurve:
    def test_the_published_key_is_enough(self, services: HAServices) -> None:
        """The address brings the key; a token's owner needs no keys of his own."""
        with (
            ScriptedProxy(answer_jobs, key_pair=CurveKeyPair.generate()) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services, "token") as connection,
        ):
            assert ask(connection) == ("flights",)

    def test_keys_prove_who_asks(self, services: HAServices, tmp_path: Path) -> None:
        """Key files among the credentials admit whom the proxy lists."""
        mine = CurveKeyPair.generate()
        files = write_key_pair(mine, tmp_path / "mine")
        allow_list = parse_allow_list(
            f"[clients.me]\npublic_key = '{mine.public_key}'\nroles = ['observe']",
            source="test",
        )
        with (
            ScriptedProxy(
                answer_jobs, key_pair=CurveKeyPair.generate(), allow_list=allow_list
            ) as proxy,
            Lead(services, proxy.address),
        ):
            credentials = Credentials(curve_secret_key_file=files.secret_file)
            with ProxyConnection(services, credentials) as connection:
                assert ask(connection) == ("flights",)
            with (
                ProxyConnection(services) as stranger,
                pytest.raises(AuthenticationError, match="allow-list"),
            ):
                ask(stranger)

    def test_keys_are_not_given_up_silently(
        self, services: HAServices, tmp_path: Path
    ) -> None:
        """Who names keys is not connected to a proxy that uses none."""
        files = write_key_pair(CurveKeyPair.generate(), tmp_path / "mine")
        credentials = Credentials(curve_secret_key_file=files.secret_file)
        with (
            ScriptedProxy(answer_jobs) as proxy,
            Lead(services, proxy.address),
            ProxyConnection(services, credentials) as connection,
            pytest.raises(AuthenticationError, match="no CURVE"),
        ):
            ask(connection)
