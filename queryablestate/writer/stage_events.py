"""What happens to a stage, and what it has its shell do; no behaviour."""

from __future__ import annotations

from typing import TypeAlias, final

from attrs import field, frozen

from nameservice import NameServiceError
from queryablestate.wire.staging_messages import ChunkRefused, ChunkStaged, StageChunk


__all__ = [
    "CallerReturned",
    "ChunkAnswered",
    "ChunkCut",
    "ChunkTurnedAway",
    "CloseLink",
    "FailStage",
    "GrantRenewed",
    "LinkLost",
    "LinkOpened",
    "LookForNode",
    "NodeLookedFor",
    "OpenLink",
    "RenewGrant",
    "SendChunk",
    "StageEffect",
    "StageEvent",
    "TimeWent",
]


# -- events --------------------------------------------------------------------------


@final
@frozen
class ChunkCut:
    """Rows for the node with index *node* are to go on their way."""

    node: int
    payload: bytes = field(repr=False)


@final
@frozen
class LinkOpened:
    """The connection to *node* is there: chunks can be sent."""

    node: int


@final
@frozen
class LinkLost:
    """The connection to *node*, there or not yet, is over; *problem* may say why."""

    node: int
    problem: NameServiceError | None = None


@final
@frozen
class ChunkAnswered:
    """The node with index *node* has answered a chunk."""

    node: int
    reply: ChunkStaged | ChunkRefused


@final
@frozen
class ChunkTurnedAway:
    """The connection to *node* did not take a chunk: its queue is full."""

    node: int
    request_id: int


@final
@frozen
class NodeLookedFor:
    """
    What was asked for with `LookForNode` is known.

    Attributes:
        node: Which node.
        found: Where it is reached, None if it is away, `NO_PART` if it has no part in
            the job any more; or why that is not known.
    """

    node: int
    found: str | NameServiceError | None


@final
@frozen
class GrantRenewed:
    """
    What was asked for with `RenewGrant` is known.

    Attributes:
        node: For which node it was asked.
        grant: What nodes are to be shown; or why that is not known.
    """

    node: int
    grant: bytes | NameServiceError = field(repr=False)


@final
@frozen
class CallerReturned:
    """No one has listened to any node since the step before."""


@final
@frozen
class TimeWent:
    """Nothing happened but that time went by."""


StageEvent: TypeAlias = (
    ChunkCut
    | LinkOpened
    | LinkLost
    | ChunkAnswered
    | ChunkTurnedAway
    | NodeLookedFor
    | GrantRenewed
    | CallerReturned
    | TimeWent
)


# -- effects -------------------------------------------------------------------------


@final
@frozen
class OpenLink:
    """Connect to *node* at *address*; say `LinkOpened` or `LinkLost`."""

    node: int
    address: str


@final
@frozen
class CloseLink:
    """Close the connection to *node*, on which something went wrong."""

    node: int


@final
@frozen
class SendChunk:
    """Send *node* a chunk; say `ChunkTurnedAway` if that is not possible at once."""

    node: int
    message: StageChunk
    payload: bytes = field(repr=False)


@final
@frozen
class LookForNode:
    """Find out where the node called *node_id* is now; say `NodeLookedFor`."""

    node: int
    node_id: str


@final
@frozen
class RenewGrant:
    """Get another grant, as *node* knows none of ours; say `GrantRenewed`."""

    node: int


@final
@frozen
class FailStage:
    """The stage has failed.  Nothing follows."""

    error: NameServiceError


StageEffect: TypeAlias = (
    OpenLink | CloseLink | SendChunk | LookForNode | RenewGrant | FailStage
)
