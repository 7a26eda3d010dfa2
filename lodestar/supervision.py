"""
When the command of ``lodestar elect`` must be ended, without I/O.

Theory of operation
-------------------
A command may run only while its leadership is believed in (rule E4).  Belief ends at a
known moment that heartbeats move forward, so the moment by which the command must be
over is known beforehand too, and no news is needed to act in time: once half of the
belief's full length has passed without having been moved, the command is asked to end
(TERM), and while a seventh of it is left it is made to (KILL), which leaves the kernel
time to end it.

With a lease of 0.5 s belief reaches 0.45 s ahead and is moved forward every 0.1 s: TERM
goes out when two heartbeats in a row and part of a third went unanswered, 0.225 s
before belief ends, and KILL 0.064 s before.  All of it grows with the lease.

The name service may also end the leadership while we are in contact.  Then it grants to
no other before we acknowledge or belief, as we last knew it, would have ended: the
command has until then.

::

    RUNNING ──belief runs out, LeadershipRevoked, ─────────────────► TERMINATED
       │      StopRequested, HealthLost                               │
       │ CommandEnded                        grace or belief runs out │
       ▼                                                              ▼
     OVER ◄───────────────────────CommandEnded───────────────────── KILLED
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias, assert_never, final

from attrs import frozen


__all__ = [
    "BeliefRead",
    "CommandEnded",
    "EndReason",
    "HealthLost",
    "Kill",
    "LeadershipRevoked",
    "StopRequested",
    "SupervisionCore",
    "SupervisionEffect",
    "SupervisionEvent",
    "Terminate",
]

# Parts of the full length of a belief that are left when the command is asked to end,
# and when it is made to.  In good times never less than 0.7 of a lease is left of 0.9:
# a half is under that by more than one lost heartbeat.
_TERMINATE_DIVISOR: Final = 2
_KILL_DIVISOR: Final = 7


class EndReason(Enum):
    """Why the command was ended by us."""

    LEADERSHIP_LOST = "leadership-lost"
    STOPPED = "stopped"
    UNHEALTHY = "unhealthy"


@frozen(kw_only=True)
class BeliefRead:
    """
    The election was asked how long belief lasts.

    Attributes:
        until_ns: When belief ends if nothing else comes; the present or earlier if
            there is none.
    """

    until_ns: int


@frozen(kw_only=True)
class LeadershipRevoked:
    """The contender was told that it leads no longer."""


@frozen(kw_only=True)
class StopRequested:
    """We were asked to end ourselves; the second time means at once."""


@frozen(kw_only=True)
class HealthLost:
    """The health check fails: somebody else had better lead."""


@frozen(kw_only=True)
class CommandEnded:
    """The command, and whatever it left running, is gone."""


SupervisionEvent: TypeAlias = (
    BeliefRead | LeadershipRevoked | StopRequested | HealthLost | CommandEnded
)


@frozen(kw_only=True)
class Terminate:
    """Ask the command to end."""


@frozen(kw_only=True)
class Kill:
    """End the command."""


SupervisionEffect: TypeAlias = Terminate | Kill


class _Phase(Enum):
    RUNNING = "running"
    TERMINATED = "terminated"
    KILLED = "killed"
    OVER = "over"


@final
class SupervisionCore:
    """
    One run of the command under one leadership.

    Not thread-safe: one shell drives it.

    Args:
        until_ns: When belief ends, as read before the command was started.
        grace_ns: How long the command may take to end when it is asked to, as far as
            belief lasts.
        now_ns: The present.
        revoke_grace_ns: How long the name service waits for a revoke callback; None if
            it waits for as long as belief would have lasted.
    """

    def __init__(
        self,
        *,
        until_ns: int,
        grace_ns: int,
        now_ns: int,
        revoke_grace_ns: int | None = None,
    ) -> None:
        assert until_ns > now_ns
        assert grace_ns > 0
        assert revoke_grace_ns is None or revoke_grace_ns > 0
        self._revoke_grace_ns = revoke_grace_ns
        self._grace_ns = grace_ns
        self._until_ns = until_ns
        self._full_length_ns = until_ns - now_ns
        self._terminated_ns = 0
        self._phase = _Phase.RUNNING
        self._reason: EndReason | None = None
        self._now_ns = now_ns

    @property
    def reason(self) -> EndReason | None:
        """Return why we ended the command, or None if we did not."""
        return self._reason

    @property
    def is_over(self) -> bool:
        """Return whether the command is gone."""
        return self._phase is _Phase.OVER

    def next_deadline_ns(self) -> int | None:
        """Return when belief must be read again and told, or None if it need not be."""
        match self._phase:
            case _Phase.RUNNING:
                return self._until_ns - self._full_length_ns // _TERMINATE_DIVISOR
            case _Phase.TERMINATED:
                return min(
                    self._terminated_ns + self._grace_ns,
                    self._until_ns - self._full_length_ns // _KILL_DIVISOR,
                )
            case _Phase.KILLED | _Phase.OVER:
                return None
            case _:
                assert_never(self._phase)

    def step(
        self, event: SupervisionEvent, *, now_ns: int
    ) -> tuple[SupervisionEffect, ...]:
        """Take note of *event*; return what to do, in order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects: list[SupervisionEffect] = []
        match event:
            case BeliefRead(until_ns=until_ns):
                self._read(until_ns)
            case LeadershipRevoked():
                self._shorten()
                self._terminate(EndReason.LEADERSHIP_LOST, effects)
            case HealthLost():
                self._terminate(EndReason.UNHEALTHY, effects)
            case StopRequested():
                if self._reason is EndReason.UNHEALTHY:
                    self._reason = EndReason.STOPPED  # the first request of its kind
                elif self._phase is _Phase.TERMINATED:
                    self._kill(effects)
                self._terminate(EndReason.STOPPED, effects)
            case CommandEnded():
                self._phase = _Phase.OVER
            case _:
                assert_never(event)
        self._check_deadline(effects)
        return tuple(effects)

    def _read(self, until_ns: int) -> None:
        # Belief is moved forward or withdrawn, never shortened.  Of a withdrawal we
        # are told as well, and the name service waits for the belief that it affirmed
        # last: that one still bounds what the command may take to end.
        self._until_ns = max(self._until_ns, until_ns)
        self._full_length_ns = max(self._full_length_ns, until_ns - self._now_ns)

    def _shorten(self) -> None:
        """Be over when the name service waits no longer, whatever belief was."""
        if self._revoke_grace_ns is not None:
            self._until_ns = min(self._until_ns, self._now_ns + self._revoke_grace_ns)
            self._full_length_ns = min(self._full_length_ns, self._revoke_grace_ns)

    def _check_deadline(self, effects: list[SupervisionEffect]) -> None:
        """Do what is due: after a pause of our own both may be."""
        deadline_ns = self.next_deadline_ns()
        if (
            self._phase is _Phase.RUNNING
            and deadline_ns is not None
            and self._now_ns >= deadline_ns
        ):
            self._terminate(EndReason.LEADERSHIP_LOST, effects)
            deadline_ns = self.next_deadline_ns()
        if (
            self._phase is _Phase.TERMINATED
            and deadline_ns is not None
            and self._now_ns >= deadline_ns
        ):
            self._kill(effects)

    def _terminate(self, reason: EndReason, effects: list[SupervisionEffect]) -> None:
        if self._phase is _Phase.RUNNING:
            self._phase = _Phase.TERMINATED
            self._reason = reason
            self._terminated_ns = self._now_ns
            effects.append(Terminate())

    def _kill(self, effects: list[SupervisionEffect]) -> None:
        self._phase = _Phase.KILLED
        effects.append(Kill())
