"""`RegisteringNodes`: nodes that have asked to be taken in, and wait for it; pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Collection

    from queryablestate.control.events import LinkId
    from queryablestate.wire.node_messages import RegisterNode


__all__ = ["RegisteringNodes"]


@final
class RegisteringNodes:
    """
    The newest registration over each connection, until it has had its turn.

    Attributes:
        version: Another number whenever `node_ids` may be others.
    """

    def __init__(self) -> None:
        self._messages: dict[LinkId, RegisterNode] = {}
        # A node that is away is looked up here for each question that waits for it.
        self._counts: Counter[str] = Counter()
        self.version = 0

    def __contains__(self, link: LinkId) -> bool:
        """Return whether a registration over that connection waits for its turn."""
        return link in self._messages

    @property
    def node_ids(self) -> Collection[str]:
        """Return the names of those that wait, in no order; a view."""
        return self._counts.keys()

    def newest(self, link: LinkId) -> RegisterNode | None:
        """Return what waits over that connection, or None."""
        return self._messages.get(link)

    def begin(self, link: LinkId, message: RegisterNode) -> None:
        """Have a registration wait; an earlier one over that connection is over."""
        self.end(link)
        self._messages[link] = message
        self._counts[message.node_id] += 1
        self.version += 1

    def end(self, link: LinkId) -> bool:
        """Have none wait over that connection; return whether one did."""
        message = self._messages.pop(link, None)
        if message is None:
            return False
        self._counts[message.node_id] -= 1
        if not self._counts[message.node_id]:
            del self._counts[message.node_id]
        self.version += 1
        return True
