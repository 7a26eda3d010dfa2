"""
What crosses a process boundary in the demo: deliveries, answers, receipts, reports.

All of it is JSON, checked against these types wherever it comes in.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct


__all__ = [
    "CARRIER_COUNT_MAX",
    "PARTITION_COUNT_MAX",
    "Accepted",
    "Answer",
    "CarrierSummary",
    "Closed",
    "Confirmed",
    "Failed",
    "Granted",
    "Held",
    "PartitionSummary",
    "Receipt",
    "RefusalReason",
    "Refused",
    "Report",
    "Retry",
    "Revoked",
    "Serving",
]

# A commit of the leader store has at most 1,000 operations: one per carrier and two
# more fit easily.
CARRIER_COUNT_MAX: Final = 500
PARTITION_COUNT_MAX: Final = 1_000

Carrier: TypeAlias = Annotated[str, Meta(pattern="^[A-Z0-9]{2,3}$")]
Natural: TypeAlias = Annotated[int, Meta(ge=0)]


class CarrierSummary(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Some flights of one carrier, added up.

    Attributes:
        flight_count: How many, the cancelled ones included.
        cancelled_count: How many never departed.
        departure_delay_minutes: Sum over those that departed; early is negative.
        arrival_delay_minutes: Sum over those whose arrival is known.
        distance_miles: Sum over all of them.
    """

    flight_count: Natural = 0
    cancelled_count: Natural = 0
    departure_delay_minutes: int = 0
    arrival_delay_minutes: int = 0
    distance_miles: Natural = 0


class PartitionSummary(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One partition of one micro-batch, added up by carrier: what is delivered.

    Attributes:
        stream_id: Which stream the batch ids count; one checkpoint has one.
        batch_id: Rises within the stream; a repeated batch has the id it had.
        partition_id: Which part of the batch; a repeated batch has the same parts.
        carriers: What was in it, by carrier.
    """

    stream_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    batch_id: Natural
    partition_id: Annotated[int, Meta(ge=0, lt=PARTITION_COUNT_MAX)]
    carriers: Annotated[
        dict[Carrier, CarrierSummary], Meta(max_length=CARRIER_COUNT_MAX)
    ]


class Accepted(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="accepted"
):
    """
    The delivery is counted, and the store has it.

    Attributes:
        epoch: Under which leadership this was answered.
        is_repeated: Whether it had been counted before; then nothing was added.
    """

    epoch: int
    is_repeated: bool


RefusalReason: TypeAlias = Literal[
    "not-leader",  # ask who leads, and deliver there
    "stale-epoch",  # led until a moment ago: the store refused the commit
    "undecided",  # nothing was written; try again
    "unknown-outcome",  # it may be counted or not; a repetition tells
    "other-stream",  # never to be counted here
    "malformed",  # not a delivery at all
]


class Refused(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="refused"
):
    """The delivery is not acknowledged; *reason* says what may be done about it."""

    reason: RefusalReason
    detail: str


Answer: TypeAlias = Accepted | Refused


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One attempt to deliver that came to nothing.

    Attributes:
        address: Where it was sent, or an empty string if no leader was known.
        epoch: Of the leader that it was sent to, or 0.
        reason: Why it must be tried again.
    """

    address: str
    epoch: int
    reason: str


class Receipt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How one delivery went, from the task back to the driver.

    Attributes:
        partition_id: Which part of the batch.
        flight_count: How many flights were in it.
        process_id: Of the process that delivered it.
        epoch: Of the leadership that acknowledged it.
        is_repeated: Whether it turned out to be counted already.
        retries: What failed before, in order.
        acknowledged_at_ns: When, on the clock of this machine.
    """

    partition_id: int
    flight_count: int
    process_id: int
    epoch: int
    is_repeated: bool
    retries: tuple[Retry, ...]
    acknowledged_at_ns: int


# -- what a collector reports to its parent --------------------------------------------


class Serving(Struct, frozen=True, kw_only=True, tag="serving"):
    """The endpoint takes deliveries at *address*."""

    name: str
    at_ns: int
    address: str


class Granted(Struct, frozen=True, kw_only=True, tag="granted"):
    """Leadership was granted, and the store was read: *flight_count* were there."""

    name: str
    at_ns: int
    epoch: int
    flight_count: int


class Confirmed(Struct, frozen=True, kw_only=True, tag="confirmed"):
    """The leadership is confirmed: from now on retrievers are told of *address*."""

    name: str
    at_ns: int
    epoch: int
    address: str


class Held(Struct, frozen=True, kw_only=True, tag="held"):
    """A delivery was committed to the store, and its answer is held back."""

    name: str
    at_ns: int
    epoch: int
    batch_id: int
    partition_id: int


class Revoked(Struct, frozen=True, kw_only=True, tag="revoked"):
    """The leadership is over; *is_resigned* says that the collector ended it itself."""

    name: str
    at_ns: int
    epoch: int
    is_resigned: bool


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """Something went wrong, and the collector goes on."""

    name: str
    at_ns: int
    error: str


class Closed(Struct, frozen=True, kw_only=True, tag="closed"):
    """The collector has left the election and ended; it reports nothing more."""

    name: str
    at_ns: int


Report: TypeAlias = Serving | Granted | Confirmed | Held | Revoked | Failed | Closed
