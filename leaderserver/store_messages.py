"""What a client and a LeaderServer say to each other of leader stores."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from uuid import UUID

from msgspec import Meta

from leaderserver.message_parts import Count, Identifier, Name, Path, Prefix, WireStruct


__all__ = [
    "CleanupRequest",
    "CommitRequest",
    "DeleteRecord",
    "GetRequest",
    "ListRequest",
    "PathsReply",
    "PutRecord",
    "StoreChanged",
    "StoreRevisionReply",
    "UnwatchStoreRequest",
    "ValueReply",
    "WatchStoreRequest",
]


class PutRecord(WireStruct, frozen=True, kw_only=True, tag="put"):
    """Write a value, if the path is at *version*."""

    path: Path
    value: bytes
    version: Count | None


class DeleteRecord(WireStruct, frozen=True, kw_only=True, tag="delete"):
    """Remove a path, if it is at *version*."""

    path: Path
    version: Count | None


Operations: TypeAlias = Annotated[
    list[PutRecord | DeleteRecord], Meta(min_length=1, max_length=1000)
]


class GetRequest(WireStruct, frozen=True, kw_only=True, tag="get"):
    """Ask for a value of the leader store."""

    component_id: Name
    path: Path


class ListRequest(WireStruct, frozen=True, kw_only=True, tag="list"):
    """Ask for paths of the leader store, sorted, after *after*."""

    component_id: Name
    prefix: Prefix
    after: Prefix


class CommitRequest(WireStruct, frozen=True, kw_only=True, tag="commit"):
    """Write to the leader store, all or nothing.  Not safe to repeat."""

    component_id: Name
    leader_session_id: UUID
    epoch: Count
    operations: Operations


class CleanupRequest(WireStruct, frozen=True, kw_only=True, tag="cleanup"):
    """Remove what is stored for a component."""

    component_id: Name


class WatchStoreRequest(WireStruct, frozen=True, kw_only=True, tag="watch-store"):
    """
    Ask what changed in a leader store, and to be told once of the next change.

    *revision_seen* is the revision of the newest answer to it, of the server of
    *incarnation_seen*, or None if there was none.
    """

    component_id: Name
    incarnation_seen: Count
    revision_seen: Count | None


class UnwatchStoreRequest(WireStruct, frozen=True, kw_only=True, tag="unwatch-store"):
    """Ask to be told no more of a leader store."""

    component_id: Name


class StoreChanged(WireStruct, frozen=True, kw_only=True, tag="store-changed"):
    """A leader store that the session watches has changed since it asked last."""

    session_id: Identifier
    component_id: Name


class ValueReply(WireStruct, frozen=True, kw_only=True, tag="value"):
    """A value of the leader store; version 0 means that there is none."""

    value: bytes
    version: Count


class PathsReply(WireStruct, frozen=True, kw_only=True, tag="paths"):
    """Paths of the leader store; ask on after the last if not complete."""

    paths: list[str]
    is_complete: bool


class StoreRevisionReply(WireStruct, frozen=True, kw_only=True, tag="store-revision"):
    """
    What a leader store is at.

    *paths* have changed since the revision that was shown; None if that is not known.
    """

    incarnation: Count
    revision: Count
    paths: list[str] | None
