"""States of a snapshot, as the job that is restored from it gets them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from nameservice import ConfigurationError, RemoteProtocolError, check_component_id
from queryablestate.schema.schema_json import parse_schema
from queryablestate.wire.records import QueryProgress
from queryablestate.wire.snapshot_messages import LoadedState


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.records import StateProgress
    from queryablestate.wire.snapshot_manifest import SnapshotState


__all__ = ["check_states", "loaded_states", "restored_progress"]


def check_states(states: Sequence[SnapshotState]) -> None:
    """
    Return if a job may have these states: they need not come from a file of ours.

    Raises:
        ConfigurationError: If it may not.
    """
    numbers = {each.state.state_number for each in states}
    names = {each.state.state_name for each in states}
    if not len(numbers) == len(names) == len(states) > 0:
        raise ConfigurationError("a snapshot has states, and each of them once")
    for each in states:
        check_component_id(each.state.state_name, what="the name of a state")
        try:
            parse_schema(each.state.schema)
        except RemoteProtocolError as error:
            raise ConfigurationError(
                f"the schema of state {each.state.state_name!r}: {error}"
            ) from error


def restored_progress(
    each: SnapshotState, state_number: int, sequence: int
) -> StateProgress:
    """
    Return the progress of a state as it is from the entry *sequence* on.

    Writer epochs are those of another control plane, or of runs that know nothing of
    this job: whichever run comes now is younger.
    """
    queries = tuple(
        QueryProgress(
            query_id=query.query_id,
            batch_id=query.batch_id,
            writer_epoch=0,
            sequence=sequence,
        )
        for query in each.progress.queries
    )
    return replace(
        each.progress, state_number=state_number, owner_epoch=0, queries=queries
    )


def loaded_states(
    states: Sequence[SnapshotState], numbers: Mapping[int, int]
) -> tuple[LoadedState, ...]:
    """Return what the nodes are to know of the states that have been written."""
    loaded = []
    for each in states:
        progress = each.progress
        if progress.batch_id is None:
            continue
        schema = parse_schema(each.state.schema)
        loaded.append(
            LoadedState(
                snapshot_number=each.state.state_number,
                state_number=numbers[each.state.state_number],
                kind=schema.kind.value,
                has_ttl=schema.has_ttl,
                generation=progress.generation,
                batch_id=progress.batch_id,
                decided_at_us=progress.decided_at_us,
            )
        )
    return tuple(loaded)
