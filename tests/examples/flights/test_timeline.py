from __future__ import annotations

import io

from examples.flights.messages import (
    Confirmed,
    Granted,
    Receipt,
    Report,
    Retry,
    Revoked,
    Serving,
)
from examples.flights.timeline import Timeline
from nameservice import NS_PER_SECOND, SystemClock
from tests.retrieval.fakes import leader


def receipt(*, epoch: int, at_ns: int, reasons: tuple[str, ...] = ()) -> Receipt:
    """Return the receipt of a delivery of 1,200 flights."""
    return Receipt(
        partition_id=1,
        flight_count=1_200,
        process_id=77,
        epoch=epoch,
        is_repeated=bool(reasons),
        retries=tuple(
            Retry(address="http://a", epoch=1, reason=reason) for reason in reasons
        ),
        acknowledged_at_ns=at_ns,
    )


class Scene:
    """A timeline, and when it began."""

    def __init__(self) -> None:
        self.output = io.StringIO()
        self.began_at_ns = SystemClock().now_ns()
        self.timeline = Timeline(self.output)

    def lead(self, name: str, epoch: int, *, seconds: float) -> None:
        """Report that *name* came to lead that long after the beginning."""
        at_ns = self.at_ns(seconds)
        reports: list[Report] = [
            Serving(name=name, at_ns=at_ns, address=f"http://{name}"),
            Granted(name=name, at_ns=at_ns, epoch=epoch, flight_count=100 * epoch),
            Confirmed(name=name, at_ns=at_ns, epoch=epoch, address=f"http://{name}"),
        ]
        for report in reports:
            self.timeline.take_report(report)

    def at_ns(self, seconds: float) -> int:
        """Return the moment that long after the beginning."""
        return self.began_at_ns + round(seconds * NS_PER_SECOND)


def test_a_failover_is_measured_from_what_caused_it() -> None:
    """Each step of it is told in seconds after the leader was killed."""
    scene = Scene()
    timeline = scene.timeline
    scene.lead("a", 1, seconds=1)
    timeline.take_disruption(scene.at_ns(5), "collector a killed")
    assert timeline.successor is None
    scene.lead("b", 2, seconds=5.5)
    timeline.notify_leader(leader(2, "http://b"))
    timeline.take_batch(
        6,
        [
            receipt(
                epoch=2,
                at_ns=scene.at_ns(5.75),
                reasons=("connection refused", "connection refused", "not-leader"),
            )
        ],
    )
    assert timeline.successor is not None
    assert timeline.successor.epoch == 2
    summary = timeline.summary()
    assert "epoch 1: collector a at http://a" in summary
    assert "collector a killed" in summary
    assert "0.500 s later: collector b had read the store and was confirmed" in summary
    assert "0.750 s later: the first delivery was acknowledged again" in summary
    assert (
        "batch 6 partition 1: 3 attempts in vain (2 times connection refused, "
        "not-leader), then found counted already under epoch 2"
    ) in summary


def test_what_happens_is_told_at_once() -> None:
    """Each line has its seconds, who it is about, and what happened."""
    scene = Scene()
    scene.lead("a", 1, seconds=1)
    scene.timeline.take_batch(0, [receipt(epoch=1, at_ns=scene.at_ns(2))])
    scene.timeline.take_report(
        Revoked(name="a", at_ns=scene.at_ns(3), epoch=1, is_resigned=True)
    )
    lines = scene.output.getvalue().splitlines()
    texts = [line.split(maxsplit=2)[2] for line in lines]
    assert texts == [
        "collector a   serves at http://a",
        "collector a   granted epoch 1; the store holds 100 flights",
        "collector a   LEADS under epoch 1",
        "batch 0         1,200 flights in 1 delivery",
        "collector a   leads no longer: epoch 1",
    ]
    assert "no leader was killed or expired" in scene.timeline.summary()
    assert "resigned" in scene.timeline.summary()
