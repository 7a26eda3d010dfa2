"""
A process that answers queries: reads what they need of states, and computes.

Theory of operation.  A worker has one job at a time.  The frames of its server come on
standard input, its own go to standard output; the log goes to standard error.  States
are read on the event loop, with the caller's own client; the engine computes in a
thread, so that `Stop` is heard meanwhile.  Rows leave in chunks, each when the server
wants one.  The kernel bounds what a job takes (`MemoryBound`); what was there before is
not counted, so the engine of the next job is made ahead, and threads are as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakSet

from haservices import HAConfig, open_ha_services
from nameservice import NameServiceError, configure_logging, get_logger
from queryablestate.client.frames import load_arrow
from queryablestate.schema.schema import AtomicType, Field
from queryablestate.sql import jobs
from queryablestate.sql.analysis import Query, TableUse, analyse
from queryablestate.sql.catalog import (
    SCHEMA,
    definitions,
    engine_table,
    is_catalog_table,
    needed_tables,
    to_engine,
)
from queryablestate.sql.catalog_rows import catalog_rows
from queryablestate.sql.catalog_tables import CATALOG, columns_of
from queryablestate.sql.clients import CallerClients
from queryablestate.sql.engine import Engine, Parser, refusal_of_engine
from queryablestate.sql.jobs import (
    Described,
    Done,
    FrameReader,
    Job,
    More,
    Ready,
    Refused,
    Rows,
    Setup,
    Stop,
)
from queryablestate.sql.kept import KeptStatements
from queryablestate.sql.memory import MemoryBound
from queryablestate.sql.no_pandas import NoPandas
from queryablestate.sql.parameters import example_of, parameter_types, values_of
from queryablestate.sql.protocol.messages import data_row
from queryablestate.sql.protocol.refusals import SQLError, refusal_of
from queryablestate.sql.protocol.types import BY_OID, ELEMENT_OF, encoder_of
from queryablestate.sql.reading import all_tables, find_table, read
from queryablestate.sql.selection import WHOLE, Selection
from queryablestate.sql.spare_engine import SpareEngine
from queryablestate.sql.tables import Table, engine_folded, engine_type, quoted


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from queryablestate.client.async_client import AsyncQueryableStateClient


__all__ = ["main"]

_CLIENT_COUNT_MAX: Final = 16
_DEADLINE_SECONDS: Final = 30.0
_MEETING_SECONDS: Final = 1.0
_BATCHES_AT_ONCE: Final = 16
_CHUNK_SIZE_BYTES: Final = 256 * 1024
_ROWS_OF_LIMIT: Final = 16  # a row is held about as often on its way to the tool
_THREAD_COUNT: Final = 3  # one computes, one ends that, and one is for clients
_ROW_COUNT_FIRST: Final = 64
_ROW_COUNT_MAX: Final = 4_096


@final
class _Worker:
    """One process."""

    def __init__(
        self, setup: Setup, clients: CallerClients, writer: asyncio.StreamWriter
    ) -> None:
        self._setup = setup
        self._clients = clients
        self._writer = writer
        self._parser = Parser()
        self._trees: KeptStatements[str] = KeptStatements()
        self._engine: Engine | None = None
        self._spare = SpareEngine(self._make_engine)
        self._met: WeakSet[AsyncQueryableStateClient] = WeakSet()
        self._more = asyncio.Semaphore(0)
        self._log = get_logger(component="sql-worker")

    async def serve(self, frames: FrameReader) -> None:
        """Do jobs until the server is gone."""
        await self._warm_up()
        jobs.send(self._writer, Ready())
        await self._writer.drain()
        task: asyncio.Task[None] | None = None
        work: asyncio.Task[None] | None = None
        number = 0
        while True:
            try:
                frame = await frames.receive()
            except EOFError:
                if task is not None:
                    task.cancel()
                return
            match frame:
                case Job():
                    number = frame.number
                    self._more = asyncio.Semaphore(2)
                    work = asyncio.create_task(self._answer(frame))
                    task = asyncio.create_task(self._do(frame, work))
                    task.add_done_callback(self._check)
                case More() if frame.number == number:
                    self._more.release()
                case Stop() if frame.number == number and work is not None:
                    # Not `task`: the server waits for the end that it tells of.
                    work.cancel()
                    if self._engine is not None:
                        self._engine.interrupt()

    def _check(self, task: asyncio.Task[None]) -> None:
        """End the process if a job had no answer: the server starts another one."""
        if not task.cancelled() and task.exception() is not None:
            self._log.error("worker.failed", exc_info=task.exception())
            os._exit(1)

    async def _warm_up(self) -> None:
        """Take what all jobs share: later it would be counted as one of theirs."""
        threads = ThreadPoolExecutor(_THREAD_COUNT)
        asyncio.get_running_loop().set_default_executor(threads)
        started = threading.Barrier(_THREAD_COUNT + 1)
        for _ in range(_THREAD_COUNT):
            threads.submit(started.wait)
        started.wait()
        arrow = load_arrow()
        engine = await asyncio.to_thread(self._make_engine)
        field = Field("a", AtomicType.STRING)
        engine.create("main", "warm", {"a": "VARCHAR"})
        engine.insert_batches("main", "warm", [arrow.arrow_rows([field], [["a"]])])
        query = (
            "SELECT a, count(*), TIMESTAMPTZ 'epoch' FROM warm GROUP BY a ORDER BY a"
        )
        engine.execute(query, {})
        engine.fetch(1)
        engine.close()
        self._memory = MemoryBound(self._setup.memory_limit_bytes)
        self._spare.prepare()

    async def _do(self, job: Job, work: asyncio.Task[None]) -> None:
        """Wait for *work*, and say how the job has ended, however that was."""
        refusal: SQLError | None = None
        is_hurt = False
        try:
            try:
                async with asyncio.timeout(job.timeout_seconds):
                    await work
            except TimeoutError:
                raise SQLError(
                    "57014",
                    f"the statement took longer than {job.timeout_seconds:g} seconds",
                    "ask for less, or start 'lodestar sql' with a longer "
                    "--statement-timeout",
                ) from None
        except asyncio.CancelledError:
            refusal = SQLError("57014", "canceling statement due to user request")
        except (SQLError, NameServiceError) as error:
            refusal = refusal_of(error)
        except Exception as error:  # noqa: BLE001 (the server is told, the log has it)
            refusal = refusal_of_engine(error)
            if refusal is None:
                self._log.exception("statement.failed", error_type=type(error).__name__)
                refusal = refusal_of(error)
            # What else asked for memory then, and was not given it, is not known.
            is_hurt = isinstance(error, MemoryError)
        finally:
            await self._discard()
        is_spent = not self._memory.end() or is_hurt
        jobs.send(self._writer, _ended(job, refusal, is_worker_spent=is_spent))
        await self._writer.drain()
        # To make one takes some milliseconds: the next statement need not wait.
        await self._spare.prepare()

    def _make_engine(self) -> Engine:
        return Engine(self._setup.memory_limit_bytes, self._setup.thread_count)

    async def _meet(self, client: AsyncQueryableStateClient) -> None:
        """Have *client* start its threads, which all jobs of its caller share."""
        if client not in self._met:
            with contextlib.suppress(NameServiceError):  # who needs it is told
                await client.jobs(deadline_seconds=_MEETING_SECONDS)
            self._met.add(client)

    async def _discard(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.interrupt()
            await asyncio.shield(asyncio.to_thread(engine.close))

    async def _answer(self, job: Job) -> None:
        query = self._query(job.text)
        session = job.session
        async with self._clients.client_of(job.token) as client:
            found = await _find(client, query, session.search_path)
            tables = list({id(table): table for table in found.values()}.values())
            declared = [one.oid for one in job.parameters]
            oids = parameter_types(query, tables, declared)
            if job.is_description:
                values = {
                    str(n): example_of(oid) for n, oid in enumerate(oids, start=1)
                }
            else:
                values = values_of(oids, job.parameters)
            values = {name: values[name] for name in query.parameters}
            engine = self._engine = await self._spare.take()
            await self._meet(client)
            self._memory.begin()
            await _fill(
                engine, client, query, found, values, is_empty=job.is_description
            )
            text = job.text
            if to_engine(query, session):
                text = engine.text_of(json.dumps(query.tree))
                await _fill_catalog(engine, client, query, job)
        bound = {
            name: _typed(engine, value, oids[int(name) - 1])
            for name, value in values.items()
        }
        if job.is_description:
            columns = await asyncio.to_thread(engine.describe, text, bound)
        else:
            columns = await asyncio.to_thread(engine.execute, text, bound)
        columns = _named(columns, query)
        jobs.send(
            self._writer,
            Described(number=job.number, columns=columns, parameters=oids),
        )
        await self._writer.drain()
        if not job.is_description:
            await self._send_rows(job, engine, columns)

    def _query(self, text: str) -> Query:
        tree = self._trees.get(text)
        if tree is None:
            tree = self._parser.tree_of(text)
            self._trees.put(text, tree, len(tree))
        return analyse(tree)  # made anew: `to_engine` changes it

    async def _send_rows(
        self, job: Job, engine: Engine, columns: Sequence[tuple[str, str]]
    ) -> None:
        formats = job.result_formats or [0]
        if len(formats) == 1:
            formats = formats * len(columns)
        if len(formats) != len(columns):
            raise SQLError(
                "08P01", f"{len(columns)} columns have {len(formats)} formats"
            )
        encoders = [
            encoder_of(kind, is_binary=bool(form))
            for (_, kind), form in zip(columns, formats, strict=True)
        ]
        count = _ROW_COUNT_FIRST
        row_size_max = self._setup.memory_limit_bytes // _ROWS_OF_LIMIT

        def next_rows() -> list[bytes]:
            return [
                _checked(
                    data_row(
                        [
                            None if value is None else encode(value)
                            for value, encode in zip(row, encoders, strict=True)
                        ]
                    ),
                    row_size_max,
                )
                for row in engine.fetch(count)
            ]

        while rows := await asyncio.to_thread(next_rows):
            size = sum(map(len, rows))
            for chunk in _chunks(rows):
                await self._more.acquire()
                jobs.send(self._writer, Rows(number=job.number, rows=chunk))
                await self._writer.drain()
            if size < _CHUNK_SIZE_BYTES // 2:
                count = min(count * 2, _ROW_COUNT_MAX)
            elif size > _CHUNK_SIZE_BYTES:
                count = max(1, count // 2)


def _typed(engine: Engine, value: Any, oid: int) -> Any:
    """Return a parameter as the integer that it was described as, however small."""
    found, is_array = BY_OID.get(oid), False
    if found is None:
        found, is_array = ELEMENT_OF.get(oid), True
    if found is None or found.name not in {"int2", "int4", "int8", "float4"}:
        return value
    return engine.typed(
        value, f"{found.engine_name}[]" if is_array else found.engine_name
    )


def _checked(row: bytes, size_max: int) -> bytes:
    """Return *row*, unless the server would have to hold too much at once for it."""
    if len(row) > size_max:
        raise SQLError(
            "54000",
            f"a row has {len(row):,} bytes, at most {size_max:,} can be: one in "
            f"{_ROWS_OF_LIMIT} of --memory-limit",
            "ask for less of it, or start 'lodestar sql' with a larger --memory-limit",
        )
    return row


def _chunks(rows: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield *rows* in parts of some size, or of one row."""
    chunk: list[bytes] = []
    size = 0
    for row in rows:
        if chunk and size + len(row) > _CHUNK_SIZE_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row)
    yield chunk


def _ended(
    job: Job, error: SQLError | None, *, is_worker_spent: bool
) -> Done | Refused:
    if error is None:
        return Done(number=job.number, is_worker_spent=is_worker_spent)
    return Refused(
        number=job.number,
        is_worker_spent=is_worker_spent,
        sqlstate=error.sqlstate,
        message=error.message,
        hint=error.hint,
        position=error.position,
    )


def _named(columns: Sequence[tuple[str, str]], query: Query) -> list[tuple[str, str]]:
    """Return *columns* with the names that Postgres would give them."""
    names = query.output_names
    if None in names or len(names) != len(columns):
        return list(columns)
    return [(name or "", kind) for name, (_, kind) in zip(names, columns, strict=True)]


async def _find(
    client: AsyncQueryableStateClient, query: Query, search_path: Sequence[str]
) -> dict[tuple[str, str], Table]:
    """Return the states that *query* names, by how they are written (`_written`)."""
    found: dict[tuple[str, str], Table] = {}
    for use in query.tables:
        if is_catalog_table(use.schema, use.name):
            _check_catalog(use)
            continue
        written = _written(use)
        table = await find_table(client, use.schema, use.name, search_path)
        known = found.setdefault(written, table)
        if (known.job_id, known.name) != (table.job_id, table.name):
            raise SQLError(
                "42P09", f"two states are called {use.schema}.{use.name} but for case"
            )
    return found


def _written(use: TableUse) -> tuple[str, str]:
    """Return the name of a table, alike where the engine takes it for the same."""
    return engine_folded(use.schema), engine_folded(use.name)


def _check_catalog(use: TableUse) -> None:
    is_information = use.schema.lower() == "information_schema"
    name = f"information_schema.{use.name}" if is_information else use.name
    if name.lower() not in CATALOG:
        raise SQLError("42P01", f'relation "{use.schema}.{use.name}" does not exist')


async def _fill(
    engine: Engine,
    client: AsyncQueryableStateClient,
    query: Query,
    found: Mapping[tuple[str, str], Table],
    values: Mapping[str, Any],
    *,
    is_empty: bool,
) -> None:
    """Make the tables of a query, with the rows that it needs."""
    for written, table in found.items():
        schema, name = quoted(written[0] or "main"), quoted(written[1])
        columns = table.columns(query.column_names)
        types = {one.name: engine_type(one.type) for one in table.fields}
        engine.create(schema, name, {quoted(one): types[one] for one in columns})
        if is_empty:
            continue
        uses = [use for use in query.tables if _written(use) == written]
        selection = _selection(query, table, uses, values)
        row_limit = None
        if query.simple is not None and (selection.is_exact or not uses[0].conjuncts):
            row_limit = query.row_limit(values)
        waiting: list[Any] = []
        async for batch in read(client, table, selection, columns, row_limit):
            waiting.append(batch)
            if len(waiting) >= _BATCHES_AT_ONCE:
                engine.insert_batches(schema, name, waiting)
                waiting = []
        engine.insert_batches(schema, name, waiting)


def _selection(
    query: Query, table: Table, uses: Sequence[TableUse], values: Mapping[str, Any]
) -> Selection:
    """Return what of a table is needed by all places that name it."""
    selections = [query.selection(table.key, use, values) for use in uses]
    if all(one == selections[0] for one in selections):
        return selections[0]
    return WHOLE


async def _fill_catalog(
    engine: Engine, client: AsyncQueryableStateClient, query: Query, job: Job
) -> None:
    """Make what a query asks of the catalog."""
    for definition in definitions(query, job.session):
        engine.define(definition)
    needed = needed_tables(query)
    if not needed or job.is_description:
        return
    tables = await all_tables(client)
    rows = catalog_rows(await client.jobs(), tables, job.session)
    for name in needed:
        if rows[name]:
            engine.insert_columns(
                SCHEMA,
                engine_table(name),
                {
                    column: [row.get(column) for row in rows[name]]
                    for column in columns_of(name)
                },
            )


async def _pipes() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return standard input and output as streams."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1024 * 1024)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    # What prints by mistake is not to be taken for a frame.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, out
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _main() -> None:
    reader, writer = await _pipes()
    frames = FrameReader(reader, jobs.to_worker)
    setup = await frames.receive()
    assert isinstance(setup, Setup)
    settings: dict[str, Any] = dict(setup.settings)
    with open_ha_services(HAConfig(**settings)) as ha:
        clients = CallerClients(
            ha, count_max=_CLIENT_COUNT_MAX, deadline_seconds=_DEADLINE_SECONDS
        )
        worker = _Worker(setup, clients, writer)
        try:
            await worker.serve(frames)
        finally:
            await clients.close()


def main() -> None:
    """Run one, until standard input ends."""
    configure_logging("warning")
    sys.meta_path.insert(0, NoPandas())
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_main())


if __name__ == "__main__":
    main()
