"""
`QueryCore` against a proxy that does its worst, and a model that knows what is true.

The world: one state whose batches go on, whose key groups move, and that other queries
take over; proxies that come and go, lose sessions, forget questions, answer late,
twice, in another order, refuse, lie, or answer as of an older batch.  Whatever happens,
every request ends once and by its deadline; what it is told is no older than what this
client was told before (rule Q1); and once everything works again, so does the client.
Any step may be broken off before any line, as by what a signal handler raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
import pytest
from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nameservice import NameServiceError, NoLeaderError
from queryablestate import DeadlineExceededError, StateUnavailableError
from queryablestate.client.config import QueryConfig
from queryablestate.client.core import QueryCore
from queryablestate.client.events import (
    CompleteRequests,
    ConnectionFailed,
    ConnectionMade,
    ConnectTo,
    Disconnect,
    LeaderTold,
    MessageCame,
    QueryEffect,
    QueryEvent,
    RequestsAsked,
    RequestsDropped,
    SayHello,
    SendRequest,
    TimeWent,
)
from queryablestate.client.floors import PRESENT
from queryablestate.client.requests import UNANSWERED, KeysRead, Request, begin_anew
from queryablestate.client.routes import ROWS
from queryablestate.schema.values import ValueCodec
from queryablestate.wire.clients import DescribeState, StateDescribed, Welcome
from queryablestate.wire.codec import decode_keys, encode_payload
from queryablestate.wire.direct import ShowTicket
from queryablestate.wire.questions import Ask, Reading, Told
from tests.queryablestate.scripted_proxy import error_frame
from tests.queryablestate.scripted_state import ScriptedState
from tests.tiers import machine_settings


MS = 1_000_000
KEYS = [f"N{number}" for number in range(12)]
ADDRESSES = ["tcp://10.0.0.1:1", "tcp://10.0.0.2:1"]


@define(eq=False)
class Sent:
    """A message on its way to the proxy, or at it."""

    effect: SendRequest | SayHello
    address: str


def number_of(sent: Sent) -> int:
    """Return the number of a message."""
    if isinstance(sent.effect, SayHello):
        return sent.effect.request_id
    assert not isinstance(sent.effect.message, ShowTicket)
    number: int = sent.effect.message.request_id
    return number


@define(eq=False)
class Asked:
    """What is known of a read: when it was asked, and what was seen before."""

    read: Request
    floors: dict[int, tuple[int, int]]


class BrokenOffError(BaseException):
    """What a signal handler raises."""


@contextmanager
def broken_off(line_index: int | None) -> Iterator[None]:
    """Break off before that line of the client, if there are as many."""
    left = line_index

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if left is None or "/queryablestate/client/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                left = None
                raise BrokenOffError
        return trace

    before = sys.gettrace()
    if line_index is not None:
        sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class QueryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.core = QueryCore(
            QueryConfig(request_count_max=30, flight_count_max=3), now_ns=0
        )
        self.state = ScriptedState(rows={}, max_parallelism=4)
        self.values = ValueCodec(self.state.schema.value)
        # Every key's delay is the batch that is told with it, so that an answer says
        # itself as of when it is.
        self.batch_id = 1
        self.leader: str | None = None
        self.epoch = 0
        self.connected: str | None = None
        self.sessions: set[bytes] = set()
        self.session_count = 0
        self.wire: list[Sent] = []
        self.asked: dict[Request, Asked] = {}
        self.dropped: set[Request] = set()
        self.done: set[Request] = set()
        self.named: set[int] = set()
        # What this client has been told last of each key group: generation and batch.
        self.seen: dict[int, tuple[int, int]] = {}
        # Before which line of the core, or which effect, the next step is broken off.
        self.broken_line: int | None = None
        self.broken_effect: int | None = None

    # -- plumbing ----------------------------------------------------------------------

    def step(self, event: QueryEvent) -> None:
        """Have *event* happen, and take note of what the core says."""
        line, self.broken_line = self.broken_line, None
        count, self.broken_effect = self.broken_effect, None
        try:
            with broken_off(line):
                effects = self.core.step(event, now_ns=self.now_ns)
        except BrokenOffError:
            self.begin_anew()
            return
        self.core.check_invariants()
        for effect in effects[:count]:
            self.perform(effect)
        if count is not None:
            self.begin_anew()

    def begin_anew(self) -> None:
        """Do as a shell after a step that was broken off."""
        self.connected = None
        self.wire.clear()
        for request in [request for request in self.asked if request.is_done]:
            self.complete(request)
        self.core = self.core.renewed(now_ns=self.now_ns)
        for request in self.asked:
            begin_anew(request)
        self.step(LeaderTold(address=self.leader, epoch=self.epoch))
        self.step(RequestsAsked(tuple(self.asked)))

    def perform(self, effect: QueryEffect) -> None:
        """Do what the core says."""
        match effect:
            case ConnectTo(address=address):
                assert self.connected is None
                assert address == self.leader
                self.connected = address
            case Disconnect():
                assert self.connected is not None
                self.connected = None
                self.wire.clear()
            case SendRequest() | SayHello():
                assert self.connected is not None
                self.wire.append(Sent(effect, self.connected))
            case CompleteRequests(requests):
                for request in requests:
                    self.complete(request)

    def complete(self, request: Request) -> None:
        """Hold an answer against what was true."""
        assert isinstance(request, KeysRead)
        assert request not in self.done, "answered twice"
        assert request not in self.dropped, "nobody waits for it"
        self.done.add(request)
        asked = self.asked.pop(request)
        assert self.now_ns <= max(request.deadline_ns, request.asked_ns)
        if request.error is not None:
            assert isinstance(request.error, NameServiceError)
            if isinstance(request.error, DeadlineExceededError | NoLeaderError):
                assert self.now_ns >= request.deadline_ns or "node" in str(
                    request.error
                )
            if isinstance(request.error, StateUnavailableError):
                groups = {self.state.keys.key_group(key) for key in request.keys}
                # What it asked for, or what the proxy has named: it invents none.
                assert set(request.error.key_groups) <= groups | self.named
                assert request.error.key_groups
            return
        for key, row in zip(request.keys, request.rows, strict=True):
            if row is UNANSWERED:
                assert request.is_partial
                assert request.partial_error is not None
                continue
            generation, batch_id = int(row["origin"]), row["delay"]
            group = self.state.keys.key_group(key)
            # It is not of the future, and not older than what had been seen before it
            # was asked: not even by another question that ended meanwhile.
            assert (generation, batch_id) <= (self.state.generation, self.batch_id)
            assert (generation, batch_id) >= asked.floors.get(group, (0, 0))
            if request.least is not None and generation == self.state.generation:
                assert batch_id >= request.least[1]
            self.seen[group] = max(self.seen.get(group, (0, 0)), (generation, batch_id))

    def respond(self, message: msgspec.Struct, payload: bytes = b"") -> None:
        """Have the proxy say something."""
        if self.connected is not None:
            self.step(MessageCame(message, payload))  # type: ignore[arg-type]  # it may say anything

    # -- the application ---------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        deadline_ms=st.integers(1, 3_000),
        is_partial=st.booleans(),
        wants_newest=st.booleans(),
        count=st.integers(1, 3),
    )
    def ask(
        self,
        *,
        keys: list[str],
        deadline_ms: int,
        is_partial: bool,
        wants_newest: bool,
        count: int,
    ) -> None:
        """Ask, several questions at once."""
        reads = [
            KeysRead(
                None,
                (self.state.job_id, self.state.state_name),
                ROWS,
                tuple(keys),
                self.now_ns,
                self.now_ns + deadline_ms * MS,
                (PRESENT, self.batch_id) if wants_newest else None,
                is_partial,
            )
            for _ in range(count)
        ]
        for read in reads:
            self.asked[read] = Asked(read, dict(self.seen))
        self.step(RequestsAsked(reads))

    @rule(key=st.sampled_from(KEYS), deadline_ms=st.integers(1, 3_000))
    def ask_now(self, key: str, deadline_ms: int) -> None:
        """Ask for one key, by the shortest way if that is open."""
        read = KeysRead(
            None,
            (self.state.job_id, self.state.state_name),
            ROWS,
            (key,),
            self.now_ns,
            self.now_ns + deadline_ms * MS,
        )
        self.asked[read] = Asked(read, dict(self.seen))
        effect = self.core.ask_now(read)
        if effect is None:
            self.step(RequestsAsked((read,)))
        else:
            assert self.connected is not None
            self.core.check_invariants()
            self.perform(effect)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Wait no longer for something."""
        read = data.draw(st.sampled_from(list(self.asked)))
        self.dropped.add(read)
        del self.asked[read]
        self.step(RequestsDropped(requests=(read,)))

    @rule(line_index=st.integers(0, 150))
    def break_off_step(self, line_index: int) -> None:
        """Have an exception come before a line of the next step."""
        self.broken_line = line_index

    @rule(count=st.integers(0, 3))
    def break_off_effects(self, count: int) -> None:
        """Have an exception come behind *count* effects of the next step."""
        self.broken_effect = count

    # -- time --------------------------------------------------------------------------

    @rule()
    def jump_to_the_deadline(self) -> None:
        """Move time on until something is due."""
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.step(TimeWent())

    @rule(duration_ms=st.integers(0, 12_000))
    def wait(self, duration_ms: int) -> None:
        """Move time on, but to no deadline."""
        deadline_ns = self.core.next_deadline_ns()
        until_ns = self.now_ns + duration_ms * MS
        if deadline_ns is not None:
            until_ns = min(until_ns, deadline_ns)
        self.now_ns = max(self.now_ns, until_ns)  # something may be due already
        self.step(TimeWent())

    # -- the name service and the connection -----------------------------------------

    @rule(address=st.sampled_from([*ADDRESSES, *ADDRESSES, None]))
    def lead(self, address: str | None) -> None:
        """Have somebody lead, or none."""
        self.leader = address
        self.epoch += address is not None
        self.sessions.clear()
        self.step(LeaderTold(address=address, epoch=self.epoch))

    @precondition(lambda self: self.connected is not None)
    @rule(is_made=st.sampled_from([True, True, False]))
    def connect(self, is_made: bool) -> None:
        """Make a connection, again if need be, or lose it."""
        if is_made:
            self.step(ConnectionMade())
        else:
            self.connected = None
            self.wire.clear()
            self.step(ConnectionFailed())

    # -- the proxy ---------------------------------------------------------------------

    @initialize(is_begun=st.sampled_from([True, True, False]))
    def begin(self, is_begun: bool) -> None:
        """Begin in the midst of a session, most of the time."""
        if is_begun:
            self.lead(ADDRESSES[0])
            self.ask(
                keys=KEYS,
                deadline_ms=1_000,
                is_partial=False,
                wants_newest=False,
                count=1,
            )
            self.step(ConnectionMade())
            self.answer_all(age=0)

    @precondition(lambda self: self.leader is not None)
    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def go_on(self, keys: list[str]) -> None:
        """Ask, and have all work until that question is under way."""
        self.ask(
            keys=keys,
            deadline_ms=3_000,
            is_partial=False,
            wants_newest=False,
            count=1,
        )
        for _ in range(10):
            if any(self.is_question(sent) for sent in self.wire):
                break
            if self.wire:
                self.answer_oldest(age=0)
            elif self.connected is not None:
                self.step(ConnectionMade())

    @staticmethod
    def is_question(sent: Sent) -> bool:
        """Return whether it asks for keys."""
        return isinstance(sent.effect, SendRequest) and isinstance(
            sent.effect.message, Ask
        )

    @precondition(lambda self: self.wire)
    @rule(age=st.integers(0, 1))
    def answer_all(self, age: int) -> None:
        """Have the proxy answer, in order, and what follows too."""
        for _ in range(30):
            if not self.wire:
                break
            self.answer_oldest(age=age)

    @precondition(lambda self: self.wire)
    @rule(
        data=st.data(),
        is_again=st.sampled_from([False, False, False, True]),
        mood=st.sampled_from(
            ["answer"] * 8
            + ["late batch"] * 3
            + ["lose", "not-leader", "unknown-session", "stale-route"]
            + ["did-not-happen", "state-unavailable", "rate-limited", "rubbish"]
        ),
    )
    def react(self, data: st.DataObject, is_again: bool, mood: str) -> None:
        """Have the proxy react to one of the messages that it has."""
        index = data.draw(st.integers(0, len(self.wire) - 1))
        sent = self.wire[index]
        if not is_again:
            del self.wire[index]
        number = number_of(sent)
        match mood:
            case "lose":
                return
            case "answer" | "late batch":
                self.answer(sent, number, age=int(mood == "late batch"))
            case "rubbish":
                self.respond(
                    Told(
                        request_id=number,
                        reading=Reading(generation=99, batch_id=99, age_ms=0),
                    ),
                    b"\xc1",
                )
            case "state-unavailable":
                groups = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
                self.named.update(groups)
                if isinstance(sent.effect, SendRequest):
                    self.respond(
                        error_frame(mood, number, "?", None, tuple(groups), 0.5, "")
                    )
            case "rate-limited":
                if isinstance(sent.effect, SendRequest):
                    self.respond(error_frame(mood, number, 0.5, "caller"))
            case _:
                self.respond(error_frame(mood, number))

    def described(self, number: int) -> StateDescribed:
        """Return what the proxy says of the state."""
        return StateDescribed(request_id=number, description=self.state.description)

    def answer_oldest(self, *, age: int) -> None:
        """Have the proxy answer what it was sent first."""
        sent = self.wire.pop(0)
        self.answer(sent, number_of(sent), age=age)

    def answer(self, sent: Sent, number: int, *, age: int) -> None:
        """Answer truthfully, as of some batches ago."""
        if isinstance(sent.effect, SayHello):
            self.session_count += 1
            session = f"session-{self.session_count}".encode()
            self.sessions.add(session)
            self.respond(
                Welcome(
                    request_id=number,
                    session=session,
                    leader_epoch=self.epoch,
                    keys_per_request_max=3,
                    frame_size_bytes_max=10_000,
                )
            )
            return
        message: Any = sent.effect.message
        if message.session not in self.sessions:
            self.respond(error_frame("unknown-session", number))
        elif isinstance(message, DescribeState):
            self.respond(self.described(number))
        else:
            assert isinstance(message, Ask)
            if (
                message.assignment_version != self.state.version
                or message.state_number != self.state.state_number
            ):
                self.respond(error_frame("stale-route", number))
                return
            assert sent.effect.keys is not None
            keys = decode_keys(encode_payload(sent.effect.keys))
            assert len(keys) == message.key_count <= 3
            for key in keys:
                group = int.from_bytes(key[:2], "big")
                assert self.state.owners[group] == message.node_index
            batch_id = max(self.batch_id - age, message.min_batch_id or 0, 0)
            if batch_id > self.batch_id:
                self.respond(
                    error_frame("deadline-exceeded", number, 1.0, "the node waited")
                )
                return
            row = self.values.encode_row((str(self.state.generation), batch_id))
            reading = Reading(
                generation=self.state.generation, batch_id=batch_id, age_ms=0
            )
            self.respond(
                Told(request_id=number, reading=reading),
                encode_payload([row] * len(keys)),
            )

    # -- the state ---------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        """Have a batch applied."""
        self.batch_id += 1

    @rule()
    def take_over(self) -> None:
        """Have another query take the state over: its batches count from the start."""
        self.state.generation += 1
        self.batch_id = 0

    @rule(owners=st.lists(st.integers(0, 1), min_size=4, max_size=4))
    def move(self, owners: list[int]) -> None:
        """Have key groups move."""
        self.state.owners = tuple(owners)
        self.state.version += 1

    @rule()
    def forget_sessions(self) -> None:
        """Have the proxy forget every session."""
        self.sessions.clear()

    # -- what always holds -----------------------------------------------------------

    @invariant()
    def everything_ends_by_its_deadline(self) -> None:
        """None waits past a deadline, and the core knows when to go on."""
        for read in self.asked:
            assert read.deadline_ns > self.now_ns
            assert not read.is_done
        assert self.core.request_count == len(self.asked)
        if self.asked:
            deadline_ns = self.core.next_deadline_ns()
            assert deadline_ns is not None
            assert deadline_ns <= min(read.deadline_ns for read in self.asked)

    def teardown(self) -> None:
        """Once everything works again, what is asked is answered."""
        self.broken_line = self.broken_effect = None
        if self.leader is None:
            self.lead(ADDRESSES[0])
        self.settle()
        # Beyond every pause, and beyond the second after a refusal.
        self.now_ns += 2_000 * MS
        self.ask(
            keys=KEYS, deadline_ms=60_000, is_partial=False, wants_newest=True, count=1
        )
        (last,) = self.asked
        self.settle()
        assert last.error is None

    def settle(self) -> None:
        """Have everything that is asked answered."""
        for _ in range(300):
            if not self.asked:
                break
            if self.wire:
                self.answer_oldest(age=0)
            elif self.connected is not None:
                self.step(ConnectionMade())
                if not self.wire:
                    self.jump_to_the_deadline()
            else:
                self.jump_to_the_deadline()
        assert not self.asked
        assert self.core.request_count == 0


TestQueryCore = pytest.mark.proves("Q1", "Q3")(QueryMachine.TestCase)
TestQueryCore.settings = machine_settings(examples=200, steps=60)
