"""
Effects of the election that wait until an epoch is on record (rule E2).

`RecordEpoch` begins to hold its component: whatever tells of it after that waits, in
its order, until the record is durable.  The election itself goes on meanwhile, so what
is released is judged anew: a grant whose leadership has ended is told to no one, and
neither is its revocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import Factory, define

from election.effects import (
    ElectionEffect,
    GrantLeadership,
    PublishLeader,
    RevokeLeadership,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from election.effects import Affirmation


__all__ = ["HeldEffects"]


@define(kw_only=True)
class _Hold:
    """
    One component that is held.

    Attributes:
        epoch: The newest that is not on record.
        is_reinstated: Whether it is a client's claim (rule E9).
        effects: What waits, in order.
    """

    epoch: int
    is_reinstated: bool
    effects: list[ElectionEffect] = Factory(list)

    def forget_grants(self) -> None:
        """Drop the grants that wait, with their ends: another leadership has begun."""
        ended = {
            effect.affirmation.epoch
            for effect in self.effects
            if isinstance(effect, GrantLeadership)
        }
        self.effects = [
            effect
            for effect in self.effects
            if not (
                isinstance(effect, GrantLeadership | RevokeLeadership)
                and effect.affirmation.epoch in ended
            )
        ]


@final
class HeldEffects:
    """What waits for a record, by component."""

    def __init__(self) -> None:
        self._holds: dict[str, _Hold] = {}

    def __len__(self) -> int:
        """Return how many components are held."""
        return len(self._holds)

    def begin(self, component_id: str, epoch: int, *, is_reinstated: bool) -> None:
        """Hold what tells of *component_id* from now on, until *epoch* is on record."""
        hold = self._holds.get(component_id)
        if hold is None:
            self._holds[component_id] = _Hold(epoch=epoch, is_reinstated=is_reinstated)
        else:
            hold.epoch = epoch
            hold.is_reinstated = is_reinstated
            hold.forget_grants()

    def keep(self, effect: ElectionEffect) -> bool:
        """Return whether *effect* must wait; it is kept then."""
        match effect:
            case GrantLeadership(affirmation=a) | RevokeLeadership(affirmation=a):
                component_id = a.component_id
            case PublishLeader():
                component_id = effect.component_id
            case _:
                return False
        hold = self._holds.get(component_id)
        if hold is not None:
            hold.effects.append(effect)
        return hold is not None

    def release(self, component_id: str, epoch: int) -> Sequence[ElectionEffect]:
        """
        Return what waited for *epoch*, in order, once it is on record.

        Nothing if a later epoch is to be recorded as well: it goes on waiting then.
        """
        hold = self._holds.get(component_id)
        if hold is None or hold.epoch != epoch:
            return ()
        del self._holds[component_id]
        return hold.effects

    def drop(self, component_id: str, epoch: int) -> Sequence[ElectionEffect] | None:
        """
        Return what may be told although *epoch* could not be recorded.

        That there is no leader may be told; no grant, and no leader.

        Returns:
            None if a later epoch is to be recorded as well: it decides.
        """
        hold = self._holds.get(component_id)
        if hold is None or hold.epoch != epoch:
            return None
        del self._holds[component_id]
        return [
            effect
            for effect in hold.effects
            if isinstance(effect, PublishLeader) and effect.publication.leader is None
        ]

    def affirmable(
        self, affirmations: Iterable[Affirmation]
    ) -> tuple[Sequence[Affirmation], bool]:
        """
        Return which of *affirmations* may be told, and if the others are claims.

        An affirmation says what a grant says, so it waits for the record as well.  For
        a leadership that is new to its holder to be missing means nothing; a claim
        that is missing would be taken for refused.
        """
        told = []
        is_claim_held = False
        for affirmation in affirmations:
            hold = self._holds.get(affirmation.component_id)
            if hold is None or hold.epoch != affirmation.epoch:
                told.append(affirmation)
            else:
                is_claim_held = is_claim_held or hold.is_reinstated
        return told, is_claim_held
