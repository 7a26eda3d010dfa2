"""
The verb elect: run a command only while we lead (rule N7).

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

import argparse
import contextlib
import math
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import frozen

from election.service import ADDRESS_LENGTH_MAX
from haservices import open_ha_services
from lodestar import guardian
from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    job_id,
    load_config,
    positive_seconds,
)
from lodestar.exit_codes import ExitCode
from lodestar.output import printable
from lodestar.signals import stop_signals
from lodestar.supervision import (
    BeliefRead,
    CommandEnded,
    EndReason,
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
    SystemClock,
    get_logger,
    seconds_to_ns,
)


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from election import LeaderElection, LeaderSession
    from haservices import HAServices
    from lodestar.arguments import Verbs


__all__ = ["add_verbs", "split_command"]

_GRACE_SECONDS: Final = 10.0

# A shell tells of a death by signal N as 128 + N.
_SIGNAL_EXIT_CODE_BASE: Final = 128


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "elect",
        _elect,
        operands="JOB ADDRESS -- COMMAND [ARGUMENT]...",
        summary="run a command only while we lead",
        description="Contend for JOB; while we lead it, publish ADDRESS and run "
        "COMMAND with LODESTAR_EPOCH and LODESTAR_LEADER_SESSION_ID in its "
        "environment. COMMAND, and all that it started in its process group, is ended "
        "before leadership is: TERM, then KILL. The exit code is the command's own "
        "when it ends by itself (128 + N if by signal N), 0 after SIGTERM or SIGINT, "
        "1 when leadership was lost.",
        examples="lodestar elect flights 10.0.0.7:8000 -- python3 -m http.server 8000\n"
        "lodestar elect flights 10.0.0.7:8000 --repeat -- ./collector",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        type=_address,
        help="where others reach us while we lead",
    )
    parser.add_argument(
        "--repeat",
        action="store_true",
        help="when leadership is lost, contend again instead of ending",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=positive_seconds,
        help="fail if we do not lead within this (default: wait as long as it takes)",
    )
    parser.add_argument(
        "--grace-seconds",
        metavar="SECONDS",
        type=positive_seconds,
        default=_GRACE_SECONDS,
        help="how long COMMAND may take to end after TERM, as far as leadership "
        "lasts (default: %(default)g)",
    )
    add_name_service_options(parser, contends=True)
    add_log_option(parser, "warning")


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """
    Return what is ours of *arguments*, and the command after the first ``--``.

    Done before argparse sees any of it: argparse takes a ``--`` out of the command too.
    """
    if "--" not in arguments:
        return list(arguments), []
    place = arguments.index("--")
    return list(arguments[:place]), list(arguments[place + 1 :])


def _address(text: str) -> str:
    """Return *text* as an address, or tell argparse why it is none."""
    if not 1 <= len(text) <= ADDRESS_LENGTH_MAX or not text.isprintable():
        message = (
            f"an address is 1 to {ADDRESS_LENGTH_MAX:,} printable characters, "
            f"not {text!r}"
        )
        raise argparse.ArgumentTypeError(message)
    return text


# -- what happens ----------------------------------------------------------------------


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
class _Signalled:
    signal: signal.Signals


@frozen(kw_only=True)
class _CommandOver:
    """The command's return code, negative for a signal."""

    return_code: int


_Happening: TypeAlias = _Granted | _Revoked | _Failed | _Signalled | _CommandOver
_Happenings: TypeAlias = "queue.SimpleQueue[_Happening]"


# -- the verb --------------------------------------------------------------------------


def _elect(arguments: Namespace) -> int:
    command = arguments.command
    if not command:
        message = "there is no command to run: write it last, after '--'"
        raise ConfigurationError(message)
    if shutil.which(command[0]) is None:
        message = f"there is no command {command[0]!r}"
        raise ConfigurationError(message)
    config = load_config(arguments)
    happenings: _Happenings = queue.SimpleQueue()
    with (
        stop_signals(lambda number: happenings.put(_Signalled(signal=number))),
        open_ha_services(config) as ha,
    ):
        give_up_seconds = _give_up_seconds(arguments.wait)
        while True:
            candidacy = _Candidacy(
                ha=ha,
                job=arguments.job,
                address=arguments.address,
                command=command,
                grace_ns=seconds_to_ns(arguments.grace_seconds),
                happenings=happenings,
            )
            exit_code = candidacy.run(give_up_seconds=give_up_seconds)
            if candidacy.has_run:
                if not (arguments.repeat and candidacy.has_lost_leadership):
                    return exit_code
                give_up_seconds = _give_up_seconds(arguments.wait)
            elif not candidacy.has_lost_leadership:
                return exit_code


def _give_up_seconds(wait_seconds: float | None) -> float:
    """Return until when, by ``time.monotonic``, we wait for our turn."""
    return math.inf if wait_seconds is None else time.monotonic() + wait_seconds


def _say(sentence: str) -> None:
    # Standard output is the command's.
    print(f"lodestar elect: {printable(sentence)}", file=sys.stderr, flush=True)


@final
class _Contender:
    """Puts what it is told into the queue; leaves a leadership when the command is."""

    def __init__(self, happenings: _Happenings) -> None:
        self._happenings = happenings
        self.is_idle = threading.Event()
        self.is_idle.set()

    def grant_leadership(self, session: LeaderSession) -> None:
        self._happenings.put(_Granted(session=session))

    def revoke_leadership(self) -> None:
        self._happenings.put(_Revoked())
        self.is_idle.wait()

    def handle_error(self, error: Exception) -> None:
        self._happenings.put(_Failed(error=error))


@final
class _Candidacy:
    """One election of ours, from its start to its close."""

    def __init__(
        self,
        *,
        ha: HAServices,
        job: str,
        address: str,
        command: Sequence[str],
        grace_ns: int,
        happenings: _Happenings,
    ) -> None:
        self._ha = ha
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

    def run(self, *, give_up_seconds: float) -> int:
        """
        Contend, lead, and resign.

        Returns:
            The verb's exit code, unless we contend again: `has_run` says whether the
            command was started, `has_lost_leadership` whether we led, and lead no more.
        """
        self._forget_the_past()
        with self._ha.get_leader_election(self._job) as election:
            election.start(self._contender)
            _say(f"contending for {self._job}")
            session = self._wait_for_grant(give_up_seconds)
            if session is None:
                return ExitCode.DONE
            if not self._confirm(election, session):
                self.has_lost_leadership = True
                return ExitCode.FAILED
            return self._lead(election, session)

    def _forget_the_past(self) -> None:
        """Take out what an earlier election has left in the queue; it is closed."""
        signals: list[_Signalled] = []
        with contextlib.suppress(queue.Empty):
            while True:
                happening = self._happenings.get_nowait()
                if isinstance(happening, _Signalled):
                    signals.append(happening)
        for signalled in signals:
            self._happenings.put(signalled)

    def _wait_for_grant(self, give_up_seconds: float) -> LeaderSession | None:
        """Return what we are granted, or None if we shall end."""
        while True:
            left_seconds = max(give_up_seconds - time.monotonic(), 0.0)
            try:
                happening = self._happenings.get(
                    timeout=None if math.isinf(left_seconds) else left_seconds
                )
            except queue.Empty:
                message = f"did not come to lead {self._job} in time"
                raise DidNotHappenError(message) from None
            match happening:
                case _Granted(session=session):
                    return session
                case _Signalled():
                    return None
                case _Failed(error=error):
                    self._take_note(error)
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
        self._log.warning("election.failed", error=str(error))

    # -- while we lead -----------------------------------------------------------------

    def _lead(self, election: LeaderElection, session: LeaderSession) -> int:
        """Run the command as long as we lead; return the verb's exit code."""
        # From here on a revocation waits for us.  One that began before shows in what
        # the election says now.
        self._contender.is_idle.clear()
        try:
            until_ns = self._read_belief(election, session)
            now_ns = self._clock.now_ns()
            if until_ns <= now_ns:
                self.has_lost_leadership = True
                return ExitCode.FAILED
            core = SupervisionCore(
                until_ns=until_ns, grace_ns=self._grace_ns, now_ns=now_ns
            )
            command = _Command(
                self._command,
                environment=os.environ
                | {
                    "LODESTAR_EPOCH": str(session.epoch),
                    "LODESTAR_LEADER_SESSION_ID": str(session.leader_session_id),
                },
                happenings=self._happenings,
            )
            self.has_run = True
            _say(
                f"leading {self._job} at {self._address}, epoch {session.epoch}: "
                f"running {self._command[0]}"
            )
            try:
                return_code = self._supervise(election, session, core, command)
            finally:
                command.close()
        finally:
            self._contender.is_idle.set()
        match core.reason:
            case EndReason.LEADERSHIP_LOST:
                self.has_lost_leadership = True
                _say(
                    f"lost leadership of {self._job}, epoch {session.epoch}: "
                    f"ended {self._command[0]}"
                )
                return ExitCode.FAILED
            case EndReason.STOPPED:
                _say(f"ended {self._command[0]}, and resigned from {self._job}")
                return ExitCode.DONE
            case None:
                if return_code < 0:
                    return _SIGNAL_EXIT_CODE_BASE - return_code
                return return_code

    def _supervise(
        self,
        election: LeaderElection,
        session: LeaderSession,
        core: SupervisionCore,
        command: _Command,
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
                case _Signalled(signal=number):
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
        self, core: SupervisionCore, event: SupervisionEvent, command: _Command
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


# -- the command -----------------------------------------------------------------------


@final
class _Command:
    """The running command, in a process group of its own under a guardian."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        happenings: _Happenings,
    ) -> None:
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(guardian.__file__))),
                    *(str(theirs.fileno()), *command),
                ],
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._happenings = happenings
        self._lock = threading.Lock()
        self._waiter = threading.Thread(
            target=self._wait, name="command-waiter", daemon=True
        )
        self._waiter.start()

    def signal(self, number: signal.Signals) -> None:
        """Send *number* to the command and to all of its process group."""
        # The group bears the guardian's id, which is nobody else's until the guardian
        # has been waited for.
        with self._lock:
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End what is left of it, and wait until it is gone."""
        if self._waiter.is_alive():
            self._lifeline.shutdown(socket.SHUT_RDWR)
        self._waiter.join()
        self._lifeline.close()

    def _wait(self) -> None:
        """Wait for the guardian's word, or for its death, and tell."""
        with self._lifeline.makefile("rb") as lines:
            word = lines.read()
        if not word:
            # Somebody killed the guardian, and with it our only word of the command:
            # nobody may be left behind.
            self.signal(signal.SIGKILL)
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._process.wait()
        self._happenings.put(
            _CommandOver(return_code=int(word) if word else -signal.SIGKILL)
        )
