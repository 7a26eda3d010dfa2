"""
A whole state as a file: Parquet, CSV, or JSON lines.

CSV and JSON have a row for each key, each entry of a map, each item of a list, as
`QueryableStateClient.scan` has them; Parquet is what `QueryableStateClient.table` has.
Values in CSV and JSON are written as `queryablestate.schema.json_values` says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from queryablestate.client.frames import load_arrow, row_columns
from queryablestate.schema.json_values import column_to_json


if TYPE_CHECKING:
    from typing import BinaryIO

    from queryablestate.client.client import QueryableStateClient
    from queryablestate.schema.schema import Field


__all__ = ["ExportFormat", "csv_heading", "csv_row", "export_state"]

_QUOTED_IN_CSV: Final = frozenset(',"\r\n')


class ExportFormat(Enum):
    """How a state is written."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


def export_state(
    client: QueryableStateClient,
    job_id: str,
    state_name: str,
    export_format: ExportFormat,
    file: BinaryIO,
    *,
    min_batch_id: int | None = None,
    min_generation: int | None = None,
) -> int:
    """
    Write a whole state to *file*, page by page, and return how many rows it has.

    Nothing is written before the first page is there.

    Args:
        client: Who asks.
        job_id: The job.
        state_name: The state.
        export_format: CSV and JSON hold one page in memory, Parquet up to 64 MiB; see
            also `QueryableStateClient.batches` about lists.
        file: Open, and written to from its present place on; stays open.
        min_batch_id: Wait until this batch is visible.
        min_generation: Whose batch; without it, of the present generation.

    Raises:
        ConfigurationError: If Parquet is wanted, and pyarrow is not installed.
        OSError: If *file* cannot be written.
        NameServiceError: As `QueryableStateClient.scan` does.
    """
    if export_format is ExportFormat.PARQUET:
        batches = client.batches(
            job_id,
            state_name,
            min_batch_id=min_batch_id,
            min_generation=min_generation,
        )
        count: int = load_arrow().write_parquet(batches, file)
        return count
    schema = client.describe(job_id, state_name).registered_schema
    rows = (
        row_columns(schema, key, value)
        for key, value in client.scan(
            job_id,
            state_name,
            min_batch_id=min_batch_id,
            min_generation=min_generation,
        )
    )
    fields = (*schema.key, *schema.map_key, *schema.value)
    lines = _csv_lines if export_format is ExportFormat.CSV else _json_lines
    return _write(lines(fields, rows), file, is_first_a_row=lines is _json_lines)


def _write(lines: Iterator[str], file: BinaryIO, *, is_first_a_row: bool) -> int:
    """Write *lines*, and return how many of them are rows."""
    count = 0 if is_first_a_row else -1
    for line in lines:
        # Half of a pair of surrogates, which JSON and Spark do not refuse, is no UTF-8.
        file.write(line.encode(errors="replace"))
        count += 1
    return count


def _csv_lines(
    fields: tuple[Field, ...], rows: Iterator[tuple[Any, ...]]
) -> Iterator[str]:
    """
    Yield a heading and the rows.

    Null is nothing, and an empty text is a pair of quotes: that is how DuckDB and
    Postgres tell them apart.  Before Python 3.12 the csv module cannot write that.
    """
    first = next(rows, None)  # an error is to come before the heading
    yield csv_heading(fields)
    if first is not None:
        line = csv_row(fields)
        yield line(first)
        yield from map(line, rows)


def csv_heading(fields: Sequence[Field]) -> str:
    """Return the first line of a file in CSV."""
    return _csv_line(_quoted(one.name) for one in fields)


def csv_row(fields: Sequence[Field]) -> Callable[[Sequence[Any]], str]:
    """Return what writes a row of the columns *fields* as a line of CSV."""
    cells = [_csv_cell(one) for one in fields]
    return lambda row: _csv_line(
        cell(value) for cell, value in zip(cells, row, strict=True)
    )


def _csv_line(cells: Iterator[str]) -> str:
    return ",".join(cells) + "\n"


def _csv_cell(field: Field) -> Callable[[Any], str]:
    """Return what writes a value of the column *field*."""
    data_type = field.type

    def cell(value: Any) -> str:
        tree = column_to_json(data_type, value)
        match tree:
            case None:
                return ""
            case str():
                return _quoted(tree)
            case _:
                return _quoted(json.dumps(tree, ensure_ascii=False))

    return cell


def _quoted(text: str) -> str:
    if text and _QUOTED_IN_CSV.isdisjoint(text) and text == text.strip():
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _json_lines(
    fields: tuple[Field, ...], rows: Iterator[tuple[Any, ...]]
) -> Iterator[str]:
    """Yield an object for each row."""
    for row in rows:
        tree = {
            one.name: column_to_json(one.type, value)
            for one, value in zip(fields, row, strict=True)
        }
        yield json.dumps(tree, ensure_ascii=False) + "\n"
