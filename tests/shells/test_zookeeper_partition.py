"""A real ensemble, and the holder's own member cut off from the others."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, Self

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing import ZooKeeperEnsemble
from nameservice import SystemClock, seconds_to_ns
from tests.recording import ConfirmingContender, wait_until
from tests.tiers import nightly_after


if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from election import LeaderElection
    from haservices import HAServices


pytestmark = [pytest.mark.shells, pytest.mark.timeout(240)]

JOB: Final = "flights"
SESSION_TIMEOUT_SECONDS: Final = 3.0
TICK_TIME_MS: Final = 100
# A follower goes on serving reads, pings and its clients' connections for that long.
SYNCHRONIZATION_LIMIT_TICKS: Final = 300
CONNECT_TIMEOUT_SECONDS: Final = 30.0


class BeliefWatch:
    """Asks over and over whether somebody leads, and keeps when the last yes was."""

    def __init__(self, election: LeaderElection, leader_session_id: UUID) -> None:
        self._election = election
        self._leader_session_id = leader_session_id
        self._clock = SystemClock()
        self._is_over = threading.Event()
        self.last_yes_ns = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._is_over.wait(0.001):
            asked_ns = self._clock.now_ns()
            if self._election.has_leadership(self._leader_session_id):
                self.last_yes_ns = asked_ns

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def resources() -> Iterator[contextlib.ExitStack]:
    """Return what closes everything that a test has opened."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("role", nightly_after(1, ["leader", "follower"]))
def test_the_holder_on_the_wrong_side_stops_believing_first(
    resources: contextlib.ExitStack, role: str
) -> None:
    """E4: reads, pings and an open connection are no grounds for belief."""
    ensemble = resources.enter_context(
        ZooKeeperEnsemble(
            3,
            tick_time_ms=TICK_TIME_MS,
            synchronization_limit_ticks=(
                SYNCHRONIZATION_LIMIT_TICKS if role == "follower" else 20
            ),
        )
    )
    leading = ensemble.leader_index()
    lonely = leading if role == "leader" else (leading + 1) % 3
    healthy = ",".join(
        member.address
        for index, member in enumerate(ensemble.members)
        if index != lonely
    )

    def open_services(addresses: str) -> HAServices:
        return resources.enter_context(
            open_ha_services(
                HAConfig(
                    url=f"zookeeper://{addresses}/cut",
                    session_timeout_seconds=SESSION_TIMEOUT_SECONDS,
                    connect_timeout_seconds=CONNECT_TIMEOUT_SECONDS,
                )
            )
        )

    def contend(ha: HAServices, address: str) -> ConfirmingContender:
        election = ha.get_leader_election(JOB)
        contender = ConfirmingContender(election, address)
        election.start(contender)
        return contender

    clock = SystemClock()
    ours = open_services(ensemble.members[lonely].address)
    election = ours.get_leader_election(JOB)
    holder = ConfirmingContender(election, "holder:1")
    election.start(holder)
    held = holder.wait_for_confirm()
    theirs = open_services(healthy)
    other = contend(theirs, "other:1")
    wait_until(lambda: len(theirs.operations.contenders(JOB)) == 2)
    with BeliefWatch(election, held.leader_session_id) as watch:
        wait_until(lambda: watch.last_yes_ns > 0)
        ensemble.cut(lonely)
        cut_ns = clock.now_ns()
        granted = other.wait_for_confirm()
        granted_ns = clock.now_ns()
        assert not election.has_leadership(held.leader_session_id)
    assert granted.epoch > held.epoch
    # Its last write that committed was sent before the cut, so this is exact.
    assert watch.last_yes_ns <= cut_ns + seconds_to_ns(SESSION_TIMEOUT_SECONDS) * 2 // 3
    assert watch.last_yes_ns < granted_ns
    ensemble.heal(lonely)
