"""
What nodes copy from each other: the shipped parts, without threads and sockets.

`queryablestate.node.copying.fetching`, `copy_collecting`, `copy_writing` and
`reading` are the shipped ones.  What is virtual is what lies around them: the thread
that asks (`queryablestate.node.copying.thread`), the one that answers (`copy_serving`),
and the sockets (`copy_calls`).  A call has a connection of its own, which carries pages
one after the other until it breaks, or is closed; then either end may or may not
notice.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, cast, final

import zmq
from msgspec.structs import replace

from nameservice import NameServiceError
from queryablestate.node.copying.calls import COPY_ID, CopyCaller
from queryablestate.node.copying.collecting import CollectedStages, RowsCollection
from queryablestate.node.copying.fetching import FetchTotals, RowsFetch
from queryablestate.node.copying.limits import CopyLimits
from queryablestate.node.copying.reading import CopySource
from queryablestate.node.core.events import KeyGroupsFetched
from queryablestate.wire.codec import decode_from_copy_source, encode
from queryablestate.wire.copy_messages import (
    AllowPages,
    CloseCopy,
    CopyRefused,
    OpenCopy,
    ReadStages,
)
from tests.simulation.timeline import MS
from tests.state_simulation.network import Connection


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.node.core.effects import FetchKeyGroups
    from queryablestate.node.core.events import CopyAdvanced
    from queryablestate.store.store import StateStore
    from queryablestate.store.threads import StoreWriter
    from queryablestate.wire.copy_messages import (
        CopiedRows,
        CopiedStates,
        FromCopySource,
        ToCopySource,
    )
    from queryablestate.wire.node_messages import CollectStages
    from queryablestate.wire.staging_messages import StageChunk
    from tests.state_simulation.disk import Disk
    from tests.state_simulation.world import World


__all__ = ["CopyLink", "NodeCopying", "ThreadQueue"]

_LIMITS: Final = CopyLimits(
    copies_max=2,
    stages_max=4,
    page_size_bytes=48,  # a row or two
    pages_ahead_count=2,
    fetches_max=2,
    alive_ns=200 * MS,
    silence_ns=600 * MS,
    behind_ns=500 * MS,
    advance_ns=40 * MS,
    retry_ns=60 * MS,
)
_TICK_NS: Final = 50 * MS
_ALIVE_COUNT: Final = 3


@final
class ThreadQueue:
    """What one thread of a process asks of another: in that order, a moment later."""

    def __init__(self, world: World, is_alive: Callable[[], bool]) -> None:
        self._world = world
        self._is_alive = is_alive
        self._last_ns = 0

    def post(self, action: Callable[[], None]) -> None:
        """Have *action* done, unless the process ends before."""
        timeline = self._world.timeline
        delay_ns = self._world.rng.randrange(MS)
        self._last_ns = max(self._last_ns, timeline.now_ns + delay_ns)
        timeline.at(self._last_ns, partial(self._do, action))

    def _do(self, action: Callable[[], None]) -> None:
        if self._is_alive():
            action()


@final
class _Clock:
    """The time line as a clock."""

    def __init__(self, world: World) -> None:
        self._timeline = world.timeline

    def now_ns(self) -> int:
        """Return the time."""
        return self._timeline.now_ns


@final
class _CopyStore:
    """The store as those who copy use it; with the wall clock of the simulation."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._disk = disk

    def put_copied(self, job_id: str, header: CopiedStates, page: CopiedRows) -> None:
        """See `StateStore.put_copied`."""
        self._world.counts["pages written"] += 1
        self._disk.store.put_copied(job_id, header, page)

    def discard_stages(
        self, job_id: str, writer_epoch: int, batch_id: int, stage_ids: Iterable[bytes]
    ) -> None:
        """See `StateStore.discard_stages`."""
        self._disk.discard(job_id, writer_epoch, batch_id, tuple(stage_ids))

    def stage(self, chunks: Sequence[tuple[StageChunk, bytes]], now_us: int) -> None:
        """See `StateStore.stage`."""
        del now_us
        for chunk, payload in chunks:
            self._world.counts["chunks collected"] += 1
            self._disk.stage(chunk, payload, now_us=self._world.wall_clock_us)


@final
class CopyLink:
    """
    One request to another node, as the shipped `CopyCall` makes it.

    Args:
        copying: The node that asks.
        address: Which one it asks, None if that is away.
        request: What it asks.
        on_message: Is told what comes.
        on_failed: Is told once that nothing more will.
    """

    def __init__(
        self,
        copying: NodeCopying,
        address: str | None,
        request: OpenCopy | ReadStages,
        *,
        on_message: Callable[[FromCopySource, zmq.Frame | None], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._copying = copying
        self._world = copying.world
        self._address = address
        self._request = request
        self._on_message = on_message
        self._on_failed = on_failed
        self._heard_ns = self._said_ns = self._world.timeline.now_ns
        self._problem = "the node is away" if address is None else None
        self._is_closed = False
        self._source: NodeCopying | None = None
        self._connection: Connection | None = None
        if address is not None:
            delay_ns = self._world.network.delay_ns()
            self._world.timeline.after(delay_ns, self._open)

    @property
    def link(self) -> LinkId | None:
        """Return what names the connection, or None while there is none."""
        return None if self._connection is None else self._connection.link

    @property
    def ends(self) -> set[str]:
        """Return the nodes at its ends."""
        ends = {self._copying.node_id}
        if self._source is not None:
            ends.add(self._source.node_id)
        return ends

    def _open(self) -> None:
        world = self._world
        if self._is_closed or not self._copying.is_alive:
            return
        source = world.copying_at(self._address)
        if source is None or {source.node_id, self._copying.node_id} & world.cut_off:
            if world.network.is_calm or world.rng.random() < 0.8:
                world.timeline.after(world.notice_ns(), self.lose)
            return  # or it is silent
        self._source = source
        self._connection = Connection(
            world.network, world.timeline, world.connection_rng
        )
        source.peers[self._peer] = self
        world.copy_links[self._connection.link] = self
        self._say(replace(self._request, secret=self._copying.secret))

    @property
    def _peer(self) -> bytes:
        return b"%d" % (self.link or 0)

    def _say(self, message: ToCopySource) -> None:
        connection, source = self._connection, self._source
        if connection is None or source is None:
            return
        self._said_ns = self._world.timeline.now_ns
        self._world.trace(self._copying.node_id, "asks", source.node_id, message)
        connection.to_proxy(partial(source.receive, self._peer, message))

    def allow(self, page_count: int) -> None:
        """Have *page_count* more pages sent; 0 to be heard."""
        if not self._is_closed:
            self._say(AllowPages(copy_id=COPY_ID, page_count=page_count))

    def let_time_pass(self, now_ns: int) -> None:
        """Say that we are there, or give up."""
        if self._is_closed:
            return
        if self._problem is not None:
            self._fail(self._problem)
        elif now_ns - self._heard_ns > _LIMITS.silence_ns:
            self._fail("silence")
        elif now_ns - self._said_ns > _LIMITS.silence_ns // _ALIVE_COUNT:
            self.allow(0)

    def close(self) -> None:
        """Be done with it.  Idempotent."""
        if not self._is_closed:
            self._say(CloseCopy(copy_id=COPY_ID))
            self._is_closed = True
            self._world.copy_links.pop(self.link, None)

    def sever(self) -> None:
        """Break the connection; those at its ends may notice."""
        connection, source, world = self._connection, self._source, self._world
        if connection is None or source is None:
            return
        world.counts["copies cut off"] += 1
        world.copy_links.pop(connection.link, None)
        last_ns = max(connection.sever(), world.timeline.now_ns)
        if world.network.is_calm or world.rng.random() < 0.8:
            world.timeline.at(last_ns + world.notice_ns(), self.lose)
        if world.network.is_calm or world.rng.random() < 0.8:
            lose = partial(source.lose, self._peer)
            world.timeline.at(last_ns + world.notice_ns(), lose)

    def lose(self) -> None:
        """Notice that the other end is not there."""
        if not self._is_closed and self._copying.is_alive:
            self._fail("it is not there")

    def send(self, frames: Sequence[bytes]) -> None:
        """Carry what the source says."""
        if self._connection is not None:
            self._connection.to_node(partial(self._receive, frames))

    def _receive(self, frames: Sequence[bytes]) -> None:
        if self._is_closed or not self._copying.is_alive:
            return
        self._heard_ns = self._world.timeline.now_ns
        try:
            message = decode_from_copy_source(frames[0])
            self._world.trace(self._copying.node_id, "is sent", message)
            if isinstance(message, CopyRefused):
                self._fail(f"{message.reason}: {message.detail}")
            else:
                payload = zmq.Frame(frames[1]) if len(frames) > 1 else None
                self._on_message(message, payload)
        except NameServiceError as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        self._world.counts["copies failed"] += 1
        self._world.trace(self._copying.node_id, "copies nothing:", reason)
        self.close()
        self._on_failed(reason)


@final
class _Caller:
    """`CopyCaller` without a loop and a context."""

    def __init__(self, copying: NodeCopying, clock: _Clock) -> None:
        self._copying = copying
        self.clock = clock
        self.limits = _LIMITS

    def call(
        self,
        address: str | None,
        request: OpenCopy | ReadStages,
        *,
        on_message: Callable[[FromCopySource, zmq.Frame | None], None],
        on_failed: Callable[[str], None],
    ) -> CopyLink:
        """Ask a node."""
        return CopyLink(
            self._copying, address, request, on_message=on_message, on_failed=on_failed
        )

    def post(self, action: Callable[[], None]) -> None:
        """Have *action* done in the thread that asks."""
        self._copying.fetcher.post(action)


@final
class NodeCopying:
    """
    What one process of a node fetches and collects, and what it sends to others.

    Args:
        world: Where it happens.
        node_id: The node.
        disk: Its data directory.
        writer: Has something done by the thread that writes.
        loop: The thread of its core.
        is_alive: Whether the process runs.

    Attributes:
        fetcher: The thread that asks others.
        peers: Who asks for copies, over which connection.
        secret: What the proxy leader gives to nodes, to show each other.
    """

    def __init__(
        self,
        world: World,
        node_id: str,
        disk: Disk,
        *,
        writer: StoreWriter,
        loop: ThreadQueue,
        is_alive: Callable[[], bool],
    ) -> None:
        self.world = world
        self.node_id = node_id
        self._writer = writer
        self._loop = loop
        self._is_alive = is_alive
        self.fetcher = ThreadQueue(world, is_alive)
        self.peers: dict[bytes, CopyLink] = {}
        self.secret = b""
        self._store = cast("StateStore", _CopyStore(world, disk))
        clock = _Clock(world)
        self._caller = cast("CopyCaller", _Caller(self, clock))
        self._source = CopySource(
            disk.store, clock=clock, send=self._send, limits=_LIMITS
        )
        self._inbox: deque[tuple[bytes, ToCopySource]] = deque()
        self._turn_at_ns: int | None = None
        # As in `CopyThread`.
        self._asked: dict[str, list[RowsFetch]] = {}
        self._collected = CollectedStages()
        self._totals = FetchTotals()
        self._waiting: deque[RowsFetch] = deque()
        self._fetches: list[RowsFetch] = []
        self._collections: dict[int, RowsCollection] = {}
        self._is_ticking = False

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._is_alive()

    def end(self) -> None:
        """End with the process: release what is read."""
        self._source.close()
        for link in [
            one for one in self.world.copy_links.values() if self.node_id in one.ends
        ]:
            link.sever()

    # -- for the loop of the node ----------------------------------------------------

    def fetch(
        self,
        effect: FetchKeyGroups,
        on_event: Callable[[CopyAdvanced | KeyGroupsFetched], None],
    ) -> None:
        """See `CopyThread.fetch`."""

        def tell(event: CopyAdvanced | KeyGroupsFetched) -> None:
            self._loop.post(partial(self._tell, fetch, event, on_event))

        fetch = RowsFetch(
            self._caller,
            effect,
            store=self._store,
            writer=self._writer,
            totals=self._totals,
            on_event=tell,
        )
        self._asked.setdefault(effect.job_id, []).append(fetch)
        self.fetcher.post(partial(self._begin, fetch))

    def cancel(self, job_id: str) -> None:
        """See `CopyThread.cancel`."""
        for fetch in self._asked.pop(job_id, ()):
            fetch.cancel()
            self.fetcher.post(fetch.close)

    def collect(
        self,
        command: CollectStages,
        on_collected: Callable[[tuple[int, ...], tuple[bytes, ...]], None],
    ) -> None:
        """See `CopyThread.collect`."""

        def tell(counts: tuple[int, ...], missing: tuple[bytes, ...]) -> None:
            self._loop.post(partial(on_collected, counts, missing))

        collection = RowsCollection(
            self._caller,
            command,
            store=self._store,
            writer=self._writer,
            collected=self._collected,
            on_collected=tell,
        )
        self.fetcher.post(partial(self._replace, collection))

    def _tell(
        self,
        fetch: RowsFetch,
        event: CopyAdvanced | KeyGroupsFetched,
        on_event: Callable[[CopyAdvanced | KeyGroupsFetched], None],
    ) -> None:
        asked = self._asked.get(event.job_id, [])
        if fetch in asked:
            if isinstance(event, KeyGroupsFetched):
                asked.remove(fetch)
            on_event(event)

    # -- the thread that asks --------------------------------------------------------

    def _begin(self, fetch: RowsFetch) -> None:
        self._waiting.append(fetch)
        self._tick()

    def _replace(self, collection: RowsCollection) -> None:
        verify_id = collection.command.verify_id
        previous = self._collections.get(verify_id)
        if previous is not None:
            if previous.renew(collection.command):
                return
            previous.close()
        self._collections[verify_id] = collection
        self._tick()

    def _tick(self) -> None:
        now_ns = self.world.timeline.now_ns
        for fetch in self._fetches:
            fetch.let_time_pass(now_ns)
        self._fetches = [one for one in self._fetches if not one.is_over]
        while self._waiting and len(self._fetches) < _LIMITS.fetches_max:
            fetch = self._waiting.popleft()
            if not fetch.is_over:
                self._fetches.append(fetch)
                self.world.counts["copies begun"] += 1
                fetch.start()
        for collection in tuple(self._collections.values()):
            collection.let_time_pass(now_ns)
        self._collections = {
            verify_id: one
            for verify_id, one in self._collections.items()
            if not one.is_over
        }
        is_busy = self._fetches or self._waiting or self._collections
        if is_busy and not self._is_ticking:
            self._is_ticking = True
            self.world.timeline.after(_TICK_NS, self._tick_later)

    def _tick_later(self) -> None:
        self._is_ticking = False
        if self.is_alive:
            self._tick()

    # -- the thread that answers -----------------------------------------------------

    def receive(self, peer: bytes, message: ToCopySource) -> None:
        """Take what another node says."""
        if not self.is_alive:
            return
        if isinstance(message, OpenCopy | ReadStages) and not self._is_shown(message):
            refused = CopyRefused(
                copy_id=message.copy_id, reason="not-allowed", detail="another secret"
            )
            self._send(peer, [encode(refused)])
        else:
            self._inbox.append((peer, message))
            self._turn_soon()

    def _is_shown(self, message: OpenCopy | ReadStages) -> bool:
        """Return whether the asker was taken in by the same proxy leader."""
        return bool(self.secret) and self.secret == message.secret

    def lose(self, peer: bytes) -> None:
        """Notice that another node is not there."""
        self.peers.pop(peer, None)
        if self.is_alive:
            self._source.lose(peer)

    def advance(self) -> None:
        """Take note that an entry was applied: a copy may wait for it."""
        if self._source.is_waiting:
            self._turn_soon()

    def _send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        link = self.peers.get(peer)
        if link is not None:
            link.send(frames)

    def _turn_soon(self) -> None:
        self._turn_at(self.world.copy_delay_ns(self.node_id))

    def _turn_at(self, delay_ns: int) -> None:
        due_ns = self.world.timeline.now_ns + delay_ns
        if self._turn_at_ns is None or due_ns < self._turn_at_ns:
            self._turn_at_ns = due_ns
            self.world.timeline.at(due_ns, partial(self._turn, due_ns))

    def _turn(self, due_ns: int) -> None:
        if self._turn_at_ns != due_ns or not self.is_alive:
            return
        self._turn_at_ns = None
        while self._inbox:
            self._source.hear(*self._inbox.popleft())
        self._source.turn()
        if self._source.can_send:
            self._turn_soon()
        elif len(self._source):
            self._turn_at(_TICK_NS)
