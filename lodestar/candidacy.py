"""
One election of the verb elect: contend, run the command while we lead, resign.

Theory of operation
-------------------
Everything that happens (a grant, a revocation, a signal, the end of the command) goes
into one queue that the main thread takes from, and `SupervisionCore` decides what
becomes of the command.  Between two such events the main thread waits for the core's
next deadline, at the latest, to read how long belief lasts.

A revocation must not be acknowledged while the command still runs: the contender's
`revoke_leadership` returns when the command is gone, and not before.

The command runs under `lodestar.guardian`, which ends it should we be killed.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import time
from typing import TYPE_CHECKING, TypeAlias, final

from attrs import frozen

from lodestar import output
from lodestar.exit_codes import ExitCode
from lodestar.guarded_command import GuardedCommand, exit_code_of_command
from lodestar.health import TellFailing
from lodestar.health_checker import HealthChange, HealthChecker
from lodestar.supervision import (
    BeliefRead,
    CommandEnded,
    EndReason,
    HealthLost,
    Kill,
    LeadershipRevoked,
    StopRequested,
    SupervisionCore,
    SupervisionEvent,
    Terminate,
)
from nameservice import (
    NS_PER_SECOND,
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    NameServiceError,
    RemoteProtocolError,
    SystemClock,
    get_logger,
    seconds_to_ns,
)
from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import LeaderElection, LeaderSession
    from haservices import HAServices
    from nameservice.interruptible import InterruptibleQueue


__all__ = [
    "Candidacy",
    "Happenings",
    "HealthChanged",
    "Signalled",
    "next_until",
    "say",
]


@frozen(kw_only=True)
class _Granted:
    session: LeaderSession


@frozen(kw_only=True)
class _Revoked:
    pass


@frozen(kw_only=True)
class _Failed:
    error: Exception


@frozen(kw_only=True)
class Signalled:
    """We were asked to end."""

    signal: signal.Signals


@frozen(kw_only=True)
class _CommandOver:
    """The command's return code, negative for a signal."""

    return_code: int


@frozen(kw_only=True)
class HealthChanged:
    """The health check passes now and failed before, or the other way round."""

    change: HealthChange


_Happening: TypeAlias = (
    _Granted | _Revoked | _Failed | Signalled | _CommandOver | HealthChanged
)
Happenings: TypeAlias = "InterruptibleQueue[_Happening]"


def next_until(give_up_seconds: float, happenings: Happenings, job: str) -> _Happening:
    """
    Return the next happening before we give up waiting for our turn.

    Raises:
        DidNotHappenError: If there is none.
    """
    left_seconds = max(give_up_seconds - time.monotonic(), 0.0)
    try:
        return happenings.get(
            timeout=None if math.isinf(left_seconds) else left_seconds
        )
    except queue.Empty:
        message = f"did not come to lead {job} in time"
        raise DidNotHappenError(message) from None


def say(sentence: str) -> None:
    """Tell the user; standard output is the command's."""
    output.say("elect", sentence)


@final
class _Contender:
    """Puts what it is told into the queue; leaves a leadership when the command is."""

    def __init__(self, happenings: Happenings) -> None:
        self._happenings = happenings
        self.is_idle = InterruptibleEvent()
        self.is_idle.set()

    def grant_leadership(self, session: LeaderSession) -> None:
        self._happenings.put(_Granted(session=session))

    def revoke_leadership(self) -> None:
        self._happenings.put(_Revoked())
        self.is_idle.wait()

    def handle_error(self, error: Exception) -> None:
        self._happenings.put(_Failed(error=error))


@final
class Candidacy:
    """One election of ours, from its start to its close."""

    def __init__(
        self,
        *,
        ha: HAServices,
        job: str,
        address: str,
        command: Sequence[str],
        grace_ns: int,
        happenings: Happenings,
        health: HealthChecker | None,
    ) -> None:
        self._ha = ha
        self._health = health
        self._job = job
        self._address = address
        self._command = command
        self._grace_ns = grace_ns
        self._happenings = happenings
        self._contender = _Contender(happenings)
        self._clock = SystemClock()
        self._log = get_logger(component="elect", component_id=job)
        self.has_run = False
        self.has_lost_leadership = False
        self.has_lost_health = False

    def run(self, *, give_up_seconds: float) -> int:
        """
        Contend, lead, and resign.

        Returns:
            The verb's exit code, unless we contend again: `has_run` says whether the
            command was started, `has_lost_leadership` whether we led, and lead no
            more, `has_lost_health` whether we resigned since the health check fails.
        """
        self._forget_the_past()
        if self._health is not None and not self._health.is_passing:
            # It was told of what has just been forgotten.
            self.has_lost_health = True
            return ExitCode.FAILED
        with self._ha.get_leader_election(self._job) as election:
            election.start(self._contender)
            say(f"contending for {self._job}")
            session = self._wait_for_grant(give_up_seconds)
            if session is None:
                return ExitCode.DONE
            if not self._confirm(election, session):
                self.has_lost_leadership = True
                return ExitCode.FAILED
            return self._lead(election, session)

    def _forget_the_past(self) -> None:
        """Take out what an earlier election has left in the queue; it is closed."""
        self._forget(lambda one: not isinstance(one, Signalled))

    def _forget(self, is_past: Callable[[_Happening], bool]) -> None:
        """Take out of the queue what *is_past*."""
        kept: list[_Happening] = []
        with contextlib.suppress(queue.Empty):
            while True:
                happening = self._happenings.get_nowait()
                if not is_past(happening):
                    kept.append(happening)
        for happening in kept:
            self._happenings.put(happening)

    def _wait_for_grant(self, give_up_seconds: float) -> LeaderSession | None:
        """Return what we are granted, or None if we are to end."""
        while True:
            happening = next_until(give_up_seconds, self._happenings, self._job)
            match happening:
                case _Granted(session=session):
                    return session
                case Signalled():
                    return None
                case _Failed(error=error):
                    self._take_note(error)
                case HealthChanged(change=change):
                    if isinstance(change, TellFailing):
                        self.has_lost_health = True
                        return None
                case _Revoked() | _CommandOver():
                    pass  # nothing of ours has been granted, nor runs

    def _confirm(self, election: LeaderElection, session: LeaderSession) -> bool:
        """
        Return whether we lead, for everybody to see.

        If it cannot be told, or is over already, the election is better left and
        entered anew: a leader that others find must not be without its command.
        """
        try:
            try:
                election.confirm_leadership(session.leader_session_id, self._address)
            except MayHaveHappenedError:
                # Safe to repeat, and nothing else tells us whether it took.
                election.confirm_leadership(session.leader_session_id, self._address)
        except (DidNotHappenError, LeadershipLostError, MayHaveHappenedError) as error:
            self._log.warning("leadership.unconfirmed", error=str(error))
            return False
        return True

    def _take_note(self, error: Exception) -> None:
        if isinstance(error, AuthenticationError | ConfigurationError):
            raise error
        if isinstance(error, RemoteProtocolError) and error.reason == "data-lost":
            raise error  # only who begins anew finds the others
        self._log.warning("election.failed", error=str(error))

    # -- while we lead -----------------------------------------------------------------

    def _lead(self, election: LeaderElection, session: LeaderSession) -> int:
        """Run the command as long as we lead; return the verb's exit code."""
        # From here on a revocation waits for us.  One that began before shows in what
        # the election says now, unless the same leadership was granted again since.
        self._contender.is_idle.clear()
        try:
            self._forget(lambda one: isinstance(one, _Granted | _Revoked))
            until_ns = self._read_belief(election, session)
            now_ns = self._clock.now_ns()
            if until_ns <= now_ns:
                self.has_lost_leadership = True
                return ExitCode.FAILED
            core = SupervisionCore(
                until_ns=until_ns,
                grace_ns=self._grace_ns,
                now_ns=now_ns,
                revoke_grace_ns=seconds_to_ns(self._ha.config.lease_seconds),
            )
            leadership = {
                "LODESTAR_EPOCH": str(session.epoch),
                "LODESTAR_LEADER_SESSION_ID": str(session.leader_session_id),
            }
            command = GuardedCommand(
                self._command,
                environment=os.environ | leadership,
                on_over=lambda code: self._happenings.put(
                    _CommandOver(return_code=code)
                ),
            )
            self.has_run = True
            if self._health is not None:
                self._health.leadership = leadership
            say(
                f"leading {self._job} at {self._address}, epoch {session.epoch}: "
                f"running {self._command[0]}"
            )
            try:
                return_code = self._supervise(election, session, core, command)
            finally:
                if self._health is not None:
                    self._health.leadership = {}
                command.close()
        finally:
            self._contender.is_idle.set()
        match core.reason:
            case EndReason.LEADERSHIP_LOST:
                self.has_lost_leadership = True
                say(
                    f"lost leadership of {self._job}, epoch {session.epoch}: "
                    f"ended {self._command[0]}"
                )
                return ExitCode.FAILED
            case EndReason.UNHEALTHY:
                self.has_lost_health = True
                say(f"ended {self._command[0]}, epoch {session.epoch}")
                return ExitCode.FAILED
            case EndReason.STOPPED:
                say(f"ended {self._command[0]}, and resigned from {self._job}")
                return ExitCode.DONE
            case None:
                return exit_code_of_command(return_code)

    def _supervise(
        self,
        election: LeaderElection,
        session: LeaderSession,
        core: SupervisionCore,
        command: GuardedCommand,
    ) -> int:
        """Return the command's return code once it is gone."""
        return_code = 0
        fatal: Exception | None = None
        while not core.is_over:
            happening = self._next(core)
            if core.next_deadline_ns() is not None:
                until_ns = self._read_belief(election, session)
                self._step(core, BeliefRead(until_ns=until_ns), command)
            match happening:
                case _Revoked():
                    self._step(core, LeadershipRevoked(), command)
                case Signalled(signal=number):
                    self._log.info("stop.requested", signal=number.name)
                    self._step(core, StopRequested(), command)
                case _CommandOver(return_code=return_code):
                    self._log.info("command.ended", return_code=return_code)
                    self._step(core, CommandEnded(), command)
                case _Failed(error=error):
                    try:
                        self._take_note(error)
                    except NameServiceError as error:
                        fatal = error
                        self._step(core, StopRequested(), command)
                case HealthChanged(change=change):
                    if isinstance(change, TellFailing):
                        self._step(core, HealthLost(), command)
                case _Granted() | None:
                    pass  # granted anew, while what we led is being ended
        if fatal is not None:
            raise fatal
        return return_code

    def _next(self, core: SupervisionCore) -> _Happening | None:
        deadline_ns = core.next_deadline_ns()
        timeout_seconds = None
        if deadline_ns is not None:
            left_ns = max(deadline_ns - self._clock.now_ns(), 0)
            timeout_seconds = left_ns / NS_PER_SECOND
        try:
            return self._happenings.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def _step(
        self, core: SupervisionCore, event: SupervisionEvent, command: GuardedCommand
    ) -> None:
        for effect in core.step(event, now_ns=self._clock.now_ns()):
            match effect:
                case Terminate():
                    assert core.reason is not None
                    self._log.info("command.terminated", reason=core.reason.value)
                    command.signal(signal.SIGTERM)
                case Kill():
                    self._log.info("command.killed")
                    command.signal(signal.SIGKILL)

    def _read_belief(self, election: LeaderElection, session: LeaderSession) -> int:
        # The clock first: the moment must not come out too late.
        now_ns = self._clock.now_ns()
        left_seconds = election.leadership_seconds_left(session.leader_session_id)
        return now_ns + seconds_to_ns(left_seconds)
