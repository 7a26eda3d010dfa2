"""`ReadWatch`: since when it is waited for reads, and which of them are late; pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from queryablestate.proxy.pending_reads import PendingRead


__all__ = ["ReadWatch"]


@final
class ReadWatch:
    """
    Looks at reads when they are late: those that are prompt apart from the slow ones.

    Args:
        reads: All that wait, by number: a view that stays up to date.
        slow_delay_ns: After how long one is late that is slow by its nature.
    """

    def __init__(self, reads: Mapping[int, PendingRead], *, slow_delay_ns: int) -> None:
        self._reads = reads
        self._slow_delay_ns = slow_delay_ns
        # Since when it is waited for reads; True at the first look at one.
        self._prompt: deque[tuple[int, int, bool]] = deque()
        self._slow: deque[tuple[int, int, bool]] = deque()

    def begin(
        self, read_id: int, read: PendingRead, now_ns: int, *, is_first: bool
    ) -> None:
        """Have a read looked at when it is late."""
        watched = self._prompt if read.is_prompt else self._slow
        watched.append((now_ns, read_id, is_first))

    def next_deadline_ns(self, *, delay_ns: int) -> int | None:
        """Return when the next read is late, or None if none is watched."""
        prompt, slow = self._prompt, self._slow
        for watched in (prompt, slow):
            while watched and watched[0][1] not in self._reads:
                watched.popleft()  # its read is over
        if not slow:
            return prompt[0][0] + delay_ns if prompt else None
        late_ns = slow[0][0] + self._slow_delay_ns
        return min(late_ns, prompt[0][0] + delay_ns) if prompt else late_ns

    def take_late(
        self, *, delay_ns: int, now_ns: int
    ) -> Iterator[tuple[int, PendingRead, bool]]:
        """
        Yield the reads that are late, each once; more may be watched meanwhile.

        Args:
            delay_ns: After how long a prompt one is late.
            now_ns: The time.

        Yields:
            The number of the read, the read, and whether this is the first look at it.
        """
        for watched, late_after_ns in (
            (self._prompt, delay_ns),
            (self._slow, self._slow_delay_ns),
        ):
            while watched and watched[0][0] + late_after_ns <= now_ns:
                _, read_id, is_first = watched.popleft()
                read = self._reads.get(read_id)
                if read is not None:
                    yield read_id, read, is_first

    def clear(self) -> None:
        """Forget everything."""
        self._prompt.clear()
        self._slow.clear()
