"""A way to a node, and the ways to the nodes of a state: see `NodeWays`; pure."""

from __future__ import annotations

from typing import final

from attrs import Factory, define


__all__ = ["DirectRoute", "NodeWay"]


@final
@define(eq=False)
class NodeWay:
    """
    The way to one node.

    Attributes:
        address: Where it leads.
        link: The number of its connection; 0 while there is none.
        is_open: Whether it can be asked.
        due_ns: It is not opened before.
        pause_ns: How long the last pause was before it was opened again.
        hold_until_ns: It is not asked before: it has refused.
        hold_ns: How long that was the last time.
        heard_ns: When the node has said something last.
        shown: For each ticket, by number, which one of that number it was shown.
    """

    address: str
    link: int = 0
    is_open: bool = False
    due_ns: int = 0
    pause_ns: int = 0
    hold_until_ns: int = 0
    hold_ns: int = 0
    heard_ns: int = 0
    shown: dict[int, bytes] = Factory(dict)


@final
@define(eq=False)
class DirectRoute:
    """
    How the nodes of one state are asked.

    Attributes:
        ticket_id: The number of the ticket; the same for all of one state.
        ticket: What is shown.
        until_ns: Until when that is worth something.
        ways: For each node of the route, by its index, the way to it, or None.
    """

    ticket_id: int
    ticket: bytes
    until_ns: int
    ways: tuple[NodeWay | None, ...]
