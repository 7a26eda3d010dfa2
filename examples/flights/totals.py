"""
Totals per carrier, each delivery counted once: what to write, without writing it.

Theory of operation
-------------------
The leader store holds, in flat paths::

    stream                   whose batches are counted
    progress/<partition>     the newest batch counted for that partition
    totals/<carrier>         a CarrierSummary

A delivery is one commit: the carriers it adds to, and its partition's progress.  So
either both are in the store or neither is, whichever process dies.  Batch ids rise and
one batch is done before the next begins; a delivery at or below its partition's
progress is therefore one that is counted already, and the record stays as small as the
number of partitions.

Every put names the version that this leader read or wrote last.  Were its memory ever
behind the store, the commit would be refused instead of overwriting what it missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, final

import msgspec
from attrs import frozen

from election import Put, VersionedValue
from examples.flights.messages import (
    Accepted,
    CarrierSummary,
    PartitionSummary,
    Refused,
)


__all__ = ["Commit", "Plan", "TotalsCore", "add", "decode_totals", "flight_count"]

STREAM_PATH = "stream"
PROGRESS_PREFIX = "progress/"
TOTALS_PREFIX = "totals/"


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How far one partition has been counted.

    Attributes:
        batch_id: The newest batch that is counted.
        epoch: The leadership that counted it.
    """

    batch_id: int
    epoch: int


@frozen(kw_only=True)
class Commit:
    """What must be committed before *summary* may be acknowledged."""

    operations: tuple[Put, ...]
    summary: PartitionSummary
    epoch: int


Plan: TypeAlias = Commit | Accepted | Refused


def add(left: CarrierSummary, right: CarrierSummary) -> CarrierSummary:
    """Return both together."""
    return CarrierSummary(
        flight_count=left.flight_count + right.flight_count,
        cancelled_count=left.cancelled_count + right.cancelled_count,
        departure_delay_minutes=(
            left.departure_delay_minutes + right.departure_delay_minutes
        ),
        arrival_delay_minutes=left.arrival_delay_minutes + right.arrival_delay_minutes,
        distance_miles=left.distance_miles + right.distance_miles,
    )


def flight_count(carriers: Mapping[str, CarrierSummary]) -> int:
    """Return how many flights *carriers* have together."""
    return sum(summary.flight_count for summary in carriers.values())


def decode_totals(stored: Mapping[str, VersionedValue]) -> dict[str, CarrierSummary]:
    """
    Return the totals by carrier among the paths of the store, in order of carriers.

    Raises:
        msgspec.ValidationError: If the store holds something else there.
    """
    return {
        path.removeprefix(TOTALS_PREFIX): msgspec.json.decode(
            stored[path].value, type=CarrierSummary
        )
        for path in sorted(stored)
        if path.startswith(TOTALS_PREFIX)
    }


@final
class TotalsCore:
    """
    What the leader knows of the store, and what each delivery changes in it.

    Not thread-safe.  `plan` changes nothing: call `committed` once the store has
    taken the commit; if it has not, or that is not known, read the store into a new
    core.
    """

    def __init__(self, stored: Mapping[str, VersionedValue]) -> None:
        self._versions = {path: stored[path].version for path in sorted(stored)}
        self._totals = decode_totals(stored)
        self._progress = {
            int(path.removeprefix(PROGRESS_PREFIX)): msgspec.json.decode(
                stored[path].value, type=Progress
            )
            for path in sorted(stored)
            if path.startswith(PROGRESS_PREFIX)
        }
        stream = stored.get(STREAM_PATH)
        self._stream_id = None if stream is None else stream.value.decode()

    @property
    def totals(self) -> Mapping[str, CarrierSummary]:
        """Return what is counted so far, by carrier."""
        return self._totals

    def plan(self, summary: PartitionSummary, *, epoch: int) -> Plan:
        """
        Return what *summary* asks for.

        Returns:
            A `Commit` to be made; `Accepted` if it is counted already; `Refused` if
            it belongs to another stream.
        """
        if self._stream_id not in (None, summary.stream_id):
            return Refused(
                reason="other-stream",
                detail=f"these are the totals of stream {self._stream_id}",
            )
        progress = self._progress.get(summary.partition_id)
        if progress is not None and summary.batch_id <= progress.batch_id:
            return Accepted(epoch=epoch, is_repeated=True)
        values = {
            f"{PROGRESS_PREFIX}{summary.partition_id}": msgspec.json.encode(
                Progress(batch_id=summary.batch_id, epoch=epoch)
            )
        }
        if self._stream_id is None:
            values[STREAM_PATH] = summary.stream_id.encode()
        for carrier in sorted(summary.carriers):
            total = add(
                self._totals.get(carrier, CarrierSummary()), summary.carriers[carrier]
            )
            values[TOTALS_PREFIX + carrier] = msgspec.json.encode(total)
        return Commit(
            operations=tuple(
                Put(path, value, self._versions.get(path, 0))
                for path, value in sorted(values.items())
            ),
            summary=summary,
            epoch=epoch,
        )

    def committed(self, commit: Commit) -> Accepted:
        """Take note that the store has taken *commit*, and return the answer."""
        summary = commit.summary
        for operation in commit.operations:
            self._versions[operation.path] = self._versions.get(operation.path, 0) + 1
        self._stream_id = summary.stream_id
        self._progress[summary.partition_id] = Progress(
            batch_id=summary.batch_id, epoch=commit.epoch
        )
        for carrier, more in summary.carriers.items():
            self._totals[carrier] = add(
                self._totals.get(carrier, CarrierSummary()), more
            )
        return Accepted(epoch=commit.epoch, is_repeated=False)
