"""Who takes which messages, and how they are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from attrs import frozen

from leaderserver import codec as leader_codec
from leaderserver import messages as leader_messages
from queryablestate.control.job import leader_paths
from queryablestate.wire import clients, copy_messages, records, staging_messages
from queryablestate.wire import codec as state_codec
from queryablestate.wire.stored_records import PackedBatch, QueryRecord


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["PARTIES", "Party"]


@final
@frozen(kw_only=True)
class Party:
    """
    What is read at one place.

    Attributes:
        kind: The type of what is read there.
        decode: How it is read.
        encode: How it is written by who sends it there.
    """

    kind: Any
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def _leader(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(kind=kind, decode=decode, encode=leader_codec.encode)


def _state(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(kind=kind, decode=decode, encode=state_codec.encode)


def _record(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(kind=kind, decode=decode, encode=leader_paths.encode_record)


PARTIES: Final = {
    "leaderserver": _leader(
        leader_messages.Hello | leader_messages.Request, leader_codec.decode_to_server
    ),
    "leaderserver-client": _leader(
        leader_messages.ToClient, leader_codec.decode_to_client
    ),
    "proxy": _state(clients.ToProxy, state_codec.decode_to_proxy),
    "proxy-client": _state(clients.ToClient, state_codec.decode_to_client),
    "node": _state(clients.ToNodeFrame, state_codec.decode_to_node),
    "node-of-writer": _state(staging_messages.StageChunk, state_codec.decode_at_node),
    "writer": _state(
        staging_messages.ChunkStaged | staging_messages.ChunkRefused,
        state_codec.decode_from_node,
    ),
    "copy-source": _state(
        copy_messages.ToCopySource, state_codec.decode_to_copy_source
    ),
    "copying-node": _state(
        copy_messages.FromCopySource, state_codec.decode_from_copy_source
    ),
    "stored-counters": _record(records.CountersRecord, leader_paths.decode_counters),
    "stored-node": _record(records.NodeRecord, leader_paths.decode_node),
    "stored-job": _record(records.JobRecord, leader_paths.decode_job),
    "stored-assignment": _record(
        records.AssignmentRecord, leader_paths.decode_assignment
    ),
    "stored-state": _record(records.StateRecord, leader_paths.decode_state),
    "stored-query": _record(QueryRecord, leader_paths.decode_query),
    "stored-progress": _record(records.StateProgress, leader_paths.decode_progress),
    "stored-entry": _record(
        records.Entry | PackedBatch, leader_paths.decode_stored_entry
    ),
}
