"""
When staged rows that no decision came for are dropped; pure.

The node looks once in a while (a *round*).  What was decided while it was away may
be as old as you like, and is not to be dropped before it is applied: jobs of which
something may be decided and not applied are spared, and looked at again soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from queryablestate.node.core.effects import DropOldStages


if TYPE_CHECKING:
    from queryablestate.node.core.effects import NodeEffect


__all__ = ["OldStages"]

_TRIES: Final = 20
"""How much more often it is looked whether all old staged rows may be dropped."""


@final
class OldStages:
    """
    The rounds, and what the last one has spared.

    Args:
        drop_stages_ns: From one round to the next.
        now_ns: The time.

    Attributes:
        due_ns: When `drop` is to be called.
    """

    def __init__(self, drop_stages_ns: int, *, now_ns: int) -> None:
        self._drop_stages_ns = drop_stages_ns
        self._round_due_ns = now_ns + drop_stages_ns
        self._spared: tuple[str, ...] = ()
        self.due_ns = self._round_due_ns

    def drop(
        self, spared: tuple[str, ...], *, is_registered: bool, now_ns: int
    ) -> tuple[list[NodeEffect], bool]:
        """
        Have old stages dropped, and see when to look again.

        Args:
            spared: Jobs of which something may be decided and not applied, sorted.
            is_registered: Whether the node is; if not, it cannot know what is decided.
            now_ns: The time.

        Returns:
            What is to be done, and whether this was a round.
        """
        is_round = is_registered and self._round_due_ns <= now_ns
        effects: list[NodeEffect] = []
        if is_round or (is_registered and set(spared) < set(self._spared)):
            effects.append(DropOldStages(spared=spared))
            self._spared = spared
        if is_round:
            self._round_due_ns = now_ns + self._drop_stages_ns
        if is_registered and not spared:
            self.due_ns = self._round_due_ns
        else:
            self.due_ns = now_ns + self._drop_stages_ns // _TRIES
        return effects, is_round
