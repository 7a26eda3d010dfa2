"""What a client of queryable state answers with; values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from attrs import frozen

from nameservice.errors import NameServiceError
from queryablestate.schema.schema import StateSchema


__all__ = ["PartialResult", "StateEntry", "StateInformation", "StatePage"]


@final
@frozen(kw_only=True)
class StateEntry:
    """
    What is kept under one key, and as of when.

    Attributes:
        value: As ``get`` returns it.
        generation: The ownership of the state that it was read in.
        batch_id: The last batch that was applied when it was read, or None before
            the first of this generation.
        age_seconds: How long ago that batch was decided.
        cached: Whether the proxy had the answer from before.
    """

    value: Any
    generation: int
    batch_id: int | None
    age_seconds: float
    cached: bool


@final
@frozen(kw_only=True)
class StatePage:
    """
    Rows that follow each other, and as of when they were read.

    Attributes:
        rows: Key and value of each, as ``scan`` yields them: of a map state the key is
            ``(key, map_key)``.
        next_after: Where the next page begins, or None if this is the last one.
        generation: The ownership of the state that the oldest row was read in; None if
            no node had to be asked, since there cannot be such rows.
        batch_id: The last batch that was applied when that was read, or None before the
            first of this generation.
        age_seconds: How long ago that batch was decided, at most.
    """

    rows: Sequence[tuple[Any, Mapping[str, Any]]]
    next_after: bytes | None
    generation: int | None
    batch_id: int | None
    age_seconds: float


@final
@frozen(kw_only=True)
class PartialResult:
    """
    What could be read of many keys, and what could not.

    Attributes:
        values: As ``get_many`` returns them: of the keys that exist.
        unavailable: The keys that no node could answer for, in the caller's order.
        error: Why not, for the last of them; None if every key was answered.
    """

    values: Mapping[Any, Any]
    unavailable: Sequence[Any]
    error: NameServiceError | None


@final
@frozen(kw_only=True)
class StateInformation:
    """
    One state as it was when it was described.

    Attributes:
        job_id: The job.
        name: Its name within the job.
        kind: ``value``, ``list`` or ``map``.
        schema: The columns for a person, e.g.
            ``tailnum string -> origin string, delay double``.
        key_columns: The names of the key columns, in their order.
        map_key_columns: Those of the second key of a map state, else empty.
        value_columns: Those of the values.
        has_ttl: Whether rows are absent after a time of their own.
        generation: The present ownership.
        batch_id: The last batch decided in it, or None before the first.
        owner: The id of the streaming query that owns it.
        max_parallelism: The number of key groups.
        nodes: The nodes that are asked for it, by name.
        age_seconds: How long ago that batch was decided, or None.
        registered_schema: The columns with their types, for programs.
    """

    job_id: str
    name: str
    kind: str
    schema: str
    key_columns: Sequence[str]
    map_key_columns: Sequence[str]
    value_columns: Sequence[str]
    has_ttl: bool
    generation: int
    batch_id: int | None
    owner: str
    max_parallelism: int
    nodes: Sequence[str]
    age_seconds: float | None
    registered_schema: StateSchema
