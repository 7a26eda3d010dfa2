"""
`FeedCore`: which paths of a leader store have changed since they were seen last.

Theory of operation
-------------------
One path is watched by a watch of its node.  Where there may be many, the node above
them is: every commit sets it, too, so its version counts the commits, and one watch
tells of all.  What changed is found by comparing each node's creation and version with
those that were seen last.

ZooKeeper's watches tell once, and do not outlive the connection.  So each poll watches
before it looks.  A poll that fails on its way is begun anew.

::

    NodeWatched ──► Finish
        └─► ListStore ──StoreListed──► LookAt ──PathsLooked──► Finish
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never, final

from attrs import frozen


if TYPE_CHECKING:
    from haservices.zookeeper.nodes import NodeStat


__all__ = [
    "FeedCore",
    "FeedEffect",
    "FeedEvent",
    "Finish",
    "ListStore",
    "LookAt",
    "NodeWatched",
    "PathsLooked",
    "StoreListed",
]

_Identity: TypeAlias = "tuple[int, int]"


@frozen(kw_only=True)
class NodeWatched:
    """The next change of the watched node will be told; now it is at *stat*."""

    stat: NodeStat | None


@frozen(kw_only=True)
class StoreListed:
    """These *paths* are in the store."""

    paths: tuple[str, ...]


@frozen(kw_only=True)
class PathsLooked:
    """What is known of the paths that were looked at, or None where they are gone."""

    stats: tuple[NodeStat | None, ...]


FeedEvent: TypeAlias = NodeWatched | StoreListed | PathsLooked


@frozen(kw_only=True)
class ListStore:
    """List the paths in the store."""


@frozen(kw_only=True)
class LookAt:
    """Find out what is known of *paths*."""

    paths: tuple[str, ...]


@frozen(kw_only=True)
class Finish:
    """These *paths* may have changed since the last time, and no others."""

    paths: frozenset[str]


FeedEffect: TypeAlias = ListStore | LookAt | Finish


@final
class FeedCore:
    """
    One watch of a leader store.

    Args:
        path: The only path that counts, or None.
        prefix: What the paths begin with that count otherwise.
    """

    def __init__(self, *, path: str | None, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._seen: _Identity | None = None
        self._seeing: _Identity | None = None
        self._looked_at: tuple[str, ...] = ()
        self._nodes: dict[str, _Identity] = {}

    def step(self, event: FeedEvent) -> FeedEffect:
        """Take *event* into account; return what to do."""
        match event:
            case NodeWatched(stat=stat):
                return self._watched(stat)
            case StoreListed(paths=paths):
                self._looked_at = tuple(
                    path for path in paths if path.startswith(self._prefix)
                )
                return LookAt(paths=self._looked_at)
            case PathsLooked(stats=stats):
                return self._compare(stats)
            case _:
                assert_never(event)

    def _watched(self, stat: NodeStat | None) -> FeedEffect:
        if self._path is not None:
            # The reader compares the value with what it was told before.
            return Finish(paths=frozenset({self._path}))
        self._seeing = None if stat is None else _identity(stat)
        if self._seeing is not None and self._seeing == self._seen:
            return Finish(paths=frozenset())
        return ListStore()

    def _compare(self, stats: tuple[NodeStat | None, ...]) -> Finish:
        nodes = {
            path: _identity(stat)
            for path, stat in zip(self._looked_at, stats, strict=True)
            if stat is not None
        }
        changed = frozenset(
            path
            for path in nodes.keys() | self._nodes.keys()
            if nodes.get(path) != self._nodes.get(path)
        )
        self._nodes = nodes
        self._seen = self._seeing  # now that we have looked: what fails is tried again
        return Finish(paths=changed)


def _identity(stat: NodeStat) -> _Identity:
    return (stat.created_zxid, stat.version)
