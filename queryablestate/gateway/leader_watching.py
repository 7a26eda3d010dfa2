"""
`Leaders`: who leads, for everybody who asks over HTTP.

The name service is asked one question at a time.  Its answer is for all who asked
before it was put: a leader may have confirmed since.  Who comes while it is under way
shares the next one.  A component that is watched has one retriever for all of its
watchers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final, final

from nameservice import SystemClock, get_logger
from nameservice.clock import NS_PER_SECOND
from queryablestate.gateway.events import event_bytes
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.tags import LeaderEventId, digest


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from haservices import ComponentInformation, HAServices
    from retrieval import LeaderInformation, LeaderRetriever


__all__ = ["Leaders", "component_document", "leader_document"]

_BEHIND_SECONDS_MAX: Final = 30.0
_COMPONENT_COUNT_MAX: Final = 1_000


def leader_document(leader: LeaderInformation | None) -> dict[str, Any] | None:
    """Return *leader* as it is written as JSON."""
    if leader is None:
        return None
    return {
        "address": leader.address,
        "epoch": leader.epoch,
        "leader_session_id": str(leader.leader_session_id),
    }


def component_document(component: ComponentInformation) -> dict[str, Any]:
    """Return one component as it is written as JSON."""
    return {
        "component": component.component_id,
        "leader": leader_document(component.leader),
        "epoch": component.epoch,
        "contender_count": component.contender_count,
    }


@final
class _LeaderWatch:
    """
    One component, and all who watch it.

    Attributes:
        retriever: Says who leads.
        watcher_count: How many watch it.
        is_over: Whether watchers are told nothing more.
        has_heard: Whether the retriever has ever heard of a leader.
    """

    def __init__(self, retriever: LeaderRetriever) -> None:
        self.retriever = retriever
        self.watcher_count = 0
        self.is_over = False
        self.has_heard = False
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow())

    def end(self) -> None:
        """Tell watchers nothing more."""
        self.is_over = True
        self._task.cancel()
        self._announce()

    @property
    def changed(self) -> asyncio.Event:
        """Return what is set when the next change comes."""
        return self._changed

    async def _follow(self) -> None:
        async for _ in self.retriever.changes_async():
            self.has_heard = True
            self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@final
class Leaders:
    """
    Who leads.  Belongs to one event loop.

    Args:
        services: The name service; stays its owner's.
        heartbeat_seconds: After which a watcher hears that all is as it was.
    """

    def __init__(self, services: HAServices, *, heartbeat_seconds: float) -> None:
        self._services = services
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = SystemClock()
        self._log = get_logger(component="gateway")
        self._asking = asyncio.Lock()
        self._next: asyncio.Future[Sequence[ComponentInformation]] | None = None
        self._watches: dict[str, _LeaderWatch] = {}

    @property
    def watched_count(self) -> int:
        """Return how many components are watched."""
        return len(self._watches)

    async def all(self) -> Sequence[ComponentInformation]:
        """
        Return every component that has a contender or a leader.

        Raises:
            NameServiceError: If the name service cannot tell.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._ask())
            self._next.add_done_callback(_heed)
        # One who gives up does not take the answer from the others.
        return await asyncio.shield(self._next)

    async def _ask(self) -> Sequence[ComponentInformation]:
        """Ask the name service, once it is asked nothing else."""
        async with self._asking:
            self._next = None  # it is too late for who comes from now on
            return await asyncio.get_running_loop().run_in_executor(
                None, self._services.operations.leaders
            )

    async def find(self, component_id: str) -> ComponentInformation:
        """
        Return a component that has a leader.

        Raises:
            GatewayError: If there is none.
            NameServiceError: If the name service cannot tell.
        """
        for component in await self.all():
            if component.component_id == component_id:
                if component.leader is None:
                    break
                return component
        raise GatewayError("no-leader", f"{component_id!r} has no leader")

    async def events(
        self, component_id: str, last: LeaderEventId | None
    ) -> AsyncGenerator[bytes | None, None]:
        """
        Yield who leads, then each change, as events.

        Args:
            component_id: Of what.
            last: What the watcher has seen before: it is not told that again, nor of a
                leader before that one.

        Yields:
            An event; or None when there was none for a while.

        Raises:
            GatewayError: If too many components are watched.
        """
        epoch = 0 if last is None else last.epoch
        told = None if last is None else last.leader
        began_ns = self._clock.now_ns()
        with self._watching(component_id) as watch:
            while not watch.is_over:
                changed = watch.changed  # before looking
                leader = watch.retriever.leader
                if leader is None and not watch.has_heard:
                    # A retriever that has heard nothing cannot know that there is no
                    # leader.
                    leader = await self._leader_of(component_id)
                is_behind = leader is not None and leader.epoch < epoch
                if is_behind and self._has_waited(began_ns):
                    epoch, is_behind = 0, False  # epochs begin anew: another service
                if not is_behind:
                    document = {
                        "component": component_id,
                        "leader": leader_document(leader),
                    }
                    value = "-"
                    if leader is not None:
                        value = digest(json.dumps(document).encode())
                        epoch = leader.epoch
                    if value != told:
                        told = value
                        event_id = str(LeaderEventId(epoch, value))
                        yield event_bytes("leader", document, event_id)
                        continue
                try:
                    async with asyncio.timeout(self._heartbeat_seconds):
                        await changed.wait()
                except TimeoutError:
                    yield None

    def end(self) -> None:
        """End every watch."""
        for watch in self._watches.values():
            watch.end()

    def _has_waited(self, since_ns: int) -> bool:
        return self._clock.now_ns() - since_ns > _BEHIND_SECONDS_MAX * NS_PER_SECOND

    async def _leader_of(self, component_id: str) -> LeaderInformation | None:
        for component in await self.all():
            if component.component_id == component_id:
                return component.leader
        return None

    @contextlib.contextmanager
    def _watching(self, component_id: str) -> Iterator[_LeaderWatch]:
        watch = self._watches.get(component_id)
        if watch is None:
            if len(self._watches) >= _COMPONENT_COUNT_MAX:
                raise GatewayError(
                    "busy",
                    f"{_COMPONENT_COUNT_MAX:,} components are watched",
                    retry_after_seconds=1.0,
                )
            retriever = self._services.get_leader_retriever(component_id)
            retriever.start()
            watch = self._watches[component_id] = _LeaderWatch(retriever)
        watch.watcher_count += 1
        try:
            yield watch
        finally:
            watch.watcher_count -= 1
            if not watch.watcher_count:
                if self._watches.get(component_id) is watch:
                    del self._watches[component_id]
                watch.end()
                watch.retriever.close()


def _heed(asked: asyncio.Future[Sequence[ComponentInformation]]) -> None:
    """Take note of an error: those who have waited for it were told."""
    if not asked.cancelled():
        asked.exception()
