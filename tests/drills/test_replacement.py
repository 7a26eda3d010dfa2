"""Leaders replaced over and over, on every backend."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from nameservice import NS_PER_SECOND
from tests.conformance.candidates import Candidate, ids_in_order
from tests.drills.processes import now_ns
from tests.drills.watching import TimedListener
from tests.recording import ConfirmingContender, wait_until


if TYPE_CHECKING:
    from election import LeaderElection, LeaderSession
    from tests.drills.reporting import Report


JOB: Final = "flights"
ROUND_COUNT: Final = 200
QUEUE_LENGTH: Final = 3
CLOSED_COUNT: Final = 10


def services(
    resources: contextlib.ExitStack, url: str, cluster_id: str, **settings: Any
) -> HAServices:
    """Open services that *resources* closes; no session ends by itself."""
    config = HAConfig(
        url=url,
        cluster_id=cluster_id,
        session_timeout_seconds=60.0,
        connect_timeout_seconds=20.0,
        **settings,
    )
    return resources.enter_context(open_ha_services(config))


def wait_for_confirm_above(candidate: Candidate, epoch: int) -> LeaderSession:
    """Return the first leadership above *epoch* that *candidate* confirmed."""
    assert isinstance(candidate.contender, ConfirmingContender)
    sessions = candidate.contender.confirmed.wait_until(
        lambda sessions: any(session.epoch > epoch for session in sessions)
    )
    return next(session for session in sessions if session.epoch > epoch)


def replace_leader(how: str, leader: Candidate, operator: HAServices) -> Candidate:
    """End the leadership of *leader*; return who queues in its place."""
    match how:
        case "close":
            leader.election.close()
            return Candidate(leader.ha, leader.address, job_id=JOB)
        case "revoke":
            operator.operations.revoke(JOB)
        case "expire":
            first, *_ = operator.operations.contenders(JOB)
            operator.operations.expire(first.session_id)
        case _:
            raise AssertionError(how)
    return leader


def wait_for_queue(election: LeaderElection) -> list[str]:
    """Return the ids of all contenders in order, once none is missing."""
    orders: list[list[str]] = []

    def is_full() -> bool:
        orders.append(ids_in_order(election))
        return len(orders[-1]) == QUEUE_LENGTH

    wait_until(is_full)
    return orders[-1]


@pytest.mark.proves("E1", "E2", "E8")
@pytest.mark.drill
def test_two_hundred_leaders_replaced(any_url: str, report: Report) -> None:
    """E1, E2, E8: closed, revoked or expired, each is followed by the next in line."""
    with contextlib.ExitStack() as resources:
        operator = services(resources, any_url, "replaced")
        listener = TimedListener()
        operator.get_leader_retriever(JOB).start(listener)
        queue = [
            Candidate(services(resources, any_url, "replaced"), f"c{n}:1", job_id=JOB)
            for n in range(QUEUE_LENGTH)
        ]
        session = queue[0].wait_for_confirm()
        listener.wait_for_leader(above_epoch=0)
        order = wait_for_queue(queue[0].election)
        led = [queue[0].address]
        epochs = [session.epoch]
        seconds: dict[str, list[float]] = {"close": [], "revoke": [], "expire": []}
        for how in itertools.islice(itertools.cycle(seconds), ROUND_COUNT):
            leader, *waiting = queue
            began_ns = now_ns()
            last = replace_leader(how, leader, operator)
            session = wait_for_confirm_above(waiting[0], epochs[-1])
            told_ns, told = listener.wait_for_leader(above_epoch=epochs[-1])
            seconds[how].append((told_ns - began_ns) / NS_PER_SECOND)
            assert (told.address, told.epoch) == (waiting[0].address, session.epoch)
            led.append(told.address)
            epochs.append(told.epoch)
            queue = [*waiting, last]
            # The former leader is back, at the end: none lost a place to it.
            order, (_, *earlier) = wait_for_queue(queue[0].election), order
            assert order[:-1] == earlier
        assert [leader.address for leader in listener.leaders] == led
    assert epochs == sorted(set(epochs))
    report.say(
        f"{ROUND_COUNT} leaders replaced on {any_url.partition(':')[0]}, "
        f"{QUEUE_LENGTH} contenders: epochs rose each time, in the order of the queue; "
        f"led {dict(sorted(Counter(led).items()))}",
        rounds=ROUND_COUNT,
    )
    for how, taken in seconds.items():
        report.durations(f"{how}_seconds", f"{how}, until a retriever was told", taken)


@pytest.mark.proves("E1", "E7")
@pytest.mark.shells
def test_ten_contenders_closed_one_after_another(any_url: str, report: Report) -> None:
    """E1, E7: each leads once, in the order in which they registered; then none."""
    with contextlib.ExitStack() as resources:
        watching = services(resources, any_url, "closed")
        listener = TimedListener()
        watching.get_leader_retriever(JOB).start(listener)
        queue = [
            Candidate(services(resources, any_url, "closed"), f"c{n}:1", job_id=JOB)
            for n in range(CLOSED_COUNT)
        ]
        epoch = 0
        handovers_seconds = []
        closed_ns = None
        for candidate in queue:
            session = wait_for_confirm_above(candidate, epoch)
            told_ns, leader = listener.wait_for_leader(above_epoch=epoch)
            if closed_ns is not None:
                handovers_seconds.append((told_ns - closed_ns) / NS_PER_SECOND)
            assert (leader.address, leader.epoch) == (candidate.address, session.epoch)
            epoch = session.epoch
            closed_ns = now_ns()
            candidate.election.close()
        listener.wait_for_none()
        told = [leader.address for leader in listener.leaders]
        assert told == [candidate.address for candidate in queue]
        for candidate in queue:
            assert len(candidate.contender.granted) == 1
        assert watching.operations.contenders(JOB) == []
    report.say(
        f"{CLOSED_COUNT} contenders on {any_url.partition(':')[0]} closed one after "
        "another: each led once, in order",
        contenders=CLOSED_COUNT,
    )
    report.durations("handover_seconds", "from close to told", handovers_seconds)
