"""
What crosses the wire between a LeaderServer and its clients: frames, and the election.

What is said of leader stores is in store_messages.py, and what operators ask and are
answered in operator_messages.py; `RequestBody` and `ReplyBody` name all of it.

The specification is docs/reference/wire-protocol.md.  A client sends `Hello` until a
`Welcome` opens its session; from then on every frame it sends is a `Request` that
carries the session's secret and a number.  **A request is taken only if its number is
above all earlier ones of its session**: what is repeated, replayed or overtaken is
dropped, and a client that misses an answer asks again under a new number.

Times are nanoseconds and never points in time: clocks of two machines do not compare.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias
from uuid import UUID

from msgspec import Meta

from leaderserver.message_parts import (
    Address,
    AffirmationRecord,
    ClaimRecord,
    Count,
    Duration,
    Identifier,
    Name,
    Nonce,
    Number,
    PublicationRecord,
    Secret,
    WireStruct,
)
from leaderserver.operator_messages import (
    ComponentsReply,
    ContendersReply,
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
    RevokedReply,
    RevokeRequest,
    SessionsReply,
    SessionsRequest,
    StatusReply,
    StatusRequest,
    TransferredReply,
    TransferRequest,
)
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    GetRequest,
    ListRequest,
    PathsReply,
    StoreChanged,
    StoreRevisionReply,
    UnwatchStoreRequest,
    ValueReply,
    WatchStoreRequest,
)
from nameservice.fields import CLIENT_NAME_LENGTH_MAX


__all__ = [
    "AcknowledgedHeartbeat",
    "BatchReply",
    "BatchRequest",
    "BatchedBody",
    "BatchedReply",
    "CloseSessionRequest",
    "ConfirmRequest",
    "DoneReply",
    "FailedReply",
    "Failure",
    "Granted",
    "HeartbeatRequest",
    "Hello",
    "Hindered",
    "Published",
    "RefusedHello",
    "RegisterRequest",
    "RegisteredReply",
    "Reply",
    "ReplyBody",
    "Request",
    "RequestBody",
    "RevocationFinishedRequest",
    "Revoked",
    "SessionEnded",
    "SessionUnknown",
    "SnapshotReply",
    "SubscribeRequest",
    "ToClient",
    "ToServer",
    "UncertainReply",
    "UnsubscribeRequest",
    "Welcome",
    "WithdrawRequest",
]

BATCH_COUNT_MAX: Final = 100


class Failure:
    """The reasons of a `FailedReply` and of a `RefusedHello`; strings on the wire."""

    WRONG_VERSION: Final = "wrong-version"
    NOT_ALLOWED: Final = "not-allowed"
    LIMIT_REACHED: Final = "limit-reached"
    UNDECIDED: Final = "undecided"
    STALE: Final = "stale"
    EPOCH_AHEAD: Final = "epoch-ahead"
    VERSION_MISMATCH: Final = "version-mismatch"
    NO_LEADER: Final = "no-leader"
    UNKNOWN_SESSION: Final = "unknown-session"
    UNKNOWN_CONTENDER: Final = "unknown-contender"
    NOT_HEARD: Final = "not-heard"
    TAKEN: Final = "taken"
    INVALID: Final = "invalid"
    STORAGE: Final = "storage"


# -- from the client -----------------------------------------------------------------


class Hello(WireStruct, frozen=True, kw_only=True, tag="hello"):
    """Ask for a session.  Sent again, unchanged, until it is answered."""

    nonce: Nonce
    session_timeout_ns: Duration
    lease_ns: Duration
    client: Annotated[str, Meta(max_length=CLIENT_NAME_LENGTH_MAX)]


class HeartbeatRequest(WireStruct, frozen=True, kw_only=True, tag="heartbeat"):
    """Say that we are there; *acknowledged* is the newest heartbeat answered, or 0."""

    acknowledged: Count


class RegisterRequest(WireStruct, frozen=True, kw_only=True, tag="register"):
    """
    Enter a contender; safe to repeat.

    *ticket* and *claim* are what an earlier incarnation gave it; *epoch_ended* is the
    highest epoch of its own that it knows to be over, or 0.
    """

    component_id: Name
    contender_id: Identifier
    confirm_timeout_ns: Duration
    ticket: Count | None
    epoch_ended: Count
    claim: ClaimRecord | None


class WithdrawRequest(WireStruct, frozen=True, kw_only=True, tag="withdraw"):
    """Take a contender out; it has stopped leading.  Safe to repeat."""

    component_id: Name
    contender_id: Identifier


class ConfirmRequest(WireStruct, frozen=True, kw_only=True, tag="confirm"):
    """Accept a leadership and publish an address; safe to repeat."""

    component_id: Name
    contender_id: Identifier
    leader_session_id: UUID
    confirm_count: Count
    address: Address


class RevocationFinishedRequest(
    WireStruct, frozen=True, kw_only=True, tag="revocation-finished"
):
    """Say that a contender has stopped leading *epoch*; safe to repeat."""

    component_id: Name
    contender_id: Identifier
    epoch: Count


class SubscribeRequest(WireStruct, frozen=True, kw_only=True, tag="subscribe"):
    """Ask what is published now, and to be told of changes; safe to repeat."""

    component_id: Name
    epoch_seen: Count
    is_ended_seen: bool


class UnsubscribeRequest(WireStruct, frozen=True, kw_only=True, tag="unsubscribe"):
    """Ask to be told no more."""

    component_id: Name


class CloseSessionRequest(WireStruct, frozen=True, kw_only=True, tag="close-session"):
    """End the session; everything of it has stopped."""


BatchedBody: TypeAlias = (
    RegisterRequest
    | WithdrawRequest
    | ConfirmRequest
    | RevocationFinishedRequest
    | SubscribeRequest
    | UnsubscribeRequest
)


class BatchRequest(WireStruct, frozen=True, kw_only=True, tag="batch"):
    """Several requests under one number, taken in their order."""

    bodies: Annotated[list[BatchedBody], Meta(min_length=1, max_length=BATCH_COUNT_MAX)]


RequestBody: TypeAlias = (
    HeartbeatRequest
    | BatchRequest
    | RegisterRequest
    | WithdrawRequest
    | ConfirmRequest
    | RevocationFinishedRequest
    | SubscribeRequest
    | UnsubscribeRequest
    | CloseSessionRequest
    | ContendersRequest
    | GetRequest
    | ListRequest
    | CommitRequest
    | CleanupRequest
    | WatchStoreRequest
    | UnwatchStoreRequest
    | LeadersRequest
    | SessionsRequest
    | StatusRequest
    | RevokeRequest
    | ExpireRequest
    | TransferRequest
)


class Request(WireStruct, frozen=True, kw_only=True, tag="request"):
    """One frame of a session."""

    secret: Secret
    number: Number
    body: RequestBody


ToServer: TypeAlias = Hello | Request


# -- from the server -----------------------------------------------------------------


class Welcome(WireStruct, frozen=True, kw_only=True, tag="welcome"):
    """
    The answer to a `Hello`: the session is open.

    The times are the agreed ones.  Changes are published on *publish_port* of the
    host that the client connected to, or at *publish_address* if that is given.
    *server_id* is drawn at each start of a server, which was *uptime_ns* ago.
    """

    nonce: Nonce
    secret: Secret
    session_id: Identifier
    session_timeout_ns: Duration
    lease_ns: Duration
    incarnation: Count
    publish_port: Annotated[int, Meta(ge=0, le=65535)]
    publish_address: str | None
    is_durable: bool
    server_id: str = ""
    uptime_ns: Count = 0


class RefusedHello(WireStruct, frozen=True, kw_only=True, tag="refused"):
    """There is no session to be had; *nonce* is empty if the `Hello` was unreadable."""

    nonce: bytes
    reason: str
    detail: str


class SessionUnknown(WireStruct, frozen=True, kw_only=True, tag="session-unknown"):
    """The secret of request *number* belongs to no session of this server."""

    number: Count
    incarnation: Count


class SessionEnded(WireStruct, frozen=True, kw_only=True, tag="session-ended"):
    """The server has ended this session."""

    session_id: Identifier
    reason: str
    incarnation: Count


class Granted(WireStruct, frozen=True, kw_only=True, tag="granted"):
    """A contender leads; this is an answer to heartbeat *heartbeat_number*."""

    session_id: Identifier
    heartbeat_number: Count
    affirmation: AffirmationRecord


class Revoked(WireStruct, frozen=True, kw_only=True, tag="revoked"):
    """A contender leads no longer."""

    session_id: Identifier
    affirmation: AffirmationRecord


class Hindered(WireStruct, frozen=True, kw_only=True, tag="hindered"):
    """No contender of a component can be granted now, and why; it is tried again."""

    session_id: Identifier
    component_id: Name
    reason: str
    detail: str


class AcknowledgedHeartbeat(WireStruct, frozen=True, kw_only=True, tag="acknowledged"):
    """
    The answer to a heartbeat.

    *affirmations* are all leaderships that the session holds, unless the server is
    undecided.  *revisions* are those of subscribed components that changed.
    """

    affirmations: list[AffirmationRecord]
    is_undecided: bool
    revisions: dict[str, int]


class RegisteredReply(WireStruct, frozen=True, kw_only=True, tag="registered"):
    """
    The contender is in the queue, under *ticket*.

    *heartbeat_number* is the newest heartbeat that was taken before: answers to those
    may have left out what the contender claims.
    """

    ticket: Count
    heartbeat_number: Count = 0


class DoneReply(WireStruct, frozen=True, kw_only=True, tag="done"):
    """It is done."""


class FailedReply(WireStruct, frozen=True, kw_only=True, tag="failed"):
    """It is not done; *reason* is one of `Failure`."""

    reason: str
    detail: str
    epoch_max: int | None = None
    path: str | None = None
    version: int | None = None
    version_expected: int | None = None


class UncertainReply(WireStruct, frozen=True, kw_only=True, tag="uncertain"):
    """
    It may have been done: the disk failed while it was written.

    A message of its own, and no `Failure`: a client that does not know it drops it,
    and so never takes it for "did not happen".
    """

    detail: str


class SnapshotReply(WireStruct, frozen=True, kw_only=True, tag="snapshot"):
    """What is published now, as of *revision*; while undecided, ask again."""

    revision: Count
    is_undecided: bool
    publication: PublicationRecord | None


BatchedReply: TypeAlias = RegisteredReply | DoneReply | FailedReply | SnapshotReply


class BatchReply(WireStruct, frozen=True, kw_only=True, tag="batch-reply"):
    """The answers to the requests of a batch, in their order."""

    bodies: list[BatchedReply]


ReplyBody: TypeAlias = (
    AcknowledgedHeartbeat
    | BatchReply
    | RegisteredReply
    | DoneReply
    | FailedReply
    | UncertainReply
    | SnapshotReply
    | ContendersReply
    | ValueReply
    | PathsReply
    | StoreRevisionReply
    | ComponentsReply
    | SessionsReply
    | StatusReply
    | RevokedReply
    | TransferredReply
)


class Reply(WireStruct, frozen=True, kw_only=True, tag="reply"):
    """The answer to request *number*."""

    number: Count
    body: ReplyBody


class Published(WireStruct, frozen=True, kw_only=True, tag="published"):
    """
    The *revision*-th change of a component since somebody subscribed to it.

    *incarnation* is of the server that numbers: what a former one has sent may come
    late.  Servers of earlier versions leave it out.
    """

    component_id: Name
    revision: Count
    publication: PublicationRecord
    incarnation: Count | None = None


ToClient: TypeAlias = (
    Welcome
    | RefusedHello
    | SessionUnknown
    | SessionEnded
    | Granted
    | Revoked
    | Hindered
    | StoreChanged
    | Reply
    | Published
)
