"""
`CommitCore`: how one commit of the leader store becomes a transaction, without I/O.

Theory of operation
-------------------
ZooKeeper has no "write whatever is there": a node is either created or set.  For
operations without a version we guess which, from what this process did last, and send
the commit at once; only if a guess was wrong do we look, and send it again.  What was
found then is a guess, too: a commit of ours that was never answered may come after it,
or an operator change the store.  So a path that need not be deleted is in the
transaction all the same, as a check that it is not there.  A version is ZooKeeper's own
plus one, since ours begin at 1.

::

    Started ──► SendCommit ──Committed──► NoteNode…, Finish
                  ▲    └─CommitFailed─► Look ──Looked──┐    (or FailCommit)
                  └────────────────────────────────────┘

Each commit also sets the node above, which is what watches of many paths look at
(feed_core.py).  The check of the holder's own node is put before it by the
holding (holding_core.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from attrs import frozen

from election.store import Put, StoreOperation
from haservices.zookeeper.nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeExistsError,
    NodeMissingError,
    NodeOperation,
    NodeVersionError,
    SetNode,
    check_absent,
)
from haservices.zookeeper.packing import BUNDLE_NAME_EXAMPLE, pack, refer
from haservices.zookeeper.paths import CONTENDER_NAME_EXAMPLE
from nameservice import ConfigurationError, DidNotHappenError, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from haservices.zookeeper.paths import ComponentPaths


__all__ = [
    "CommitCore",
    "CommitEffect",
    "CommitEvent",
    "CommitFailed",
    "Committed",
    "FailCommit",
    "Finish",
    "ForgetParents",
    "Look",
    "Looked",
    "NoteNode",
    "SendCommit",
    "Started",
]

_ATTEMPT_COUNT_MAX: Final = 5
# A node's version is a signed 32-bit integer that begins at 0; ours begins at 1.
_VERSION_MAX: Final = 2**31


# -- events --------------------------------------------------------------------------


@frozen(kw_only=True)
class Started:
    """The commit is wanted."""


@frozen(kw_only=True)
class Committed:
    """What was sent has committed."""


@frozen(kw_only=True)
class CommitFailed:
    """Nothing was done: the *index*-th of the nodes that were sent failed."""

    index: int
    error: Exception


@frozen(kw_only=True)
class Looked:
    """The nodes that were looked at are there, or not, in the same order."""

    are_there: tuple[bool, ...]


CommitEvent: TypeAlias = Started | Committed | CommitFailed | Looked


# -- effects -------------------------------------------------------------------------


@frozen(kw_only=True)
class SendCommit:
    """
    Do all of *nodes*, or none.

    Attributes:
        nodes: On the nodes of the store.
        mark: Goes last: it tells who watches the store.
        is_bundled: Whether the values must be written beforehand.
    """

    nodes: tuple[NodeOperation, ...]
    mark: NodeOperation
    is_bundled: bool


@frozen(kw_only=True)
class ForgetParents:
    """Take the node above for missing."""


@frozen(kw_only=True)
class Look:
    """Find out which of the nodes at *paths* are there."""

    paths: tuple[str, ...]


@frozen(kw_only=True)
class NoteNode:
    """Remember whether the node at *path* is there, for the next commit."""

    path: str
    is_there: bool


@frozen(kw_only=True)
class FailCommit:
    """The commit did not happen, as *error* tells."""

    error: Exception


@frozen(kw_only=True)
class Finish:
    """The commit is done."""


CommitEffect: TypeAlias = (
    SendCommit | ForgetParents | Look | NoteNode | FailCommit | Finish
)


# -- the core ------------------------------------------------------------------------


@final
class CommitCore:
    """
    One commit.

    Two of them given the same sequence of events return the same effects.

    Args:
        operations: What the leader wants done.
        paths: Of the component.
        known: Which nodes are there, or not, as far as this process knows.
        size_of: Returns how many bytes a request takes.
        size_bytes_max: How many it may.
    """

    def __init__(
        self,
        operations: Sequence[StoreOperation],
        *,
        paths: ComponentPaths,
        known: Mapping[str, bool],
        size_of: Callable[[Sequence[NodeOperation]], int],
        size_bytes_max: int,
    ) -> None:
        self._operations = tuple(operations)
        self._paths = paths
        self._known = dict(known)
        self._size_of = size_of
        self._size_bytes_max = size_bytes_max
        self._is_bundled = False
        self._attempt_count = 0
        # Which operation each of the nodes that were sent is part of.
        self._sources: list[StoreOperation] = []
        self._looked_at: tuple[str, ...] = ()

    def step(self, event: CommitEvent) -> tuple[CommitEffect, ...]:
        """Take *event* into account; return what to do, in order."""
        effects: list[CommitEffect] = []
        match event:
            case Started():
                self._start(effects)
            case Committed():
                for operation in self._operations:
                    path = self._paths.stored(operation.path)
                    self._note(path, effects, is_there=isinstance(operation, Put))
                effects.append(Finish())
            case CommitFailed(index=index, error=error):
                self._failed(index, error, effects)
            case Looked(are_there=are_there):
                for path, is_there in zip(self._looked_at, are_there, strict=True):
                    self._note(path, effects, is_there=is_there)
                self._send(effects)
            case _:
                assert_never(event)
        return tuple(effects)

    def _note(self, path: str, effects: list[CommitEffect], *, is_there: bool) -> None:
        self._known[path] = is_there
        effects.append(NoteNode(path=path, is_there=is_there))

    # -- sending ---------------------------------------------------------------------

    @property
    def _mark(self) -> NodeOperation:
        return SetNode(path=self._paths.store, value=b"")

    def _start(self, effects: list[CommitEffect]) -> None:
        for operation in self._operations:
            version = operation.version or 0
            if version > _VERSION_MAX:  # no node is ever there
                mismatch = VersionMismatchError(operation.path, version, None)
                effects.append(FailCommit(error=mismatch))
                return
        try:
            self._is_bundled = self._must_be_bundled()
        except ConfigurationError as error:
            effects.append(FailCommit(error=error))
        else:
            self._send(effects)

    def _must_be_bundled(self) -> bool:
        """
        Return whether the values are too many for one request.

        What counts is the largest request that it may become: which operations create
        a node is known only when they are done.

        Raises:
            ConfigurationError: If the paths alone are too many.
        """
        nodes: list[NodeOperation] = []
        for operation in self._operations:
            nodes += _largest(operation, self._paths.stored(operation.path))
        # The holder puts a check of its own node first.
        own = CheckNode(path=self._paths.contender(CONTENDER_NAME_EXAMPLE))
        if self._size_of([own, *nodes, self._mark]) <= self._size_bytes_max:
            return False
        _, referring = refer(nodes, self._paths, name=BUNDLE_NAME_EXAMPLE)
        size_bytes = self._size_of([own, *referring, self._mark])
        if size_bytes > self._size_bytes_max:
            message = (
                f"the commit takes {size_bytes:,} bytes of ZooKeeper's "
                f"{self._size_bytes_max:,} for its paths alone, without the values: "
                "split it, or shorten the paths"
            )
            raise ConfigurationError(message)
        return True

    def _send(self, effects: list[CommitEffect]) -> None:
        if self._attempt_count >= _ATTEMPT_COUNT_MAX:
            message = (
                f"the store of {self._paths.component_id!r} was changed by others "
                f"{_ATTEMPT_COUNT_MAX} times while it was written"
            )
            effects.append(FailCommit(error=DidNotHappenError(message)))
            return
        self._attempt_count += 1
        nodes: list[NodeOperation] = []
        self._sources = []
        for operation in self._operations:
            for node in self._to_nodes(operation, self._paths.stored(operation.path)):
                nodes.append(node)
                self._sources.append(operation)
        effects.append(
            SendCommit(
                nodes=tuple(nodes),
                mark=self._mark,
                is_bundled=self._is_bundled,
            )
        )

    def _to_nodes(
        self, operation: StoreOperation, path: str
    ) -> tuple[NodeOperation, ...]:
        """Return what to do with the node at *path*, as far as we know."""
        version = operation.version
        node_version = -1 if version is None else version - 1
        if isinstance(operation, Put):
            value = pack(operation.value)
            if self._known.get(path, False) if version is None else version > 0:
                return (SetNode(path=path, value=value, version=node_version),)
            return (CreateNode(path=path, value=value),)
        if self._known.get(path, True) if version is None else version > 0:
            return (DeleteNode(path=path, version=node_version),)
        return check_absent(path)

    # -- failures --------------------------------------------------------------------

    def _failed(
        self, index: int, error: Exception, effects: list[CommitEffect]
    ) -> None:
        if index >= len(self._sources):
            # The bundle was taken away, or the node above: make another.
            effects.append(ForgetParents())
            self._send(effects)
            return
        refusal = _refusal(self._sources[index], error)
        if refusal is not None:
            effects.append(FailCommit(error=refusal))
            return
        if isinstance(error, NodeMissingError):
            effects.append(ForgetParents())
        self._looked_at = tuple(
            self._paths.stored(operation.path)
            for operation in self._operations
            if operation.version is None
        )
        if self._looked_at:
            effects.append(Look(paths=self._looked_at))
        else:
            self._send(effects)


def _refusal(operation: StoreOperation, error: Exception) -> Exception | None:
    """Return why *operation* was refused for good, or None if a guess was wrong."""
    if not isinstance(error, NodeVersionError | NodeExistsError | NodeMissingError):
        return error
    is_missing = isinstance(error, NodeMissingError)
    # Of one that must not be there, it is the node above that is missing.
    if operation.version is None or (is_missing and operation.version == 0):
        return None
    mismatch = VersionMismatchError(
        operation.path, operation.version, 0 if is_missing else None
    )
    mismatch.__cause__ = error
    return mismatch


def _largest(operation: StoreOperation, path: str) -> tuple[NodeOperation, ...]:
    """Return the largest that *operation* may become."""
    if isinstance(operation, Put):
        return (CreateNode(path=path, value=pack(operation.value)),)
    if operation.version:
        return (DeleteNode(path=path),)
    return check_absent(path)
