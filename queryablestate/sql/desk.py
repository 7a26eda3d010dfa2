"""`Desk`: what all sessions of a server of SQL share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, final

from queryablestate.sql.analysis import Query, analyse
from queryablestate.sql.kept import KeptStatements
from queryablestate.sql.reading import find_table


if TYPE_CHECKING:
    from collections.abc import Callable

    from queryablestate.client.async_client import AsyncQueryableStateClient
    from queryablestate.sql.engine import Parser
    from queryablestate.sql.workers import Workers


__all__ = ["Desk"]

_TABLE_COUNT_MAX: Final = 1_000
_FRESH_NS: Final = 1_000_000_000
_SHORT_TEXT_SIZE_MAX: Final = 2_000
"""Parsed at once: that takes some ten milliseconds at the most."""


@final
class Desk:
    """
    What all sessions share.

    Args:
        make_parser: Makes a parser of statements; two are made, and closed with this.
        workers: That answer queries.
        text_size_max: How long a text of statements may be, in characters.
        now_ns: Tells the time.
    """

    def __init__(
        self,
        make_parser: Callable[[], Parser],
        workers: Workers,
        *,
        text_size_max: int,
        now_ns: Any,
    ) -> None:
        self.workers = workers
        self.text_size_max = text_size_max
        self.now_ns = now_ns
        self.counts: dict[str, int] = {"points_total": 0, "queries_total": 0}
        self._parser = make_parser()
        self._parser_of_long = make_parser()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sql-parser")
        self._queries: KeptStatements[Query] = KeptStatements()
        self._tables: OrderedDict[Any, tuple[int, Any]] = OrderedDict()

    def close(self) -> None:
        """Release the parsers.  Idempotent."""
        self._thread.shutdown(cancel_futures=True)
        self._parser.close()
        self._parser_of_long.close()

    async def query(self, text: str) -> Query:
        """
        Return what *text* asks for.

        A long one takes tenths of a second: in a thread, so that other sessions go on.

        Raises:
            SQLError: If it cannot be read.
        """
        found = self._queries.get(text)
        if found is not None:
            return found
        if len(text) <= _SHORT_TEXT_SIZE_MAX:
            query, tree_size = _understand(self._parser, text)
        else:
            query, tree_size = await asyncio.get_running_loop().run_in_executor(
                self._thread, _understand, self._parser_of_long, text
            )
            found = self._queries.get(text)
            if found is not None:
                return found  # another session was quicker
        self._queries.put(text, query, tree_size)
        return query

    async def table(
        self,
        caller: str,
        client: AsyncQueryableStateClient,
        use: Any,
        search_path: tuple[str, ...],
    ) -> Any:
        """Return the table that *use* names, as it was within the last second."""
        name = (caller, use.schema, use.name, () if use.schema else search_path)
        known = self._tables.get(name)
        if known is not None and self.now_ns() - known[0] < _FRESH_NS:
            return known[1]
        table = await find_table(client, use.schema, use.name, search_path)
        self._tables[name] = (self.now_ns(), table)
        self._tables.move_to_end(name)
        if len(self._tables) > _TABLE_COUNT_MAX:
            self._tables.popitem(last=False)
        return table


def _understand(parser: Parser, text: str) -> tuple[Query, int]:
    """Return what *text* asks for, and how large its tree is."""
    tree = parser.tree_of(text)
    return analyse(tree), len(tree)
