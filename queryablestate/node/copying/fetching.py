"""
`RowsFetch`: copies key groups from one other node into the store (rule S2).

Pages are asked for as they are written: what is under way, and what waits for the disk,
is never more than a few of them.  No reader sees these rows yet; what an attempt that
came to nothing has written, the next one begins with removing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from nameservice import RemoteProtocolError, get_logger
from nameservice.clock import NS_PER_MS
from queryablestate.node.copying.calls import COPY_ID
from queryablestate.node.copying.writing import CopyWriting
from queryablestate.node.core.events import CopyAdvanced, KeyGroupsFetched
from queryablestate.wire.codec import decode_copied_rows
from queryablestate.wire.copy_messages import (
    CopiedRows,
    CopyContinues,
    CopyOpened,
    CopyPage,
    OpenCopy,
    runs_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from queryablestate.node.copying.calls import CopyCall, CopyCaller
    from queryablestate.node.core.effects import FetchKeyGroups
    from queryablestate.store.store import StateStore
    from queryablestate.store.threads import StoreWriter
    from queryablestate.wire.copy_messages import CopiedStates, FromCopySource


__all__ = ["FetchTotals", "RowsFetch"]


@final
class FetchTotals:
    """How much was fetched for each job since the node started; for one thread."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[int, int]] = {}

    def add(self, job_id: str, row_count: int, size_bytes: int) -> CopyAdvanced:
        """Take note of more, and return how much it is now."""
        rows, size = self._totals.get(job_id, (0, 0))
        rows, size = rows + row_count, size + size_bytes
        self._totals[job_id] = (rows, size)
        return CopyAdvanced(job_id=job_id, row_count=rows, size_bytes=size)


@final
class RowsFetch:
    """
    One `FetchKeyGroups`.  Made and cancelled by any thread, else the caller's.

    Args:
        caller: Whose thread asks the other node.
        effect: What is to be fetched.
        store: Where to.
        writer: Whose thread writes to it.
        totals: Of the caller.
        on_event: Is told, in the caller's thread, how far it is, and that it is over;
            not after `cancel`.

    Attributes:
        effect: As it was given.
        is_over: Whether there is nothing more to wait for.
    """

    def __init__(
        self,
        caller: CopyCaller,
        effect: FetchKeyGroups,
        *,
        store: StateStore,
        writer: StoreWriter,
        totals: FetchTotals,
        on_event: Callable[[CopyAdvanced | KeyGroupsFetched], None],
    ) -> None:
        self.effect = effect
        self.is_over = False
        self._caller = caller
        self._store = store
        self._totals = totals
        self._on_event = on_event
        self._log = get_logger(
            component="state-node",
            job_id=effect.job_id,
            source=effect.source.node_id,
            fetch_id=effect.fetch_id,
        )
        self._writing: CopyWriting[CopiedRows] = CopyWriting(
            writer,
            effect.job_id,
            self._write,
            on_written=self._written_there,
            on_failed=self._failed_there,
        )
        self._call: CopyCall | None = None
        self._states: CopiedStates | None = None
        self._no_rows = CopiedRows(state_number=0, keys=[], values=[])
        self._page_count = self._unwritten_count = 0
        self._is_last_here = False
        self._began_ns = self._told_ns = 0
        self._rows_untold = self._bytes_untold = 0
        self._row_count = self._size_bytes = 0

    def cancel(self) -> None:
        """Write no more of it; from any thread, before it is closed in its own."""
        self._writing.cancel()

    # -- in the caller's thread ----------------------------------------------------

    def start(self) -> None:
        """Ask the source."""
        caller, effect = self._caller, self.effect
        self._began_ns = caller.clock.now_ns()
        self._log.info("copy.started", key_group_count=len(effect.source.key_groups))
        request = OpenCopy(
            copy_id=COPY_ID,
            job_id=effect.job_id,
            key_groups=runs_of(effect.source.key_groups),
            sequence_min=effect.sequence_min,
            page_count=caller.limits.pages_ahead_count,
            page_size_bytes=caller.limits.page_size_bytes,
        )
        self._call = caller.call(
            effect.source.address,
            request,
            on_message=self._receive,
            on_failed=self._fail,
        )

    def let_time_pass(self, now_ns: int) -> None:
        """Give up a source that is silent; for the caller, several times a second."""
        if self._call is not None:
            self._call.let_time_pass(now_ns)

    def close(self) -> None:
        """Ask for no more.  Idempotent."""
        self.is_over = True
        self._writing.cancel()
        self._hang_up()

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.close()

    def _receive(self, message: FromCopySource, payload: zmq.Frame | None) -> None:
        match message:
            case CopyOpened(states=states) if self._states is None:
                if states.sequence < self.effect.sequence_min:
                    raise RemoteProtocolError(
                        "malformed", f"a copy at entry {states.sequence} is too old"
                    )
                if states.key_groups != runs_of(self.effect.source.key_groups):
                    raise RemoteProtocolError(
                        "malformed", "a copy of other key groups than were asked for"
                    )
                self._states = states
                # The store learns of states that have no rows, too.
                self._add(self._no_rows, 0)
            case CopyPage(page_index=index, is_last=is_last) if (
                self._states is not None and payload is not None
            ):
                if index != self._page_count:
                    raise RemoteProtocolError("malformed", f"page {index} is not next")
                if self._unwritten_count > self._caller.limits.pages_ahead_count:
                    raise RemoteProtocolError("malformed", "more pages than allowed")
                rows = decode_copied_rows(payload.buffer)
                if len(rows.keys) != len(rows.values):
                    raise RemoteProtocolError("malformed", "keys without values")
                self._page_count += 1
                self._add(rows, len(payload))
                if is_last:
                    self._is_last_here = True
                    self._hang_up()  # nothing that happens to it matters any more
            case CopyContinues():
                pass
            case _:
                raise RemoteProtocolError(
                    "malformed", f"{type(message).__name__} makes no sense here"
                )

    def _add(self, rows: CopiedRows, size_bytes: int) -> None:
        self._unwritten_count += 1
        self._row_count += len(rows.keys)
        self._size_bytes += size_bytes
        self._rows_untold += len(rows.keys)
        self._bytes_untold += size_bytes
        self._writing.add(rows, size_bytes)

    def _written(self, count: int, page_count: int) -> None:
        if self.is_over:
            return
        self._unwritten_count -= count
        if self._call is not None and page_count:
            self._call.allow(page_count)
        now_ns = self._caller.clock.now_ns()
        is_done = self._is_last_here and not self._unwritten_count
        if is_done or now_ns - self._told_ns >= self._caller.limits.advance_ns:
            self._told_ns = now_ns
            self._tell()
        if is_done:
            assert self._states is not None
            self._log.info("copy.completed", **self._figures())
            self._finish(self._states.sequence, None)

    def _tell(self) -> None:
        rows, size_bytes = self._rows_untold, self._bytes_untold
        self._rows_untold = self._bytes_untold = 0
        self._on_event(self._totals.add(self.effect.job_id, rows, size_bytes))

    def _fail(self, reason: str) -> None:
        if not self.is_over:
            self._log.warning("copy.failed", reason=reason, **self._figures())
            self._finish(0, reason)

    def _finish(self, sequence: int, failure: str | None) -> None:
        self.close()
        self._on_event(
            KeyGroupsFetched(
                job_id=self.effect.job_id,
                fetch_id=self.effect.fetch_id,
                sequence=sequence,
                failure=failure,
            )
        )

    def _figures(self) -> dict[str, int]:
        return {
            "duration_ms": (self._caller.clock.now_ns() - self._began_ns) // NS_PER_MS,
            "row_count": self._row_count,
            "size_bytes": self._size_bytes,
        }

    # -- on the writer's thread ----------------------------------------------------

    def _write(self, pages: Sequence[CopiedRows]) -> None:
        """Put pages, those of one state together: a transaction costs more than one."""
        assert self._states is not None
        for rows in joined(pages):
            self._store.put_copied(self.effect.job_id, self._states, rows)

    def _written_there(self, pages: Sequence[CopiedRows]) -> None:
        page_count = sum(page is not self._no_rows for page in pages)
        self._caller.post(partial(self._written, len(pages), page_count))

    def _failed_there(self, reason: str) -> None:
        self._caller.post(partial(self._fail, reason))


def joined(pages: Sequence[CopiedRows]) -> list[CopiedRows]:
    """Return *pages*, those of one state that follow each other as one."""
    found: list[CopiedRows] = []
    for page in pages:
        if found and found[-1].state_number == page.state_number:
            found[-1].keys.extend(page.keys)
            found[-1].values.extend(page.values)
        else:
            found.append(page)
    return found
