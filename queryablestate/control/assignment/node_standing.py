"""What a node is like, as far as the assignment of one job goes by it; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Collection


__all__ = ["NodeStanding"]


@final
@frozen(kw_only=True)
class NodeStanding:
    """
    What there is to know of a node for the assignment of one job.

    Attributes:
        store_id: Its data directory, as known last.
        is_present: Whether it is registered now.
        is_expected: Whether it is not, and may be again in a moment with what it had.
        is_silent: Whether nothing was heard of it for longer than it should be.
        is_doubted: Whether nothing was heard of it since copies were to be given up
            last: see `PresentNode`.
        is_draining: Whether it is to be emptied.
        is_failing: Whether it has said that it cannot go on.
        is_lost: Whether it has lost its rows of the job since it was assigned.
        lost: The key groups that it has lost rows of, if they are not all of them.
        is_anew: Whether it has begun the job anew since it was assigned, with nothing
            lost: its in-sync copies count, and those that it makes are begun anew.
        is_behind: Whether it was expected and is back, and has yet to apply what it
            missed.
        has_begun: Whether it has said how far it is with the job.
        copied: The key groups that it has copied for the present assignment.
    """

    store_id: str
    is_present: bool = True
    is_expected: bool = False
    is_silent: bool = False
    is_doubted: bool = False
    is_draining: bool = False
    is_failing: bool = False
    is_lost: bool = False
    lost: Collection[int] = frozenset()
    is_anew: bool = False
    is_behind: bool = False
    has_begun: bool = True
    copied: Collection[int] = frozenset()
