"""A retriever's listener that writes down when it was told of whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tests.drills.processes import now_ns
from tests.recording import Record


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from retrieval import LeaderInformation


__all__ = ["TimedListener"]


@final
class TimedListener:
    """
    Writes down what it is told, with the time.

    Attributes:
        told: Each notification with its time.
    """

    def __init__(self) -> None:
        self.told: Record[tuple[int, LeaderInformation | None]] = Record()

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Write the notification down."""
        self.told.add((now_ns(), leader))

    def handle_error(self, error: Exception) -> None:
        """Fail: nothing here is an error."""
        raise AssertionError(error)

    @property
    def leaders(self) -> list[LeaderInformation]:
        """Return whom it was told of so far."""
        return [leader for _, leader in _above(0, self.told.items)]

    def wait_for_leader(self, *, above_epoch: int) -> tuple[int, LeaderInformation]:
        """Return when it was first told of a higher epoch, and of whom."""
        told = self.told.wait_until(lambda told: any(_above(above_epoch, told)))
        return next(_above(above_epoch, told))

    def wait_for_none(self) -> None:
        """Return once the latest it was told is that there is no leader."""
        self.told.wait_until(lambda told: bool(told) and told[-1][1] is None)


def _above(
    epoch: int, told: Iterable[tuple[int, LeaderInformation | None]]
) -> Iterator[tuple[int, LeaderInformation]]:
    for at_ns, leader in told:
        if leader is not None and leader.epoch > epoch:
            yield at_ns, leader
