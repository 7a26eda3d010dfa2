"""
How long until everybody is told of a new leader, with 1 to 500 retrievers.

Workload: one leader confirms a new address again and again; many clients, each with
a session and a retriever of its own, in this process.  Unit: milliseconds from the call
of `confirm_leadership` until its answer, and until the last retriever was told.  Bad:
above half a second for 500 clients (all of them, 1,000 threads, share this process).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks._harness import Figure, figure, report
from haservices import open_ha_services
from leaderserver import LeaderServer, ServerConfig


if TYPE_CHECKING:
    from election import LeaderSession
    from retrieval import LeaderInformation


_ROUNDS = 20
_TIMEOUT_SECONDS = 60.0


class _Grants:
    """A contender that takes note of its grant."""

    def __init__(self) -> None:
        self.session: LeaderSession | None = None
        self.granted = threading.Event()

    def grant_leadership(self, session: LeaderSession) -> None:
        self.session = session
        self.granted.set()

    def revoke_leadership(self) -> None:
        self.granted.clear()

    def handle_error(self, error: Exception) -> None:
        raise error


class _Counter:
    """A listener that counts down once it is told of *address*."""

    def __init__(self) -> None:
        self.address = ""
        self.left = threading.Semaphore(0)

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        if leader is not None and leader.address == self.address:
            self.left.release()

    def handle_error(self, error: Exception) -> None:
        raise error


def run() -> list[Figure]:
    """Measure, and return the figures."""
    figures = []
    for client_count in (1, 50, 500):
        with ExitStack() as stack:
            config = ServerConfig(bind="tcp://127.0.0.1:0")
            server = stack.enter_context(LeaderServer(config))
            counter = _Counter()
            for _ in range(client_count):
                ha = stack.enter_context(open_ha_services(server.url))
                ha.get_leader_retriever("bench").start(counter)
            ha = stack.enter_context(open_ha_services(server.url))
            election = ha.get_leader_election("bench")
            grants = _Grants()
            election.start(grants)
            assert grants.granted.wait(_TIMEOUT_SECONDS)
            assert grants.session is not None
            answered, told = [], []
            for index in range(_ROUNDS):
                counter.address = f"host:{index}"
                began = time.perf_counter()
                election.confirm_leadership(
                    grants.session.leader_session_id, counter.address
                )
                answered.append((time.perf_counter() - began) * 1_000)
                for _ in range(client_count):
                    assert counter.left.acquire(timeout=_TIMEOUT_SECONDS)
                told.append((time.perf_counter() - began) * 1_000)
            figures += [
                figure(f"confirmed, {client_count} retrievers", "ms", answered),
                figure(f"all told, {client_count} retrievers", "ms", told),
            ]
    report("fan_out", figures)
    return figures
