"""
Stories about one `ElectionCore` and the clients that speak to it.

What may happen, all of it about one component, ``job``:

::

    alice opens a session
    alice heartbeats                        and has the answer to the one before
    alice keeps heartbeating                every fifth of her lease, until
    alice falls silent
    alice's connection closes
    alice closes her session
    alice registers                         her contender is called alice, too
    alice registers with her claim          on what she was granted last
    alice registers with her ticket         the place in the queue that she had
    alice withdraws
    alice confirms a:1                      what she was granted last
    alice acknowledges the revocation
    somebody has seen epoch 7.5             or: epoch 7.5, and its end
    an operator revokes the leadership
    an operator ends the session of alice
    time passes
    the server stalls until 900ms           and reads what came meanwhile then
    the server restarts as incarnation 8    or: … and has lost its epochs

A lease is 500 ms, a session times out after 2,000 ms, a grant must be confirmed
within 1,000 ms; answers to ``keeps heartbeating`` are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, final
from uuid import UUID

import attrs
from attrs import define

from election.config import ElectionConfig
from election.core import ElectionCore
from election.effects import (
    AcceptRegistration,
    AcknowledgeHeartbeat,
    Affirmation,
    CloseSession,
    ElectionEffect,
    GrantLeadership,
    RecordEpoch,
)
from election.epochs import IncarnationEpochs
from election.events import (
    ClaimReported,
    ConnectionClosed,
    ContenderRegistered,
    ContenderWithdrawn,
    ElectionEvent,
    EpochReported,
    HeartbeatReceived,
    LeadershipConfirmed,
    RevocationAcknowledged,
    RevokeRequested,
    SessionCloseRequested,
    SessionExpireRequested,
    SessionRequested,
    TimePassed,
)
from retrieval import Publication
from tests.traces.story import MS, Names, Progress, duration, epoch, epoch_of, time_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.traces.story import Command


__all__ = ["ElectionStage"]

JOB: Final = "job"
LEASE_NS: Final = 500 * MS
SESSION_TIMEOUT_NS: Final = 2_000 * MS
CONFIRM_TIMEOUT_NS: Final = 1_000 * MS
HEARTBEAT_NS: Final = LEASE_NS // 5


@define(kw_only=True)
class _Client:
    """What a client remembers, as far as the story needs it."""

    name: str
    number: int = 0
    acknowledged: int = 0
    beats_at_ns: int | None = None
    ticket: int | None = None
    granted: Affirmation | None = None
    confirm_count: int = 0
    address: str | None = None


@final
class ElectionStage:
    """One core after the other, and everybody who speaks to it."""

    def __init__(self) -> None:
        self._names = Names()
        self._clients: dict[str, _Client] = {}
        self._recorded: dict[str, int] = {}
        self._now_ns = 0
        self._progress = Progress()
        self._core = self._start(incarnation=7, undecided_ns=0)
        self._told: list[str] = []

    def play(self, command: Command) -> Sequence[str]:
        """Move time on to *command*, have it happen; return lines of output."""
        self._advance(command.at_ns)
        self._happen(command.text)
        told, self._told = self._told, []
        return told

    # -- time ----------------------------------------------------------------------

    def _start(self, *, incarnation: int, undecided_ns: int) -> ElectionCore:
        return ElectionCore(
            ElectionConfig(
                namespace=UUID(int=incarnation),
                undecided_ns=undecided_ns,
                tick_ns=LEASE_NS // 5,
            ),
            epochs=IncarnationEpochs(incarnation, started_ns=self._now_ns),
            recorded_epochs=self._recorded,
            now_ns=self._now_ns,
        )

    def _advance(self, until_ns: int) -> None:
        """Move time on, deadline by deadline and heartbeat by heartbeat."""
        assert until_ns >= self._now_ns, "a story does not go back in time"
        while True:
            beating = [
                client
                for _, client in sorted(self._clients.items())
                if client.beats_at_ns is not None and client.beats_at_ns <= until_ns
            ]
            beats_ns = [c.beats_at_ns for c in beating if c.beats_at_ns is not None]
            beat_ns = min(beats_ns, default=None)
            due_ns = self._core.next_deadline_ns()
            if beat_ns is not None and (due_ns is None or beat_ns <= due_ns):
                self._now_ns = max(self._now_ns, beat_ns)
                for client in beating:
                    if client.beats_at_ns == beat_ns:
                        client.beats_at_ns = self._now_ns + HEARTBEAT_NS
                        self._heartbeat(client, is_shown=False)
            elif due_ns is not None and due_ns <= until_ns:
                self._now_ns = max(self._now_ns, due_ns)
                self._progress.made(self._now_ns)
                self._step(TimePassed())
            else:
                self._now_ns = until_ns
                return

    # -- what happens --------------------------------------------------------------

    def _happen(self, text: str) -> None:
        for pattern, method in _COMMANDS.items():
            match = re.fullmatch(pattern, text)
            if match is not None:
                method(self, *match.groups())
                return
        raise AssertionError(f"nobody knows what it means that {text!r}")

    def _open(self, name: str) -> None:
        client = self._clients.setdefault(name, _Client(name=name))
        client.number = 0
        client.acknowledged = 0
        self._step(
            SessionRequested(
                session_id=name,
                session_timeout_ns=SESSION_TIMEOUT_NS,
                lease_ns=LEASE_NS,
                client=name,
            )
        )

    def _heartbeat_once(self, name: str) -> None:
        self._heartbeat(self._clients[name], is_shown=True)

    def _heartbeat(self, client: _Client, *, is_shown: bool) -> None:
        client.number += 1
        event = HeartbeatReceived(
            session_id=client.name,
            number=client.number,
            acknowledged=client.acknowledged,
        )
        self._step(event, is_answer_shown=is_shown)

    def _keep_beating(self, name: str) -> None:
        self._clients[name].beats_at_ns = self._now_ns

    def _fall_silent(self, name: str) -> None:
        self._clients[name].beats_at_ns = None

    def _close_connection(self, name: str) -> None:
        self._step(ConnectionClosed(session_id=name))

    def _close(self, name: str) -> None:
        self._clients[name].beats_at_ns = None
        self._step(SessionCloseRequested(session_id=name))

    def _register(self, name: str, past: str | None) -> None:
        client = self._clients[name]
        claim = None
        if past == "claim":
            assert client.granted is not None
            claim = ClaimReported(
                leader_session_id=client.granted.leader_session_id,
                epoch=client.granted.epoch,
                confirm_count=client.confirm_count,
                address=client.address,
            )
        self._step(
            ContenderRegistered(
                session_id=name,
                component_id=JOB,
                contender_id=name,
                confirm_timeout_ns=CONFIRM_TIMEOUT_NS,
                ticket=None if past is None else client.ticket,
                claim=claim,
            )
        )

    def _withdraw(self, name: str) -> None:
        self._step(
            ContenderWithdrawn(session_id=name, component_id=JOB, contender_id=name)
        )

    def _confirm(self, name: str, address: str) -> None:
        client = self._clients[name]
        if client.granted is None:
            self._tell(f"{name} was never granted anything")
            return
        client.confirm_count += 1
        client.address = address
        self._step(
            LeadershipConfirmed(
                session_id=name,
                component_id=JOB,
                contender_id=name,
                leader_session_id=client.granted.leader_session_id,
                confirm_count=client.confirm_count,
                address=address,
            )
        )

    def _acknowledge(self, name: str) -> None:
        granted = self._clients[name].granted
        if granted is None:
            self._tell(f"{name} was never granted anything")
            return
        self._step(
            RevocationAcknowledged(
                session_id=name,
                component_id=JOB,
                contender_id=name,
                epoch=granted.epoch,
            )
        )

    def _report(self, seen: str, end: str | None) -> None:
        self._step(
            EpochReported(
                component_id=JOB, epoch=epoch_of(seen), is_ended=end is not None
            )
        )

    def _revoke(self) -> None:
        self._step(RevokeRequested(component_id=JOB))

    def _expire(self, name: str) -> None:
        self._step(SessionExpireRequested(session_id=name))

    def _let_time_pass(self) -> None:
        self._step(TimePassed())

    def _stall(self, until: str) -> None:
        self._now_ns = duration(until)
        self._step(TimePassed())

    def _restart(self, incarnation: str, loss: str | None) -> None:
        if loss is not None:
            self._recorded.clear()
        for client in self._clients.values():
            client.beats_at_ns = None
        self._core = self._start(incarnation=int(incarnation), undecided_ns=LEASE_NS)

    # -- what follows --------------------------------------------------------------

    def _step(self, event: ElectionEvent, *, is_answer_shown: bool = True) -> None:
        effects = self._core.step(event, now_ns=self._now_ns)
        self._core.check_invariants()
        for effect in effects:
            self._remember(effect)
            if is_answer_shown or not isinstance(effect, AcknowledgeHeartbeat):
                self._tell(self._line(effect))

    def _tell(self, line: str) -> None:
        self._told.append(f"{time_of(self._now_ns)} {line}")

    def _remember(self, effect: ElectionEffect) -> None:
        match effect:
            case AcknowledgeHeartbeat(session_id=session_id, number=number):
                self._clients[session_id].acknowledged = number
            case AcceptRegistration(session_id=session_id, ticket=ticket):
                self._clients[session_id].ticket = ticket
            case GrantLeadership(session_id=session_id, affirmation=affirmation):
                client = self._clients[session_id]
                if client.granted != affirmation:
                    client.granted = affirmation
                    client.confirm_count = 0
                    client.address = None
            case RecordEpoch(component_id=component_id, epoch=recorded):
                self._recorded[component_id] = recorded
            case CloseSession(session_id=session_id):
                self._clients[session_id].beats_at_ns = None
            case _:
                pass

    def _line(self, effect: ElectionEffect) -> str:
        words = [type(effect).__name__]
        for field in attrs.fields(type(effect)):
            words += self._words(field.name, getattr(effect, field.name))
        return " ".join(words)

    def _words(self, name: str, value: object) -> list[str]:
        match value:
            case Affirmation():
                return [
                    f"component_id={value.component_id}",
                    f"contender_id={value.contender_id}",
                    f"epoch={epoch(value.epoch)}",
                    f"leader_session_id={self._names.of(value.leader_session_id)}",
                ]
            case Publication(leader=leader):
                return [
                    f"epoch={epoch(value.epoch)}",
                    f"confirm_count={value.confirm_count}",
                    f"address={None if leader is None else leader.address}",
                ]
            case tuple():
                affirmed = [f"{a.component_id}@{epoch(a.epoch)}" for a in value]
                return [f"{name}=[{' '.join(affirmed)}]"]
            case Enum():
                return [f"{name}={value.value}"]
            case int() if name in ("epoch", "ticket"):
                return [f"{name}={epoch(value)}"]
            case _:
                return [f"{name}={value}"]


_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    r"(\w+) opens a session": ElectionStage._open,
    r"(\w+) heartbeats": ElectionStage._heartbeat_once,
    r"(\w+) keeps heartbeating": ElectionStage._keep_beating,
    r"(\w+) falls silent": ElectionStage._fall_silent,
    r"(\w+)'s connection closes": ElectionStage._close_connection,
    r"(\w+) closes (?:her|his) session": ElectionStage._close,
    r"(\w+) registers(?: with (?:her|his) (claim|ticket))?": ElectionStage._register,
    r"(\w+) withdraws": ElectionStage._withdraw,
    r"(\w+) confirms (\S+)": ElectionStage._confirm,
    r"(\w+) acknowledges the revocation": ElectionStage._acknowledge,
    r"somebody has seen epoch ([\d.]+)(, and its end)?": ElectionStage._report,
    r"an operator revokes the leadership": ElectionStage._revoke,
    r"an operator ends the session of (\w+)": ElectionStage._expire,
    r"time passes": ElectionStage._let_time_pass,
    r"the server stalls until (\w+)": ElectionStage._stall,
    r"the server restarts as incarnation (\d+)( and has lost its epochs)?": (
        ElectionStage._restart
    ),
}
