"""What happened when: told as it happens, and summed up at the end."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final, TextIO, assert_never, final

from attrs import define

from examples.flights.messages import (
    Closed,
    Confirmed,
    Failed,
    Granted,
    Held,
    Receipt,
    Report,
    Revoked,
    Serving,
)
from nameservice import NS_PER_SECOND, SystemClock
from retrieval import LeaderInformation


__all__ = ["LeadershipRecord", "Timeline"]

_WHO_WIDTH: Final = 14
_SILENCE_SECONDS_MAX: Final = 10.0

_INTRODUCTION: Final = """\
Who speaks below, and when (seconds since the beginning):
  data          writes a year of flights as files, which Spark reads as a stream
  name service  knows who leads, and where
  proxy         p and q contend to be the entry point to queryable state
  node          1 to 3 keep the state: a row for each aircraft, route and carrier
  collector     a and b contend for the job "flights"; the leader counts the flights
  retriever     tells the driver who leads
  spark, batch  the stream: its tasks find the leader and deliver to it
  asker         a reader that knows the URL of the name service and nothing else
  drivers       one and two of Spark: one leads, and the other one stands by
  DISRUPTION    what is done to the leader, RESCALED what is done to the nodes
Epochs are numbered from the first one that is seen.
"""


@define(kw_only=True)
class LeadershipRecord:
    """
    One leadership, as it is learnt of.

    Attributes:
        epoch: Its fencing token.
        name: Whose it is.
        address: Where that collector is reached.
        flight_count: How many flights the store held when it was granted.
        confirmed_at_ns: When it was confirmed.
        told_at_ns: When the driver's retriever was told of it, or None.
        delivered_at_ns: When it first acknowledged a delivery, or None.
        end: How it ended, or an empty string while it lasts.
    """

    epoch: int
    name: str
    address: str
    flight_count: int
    confirmed_at_ns: int
    told_at_ns: int | None = None
    delivered_at_ns: int | None = None
    end: str = ""


@define(kw_only=True)
class _Delivery:
    batch_id: int
    receipt: Receipt


@final
class Timeline:
    """
    Takes what happens from any thread, prints it, and keeps what the summary needs.

    Times are those of the machine's clock since boot, which all of its processes
    share, and are shown in seconds since the timeline began.
    """

    def __init__(self, output: TextIO = sys.stdout) -> None:
        self._output = output
        self._clock = SystemClock()
        self._began_at_ns = self._clock.now_ns()
        self._lock = threading.Lock()
        self._flight_counts: dict[int, int] = {}
        self._told_at_ns: dict[int, int] = {}
        self._leaderships: dict[int, LeadershipRecord] = {}
        self._retried: list[_Delivery] = []
        self._delivery_count = 0
        self._repeated_count = 0
        self._process_ids: set[int] = set()
        self._disrupted_at_ns: int | None = None
        self._disrupted_epoch: int | None = None
        self._first_epoch: int | None = None
        self._said_at_ns = self._began_at_ns

    def introduce(self) -> None:
        """Print who will speak."""
        print(_INTRODUCTION, file=self._output, flush=True)

    @contextlib.contextmanager
    def never_silent(self, seconds_max: float = _SILENCE_SECONDS_MAX) -> Iterator[None]:
        """Print that work goes on whenever nothing was said for *seconds_max*."""
        ended = threading.Event()

        def reassure() -> None:
            while not ended.wait(seconds_max / 10):
                with self._lock:
                    silent_ns = self._clock.now_ns() - self._said_at_ns
                    if silent_ns > seconds_max * NS_PER_SECOND:
                        self._say("demo", "is still at work", None)

        thread = threading.Thread(target=reassure, name="reassuring", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # -- what happens --------------------------------------------------------------

    def say(self, who: str, text: str, at_ns: int | None = None) -> None:
        """Print that *text* happened to *who*, now or at *at_ns*."""
        with self._lock:
            self._say(who, text, at_ns)

    def take_report(self, report: Report) -> None:
        """Take what a collector reports."""
        who = f"collector {report.name}"
        with self._lock:
            match report:
                case Serving(address=address):
                    self._say(who, f"serves at {address}", report.at_ns)
                case Granted(epoch=epoch, flight_count=count):
                    self._flight_counts[epoch] = count
                    self._say(
                        who,
                        f"granted epoch {self._short(epoch)}; "
                        f"the store holds {count:,} flights",
                        report.at_ns,
                    )
                case Confirmed(epoch=epoch, address=address):
                    self._leaderships[epoch] = LeadershipRecord(
                        epoch=epoch,
                        name=report.name,
                        address=address,
                        flight_count=self._flight_counts[epoch],
                        confirmed_at_ns=report.at_ns,
                    )
                    self._say(
                        who, f"LEADS under epoch {self._short(epoch)}", report.at_ns
                    )
                case Held(batch_id=batch_id, partition_id=partition_id):
                    self._say(
                        who,
                        f"has committed batch {batch_id} partition {partition_id}, "
                        "and holds the answer back",
                        report.at_ns,
                    )
                case Revoked(epoch=epoch, is_resigned=is_resigned):
                    record = self._leaderships.get(epoch)
                    if record is not None and not record.end:
                        record.end = "resigned" if is_resigned else "revoked"
                    self._say(
                        who,
                        f"leads no longer: epoch {self._short(epoch)}",
                        report.at_ns,
                    )
                case Failed(error=error):
                    self._say(who, f"failed: {error}", report.at_ns)
                case Closed():
                    self._say(who, "has ended", report.at_ns)
                case _:
                    assert_never(report)

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Take what the driver's retriever is told (a `LeaderRetrievalListener`)."""
        at_ns = self._clock.now_ns()
        with self._lock:
            if leader is None:
                self._say("retriever", "is told that there is no leader", at_ns)
                return
            self._told_at_ns.setdefault(leader.epoch, at_ns)
            self._say(
                "retriever",
                f"is told of {leader.address}, epoch {self._short(leader.epoch)}",
                at_ns,
            )

    def handle_error(self, error: Exception) -> None:
        """Take an error of the driver's retriever."""
        self.say("retriever", f"failed: {error}")

    def take_disruption(self, at_ns: int, text: str) -> None:
        """Take what was done to the leader, when it was done."""
        with self._lock:
            self._disrupted_at_ns = at_ns
            if self._leaderships:
                self._disrupted_epoch = max(self._leaderships)
                self._leaderships[self._disrupted_epoch].end = text
            self._say("DISRUPTION", text, at_ns)

    def take_batch(self, batch_id: int, receipts: Sequence[Receipt]) -> None:
        """Take how the deliveries of a batch went."""
        with self._lock:
            for receipt in receipts:
                self._delivery_count += 1
                self._repeated_count += receipt.is_repeated
                self._process_ids.add(receipt.process_id)
                if receipt.retries:
                    self._retried.append(_Delivery(batch_id=batch_id, receipt=receipt))
                record = self._leaderships.get(receipt.epoch)
                if record is not None:
                    record.delivered_at_ns = min(
                        record.delivered_at_ns or receipt.acknowledged_at_ns,
                        receipt.acknowledged_at_ns,
                    )
            flight_count = sum(receipt.flight_count for receipt in receipts)
            retry_count = sum(len(receipt.retries) for receipt in receipts)
            repeated = sum(receipt.is_repeated for receipt in receipts)
            text = f"{flight_count:>7,} flights in " + _counted(
                len(receipts), "delivery", "deliveries"
            )
            if retry_count:
                text += f", {_counted(retry_count, 'attempt', 'attempts')} in vain"
            if repeated:
                text += f", {repeated} found counted already"
            self._say(f"batch {batch_id}", text, None)

    # -- what it comes to ----------------------------------------------------------

    @property
    def leaderships(self) -> Sequence[LeadershipRecord]:
        """Return the confirmed leaderships in the order of their epochs."""
        with self._lock:
            for epoch, record in self._leaderships.items():
                record.told_at_ns = self._told_at_ns.get(epoch)
            return [self._leaderships[epoch] for epoch in sorted(self._leaderships)]

    @property
    def leader_name(self) -> str | None:
        """Return who was confirmed last, or None."""
        leaderships = self.leaderships
        return leaderships[-1].name if leaderships else None

    @property
    def was_disrupted(self) -> bool:
        """Return whether a leader was killed or expired."""
        return self._disrupted_at_ns is not None

    @property
    def successor(self) -> LeadershipRecord | None:
        """Return the leadership that followed the disrupted one, or None."""
        for record in self.leaderships:
            if self._disrupted_epoch is not None and (
                record.epoch > self._disrupted_epoch
            ):
                return record
        return None

    def summary(self) -> str:
        """Return leaderships, failover and repeated deliveries as text."""
        lines = ["", "Leaderships"]
        for record in self.leaderships:
            lines += self._leadership_lines(record)
        lines += ["", "Failover", *self._failover_lines(), ""]
        lines.append(
            f"Deliveries: {self._delivery_count} from "
            f"{_counted(len(self._process_ids), 'process', 'processes')}, "
            f"{len(self._retried)} of them tried again, "
            f"{self._repeated_count} found counted already"
        )
        lines += [
            _retried_line(delivery, self._short(delivery.receipt.epoch))
            for delivery in self._retried
        ]
        return "\n".join(lines)

    def _leadership_lines(self, record: LeadershipRecord) -> list[str]:
        seconds = self._seconds(record.confirmed_at_ns)
        count = record.flight_count
        epoch = self._short(record.epoch)
        return [
            f"  epoch {epoch}: collector {record.name} at {record.address}",
            f"    confirmed at {seconds:.2f} s, {count:,} flights from the store",
            f"    {record.end or 'led until the end'}",
        ]

    def _failover_lines(self) -> list[str]:
        successor = self.successor
        if self._disrupted_at_ns is None:
            return ["  no leader was killed or expired"]
        if successor is None:
            return ["  no contender took over"]
        steps = [
            (
                successor.confirmed_at_ns,
                f"collector {successor.name} had read the store and was confirmed",
            ),
            (successor.told_at_ns, "the driver's retriever was told"),
            (successor.delivered_at_ns, "the first delivery was acknowledged again"),
        ]
        known = sorted((at_ns, text) for at_ns, text in steps if at_ns is not None)
        return [
            f"  {(at_ns - self._disrupted_at_ns) / NS_PER_SECOND:.3f} s later: {text}"
            for at_ns, text in known
        ]

    def _short(self, epoch: int) -> int:
        """Return which epoch it is, from 1 for the first that is seen."""
        if self._first_epoch is None:
            self._first_epoch = epoch
        return epoch - self._first_epoch + 1

    def _say(self, who: str, text: str, at_ns: int | None) -> None:
        self._said_at_ns = self._clock.now_ns()
        seconds = self._seconds(self._clock.now_ns() if at_ns is None else at_ns)
        print(
            f"{seconds:8.2f} s  {who:<{_WHO_WIDTH}}{text}",
            file=self._output,
            flush=True,
        )

    def _seconds(self, at_ns: int) -> float:
        return (at_ns - self._began_at_ns) / NS_PER_SECOND


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _retried_line(delivery: _Delivery, epoch: int) -> str:
    receipt = delivery.receipt
    outcome = "found counted already" if receipt.is_repeated else "counted"
    attempts = _counted(len(receipt.retries), "attempt", "attempts")
    return (
        f"  batch {delivery.batch_id} partition {receipt.partition_id}: "
        f"{attempts} in vain ({_reasons(receipt)}), "
        f"then {outcome} under epoch {epoch}"
    )


def _reasons(receipt: Receipt) -> str:
    """Return why attempts failed, each reason once, in order."""
    counts: dict[str, int] = {}
    for retry in receipt.retries:
        counts[retry.reason] = counts.get(retry.reason, 0) + 1
    return ", ".join(
        reason if count == 1 else f"{count} times {reason}"
        for reason, count in counts.items()
    )
