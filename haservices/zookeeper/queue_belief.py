"""`QueueBelief`: what a contender in a queue believes, and what it is told of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never, final

from election.holder import (
    AcknowledgeRevocation,
    ConfirmRequested,
    DeliverGrant,
    DeliverRevoke,
    HolderCore,
    HolderEffect,
    HolderEvent,
    RefuseConfirm,
    SendConfirm,
)
from haservices.zookeeper.queue_effects import Deliver, QueueEffect


if TYPE_CHECKING:
    from election.contender import LeaderSession


__all__ = ["QueueBelief"]


@final
class QueueBelief:
    """
    The holder of one contender, and its callbacks.

    Args:
        holder: What the contender believes and was told; stepped here alone.

    Attributes:
        told: The leadership that the contender holds, as far as it was told, or None.
    """

    def __init__(self, holder: HolderCore) -> None:
        self.told: LeaderSession | None = None
        self._holder = holder
        self._is_closing = False

    @property
    def epoch_claimed(self) -> int | None:
        """Return the epoch that the contender claims to lead under, or None."""
        claim = self._holder.claim
        return None if claim is None else claim.session.epoch

    def confirm(
        self, event: ConfirmRequested, effects: list[QueueEffect], *, now_ns: int
    ) -> int | None:
        """Return how often it has confirmed with this, or None if it does not lead."""
        confirm_count = None
        for effect in self._holder.step(event, now_ns=now_ns):
            if isinstance(effect, SendConfirm):
                confirm_count = effect.confirm_count
            else:
                self._take_effect(effect, effects)
        return confirm_count

    def tell(
        self, event: HolderEvent, effects: list[QueueEffect], *, now_ns: int
    ) -> list[int]:
        """Tell the holder; return the epochs under which the contender has stopped."""
        stopped = []
        for effect in self._holder.step(event, now_ns=now_ns):
            if isinstance(effect, AcknowledgeRevocation):
                stopped.append(effect.session.epoch)
            else:
                self._take_effect(effect, effects)
        return stopped

    def close(self) -> None:
        """Tell the contender nothing more."""
        self._is_closing = True
        self.told = None

    def _take_effect(self, effect: HolderEffect, effects: list[QueueEffect]) -> None:
        match effect:
            case DeliverGrant(session=session):
                if not self._is_closing:
                    self.told = session
                    effects.append(Deliver(news=effect))
            case DeliverRevoke():
                self.told = None
                if not self._is_closing:
                    effects.append(Deliver(news=effect))
            case AcknowledgeRevocation() | SendConfirm() | RefuseConfirm():
                pass  # `tell` and `confirm` say so
            case _:
                assert_never(effect)
