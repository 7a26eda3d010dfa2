"""
When the health check of ``lodestar elect --health`` runs, and what its results mean.

Theory of operation
-------------------
One check runs at a time.  The next one starts an interval after the last one ended; one
that takes longer than its timeout is killed, and has failed.  Until the first check has
passed, and from the last of a number of failures in a row until the next check that
passes, the check *fails*: a program that asks it does not contend.

::

    UNKNOWN ──passed──► PASSING ──failed N times in a row──► FAILING
                           ▲                                    │
                           └───────────────passed───────────────┘

From the moment from which every check fails, the core says so after at most
``failure_count_max`` times the interval and the timeout together.

Without I/O: the shell (health_checker.py) runs the checks.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never, final

from attrs import field, frozen, validators


__all__ = [
    "CheckEnded",
    "HealthConfig",
    "HealthCore",
    "HealthEffect",
    "HealthEvent",
    "KillCheck",
    "StartCheck",
    "TellFailing",
    "TellPassing",
    "TimeWentOn",
]

_PASSED: Final = 0


@frozen(kw_only=True)
class HealthConfig:
    """
    How a health check is run.

    Attributes:
        interval_ns: From the end of one check to the start of the next.
        timeout_ns: How long one check may take.
        failure_count_max: How many failures in a row mean that it fails.
    """

    interval_ns: int = field(validator=validators.ge(1))
    timeout_ns: int = field(validator=validators.ge(1))
    failure_count_max: int = field(validator=validators.ge(1))


@frozen(kw_only=True)
class TimeWentOn:
    """Nothing but time."""


@frozen(kw_only=True)
class CheckEnded:
    """The running check is gone; *return_code* is negative for a signal."""

    return_code: int


HealthEvent: TypeAlias = TimeWentOn | CheckEnded


@frozen(kw_only=True)
class StartCheck:
    """Run the check."""


@frozen(kw_only=True)
class KillCheck:
    """Kill the running check and all that it has started."""


@frozen(kw_only=True)
class TellPassing:
    """Tell that the check passes, and did not before."""


@frozen(kw_only=True)
class TellFailing:
    """Tell that the check fails, and did not before."""


HealthEffect: TypeAlias = StartCheck | KillCheck | TellPassing | TellFailing


@final
class HealthCore:
    """
    Which check runs when, and what is told.

    Not thread-safe: one shell drives it.  The first step starts the first check.

    Args:
        config: How the check is run.
        now_ns: The present.
    """

    def __init__(self, config: HealthConfig, *, now_ns: int) -> None:
        self._config = config
        self._now_ns = now_ns
        self._is_passing = False
        self._failure_count = 0
        self._start_ns: int | None = now_ns
        self._kill_ns: int | None = None

    @property
    def is_passing(self) -> bool:
        """Return whether the check is taken to pass."""
        return self._is_passing

    @property
    def failure_count(self) -> int:
        """Return how many checks in a row have failed."""
        return self._failure_count

    def next_deadline_ns(self) -> int | None:
        """Return when to be stepped, or None while a killed check has not ended."""
        return self._start_ns if self._start_ns is not None else self._kill_ns

    def step(self, event: HealthEvent, *, now_ns: int) -> tuple[HealthEffect, ...]:
        """Take *event*; return what to do, in order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects: list[HealthEffect] = []
        match event:
            case TimeWentOn():
                pass
            case CheckEnded(return_code=return_code):
                self._end(return_code, effects)
            case _:
                assert_never(event)
        if self._start_ns is not None and now_ns >= self._start_ns:
            self._start_ns = None
            self._kill_ns = now_ns + self._config.timeout_ns
            effects.append(StartCheck())
        elif self._kill_ns is not None and now_ns >= self._kill_ns:
            self._kill_ns = None
            effects.append(KillCheck())
            self._fail(effects)
        return tuple(effects)

    def _end(self, return_code: int, effects: list[HealthEffect]) -> None:
        assert self._start_ns is None
        was_killed = self._kill_ns is None
        self._kill_ns = None
        self._start_ns = self._now_ns + self._config.interval_ns
        if was_killed:
            return  # it has been counted
        if return_code != _PASSED:
            self._fail(effects)
            return
        self._failure_count = 0
        if not self._is_passing:
            self._is_passing = True
            effects.append(TellPassing())

    def _fail(self, effects: list[HealthEffect]) -> None:
        self._failure_count += 1
        if self._is_passing and self._failure_count >= self._config.failure_count_max:
            self._is_passing = False
            effects.append(TellFailing())
