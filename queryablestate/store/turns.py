"""
`FairTurns`: what waits for the writing thread of a store, in turns by job; pure.

What is asked for one job is done in that order.  Between jobs there are turns, so that
many chunks, or many entries, of one job do not delay the commits of another.  What
concerns the whole store comes after all that was asked for before it, and before all
that is asked for after it.

Chunks are staged together, also those of several jobs: one wait for the disk for all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, final


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["FairTurns"]

T = TypeVar("T")

_Lane: TypeAlias = deque[tuple[T, int | None]]


@final
class FairTurns(Generic[T]):
    """
    Tasks that wait, by job.  Not thread-safe.

    Args:
        size_bytes_max: Of the chunks that are taken together, in equal parts for the
            jobs that wait; one chunk of a job is taken whatever its size.
        count_max: How many chunks are taken together.
    """

    def __init__(self, *, size_bytes_max: int, count_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._count_max = count_max
        # Each section is of tasks that may change places; a section of the whole store
        # has one task, under None.
        self._sections: deque[dict[str | None, _Lane[T]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._sections)

    def put(
        self, task: T, *, job_id: str | None = None, size_bytes: int | None = None
    ) -> None:
        """
        Have *task* wait.

        Args:
            task: What is to be done.
            job_id: For which job; None for the whole store.
            size_bytes: Of a chunk; None for what is done alone.
        """
        if job_id is None or not self._sections or None in self._sections[-1]:
            self._sections.append({})
        self._sections[-1].setdefault(job_id, deque()).append((task, size_bytes))

    def take(self) -> Sequence[T]:
        """Take what is to be done next: one task, or chunks that are done together."""
        if not self._sections:
            return []
        lanes = self._sections[0]
        job_id, lane = next(iter(lanes.items()))
        if lane[0][1] is None:
            taken = [lane.popleft()[0]]
            self._end_turn(lanes, job_id)
        else:
            taken = self._take_chunks(lanes)
        if not lanes:
            self._sections.popleft()
        return taken

    def take_all(self) -> Sequence[T]:
        """Take everything, to do none of it."""
        left = [
            task
            for lanes in self._sections
            for lane in lanes.values()
            for task, _ in lane
        ]
        self._sections.clear()
        return left

    def _take_chunks(self, lanes: dict[str | None, _Lane[T]]) -> list[T]:
        """Take chunks of every job whose next task is one, as many of each."""
        share_bytes = self._size_bytes_max // len(lanes)
        taken: list[T] = []
        size_bytes = 0
        for job_id, lane in list(lanes.items()):
            end_bytes = size_bytes + share_bytes
            count = 0
            while lane and len(taken) < self._count_max:
                task, task_bytes = lane[0]
                if task_bytes is None or size_bytes >= self._size_bytes_max:
                    break
                if count and size_bytes + task_bytes > end_bytes:
                    break
                taken.append(task)
                lane.popleft()
                size_bytes += task_bytes
                count += 1
            if count:
                self._end_turn(lanes, job_id)
        return taken

    def _end_turn(self, lanes: dict[str | None, _Lane[T]], job_id: str | None) -> None:
        """Put a job behind the others, if anything of it is left."""
        lane = lanes.pop(job_id)
        if lane:
            lanes[job_id] = lane
