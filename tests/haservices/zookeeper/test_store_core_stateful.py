"""`CommitCore` and `FeedCore` against a store that others change, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    NodeOperation,
    TransactionFailedError,
)
from haservices.zookeeper.paths import ZooKeeperPaths
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
from tests.haservices.zookeeper.store_model import Tree, expected


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


def apply(tree: Tree, operations: Sequence[NodeOperation]) -> CommitFailed | None:
    """Do all of *operations*, or none."""
    try:
        tree.transact(operations)
    except TransactionFailedError as failure:
        return CommitFailed(index=failure.index, error=failure.error)
    return None


class StoreMachine(RuleBasedStateMachine):
    """
    Two leaders in turn, each with guesses of its own, and a watch.

    The model is a dictionary: a commit does what the operations say, or nothing.
    """

    @initialize()
    def begin(self) -> None:
        """Begin with nothing, not even the node above."""
        self.store = Tree(PATHS)
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
        before = self.store.contents(PATHS)
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
            assert self.store.contents(PATHS) == before
        else:
            assert error is None
            assert self.store.contents(PATHS) == result

    def send(self, number: int, effect: SendCommit) -> CommitEvent:
        """Send a commit, and what is above it where that is not known."""
        if not self.are_parents_known[number]:
            apply(self.store, [CreateNode(path=PATHS.store, value=b"")])
            self.are_parents_known[number] = True
        return apply(self.store, [*effect.nodes, effect.mark]) or Committed()

    @rule()
    def clean_up(self) -> None:
        """Remove all, and the node above."""
        for name in self.store.names_in(PATHS.store):
            apply(self.store, [DeleteNode(path=f"{PATHS.store}/{name}")])
        apply(self.store, [DeleteNode(path=PATHS.store)])

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
                    event = StoreListed(paths=tuple(self.store.contents(PATHS)))
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
            for path, found in self.store.contents(PATHS).items()
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
    store = Tree(PATHS)
    path = PATHS.stored("a")
    core = CommitCore(
        [Put("a", b"1")], paths=PATHS, known={}, size_of=len, size_bytes_max=100
    )
    apply(store, [CreateNode(path=PATHS.store, value=b"")])
    event: CommitEvent = Started()
    for _ in range(20):
        for effect in core.step(event):
            match effect:
                case SendCommit(nodes=nodes):
                    # What was found is not so any more when it is sent.
                    if path in store.nodes:
                        apply(store, [DeleteNode(path=path)])
                    else:
                        apply(store, [CreateNode(path=path, value=b"=other")])
                    failed = apply(store, nodes)
                    assert failed is not None
                    event = failed
                case Look(paths=paths):
                    event = Looked(
                        are_there=tuple(each in store.nodes for each in paths)
                    )
                case FailCommit(error=error):
                    assert isinstance(error, DidNotHappenError)
                    assert store.contents(PATHS).get("a") in (None, (b"other", 1))
                    return
                case _:
                    pass
    raise AssertionError("it never ends")
