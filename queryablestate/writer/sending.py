"""
`NodeSending`: what a writer has for one node, and what became of it; no I/O of its own.

**Unreachable.**  A node is unreachable from when a connection to it was lost, or first
tried, until one is there.  That alone proves nothing: it may be starting again.  Only
if the proxy leader knows no address of it either, it is *away*.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from attrs import define, field, frozen

from nameservice import NS_PER_SECOND


if TYPE_CHECKING:
    from nameservice import NameServiceError
    from queryablestate.connect.node_link import NodeLink


__all__ = ["OPEN_TIMEOUT_NS", "REOPEN_PAUSE_NS", "NodeSending", "SentChunk"]

OPEN_TIMEOUT_NS: Final = 5 * NS_PER_SECOND
"""A machine that is gone refuses no connection; its node may be elsewhere by now."""

REOPEN_PAUSE_NS: Final = NS_PER_SECOND // 20
_REOPEN_PAUSE_NS_MAX: Final = NS_PER_SECOND // 2


@final
@frozen(kw_only=True)
class SentChunk:
    """A chunk of rows, and its number among those of one node."""

    index: int
    payload: bytes


@final
@define(kw_only=True)
class NodeSending:
    """
    What is to go to one node, and what has gone.

    Attributes:
        index: Its place in the plan.
        node_id: Its name.
        address: Where it was reached, or is to be, last.
        silent_since_ns: Since when it owes an answer.
        chunk_count: Chunks that it was given.
        waiting: Those that were not sent.
        unanswered: Those that were, by request.
        link: The connection to it.
        due_ns: Nothing is to be sent before.
        pause_ns: How long the next pause is.
        problem: What went wrong last.
        opening_since_ns: When *link* was made.
        unreachable_since_ns: See the module docstring; None while it is connected.
        is_away: Whether the proxy leader, asked meanwhile, knew no address of it.
        is_given_up: Whether it gets nothing any more.
        denied_since_ns: Since when it has refused to take rows of this run, or None.
    """

    index: int
    node_id: str
    address: str | None
    silent_since_ns: int
    chunk_count: int = 0
    waiting: deque[SentChunk] = field(factory=deque)
    unanswered: dict[int, SentChunk] = field(factory=dict)
    link: NodeLink | None = None
    due_ns: int = 0
    pause_ns: int = REOPEN_PAUSE_NS
    problem: NameServiceError | None = None
    opening_since_ns: int = 0
    unreachable_since_ns: int | None = None
    is_away: bool = False
    is_given_up: bool = False
    denied_since_ns: int | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether it has said that all of its chunks are on disk."""
        return not self.waiting and not self.unanswered

    def pause(self, now_ns: int) -> None:
        """Try nothing for a while, and for longer the next time."""
        self.due_ns = now_ns + self.pause_ns
        self.pause_ns = min(2 * self.pause_ns, _REOPEN_PAUSE_NS_MAX)

    def look_for(self, now_ns: int) -> None:
        """Take note that there is no connection."""
        if self.unreachable_since_ns is None:
            self.unreachable_since_ns = now_ns

    def reached(self) -> None:
        """Take note that there is a connection."""
        self.unreachable_since_ns = None
        self.is_away = False

    def unreachable_ns(self, now_ns: int) -> int:
        """Return for how long there has been no connection."""
        since_ns = self.unreachable_since_ns
        return 0 if since_ns is None else now_ns - since_ns

    def is_stuck(self, now_ns: int) -> bool:
        """Return whether its connection should have been made long ago."""
        return (
            self.link is not None
            and not self.link.is_open
            and now_ns - self.opening_since_ns >= OPEN_TIMEOUT_NS
        )

    def give_up(self) -> None:
        """Forget everything that was for it."""
        self.is_given_up = True
        self.chunk_count = 0
        self.waiting.clear()
        self.unanswered.clear()
