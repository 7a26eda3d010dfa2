"""
How long until 100, 1,000 or 5,000 contenders, and as many retrievers, know who leads.

Workload: processes of 1,000 contenders (or fewer) with one session each.  Each of them
contends for a component of its own and confirms as soon as it is granted; a retriever
with a listener waits for each component.  The server is a process of its own, without a
data directory.  A small client beside them leads one component and looks at its belief
every 10 ms: what happens to it happens to any leader that has nothing to do with them.

Units: milliseconds from the first `start` until every contender leads and every
listener knows its leader ("all know"), and again from the restart of the server on the
same port ("all know again").  The *delay* of heartbeats: by how much the send that the
small client believes from is older than a fifth of the lease, when the next is sent.
Processor time of the clients and of the server, until all know, and for each second
afterwards ("at rest").  *Lost* are leaderships that were revoked before the restart.

Bad: more than 3 s for 1,000 in one process or 10 s for 5,000 in five; more than 5 s
after a restart; any leadership lost; a delay of more than half a lease (250 ms).
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from benchmarks._harness import Figure, figure, report, sized
from haservices import HAConfig, open_ha_services


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from election import LeaderElection, LeaderSession
    from retrieval import LeaderInformation


_COUNTS: Final = sized((100, 1_000, 5_000), tiny=(4,))
_PER_PROCESS_MAX: Final = sized(1_000, tiny=2)
_TIMEOUT_SECONDS: Final = 90.0
_REST_SECONDS: Final = sized(3.0, tiny=0.1)
_LEASE_SECONDS: Final = 0.5


@frozen(kw_only=True)
class _Progress:
    """What one process of contenders says of itself."""

    known_count: int
    lost_count: int
    error_count: int
    processor_seconds: float
    closed_seconds: float = 0.0


class _Everybody:
    """The contenders and listeners of one process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.lock = threading.Lock()
        self.told: set[int] = set()
        self.leading: set[int] = set()
        self.lost_count = 0
        self.error_count = 0
        self._changed = threading.Condition(self.lock)

    def tell(self, index: int, *, is_led: bool) -> None:
        with self._changed:
            (self.told.add if is_led else self.told.discard)(index)
            self._notify()

    def lead(self, index: int) -> None:
        with self._changed:
            self.leading.add(index)
            self._notify()

    def lose(self, index: int) -> None:
        with self._changed:
            self.leading.discard(index)
            self.lost_count += 1
            self._notify()

    def wait(self, *, until_all: bool) -> None:
        wanted = 2 * self.count if until_all else 0
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.told) + len(self.leading) == wanted, _TIMEOUT_SECONDS
            )

    def _notify(self) -> None:
        if len(self.told) + len(self.leading) in {0, 2 * self.count}:
            self._changed.notify_all()

    def fail(self) -> None:
        with self.lock:
            self.error_count += 1

    def progress(self) -> _Progress:
        used = resource.getrusage(resource.RUSAGE_SELF)
        with self.lock:
            return _Progress(
                known_count=len(self.told) + len(self.leading),
                lost_count=self.lost_count,
                error_count=self.error_count,
                processor_seconds=used.ru_utime + used.ru_stime,
            )


class _Contender:
    """Confirms what it is granted, and counts what it loses."""

    def __init__(self, index: int, election: LeaderElection, all_: _Everybody) -> None:
        self._index = index
        self._election = election
        self._all = all_

    def grant_leadership(self, session: LeaderSession) -> None:
        self._election.confirm_leadership(
            session.leader_session_id, f"host:{self._index}"
        )
        self._all.lead(self._index)

    def revoke_leadership(self) -> None:
        self._all.lose(self._index)

    def handle_error(self, error: Exception) -> None:
        del error
        self._all.fail()


class _Listener:
    """Takes note of whether its leader is known."""

    def __init__(self, index: int, all_: _Everybody) -> None:
        self._index = index
        self._all = all_

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        self._all.tell(self._index, is_led=leader is not None)

    def handle_error(self, error: Exception) -> None:
        del error
        self._all.fail()


def _contend(pipe: Connection, url: str, first: int, count: int) -> None:
    """Be one process of contenders, as *pipe* says: go, look, forget, close."""
    everybody = _Everybody(count)
    # Told at once when the server is gone, everybody must be told again.
    with open_ha_services(HAConfig(url=url, on_suspended="clear")) as ha:
        elections = [ha.get_leader_election(f"job-{first + n}") for n in range(count)]
        retrievers = [ha.get_leader_retriever(f"job-{first + n}") for n in range(count)]
        pipe.send("ready")
        while (order := pipe.recv()) != "go":
            pipe.send(everybody.progress())
        for index, (election, retriever) in enumerate(
            zip(elections, retrievers, strict=True)
        ):
            retriever.start(_Listener(index, everybody))
            election.start(_Contender(index, election, everybody))
        while (order := pipe.recv()) != "close":
            if order in {"wait", "forget"}:
                everybody.wait(until_all=order == "wait")
            pipe.send(everybody.progress())
        began = time.perf_counter()
    progress = everybody.progress()
    pipe.send(
        _Progress(
            known_count=progress.known_count,
            lost_count=progress.lost_count,
            error_count=progress.error_count,
            processor_seconds=progress.processor_seconds,
            closed_seconds=time.perf_counter() - began,
        )
    )


class _Bystander:
    """A leader that has nothing to do with them, and looks at its belief."""

    def __init__(self, url: str) -> None:
        self._ha = open_ha_services(url)
        self._election = self._ha.get_leader_election("bystander")
        self._session: LeaderSession | None = None
        self._is_granted = threading.Event()
        self._is_over = threading.Event()
        self.delays_ms: list[float] = []
        self.lost_count = 0
        self._election.start(self)
        assert self._is_granted.wait(_TIMEOUT_SECONDS)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def grant_leadership(self, session: LeaderSession) -> None:
        self._election.confirm_leadership(session.leader_session_id, "host:1")
        self._session = session
        self._is_granted.set()

    def revoke_leadership(self) -> None:
        self._session = None
        self.lost_count += 1

    def handle_error(self, error: Exception) -> None:
        raise error

    def _look(self) -> None:
        while not self._is_over.wait(0.01):
            session = self._session
            if session is None:
                continue
            left = self._election.leadership_seconds_left(session.leader_session_id)
            # Belief is counted from the send of a heartbeat, sent every fifth.
            age = 0.9 * _LEASE_SECONDS - left
            self.delays_ms.append(max(0.0, age - _LEASE_SECONDS / 5) * 1_000)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._ha.close()


class _Server:
    """A LeaderServer that can be killed and started again on its port."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"leaderserver://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "lodestar", "server"),
                *("--bind", f"tcp://127.0.0.1:{self._port}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def processor_seconds(self) -> float:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class _Group:
    """All processes of contenders."""

    def __init__(self, url: str, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for first in range(0, count, _PER_PROCESS_MAX):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_contend,
                args=(theirs, url, first, min(_PER_PROCESS_MAX, count - first)),
                daemon=True,
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            assert pipe.recv() == "ready"

    def order(self, order: str) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def ask(self, order: str) -> Sequence[_Progress]:
        self.order(order)
        return tuple(self._answers())

    def _answers(self) -> Iterator[_Progress]:
        for pipe in self._pipes:
            progress = pipe.recv()
            assert isinstance(progress, _Progress)
            yield progress

    def join(self) -> None:
        for process in self._processes:
            process.join(_TIMEOUT_SECONDS)


def _processor_seconds(progress: Sequence[_Progress]) -> float:
    return sum(one.processor_seconds for one in progress)


def _measure(count: int) -> list[Figure]:
    with ExitStack() as stack:
        server = _Server()
        stack.callback(server.kill)
        group = _Group(server.url, count)
        bystander = _Bystander(server.url)
        stack.callback(bystander.close)
        clients_idle, server_idle = group.ask("look"), server.processor_seconds()

        bystander.delays_ms.clear()
        began = time.perf_counter()
        group.order("go")
        known = group.ask("wait")
        known_seconds = time.perf_counter() - began
        delays_ms = tuple(bystander.delays_ms)
        server_known = server.processor_seconds()

        time.sleep(_REST_SECONDS)  # noqa: TID251 - what is measured is a time of rest
        rested, server_rested = group.ask("look"), server.processor_seconds()
        lost_count = sum(one.lost_count for one in rested) + bystander.lost_count

        server.kill()
        group.ask("forget")
        server.start()
        began = time.perf_counter()
        again = group.ask("wait")
        again_seconds = time.perf_counter() - began

        closed = group.ask("close")
        group.join()
    figures = [
        ("all know", "ms", 1_000 * known_seconds),
        ("all know again", "ms", 1_000 * again_seconds),
        ("lost", "leaderships", lost_count),
        ("told of errors", "errors", sum(one.error_count for one in again)),
        ("unknown at last", "leaders", 2 * count - sum(p.known_count for p in again)),
        (
            "clients until all know",
            "ms of processor",
            1_000 * (_processor_seconds(known) - _processor_seconds(clients_idle)),
        ),
        (
            "server until all know",
            "ms of processor",
            1_000 * (server_known - server_idle),
        ),
        (
            "clients at rest",
            "ms of processor per s",
            1_000
            * (_processor_seconds(rested) - _processor_seconds(known))
            / _REST_SECONDS,
        ),
        (
            "server at rest",
            "ms of processor per s",
            1_000 * (server_rested - server_known) / _REST_SECONDS,
        ),
        ("closed", "ms", 1_000 * max(one.closed_seconds for one in closed)),
    ]
    return [
        figure(f"{count:,}: heartbeats' delay meanwhile", "ms", delays_ms or [0.0]),
        *(figure(f"{count:,}: {name}", unit, [value]) for name, unit, value in figures),
    ]


def run() -> list[Figure]:
    """Measure, and return the figures."""
    figures = []
    for count in _COUNTS:
        figures += _measure(count)
    report("many_contenders", figures)
    return figures
