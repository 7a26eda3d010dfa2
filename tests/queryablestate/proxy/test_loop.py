"""What a proxy does with what it is told: real sockets, scripted peers and nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from structlog.testing import capture_logs

from nameservice import DidNotHappenError, RemoteProtocolError
from queryablestate import (
    CommitTimeoutError,
    DeadlineExceededError,
    StateUnavailableError,
)
from queryablestate.control.core import ControlCore
from queryablestate.control.events import ControlEvent, LinkId, LinksClosed
from queryablestate.proxy.config import ProxyConfig
from queryablestate.wire.clients import (
    CommitBatch,
    DescribeState,
    DrawTicket,
    Hello,
    JobsListed,
    ListJobs,
    ListNodes,
    NodesListed,
    StateDeclaration,
)
from queryablestate.wire.codec import decode_to_client, decode_to_node
from queryablestate.wire.node_messages import (
    EntriesApplied,
    HeartbeatAcknowledged,
    JobPosition,
    NodeRefused,
    StagesVerified,
    VerifyStages,
)
from queryablestate.wire.questions import (
    Answer,
    Ask,
    GetValues,
    Question,
    Reading,
    Refusal,
    ScanRows,
    Told,
)
from queryablestate.wire.records import StageRecord
from queryablestate.wire.refusals import (
    NOT_LEADER,
    STALE_ROUTE,
    UNKNOWN_SESSION,
    error_of,
)
from tests.queryablestate.control_plane import VALUE
from tests.queryablestate.proxy_peers import ScriptedNode, ScriptedPeer, is_refused
from tests.queryablestate.proxy_stage import ProxyStage
from tests.recording import wait_until
from zmqtransport import UnreadAnswers


pytestmark = pytest.mark.shells

KEYS: Final = msgspec.msgpack.encode([b"a"])
VALUES: Final = msgspec.msgpack.encode([b"value"])


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ProxyStage]:
    """A proxy that leads, and no nodes."""
    with ProxyStage(tmp_path, node_count=0) as stage:
        yield stage


@pytest.fixture
def node(stage: ProxyStage) -> Iterator[ScriptedNode]:
    """A node that is registered."""
    with ScriptedNode(stage.proxy.address, "node-a") as node:
        node.join()
        yield node


@pytest.fixture
def peer(stage: ProxyStage, node: ScriptedNode) -> Iterator[ScriptedPeer]:
    """Somebody with a session, where there is a node."""
    with ScriptedPeer(stage.proxy.address) as peer:
        peer.hello()
        yield peer


# A request that is large, and does not decode.
LARGE: Final[dict[str, Any]] = {
    "job_id": "flights",
    "query_id": "query",
    "run_id": "run",
    "writer_epoch": 1,
    "batch_id": 1,
    "assignment_version": 1,
    "state_numbers": ("none",) * 20_000,
    "is_complete": False,
    "on_new_query": "refuse",
    "stages": (),
    "timeout_ms": 1,
}


def figure(stage: ProxyStage, name: str) -> int:
    """Return one of the proxy's figures."""
    return int(stage.proxy.status().get(name, 0))


def commit(peer: ScriptedPeer, state_number: int, *, timeout_ms: int) -> int:
    """Begin to commit a batch with one chunk on the node; return its number."""
    run_id = f"run {peer.ticket}"
    stage = StageRecord(stage_id=bytes(16), chunk_counts={"node-a": 1}, row_count=1)
    return peer.begin(
        CommitBatch,
        job_id="flights",
        query_id="query of aircraft",
        run_id=run_id,
        writer_epoch=peer.ticket,
        batch_id=1,
        assignment_version=1,
        state_numbers=(state_number,),
        is_complete=False,
        on_new_query="refuse",
        stages=(stage,),
        timeout_ms=timeout_ms,
    )


class TestSessions:
    def test_a_request_needs_a_session(self, peer: ScriptedPeer) -> None:
        """One that has none, or one of another time, is told to open one."""
        assert isinstance(peer.ask(ListJobs), JobsListed)
        for secret in (b"", bytes(16), peer.session + b"x"):
            assert is_refused(peer.ask(ListJobs, session=secret), UNKNOWN_SESSION)
        assert is_refused(
            peer.ask(
                Ask,
                KEYS,
                session=b"",
                state_number=1,
                assignment_version=1,
                node_index=0,
                operation=GetValues(),
                key_count=1,
            ),
            UNKNOWN_SESSION,
        )

    @pytest.mark.proves("B2", "N3")
    @pytest.mark.parametrize("session", [b"", bytes(16)])
    def test_of_a_large_request_the_session_is_looked_at_first(
        self, peer: ScriptedPeer, session: bytes
    ) -> None:
        """N3: to decode it takes a second; that it makes no sense is not found out."""
        assert is_refused(
            peer.ask(CommitBatch, session=session, **LARGE), UNKNOWN_SESSION
        )
        peer.begin(CommitBatch, **LARGE)
        (frame,) = peer.receive_frames()
        refusal = decode_to_client(frame)
        assert isinstance(refusal, Refusal)
        assert isinstance(error_of(refusal), RemoteProtocolError)

    @pytest.mark.proves("B2", "N3")
    def test_of_a_large_message_of_a_node_its_registration_is_looked_at_first(
        self, stage: ProxyStage, peer: ScriptedPeer
    ) -> None:
        """N3: it is told to register, and what else it says is not looked at."""
        peer.send(
            StagesVerified(
                registration_id="none",
                verify_id=1,
                missing=("none",) * 20_000,  # type: ignore[arg-type]
            )
        )
        (frame,) = peer.receive_frames()
        refused = decode_to_node(frame)
        assert isinstance(refused, NodeRefused)
        assert refused.reason == "unknown"
        assert figure(stage, "nodes_refused_total") == 1

    def test_there_are_so_many_sessions(self, tmp_path: Path) -> None:
        """The longest silent is driven out, is told so, and comes back."""
        config = ProxyConfig(session_count_max=2)
        with (
            ProxyStage(tmp_path, config, node_count=0) as stage,
            ScriptedPeer(stage.proxy.address) as first,
            ScriptedPeer(stage.proxy.address) as other,
        ):
            first.hello()
            other.hello()
            other.hello()
            assert is_refused(first.ask(ListJobs), UNKNOWN_SESSION)
            first.hello()
            assert isinstance(first.ask(ListJobs), JobsListed)
            assert figure(stage, "sessions") == 2

    def test_who_welcomes_says_its_limits(self, tmp_path: Path) -> None:
        """A client need not find out by being refused."""
        config = ProxyConfig(keys_per_request_max=7, frame_size_bytes_max=70_000)
        with (
            ProxyStage(tmp_path, config, node_count=0) as stage,
            ScriptedPeer(stage.proxy.address) as peer,
        ):
            welcome = peer.hello()
            assert welcome.keys_per_request_max == 7
            assert welcome.frame_size_bytes_max == 70_000
            assert welcome.leader_epoch > 0


class TestStandby:
    @pytest.mark.proves("Q4")
    def test_a_proxy_that_does_not_lead_says_so(self, stage: ProxyStage) -> None:
        """Q4: to everybody, whatever they show, and whatever they ask."""
        standby = stage.add_proxy()
        assert not standby.is_leader
        with ScriptedPeer(standby.address) as peer, ScriptedNode(standby.address) as n:
            for token in (None, "wrong"):
                peer.send(Hello(request_id=99, token=token))
                assert is_refused(peer.answer(99), NOT_LEADER)
            assert is_refused(peer.ask(ListJobs), NOT_LEADER)
            assert is_refused(
                peer.ask(DescribeState, job_id="j", state_name="s"), NOT_LEADER
            )
            # It may be one that the leader lists, and its message may be a large one.
            positions = tuple(
                JobPosition(job_id=f"{number:02000}", sequence=1)
                for number in range(100)
            )
            for fields in ({}, {"positions": positions}):
                told = n.register(**fields)
                assert isinstance(told, NodeRefused)
                assert told.reason == "not-leader"
            n.beat()
            told = n.receive()
            assert isinstance(told, NodeRefused)
            assert told.reason == "not-leader"


class TestQuestions:
    def test_a_question_goes_to_its_node_and_back(
        self, peer: ScriptedPeer, node: ScriptedNode
    ) -> None:
        """Keys and values pass as they are."""
        state = peer.make_state()
        number = peer.begin_get(state, keys=[b"\0key", b""])
        question = node.receive_question()
        assert question.operation == GetValues()
        node.answer(question, b"any bytes \xc1", batch_id=3)
        told = peer.answer(number)
        assert isinstance(told, Told)
        assert told.reading == Reading(generation=1, batch_id=3, age_ms=0)
        assert peer.payload == b"any bytes \xc1"

    def test_a_nodes_refusal_is_passed_on(
        self, peer: ScriptedPeer, node: ScriptedNode
    ) -> None:
        """With its code and its data."""
        state = peer.make_state()
        number = peer.begin_get(state)
        question = node.receive_question()
        node.send(
            Refusal(
                request_id=question.question_id,
                code="state-unavailable",
                data=("flights", "aircraft", (1, 2), 0.5, "lost"),
            )
        )
        assert peer.answer(number) == Refusal(
            request_id=number,
            code="state-unavailable",
            data=("flights", "aircraft", (1, 2), 0.5, "lost"),
        )

    def test_answers_of_strangers_are_ignored(
        self, stage: ProxyStage, peer: ScriptedPeer, node: ScriptedNode
    ) -> None:
        """Only the node that was asked can answer, and only once."""
        state = peer.make_state()
        number = peer.begin_get(state)
        question = node.receive_question()
        reading = Reading(generation=1, batch_id=0, age_ms=0)
        forged = Answer(
            question_id=question.question_id, reading=reading, has_missing=False
        )
        with ScriptedNode(stage.proxy.address, "node-b") as stranger:
            stranger.join()
            for other in (stranger, peer):
                other.send(forged, b"forged")
                other.send(Refusal(request_id=question.question_id, code="storage"))
            stranger.beat()
            assert isinstance(stranger.receive(), HeartbeatAcknowledged)
        assert isinstance(peer.ask(ListJobs), JobsListed)
        for values in (VALUES, b"again", b"and again"):
            node.answer(question, values)
        assert isinstance(peer.answer(number), Told)
        assert peer.payload == VALUES
        assert not peer.socket.poll(50)

    @pytest.mark.proves("Q4")
    def test_the_death_of_a_node_is_told_at_once(
        self, stage: ProxyStage, peer: ScriptedPeer
    ) -> None:
        """Q4: and the key groups of the other go on being answered."""
        with ScriptedNode(stage.proxy.address, "node-b") as doomed:
            doomed.join()
            state = peer.make_state()
            assert state.node_ids == ("node-a", "node-b")
            number = peer.begin_get(state, node_index=1, deadline_ms=60_000)
            doomed.receive_question()
        with capture_logs():
            refused = peer.answer(number)
        assert isinstance(refused, Refusal)
        error = error_of(refused)
        assert isinstance(error, StateUnavailableError)
        assert set(error.key_groups) == {
            group for group, owner in enumerate(state.owners) if owner == 1
        }
        wait_until(lambda: figure(stage, "nodes_present") == 1)
        again = peer.get(state, node_index=1)
        assert is_refused(again, "state-unavailable")

    @pytest.mark.proves("Q4")
    def test_other_nodes_go_on(
        self, stage: ProxyStage, peer: ScriptedPeer, node: ScriptedNode
    ) -> None:
        """Q4: whatever became of the rest."""
        with ScriptedNode(stage.proxy.address, "node-b") as doomed:
            doomed.join()
            state = peer.make_state()
        with capture_logs():
            wait_until(lambda: figure(stage, "nodes_present") == 1)
        number = peer.begin_get(state, node_index=0)
        node.answer(node.receive_question(), VALUES)
        assert isinstance(peer.answer(number), Told)

    @pytest.mark.proves("Q3")
    def test_a_silent_node_costs_the_deadline(
        self, peer: ScriptedPeer, node: ScriptedNode
    ) -> None:
        """Q3: an answer after it goes nowhere."""
        state = peer.make_state()
        number = peer.begin_get(state, deadline_ms=100)
        refused = peer.answer(number)
        assert isinstance(refused, Refusal)
        assert isinstance(error_of(refused), DeadlineExceededError)
        node.answer(node.receive_question(), VALUES)
        assert isinstance(peer.ask(ListJobs), JobsListed)

    @pytest.mark.proves("C2")
    @pytest.mark.parametrize(
        ("keys", "fields"),
        [
            (b"", {}),
            (b"\x92\xc4\x01a\xc4\x01b", {}),
            (b"no array", {}),
            (b"\xdd\xff\xff\xff\xff", {}),
            (KEYS, {"key_count": 0}),
            (KEYS, {"key_count": 2**40}),
            (KEYS, {"operation": ScanRows(start=b"", stop=None, limit=1)}),
            (b"", {"operation": ScanRows(start=b"", stop=None, limit=9)}),
        ],
    )
    def test_who_miscounts_its_keys_is_refused(
        self, peer: ScriptedPeer, keys: bytes, fields: dict[str, Any]
    ) -> None:
        """C2: what is counted is what is paid for."""
        state = peer.make_state()
        error = peer.error(
            Ask,
            keys,
            **{
                "state_number": state.state_number,
                "assignment_version": state.assignment_version,
                "node_index": 0,
                "operation": GetValues(),
                "key_count": 1,
            }
            | fields,
        )
        assert isinstance(error, RemoteProtocolError)

    @pytest.mark.parametrize(
        "fields",
        [
            {"state_number": 99},
            {"state_number": -1},
            {"state_number": 2**63},
            {"assignment_version": 0},
            {"assignment_version": 2},
            {"node_index": -1},
            {"node_index": 1},
        ],
    )
    def test_a_wrong_route_is_stale(
        self, peer: ScriptedPeer, fields: dict[str, int]
    ) -> None:
        """The client describes the state again."""
        state = peer.make_state()
        answer = peer.ask(
            Ask,
            KEYS,
            **{
                "state_number": state.state_number,
                "assignment_version": state.assignment_version,
                "node_index": 0,
                "operation": GetValues(),
                "key_count": 1,
            }
            | fields,
        )
        assert is_refused(answer, STALE_ROUTE)

    @pytest.mark.proves("Q3")
    def test_what_cannot_be_asked_is_answered(
        self,
        stage: ProxyStage,
        peer: ScriptedPeer,
        node: ScriptedNode,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Q3: a node that takes no more costs none a deadline."""
        state = peer.make_state()
        running = stage.proxy._running
        assert running is not None
        send = running.port.send

        def send_no_question(link: Any, message: Any, payload: Any = None) -> bool:
            return not isinstance(message, Question) and send(link, message, payload)

        monkeypatch.setattr(running.port, "send", send_no_question)
        refused = peer.get(state, deadline_ms=60_000)
        assert isinstance(refused, Refusal)
        assert isinstance(error_of(refused), DidNotHappenError)
        assert figure(stage, "questions_pending") == 0

    def test_who_left_is_forgotten(
        self, stage: ProxyStage, peer: ScriptedPeer, node: ScriptedNode
    ) -> None:
        """Nothing is kept for a client that is gone."""
        state = peer.make_state()
        with ScriptedPeer(stage.proxy.address) as other:
            other.hello()
            for _ in range(5):
                other.begin_get(state)
            for _ in range(5):
                node.receive_question()
            assert figure(stage, "questions_pending") == 5
        wait_until(lambda: figure(stage, "questions_pending") == 0)


class TestClosings:
    @pytest.mark.proves("B2")
    def test_what_has_closed_in_one_turn_is_one_step(
        self,
        stage: ProxyStage,
        node: ScriptedNode,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """B2: many nodes that die together are not worked out one after the other."""
        running = stage.proxy._running
        assert running is not None
        events: list[ControlEvent] = []
        step = ControlCore.step

        def noted(core: ControlCore, event: ControlEvent, *, now_ns: int) -> Any:
            events.append(event)
            return step(core, event, now_ns=now_ns)

        monkeypatch.setattr(ControlCore, "step", noted)
        links = tuple(LinkId(1_000 + number) for number in range(100))
        running.loop.call(lambda: running._links_closed(links), target="the proxy")
        closings = [one for one in events if isinstance(one, LinksClosed)]
        assert closings == [LinksClosed(links=links)]


@pytest.mark.proves("B1")
class TestUnreadLists:
    def test_who_does_not_read_them_is_refused_more(
        self, stage: ProxyStage, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B1: what the proxy answers itself is bounded, and others are answered."""
        del node
        monkeypatch.setattr(UnreadAnswers, "is_too_much", _too_much_for_lists)
        with (
            ScriptedPeer(stage.proxy.address) as peer,
            ScriptedPeer(stage.proxy.address) as other,
        ):
            for one in (peer, other):
                one.hello()
            for kind in (ListJobs, ListNodes):
                error = peer.error(kind)
                assert isinstance(error, DidNotHappenError)
                assert "too much waits to be read" in str(error)
            assert figure(stage, "messages_held_back_total") == 2
            monkeypatch.undo()
            assert isinstance(peer.ask(ListJobs), JobsListed)
            assert isinstance(other.ask(ListJobs), JobsListed)


def _too_much_for_lists(*_: object) -> bool:
    return True


class TestSettling:
    """S2: under a new leader a node that is not here is only late."""

    def test_a_question_waits_for_its_node(self, tmp_path: Path) -> None:
        """And is answered as soon as that is there."""
        with _taken_over(tmp_path, session_timeout_seconds=20.0) as (stage, peer):
            state = peer.describe()
            number = peer.begin_get(state)
            assert isinstance(peer.ask(ListJobs), JobsListed)
            assert figure(stage, "questions_parked") == 1
            with ScriptedNode(stage.proxy.address, "node-a") as node:
                node.join()
                node.answer(node.receive_question(), VALUES)
                assert isinstance(peer.answer(number), Told)

    @pytest.mark.proves("Q3")
    def test_it_does_not_wait_for_a_node_that_does_not_come(
        self, tmp_path: Path
    ) -> None:
        """Q3: one session timeout, though it had a minute."""
        with _taken_over(tmp_path, session_timeout_seconds=0.5) as (stage, peer):
            state = peer.describe()
            refused = peer.get(state, deadline_ms=60_000)
            assert is_refused(refused, "state-unavailable")
            assert figure(stage, "questions_parked") == 0


def _taken_over(directory: Path, *, session_timeout_seconds: float) -> Any:
    """Return a stage whose second proxy leads where a first has left a state."""
    return _TakenOver(directory, session_timeout_seconds)


class _TakenOver:
    def __init__(self, directory: Path, session_timeout_seconds: float) -> None:
        config = ProxyConfig(session_timeout_seconds=session_timeout_seconds)
        self._stage = ProxyStage(directory, config, node_count=0)

    def __enter__(self) -> tuple[ProxyStage, ScriptedPeer]:
        stage = self._stage.__enter__()
        with (
            ScriptedNode(stage.proxy.address, "node-a") as node,
            ScriptedPeer(stage.proxy.address) as writer,
        ):
            node.join()
            writer.hello()
            writer.make_state()
            standby = stage.add_proxy()
            stage.proxy.close()
        standby.wait_until_leader(30)
        stage.proxy = standby
        self._peer = ScriptedPeer(standby.address)
        self._peer.hello()
        return stage, self._peer

    def __exit__(self, *exc_info: object) -> None:
        self._peer.close()
        self._stage.__exit__(None, None, None)


def waiting_commit(peer: ScriptedPeer, node: ScriptedNode) -> int:
    """Return the request of a commit that waits, for up to a minute, for its node."""
    peer.hello()
    state = peer.make_state()
    number = commit(peer, state.state_number, timeout_ms=60_000)
    while not isinstance(node.receive(), VerifyStages):
        pass
    return number


class TestChanges:
    @pytest.mark.proves("Q3")
    def test_who_waits_for_nodes_is_told_when_the_proxy_resigns(
        self, stage: ProxyStage, node: ScriptedNode
    ) -> None:
        """Q3: a commit has a minute, and ends at once."""
        with ScriptedPeer(stage.proxy.address, keeps_unread=True) as peer:
            number = waiting_commit(peer, node)
            assert figure(stage, "changes_waiting") == 1
            closer = threading.Thread(target=stage.proxy.close)
            closer.start()
            assert is_refused(peer.answer(number), NOT_LEADER)
            closer.join(30)

    @pytest.mark.proves("C1", "C4")
    def test_a_commit_that_waits_is_asked_for_again_under_new_rights(
        self, stage: ProxyStage, node: ScriptedNode
    ) -> None:
        """C1: its writer may have none by now; asking again is up to the client."""
        with ScriptedPeer(stage.proxy.address, keeps_unread=True) as peer:
            number = waiting_commit(peer, node)
            stage.proxy.reconfigure(ProxyConfig())
            assert is_refused(peer.answer(number), "did-not-happen")

    @pytest.mark.proves("C4")
    def test_a_commit_waits_no_longer_than_it_may(self, tmp_path: Path) -> None:
        """C4: ``commit_timeout_seconds_max`` is above what the writer wants."""
        config = ProxyConfig(commit_timeout_seconds_max=0.2)
        with (
            ProxyStage(tmp_path, config, node_count=0) as stage,
            ScriptedNode(stage.proxy.address, "node-a") as node,
            ScriptedPeer(stage.proxy.address) as peer,
        ):
            node.join()
            peer.hello()
            state = peer.make_state()
            refused = peer.answer(commit(peer, state.state_number, timeout_ms=10**9))
            assert isinstance(refused, Refusal)
            error = error_of(refused)
            assert isinstance(error, CommitTimeoutError)
            assert not error.is_decided

    def test_a_refused_change_says_why(self, peer: ScriptedPeer) -> None:
        """Whatever is wrong with it, the connection goes on."""
        bad = StateDeclaration(state_name="x", schema="{}")
        good = StateDeclaration(state_name="x", schema=VALUE)
        for states, job_id, code in (
            ((bad,), "job", "malformed"),
            ((good, good), "job", "invalid"),
            ((good,), "a/b", "invalid"),
        ):
            refused = peer.ask(
                DrawTicket, job_id=job_id, max_parallelism=4, states=states
            )
            assert is_refused(refused, code), refused
        assert isinstance(peer.ask(ListJobs), JobsListed)

    def test_a_node_speaks_for_itself_only(
        self, stage: ProxyStage, peer: ScriptedPeer, node: ScriptedNode
    ) -> None:
        """What is said under the name of another process goes nowhere."""
        with ScriptedNode(stage.proxy.address, "node-b") as stranger:
            for message in (
                EntriesApplied(
                    registration_id=node.registration_id,
                    job_id="flights",
                    sequence=10**6,
                    failure=None,
                ),
            ):
                stranger.send(message)
                told = stranger.receive()
                assert isinstance(told, NodeRefused)
                assert told.reason == "unknown"
        listed = peer.ask(ListNodes)
        assert isinstance(listed, NodesListed)
        assert [one.node_id for one in listed.nodes] == ["node-a"]
