"""
Where the copies of key groups are to be: as few new ones as balance allows; pure (S1).

Two even deals, one after the other.  First each key group gets its nodes: none has two
copies more than another.  A copy that is there costs nothing, one that is being made
costs less than one that is not begun.  Then each key group gets its primary among them:
no node is the primary of two key groups more than another.  A primary that stays costs
nothing, and one that is in sync less than one that has to be copied first.  The second
deal always exists: a node with *c* of the copies can be given *c* divided by the number
of copies of a key group as primary, and that is even if the copies are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryablestate.control.assignment.balancing import Prices, deal


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["copy_count", "node_count_max", "place"]


def node_count_max(key_group_count: int, *, replica_count: int) -> int:
    """
    Return how many nodes a job can have.

    Each is to be asked for a key group; but where there are fewer key groups than
    copies of one, those copies need nodes that are asked for none (rule S4).
    """
    return max(key_group_count, replica_count)


def place(
    owners: Sequence[Sequence[int]],
    *,
    joining: Sequence[Sequence[int]] = (),
    node_count: int,
    replica_count: int,
) -> list[tuple[int, ...]]:
    """
    Return for each key group the nodes that are to have it, the primary first.

    Args:
        owners: For each key group the nodes that have a copy, as far as they count; the
            present primary first.  None need have one.
        joining: For each key group the nodes that are making a copy; empty altogether
            if none are.
        node_count: The nodes are ``range(node_count)``; at least 1.
        replica_count: How many copies; as many as there are nodes if that is more.
    """
    degree = min(replica_count, node_count)
    begun: Sequence[Sequence[int]] = joining or [()] * len(owners)
    # What matters more outweighs everything else that could be gained by it: first how
    # many copies are to be made, then how many of them anew, then who stays primary.
    heavy = len(owners) * degree + 1
    new = heavy * heavy + heavy
    interned: dict[Prices, Prices] = {}
    copies = []
    for group_owners, group_begun in zip(owners, begun, strict=True):
        prices = (
            *((node, int(rank > 0)) for rank, node in enumerate(group_owners)),
            *((n, heavy * heavy) for n in group_begun if n not in group_owners),
        )
        copies.append(interned.setdefault(prices, prices))
    dealt = deal(copies, bin_count=node_count, degree=degree, price=new)
    if degree == 1:
        return dealt
    asked = []
    for group_owners, nodes in zip(owners, dealt, strict=True):
        prices = tuple(
            (node, _primary_price(group_owners, node, heavy)) for node in nodes
        )
        asked.append(interned.setdefault(prices, prices))
    primaries = deal(asked, bin_count=node_count, degree=1, price=None)
    return [
        (primary, *(node for node in nodes if node != primary))
        for nodes, (primary,) in zip(dealt, primaries, strict=True)
    ]


def _primary_price(owners: Sequence[int], node: int, heavy: int) -> int:
    if node not in owners:
        return heavy
    return int(node != owners[0])


def copy_count(owners: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> int:
    """Return how many copies are wanted where there are none."""
    return sum(
        node not in present
        for present, nodes in zip(owners, wanted, strict=True)
        for node in nodes
    )
