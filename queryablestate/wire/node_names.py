"""
Each name of a node once in a message, and not once for each task; pure (rule B3).

Theory of operation.  A commit says for each execution of a task how many chunks each
node has of it, and so do the entry that comes of it, and the command to collect what
others have: 10,000 tasks on 50 nodes are half a million names.  In these
messages a node goes by its index in ``node_ids``, as decimal digits; everywhere else,
it goes by its name.  A message without ``node_ids`` has names: it is one of an earlier
version, or has no stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from nameservice import RemoteProtocolError
from queryablestate.wire.clients import CommitBatch
from queryablestate.wire.node_messages import ApplyEntries, CollectStages
from queryablestate.wire.records import BatchDecided


if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from queryablestate.wire.records import StageRecord


__all__ = ["NAMING", "with_indexes", "with_names"]

NAMING: Final = frozenset({CommitBatch, CollectStages, ApplyEntries})
"""Which messages name nodes many times; exact types, they have no subclasses."""


def with_indexes(message: Struct) -> Struct:
    """Return *message*, one of `NAMING`, as it is sent."""
    assert isinstance(message, CommitBatch | CollectStages | ApplyEntries)
    indexes: dict[str, str] = {}
    renamed = _renamed(
        message, lambda node_id: indexes.setdefault(node_id, str(len(indexes)))
    )
    return replace(renamed, node_ids=tuple(indexes))


def with_names(message: Any) -> Any:
    """
    Return *message*, one of `NAMING`, as everything else takes it.

    Raises:
        RemoteProtocolError: If an index is none.
    """
    if not message.node_ids:
        return message
    names = {str(index): node_id for index, node_id in enumerate(message.node_ids)}
    try:
        return replace(_renamed(message, names.__getitem__), node_ids=())
    except KeyError as error:
        detail = f"a stage names node {error}, and there are {len(names)}"
        raise RemoteProtocolError("malformed", detail) from error


def _renamed(
    message: CommitBatch | CollectStages | ApplyEntries, rename: Callable[[str], str]
) -> CommitBatch | CollectStages | ApplyEntries:
    if not isinstance(message, ApplyEntries):
        return replace(message, stages=_renamed_stages(message.stages, rename))
    return replace(
        message,
        entries=tuple(
            replace(entry, stages=_renamed_stages(entry.stages, rename))
            if isinstance(entry, BatchDecided)
            else entry
            for entry in message.entries
        ),
    )


def _renamed_stages(
    stages: tuple[StageRecord, ...], rename: Callable[[str], str]
) -> tuple[StageRecord, ...]:
    return tuple(
        replace(
            stage,
            chunk_counts={
                rename(node_id): count for node_id, count in stage.chunk_counts.items()
            },
            given_up=tuple(map(rename, stage.given_up)),
        )
        for stage in stages
    )
