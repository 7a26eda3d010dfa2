"""
A task of a driver: one partition of a batch, brought to its nodes (rules W1, W2).

Every execution draws a stage id.  An execution that failed, or that was slow and given
up, may go on as long as it likes: what it brings is not waited for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from nameservice import DidNotHappenError, NameServiceError
from queryablestate import StaleWriterError
from queryablestate.wire.clients import BoundRun, TicketDrawn
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.node_messages import (
    ChunkRefused,
    ChunkStaged,
    StageChunk,
    StagedRows,
)
from queryablestate.wire.questions import Refusal
from queryablestate.wire.records import STAGE_ID_SIZE_BYTES, StageRecord
from queryablestate.wire.refusals import error_of
from tests.simulation.timeline import MS
from tests.state_simulation.checkers import StageBooks
from tests.state_simulation.content import Row


if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from tests.state_simulation.scenario import StatePlan
    from tests.state_simulation.world import World


__all__ = ["Batch", "Execution"]

_ROWS_PER_CHUNK: Final = 2
_PATIENCE_NS: Final = 250 * MS
_TRY_COUNT_MAX: Final = 12
_GIVE_UP_NS: Final = 400 * MS


@frozen(kw_only=True)
class Batch:
    """
    What all tasks of a batch know.

    Attributes:
        job_id: The job.
        query_id: The query.
        batch_id: Its number.
        plan: What was drawn for it.
        bound: The run.
        states: What it writes.
        rows: For each state, all of them.
        partition_count: Into how many partitions they are divided.
    """

    job_id: str
    query_id: str
    batch_id: int
    plan: TicketDrawn
    bound: BoundRun
    states: tuple[StatePlan, ...]
    rows: tuple[tuple[Row, ...], ...]
    partition_count: int

    def rows_of(self, partition: int) -> dict[int, list[Row]]:
        """Return the rows of one partition, by state number."""
        found: dict[int, list[Row]] = {}
        for bound, rows in zip(self.bound.states, self.rows, strict=True):
            mine = [
                row
                for row in rows
                if sum(row.key[:5]) % self.partition_count == partition
            ]
            if mine:
                found[bound.state_number] = mine
        return found


@final
class Execution:
    """
    One execution of a task.

    Args:
        world: Where it happens.
        batch: What is written.
        partition: Which part of it.
        fails_after: The chunk after which it fails, or None.
        on_done: Is told what was staged, or why it failed.
        is_alive: Whether the executor still runs.
    """

    def __init__(
        self,
        world: World,
        batch: Batch,
        partition: int,
        *,
        fails_after: int | None,
        on_done: Callable[[StageRecord | NameServiceError], None],
        is_alive: Callable[[], bool],
    ) -> None:
        self._world = world
        self._batch = batch
        self._fails_after = fails_after
        self._on_done = on_done
        self._is_alive = is_alive
        self._stage_id = world.rng.randbytes(STAGE_ID_SIZE_BYTES)
        self._rows = batch.rows_of(partition)
        self._addresses = {node.node_id: node.address for node in batch.plan.nodes}
        self._away_since_ns: dict[str, int] = {}
        self._given_up: set[str] = set()
        self._chunks = list(self._make_chunks())
        self._index = 0
        self._try_count = 0
        self._go_on()

    def _make_chunks(self) -> list[tuple[str, StageChunk, bytes]]:
        batch = self._batch
        counts: dict[str, int] = {}
        chunks = []
        for number, rows in self._rows.items():
            by_node: dict[str, list[Row]] = {}
            for row in rows:
                for holder in batch.plan.owners[row.group]:
                    node_id = batch.plan.nodes[holder].node_id
                    by_node.setdefault(node_id, []).append(row)
            for node_id, mine in by_node.items():
                for first in range(0, len(mine), _ROWS_PER_CHUNK):
                    part = sorted(
                        mine[first : first + _ROWS_PER_CHUNK], key=lambda row: row.key
                    )
                    orders = [row.order for row in part if row.order is not None]
                    payload = StagedRows(
                        state_number=number,
                        keys=[row.key for row in part],
                        values=[row.value for row in part],
                        orders=orders or None,
                    )
                    index = counts.get(node_id, 0)
                    counts[node_id] = index + 1
                    chunk = StageChunk(
                        request_id=self._world.next_number(),
                        job_id=batch.job_id,
                        query_id=batch.query_id,
                        writer_epoch=batch.bound.writer_epoch,
                        batch_id=batch.batch_id,
                        stage_id=self._stage_id,
                        chunk_index=index,
                        assignment_version=batch.plan.assignment_version,
                    )
                    chunks.append((node_id, chunk, encode_payload(payload)))
        self._counts = counts
        return chunks

    def _go_on(self) -> None:
        """Bring the next chunk, or be done."""
        if not self._is_alive():
            return
        if self._fails_after is not None and self._index >= self._fails_after:
            self._on_done(DidNotHappenError("the task failed"))
            return
        chunks = self._chunks
        while self._index < len(chunks) and chunks[self._index][0] in self._given_up:
            self._index += 1
        if self._index == len(chunks):
            self._done()
            return
        self._try_count += 1
        if self._try_count > _TRY_COUNT_MAX:
            self._on_done(DidNotHappenError("the node does not answer"))
            return
        world, index, number = self._world, self._index, self._try_count
        node_id, chunk, payload = chunks[index]
        address = self._addresses[node_id]
        node = None if address is None else world.node_at(address)
        if node is not None:
            reply = partial(self._replied, index)
            send = partial(
                node.chunk_arrived,
                chunk,
                payload,
                lambda message: world.network.letter(partial(reply, message)),
            )
            world.network.letter(send)
        world.timeline.after(_PATIENCE_NS, partial(self._again, index, number))

    def _again(self, index: int, number: int) -> None:
        """Bring a chunk once more: to where its node is now."""
        if (index, number) == (self._index, self._try_count):
            node_id, _, _ = self._chunks[index]
            address = self._world.find_node(node_id)
            self._addresses[node_id] = address
            self._look_at(node_id, is_away=address is None)
            self._go_on()

    def _look_at(self, node_id: str, *, is_away: bool) -> None:
        """Give a node up that is away, if others get its rows: as `Stager` does."""
        if not is_away:
            self._away_since_ns.pop(node_id, None)
            return
        now_ns = self._world.timeline.now_ns
        since_ns = self._away_since_ns.setdefault(node_id, now_ns)
        if now_ns - since_ns < _GIVE_UP_NS:
            return
        plan = self._batch.plan
        index = [node.node_id for node in plan.nodes].index(node_id)
        lacking = {
            number
            for number, node in enumerate(plan.nodes)
            if node.node_id in self._given_up or number == index
        }
        if not any(
            index in holders and lacking.issuperset(holders) for holders in plan.owners
        ):
            self._world.counts["nodes given up by writers"] += 1
            self._given_up.add(node_id)
            self._try_count = 0

    def _replied(self, index: int, message: Struct) -> None:
        if index != self._index or not self._is_alive():
            return
        if isinstance(message, ChunkStaged):
            self._index += 1
            self._try_count = 0
            self._go_on()
            return
        assert isinstance(message, ChunkRefused)
        refusal = Refusal(
            request_id=message.request_id, code=message.code, data=message.data
        )
        error = error_of(refusal)
        if isinstance(error, StaleWriterError):
            self._on_done(error)
            self._index = -1

    def _done(self) -> None:
        batch = self._batch
        chunk_counts = {
            node_id: count
            for node_id, count in self._counts.items()
            if node_id not in self._given_up
        }
        self._world.checker.stages[self._stage_id] = StageBooks(
            query_id=batch.query_id,
            writer_epoch=batch.bound.writer_epoch,
            batch_id=batch.batch_id,
            rows=self._rows,
            chunk_counts=chunk_counts,
        )
        self._on_done(
            StageRecord(
                stage_id=self._stage_id,
                chunk_counts=chunk_counts,
                row_count=sum(map(len, self._rows.values())),
                given_up=tuple(sorted(self._given_up)),
            )
        )
