"""
`NodeSending`: what a stage has for one node, and what became of it; pure.

**Unreachable.**  A node is unreachable from when a connection to it was lost, or first
tried, until one is there.  That alone proves nothing: it may be starting again.  Only
if the proxy leader knows no address of it either, it is *away*.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final, final

from attrs import define, field, frozen

from nameservice import NS_PER_SECOND


if TYPE_CHECKING:
    from nameservice import NameServiceError


__all__ = ["REOPEN_PAUSE_NS", "LinkState", "NodeSending", "SentChunk", "StageLimits"]

REOPEN_PAUSE_NS: Final = NS_PER_SECOND // 20
_REOPEN_PAUSE_NS_MAX: Final = NS_PER_SECOND // 2


@final
@frozen(kw_only=True)
class StageLimits:
    """
    How a stage is sent.

    Attributes:
        chunk_size_bytes_max: Rows of one chunk, as they travel.
        window_count: Chunks that one node may have unanswered.
        waiting_count_max: Chunks that wait for a window, over all nodes, before
            `Stager.add` waits for room.
        timeout_seconds: Silence of a node, while it owes an answer, after which the
            stage has failed.
        give_up_seconds: How long a node may be away before the stage goes on without
            it, if others get its rows.
        open_timeout_seconds: How long a connection may take.  A machine that is gone
            refuses none; its node may be elsewhere by now.
        busy_seconds: How long a node may refuse everything, because it can keep nothing
            just now, before it is as good as away.
    """

    chunk_size_bytes_max: int = 4 * 1024 * 1024
    window_count: int = 4
    waiting_count_max: int = 8
    timeout_seconds: float = 60.0
    give_up_seconds: float = 2.0
    open_timeout_seconds: float = 5.0
    busy_seconds: float = 600.0


NO_PART: Final = ""
"""Stands for the address of a node that has no part in the job any more."""


class LinkState(Enum):
    """Whether a connection to a node is there."""

    NONE = "none"
    OPENING = "opening"
    OPEN = "open"


@final
@frozen
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
        is_looked_for: Whether the proxy leader is being asked where it is.
        due_ns: Nothing is to be sent before.
        pause_ns: How long the next pause is.
        problem: What went wrong last.
        opening_since_ns: When *link* was made.
        unreachable_since_ns: See the module docstring; None while it is connected.
        is_away: Whether the proxy leader, asked meanwhile, knew no address of it.
        is_out: Whether it said that the node has no part in the job any more.
        is_given_up: Whether it gets nothing any more.
        denied_since_ns: Since when it has refused to take rows of this run, or None.
        busy_since_ns: Since when it has refused rows for a while, or None.
    """

    index: int
    node_id: str
    address: str | None
    silent_since_ns: int
    chunk_count: int = 0
    waiting: deque[SentChunk] = field(factory=deque)
    unanswered: dict[int, SentChunk] = field(factory=dict)
    link: LinkState = LinkState.NONE
    is_looked_for: bool = False
    due_ns: int = 0
    pause_ns: int = REOPEN_PAUSE_NS
    problem: NameServiceError | None = None
    opening_since_ns: int = 0
    unreachable_since_ns: int | None = None
    is_away: bool = False
    is_out: bool = False
    is_given_up: bool = False
    denied_since_ns: int | None = None
    busy_since_ns: int | None = None

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
        self.is_away = self.is_out = False

    def unreachable_ns(self, now_ns: int) -> int:
        """Return for how long there has been no connection."""
        since_ns = self.unreachable_since_ns
        return 0 if since_ns is None else now_ns - since_ns

    def unheard(self, unheard_ns: int) -> None:
        """Take note that no one has listened to it for so long: it may have spoken."""
        self.silent_since_ns += unheard_ns
        if self.denied_since_ns is not None:
            self.denied_since_ns += unheard_ns
        if self.busy_since_ns is not None:
            self.busy_since_ns += unheard_ns

    def give_up(self) -> None:
        """Forget everything that was for it."""
        self.is_given_up = True
        self.link = LinkState.NONE
        self.chunk_count = 0
        self.waiting.clear()
        self.unanswered.clear()
