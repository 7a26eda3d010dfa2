"""
A task of a driver: one partition of a batch, brought to its nodes (rules W1, W2).

The shipped `StageCore` in a virtual shell.  Every execution draws a stage id.  An
execution that failed, or that was slow and given up, may go on as long as it likes:
what it brings is not waited for.
"""

from __future__ import annotations

import itertools
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, assert_never, final

from attrs import define, frozen

from nameservice import DidNotHappenError, NameServiceError
from queryablestate.wire.records import STAGE_ID_SIZE_BYTES
from queryablestate.wire.staging_messages import ChunkRefused, ChunkStaged
from queryablestate.writer.rows import StateRows
from queryablestate.writer.sending import StageLimits
from queryablestate.writer.stage_core import StageCore
from queryablestate.writer.stage_events import (
    ChunkAnswered,
    ChunkTurnedAway,
    CloseLink,
    FailStage,
    GrantRenewed,
    LinkLost,
    LinkOpened,
    LookForNode,
    NodeLookedFor,
    OpenLink,
    RenewGrant,
    SendChunk,
    TimeWent,
)
from tests.simulation.timeline import MS
from tests.state_simulation.calls import Talk
from tests.state_simulation.checkers import StageBooks
from tests.state_simulation.content import Row, rows_of
from tests.state_simulation.network import Connection


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from msgspec import Struct

    from queryablestate.control.events import LinkId
    from queryablestate.writer.batches import StageMessage, WriteRun
    from queryablestate.writer.conversations import Conversation
    from queryablestate.writer.core import WriterCore
    from queryablestate.writer.stage_events import (
        ChunkCut,
        StageEffect,
        StageEvent,
    )
    from tests.state_simulation.node import Node
    from tests.state_simulation.scenario import StatePlan
    from tests.state_simulation.world import World


__all__ = ["Execution", "Part"]

_LIMITS: Final = StageLimits(
    chunk_size_bytes_max=110,  # two rows, as a rule
    window_count=2,
    waiting_count_max=2,
    timeout_seconds=3.0,
    give_up_seconds=0.4,
    open_timeout_seconds=0.5,
)
_FIND_TIMEOUT_NS: Final = 1_000 * MS
_CONNECT_NS: Final = 20 * MS
_UNREACHABLE: Final = 0.05
_TURNED_AWAY: Final = 0.02


@frozen(kw_only=True)
class Part:
    """
    What one task has to bring.

    Attributes:
        run: The run that writes.
        batch_id: The batch.
        states: Its states, in the order of the run's numbers.
        partition: Which part of the rows.
        partition_count: How many parts there are.
        is_another: Whether the source gives other rows than the first time.
    """

    run: WriteRun
    batch_id: int
    states: tuple[StatePlan, ...]
    partition: int
    partition_count: int
    is_another: bool

    def rows(self, seed: int) -> dict[int, list[Row]]:
        """Return its rows, by state number."""
        found: dict[int, list[Row]] = {}
        numbers = self.run.origin.state_numbers
        for number, state in zip(numbers, self.states, strict=True):
            rows = rows_of(seed, self.run.origin.query_id, self.batch_id, state)
            mine = [
                row
                for row in rows
                if sum(row.key[:5]) % self.partition_count == self.partition
            ]
            if self.is_another and self.partition == 0:
                mine.append(Row(key=b"\0\0another", value=b"another", order=b"9"))
            if mine:
                found[number] = mine
        return found


@define(eq=False)
class _Link:
    """A connection of this execution to a node, there or not yet."""

    connection: Connection | None = None
    node: Node | None = None


@final
class Execution:
    """
    One execution of a task.

    Args:
        world: Where it happens.
        rng: What its connections draw from.
        core: Asks the proxy, for the process that it runs in.
        part: What it brings.
        fails_after: After how many answers of nodes it fails, or None.
        on_done: Is told what was staged, or why it failed.
        is_alive: Whether the executor still runs.
    """

    def __init__(
        self,
        world: World,
        rng: Random,
        core: WriterCore,
        part: Part,
        *,
        fails_after: int | None,
        on_done: Callable[[StageMessage | NameServiceError], None],
        is_alive: Callable[[], bool],
    ) -> None:
        self._world = world
        self._rng = rng
        self._writer_core = core
        self._part = part
        self._fails_after = fails_after
        self._on_done = on_done
        self._is_alive = is_alive
        self._stage_id = world.next_number().to_bytes(STAGE_ID_SIZE_BYTES, "big")
        self._core = StageCore(
            part.run,
            part.batch_id,
            stage_id=self._stage_id,
            request_ids=world.numbers,
            limits=_LIMITS,
            finds_nodes=True,
            renews_grants=True,
        )
        self._rows = part.rows(world.seed)
        self._cuts: Iterator[ChunkCut] | None = self._cut()
        self._links: dict[int, _Link] = {}
        self._proxy_link: LinkId | None = None
        self._events: deque[StageEvent] = deque()
        self._is_stepping = False
        self._timer_ns: int | None = None
        self._answer_count = 0
        self._is_over = False
        self._go_on()

    def _cut(self) -> Iterator[ChunkCut]:
        numbers = self._part.run.origin.state_numbers
        is_list = {
            number: state.kind == "list"
            for number, state in zip(numbers, self._part.states, strict=True)
        }
        return itertools.chain.from_iterable(
            self._core.cut(
                number,
                StateRows(
                    keys=[row.key for row in rows],
                    values=[row.value for row in rows],
                    orders=_orders(rows),
                ),
                is_list=is_list[number],
            )
            for number, rows in self._rows.items()
        )

    # -- the task --------------------------------------------------------------------

    def _go_on(self) -> None:
        """Cut as much as there is room for; end if all is staged."""
        if self._is_over:
            return
        if not self._is_alive():
            self._close()
            return
        if self._fails_after is not None and self._answer_count >= self._fails_after:
            self._end(DidNotHappenError("the task failed"))
            return
        while self._cuts is not None and self._core.has_room:
            cut = next(self._cuts, None)
            if cut is None:
                self._cuts = None
            else:
                self._step(cut)
        if self._cuts is None and self._core.is_staged:
            self._staged()

    def _staged(self) -> None:
        message = self._core.message()
        if not self._part.run.is_decided(self._part.batch_id):
            origin = message.origin
            self._world.checker.stages[self._stage_id] = StageBooks(
                query_id=origin.query_id,
                writer_epoch=origin.writer_epoch,
                batch_id=message.batch_id,
                rows=self._rows,
                chunk_counts=message.stage.chunk_counts,
            )
        self._world.counts["nodes given up by writers"] += len(message.stage.given_up)
        self._end(message)

    def _end(self, result: StageMessage | NameServiceError) -> None:
        if not self._is_over:
            self._close()
            self._on_done(result)

    def _close(self) -> None:
        """Let go of all connections."""
        self._is_over = True
        for index in tuple(self._links):
            self._drop(index)
        if self._proxy_link is not None:
            gone = partial(self._world.link_closed, self._proxy_link)
            self._world.timeline.after(self._world.notice_ns(), gone)

    # -- the machine -----------------------------------------------------------------

    def _happened(self, event: StageEvent) -> None:
        """Have *event* happen, if the task still runs, and go on."""
        if self._is_over:
            return
        if self._is_alive():
            self._step(event)
        self._go_on()

    def _step(self, event: StageEvent) -> None:
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._events and not self._is_over:
            event = self._events.popleft()
            effects = self._core.step(event, now_ns=self._world.timeline.now_ns)
            self._core.check_invariants()
            for effect in effects:
                self._perform(effect)
        self._is_stepping = False
        self._arm()

    def _arm(self) -> None:
        due_ns = self._core.next_deadline_ns()
        if self._is_over or due_ns is None:
            return
        due_ns = max(due_ns, self._world.timeline.now_ns)
        if self._timer_ns is None or due_ns < self._timer_ns:
            self._timer_ns = due_ns
            self._world.timeline.at(due_ns, partial(self._fire, due_ns))

    def _fire(self, due_ns: int) -> None:
        if self._timer_ns == due_ns:
            self._timer_ns = None
            self._happened(TimeWent())

    def _perform(self, effect: StageEffect) -> None:
        match effect:
            case OpenLink(node=index, address=address):
                link = self._links[index] = _Link()
                self._later(partial(self._connect, index, link, address))
            case CloseLink(node=index):
                self._drop(index)
            case SendChunk():
                self._send(effect)
            case LookForNode(node=index, node_id=node_id):
                self._talk(
                    self._writer_core.find_node(
                        self._part.run.plan,
                        node_id,
                        timeout_ns=_FIND_TIMEOUT_NS,
                        now_ns=self._world.timeline.now_ns,
                    ),
                    lambda found: NodeLookedFor(index, found),
                )
            case RenewGrant(node=index):
                self._talk(
                    self._writer_core.renew_grant(
                        self._part.run,
                        timeout_ns=_FIND_TIMEOUT_NS,
                        now_ns=self._world.timeline.now_ns,
                    ),
                    lambda grant: GrantRenewed(index, grant),
                )
            case FailStage(error=error):
                self._end(error)
            case _:
                assert_never(effect)

    def _talk(
        self,
        conversation: Conversation[Any],
        told: Callable[[Any], StageEvent],
    ) -> None:
        """Ask the proxy that leads, over a connection of this process."""
        if self._proxy_link is None:
            self._proxy_link = self._world.network.new_link()
        Talk(
            self._world,
            self._proxy_link,
            conversation,
            lambda result: self._happened(told(result)),
            is_alive=lambda: not self._is_over and self._is_alive(),
        )

    # -- nodes -----------------------------------------------------------------------

    def _later(self, action: Callable[[], None]) -> None:
        delay_ns = 1 + self._rng.randrange(_CONNECT_NS)
        self._world.timeline.after(delay_ns, action)

    def _connect(self, index: int, link: _Link, address: str) -> None:
        if self._links.get(index) is not link:
            return
        world = self._world
        node = world.node_at(address)
        is_reachable = world.network.is_calm or self._rng.random() >= _UNREACHABLE
        if node is not None and is_reachable:
            link.node = node
            link.connection = Connection(
                world.network, world.timeline, self._rng, world.network.client_delay_ns
            )
            self._happened(LinkOpened(index))
        elif world.network.is_calm or self._rng.random() < 0.8:
            del self._links[index]
            self._happened(LinkLost(index))
        # Else it says nothing at all, as a machine that is gone.

    def _send(self, effect: SendChunk) -> None:
        index, message = effect.node, effect.message
        link = self._links[index]
        connection, node = link.connection, link.node
        assert connection is not None
        assert node is not None
        network = self._world.network
        if not network.is_calm and self._rng.random() < _TURNED_AWAY:
            self._events.append(ChunkTurnedAway(index, message.request_id))
            return
        if network.breaks():
            self._lose(index, link)
            return

        def answer(reply: Struct) -> None:
            connection.to_node(partial(self._answered, index, link, reply))

        def arrive() -> None:
            if node.is_alive:
                node.chunk_arrived(message, effect.payload, answer)
            else:
                self._lose(index, link)

        connection.to_proxy(arrive)

    def _answered(self, index: int, link: _Link, reply: Struct) -> None:
        if self._links.get(index) is not link:
            return  # of a connection that is no more
        if self._world.network.breaks():
            self._lose(index, link)
            return
        assert isinstance(reply, ChunkStaged | ChunkRefused)
        self._answer_count += isinstance(reply, ChunkStaged)
        self._happened(ChunkAnswered(index, reply))

    def _lose(self, index: int, link: _Link) -> None:
        """Lose a connection, and notice it in a moment."""
        if link.connection is not None:
            link.connection.sever()
        self._later(partial(self._noticed, index, link))

    def _noticed(self, index: int, link: _Link) -> None:
        if self._links.get(index) is link:
            del self._links[index]
            self._happened(LinkLost(index))

    def _drop(self, index: int) -> None:
        link = self._links.pop(index, None)
        if link is not None and link.connection is not None:
            link.connection.sever()


def _orders(rows: list[Row]) -> list[bytes] | None:
    orders = [row.order for row in rows if row.order is not None]
    return orders or None
