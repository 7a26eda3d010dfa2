"""
How long the core has waited: time in which it did not run does not count (rule E9).

A core that was not run finds every deadline passed and every heartbeat unread.  So it
keeps two clocks.  *Real* time is what the shell shows; the end of a holder's belief is
counted in it, and nothing moves that.  *Patient* time stands still during a stall, and
all patience with clients is counted in it: silence, closed connections, confirmations,
claims.  A stall costs one addition, however many sessions there are.

What was sent during a stall is read a little after it.  So a wait is longer by as much
again as stalls have taken from it, but by its *grace* at the most.  A wait that began
at a real moment is therefore over after::

    wait + E + min(E, grace)        E: what stalls took since the wait began

whatever recurs: E is never more than the stalls themselves, and the grace is constant.
A stall is what exceeds *tick_ns*, the server's own setting: no client's lease changes
what another's waits take.
"""

from __future__ import annotations

from typing import final

from attrs import frozen


__all__ = ["Moment", "PatientClock"]


@frozen
class Moment:
    """
    When something happened.

    Attributes:
        patient_ns: On the patient clock.
        excused_ns: What stalls had taken by then.
    """

    patient_ns: int
    excused_ns: int = 0

    @property
    def real_ns(self) -> int:
        """Return when it happened on the clock of the shell."""
        return self.patient_ns + self.excused_ns

    def due_ns(self, wait_ns: int, *, grace_ns: int, now: Moment) -> int:
        """
        Return when, on the patient clock, a wait is over that began at this moment.

        Args:
            wait_ns: How long it is without any stall.
            grace_ns: What it is longer by at the most.
            now: The present; stalls that are still to come make it longer yet.
        """
        excused_ns = now.excused_ns - self.excused_ns
        return self.patient_ns + wait_ns + min(excused_ns, grace_ns)


@final
class PatientClock:
    """
    Real time less the stalls.

    Args:
        now_ns: When it begins.
        tick_ns: What is late by no more than this is no stall.
    """

    def __init__(self, now_ns: int, *, tick_ns: int) -> None:
        self._tick_ns = tick_ns
        self._now = Moment(now_ns)
        self._stall_count = 0

    @property
    def now(self) -> Moment:
        """Return the present."""
        return self._now

    @property
    def stall_count(self) -> int:
        """Return how many stalls there were."""
        return self._stall_count

    @property
    def excused_ns(self) -> int:
        """Return how long they were in sum."""
        return self._now.excused_ns

    def advance(self, now_ns: int, *, due_ns: int | None) -> None:
        """
        Move time on to the real *now_ns*.

        Args:
            now_ns: When it is.
            due_ns: When the core should have been stepped, or None if nothing waited.
        """
        excused_ns = self._now.excused_ns
        if due_ns is not None and now_ns - due_ns > self._tick_ns:
            excused_ns += now_ns - due_ns
            self._stall_count += 1
        self._now = Moment(now_ns - excused_ns, excused_ns)
