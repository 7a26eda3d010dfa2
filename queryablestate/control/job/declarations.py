"""What writers declare of a job's states, held against what it has; pure (W5)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from nameservice import ConfigurationError
from queryablestate.errors import SchemaMismatchError
from queryablestate.schema.schema import check_compatible
from queryablestate.schema.schema_json import parse_schema
from queryablestate.wire.schema_digest import DeclarationWantedError, is_known_by


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.schema.schema import StateSchema
    from queryablestate.wire.clients import StateDeclaration
    from queryablestate.wire.records import JobRecord, StateRecord


__all__ = ["check_declarations", "has_more_columns", "parsed_schema"]


def check_declarations(
    record: JobRecord,
    states: Mapping[int, StateRecord],
    declarations: Sequence[StateDeclaration],
    max_parallelism: int,
    *,
    is_registering: bool = True,
) -> None:
    """
    Return if states may be declared like that (rule W5).

    Args:
        record: The job's.
        states: The states that are registered, by number.
        declarations: What a writer says of them.
        max_parallelism: The number of key groups.
        is_registering: Whether those that are not known become known now.

    Raises:
        SchemaMismatchError: Says what differs from what is registered.
        DeclarationWantedError: If there is a digest where the text is needed.
        ConfigurationError: If a state is named twice, or none is.
        RemoteProtocolError: If a schema is malformed.
    """
    names = [declaration.state_name for declaration in declarations]
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"a query writes at least one state, and each once, not {names}"
        )
    registered = {state.state_name: state for state in states.values()}
    for declaration in declarations:
        if states and max_parallelism != record.max_parallelism:
            detail = (
                f"max_parallelism is {record.max_parallelism} for all state "
                f"of this job, not {max_parallelism}"
            )
            raise SchemaMismatchError(record.job_id, declaration.state_name, detail)
        state = registered.get(declaration.state_name)
        if declaration.schema is None:
            _check_digest(
                record.job_id, declaration, state, is_registering=is_registering
            )
            continue
        declared = parsed_schema(declaration.schema)
        if state is None:
            continue
        difference = check_compatible(parsed_schema(state.schema), declared)
        if difference is not None:
            raise SchemaMismatchError(record.job_id, declaration.state_name, difference)


def _check_digest(
    job_id: str,
    declaration: StateDeclaration,
    state: StateRecord | None,
    *,
    is_registering: bool,
) -> None:
    if state is None:
        is_wanted = is_registering
    else:
        digest = declaration.digest
        is_wanted = digest is None or not is_known_by(digest, state.schema)
    if is_wanted:
        what = f"the schema of {declaration.state_name!r}"
        raise DeclarationWantedError(job_id, what)


@lru_cache(maxsize=1_024)
def parsed_schema(schema: str) -> StateSchema:
    """Return `parse_schema` of *schema*, which every batch of a state comes with."""
    return parse_schema(schema)


def has_more_columns(declared: str, registered: str) -> bool:
    """Return whether a compatible schema adds columns to the registered one."""
    columns = len(parsed_schema(declared).value)
    return columns > len(parsed_schema(registered).value)
