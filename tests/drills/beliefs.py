"""
Who believed when that it led, and whether two ever did at once.

Theory of operation
-------------------
A process that contends asks ``has_leadership`` over and over, and keeps for each of its
leaderships one row of a *journal*: a file in shared memory, so that what it saw is
there after SIGKILL too, and costs no message.

A "yes" tells that the process believed at some moment between a clock reading before
the question and one after the answer.  A *span* goes from the reading after the first
yes to the one before the last: both ends are inside the belief, so an overlap of two
spans is a proof, and never an effect of slow sampling.

A span bridges whatever happened between its ends, such as a stop of the process.  That
is right: an epoch that was believed before and after was never given up in between, so
no other may have believed meanwhile (rule E4).

All processes of a drill run on one machine, so their CLOCK_BOOTTIME compares.
"""

from __future__ import annotations

import itertools
import mmap
from collections import defaultdict
from typing import TYPE_CHECKING, Final, final
from uuid import UUID

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from election import LeaderSession


__all__ = ["Journal", "Span", "handovers_ns", "overlaps", "read_journal"]

_COLUMN_COUNT: Final = 8
_ROW_COUNT_MAX: Final = 2048
_SIZE_BYTES: Final = _ROW_COUNT_MAX * _COLUMN_COUNT * 8
_EPOCH, _JOB_INDEX, _ID_HIGH, _ID_LOW, _FIRST, _LAST, _COUNT = range(7)
_LOW_BITS: Final = (1 << 64) - 1


@frozen(kw_only=True)
class Span:
    """
    One leadership as its holder believed in it.

    Attributes:
        holder: The name of the process.
        job_id: What was led.
        epoch: The leadership's order.
        leader_session_id: The leadership's identity.
        first_ns: A moment just after the first yes.
        last_ns: A moment just before the last yes; below *first_ns* if there was one.
        count: How often the answer was yes, at least 1.
    """

    holder: str
    job_id: str
    epoch: int
    leader_session_id: UUID
    first_ns: int
    last_ns: int
    count: int = 1


@final
class Journal:
    """
    The rows of one process; one thread writes them.

    Args:
        path: A file that is made, or overwritten.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_SIZE_BYTES))
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), _SIZE_BYTES)
        self._cells = memoryview(memory).cast("Q")
        self._rows: dict[UUID, int] = {}

    def believed(
        self, job_index: int, session: LeaderSession, *, before_ns: int, after_ns: int
    ) -> None:
        """Take note of a yes between two readings of the clock."""
        cells = self._cells
        row = self._rows.get(session.leader_session_id)
        if row is None:
            assert len(self._rows) < _ROW_COUNT_MAX, "the journal is full"
            row = len(self._rows) * _COLUMN_COUNT
            self._rows[session.leader_session_id] = row
            identity = session.leader_session_id.int
            cells[row + _EPOCH] = session.epoch
            cells[row + _JOB_INDEX] = job_index
            cells[row + _ID_HIGH] = identity >> 64
            cells[row + _ID_LOW] = identity & _LOW_BITS
            cells[row + _FIRST] = after_ns
        # One store of eight bytes each, the count last: a kill in between leaves a row
        # that is a little older, and never a false one.
        cells[row + _LAST] = before_ns
        cells[row + _COUNT] += 1


def read_journal(path: Path, *, holder: str, job_ids: Sequence[str]) -> Iterator[Span]:
    """
    Yield what a process wrote into its journal; best read when it has ended.

    Args:
        path: The journal.
        holder: The process.
        job_ids: What it contended for, in the order of its job indexes.
    """
    cells = memoryview(path.read_bytes()).cast("Q")
    for row in range(0, len(cells), _COLUMN_COUNT):
        if cells[row + _COUNT] == 0:
            return
        identity = cells[row + _ID_HIGH] << 64 | cells[row + _ID_LOW]
        yield Span(
            holder=holder,
            job_id=job_ids[cells[row + _JOB_INDEX]],
            epoch=cells[row + _EPOCH],
            leader_session_id=UUID(int=identity),
            first_ns=cells[row + _FIRST],
            last_ns=cells[row + _LAST],
            count=cells[row + _COUNT],
        )


def overlaps(spans: Iterable[Span]) -> list[str]:
    """
    Return in words each proof that two believed at once, or in the wrong order.

    Of one job, one that believes in a higher epoch begins after everybody has ended
    with the lower ones, and an epoch is one leadership of one holder.
    """
    found = []
    for ordered in _by_job(spans):
        latest = ordered[0]
        for span in ordered[1:]:
            if span.epoch == latest.epoch:
                found.append(f"one epoch, two leaderships: {latest} and {span}")
            elif latest.last_ns > span.first_ns:
                overlap_ns = latest.last_ns - span.first_ns
                found.append(
                    f"{latest} was still believed {overlap_ns / 1e6:.3f} ms after "
                    f"{span} had begun"
                )
            if span.last_ns >= latest.last_ns:
                latest = span
    return found


def handovers_ns(spans: Iterable[Span]) -> list[int]:
    """Return how long none was seen to believe between successive leaderships."""
    return [
        later.first_ns - earlier.last_ns
        for ordered in _by_job(spans)
        for earlier, later in itertools.pairwise(ordered)
    ]


def _by_job(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Yield the spans of each job, by rising epoch."""
    by_job: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_job[span.job_id].append(span)
    for job_id in sorted(by_job):
        yield sorted(by_job[job_id], key=lambda span: (span.epoch, span.holder))
