"""`NodeConnections`: which connections are those of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice import ConfigurationError
from queryablestate.proxy.access import Right
from queryablestate.wire.address import parse_address
from queryablestate.wire.node_messages import NodeRefused, RegisterNode


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.proxy.access import AccessList, Caller
    from queryablestate.wire.codec import Head


__all__ = [
    "NODE_ID_LENGTH_MAX",
    "NODE_NOT_ALLOWED",
    "NODE_UNKNOWN",
    "NodeConnections",
    "is_registration",
]

NODE_ID_LENGTH_MAX: Final = 255
_REGISTER: Final = RegisterNode.__struct_config__.tag
NODE_NOT_ALLOWED: Final = NodeRefused(
    reason="not-allowed",
    detail="its credential does not let it be a node: show a token, or a CURVE key, of "
    "a caller with node = true",
)
NODE_UNKNOWN: Final = NodeRefused(reason="unknown", detail="register first")


def is_registration(head: Head) -> bool:
    """Return whether a message with that head is a `RegisterNode`."""
    return head.type == _REGISTER


@final
class NodeConnections:
    """
    The connections over which nodes have registered, and their second ones (rule B2).

    Args:
        access: Who may be a node.

    Attributes:
        access: See Args; may be replaced.
    """

    def __init__(self, access: AccessList) -> None:
        self.access = access
        self._callers: dict[LinkId, Caller] = {}
        self._first_of: dict[LinkId, LinkId] = {}
        # Who may know the present secret of nodes, connected or not.
        self._told: set[Caller] = set()

    @property
    def links(self) -> Sequence[LinkId]:
        """Return the connections over which nodes have registered."""
        return tuple(self._callers)

    def admit(
        self, link: LinkId, message: RegisterNode, public_key: str | None
    ) -> NodeRefused | None:
        """Return why a node is not taken, whatever the control plane says, or None."""
        caller = self._node_of(message.token, public_key)
        if caller is None:
            return NODE_NOT_ALLOWED
        node_id = message.node_id
        if not (1 <= len(node_id) <= NODE_ID_LENGTH_MAX and node_id.isprintable()):
            detail = f"a node is called by 1 to {NODE_ID_LENGTH_MAX} printable letters"
            return NodeRefused(reason="malformed", detail=detail)
        try:
            for address in (message.address, *message.reader_addresses):
                parse_address(address)  # writers and clients are told to go there
        except ConfigurationError as error:
            return NodeRefused(reason="malformed", detail=str(error)[:1_000])
        self._callers[link] = caller
        self._told.add(caller)
        return None

    def _node_of(self, token: str | None, public_key: str | None) -> Caller | None:
        """Return who shows that, if it may be a node."""
        caller = self.access.authenticate(token=token, public_key=public_key)
        if caller is None or not self.access.may(caller, Right.NODE):
            return None
        return caller

    def has(self, link: LinkId) -> bool:
        """Return whether a node has registered over a connection, or joined it."""
        return self.first_of(link) in self._callers

    def why_not(self, head: Head, public_key: str | None) -> NodeRefused | None:
        """Return why a message of a node, of which this is known, is not heard."""
        if not is_registration(head):
            return NODE_UNKNOWN
        is_node = self._node_of(head.token, public_key) is not None
        return None if is_node else NODE_NOT_ALLOWED

    def secret_renewed(self) -> None:
        """Note that nodes have another secret now, which none was told yet."""
        self._told.clear()

    def knows_secret_wrongly(self) -> bool:
        """Return whether one was told the secret of nodes that may be no node now."""
        return any(not self.access.may(caller, Right.NODE) for caller in self._told)

    def dismissed(self) -> Sequence[LinkId]:
        """Take out, and return, the connections of those that may be no node now."""
        gone = [
            link
            for link, caller in self._callers.items()
            if not self.access.may(caller, Right.NODE)
        ]
        for link in gone:
            del self._callers[link]
        return gone

    def join(self, link: LinkId, first: LinkId) -> None:
        """Take what comes over *link* for what comes over *first*."""
        self._first_of[link] = first

    def first_of(self, link: LinkId) -> LinkId:
        """Return over which connection the node is registered that speaks on *link*."""
        return self._first_of.get(link, link)

    def closed(self, link: LinkId) -> None:
        """Forget a connection that is over."""
        self._callers.pop(link, None)
        self._first_of.pop(link, None)
