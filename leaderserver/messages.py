"""
Everything that crosses the wire between a LeaderServer and its clients.

The specification is docs/reference/wire-protocol.md.  A client sends `Hello` until a
`Welcome` opens its session; from then on every frame it sends is a `Request` that
carries the session's secret and a number.  **A request is taken only if its number is
above all earlier ones of its session**: what is repeated, replayed or overtaken is
dropped, and a client that misses an answer asks again under a new number.

Times are nanoseconds and never points in time: clocks of two machines do not compare.

What a field may hold is said in `nameservice.fields`, which every public call checks.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias
from uuid import UUID

from msgspec import Meta, Struct

from nameservice.fields import (
    ADDRESS_LENGTH_MAX,
    CLIENT_NAME_LENGTH_MAX,
    COMPONENT_ID_LENGTH_MAX,
    IDENTIFIER_LENGTH_MAX,
    INTEGER_MAX,
    STORE_PATH_LENGTH_MAX,
)


__all__ = [
    "AcknowledgedHeartbeat",
    "AffirmationRecord",
    "BatchReply",
    "BatchRequest",
    "BatchedBody",
    "BatchedReply",
    "ClaimRecord",
    "CleanupRequest",
    "CloseSessionRequest",
    "CommitRequest",
    "ComponentRecord",
    "ComponentsReply",
    "ConfirmRequest",
    "ContenderRecord",
    "ContendersReply",
    "ContendersRequest",
    "DeleteRecord",
    "DoneReply",
    "ExpireRequest",
    "FailedReply",
    "Failure",
    "GetRequest",
    "Granted",
    "HeartbeatRequest",
    "Hello",
    "Hindered",
    "LeadersRequest",
    "ListRequest",
    "PathsReply",
    "PublicationRecord",
    "Published",
    "PutRecord",
    "RefusedHello",
    "RegisterRequest",
    "RegisteredReply",
    "Reply",
    "ReplyBody",
    "Request",
    "RequestBody",
    "RevocationFinishedRequest",
    "RevokeRequest",
    "Revoked",
    "RevokedReply",
    "SessionEnded",
    "SessionRecord",
    "SessionUnknown",
    "SessionsReply",
    "SessionsRequest",
    "SnapshotReply",
    "StatusReply",
    "StatusRequest",
    "StoreChanged",
    "StoreRevisionReply",
    "SubscribeRequest",
    "ToClient",
    "ToServer",
    "TransferRequest",
    "TransferredReply",
    "UncertainReply",
    "UnsubscribeRequest",
    "UnwatchStoreRequest",
    "ValueReply",
    "WatchStoreRequest",
    "Welcome",
    "WithdrawRequest",
]

NONCE_SIZE_BYTES: Final = 16
SECRET_SIZE_BYTES: Final = 32
BATCH_COUNT_MAX: Final = 100
# A component id on the wire is "cluster/component".
_NAME_LENGTH_MAX: Final = 2 * COMPONENT_ID_LENGTH_MAX + 1
_INTEGER_MAX: Final = INTEGER_MAX

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=_NAME_LENGTH_MAX)]
Identifier: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=IDENTIFIER_LENGTH_MAX)
]
Address: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ADDRESS_LENGTH_MAX)]
Path: TypeAlias = Annotated[str, Meta(min_length=1, max_length=STORE_PATH_LENGTH_MAX)]
Prefix: TypeAlias = Annotated[str, Meta(max_length=STORE_PATH_LENGTH_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_INTEGER_MAX)]
Duration: TypeAlias = Annotated[int, Meta(ge=1, le=_INTEGER_MAX)]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=_INTEGER_MAX)]
Nonce: TypeAlias = Annotated[
    bytes, Meta(min_length=NONCE_SIZE_BYTES, max_length=NONCE_SIZE_BYTES)
]
Secret: TypeAlias = Annotated[
    bytes, Meta(min_length=SECRET_SIZE_BYTES, max_length=SECRET_SIZE_BYTES)
]
Operations: TypeAlias = Annotated[
    "list[PutRecord | DeleteRecord]", Meta(min_length=1, max_length=1000)
]


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


class _Wire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all messages share."""


class AffirmationRecord(_Wire, frozen=True, kw_only=True, tag="affirmation"):
    """One leadership that the session holds."""

    component_id: Name
    contender_id: Identifier
    leader_session_id: UUID
    epoch: Count


class ClaimRecord(_Wire, frozen=True, kw_only=True, tag="claim"):
    """A leadership that was granted before and not ended since."""

    leader_session_id: UUID
    epoch: Count
    confirm_count: Count
    address: Address | None


class PublicationRecord(_Wire, frozen=True, kw_only=True, tag="publication"):
    """What is published of a component; without an address there is no leader."""

    epoch: Count
    confirm_count: Count
    address: Address | None
    leader_session_id: UUID | None


class PutRecord(_Wire, frozen=True, kw_only=True, tag="put"):
    """Write a value, if the path is at *version*."""

    path: Path
    value: bytes
    version: Count | None


class DeleteRecord(_Wire, frozen=True, kw_only=True, tag="delete"):
    """Remove a path, if it is at *version*."""

    path: Path
    version: Count | None


# -- from the client -----------------------------------------------------------------


class Hello(_Wire, frozen=True, kw_only=True, tag="hello"):
    """Ask for a session.  Sent again, unchanged, until it is answered."""

    nonce: Nonce
    session_timeout_ns: Duration
    lease_ns: Duration
    client: Annotated[str, Meta(max_length=CLIENT_NAME_LENGTH_MAX)]


class HeartbeatRequest(_Wire, frozen=True, kw_only=True, tag="heartbeat"):
    """Say that we are there; *acknowledged* is the newest heartbeat answered, or 0."""

    acknowledged: Count


class RegisterRequest(_Wire, frozen=True, kw_only=True, tag="register"):
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


class WithdrawRequest(_Wire, frozen=True, kw_only=True, tag="withdraw"):
    """Take a contender out; it has stopped leading.  Safe to repeat."""

    component_id: Name
    contender_id: Identifier


class ConfirmRequest(_Wire, frozen=True, kw_only=True, tag="confirm"):
    """Accept a leadership and publish an address; safe to repeat."""

    component_id: Name
    contender_id: Identifier
    leader_session_id: UUID
    confirm_count: Count
    address: Address


class RevocationFinishedRequest(
    _Wire, frozen=True, kw_only=True, tag="revocation-finished"
):
    """Say that a contender has stopped leading *epoch*; safe to repeat."""

    component_id: Name
    contender_id: Identifier
    epoch: Count


class SubscribeRequest(_Wire, frozen=True, kw_only=True, tag="subscribe"):
    """Ask what is published now, and to be told of changes; safe to repeat."""

    component_id: Name
    epoch_seen: Count
    is_ended_seen: bool


class UnsubscribeRequest(_Wire, frozen=True, kw_only=True, tag="unsubscribe"):
    """Ask to be told no more."""

    component_id: Name


class CloseSessionRequest(_Wire, frozen=True, kw_only=True, tag="close-session"):
    """End the session; everything of it has stopped."""


class ContendersRequest(_Wire, frozen=True, kw_only=True, tag="contenders"):
    """Ask for the contenders of a component."""

    component_id: Name


class GetRequest(_Wire, frozen=True, kw_only=True, tag="get"):
    """Ask for a value of the leader store."""

    component_id: Name
    path: Path


class ListRequest(_Wire, frozen=True, kw_only=True, tag="list"):
    """Ask for paths of the leader store, sorted, after *after*."""

    component_id: Name
    prefix: Prefix
    after: Prefix


class CommitRequest(_Wire, frozen=True, kw_only=True, tag="commit"):
    """Write to the leader store, all or nothing.  Not safe to repeat."""

    component_id: Name
    leader_session_id: UUID
    epoch: Count
    operations: Operations


class CleanupRequest(_Wire, frozen=True, kw_only=True, tag="cleanup"):
    """Remove what is stored for a component."""

    component_id: Name


class WatchStoreRequest(_Wire, frozen=True, kw_only=True, tag="watch-store"):
    """
    Ask what changed in a leader store, and to be told once of the next change.

    *revision_seen* is the revision of the newest answer to it, of the server of
    *incarnation_seen*, or None if there was none.
    """

    component_id: Name
    incarnation_seen: Count
    revision_seen: Count | None


class UnwatchStoreRequest(_Wire, frozen=True, kw_only=True, tag="unwatch-store"):
    """Ask to be told no more of a leader store."""

    component_id: Name


class LeadersRequest(_Wire, frozen=True, kw_only=True, tag="leaders"):
    """Ask for the components whose id begins with *prefix*, sorted, after *after*."""

    prefix: Annotated[str, Meta(max_length=_NAME_LENGTH_MAX)]
    after: Annotated[str, Meta(max_length=_NAME_LENGTH_MAX)]


class SessionsRequest(_Wire, frozen=True, kw_only=True, tag="sessions"):
    """Ask for the sessions, sorted by id, after *after*."""

    after: Annotated[str, Meta(max_length=IDENTIFIER_LENGTH_MAX)]


class StatusRequest(_Wire, frozen=True, kw_only=True, tag="status"):
    """Ask for the server's figures."""


class RevokeRequest(_Wire, frozen=True, kw_only=True, tag="revoke"):
    """End the present leadership of a component; for operators."""

    component_id: Name


class TransferRequest(_Wire, frozen=True, kw_only=True, tag="transfer"):
    """Hand the leadership of a component to a contender; for operators."""

    component_id: Name
    contender_id: Identifier


class ExpireRequest(_Wire, frozen=True, kw_only=True, tag="expire"):
    """End a session; for operators."""

    session_id: Identifier


BatchedBody: TypeAlias = (
    RegisterRequest
    | WithdrawRequest
    | ConfirmRequest
    | RevocationFinishedRequest
    | SubscribeRequest
    | UnsubscribeRequest
)


class BatchRequest(_Wire, frozen=True, kw_only=True, tag="batch"):
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


class Request(_Wire, frozen=True, kw_only=True, tag="request"):
    """One frame of a session."""

    secret: Secret
    number: Number
    body: RequestBody


ToServer: TypeAlias = Hello | Request


# -- from the server -----------------------------------------------------------------


class Welcome(_Wire, frozen=True, kw_only=True, tag="welcome"):
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


class RefusedHello(_Wire, frozen=True, kw_only=True, tag="refused"):
    """There is no session to be had; *nonce* is empty if the `Hello` was unreadable."""

    nonce: bytes
    reason: str
    detail: str


class SessionUnknown(_Wire, frozen=True, kw_only=True, tag="session-unknown"):
    """The secret of request *number* belongs to no session of this server."""

    number: Count
    incarnation: Count


class SessionEnded(_Wire, frozen=True, kw_only=True, tag="session-ended"):
    """The server has ended this session."""

    session_id: Identifier
    reason: str
    incarnation: Count


class Granted(_Wire, frozen=True, kw_only=True, tag="granted"):
    """A contender leads; this is an answer to heartbeat *heartbeat_number*."""

    session_id: Identifier
    heartbeat_number: Count
    affirmation: AffirmationRecord


class Revoked(_Wire, frozen=True, kw_only=True, tag="revoked"):
    """A contender leads no longer."""

    session_id: Identifier
    affirmation: AffirmationRecord


class Hindered(_Wire, frozen=True, kw_only=True, tag="hindered"):
    """No contender of a component can be granted now, and why; it is tried again."""

    session_id: Identifier
    component_id: Name
    reason: str
    detail: str


class StoreChanged(_Wire, frozen=True, kw_only=True, tag="store-changed"):
    """A leader store that the session watches has changed since it asked last."""

    session_id: Identifier
    component_id: Name


class AcknowledgedHeartbeat(_Wire, frozen=True, kw_only=True, tag="acknowledged"):
    """
    The answer to a heartbeat.

    *affirmations* are all leaderships that the session holds, unless the server is
    undecided.  *revisions* are those of subscribed components that changed.
    """

    affirmations: list[AffirmationRecord]
    is_undecided: bool
    revisions: dict[str, int]


class RegisteredReply(_Wire, frozen=True, kw_only=True, tag="registered"):
    """
    The contender is in the queue, under *ticket*.

    *heartbeat_number* is the newest heartbeat that was taken before: answers to those
    may have left out what the contender claims.
    """

    ticket: Count
    heartbeat_number: Count = 0


class DoneReply(_Wire, frozen=True, kw_only=True, tag="done"):
    """It is done."""


class FailedReply(_Wire, frozen=True, kw_only=True, tag="failed"):
    """It is not done; *reason* is one of `Failure`."""

    reason: str
    detail: str
    epoch_max: int | None = None
    path: str | None = None
    version: int | None = None
    version_expected: int | None = None


class UncertainReply(_Wire, frozen=True, kw_only=True, tag="uncertain"):
    """
    It may have been done: the disk failed while it was written.

    A message of its own, and no `Failure`: a client that does not know it drops it,
    and so never takes it for "did not happen".
    """

    detail: str


class SnapshotReply(_Wire, frozen=True, kw_only=True, tag="snapshot"):
    """What is published now, as of *revision*; while undecided, ask again."""

    revision: Count
    is_undecided: bool
    publication: PublicationRecord | None


class ContenderRecord(_Wire, frozen=True, kw_only=True, tag="contender"):
    """One contender, for operators."""

    contender_id: str
    session_id: str
    address: str | None
    is_leader: bool
    session_age_ns: int
    last_heard_ns: int


class ContendersReply(_Wire, frozen=True, kw_only=True, tag="contenders-reply"):
    """The contenders of a component, in order, the leader first."""

    contenders: list[ContenderRecord]


class ValueReply(_Wire, frozen=True, kw_only=True, tag="value"):
    """A value of the leader store; version 0 means that there is none."""

    value: bytes
    version: Count


class PathsReply(_Wire, frozen=True, kw_only=True, tag="paths"):
    """Paths of the leader store; ask on after the last if not complete."""

    paths: list[str]
    is_complete: bool


class StoreRevisionReply(_Wire, frozen=True, kw_only=True, tag="store-revision"):
    """
    What a leader store is at.

    *paths* have changed since the revision that was shown; None if that is not known.
    """

    incarnation: Count
    revision: Count
    paths: list[str] | None


class ComponentRecord(_Wire, frozen=True, kw_only=True, tag="component"):
    """One component, for operators."""

    component_id: str
    publication: PublicationRecord | None
    contender_count: int
    epoch: int


class ComponentsReply(_Wire, frozen=True, kw_only=True, tag="components"):
    """Components, for operators; ask on after the last if not complete."""

    components: list[ComponentRecord]
    is_complete: bool


class SessionRecord(_Wire, frozen=True, kw_only=True, tag="session"):
    """One session, for operators."""

    session_id: str
    client: str
    component_ids: list[str]
    leads_component_ids: list[str]
    age_ns: int
    last_heard_ns: int
    timeout_ns: int


class SessionsReply(_Wire, frozen=True, kw_only=True, tag="sessions-reply"):
    """Sessions, for operators; ask on after the last if not complete."""

    sessions: list[SessionRecord]
    is_complete: bool


class StatusReply(_Wire, frozen=True, kw_only=True, tag="status-reply"):
    """The server's figures by name."""

    figures: dict[str, str | int | float]


class RevokedReply(_Wire, frozen=True, kw_only=True, tag="revoked-reply"):
    """The leadership that an operator's request has ended."""

    leader_session_id: UUID
    epoch: Count


class TransferredReply(_Wire, frozen=True, kw_only=True, tag="transferred"):
    """
    A contender is next to lead, or leads already.

    *epoch* and *leader_session_id* name the leadership that was ended for it: 0 and
    None if there was none to end.
    """

    leader_session_id: UUID | None
    epoch: Count


BatchedReply: TypeAlias = RegisteredReply | DoneReply | FailedReply | SnapshotReply


class BatchReply(_Wire, frozen=True, kw_only=True, tag="batch-reply"):
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


class Reply(_Wire, frozen=True, kw_only=True, tag="reply"):
    """The answer to request *number*."""

    number: Count
    body: ReplyBody


class Published(_Wire, frozen=True, kw_only=True, tag="published"):
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
