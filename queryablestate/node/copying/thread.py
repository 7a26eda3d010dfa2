"""
`CopyThread`: asks other nodes for rows, for one node (rule S2).

One thread, which waits for what comes and hands it to the writer's.  It does a few
copies at a time, and every collection at once: commits wait for those.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, final

from queryablestate.node.copying.calls import CopyCaller
from queryablestate.node.copying.collecting import CollectedStages, RowsCollection
from queryablestate.node.copying.fetching import FetchTotals, RowsFetch
from queryablestate.node.core.events import KeyGroupsFetched
from zmqtransport import PollLoop


if TYPE_CHECKING:
    from collections.abc import Callable

    from nameservice import Clock
    from queryablestate.node.copying.limits import CopyLimits
    from queryablestate.node.core.effects import FetchKeyGroups
    from queryablestate.node.core.events import CopyAdvanced
    from queryablestate.store.store import StateStore
    from queryablestate.store.threads import StoreWriter
    from queryablestate.wire.node_messages import CollectStages
    from zmqtransport import CurveKeyPair, SocketLimits, ZMQContext


__all__ = ["CopyThread"]

_TICK_NS: Final = 250_000_000


@final
class CopyThread:
    """
    Fetches and collects.  All of it is for one other thread, which gets the answers.

    Args:
        context: Of the connections.
        key_pair: As whom the node speaks to others, or None.
        socket_limits: Of each connection.
        clock: What silence is measured by.
        limits: How much of it there may be.
        post: Calls something in the thread that asks.
    """

    def __init__(
        self,
        context: ZMQContext,
        key_pair: CurveKeyPair | None,
        *,
        socket_limits: SocketLimits,
        clock: Clock,
        limits: CopyLimits,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._post = post
        self._loop = PollLoop(name="state-node-fetcher", clock=clock)
        self._caller = CopyCaller(
            self._loop,
            context,
            key_pair,
            socket_limits=socket_limits,
            clock=clock,
            limits=limits,
        )
        # For the thread that asks.
        self._asked: dict[str, list[RowsFetch]] = {}
        self._collected = CollectedStages()
        # For our own.
        self._totals = FetchTotals()
        self._waiting: deque[RowsFetch] = deque()
        self._fetches: list[RowsFetch] = []
        self._collections: dict[int, RowsCollection] = {}
        self._tick_at_ns: int | None = None
        self._loop.set_deadline(lambda: self._tick_at_ns, self._tick)
        self._loop.at_end(self._close_all)
        self._loop.start()

    @property
    def failure_count(self) -> int:
        """Return how many mistakes of ours the thread has met."""
        return self._loop.failure_count

    def show(self, secret: bytes) -> None:
        """Show *secret* to the nodes that are asked from now on."""
        self._caller.secret = secret

    def fetch(
        self,
        effect: FetchKeyGroups,
        *,
        store: StateStore,
        writer: StoreWriter,
        on_event: Callable[[CopyAdvanced | KeyGroupsFetched], None],
    ) -> None:
        """
        Fetch key groups, as soon as there is room for it.

        *on_event* is told, in the thread that asks, unless it was cancelled meanwhile.
        """

        def tell(event: CopyAdvanced | KeyGroupsFetched) -> None:
            self._post(partial(self._tell, fetch, event, on_event))

        fetch = RowsFetch(
            self._caller,
            effect,
            store=store,
            writer=writer,
            totals=self._totals,
            on_event=tell,
        )
        self._asked.setdefault(effect.job_id, []).append(fetch)
        self._caller.post(partial(self._begin, fetch))

    def cancel(self, job_id: str) -> None:
        """
        Fetch no more for this job.

        What has arrived is written before whatever the writer is asked for after this,
        and nothing else of it is.
        """
        for fetch in self._asked.pop(job_id, ()):
            fetch.cancel()
            self._caller.post(fetch.close)

    def collect(
        self,
        command: CollectStages,
        *,
        store: StateStore,
        writer: StoreWriter,
        on_collected: Callable[[tuple[int, ...], tuple[bytes, ...]], None],
    ) -> None:
        """Collect staged rows; a command of the same *verify_id* takes its place."""

        def tell(counts: tuple[int, ...], missing: tuple[bytes, ...]) -> None:
            self._post(partial(on_collected, counts, missing))

        collection = RowsCollection(
            self._caller,
            command,
            store=store,
            writer=writer,
            collected=self._collected,
            on_collected=tell,
        )
        self._caller.post(partial(self._replace, collection))

    def forget(self) -> None:
        """End everything that was begun: the store is another one now."""
        for job_id in tuple(self._asked):
            self.cancel(job_id)
        self._collected = CollectedStages()
        self._caller.post(self._close_all)

    def close(self) -> None:
        """End everything, and the thread."""
        self._loop.stop()
        self._loop.join()

    def _tell(
        self,
        fetch: RowsFetch,
        event: CopyAdvanced | KeyGroupsFetched,
        on_event: Callable[[CopyAdvanced | KeyGroupsFetched], None],
    ) -> None:
        """Tell of a fetch that was not cancelled; in the thread that asks."""
        asked = self._asked.get(event.job_id, [])
        if fetch in asked:
            if isinstance(event, KeyGroupsFetched):
                asked.remove(fetch)
            on_event(event)

    # -- in our own thread ---------------------------------------------------------

    def _begin(self, fetch: RowsFetch) -> None:
        self._waiting.append(fetch)
        self._tick()

    def _replace(self, collection: RowsCollection) -> None:
        verify_id = collection.command.verify_id
        previous = self._collections.get(verify_id)
        if previous is not None:
            if previous.renew(collection.command):
                return  # asked again: what has come of it so far counts
            previous.close()
        self._collections[verify_id] = collection
        self._tick()

    def _tick(self) -> None:
        """Take note of the time everywhere, and begin what there is room for."""
        now_ns = self._clock.now_ns()
        for fetch in self._fetches:
            fetch.let_time_pass(now_ns)
        self._fetches = [one for one in self._fetches if not one.is_over]
        while self._waiting and len(self._fetches) < self._limits.fetches_max:
            fetch = self._waiting.popleft()
            if not fetch.is_over:
                self._fetches.append(fetch)
                fetch.start()
        for collection in tuple(self._collections.values()):
            collection.let_time_pass(now_ns)
        self._collections = {
            verify_id: one
            for verify_id, one in self._collections.items()
            if not one.is_over
        }
        is_busy = self._fetches or self._waiting or self._collections
        self._tick_at_ns = now_ns + _TICK_NS if is_busy else None

    def _close_all(self) -> None:
        for fetch in (*self._fetches, *self._waiting):
            fetch.close()
        for collection in self._collections.values():
            collection.close()
        self._waiting.clear()
        self._fetches.clear()
        self._collections.clear()
