"""
Who watches which leader store, and what has changed in it lately; pure.

A watch is told *that* something changed, once, and asks *what* changed since the
revision that it has seen; that arms it again.  So there is never more than one notice
on its way to a watch, however much is written and however slow its client is.

Revisions count all changes of all stores since the server started.  They mean nothing
to another server: a client shows the incarnation along with them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from attrs import Factory, define


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


__all__ = ["StoreWatches"]

_JOURNAL_COUNT_MAX: Final = 1_000
_JOURNALS_COUNT_MAX: Final = 10_000


@define(kw_only=True)
class _WatchedStore:
    """
    One store that is watched.

    Attributes:
        since: What changed up to this revision is not known.
        journal: (revision, path) of what changed later, in order.
        sessions: Who watches it; and whether the session is to be told of the next
            change.
    """

    since: int
    journal: deque[tuple[int, str]] = Factory(deque)
    sessions: dict[str, bool] = Factory(dict)


@final
class StoreWatches:
    """
    The watches of all sessions, bounded.

    Args:
        count_max: Stores that one session may watch.
    """

    def __init__(self, *, count_max: int) -> None:
        self.count_max = count_max
        self._revision = 0
        self._stores: dict[str, _WatchedStore] = {}
        self._by_session: dict[str, set[str]] = {}
        self._journals_count = 0

    def __len__(self) -> int:
        return sum(len(watched) for watched in self._by_session.values())

    def has(self, session_id: str, component_id: str) -> bool:
        """Return whether a session watches that store."""
        return component_id in self._by_session.get(session_id, ())

    def is_full(self, session_id: str) -> bool:
        """Return whether a session watches as many stores as it may."""
        return len(self._by_session.get(session_id, ())) >= self.count_max

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield of each store that is watched by how many sessions it is."""
        for component_id, store in self._stores.items():
            yield component_id, len(store.sessions)

    def watch(
        self, session_id: str, component_id: str, *, seen: int | None
    ) -> tuple[int, Sequence[str] | None] | None:
        """
        Tell *session_id* of the next change.

        Args:
            session_id: Who watches.
            component_id: Whose store.
            seen: The revision that it has seen, or None if it has seen none of ours.

        Returns:
            The present revision, and the paths that have changed since *seen*, or None
            for them if that is not known; None for both if it watches too many stores.
        """
        if not self.has(session_id, component_id) and self.is_full(session_id):
            return None
        self._by_session.setdefault(session_id, set()).add(component_id)
        store = self._stores.get(component_id)
        if store is None:
            store = _WatchedStore(since=self._revision)
            self._stores[component_id] = store
        store.sessions[session_id] = True
        if seen is None or not store.since <= seen <= self._revision:
            return self._revision, None
        changed = dict.fromkeys(path for at, path in store.journal if at > seen)
        return self._revision, tuple(changed)

    def unwatch(self, session_id: str, component_id: str) -> None:
        """Tell *session_id* no more."""
        watched = self._by_session.get(session_id, set())
        if component_id in watched:
            watched.discard(component_id)
            if not watched:
                del self._by_session[session_id]
            self._leave(session_id, component_id)

    def drop(self, session_id: str) -> None:
        """Forget a session that is over."""
        for component_id in sorted(self._by_session.pop(session_id, ())):
            self._leave(session_id, component_id)

    def changed(self, component_id: str, paths: Iterable[str] | None) -> Sequence[str]:
        """
        Record that *paths* changed, or anything at all if that is None.

        Returns:
            The sessions to be told, sorted.
        """
        self._revision += 1
        store = self._stores.get(component_id)
        if store is None:
            return ()
        if paths is None:
            self._forget(store)
        else:
            for path in paths:
                store.journal.append((self._revision, path))
                self._journals_count += 1
            if len(store.journal) > _JOURNAL_COUNT_MAX:
                self._forget(store)
            if self._journals_count > _JOURNALS_COUNT_MAX:
                for each in self._stores.values():
                    self._forget(each)
        told = sorted(
            session_id for session_id, is_armed in store.sessions.items() if is_armed
        )
        for session_id in told:
            store.sessions[session_id] = False
        return told

    def _forget(self, store: _WatchedStore) -> None:
        """Know nothing any more of what has changed up to now."""
        self._journals_count -= len(store.journal)
        store.journal.clear()
        store.since = self._revision

    def _leave(self, session_id: str, component_id: str) -> None:
        store = self._stores[component_id]
        del store.sessions[session_id]
        if not store.sessions:
            self._forget(store)
            del self._stores[component_id]
