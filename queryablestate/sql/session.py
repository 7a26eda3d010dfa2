"""
`Session`: does what a tool asks for, one step of its `Conversation` after the other.

Rows of keys are looked up here, on the loop; everything else is a worker's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from attrs import define, field

from queryablestate.sql.analysis import Query
from queryablestate.sql.catalog import is_catalog_table
from queryablestate.sql.jobs import Parameter, SessionFacts
from queryablestate.sql.parameters import parameter_types, values_of
from queryablestate.sql.points import (
    KEY_COUNT_MAX,
    encoded_rows,
    limited,
    projection_of,
)
from queryablestate.sql.protocol import messages
from queryablestate.sql.protocol.conversation import (
    BindAsked,
    Conversation,
    DescribePortalAsked,
    DescribeStatementAsked,
    ExecuteAsked,
    ParseAsked,
    QueryAsked,
    Step,
)
from queryablestate.sql.protocol.messages import Bind
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.protocol.types import column_of
from queryablestate.sql.reading import rows_of_keys
from queryablestate.sql.statements import Kind, Statement, split


if TYPE_CHECKING:
    from queryablestate.client.async_client import AsyncQueryableStateClient
    from queryablestate.sql.desk import Desk
    from queryablestate.sql.settings import SessionSettings
    from queryablestate.sql.worker_process import Answer


__all__ = ["Session"]

_NAME_LENGTH_MAX: Final = 63
"""Of a savepoint; Postgres has it so."""


@final
@define(eq=False)
class _Prepared:
    """
    A statement that values may be put into.

    What it asks for is the desk's to keep, which does so for all sessions.
    """

    statement: Statement
    declared: Sequence[int]
    described: tuple[Sequence[tuple[str, str]], Sequence[int]] | None = None


@final
@define(eq=False)
class _Portal:
    """A statement with its values, and how far its rows were sent."""

    prepared: _Prepared
    bind: Bind
    is_begun: bool = False
    columns: Sequence[tuple[str, str]] | None = None
    rows: list[bytes] = field(factory=list)
    answer: Answer | None = None
    held: contextlib.AsyncExitStack = field(factory=contextlib.AsyncExitStack)
    row_count: int = 0
    expiry: asyncio.Task[None] | None = None
    is_expired: bool = False


@final
class Session:
    """
    One session, once its caller is known.

    Args:
        desk: What sessions share.
        conversation: With the tool.
        client: Of the caller.
        caller: What the caller is called among others; no token.
        token: Of the caller, for the workers.
        settings: Of the session.
        process_id: What it is called in a cancel request.
        flush: Sends what is to be sent, and waits while the tool reads too slowly.
    """

    def __init__(
        self,
        desk: Desk,
        conversation: Conversation,
        client: AsyncQueryableStateClient,
        *,
        caller: str,
        token: str | None,
        settings: SessionSettings,
        process_id: int,
        flush: Any,
    ) -> None:
        self._desk = desk
        self._talk = conversation
        self._client = client
        self._caller = caller
        self._token = token
        self._settings = settings
        self._process_id = process_id
        self._flush = flush

    async def do(self, step: Step) -> None:
        """
        Do what *step* asks for, and answer it.

        Raises:
            SQLError: If it cannot be done.
            NameServiceError: Likewise.
        """
        told = self._settings.reported()
        try:
            await self._do(step)
        finally:
            if self._talk.transaction == b"I":
                self._settings.end(commits=True)
            for name, value in self._settings.reported().items():
                if value != told[name]:
                    self._talk.say(messages.parameter_status(name, value))
        await self.free()

    async def _do(self, step: Step) -> None:
        match step:
            case QueryAsked(text=text):
                await self._simple_query(text)
            case ParseAsked():
                self._talk.prepared(await self._prepare(step.text, step.type_oids))
            case BindAsked(bind=bind, statement=prepared):
                await self._check_bind(prepared, bind)
                self._talk.bound(bind.portal, _Portal(prepared, bind))
            case DescribeStatementAsked(statement=prepared):
                await self._describe(prepared)
            case DescribePortalAsked(portal=portal):
                await self._begin(portal)
                self._say_columns(portal)
                _watch(portal)
            case ExecuteAsked(portal=portal, row_limit=row_limit):
                await self._execute(portal, row_limit)

    async def free(self) -> None:
        """Free what portals held that are gone."""
        while self._talk.closed_portals:
            portal = self._talk.closed_portals.pop()
            if portal.expiry is not None:
                portal.expiry.cancel()
            await portal.held.aclose()

    # -- texts of statements -----------------------------------------------------------

    async def _simple_query(self, text: str) -> None:
        statements = self._split(text)
        if not statements:
            self._talk.say(messages.EMPTY_QUERY)
        for place, statement in enumerate(statements):
            if place:  # columns alone may be a thousand times as long as their question
                await self._flush()
            prepared = await self._prepared(statement, ())
            portal = _Portal(prepared, Bind("", "", (), (), ()))
            try:
                await self._begin(portal)
                if portal.columns is not None:
                    self._say_columns(portal)
                await self._execute(portal, 0)
            finally:
                await portal.held.aclose()

    def _split(self, text: str) -> list[Statement]:
        if len(text) > self._desk.text_size_max:
            raise SQLError(
                "54000",
                f"the statement has {len(text):,} characters, at most "
                f"{self._desk.text_size_max:,} can be",
                "pass long lists as parameters, or join with a state",
            )
        return split(text)

    async def _prepare(self, text: str, oids: Sequence[int]) -> _Prepared:
        statements = self._split(text)
        if len(statements) > 1:
            raise SQLError(
                "42601", "cannot insert multiple commands into a prepared statement"
            )
        if not statements:
            return _Prepared(Statement("", Kind.EMPTY, ()), oids)
        return await self._prepared(statements[0], oids)

    async def _prepared(self, statement: Statement, oids: Sequence[int]) -> _Prepared:
        prepared = _Prepared(statement, oids)
        await self._query(prepared)  # which may be refused
        return prepared

    async def _query(self, prepared: _Prepared) -> Query | None:
        """Return what a statement asks for; None if it is no query."""
        if prepared.statement.kind is not Kind.QUERY:
            return None
        return await self._desk.query(prepared.statement.text)

    async def _check_bind(self, prepared: _Prepared, bind: Bind) -> None:
        query = await self._query(prepared)
        wanted = query.parameters if query is not None else ()
        count = max([len(prepared.declared), *map(int, wanted)], default=0)
        if len(bind.parameters) != count:
            raise SQLError(
                "08P01",
                f"{count} parameters are wanted, {len(bind.parameters)} were given",
            )

    # -- columns -----------------------------------------------------------------------

    def _say_columns(self, portal: _Portal) -> None:
        if portal.columns is None:
            self._talk.say(messages.NO_DATA)
            return
        columns = [column_of(*one) for one in portal.columns]
        formats = list(portal.bind.result_formats)
        if len(formats) == 1:
            formats = formats * len(columns)
        self._talk.say(messages.row_description(columns, formats))

    async def _describe(self, prepared: _Prepared) -> None:
        query = await self._query(prepared)
        if query is None:
            portal = _Portal(prepared, Bind("", "", (), (), ()))
            portal.columns = self._columns_of(prepared.statement)
            self._talk.say(messages.parameter_description(prepared.declared))
            self._say_columns(portal)
            return
        if prepared.described is None:
            prepared.described = await self._described(prepared, query)
        columns, oids = prepared.described
        self._talk.say(messages.parameter_description(oids))
        self._talk.say(
            messages.row_description([column_of(*one) for one in columns], ())
        )

    async def _described(
        self, prepared: _Prepared, query: Query
    ) -> tuple[Sequence[tuple[str, str]], Sequence[int]]:
        if query.simple is not None and not is_catalog_table(
            query.simple.schema, query.simple.name
        ):
            table = await self._table(query)
            projection = projection_of(query, table)
            if projection is not None:
                oids = parameter_types(query, [table], prepared.declared)
                return projection.columns, oids
        self._talk.check_transaction()
        async with self._asked(
            prepared.statement.text,
            [Parameter(oid) for oid in prepared.declared],
            (),
            is_description=True,
        ) as answer:
            return answer.columns, answer.parameters

    def _columns_of(self, statement: Statement) -> Sequence[tuple[str, str]] | None:
        if statement.kind is not Kind.SHOW:
            return None
        found = self._settings.show(statement)
        if len(found) == 1:
            return [(found[0][0], "VARCHAR")]
        return [("name", "VARCHAR"), ("setting", "VARCHAR")]

    # -- rows --------------------------------------------------------------------------

    async def _begin(self, portal: _Portal) -> None:
        """Find the columns and the first rows."""
        if portal.is_begun:
            return
        prepared = portal.prepared
        query = await self._query(prepared)
        if query is None:
            if prepared.statement.kind is Kind.SHOW:
                self._talk.check_transaction()
                self._show(portal)
            return
        self._talk.check_transaction()
        portal.is_begun = True
        parameters = _parameters(prepared, portal.bind)
        if await self._look_up(portal, query, parameters):
            self._desk.counts["points_total"] += 1
            return
        self._desk.counts["queries_total"] += 1
        portal.answer = await portal.held.enter_async_context(
            self._asked(prepared.statement.text, parameters, portal.bind.result_formats)
        )
        _check_described(prepared, portal.answer.columns)
        portal.columns = portal.answer.columns

    async def _look_up(
        self, portal: _Portal, query: Query, parameters: list[Parameter]
    ) -> bool:
        """Answer what wants rows of a few keys as they are; return whether it does."""
        use = query.simple
        if use is None or not use.conjuncts or is_catalog_table(use.schema, use.name):
            return False
        table = await self._table(query)
        projection = projection_of(query, table)
        if projection is None:
            return False
        oids = parameter_types(query, [table], [one.oid for one in parameters])
        values = values_of(oids, parameters)
        selection = query.selection(table.key, use, values)
        keys = selection.keys
        if keys is None or not selection.is_exact or len(keys) > KEY_COUNT_MAX:
            return False
        if query.limits is not None and query.bounds(values) is None:
            return False
        found = await rows_of_keys(
            self._client, table, keys, self._settings.timeout_seconds
        )
        if found is None:
            return False  # a worker reads it page by page
        rows = limited(query, found, values)
        assert rows is not None
        _check_described(portal.prepared, projection.columns)
        portal.columns = projection.columns
        portal.rows = encoded_rows(projection, rows, portal.bind.result_formats)
        return True

    async def _table(self, query: Query) -> Any:
        return await self._desk.table(
            self._caller, self._client, query.simple, self._settings.search_path
        )

    def _asked(
        self,
        text: str,
        parameters: list[Parameter],
        formats: Sequence[int],
        *,
        is_description: bool = False,
    ) -> contextlib.AbstractAsyncContextManager[Answer]:
        settings = self._settings
        return self._desk.workers.answer(
            self._caller,
            token=self._token,
            text=text,
            parameters=parameters,
            result_formats=formats,
            session=SessionFacts(
                user=settings.user,
                database=settings.database,
                search_path=settings.search_path,
                settings=settings.values,
                process_id=self._process_id,
            ),
            timeout_seconds=settings.timeout_seconds,
            held_count=sum(_has_place(portal) for portal in self._talk.portals),
            is_description=is_description,
        )

    async def _execute(self, portal: _Portal, row_limit: int) -> None:
        statement = portal.prepared.statement
        if statement.kind not in {Kind.QUERY, Kind.SHOW}:
            await self._command(statement)
            return
        if portal.expiry is not None:
            portal.expiry.cancel()
            portal.expiry = None
        if portal.is_expired:
            raise SQLError(
                "57014", "the rows of this portal were not read in time", "ask again"
            )
        await self._begin(portal)
        left = row_limit or None
        while True:
            if not portal.rows and portal.answer is not None:
                portal.rows = list(await portal.answer.rows())
            if not portal.rows:
                break
            if left == 0:
                self._talk.say(messages.PORTAL_SUSPENDED)
                _watch(portal)
                return
            sent = portal.rows[:left]
            portal.rows = portal.rows[len(sent) :]
            portal.row_count += len(sent)
            self._talk.say(*sent)
            await self._flush()
            if left is not None:
                left -= len(sent)
        await portal.held.aclose()
        portal.answer = None
        tag = "SHOW" if statement.kind is Kind.SHOW else f"SELECT {portal.row_count}"
        portal.row_count = 0
        self._talk.say(messages.command_complete(tag))

    # -- what is no query --------------------------------------------------------------

    def _show(self, portal: _Portal) -> None:
        portal.is_begun = True
        portal.columns = self._columns_of(portal.prepared.statement)
        found = self._settings.show(portal.prepared.statement)
        wide = len(found) > 1
        portal.rows = [
            messages.data_row(
                [name.encode(), value.encode()] if wide else [value.encode()]
            )
            for name, value in found
        ]

    async def _command(self, statement: Statement) -> None:
        talk = self._talk
        kind = statement.kind
        tag = kind.value
        if kind not in {Kind.COMMIT, Kind.ROLLBACK, Kind.ROLLBACK_TO}:
            talk.check_transaction()
        match kind:
            case Kind.EMPTY:
                talk.say(messages.EMPTY_QUERY)
                return
            case Kind.BEGIN:
                talk.begin()
                self._settings.begin()
            case Kind.COMMIT | Kind.ROLLBACK:
                tag = talk.finish(commits=kind is Kind.COMMIT)
                self._settings.end(commits=tag == "COMMIT")
            case Kind.ROLLBACK_TO:
                talk.roll_back_to()
                self._settings.bring_back(_savepoint(statement))
                tag = "ROLLBACK"
            case Kind.SAVEPOINT:
                self._settings.keep(_savepoint(statement))
            case Kind.RELEASE:
                self._settings.release(_savepoint(statement))
            case Kind.SET:
                self._settings.set(statement)
            case Kind.RESET:
                self._settings.reset(statement)
            case Kind.DISCARD:
                tag = self._discard(statement)
            case Kind.DEALLOCATE:
                name = statement.words[-1]
                is_all = len(statement.words) < 2 or name.upper() == "ALL"
                talk.forget_statements(None if is_all else name)
            case Kind.CLOSE if statement.words[-1].upper() != "ALL":
                raise SQLError("34000", "there are no cursors of the server")
        talk.say(messages.command_complete(tag))

    def _discard(self, statement: Statement) -> str:
        """Forget what a session has left, for the next one of a pool."""
        what = statement.words[-1].upper()
        if what == "ALL":
            self._settings.reset_all()
            self._talk.forget_statements()
        elif what not in {"PLANS", "SEQUENCES", "TEMP", "TEMPORARY"}:
            raise SQLError("42601", "DISCARD wants ALL, PLANS, SEQUENCES or TEMP")
        return f"DISCARD {what.removesuffix('ORARY')}"


def _savepoint(statement: Statement) -> str:
    return statement.words[-1].lower()[:_NAME_LENGTH_MAX]


def _has_place(portal: _Portal) -> bool:
    """Return whether a worker waits for the tool to fetch the rows of *portal*."""
    return portal.answer is not None and not portal.is_expired


def _watch(portal: _Portal) -> None:
    """Have *portal* expire, if it holds a worker while the tool does what it likes."""
    if portal.answer is not None and portal.expiry is None and not portal.is_expired:
        portal.expiry = asyncio.create_task(_expire(portal, portal.answer))


async def _expire(portal: _Portal, answer: Answer) -> None:
    """Give the worker of a portal back that is not asked for more rows in time."""
    await asyncio.sleep(max(0.0, answer.due - asyncio.get_running_loop().time()))
    portal.is_expired = True
    portal.expiry = None  # from here on there is nothing to cancel
    portal.rows.clear()
    await portal.held.aclose()


def _check_described(prepared: _Prepared, columns: Sequence[tuple[str, str]]) -> None:
    """Refuse rows that a tool would read as other columns than it was told of."""
    if prepared.described is None:
        return
    told, _ = prepared.described
    if len(told) == len(columns) and all(
        name == new_name
        and (
            new_kind in {kind, '"NULL"'}  # nulls are nulls of every type
            or column_of(name, kind).type_oid == column_of(name, new_kind).type_oid
        )
        for (name, kind), (new_name, new_kind) in zip(told, columns, strict=True)
    ):
        return
    raise SQLError(
        "0A000",
        "cached plan must not change result type",
        "prepare the statement again: it has other columns by now",
        routine="RevalidateCachedQuery",  # drivers do so when they see this
    )


def _parameters(prepared: _Prepared, bind: Bind) -> list[Parameter]:
    formats = list(bind.parameter_formats) or [0]
    if len(formats) == 1:
        formats = formats * len(bind.parameters)
    # What a tool was told is what it sends, though the state may be another one now.
    declared = prepared.declared
    if prepared.described is not None:
        _, declared = prepared.described
    return [
        Parameter(
            declared[place] if place < len(declared) else 0,
            bool(formats[place]),
            value,
        )
        for place, value in enumerate(bind.parameters)
    ]
