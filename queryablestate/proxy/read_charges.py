"""
Who pays for the rows that nodes read, and for how many; pure (rules B2, C2).

A question pays for some rows beforehand.  Its node says how many it has read, and the
rest is charged then: also when the asker does not wait for the answer any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from queryablestate.wire.questions import ScanRows, WalkRows


if TYPE_CHECKING:
    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.access import Caller
    from queryablestate.proxy.rate_limit import RateLimiter
    from queryablestate.wire.questions import Ask


__all__ = ["Charge", "ReadCharges", "charge_of"]

_UNPAID_COUNT_MAX: Final = 100_000
"""Questions whose askers have gone: each is settled when its node answers, or goes."""


@final
@frozen
class Charge:
    """Who pays for the rows that a node reads, and how many are paid for."""

    caller: str
    state: str
    row_count: int


def charge_of(caller: Caller, ask: Ask, location: KvStateLocation) -> Charge:
    """Return what a question pays beforehand: a page pays for what it returns."""
    is_page = isinstance(ask.operation, ScanRows | WalkRows)
    return Charge(
        caller.name,
        f"{location.job_id}/{location.state_name}",
        min(ask.key_count, 1) if is_page else ask.key_count,
    )


@final
class ReadCharges:
    """
    What is still to be paid.

    Args:
        limiter: Is told what reads have cost.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._unpaid: dict[int, tuple[LinkId, Charge]] = {}

    def __len__(self) -> int:
        return len(self._unpaid)

    def pay(self, charge: Charge, row_count: int, now_ns: int) -> None:
        """Charge the rows that were read beyond those that are paid for."""
        count = row_count - charge.row_count
        if count > 0:
            self._limiter.charge(charge.caller, charge.state, count, now_ns=now_ns)

    def owe(self, node: LinkId, question_id: int, charge: Charge) -> None:
        """Remember who pays for a question whose asker has gone."""
        self._unpaid[question_id] = (node, charge)
        if len(self._unpaid) > _UNPAID_COUNT_MAX:
            del self._unpaid[next(iter(self._unpaid))]

    def settle(
        self, node: LinkId, question_id: int, row_count: int, now_ns: int
    ) -> None:
        """Charge for a question whose asker has gone; its node says how much it was."""
        asked, charge = self._unpaid.get(question_id, (None, None))
        if charge is None or asked != node:
            return
        del self._unpaid[question_id]
        self.pay(charge, row_count, now_ns)

    def forget(self, node: LinkId) -> None:
        """Forget what a node was asked that is gone: it will not say how much."""
        for question_id in [one for one, (of, _) in self._unpaid.items() if of == node]:
            del self._unpaid[question_id]

    def clear(self) -> None:
        """Forget everything."""
        self._unpaid.clear()
