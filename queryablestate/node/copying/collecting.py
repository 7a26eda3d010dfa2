"""
`RowsCollection`: fetches staged rows of a batch from other nodes (rule S2).

A node that became a copy of key groups while a batch was under way keeps what others
have of it under a stage id of its own, in chunks numbered as they arrive.  So an
attempt that came to nothing must leave nothing: the next one removes what is there
before it begins, unless all of the stage had come, in which case it stays as it is.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import define
from msgspec.structs import replace

from nameservice import RemoteProtocolError, get_logger
from nameservice.clock import NS_PER_MS, NS_PER_US
from queryablestate.node.copying.calls import COPY_ID
from queryablestate.node.copying.writing import CopyWriting
from queryablestate.store.rows import check_chunk
from queryablestate.wire.codec import decode_rows
from queryablestate.wire.copy_messages import (
    CopyContinues,
    ReadStages,
    StagesPage,
    StagesRead,
    runs_of,
)
from queryablestate.wire.records import collected_stage_id
from queryablestate.wire.staging_messages import StageChunk


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import zmq

    from queryablestate.node.copying.calls import CopyCall, CopyCaller
    from queryablestate.store.store import StateStore
    from queryablestate.store.threads import StoreWriter
    from queryablestate.wire.copy_messages import FromCopySource
    from queryablestate.wire.job_assignment import CopySource
    from queryablestate.wire.node_messages import CollectStages


__all__ = ["CollectedStages", "RowsCollection"]

_STAGES_REMEMBERED_MAX: Final = 100_000

_Received: TypeAlias = tuple[int, StageChunk, bytes]


@final
class CollectedStages:
    """
    Of which stages everything was collected, and in how many chunks; for one thread.

    One that asks again is told the same: what the proxy has been told of must stay.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int, bytes], int] = {}

    def count(self, command: CollectStages, kept_id: bytes) -> int | None:
        """Return how many chunks there are of a stage, or None if not all is here."""
        return self._counts.get(_key(command, kept_id))

    def add(self, command: CollectStages, kept_id: bytes, count: int) -> None:
        """Take note that everything of a stage is here."""
        self._counts[_key(command, kept_id)] = count
        if len(self._counts) > _STAGES_REMEMBERED_MAX:
            del self._counts[next(iter(self._counts))]


@define
class _Source:
    """A node that is asked, and what for: indexes of the stages of the command."""

    call: CopyCall
    stage_indexes: Sequence[int]
    page_count: int = 0
    is_read: bool = False


@final
class _Attempt:
    """
    Asks every source once.

    Args:
        caller: Whose thread it belongs to.
        command: What is to be collected.
        kept_ids: Under which stage ids its stages are kept.
        indexes: Which of its stages.
        store: Where to.
        writer: Whose thread writes to it.
        on_done: Is told how many chunks there are of each of these stages, and which
            stages a source lacks rows of.
        on_failed: Is told that nothing comes of it, and why.  One of the two is called,
            once, and not before the constructor has returned.
    """

    def __init__(
        self,
        caller: CopyCaller,
        command: CollectStages,
        kept_ids: Sequence[bytes],
        indexes: Sequence[int],
        *,
        store: StateStore,
        writer: StoreWriter,
        on_done: Callable[[Mapping[int, int], set[bytes]], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._caller = caller
        self._command = command
        self._kept_ids = kept_ids
        self._store = store
        self._on_done = on_done
        self._on_failed = on_failed
        self._is_over = False
        self._has_discarded = False
        self._counts = dict.fromkeys(indexes, 0)
        self._missing: set[bytes] = set()
        self._unwritten_count = 0
        self._writing: CopyWriting[_Received] = CopyWriting(
            writer,
            command.job_id,
            self._write,
            on_written=self._written_there,
            on_failed=self._failed_there,
        )
        self._sources: list[_Source] = []
        for source in command.sources:
            held = [
                index
                for index in indexes
                if command.stages[index].chunk_counts.get(source.node_id)
            ]
            if held:
                self._ask(source, held)

    def let_time_pass(self, now_ns: int) -> None:
        """Give up sources that are silent; for the caller, several times a second."""
        for source in self._sources:
            if not source.is_read:
                source.call.let_time_pass(now_ns)
        self._finish_if_done()

    def close(self) -> None:
        """Ask for no more, write no more.  Idempotent."""
        self._is_over = True
        self._writing.cancel()
        for source in self._sources:
            source.call.close()

    def _ask(self, source: CopySource, indexes: Sequence[int]) -> None:
        command = self._command
        request = ReadStages(
            copy_id=COPY_ID,
            job_id=command.job_id,
            writer_epoch=command.writer_epoch,
            batch_id=command.batch_id,
            stages=tuple(command.stages[index] for index in indexes),
            key_groups=runs_of(source.key_groups),
            page_count=self._caller.limits.pages_ahead_count,
        )
        call = self._caller.call(
            source.address,
            request,
            on_message=partial(self._receive, len(self._sources)),
            on_failed=self._fail,
        )
        self._sources.append(_Source(call, indexes))

    def _receive(
        self, position: int, message: FromCopySource, payload: zmq.Frame | None
    ) -> None:
        source = self._sources[position]
        match message:
            case StagesPage(page_index=source.page_count, stage_index=stage_index) if (
                payload is not None and 0 <= stage_index < len(source.stage_indexes)
            ):
                source.page_count += 1
                index = source.stage_indexes[stage_index]
                chunk = _chunk(
                    self._command, self._kept_ids[index], self._counts[index]
                )
                self._counts[index] += 1
                self._unwritten_count += 1
                self._writing.add((position, chunk, payload.bytes), len(payload))
            case StagesRead(page_count=source.page_count, missing=missing):
                source.is_read = True
                source.call.close()
                self._missing.update(missing)
                self._finish_if_done()
            case CopyContinues():
                pass
            case _:
                raise RemoteProtocolError(
                    "malformed", f"{type(message).__name__} makes no sense here"
                )

    def _written(self, positions: Sequence[int]) -> None:
        if self._is_over:
            return
        self._unwritten_count -= len(positions)
        for position in positions:
            self._sources[position].call.allow(1)
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._is_over or self._unwritten_count:
            return
        if all(source.is_read for source in self._sources):
            self.close()
            self._on_done(self._counts, self._missing)

    def _fail(self, reason: str) -> None:
        if not self._is_over:
            self.close()
            self._on_failed(reason)

    # -- on the writer's thread ----------------------------------------------------

    def _write(self, received: Sequence[_Received]) -> None:
        command = self._command
        if not self._has_discarded:
            self._store.discard_stages(
                command.job_id,
                command.writer_epoch,
                command.batch_id,
                [self._kept_ids[index] for index in self._counts],
            )
            self._has_discarded = True
        for _, chunk, payload in received:
            check_chunk(chunk, decode_rows(payload))
        self._store.stage(
            [(chunk, payload) for _, chunk, payload in received],
            time.time_ns() // NS_PER_US,
        )

    def _written_there(self, received: Sequence[_Received]) -> None:
        positions = [position for position, _, _ in received]
        self._caller.post(partial(self._written, positions))

    def _failed_there(self, reason: str) -> None:
        self._caller.post(partial(self._fail, reason))


@final
class RowsCollection:
    """
    One `CollectStages`.  Made by any thread, else the caller's.

    Args:
        caller: Whose thread asks the other nodes.
        command: What is to be collected.
        store: Where to.
        writer: Whose thread writes to it.
        collected: What is there; of the store.
        on_collected: Is told, in the caller's thread, how many chunks there are of each
            stage of the command, and which stages a source lacks rows of; at most once,
            and not after `close`.

    Attributes:
        command: As it was given.
        is_over: Whether there is nothing more to wait for.
    """

    def __init__(
        self,
        caller: CopyCaller,
        command: CollectStages,
        *,
        store: StateStore,
        writer: StoreWriter,
        collected: CollectedStages,
        on_collected: Callable[[tuple[int, ...], tuple[bytes, ...]], None],
    ) -> None:
        self.command = command
        self.is_over = False
        self._caller = caller
        self._store = store
        self._writer = writer
        self._collected = collected
        self._on_collected = on_collected
        self._log = get_logger(
            component="state-node", job_id=command.job_id, batch_id=command.batch_id
        )
        self._began_ns = self._retry_at_ns = caller.clock.now_ns()
        self._attempt: _Attempt | None = None
        self._kept_ids: tuple[bytes, ...] = ()
        self._failure = "its time was over"

    def let_time_pass(self, now_ns: int) -> None:
        """Try, wait, or give up; for the caller, several times a second."""
        if self.is_over:
            return
        if now_ns - self._began_ns > self.command.timeout_ms * NS_PER_MS:
            self._log.warning(
                "collect.failed", reason=self._failure, duration_ms=self._duration_ms()
            )
            self.close()
        elif self._attempt is not None:
            self._attempt.let_time_pass(now_ns)
        elif now_ns >= self._retry_at_ns:
            self._kept_ids = _kept_ids(self.command)
            indexes = [
                index
                for index, kept_id in enumerate(self._kept_ids)
                if self._collected.count(self.command, kept_id) is None
            ]
            self._attempt = _Attempt(
                self._caller,
                self.command,
                self._kept_ids,
                indexes,
                store=self._store,
                writer=self._writer,
                on_done=self._done,
                on_failed=self._failed,
            )
            self._attempt.let_time_pass(now_ns)

    def renew(self, command: CollectStages) -> bool:
        """Go on, with new time, if *command* asks for the same; return whether."""
        same = replace(
            self.command,
            leader_epoch=command.leader_epoch,
            timeout_ms=command.timeout_ms,
        )
        if self.is_over or same != command:
            return False
        self.command = command
        self._began_ns = self._caller.clock.now_ns()
        return True

    def close(self) -> None:
        """Ask for no more.  Idempotent."""
        self.is_over = True
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()

    def _done(self, counts: Mapping[int, int], missing: set[bytes]) -> None:
        command = self.command
        for index, count in counts.items():
            if command.stages[index].stage_id not in missing:
                self._collected.add(command, self._kept_ids[index], count)
        chunk_counts = tuple(
            self._collected.count(command, kept_id) or 0 for kept_id in self._kept_ids
        )
        self.close()
        self._log.info(
            "collect.completed",
            chunk_count=sum(chunk_counts),
            missing_count=len(missing),
            duration_ms=self._duration_ms(),
        )
        self._on_collected(
            chunk_counts,
            tuple(one.stage_id for one in command.stages if one.stage_id in missing),
        )

    def _failed(self, reason: str) -> None:
        self._failure = reason
        self._attempt = None
        limits = self._caller.limits
        self._retry_at_ns = self._caller.clock.now_ns() + limits.retry_ns

    def _duration_ms(self) -> int:
        return (self._caller.clock.now_ns() - self._began_ns) // NS_PER_MS


def _key(command: CollectStages, kept_id: bytes) -> tuple[str, int, int, bytes]:
    return command.job_id, command.writer_epoch, command.batch_id, kept_id


def _kept_ids(command: CollectStages) -> tuple[bytes, ...]:
    """Return under which stage ids the rows of the stages of *command* are kept."""
    groups = sorted({group for one in command.sources for group in one.key_groups})
    return tuple(
        collected_stage_id(stage.stage_id, command.assignment_version, groups)
        for stage in command.stages
    )


def _chunk(command: CollectStages, kept_id: bytes, chunk_index: int) -> StageChunk:
    return StageChunk(
        request_id=0,
        job_id=command.job_id,
        query_id=command.query_id,
        writer_epoch=command.writer_epoch,
        batch_id=command.batch_id,
        stage_id=kept_id,
        chunk_index=chunk_index,
        assignment_version=command.assignment_version,
    )
