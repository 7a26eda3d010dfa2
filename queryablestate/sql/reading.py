"""Finding the states that a query names, and reading what it needs of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
)
from queryablestate.client.frames import load_arrow
from queryablestate.errors import (
    AccessDeniedError,
    KeyTooLargeError,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
)
from queryablestate.schema.operator_states import RESERVED_STATE_PREFIX
from queryablestate.schema.schema import StateKind
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.selection import of_one_key
from queryablestate.sql.tables import Table


if TYPE_CHECKING:
    from queryablestate.client.async_client import AsyncQueryableStateClient
    from queryablestate.sql.selection import Selection


__all__ = ["all_tables", "find_table", "read", "rows_of_keys"]

_LOOKUPS_AT_ONCE: Final = 100


async def find_table(
    client: AsyncQueryableStateClient,
    schema: str,
    name: str,
    search_path: Sequence[str],
) -> Table:
    """
    Return the table that is written ``schema.name``.

    Names are taken as they are written, and without regard to case if there is just
    one such name.

    Args:
        client: Of the caller.
        schema: The job; "" to look through *search_path*.
        name: The state.
        search_path: Jobs.

    Raises:
        SQLError: If there is no such table, or several.
        NameServiceError: As `AsyncQueryableStateClient.describe`.
    """
    if name.startswith(RESERVED_STATE_PREFIX):
        raise _unknown(schema, name)
    for job_id in [schema] if schema else search_path:
        try:
            return Table.of(await client.describe(job_id, name))
        except ConfigurationError:
            continue  # no state is called like this
        except (UnknownJobError, UnknownStateError):
            found = await _regardless_of_case(client, job_id, name)
            if found is not None:
                return found
    raise _unknown(schema, name)


async def _regardless_of_case(
    client: AsyncQueryableStateClient, schema: str, name: str
) -> Table | None:
    found = []
    for job_id in await client.jobs():
        if job_id.lower() != schema.lower():
            continue
        try:
            states = await client.describe_all(job_id)
        except UnknownJobError:
            continue
        found += [one for one in states if one.name.lower() == name.lower()]
    if len(found) > 1:
        raise SQLError(
            "42P09",
            f"{schema}.{name} may be any of "
            + ", ".join(f'"{one.job_id}"."{one.name}"' for one in found),
            "put the name that is meant into double quotes",
        )
    return Table.of(found[0]) if found else None


def _unknown(schema: str, name: str) -> SQLError:
    written = f"{schema}.{name}" if schema else name
    hint = "\\dn lists the jobs, \\dt JOB.* its states"
    if not schema:
        hint = "write JOB.STATE, or connect to a database that is called like the job"
    return SQLError("42P01", f'relation "{written}" does not exist', hint)


async def all_tables(client: AsyncQueryableStateClient) -> list[Table]:
    """
    Return all tables that the caller may see, in the order of their names.

    Those of a job that cannot be described now are left out; who asks for one is told.
    """
    found = []
    for job_id in await client.jobs():
        try:
            states = await client.describe_all(job_id)
        except (UnknownJobError, AccessDeniedError):
            continue  # it was forgotten meanwhile, or the caller's rights were
        except (StateUnavailableError, RemoteProtocolError):
            continue  # a name service has lost it, or it is of a later release
        for state in states:
            if state.name.startswith(RESERVED_STATE_PREFIX):
                continue
            try:
                found.append(Table.of(state))
            except SQLError:
                continue  # who asks for it is told
    return found


async def rows_of_keys(
    client: AsyncQueryableStateClient,
    table: Table,
    keys: Sequence[Any],
    deadline_seconds: float | None = None,
) -> list[tuple[Any, ...]] | None:
    """
    Return the rows under *keys* that exist, with all columns of *table*.

    Returns:
        None if they can be read in pages alone: a list or a map is too large for one
        answer, or a row holds a year that Python has no date for, and Arrow has.

    Raises:
        SQLError: If *table* is not what the state is by now.
        NameServiceError: As `AsyncQueryableStateClient.lookup`.
    """
    try:
        return await _looked_up(client, table, keys, deadline_seconds)
    except (LocalProtocolError, RemoteProtocolError):
        return None  # if the cause is another one, the pages meet it, too


async def _looked_up(
    client: AsyncQueryableStateClient,
    table: Table,
    keys: Sequence[Any],
    deadline_seconds: float | None,
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []

    async def look_up(key: Any) -> list[tuple[Any, ...]]:
        try:
            entry = await client.lookup(
                table.job_id, table.name, key, deadline_seconds=deadline_seconds
            )
        except (UnknownKeyError, KeyTooLargeError):  # no key is as long
            return []
        return table.rows_of(key, entry)

    if len(keys) == 1:
        return await look_up(keys[0])
    for place in range(0, len(keys), _LOOKUPS_AT_ONCE):
        asked = keys[place : place + _LOOKUPS_AT_ONCE]
        for found in await asyncio.gather(*map(look_up, asked)):
            rows += found
    return rows


async def read(
    client: AsyncQueryableStateClient,
    table: Table,
    selection: Selection,
    columns: Sequence[str],
    row_limit: int | None,
) -> AsyncIterator[Any]:
    """
    Yield what *selection* leaves of a table, as Arrow batches with *columns*.

    Args:
        client: Of the caller.
        table: Which.
        selection: What part of it.
        columns: Which columns, in that order.
        row_limit: How many rows are enough, or None for all.

    Raises:
        SQLError: If *table* is not what the state is by now.
        NameServiceError: As `AsyncQueryableStateClient.batches`.
    """
    if selection.keys is not None:
        rows = await rows_of_keys(client, table, selection.keys)
        if rows is None:
            for key in selection.keys:
                part = of_one_key(table.key, key)
                async for batch in _scan(
                    client,
                    table,
                    columns,
                    prefix=part.prefix,
                    start=part.start,
                    stop=part.stop,
                ):
                    yield batch
            return
        places = {one.name: place for place, one in enumerate(table.fields)}
        chosen = [places[name] for name in columns]
        yield load_arrow().arrow_rows(
            [table.fields[place] for place in chosen],
            [[row[place] for place in chosen] for row in rows],
        )
        return
    is_list = table.schema.kind is StateKind.LIST
    async for batch in _scan(
        client,
        table,
        columns,
        prefix=selection.prefix,
        start=selection.start,
        stop=selection.stop,
        limit=None if is_list else row_limit,
        # The first rows are expected to be those with the least keys.
        in_key_order=row_limit is not None,
    ):
        yield batch


async def _scan(
    client: AsyncQueryableStateClient,
    table: Table,
    columns: Sequence[str],
    **bounds: Any,
) -> AsyncIterator[Any]:
    batches = client.batches(
        table.job_id, table.name, columns=columns, freshness=True, **bounds
    )
    expected = None
    try:
        async for batch in batches:
            if expected is None:
                wanted = {one.name: one for one in table.fields}
                expected = load_arrow().arrow_schema([wanted[name] for name in columns])
                if not batch.schema.remove_metadata().equals(expected):
                    raise table.changed()
            yield batch
    except KeyTooLargeError:
        return  # no key begins with, or is, what is as long: a range never is
