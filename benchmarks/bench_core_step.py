"""
How long one step of `ElectionCore` takes, by event, with 10 and 10,000 sessions.

Workload: every session has one contender on a component of its own, confirmed.  Unit:
nanoseconds a step, in one thread, no I/O.  Bad: a step that grows with the number of
sessions, or a heartbeat above 50 µs (1,000 contenders send 10,000 a second).
"""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

from benchmarks._harness import Figure, figure, report, rounds, sized, timed_ns
from election.config import ElectionConfig
from election.core import ElectionCore
from election.effects import GrantLeadership
from election.epochs import IncarnationEpochs
from election.events import (
    ContenderRegistered,
    HeartbeatReceived,
    LeadershipConfirmed,
    SessionRequested,
    TimePassed,
)


if TYPE_CHECKING:
    from collections.abc import Callable


_MS = 1_000_000
_SESSION_COUNTS = sized((10, 10_000), tiny=(2, 3))
_REPEAT = sized(2_000, tiny=2)
_ROUND_COUNT = sized(9, tiny=1)


def _core(session_count: int) -> ElectionCore:
    core = ElectionCore(
        ElectionConfig(
            namespace=uuid.UUID(int=1), undecided_ns=0, session_count_max=20_000
        ),
        epochs=IncarnationEpochs(1, started_ns=0),
        recorded_epochs={},
        now_ns=0,
    )
    for index in range(session_count):
        session_id = f"s{index}"
        core.step(
            SessionRequested(
                session_id=session_id,
                session_timeout_ns=10_000 * _MS,
                lease_ns=500 * _MS,
                client="bench",
            ),
            now_ns=0,
        )
        effects = core.step(
            ContenderRegistered(
                session_id=session_id,
                component_id=f"c/{index}",
                contender_id=f"k{index}",
                confirm_timeout_ns=10_000 * _MS,
            ),
            now_ns=0,
        )
        granted = next(e for e in effects if isinstance(e, GrantLeadership))
        core.step(
            LeadershipConfirmed(
                session_id=session_id,
                component_id=f"c/{index}",
                contender_id=f"k{index}",
                leader_session_id=granted.affirmation.leader_session_id,
                confirm_count=1,
                address="host:1",
            ),
            now_ns=0,
        )
    return core


def _heartbeats(core: ElectionCore, session_count: int) -> Callable[[], None]:
    numbers = itertools.count(1)

    def step() -> None:
        number = next(numbers)
        core.step(
            HeartbeatReceived(
                session_id=f"s{number % session_count}",
                number=number,
                acknowledged=max(0, number - session_count),
            ),
            now_ns=number * 1_000,
        )

    return step


def _tick(core: ElectionCore) -> None:
    core.step(TimePassed(), now_ns=60_000_000)


def run() -> list[Figure]:
    """Measure, and return the figures."""
    figures = []
    for session_count in _SESSION_COUNTS:
        core = _core(session_count)
        heartbeat = _heartbeats(core, session_count)
        figures.append(
            figure(
                f"heartbeat, {session_count:,} sessions",
                "ns/step",
                rounds(
                    lambda h=heartbeat: timed_ns(h, repeat=_REPEAT),  # type: ignore[misc]
                    count=_ROUND_COUNT,
                ),
            )
        )
        figures.append(
            figure(
                f"time passed, {session_count:,} sessions",
                "ns/step",
                rounds(
                    lambda c=core: timed_ns(  # type: ignore[misc]
                        lambda: _tick(c), repeat=_REPEAT
                    ),
                    count=_ROUND_COUNT,
                ),
            )
        )
    report("core_step", figures)
    return figures
