"""What the store holds beside what the file holds: equal, or not."""

from __future__ import annotations

from collections.abc import Mapping

from examples.flights.messages import CarrierSummary
from examples.flights.totals import add


__all__ = ["comparison"]


def comparison(
    stored: Mapping[str, CarrierSummary],
    counted: Mapping[str, CarrierSummary],
    names: Mapping[str, str],
) -> str:
    """Return a table of both, by carrier, with a mark where they differ."""
    heading = (
        f"  {'carrier':<32}{'flights':>9}{'cancelled':>11}{'departure':>13}"
        f"{'arrival':>12}{'miles':>14}"
    )
    lines = ["", "Totals in the leader store (delays in minutes)", heading]
    for carrier in sorted({*stored, *counted}):
        left = stored.get(carrier, CarrierSummary())
        right = counted.get(carrier, CarrierSummary())
        name = f"{carrier} {names.get(carrier, '')}"
        lines.append(_row(name, left))
        if left != right:
            lines.append(_row("   DIFFERS: the file has", right))
    lines += [
        _row("all of them", _sum(stored)),
        _row("a plain count of the file", _sum(counted)),
    ]
    return "\n".join(lines)


def _row(name: str, summary: CarrierSummary) -> str:
    return (
        f"  {name:<32}{summary.flight_count:>9,}{summary.cancelled_count:>11,}"
        f"{summary.departure_delay_minutes:>13,}{summary.arrival_delay_minutes:>12,}"
        f"{summary.distance_miles:>14,}"
    )


def _sum(carriers: Mapping[str, CarrierSummary]) -> CarrierSummary:
    total = CarrierSummary()
    for summary in carriers.values():
        total = add(total, summary)
    return total
