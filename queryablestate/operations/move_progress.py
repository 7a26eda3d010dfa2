"""
`MoveProgress`: how far moves of key groups are, and how long they may take; pure.

What is asked again and again (how many copies are left, how much was fetched) becomes
counts that only go forward, and how fast rows come.  Of that only the last half minute
counts: moves share disks and network with a job that is not always equally busy.  How
long it may take yet is what the proxy leader says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, final

from attrs import define, frozen

from nameservice.clock import NS_PER_SECOND, seconds_to_ns


__all__ = ["MoveFigures", "MoveProgress"]

_WINDOW_SECONDS: Final = 30.0


@final
@frozen(kw_only=True)
class MoveFigures:
    """
    How far moves are.

    Attributes:
        planned_count: Copies of key groups that are to be made in all, or with a drain
            those that the node is to be rid of.
        done_count: How many of them are done.
        size_bytes: How much was fetched since somebody began to watch.
        elapsed_seconds: How long that is ago.
        size_bytes_per_second: How fast that went in the last half minute; None before
            anything is known.
        seconds_left: How long it may take yet: the longest of its jobs
            (`RescalingInformation`); None before anything is known.
    """

    planned_count: int
    done_count: int
    size_bytes: int
    elapsed_seconds: float
    size_bytes_per_second: float | None
    seconds_left: float | None

    @property
    def left_count(self) -> int:
        """Return how many are to be done yet."""
        return self.planned_count - self.done_count


@define
class _Subject:
    """
    What was last said of one job.

    Attributes:
        planned_count: What there was to do when its plan was made.
        done_count: Done before we looked, and since.
        left_count: Still to be done.
    """

    planned_count: int
    done_count: int
    left_count: int


class _Observed(NamedTuple):
    at_ns: int
    size_bytes: int


@final
class MoveProgress:
    """
    Makes figures of what is told of moves, time after time.

    Args:
        window_seconds: How far back the pace looks.
    """

    def __init__(self, *, window_seconds: float = _WINDOW_SECONDS) -> None:
        self._window_ns = seconds_to_ns(window_seconds)
        self._subjects: dict[str, _Subject] = {}
        self._fetched: dict[tuple[str, str], int] = {}
        self._size_bytes = 0
        self._began_ns: int | None = None
        self._observed: deque[_Observed] = deque()

    def observe(
        self,
        *,
        planned_counts: Mapping[str, int],
        left_counts: Mapping[str, int],
        fetched_sizes: Mapping[tuple[str, str], int],
        seconds_left: float | None,
        now_ns: int,
    ) -> MoveFigures:
        """
        Take note of how things are, and return the figures.

        Args:
            planned_counts: For each job what there was to do when its plan was made.
            left_counts: For each job what is left of that.
            fetched_sizes: For each job and node what it has fetched since it started,
                bytes; it begins at 0 again when the node does.
            seconds_left: How long it may take yet, or None.
            now_ns: The time; never falls.
        """
        if self._began_ns is None:
            self._began_ns = now_ns
        self._note_counts(planned_counts, left_counts)
        self._note_sizes(fetched_sizes)
        done_count = sum(one.done_count for one in self._subjects.values())
        left_count = sum(one.left_count for one in self._subjects.values())
        now = _Observed(now_ns, self._size_bytes)
        self._observed.append(now)
        # One that is older than the window stays, so that it is covered as a whole.
        while (
            len(self._observed) > 2
            and now_ns - self._observed[1].at_ns >= self._window_ns
        ):
            self._observed.popleft()
        then = self._observed[0]
        window_seconds = (now_ns - then.at_ns) / NS_PER_SECOND
        return MoveFigures(
            planned_count=done_count + left_count,
            done_count=done_count,
            size_bytes=self._size_bytes,
            elapsed_seconds=(now_ns - self._began_ns) / NS_PER_SECOND,
            size_bytes_per_second=(
                (now.size_bytes - then.size_bytes) / window_seconds
                if window_seconds > 0
                else None
            ),
            seconds_left=seconds_left,
        )

    def _note_counts(
        self, planned_counts: Mapping[str, int], left_counts: Mapping[str, int]
    ) -> None:
        for name, left_count in left_counts.items():
            subject = self._subjects.get(name)
            if subject is None:
                # A job with nothing to do has no part in what is shown, though it
                # remembers its last plan.
                planned_count = planned_counts.get(name, 0)
                done_count = max(0, planned_count - left_count) if left_count else 0
                self._subjects[name] = _Subject(planned_count, done_count, left_count)
                continue
            # More may be left than before: a copy was lost, or there is a new plan.
            # A new plan may also leave less, as when a node went away.  Copies that it
            # does not want any more were not made.
            if planned_counts.get(name, 0) == subject.planned_count:
                subject.done_count += max(0, subject.left_count - left_count)
            subject.planned_count = planned_counts.get(name, 0)
            subject.left_count = left_count
        for name, subject in self._subjects.items():
            if name not in left_counts:  # whatever was left of it is done
                subject.done_count += subject.left_count
                subject.left_count = 0

    def _note_sizes(self, fetched_sizes: Mapping[tuple[str, str], int]) -> None:
        for name, size_bytes in fetched_sizes.items():
            # A node that is seen for the first time may have fetched for earlier moves.
            before = self._fetched.get(name, size_bytes)
            has_restarted = size_bytes < before
            self._size_bytes += size_bytes if has_restarted else size_bytes - before
            self._fetched[name] = size_bytes
