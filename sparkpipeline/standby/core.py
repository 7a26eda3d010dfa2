"""
What a driver of `run_with_standby` does next, without I/O.

Theory of operation
-------------------
A driver warms up before it contends: one that is granted leadership can begin at once.
The application's queries start under one leadership and stop with it (rule H3)::

    WARMING ──WarmedUp, or too late──► WARM ◄──────────────────────┐
                                        │ Granted                  │ lost, and all
                                        ▼                          │ has stopped
                                     LEADING                       │
                                        │ revoked, fenced, without │
                                        │ belief, asked to stop,   │
                                        ▼ queries ended            │
                                     STOPPING ─────────────────────┘
                                        │ stopped for good; or not in time: EndProcess
                                        ▼
                                      ENDED

Belief that lapses may come back (the lease is short, and a machine may be busy), and no
guarded batch begins meanwhile.  So the queries are stopped only when it has been gone
for a while; or when the name service says that the leadership is over.

A driver whose query meets another one's in Spark's log steps aside: the driver before
it still stops.  One that meets others again and again shares its checkpoints with what
does not contend with it, and fails.

What has not stopped in time is ended with its JVM and its process: a driver of which
it is not known what it still writes must not run on.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias, assert_never, final

from attrs import frozen

from election import LeaderSession
from nameservice import NS_PER_SECOND


__all__ = [
    "COLLISION_COUNT_MAX",
    "COLLISION_NS",
    "AbandonWarmUp",
    "ApplicationFailed",
    "BeliefRead",
    "Collided",
    "Contend",
    "EndProcess",
    "EndReason",
    "Fenced",
    "Finish",
    "Granted",
    "JVMLost",
    "LeadershipRevoked",
    "QueriesEnded",
    "QueriesStopped",
    "StandbyCore",
    "StandbyEffect",
    "StandbyEvent",
    "StandbyState",
    "StartApplication",
    "StopQueries",
    "StopRequested",
    "WarmedUp",
    "Withdraw",
]


COLLISION_COUNT_MAX: Final = 3
"""The collision with which a driver fails, if they come within `COLLISION_NS`."""

COLLISION_NS: Final = 60 * NS_PER_SECOND


class StandbyState(Enum):
    """Where a driver is."""

    WARMING = "warming"
    WARM = "warm"
    LEADING = "leading"
    STOPPING = "stopping"
    ENDED = "ended"


class EndReason(Enum):
    """Why the queries of a leadership are stopped."""

    LOST = "lost"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"


@frozen(kw_only=True)
class WarmedUp:
    """The throw-away query is over, well or not."""


@frozen(kw_only=True)
class Granted:
    """We lead, and have confirmed."""

    session: LeaderSession


@frozen(kw_only=True)
class LeadershipRevoked:
    """The name service has ended our leadership."""


@frozen(kw_only=True)
class Fenced:
    """The leader store refused a batch of ours: somebody else leads."""


@frozen(kw_only=True)
class BeliefRead:
    """
    The election was asked whether we believe that we lead.

    Attributes:
        is_believing: Its answer.
    """

    is_believing: bool


@frozen(kw_only=True)
class QueriesEnded:
    """All queries of the application have ended by themselves."""


@frozen(kw_only=True)
class ApplicationFailed:
    """The application, a check of it, or one of its queries has failed."""


@frozen(kw_only=True)
class Collided:
    """A query has failed because another driver runs it, too."""


@frozen(kw_only=True)
class JVMLost:
    """The driver's JVM is gone: nothing runs, and nothing can be started."""


@frozen(kw_only=True)
class StopRequested:
    """We were asked to end: a signal."""


@frozen(kw_only=True)
class QueriesStopped:
    """No query of the application runs, nor any function that it has called."""


StandbyEvent: TypeAlias = (
    WarmedUp
    | Granted
    | LeadershipRevoked
    | Fenced
    | BeliefRead
    | QueriesEnded
    | ApplicationFailed
    | Collided
    | JVMLost
    | StopRequested
    | QueriesStopped
)


@frozen(kw_only=True)
class AbandonWarmUp:
    """Stop the throw-away query: it took too long."""


@frozen(kw_only=True)
class Contend:
    """Enter the election."""


@frozen(kw_only=True)
class StartApplication:
    """Call the application under that leadership."""

    session: LeaderSession


@frozen(kw_only=True)
class StopQueries:
    """Begin no batch any more, and stop the queries when the present one is over."""


@frozen(kw_only=True)
class Withdraw:
    """Leave the election, so that the next driver leads."""


@frozen(kw_only=True)
class Finish:
    """
    Return to who called us.

    Attributes:
        reason: Why; None if there was no leadership.
    """

    reason: EndReason | None


@frozen(kw_only=True)
class EndProcess:
    """End the JVM and this process, now."""


StandbyEffect: TypeAlias = (
    AbandonWarmUp
    | Contend
    | StartApplication
    | StopQueries
    | Withdraw
    | Finish
    | EndProcess
)


@final
class StandbyCore:
    """
    One driver, from its start to its end.

    Not thread-safe: one shell drives it.

    Args:
        warm_up_ns: How long the warm-up may take.
        lapse_ns: How long belief may be gone before the queries are stopped.
        stop_ns: How long the queries may take to stop.
        now_ns: The present.
    """

    def __init__(
        self, *, warm_up_ns: int, lapse_ns: int, stop_ns: int, now_ns: int
    ) -> None:
        assert warm_up_ns > 0
        assert lapse_ns > 0
        assert stop_ns > 0
        self._lapse_ns: Final = lapse_ns
        self._stop_ns: Final = stop_ns
        self._now_ns = now_ns
        self._deadline_ns: int | None = now_ns + warm_up_ns
        self._state = StandbyState.WARMING
        self._reason: EndReason | None = None
        self._collided_ns: tuple[int, ...] = ()

    @property
    def state(self) -> StandbyState:
        """Return where the driver is."""
        return self._state

    @property
    def reason(self) -> EndReason | None:
        """Return why the last queries were stopped, or None."""
        return self._reason

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called at the latest, or None."""
        return self._deadline_ns

    def step(
        self, event: StandbyEvent | None, *, now_ns: int
    ) -> tuple[StandbyEffect, ...]:
        """
        Take note of *event*, or of the time alone; return what to do, in order.

        What comes too late for the present state changes nothing.
        """
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects: list[StandbyEffect] = []
        match self._state:
            case StandbyState.WARMING:
                self._warming(event, effects)
            case StandbyState.WARM:
                self._warm(event, effects)
            case StandbyState.LEADING:
                self._leading(event, effects)
            case StandbyState.STOPPING:
                self._stopping(event, effects)
            case StandbyState.ENDED:
                pass
            case _:
                assert_never(self._state)
        return tuple(effects)

    def _warming(
        self, event: StandbyEvent | None, effects: list[StandbyEffect]
    ) -> None:
        is_late = self._is_due()
        if isinstance(event, StopRequested | ApplicationFailed | JVMLost):
            effects.append(AbandonWarmUp())
            self._end(None if isinstance(event, StopRequested) else _FAILED, effects)
        elif isinstance(event, WarmedUp) or is_late:
            if not isinstance(event, WarmedUp):
                effects.append(AbandonWarmUp())
            self._contend(effects)

    def _warm(self, event: StandbyEvent | None, effects: list[StandbyEffect]) -> None:
        if isinstance(event, Granted):
            self._state = StandbyState.LEADING
            self._reason = None
            effects.append(StartApplication(session=event.session))
        elif isinstance(event, StopRequested | ApplicationFailed | JVMLost):
            effects.append(Withdraw())
            self._end(None if isinstance(event, StopRequested) else _FAILED, effects)

    def _leading(
        self, event: StandbyEvent | None, effects: list[StandbyEffect]
    ) -> None:
        match event:
            case LeadershipRevoked() | Fenced():
                self._stop(EndReason.LOST, effects)
            case StopRequested():
                self._stop(EndReason.STOPPED, effects)
            case QueriesEnded():
                self._stop(EndReason.COMPLETED, effects)
            case ApplicationFailed() | JVMLost():
                self._stop(_FAILED, effects)
            case Collided():
                self._collide(effects)
            case BeliefRead(is_believing=True):
                self._deadline_ns = None
            case BeliefRead() if self._deadline_ns is None:
                self._deadline_ns = self._now_ns + self._lapse_ns
            case _ if self._is_due():
                self._stop(EndReason.LOST, effects)

    def _stopping(
        self, event: StandbyEvent | None, effects: list[StandbyEffect]
    ) -> None:
        if isinstance(event, QueriesStopped):
            effects.append(Withdraw())
            if self._reason is EndReason.LOST:
                self._contend(effects)
            else:
                self._end(self._reason, effects)
        elif self._is_due():
            self._state = StandbyState.ENDED
            self._deadline_ns = None
            effects.append(EndProcess())
        elif isinstance(event, JVMLost):
            self._reason = _FAILED  # it cannot stand by any more
        elif isinstance(event, StopRequested) and self._reason is EndReason.LOST:
            self._reason = EndReason.STOPPED

    def _collide(self, effects: list[StandbyEffect]) -> None:
        self._collided_ns = (
            *(at for at in self._collided_ns if self._now_ns - at < COLLISION_NS),
            self._now_ns,
        )
        is_last = len(self._collided_ns) == COLLISION_COUNT_MAX
        self._stop(_FAILED if is_last else EndReason.LOST, effects)

    def _contend(self, effects: list[StandbyEffect]) -> None:
        self._state = StandbyState.WARM
        self._deadline_ns = None
        effects.append(Contend())

    def _stop(self, reason: EndReason, effects: list[StandbyEffect]) -> None:
        self._state = StandbyState.STOPPING
        self._reason = reason
        self._deadline_ns = self._now_ns + self._stop_ns
        effects.append(StopQueries())

    def _end(self, reason: EndReason | None, effects: list[StandbyEffect]) -> None:
        self._state = StandbyState.ENDED
        self._reason = reason
        self._deadline_ns = None
        effects.append(Finish(reason=reason))

    def _is_due(self) -> bool:
        return self._deadline_ns is not None and self._now_ns >= self._deadline_ns


_FAILED: Final = EndReason.FAILED
