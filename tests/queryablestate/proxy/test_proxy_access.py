"""
Rights, tokens, limits and kept answers of a proxy, over real sockets (C1 to C4).

The asker is our own client, or a peer that says what no client of ours would say.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from nameservice import AuthenticationError, NameServiceError, UnreachableError
from queryablestate import AccessDeniedError, DeadlineExceededError, RateLimitedError
from queryablestate.client.calls import ProxyConnection
from queryablestate.client.client import QueryableStateClient
from queryablestate.connect.credentials import Credentials, as_credentials
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from queryablestate.proxy.cache import CacheRule
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.rate_limit import RateLimitRule
from queryablestate.wire.address import parse_address
from queryablestate.wire.clients import (
    CommitBatch,
    DescribeState,
    DropState,
    JobsListed,
    ListJobs,
    ListStates,
)
from queryablestate.wire.node_messages import (
    HeartbeatAcknowledged,
    NodeRefused,
    NodeRegistered,
)
from queryablestate.wire.questions import Ask, GetValues, Refusal
from queryablestate.wire.refusals import STALE_ROUTE, UNKNOWN_SESSION, error_of
from queryablestate.writer.writer import StateWriter
from tests.queryablestate.proxy_peers import ScriptedNode, ScriptedPeer, is_refused
from tests.queryablestate.proxy_stage import JOB, SCHEMA, STATE, ProxyStage
from tests.recording import wait_until
from zmqtransport import CurveKeyPair, KeyFiles, write_key_pair


pytestmark = pytest.mark.shells

OPERATOR: Final = "operator"


def entry(name: str, **rights: Any) -> CallerEntry:
    """Return a caller whose token is its name."""
    return CallerEntry(name=name, token_sha256=token_sha256(name), **rights)


PEOPLE: Final = (
    entry(OPERATOR, admin=True),
    entry("reader", read=["flights/aircraft"]),
    entry("stranger", read=["weather/*"]),
    entry("machine", node=True),
)
ACCESS: Final = AccessList(callers=PEOPLE)


def files_of(pair: CurveKeyPair, directory: Path, name: str) -> KeyFiles:
    """Write a key pair, and return its files."""
    return write_key_pair(pair, directory / name)


def curve(directory: Path) -> dict[str, Any]:
    """Return the settings of a proxy with keys."""
    files = files_of(CurveKeyPair.generate(), directory, "proxy")
    return {
        "curve_public_key_file": files.public_file,
        "curve_secret_key_file": files.secret_file,
    }


def client(
    stage: ProxyStage, credentials: str | Credentials | None = None
) -> QueryableStateClient:
    """Return a client of that proxy, which asks no node by a ticket of before."""
    return QueryableStateClient(
        stage.ha, credentials, deadline_seconds=20.0, direct=False
    )


def raised(action: Callable[[], object]) -> NameServiceError | None:
    """Return the error of *action*, or None if it has none."""
    try:
        action()
    except NameServiceError as error:
        return error
    return None


def published(stage: ProxyStage) -> None:
    """Write two states of one job."""
    publisher = stage.publisher(STATE, "delays", token=OPERATOR)
    publisher.write({STATE: [("a", 1), ("b", 2)], "delays": [("a", 9)]})


class TestRights:
    @pytest.mark.proves("C1")
    def test_who_may_read_reads_and_sees_no_more(self, tmp_path: Path) -> None:
        """C1: lists hold what may be read, and nothing says that there is more."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            published(stage)
            with client(stage, "reader") as reader:
                assert reader.get(JOB, STATE, "a") == {"delay": 1}
                assert reader.jobs() == [JOB]
                assert reader.states(JOB) == [STATE]
            with client(stage, "stranger") as stranger:
                assert stranger.jobs() == []

    @pytest.mark.proves("C1")
    def test_a_refused_caller_learns_nothing(self, tmp_path: Path) -> None:
        """C1: there or not, the same answer byte for byte, names apart."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            published(stage)
            with client(stage, "stranger") as stranger:
                errors = []
                for job_id, state_name in (
                    (JOB, STATE),
                    (JOB, "nothing!"),
                    ("nowhere", STATE),
                ):
                    with pytest.raises(AccessDeniedError) as caught:
                        stranger.get(job_id, state_name, "a")
                    errors.append((type(caught.value), len(caught.value.args)))
                assert len(set(errors)) == 1
            with ScriptedPeer(stage.proxy.address) as peer:
                peer.hello("stranger")
                there = peer.ask(DescribeState, job_id=JOB, state_name=STATE)
                peer_number = there.request_id
                missing = peer.ask(DescribeState, job_id="nowhere", state_name=STATE)
                assert isinstance(there, Refusal)
                assert isinstance(missing, Refusal)
                assert there.code == missing.code == "access-denied"
                assert there.data == (f"read {JOB}/{STATE}",)
                assert missing.data == (f"read nowhere/{STATE}",)
                assert missing.request_id == peer_number + 1
                for job_id in (JOB, "nowhere"):
                    assert is_refused(
                        peer.ask(ListStates, job_id=job_id), "access-denied"
                    )
                    assert is_refused(
                        peer.ask(DropState, job_id=job_id, state_name=STATE),
                        "access-denied",
                    )
                # A number that is, one that is not, and one of another state.
                for number in (1, 2, 99):
                    refused = peer.ask(
                        Ask,
                        b"\x91\xc4\x01a",
                        state_number=number,
                        assignment_version=1,
                        node_index=0,
                        operation=GetValues(),
                        key_count=1,
                    )
                    assert is_refused(refused, STALE_ROUTE)
                    told = peer.ask(
                        CommitBatch,
                        job_id=JOB,
                        query_id="q",
                        run_id="r",
                        writer_epoch=1,
                        batch_id=0,
                        assignment_version=1,
                        state_numbers=(number,),
                        is_complete=False,
                        on_new_query="refuse",
                        stages=(),
                        timeout_ms=1_000,
                    )
                    assert isinstance(told, Refusal)
                    assert (told.code, told.data) == (
                        "access-denied",
                        (f"write {JOB}/*",),
                    )

    @pytest.mark.proves("C1", "C4")
    def test_a_new_list_holds_for_open_sessions(self, tmp_path: Path) -> None:
        """C1, C4: rights are those of the moment, not those of the greeting."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            published(stage)
            with (
                client(stage, "reader") as reader,
                client(stage, "stranger") as stranger,
            ):
                assert reader.get(JOB, STATE, "a") == {"delay": 1}
                with pytest.raises(AccessDeniedError):
                    stranger.get(JOB, STATE, "a")
                swapped = AccessList(
                    callers=[
                        *PEOPLE[:1],
                        entry("reader", read=["weather/*"]),
                        entry("stranger", read=["flights/*"]),
                    ]
                )
                stage.proxy.reconfigure(ProxyConfig(access=swapped))
                with pytest.raises(AccessDeniedError):
                    reader.get(JOB, STATE, "a")
                assert reader.jobs() == []
                assert stranger.get(JOB, STATE, "a") == {"delay": 1}
                # Taken off altogether, or given another token: no caller any more.
                stage.proxy.reconfigure(
                    ProxyConfig(access=AccessList(callers=PEOPLE[:1]))
                )
                with pytest.raises((AccessDeniedError, AuthenticationError)):
                    stranger.get(JOB, STATE, "a")

    @pytest.mark.proves("C1", "C4")
    def test_who_is_no_caller_any_more_is_told_so(self, tmp_path: Path) -> None:
        """C1, C4: its session is over; with a new token it has another one."""
        with (
            ProxyStage(tmp_path, ProxyConfig(access=ACCESS), node_count=0) as stage,
            ScriptedPeer(stage.proxy.address) as reader,
            ScriptedPeer(stage.proxy.address) as stranger,
        ):
            reader.hello("reader")
            stranger.hello("stranger")
            renewed = CallerEntry(
                name="reader", token_sha256=token_sha256("new"), read=["weather/*"]
            )
            others = (one for one in PEOPLE if one.name != "reader")
            stage.proxy.reconfigure(
                ProxyConfig(access=AccessList(callers=[renewed, *others]))
            )
            assert is_refused(reader.ask(ListJobs), UNKNOWN_SESSION)
            with pytest.raises(AuthenticationError):
                reader.hello("reader")
            reader.hello("new")
            for peer in (reader, stranger):
                assert isinstance(peer.ask(ListJobs), JobsListed)

    @pytest.mark.proves("C1", "C4")
    def test_who_waits_for_a_batch_needs_the_right_when_it_comes(
        self, tmp_path: Path
    ) -> None:
        """C1, C4: a caller that is taken off is not told what is written later."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            publisher = stage.publisher(STATE, token=OPERATOR)
            publisher.write({STATE: [("a", 1)]})
            found: list[object] = []

            def wait() -> None:
                try:
                    found.append(reader.lookup(JOB, STATE, "a", min_batch_id=1))
                except NameServiceError as error:
                    found.append(error)

            with client(stage, "reader") as reader:
                waiter = threading.Thread(target=wait)
                waiter.start()
                wait_until(lambda: stage.proxy.status()["questions_pending"] == 1)
                without = AccessList(callers=(PEOPLE[0], *PEOPLE[2:]))
                stage.proxy.reconfigure(ProxyConfig(access=without))
                publisher.write({STATE: [("a", 2)]})
                waiter.join(30)
            (error,) = found
            assert isinstance(error, AccessDeniedError | AuthenticationError)

    @pytest.mark.proves("C1", "C4")
    def test_who_waits_for_the_first_batch_is_judged_at_once(
        self, tmp_path: Path
    ) -> None:
        """C1, C4: a caller that is taken off does not wait until its deadline."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            proxy = ProxyConnection(stage.config, as_credentials(OPERATOR))
            StateWriter(proxy).begin(
                JOB,
                {STATE: SCHEMA},
                query_id="query",
                run_id=str(uuid.uuid4()),
                max_parallelism=4,
                on_new_query="refuse",
                timeout_seconds=30,
            )
            proxy.close()  # it has written nothing yet
            found: list[object] = []

            def wait() -> None:
                try:
                    found.append(reader.lookup(JOB, STATE, "a", min_batch_id=0))
                except NameServiceError as error:
                    found.append(error)

            with client(stage, "reader") as reader:
                waiter = threading.Thread(target=wait)
                waiter.start()
                wait_until(lambda: stage.proxy.status()["questions_parked"] == 1)
                without = AccessList(callers=(PEOPLE[0], *PEOPLE[2:]))
                stage.proxy.reconfigure(ProxyConfig(access=without))
                assert stage.proxy.status()["questions_parked"] == 0
                waiter.join(30)
            (error,) = found
            assert isinstance(error, AccessDeniedError | AuthenticationError)

    @pytest.mark.proves("C1")
    def test_who_shows_nothing_is_not_let_in(self, tmp_path: Path) -> None:
        """C1: with an error that says so, long before the deadline."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, node_count=0) as stage:
            for credentials in (None, "wrong", "READER", "x" * 1_000):
                began = time.monotonic()
                with (
                    client(stage, credentials) as nobody,
                    pytest.raises(AuthenticationError),
                ):
                    nobody.jobs()
                assert time.monotonic() - began < 10
            assert int(stage.proxy.status()["hellos_refused_total"]) >= 4

    @pytest.mark.proves("N3")
    def test_a_flood_without_a_token_keeps_nobody_out(self, tmp_path: Path) -> None:
        """
        N3: connections over which no caller was taken hold no place for good.

        Some never speak, some show a wrong token, and there are as many as there may
        be.  A caller comes in all the same; then it stays, whoever comes after it.
        """
        config = ProxyConfig(access=ACCESS, connections_max=6)
        with (
            ProxyStage(tmp_path, config, node_count=0) as stage,
            contextlib.ExitStack() as strangers,
            capture_logs(),
        ):
            endpoint = parse_address(stage.proxy.address).endpoint

            def figure(name: str) -> int:
                return int(stage.proxy.status().get(name, 0))

            for _ in range(3):
                liar = strangers.enter_context(ScriptedPeer(stage.proxy.address))
                with pytest.raises(AuthenticationError):
                    liar.hello("wrong")
            for _ in range(3):
                silent = strangers.enter_context(ScriptedPeer(stage.proxy.address))
                silent.wait_until_open()
            assert figure("connections") == 6
            with (
                ScriptedPeer(stage.proxy.address) as reader,
                ScriptedNode(stage.proxy.address, token="machine") as machine,
            ):
                reader.hello("reader")
                machine.join()
                refused_count = figure("connections_refused_total")
                for _ in range(12):
                    strangers.enter_context(
                        socket.create_connection((endpoint.host, endpoint.port))
                    )
                wait_until(
                    lambda: figure("connections_refused_total") >= refused_count + 12
                )
                assert isinstance(reader.ask(ListJobs), JobsListed)
                assert figure("nodes_present") == 1
                assert figure("sessions") == 1

    @pytest.mark.proves("C1")
    def test_a_node_needs_its_right(self, tmp_path: Path) -> None:
        """C1: who may only read cannot be given state to keep."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, node_count=0) as stage, capture_logs():
            address = stage.proxy.address
            for token in (None, "wrong", "reader"):
                with ScriptedNode(address, token=token) as node:
                    refused = node.register()
                    assert isinstance(refused, NodeRefused)
                    assert refused.reason == "not-allowed"
            for token in ("machine", OPERATOR):
                with ScriptedNode(address, token=token) as node:
                    assert isinstance(node.register(), NodeRegistered)
            node_config = NodeConfig(data_dir=tmp_path / "n", token="reader")
            with (
                StateNode(stage.ha, node_config) as state_node,
                pytest.raises(UnreachableError, match="let it be a node"),
            ):
                state_node.wait_until_registered(1.0)

    @pytest.mark.proves("C1", "C4")
    def test_a_node_that_loses_its_right_is_no_node(self, tmp_path: Path) -> None:
        """C1, C4: at once; what it was asked is not answered."""
        config = ProxyConfig(access=ACCESS)
        with (
            ProxyStage(tmp_path, config, node_count=0) as stage,
            ScriptedNode(stage.proxy.address, "a", token="machine") as machine,
            ScriptedNode(stage.proxy.address, "b", token=OPERATOR) as other,
            capture_logs(),
        ):
            machine.join()
            other.join()
            without = AccessList(callers=PEOPLE[:1])
            stage.proxy.reconfigure(ProxyConfig(access=without))
            told = machine.receive()
            assert isinstance(told, NodeRefused)
            assert told.reason == "not-allowed"
            other.join_again()
            assert stage.proxy.status()["nodes_present"] == 1
            refused = machine.register()
            assert isinstance(refused, NodeRefused)
            other.beat()
            assert isinstance(other.receive(), HeartbeatAcknowledged)

    @pytest.mark.proves("C1", "C4")
    @pytest.mark.parametrize("is_connected", [True, False])
    def test_what_a_former_node_knows_is_worth_nothing(
        self, tmp_path: Path, *, is_connected: bool
    ) -> None:
        """
        C1, C4: nodes have another secret when one of them has lost its right.

        By the old one it could copy rows from them, and forge tickets of any reader.
        """
        config = ProxyConfig(access=ACCESS)
        with (
            ProxyStage(tmp_path, config, node_count=0) as stage,
            ScriptedNode(stage.proxy.address, "a", token="machine") as machine,
            ScriptedNode(stage.proxy.address, "b", token=OPERATOR) as other,
            capture_logs(),
        ):
            known = machine.join().copy_secret
            assert other.join().copy_secret == known
            if not is_connected:
                machine.close()
                wait_until(lambda: stage.proxy.status()["nodes_present"] == 1)
            without_reader = [one for one in PEOPLE if one.name != "reader"]
            stage.proxy.reconfigure(
                ProxyConfig(access=AccessList(callers=without_reader))
            )
            other.beat()
            assert isinstance(other.receive(), HeartbeatAcknowledged)
            without = AccessList(callers=PEOPLE[:1])
            stage.proxy.reconfigure(ProxyConfig(access=without))
            renewed = other.join_again().copy_secret
            assert renewed
            assert renewed != known

    @pytest.mark.proves("C4", "Q3")
    def test_jobs_go_on_when_a_node_loses_its_right(self, tmp_path: Path) -> None:
        """C4, Q3: those that stay have the new secret, readers and writers go on."""
        config = ProxyConfig(access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage, capture_logs():
            publisher = stage.publisher(token=OPERATOR)
            publisher.write({STATE: [("a", 1)]})
            with (
                client(stage, "reader") as reader,
                ScriptedNode(stage.proxy.address, "b", token="machine") as machine,
            ):
                assert reader.get(JOB, STATE, "a") == {"delay": 1}
                machine.join()
                stage.proxy.reconfigure(
                    ProxyConfig(access=AccessList(callers=PEOPLE[:3]))
                )
                assert reader.get(JOB, STATE, "a") == {"delay": 1}
                publisher.write({STATE: [("a", 2)]})
                assert reader.get(JOB, STATE, "a") == {"delay": 2}

    @pytest.mark.parametrize("address", ["", "nowhere", "tcp://*:1", "tcp://h:0"])
    def test_a_node_that_nobody_can_reach_is_refused(
        self, tmp_path: Path, address: str
    ) -> None:
        """Writers would be told to go there."""
        with (
            ProxyStage(tmp_path, node_count=0) as stage,
            ScriptedNode(stage.proxy.address) as node,
            capture_logs(),
        ):
            refused = node.register(address=address)
            assert isinstance(refused, NodeRefused)
            assert refused.reason == "malformed"


class TestSecrets:
    @pytest.mark.proves("C1")
    def test_a_stolen_secret_is_worth_nothing_under_another_key(
        self, tmp_path: Path
    ) -> None:
        """C1: neither under a listed key nor under one that was drawn."""
        good, evil = CurveKeyPair.generate(), CurveKeyPair.generate()
        access = AccessList(
            callers=[
                CallerEntry(name="good", public_key=good.public_key, admin=True),
                CallerEntry(name="evil", public_key=evil.public_key, read=["x/y"]),
                entry("t", read=["x/y"]),
            ]
        )
        config = ProxyConfig(access=access, **curve(tmp_path))
        with ProxyStage(tmp_path, config, node_count=0) as stage:
            address = stage.proxy.address
            with (
                ScriptedPeer(address, keys=good) as owner,
                ScriptedPeer(address, keys=evil) as thief,
                ScriptedPeer(address) as nobody,
            ):
                owner.hello()
                assert isinstance(owner.ask(ListJobs), JobsListed)
                for peer in (thief, nobody):
                    peer.session = owner.session
                    assert is_refused(peer.ask(ListJobs), UNKNOWN_SESSION)
                assert isinstance(owner.ask(ListJobs), JobsListed)

    def test_without_keys_a_session_survives_its_connection(
        self, tmp_path: Path
    ) -> None:
        """It is bound to nothing else: a client that reconnects goes on."""
        with ProxyStage(tmp_path, node_count=0) as stage:
            with ScriptedPeer(stage.proxy.address) as first:
                first.hello()
                secret = first.session
            with ScriptedPeer(stage.proxy.address) as second:
                second.session = secret
                assert isinstance(second.ask(ListJobs), JobsListed)


class TestTokensOverCurve:
    """A token must not travel in clear: who has one draws keys for the connection."""

    @pytest.mark.proves("C1")
    def test_everybody_speaks_encrypted(self, tmp_path: Path) -> None:
        """C1: clients, writers and nodes with tokens, and a caller with a key."""
        keys = CurveKeyPair.generate()
        access = AccessList(
            callers=[
                *PEOPLE,
                CallerEntry(
                    name="with-key", public_key=keys.public_key, read=["flights/*"]
                ),
            ]
        )
        config = ProxyConfig(access=access, **curve(tmp_path))
        files = files_of(keys, tmp_path, "with-key")
        by_key = Credentials(curve_secret_key_file=files.secret_file)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            published(stage)
            assert "?key=" in stage.proxy.address
            for credentials in ("reader", by_key):
                with client(stage, credentials) as reader:
                    assert reader.get(JOB, STATE, "b") == {"delay": 2}

    @pytest.mark.proves("C1")
    @pytest.mark.parametrize("has_tokens", [True, False])
    def test_neither_key_nor_token_is_refused_in_time(
        self, tmp_path: Path, has_tokens: bool
    ) -> None:
        """C1: `AuthenticationError` within the connect timeout, and never a hang."""
        keys = CurveKeyPair.generate()
        callers = [
            CallerEntry(name="with-key", public_key=keys.public_key, admin=True),
            *(PEOPLE if has_tokens else ()),
        ]
        config = ProxyConfig(access=AccessList(callers=callers), **curve(tmp_path))
        stranger = files_of(CurveKeyPair.generate(), tmp_path, "stranger")
        by_key = Credentials(curve_secret_key_file=stranger.secret_file)
        with ProxyStage(tmp_path, config, node_count=0) as stage, capture_logs():
            timeout_seconds = stage.config.connect_timeout_seconds
            for credentials in (None, "wrong", by_key):
                began = time.monotonic()
                with (
                    client(stage, credentials) as nobody,
                    pytest.raises(AuthenticationError),
                ):
                    nobody.jobs()
                assert time.monotonic() - began < timeout_seconds

    @pytest.mark.proves("C4")
    def test_a_reload_can_begin_to_take_tokens(self, tmp_path: Path) -> None:
        """C4: the handshake changes with the list."""
        keys = CurveKeyPair.generate()
        with_key = CallerEntry(name="with-key", public_key=keys.public_key, admin=True)
        files = curve(tmp_path)
        config = ProxyConfig(access=AccessList(callers=[with_key]), **files)
        with ProxyStage(tmp_path, config, node_count=0) as stage, capture_logs():
            with client(stage, "reader") as early, pytest.raises(AuthenticationError):
                early.jobs()
            both = AccessList(callers=[with_key, *PEOPLE])
            stage.proxy.reconfigure(ProxyConfig(access=both, **files))
            with client(stage, "reader") as late:
                assert late.jobs() == []

    def test_open_access_can_be_encrypted_too(self, tmp_path: Path) -> None:
        """Keys of the proxy and no callers: everybody may, and none listens in."""
        config = ProxyConfig(**curve(tmp_path))
        with ProxyStage(tmp_path, config) as stage:
            stage.publisher().write({STATE: [("a", 1)]})
            with client(stage) as anybody:
                assert anybody.get(JOB, STATE, "a") == {"delay": 1}


def limited(**settings: Any) -> ProxyConfig:
    """Return a proxy where each caller has a budget of that many keys per second."""
    rule = RateLimitRule(scope="caller", **settings)
    return ProxyConfig(rate_limits=[rule], access=ACCESS)


class TestRateLimits:
    @pytest.mark.proves("C2")
    def test_asking_again_in_time_succeeds(self, tmp_path: Path) -> None:
        """C2: the time to wait is right: then it is admitted, at once."""
        with ProxyStage(
            tmp_path, limited(keys_per_second=20, burst=5), token=OPERATOR
        ) as stage:
            published(stage)
            with client(stage, "reader") as reader:
                reader.get(JOB, STATE, "a")
                refused_count = 0
                pause = threading.Event()  # is never set: it waits
                for _ in range(30):
                    error = raised(lambda: reader.get(JOB, STATE, "a"))
                    if error is None:
                        continue
                    refused_count += 1
                    assert isinstance(error, RateLimitedError)
                    assert 0 < error.retry_after_seconds <= 5 / 20
                    assert error.limit == "caller"
                    pause.wait(error.retry_after_seconds)
                    assert reader.get(JOB, STATE, "a") == {"delay": 1}
                assert refused_count > 0

    @pytest.mark.proves("C2")
    def test_a_budget_is_each_callers_own(self, tmp_path: Path) -> None:
        """C2: one that has spent its own costs the others nothing."""
        with ProxyStage(
            tmp_path, limited(keys_per_second=0.001, burst=1), token=OPERATOR
        ) as stage:
            published(stage)
            with client(stage, "reader") as reader, client(stage, OPERATOR) as other:
                reader.get(JOB, STATE, "a")
                with pytest.raises(RateLimitedError) as caught:
                    reader.get(JOB, STATE, "a")
                assert caught.value.retry_after_seconds > 900
                assert other.get(JOB, STATE, "a") == {"delay": 1}

    @pytest.mark.proves("C2")
    def test_keys_count_not_requests(self, tmp_path: Path) -> None:
        """C2: who asks for many at once spends as much as for one at a time."""
        with ProxyStage(
            tmp_path, limited(keys_per_second=0.001, burst=10), token=OPERATOR
        ) as stage:
            published(stage)
            with client(stage, "reader") as reader:
                reader.get_many(JOB, STATE, [f"key-{n}" for n in range(10)])
                with pytest.raises(RateLimitedError):
                    reader.get(JOB, STATE, "a")

    @pytest.mark.proves("C1", "C2")
    def test_who_may_not_read_spends_nothing_of_a_states_budget(
        self, tmp_path: Path
    ) -> None:
        """C1, C2: rights come first."""
        rule = RateLimitRule(scope="state", keys_per_second=0.001, burst=1)
        config = ProxyConfig(rate_limits=[rule], access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            published(stage)
            with ScriptedPeer(stage.proxy.address) as stranger:
                stranger.hello("stranger")
                for _ in range(10):
                    stranger.ask(
                        Ask,
                        b"\x91\xc4\x01a",
                        state_number=1,
                        assignment_version=1,
                        node_index=0,
                        operation=GetValues(),
                        key_count=1,
                    )
            with client(stage, "reader") as reader:
                assert reader.get(JOB, STATE, "a") == {"delay": 1}

    @pytest.mark.proves("C4")
    def test_limits_can_be_lifted(self, tmp_path: Path) -> None:
        """C4: for those who are connected."""
        config = limited(keys_per_second=0.001, burst=1)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            published(stage)
            with client(stage, "reader") as reader:
                reader.get(JOB, STATE, "a")
                with pytest.raises(RateLimitedError):
                    reader.get(JOB, STATE, "a")
                stage.proxy.reconfigure(ProxyConfig(access=ACCESS))
                for _ in range(5):
                    assert reader.get(JOB, STATE, "a") == {"delay": 1}


CACHING: Final = ProxyConfig(cache=[CacheRule(ttl_seconds=3_600)])


class TestCache:
    @pytest.mark.proves("Q2", "C3")
    def test_an_answer_is_kept_until_a_newer_batch(self, tmp_path: Path) -> None:
        """C3, Q2: marked and growing older; gone with the next commit."""
        with ProxyStage(tmp_path, CACHING) as stage:
            publisher = stage.publisher()
            publisher.write({STATE: [("a", 1)]})
            with client(stage) as reader:
                first = reader.lookup(JOB, STATE, "a")
                again = reader.lookup(JOB, STATE, "a")
                assert (first.cached, again.cached) == (False, True)
                assert again.value == {"delay": 1}
                assert again.batch_id == first.batch_id == 0
                assert again.age_seconds >= first.age_seconds
                publisher.write({STATE: [("a", 2)]})
                newer = reader.lookup(JOB, STATE, "a")
                assert (newer.cached, newer.batch_id) == (False, 1)
                assert newer.value == {"delay": 2}
                assert reader.lookup(JOB, STATE, "a").cached
                assert int(stage.proxy.status()["cache_hits_total"]) == 2

    @pytest.mark.proves("Q3")
    def test_what_is_missing_is_asked_for_each_time(self, tmp_path: Path) -> None:
        """Q3: one that asks for it is waiting for it."""
        with ProxyStage(tmp_path, CACHING) as stage:
            publisher = stage.publisher()
            publisher.write({STATE: [("a", 1)]})
            with client(stage) as reader:
                for _ in range(3):
                    assert reader.get(JOB, STATE, "b", default=None) is None
                assert int(stage.proxy.status()["cache_hits_total"]) == 0
                publisher.write({STATE: [("b", 2)]})
                assert reader.get(JOB, STATE, "b") == {"delay": 2}

    @pytest.mark.proves("C1")
    def test_what_is_kept_is_not_given_to_who_may_not_read(
        self, tmp_path: Path
    ) -> None:
        """C1: rights come before what is kept."""
        config = ProxyConfig(cache=[CacheRule(ttl_seconds=3_600)], access=ACCESS)
        with ProxyStage(tmp_path, config, token=OPERATOR) as stage:
            published(stage)
            with client(stage, "reader") as reader:
                reader.get(JOB, STATE, "a")
                assert reader.lookup(JOB, STATE, "a").cached
            with (
                client(stage, "stranger") as stranger,
                pytest.raises(AccessDeniedError),
            ):
                stranger.get(JOB, STATE, "a")

    @pytest.mark.proves("Q2")
    def test_a_batch_that_is_wanted_is_waited_for(self, tmp_path: Path) -> None:
        """Q2: what is kept is too old for who wants a later batch."""
        with ProxyStage(tmp_path, CACHING) as stage:
            publisher = stage.publisher()
            publisher.write({STATE: [("a", 1)]})
            with client(stage) as reader:
                reader.get(JOB, STATE, "a")
                with pytest.raises(DeadlineExceededError):
                    reader.get(JOB, STATE, "a", min_batch_id=1, deadline_seconds=0.3)
                found: list[Any] = []
                waiter = threading.Thread(
                    target=lambda: found.append(
                        reader.lookup(JOB, STATE, "a", min_batch_id=1)
                    )
                )
                waiter.start()
                publisher.write({STATE: [("a", 2)]})
                waiter.join(30)
                (entry,) = found
                assert (entry.value, entry.batch_id) == ({"delay": 2}, 1)

    @pytest.mark.proves("C4")
    def test_rules_can_change(self, tmp_path: Path) -> None:
        """C4: what was kept under other rules is thrown away."""
        with ProxyStage(tmp_path, CACHING) as stage:
            stage.publisher().write({STATE: [("a", 1)]})
            with client(stage) as reader:
                reader.get(JOB, STATE, "a")
                assert reader.lookup(JOB, STATE, "a").cached
                stage.proxy.reconfigure(ProxyConfig())
                assert not reader.lookup(JOB, STATE, "a").cached
                assert not reader.lookup(JOB, STATE, "a").cached
                stage.proxy.reconfigure(CACHING)
                assert not reader.lookup(JOB, STATE, "a").cached
                assert reader.lookup(JOB, STATE, "a").cached
                assert int(stage.proxy.status()["cache_size_bytes"]) > 0

    def test_a_state_that_was_dropped_leaves_nothing(self, tmp_path: Path) -> None:
        """One that is made anew under its name begins without answers."""
        with ProxyStage(tmp_path, CACHING) as stage:
            stage.publisher().write({STATE: [("a", 1)]})
            with client(stage) as reader, ScriptedPeer(stage.proxy.address) as peer:
                reader.get(JOB, STATE, "a")
                assert reader.lookup(JOB, STATE, "a").cached
                peer.hello()
                peer.ask(DropState, job_id=JOB, state_name=STATE)
                stage.publisher().write({STATE: [("a", 7)]})
                entry = reader.lookup(JOB, STATE, "a")
                assert (entry.value, entry.cached) == ({"delay": 7}, False)


class TestDeadlines:
    @pytest.mark.proves("C3")
    def test_a_question_without_a_deadline_gets_the_proxys(
        self, tmp_path: Path
    ) -> None:
        """C3: none waits for ever, by whatever client."""
        config = ProxyConfig(deadline_seconds_default=0.2, deadline_seconds_max=0.4)
        with (
            ProxyStage(tmp_path, config, node_count=0) as stage,
            ScriptedNode(stage.proxy.address, "node") as node,
            ScriptedPeer(stage.proxy.address) as peer,
        ):
            node.join()
            peer.hello()
            description = peer.make_state()
            for deadline_ms, at_most in ((None, 0.2), (60_000, 0.4)):
                refused = peer.get(description, deadline_ms=deadline_ms)
                assert isinstance(refused, Refusal)
                error = error_of(refused)
                assert isinstance(error, DeadlineExceededError)
                assert at_most <= error.waited_seconds < at_most + 10
