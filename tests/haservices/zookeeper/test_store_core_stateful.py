"""`CommitCore` and `FeedCore` against a store that others change, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from election.store import Delete, Put, StoreOperation
from haservices.zookeeper.feed_core import (
    FeedCore,
    FeedEvent,
    ListStore,
    LookAt,
    NodeWatched,
    PathsLooked,
    StoreListed,
)
from haservices.zookeeper.feed_core import (
    Finish as FinishPoll,
)
from haservices.zookeeper.nodes import (
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NodeMissingError,
    NodeOperation,
    NodeStat,
    NodeVersionError,
    SetNode,
)
from haservices.zookeeper.packing import unpack
from haservices.zookeeper.paths import ZooKeeperPaths, decode_name
from haservices.zookeeper.store_core import (
    CommitCore,
    CommitEvent,
    CommitFailed,
    Committed,
    FailCommit,
    ForgetParents,
    Look,
    Looked,
    NoteNode,
    SendCommit,
    Started,
)
from nameservice import DidNotHappenError, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy

PATHS = ZooKeeperPaths("", "test").component("job")
NAMES = ("a", "b", "p/c")

versions: SearchStrategy[int | None] = st.sampled_from([None, None, 0, 1, 2])
operation: SearchStrategy[StoreOperation] = st.one_of(
    st.builds(Put, st.sampled_from(NAMES), st.binary(max_size=2), versions),
    st.builds(Delete, st.sampled_from(NAMES), versions),
)


class Store:
    """The nodes of one store, the one above them among them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.zxid = 0

    def apply(self, operations: Sequence[NodeOperation]) -> CommitFailed | None:
        """Do all of *operations*, or none."""
        nodes = self.nodes.copy()
        self.zxid += 1
        for index, each in enumerate(operations):
            error = self._do(each, nodes)
            if error is not None:
                return CommitFailed(index=index, error=error)
        self.nodes = nodes
        return None

    def _do(self, each: NodeOperation, nodes: dict[str, Node]) -> Exception | None:
        node = nodes.get(each.path)
        if isinstance(each, CreateNode):
            if each.path != PATHS.store and PATHS.store not in nodes:
                return NodeMissingError(each.path)
            if node is not None:
                return NodeExistsError(each.path)
            stat = NodeStat(
                version=0,
                owner_session_id=0,
                created_zxid=self.zxid,
                children_zxid=0,
            )
            nodes[each.path] = Node(value=each.value, stat=stat)
            return None
        assert isinstance(each, SetNode | DeleteNode)
        if node is None:
            return NodeMissingError(each.path)
        if each.version not in (-1, node.stat.version):
            return NodeVersionError(each.path)
        if isinstance(each, DeleteNode):
            del nodes[each.path]
        else:
            stat = attrs.evolve(node.stat, version=node.stat.version + 1)
            nodes[each.path] = Node(value=each.value, stat=stat)
        return None

    def contents(self) -> dict[str, tuple[bytes, int]]:
        """Return the values and our versions."""
        found = {}
        for path, node in self.nodes.items():
            if path != PATHS.store:
                value = unpack(node.value)
                assert isinstance(value, bytes)
                name = decode_name(path.rpartition("/")[2])
                found[name] = (value, node.stat.version + 1)
        return found


def expected(
    contents: dict[str, tuple[bytes, int]], operations: Sequence[StoreOperation]
) -> dict[str, tuple[bytes, int]] | None:
    """Return what *operations* make of *contents*, or None if they are refused."""
    result = contents.copy()
    for each in operations:
        present = result[each.path][1] if each.path in result else 0
        if each.version not in (None, present):
            return None
        if isinstance(each, Put):
            result[each.path] = (each.value, present + 1)
        else:
            result.pop(each.path, None)
    return result


class StoreMachine(RuleBasedStateMachine):
    """
    Two leaders in turn, each with guesses of its own, and a watch.

    The model is a dictionary: a commit does what the operations say, or nothing.
    """

    @initialize()
    def begin(self) -> None:
        """Begin with nothing, not even the node above."""
        self.store = Store()
        self.known: tuple[dict[str, bool], dict[str, bool]] = ({}, {})
        self.are_parents_known = [False, False]
        self.feeds = (FeedCore(path=None, prefix=""), FeedCore(path=None, prefix="p/"))
        self.seen: list[dict[str, tuple[bytes, int]]] = [{}, {}]

    @rule(
        number=st.integers(min_value=0, max_value=1),
        operations=st.lists(
            operation, min_size=1, max_size=3, unique_by=lambda each: each.path
        ),
    )
    def commit(self, number: int, operations: list[StoreOperation]) -> None:
        """Have one of the leaders commit."""
        before = self.store.contents()
        core = CommitCore(
            operations,
            paths=PATHS,
            known=self.known[number],
            size_of=len,
            size_bytes_max=100,
        )
        event: CommitEvent | None = Started()
        error: Exception | None = None
        while event is not None:
            effects = core.step(event)
            event = None
            for effect in effects:
                match effect:
                    case SendCommit():
                        event = self.send(number, effect)
                    case ForgetParents():
                        self.are_parents_known[number] = False
                    case Look(paths=paths):
                        event = Looked(
                            are_there=tuple(path in self.store.nodes for path in paths)
                        )
                    case NoteNode(path=path, is_there=is_there):
                        self.known[number][path] = is_there
                    case FailCommit(error=error):
                        pass
                    case _:
                        pass
        result = expected(before, operations)
        if result is None:
            assert isinstance(error, VersionMismatchError)
            assert self.store.contents() == before
        else:
            assert error is None
            assert self.store.contents() == result

    def send(self, number: int, effect: SendCommit) -> CommitEvent:
        """Send a commit, and what is above it where that is not known."""
        if not self.are_parents_known[number]:
            self.store.apply([CreateNode(path=PATHS.store, value=b"")])
            self.are_parents_known[number] = True
        return self.store.apply([*effect.nodes, effect.mark]) or Committed()

    @rule()
    def clean_up(self) -> None:
        """Remove all, and the node above."""
        self.store.nodes.clear()

    # -- the watches -------------------------------------------------------------------

    @rule(number=st.integers(min_value=0, max_value=1), is_cut=st.booleans())
    def poll(self, number: int, is_cut: bool) -> None:
        """Look what has changed; a poll that is cut off says nothing."""
        node = self.store.nodes.get(PATHS.store)
        event: FeedEvent = NodeWatched(stat=None if node is None else node.stat)
        changed: frozenset[str] | None = None
        while changed is None:
            match effect := self.feeds[number].step(event):
                case ListStore():
                    event = StoreListed(paths=tuple(self.store.contents()))
                case LookAt(paths=paths):
                    if is_cut:
                        return
                    event = PathsLooked(
                        stats=tuple(
                            self.store.nodes[PATHS.stored(path)].stat for path in paths
                        )
                    )
                case FinishPoll(paths=paths):
                    changed = paths
                case _:
                    raise AssertionError(effect)
        prefix = ("", "p/")[number]
        now = {
            path: found
            for path, found in self.store.contents().items()
            if path.startswith(prefix)
        }
        differing = {
            path
            for path in now.keys() | self.seen[number].keys()
            if now.get(path) != self.seen[number].get(path)
        }
        assert differing <= changed
        assert all(path.startswith(prefix) for path in changed)
        self.seen[number] = now


TestStore = StoreMachine.TestCase


def test_others_may_change_the_store_all_the_time() -> None:
    """L4: then the commit did not happen, and nothing of it is there."""
    store = Store()
    path = PATHS.stored("a")
    core = CommitCore(
        [Put("a", b"1")], paths=PATHS, known={}, size_of=len, size_bytes_max=100
    )
    store.apply([CreateNode(path=PATHS.store, value=b"")])
    event: CommitEvent = Started()
    for _ in range(20):
        for effect in core.step(event):
            match effect:
                case SendCommit(nodes=nodes):
                    # What was found is not so any more when it is sent.
                    if path in store.nodes:
                        store.apply([DeleteNode(path=path)])
                    else:
                        store.apply([CreateNode(path=path, value=b"=other")])
                    failed = store.apply(nodes)
                    assert failed is not None
                    event = failed
                case Look(paths=paths):
                    event = Looked(
                        are_there=tuple(each in store.nodes for each in paths)
                    )
                case FailCommit(error=error):
                    assert isinstance(error, DidNotHappenError)
                    assert store.contents().get("a") in (None, (b"other", 1))
                    return
                case _:
                    pass
    raise AssertionError("it never ends")
