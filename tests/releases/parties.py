"""Who takes which messages, and how they are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from attrs import frozen

from haservices.zookeeper import records as zookeeper_records
from leaderserver import codec as leader_codec
from leaderserver import messages as leader_messages
from queryablestate.control import large_writes
from queryablestate.control.job import leader_paths
from queryablestate.store import layout, plans, restores
from queryablestate.wire import (
    clients,
    copy_messages,
    direct,
    job_plan,
    records,
    snapshot_manifest,
    staging_messages,
)
from queryablestate.wire import codec as state_codec
from queryablestate.wire.stored_records import PackedBatch, QueryRecord
from sparkpipeline.log import state as log_state
from sparkpipeline.operators import manifest as operator_manifest


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
        is_read_back: Whether the release before may have to read what this version
            writes.  Of what a node or a job keeps for itself that is not promised.
    """

    kind: Any
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    is_read_back: bool = True


_SECRET: Final = b"secret of nodes"


def _leader(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(kind=kind, decode=decode, encode=leader_codec.encode)


def _state(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(kind=kind, decode=decode, encode=state_codec.encode)


def _record(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(kind=kind, decode=decode, encode=leader_paths.encode_record)


def _payload(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(kind=kind, decode=decode, encode=state_codec.encode_payload)


def _kept(kind: Any, decode: Callable[[bytes], Any]) -> Party:
    return Party(
        kind=kind, decode=decode, encode=layout.encode_record, is_read_back=False
    )


def _kept_json(kind: Any, encode: Callable[[Any], bytes]) -> Party:
    # Not what they are checked for beside: a sample makes no sense.
    decode = msgspec.json.Decoder(kind).decode
    return Party(kind=kind, decode=decode, encode=encode, is_read_back=False)


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
    "node-of-reader": _state(
        direct.AskNode | direct.ShowTicket,
        lambda envelope: (
            state_codec.decode_to_copy_source(envelope)
            if b"show-ticket" in envelope
            else state_codec.decode_at_node(envelope)
        ),
    ),
    "ticket": Party(
        kind=direct.DirectTicket,
        decode=lambda sealed: direct.open_ticket(_SECRET, sealed),
        encode=lambda ticket: direct.seal_ticket(_SECRET, ticket),
    ),
    "rows-of-writer": _payload(staging_messages.StagedRows, state_codec.decode_rows),
    "rows-of-copy-source": _payload(
        copy_messages.CopiedRows, state_codec.decode_copied_rows
    ),
    "zookeeper-contender": Party(
        kind=zookeeper_records.ContenderRecord,
        decode=lambda value: zookeeper_records.decode_contender(value, path=""),
        encode=zookeeper_records.encode_record,
    ),
    "zookeeper-leader": Party(
        kind=zookeeper_records.LeaderRecord,
        decode=lambda value: zookeeper_records.decode_leader(value, path=""),
        encode=zookeeper_records.encode_record,
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
    "stored-large-write": _record(
        large_writes.LargeWrite, large_writes._LARGE_DECODER.decode
    ),
    "kept-identity": _kept(layout.Identity, layout.decode_identity),
    "kept-job": _kept(layout.JobMark, layout.decode_job),
    "kept-fence": _kept(layout.FenceMark, layout.decode_fence),
    "kept-state": _kept(layout.StateMark, layout.decode_state),
    "kept-hold": _kept(layout.HoldMark, layout.decode_hold),
    "kept-entry": _kept(records.BatchDecided, layout.decode_kept),
    "kept-last-entry": _kept(records.Entry, plans._ENTRY.decode),
    "kept-staged": _kept(layout.StagedMark, layout.decode_staged),
    "kept-staged-batch": _kept(layout.StagedBatch, layout.decode_staged_batch),
    "kept-plan": _kept(job_plan.JobPlan, plans._PLAN.decode),
    "kept-progress": _kept(plans._Progress, plans._PROGRESS.decode),
    "kept-load": _kept(restores.LoadMark, restores._MARK.decode),
    "snapshot": _kept_json(
        snapshot_manifest.SnapshotManifest, snapshot_manifest.encode_manifest
    ),
    "operator-manifest": _kept_json(
        operator_manifest.OperatorManifest, operator_manifest.encode_manifest
    ),
    "log-offset": _kept_json(log_state._OffsetMessage, msgspec.json.encode),
}
