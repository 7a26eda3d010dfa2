"""
DuckDB: the parser of every statement, and what computes the answers.

Theory of operation.  Each answer is computed in a database of its own, in memory, that
has the tables of one statement of one caller and nothing else; it is thrown away then.
A database is locked before it sees a statement: no files, no network, no extensions, no
settings.  What a statement reads is *inserted*, so that it counts against the memory
limit like everything else, and exceeding that is an error of this statement alone.
Texts of rows do not count here: `MemoryBound` has what holds for the whole process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

import duckdb
import pyarrow as pa

from queryablestate.sql.protocol.refusals import SQLError


__all__ = ["Engine", "Parser", "refusal_of_engine"]

_SETTINGS: Final[Mapping[str, Any]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "python_enable_replacements": "false",
    # As Postgres has it: 1 / 2 is 0, and nulls are greatest.
    "integer_division": "true",
    "default_null_order": "nulls_last_on_asc_first_on_desc",
}

_INTERRUPT_SECONDS: Final = 0.05

_MORE_MEMORY: Final = (
    "ask for less, or start 'lodestar sql' with a larger --memory-limit"
)

# By the class of the engine's error: SQLSTATE, and what to do.
_STATES: Final = (
    (duckdb.OutOfMemoryException, "53200", _MORE_MEMORY),
    (duckdb.InterruptException, "57014", ""),
    (duckdb.ParserException, "42601", ""),
    (duckdb.CatalogException, "42883", ""),
    (duckdb.BinderException, "42703", ""),
    (duckdb.ConversionException, "22P02", ""),
    (duckdb.OutOfRangeException, "22003", ""),
    (
        duckdb.PermissionException,
        "42501",
        "files and networks cannot be read from here",
    ),
    (duckdb.NotImplementedException, "0A000", ""),
    (duckdb.InvalidInputException, "22023", ""),
    (duckdb.Error, "58000", ""),
)


def refusal_of_engine(error: Exception) -> SQLError | None:
    """Return what a tool is told of *error*, or None if it is none of the engine's."""
    if isinstance(error, UnicodeError):
        return SQLError("22021", "text must be UTF-8")
    if isinstance(error, MemoryError):
        return SQLError(
            "53200", "the statement takes more memory than one may", _MORE_MEMORY
        )
    for kind, sqlstate, hint in _STATES:
        if isinstance(error, kind):
            found = sqlstate
            lines = str(error).split("\n\nLINE ")[0].split("\n")
            message = lines[0].partition("Error: ")[2] or lines[0]
            if message.startswith("Division by zero"):
                found = "22012"
            more = " ".join(line for line in lines[1:] if line)
            return SQLError(found, message, hint or more)
    return None


def _connect(settings: Mapping[str, Any]) -> Any:
    connection = duckdb.connect(":memory:", config={**_SETTINGS, **settings})
    connection.execute("SET TimeZone = 'UTC'").fetchall()
    return connection


def _lock(connection: Any) -> None:
    connection.execute("SET lock_configuration = true").fetchall()


@final
class Parser:
    """The engine's parser.  For one thread."""

    def __init__(self) -> None:
        self._connection = _connect({"threads": "1", "memory_limit": "64MB"})
        _lock(self._connection)

    def tree_of(self, text: str) -> str:
        """
        Return what *text* is, as JSON; mistakes are in it.

        Raises:
            SQLError: If it is nothing that can be parsed.
        """
        try:
            rows = self._connection.execute(
                "SELECT json_serialize_sql($1::VARCHAR)", [text]
            ).fetchall()
        except (duckdb.Error, UnicodeError) as error:
            refusal = refusal_of_engine(error)
            assert refusal is not None
            raise refusal from error
        return str(rows[0][0])

    def close(self) -> None:
        """Release it.  Idempotent."""
        self._connection.close()


@final
class Engine:
    """
    A database for one statement.

    Its methods but `interrupt` are for one thread at a time.

    Args:
        memory_limit_bytes: For everything that it holds.
        thread_count: How many threads compute.
    """

    def __init__(self, memory_limit_bytes: int, thread_count: int) -> None:
        self._connection = _connect(
            {
                "threads": str(thread_count),
                "memory_limit": f"{memory_limit_bytes}B",
            }
        )
        _lock(self._connection)
        self._busy = threading.Lock()
        self._lock = threading.Lock()  # guards the end of the connection
        self._is_ending = False
        self._is_closed = False

    def define(self, statement: str) -> None:
        """Run a statement of ours, for its effect."""
        self._connection.execute(statement).fetchall()

    def create(self, schema: str, name: str, columns: Mapping[str, str]) -> None:
        """
        Make an empty table.

        Args:
            schema: Quoted.
            name: Quoted.
            columns: Quoted names, and their types.
        """
        inner = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        self.define(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        self.define(f"CREATE TABLE {schema}.{name} ({inner})")

    def insert(self, schema: str, name: str, rows: Any) -> None:
        """Put an Arrow table into a table that has its columns."""
        self._connection.register("lodestar_batch", rows)
        try:
            self.define(f"INSERT INTO {schema}.{name} SELECT * FROM lodestar_batch")  # noqa: S608 (quoted)
        finally:
            self._connection.unregister("lodestar_batch")

    def insert_batches(self, schema: str, name: str, batches: Sequence[Any]) -> None:
        """Put Arrow batches into a table that has their columns."""
        if batches:
            plain = [batch.replace_schema_metadata(None) for batch in batches]
            self.insert(schema, name, pa.Table.from_batches(plain))

    def insert_columns(
        self, schema: str, name: str, columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """Put rows into a table, by its columns."""
        self.insert(schema, name, pa.table(dict(columns)))

    def text_of(self, tree_text: str) -> str:
        """Return the statement that a parser's tree is."""
        rows = self._connection.execute(
            "SELECT json_deserialize_sql($1::JSON)", [tree_text]
        ).fetchall()
        return str(rows[0][0])

    def describe(
        self, text: str, parameters: Mapping[str, Any]
    ) -> list[tuple[str, str]]:
        """
        Return names and types of the columns of a query, without running it.

        Args:
            text: The query.
            parameters: Some values by their numbers, made with `typed`.
        """
        with self._at_work():
            rows = self._connection.execute(
                f"DESCRIBE {text}", _bound(parameters)
            ).fetchall()
        return [(row[0], row[1]) for row in rows]

    def typed(self, value: Any, engine_type: str) -> Any:
        """Return *value* as a parameter of a type, which else depends on its size."""
        if value is None:
            return None
        # A type of the module's would have it open another database for this.
        return duckdb.Value(value, self._connection.sqltype(engine_type))

    def execute(
        self, text: str, parameters: Mapping[str, Any]
    ) -> list[tuple[str, str]]:
        """Run a query, and return names and types of its columns; `fetch` its rows."""
        with self._at_work():
            self._connection.execute(text, _bound(parameters))
            return [(one[0], str(one[1])) for one in self._connection.description]

    def fetch(self, count: int) -> list[tuple[Any, ...]]:
        """
        Return the next rows, *count* at most; none at the end.

        Raises:
            SQLError: If one has an interval that Python has no value for.
        """
        with self._at_work():
            try:
                rows: list[tuple[Any, ...]] = self._connection.fetchmany(count)
            except OverflowError as error:
                raise SQLError(
                    "22008", f"an interval is too long: {error}", "cast it to VARCHAR"
                ) from error
        return rows

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._busy:
            if self._is_ending:
                raise duckdb.InterruptException("it is being closed")
            yield

    def interrupt(self) -> None:
        """Have what is running end with an error; from any thread."""
        with self._lock:
            if not self._is_closed:
                self._connection.interrupt()

    def close(self) -> None:
        """Throw everything away, also what is running.  Idempotent."""
        self._is_ending = True
        # An interrupt that comes just before a call of the engine is lost.
        while not self._busy.acquire(timeout=_INTERRUPT_SECONDS):
            self.interrupt()
        with self._lock:
            self._is_closed = True
            self._connection.close()
        self._busy.release()


def _bound(parameters: Mapping[str, Any]) -> Any:
    return dict(parameters) or None
