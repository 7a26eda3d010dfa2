"""
Effects of the election that wait until an epoch is on record (rule E2).

`RecordEpoch` begins to hold its component: whatever tells of it after that waits, in
its order, until the record is durable.  The election itself goes on meanwhile, so what
is released is judged anew: a grant whose leadership has ended is told to no one, and
neither is its revocation.

That there is no leader is told at once: it names only epochs that are known
(`Component.publish_nobody`).  A revocation is told at once if its grant does not wait
here: the holder of a claim, for one, knows of its leadership already.
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
    from retrieval import Publication


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

    def has_grant(self, epoch: int) -> bool:
        """Return whether a new grant of *epoch* waits: a claim's holder knows it."""
        return not self.is_reinstated and any(
            isinstance(effect, GrantLeadership) and effect.affirmation.epoch == epoch
            for effect in self.effects
        )

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

    def forget_leaders(self, publication: Publication) -> None:
        """Drop the leaders that wait and are over by *publication*."""
        self.effects = [
            effect
            for effect in self.effects
            if not (
                isinstance(effect, PublishLeader)
                and effect.publication.rank < publication.rank
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
            case GrantLeadership(affirmation=affirmation):
                hold = self._holds.get(affirmation.component_id)
                is_known = False
            case RevokeLeadership(affirmation=affirmation):
                hold = self._holds.get(affirmation.component_id)
                is_known = hold is None or not hold.has_grant(affirmation.epoch)
            case PublishLeader(publication=publication):
                hold = self._holds.get(effect.component_id)
                is_known = publication.leader is None
                if hold is not None and is_known:
                    hold.forget_leaders(publication)
            case _:
                return False
        if hold is None or is_known:
            return False
        hold.effects.append(effect)
        return True

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

    def is_newest(self, component_id: str, epoch: int) -> bool:
        """Return whether a component waits for *epoch*, and not for a later one."""
        hold = self._holds.get(component_id)
        return hold is not None and hold.epoch == epoch

    def drop(self, component_id: str, epoch: int) -> None:
        """Tell nothing of what waits for *epoch*, which could not be recorded."""
        if self.is_newest(component_id, epoch):
            del self._holds[component_id]

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
