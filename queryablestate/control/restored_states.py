"""States of a snapshot: which a job may have, and what nodes load of them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice import ConfigurationError, RemoteProtocolError, check_component_id
from queryablestate.schema.schema_json import parse_schema
from queryablestate.wire.snapshot_messages import LoadedState


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.snapshot_manifest import SnapshotState


__all__ = ["check_states", "loaded_states"]


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
