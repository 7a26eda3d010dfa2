"""
A process that contends for jobs; for drills.

``python -m tests.drills.contender SETTINGS`` takes `ContenderSettings` as JSON.  It
writes what happens as lines of JSON on standard output, each with its time, and takes
commands as lines of JSON from standard input, at whose end it leaves everything
cleanly.  Meanwhile one thread asks ``has_leadership`` over and over, keeps what it
hears in a journal (tests/drills/beliefs.py), and reports when the answer changes and
what the first answer is after it could not run for a while.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from attrs import asdict, frozen

from haservices import HAConfig, HAServices, open_ha_services
from nameservice import (
    ForkedClientError,
    LeadershipLostError,
    MayHaveHappenedError,
    NoLeaderError,
    SystemClock,
    configure_logging,
)
from tests.drills.beliefs import Journal


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import LeaderElection, LeaderSession


__all__ = ["GAP_NS", "ContenderSettings"]

GAP_NS: Final = 300_000_000
"""A process that did not run for so long says so: it was stopped, or not scheduled."""

_CHILD_TIMEOUT_MS: Final = 30_000

_clock: Final = SystemClock()


@frozen(kw_only=True)
class ContenderSettings:
    """
    What such a process is told at its start.

    Attributes:
        name: What it confirms as its address, followed by ``:1``.
        services: The settings of its `HAConfig`.
        job_ids: What it may contend for.
        enters: Which of them it contends for from its start on.
        journal_file: Where it keeps what it believed.
        pause_seconds: How long it waits between two rounds of questions; 0 asks as
            fast as it can, which takes a core.
    """

    name: str
    services: dict[str, Any]
    job_ids: list[str]
    enters: list[str]
    journal_file: str
    pause_seconds: float

    def to_json(self) -> str:
        """Return them as the command line takes them."""
        return json.dumps(asdict(self))


def report(name: str, **fields: Any) -> None:
    """Write one line; whole, whichever thread calls: it is shorter than PIPE_BUF."""
    line = json.dumps({"name": name, "at_ns": _clock.now_ns()} | fields) + "\n"
    os.write(1, line.encode())


@final
class Contention:
    """One contender; it confirms whatever it is granted."""

    def __init__(self, ha: HAServices, job_id: str, address: str) -> None:
        self.job_id = job_id
        self.session: LeaderSession | None = None
        self.believed = False
        self.election: LeaderElection = ha.get_leader_election(job_id)
        self._address = address

    def grant_leadership(self, session: LeaderSession) -> None:
        """Confirm it."""
        self.session = session
        self._report("granted", session)
        while True:
            try:
                self.election.confirm_leadership(
                    session.leader_session_id, self._address
                )
            except LeadershipLostError:
                return  # revoked meanwhile: the next grant is confirmed again
            except MayHaveHappenedError:
                continue  # safe to repeat, and nothing else tells whether it took
            self._report("confirmed", session)
            return

    def revoke_leadership(self) -> None:
        """Say so."""
        assert self.session is not None
        self._report("revoked", self.session)

    def handle_error(self, error: Exception) -> None:
        """Say so."""
        report("failed", job_id=self.job_id, detail=repr(error))

    def _report(self, name: str, session: LeaderSession) -> None:
        report(
            name,
            job_id=self.job_id,
            epoch=session.epoch,
            leader_session_id=str(session.leader_session_id),
        )


@final
class Sampler:
    """The thread that asks ``has_leadership``."""

    def __init__(self, settings: ContenderSettings) -> None:
        self._journal = Journal(Path(settings.journal_file))
        self._pause_seconds = settings.pause_seconds
        self._lock = threading.Lock()
        self._contentions: dict[int, Contention] = {}
        self._ended = threading.Event()
        # Nothing may keep the process from ending: not a daemon's business to clean up.
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def watch(self, job_index: int, contention: Contention) -> None:
        """Ask *contention* too, in place of an earlier one for that job."""
        with self._lock:
            self._contentions = self._contentions | {job_index: contention}

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        ran_ns = _clock.now_ns()
        slept_ns = 0
        while not self._ended.is_set():
            for job_index, contention in self._contentions.items():
                session = contention.session
                if session is None:
                    continue
                before_ns = _clock.now_ns()
                slept_ns = max(slept_ns, before_ns - ran_ns)
                answer = contention.election.has_leadership(session.leader_session_id)
                ran_ns = _clock.now_ns()
                if answer:
                    self._journal.believed(
                        job_index, session, before_ns=before_ns, after_ns=ran_ns
                    )
                if ran_ns - before_ns >= GAP_NS:
                    # Stopped within the question: the answer may be from before.
                    slept_ns = max(slept_ns, ran_ns - before_ns)
                    continue
                if slept_ns >= GAP_NS:
                    report(
                        "woke",
                        job_id=contention.job_id,
                        epoch=session.epoch,
                        slept_ns=slept_ns,
                        believes=answer,
                    )
                slept_ns = 0
                if answer != contention.believed:
                    contention.believed = answer
                    report(
                        "believed" if answer else "doubted",
                        job_id=contention.job_id,
                        epoch=session.epoch,
                        leader_session_id=str(session.leader_session_id),
                    )
            if self._pause_seconds:
                self._ended.wait(self._pause_seconds)


@final
class ContenderProcess:
    """What commands act on."""

    def __init__(self, settings: ContenderSettings, ha: HAServices) -> None:
        self._settings = settings
        self._ha = ha
        self._sampler = Sampler(settings)
        self._contentions: dict[str, Contention] = {}

    def run(self) -> None:
        """Contend for every job, and obey until there are no more commands."""
        for job_id in self._settings.enters:
            self._enter(job_id)
        self._sampler.start()
        report("ready")
        for line in sys.stdin:
            command = json.loads(line)
            match command["do"]:
                case "enter":
                    self._enter(command["job_id"])
                    report("entered", job_id=command["job_id"])
                case "resign":
                    self._contentions[command["job_id"]].election.close()
                    report("resigned", job_id=command["job_id"])
                case "fork":
                    self._fork(command["job_id"])
                case "leave a child":
                    self._leave_child(command["job_id"])
                case unknown:
                    raise AssertionError(unknown)
        # What is asked during the end would only tell that it is the end.
        self._sampler.stop()

    def _enter(self, job_id: str) -> None:
        contention = Contention(self._ha, job_id, f"{self._settings.name}:1")
        self._contentions[job_id] = contention
        self._sampler.watch(self._settings.job_ids.index(job_id), contention)
        contention.election.start(contention)

    def _fork(self, job_id: str) -> None:
        """Have a child try everything it inherited, close it, and end properly."""
        contention = self._contentions[job_id]
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            outcomes = {
                name: outcome(use) for name, use in self._uses(contention).items()
            }
            os.write(write_end, json.dumps(outcomes).encode())
            # Not os._exit: exit handlers and destructors run, as in any child, and
            # the services that were opened in a ``with`` block are closed.
            sys.exit(7)
        os.close(write_end)
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        is_hung = not poll.poll(_CHILD_TIMEOUT_MS)
        outcomes = {} if is_hung else json.loads(os.read(read_end, 65_536))
        os.close(read_end)
        child = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        if is_hung or not poll.poll(_CHILD_TIMEOUT_MS):
            os.kill(pid, signal.SIGKILL)
        os.close(child)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        report("forked", job_id=job_id, exit_code=code, outcomes=outcomes)

    def _leave_child(self, job_id: str) -> None:
        """Have a child that does nothing, and outlives us by much."""
        context = multiprocessing.get_context("fork")
        child = context.Process(target=outlive, args=(60.0,))
        child.daemon = True
        child.start()
        assert child.pid is not None
        report("left a child", job_id=job_id, child_pid=child.pid)

    def _uses(self, contention: Contention) -> dict[str, Callable[[], object]]:
        ha, election, session = self._ha, contention.election, contention.session
        assert session is not None
        identity = session.leader_session_id
        return {
            "get_leader_election": lambda: ha.get_leader_election("another"),
            "get_leader_retriever": lambda: ha.get_leader_retriever("another"),
            "get_leader_store": lambda: ha.get_leader_store("another"),
            "leaders": ha.operations.leaders,
            "has_leadership": lambda: election.has_leadership(identity),
            "confirm_leadership": lambda: election.confirm_leadership(identity, "x:1"),
            "run_if_leader": lambda: election.run_if_leader(identity, int),
            "contenders": election.contenders,
            "close": election.close,
        }


def outlive(seconds: float) -> None:
    """Do nothing for so long, and do not keep those waiting who read our output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    signal.sigtimedwait(set(), seconds)


def outcome(use: Callable[[], object]) -> str:
    """Return the name of what *use* raises, or what it returns."""
    try:
        return repr(use())
    except (ForkedClientError, NoLeaderError, AssertionError) as error:
        return type(error).__name__


def main(arguments: list[str]) -> None:
    """Be such a process."""
    configure_logging("info")
    settings = ContenderSettings(**json.loads(arguments[0]))
    with open_ha_services(HAConfig(**settings.services)) as ha:
        ContenderProcess(settings, ha).run()


if __name__ == "__main__":
    main(sys.argv[1:])
