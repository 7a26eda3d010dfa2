from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from election.store import Delete, Put, StoreOperation
from haservices.zookeeper.nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeExistsError,
    NodeMissingError,
    NodeOperation,
    NodeVersionError,
    SetNode,
)
from haservices.zookeeper.paths import ZooKeeperPaths
from haservices.zookeeper.store_core import (
    CommitCore,
    CommitEffect,
    CommitFailed,
    Committed,
    FailCommit,
    Finish,
    ForgetParents,
    Look,
    Looked,
    NoteNode,
    SendCommit,
    Started,
)
from nameservice import ConfigurationError, DidNotHappenError, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Sequence


PATHS = ZooKeeperPaths("", "test").component("job")
A = PATHS.stored("a")
B = PATHS.stored("b")
MARK = SetNode(path=PATHS.store, value=b"")
MISSING = NodeMissingError("gone")
EXISTS = NodeExistsError("there")
VERSION = NodeVersionError("other")


def size_of(nodes: Sequence[NodeOperation]) -> int:
    """Return a size that is easy to reckon with."""
    return sum(
        len(node.value) if isinstance(node, CreateNode | SetNode) else 1
        for node in nodes
    )


def core_of(
    *operations: StoreOperation,
    known: dict[str, bool] | None = None,
    size_bytes_max: int = 1_000,
) -> CommitCore:
    """Return a core for *operations*."""
    return CommitCore(
        operations,
        paths=PATHS,
        known=known or {},
        size_of=size_of,
        size_bytes_max=size_bytes_max,
    )


def sent(*nodes: NodeOperation, is_bundled: bool = False) -> tuple[SendCommit]:
    """Return what is sent."""
    return (SendCommit(nodes=nodes, mark=MARK, is_bundled=is_bundled),)


def error_of(effects: tuple[CommitEffect, ...]) -> Any:
    """Return why the commit failed."""
    (effect,) = effects
    assert isinstance(effect, FailCommit)
    return effect.error


class TestSending:
    @pytest.mark.parametrize(
        ("operation", "known", "nodes"),
        [
            (Put("a", b"1"), {}, (CreateNode(path=A, value=b"=1"),)),
            (Put("a", b"1"), {A: True}, (SetNode(path=A, value=b"=1"),)),
            (Put("a", b"1", 0), {A: True}, (CreateNode(path=A, value=b"=1"),)),
            (Put("a", b"1", 3), {}, (SetNode(path=A, value=b"=1", version=2),)),
            (Delete("a"), {}, (DeleteNode(path=A),)),
            (
                Delete("a"),
                {A: False},
                (CreateNode(path=A, value=b""), DeleteNode(path=A)),
            ),
            (Delete("a", 3), {A: False}, (DeleteNode(path=A, version=2),)),
            (
                Delete("a", 0),
                {},
                (CreateNode(path=A, value=b""), DeleteNode(path=A)),
            ),
        ],
    )
    def test_what_is_sent_follows_from_version_and_guess(
        self,
        operation: StoreOperation,
        known: dict[str, bool],
        nodes: tuple[NodeOperation, ...],
    ) -> None:
        """L2: a version that is given is checked, whatever was guessed."""
        assert core_of(operation, known=known).step(Started()) == sent(*nodes)

    def test_what_was_done_is_remembered(self) -> None:
        """The next commit guesses right."""
        core = core_of(Put("a", b"1"), Delete("b"))
        core.step(Started())
        assert core.step(Committed()) == (
            NoteNode(path=A, is_there=True),
            NoteNode(path=B, is_there=False),
            Finish(),
        )

    @pytest.mark.parametrize("version", [2**31 + 1, 2**62])
    def test_a_version_that_no_node_has_fails_at_once(self, version: int) -> None:
        """It could not be sent."""
        error = error_of(core_of(Put("a", b"1", version)).step(Started()))
        assert isinstance(error, VersionMismatchError)

    def test_the_largest_version_is_sent(self) -> None:
        """ZooKeeper's own is one less."""
        (effect,) = core_of(Delete("a", 2**31)).step(Started())
        assert isinstance(effect, SendCommit)
        assert effect.nodes == (DeleteNode(path=A, version=2**31 - 1),)

    def test_values_that_are_too_many_are_bundled(self) -> None:
        """Whether they fit is decided for the largest that they may become."""
        operations = (Put("a", b"x" * 200, 1), Put("b", b"y" * 200, 1))
        (whole,) = core_of(*operations, size_bytes_max=403).step(Started())
        assert isinstance(whole, SendCommit)
        assert not whole.is_bundled
        (parted,) = core_of(*operations, size_bytes_max=402).step(Started())
        assert isinstance(parted, SendCommit)
        assert parted.is_bundled
        error = error_of(core_of(*operations, size_bytes_max=50).step(Started()))
        assert isinstance(error, ConfigurationError)


class TestFailures:
    def test_a_wrong_guess_is_looked_at_and_sent_again(self) -> None:
        """Only what has no version is looked at."""
        core = core_of(Put("a", b"1"), Put("b", b"2", 0))
        core.step(Started())
        assert core.step(CommitFailed(index=0, error=EXISTS)) == (Look(paths=(A,)),)
        assert core.step(Looked(are_there=(True,))) == (
            NoteNode(path=A, is_there=True),
            *sent(SetNode(path=A, value=b"=1"), CreateNode(path=B, value=b"=2")),
        )

    def test_a_missing_node_may_be_the_one_above(self) -> None:
        """The store may have been cleaned up since it was seen."""
        core = core_of(Put("a", b"1"))
        core.step(Started())
        assert core.step(CommitFailed(index=0, error=MISSING)) == (
            ForgetParents(),
            Look(paths=(A,)),
        )

    @pytest.mark.parametrize("operation", [Put("a", b"1", 0), Delete("a", 0)])
    def test_what_must_not_be_there_misses_only_the_one_above(
        self, operation: StoreOperation
    ) -> None:
        """There is nothing to look at: it is sent again."""
        core = core_of(operation)
        first = core.step(Started())
        assert core.step(CommitFailed(index=0, error=MISSING)) == (
            ForgetParents(),
            *first,
        )

    @pytest.mark.parametrize(
        ("operation", "error", "found"),
        [
            (Put("a", b"1", 3), VERSION, None),
            (Put("a", b"1", 3), MISSING, 0),
            (Put("a", b"1", 0), EXISTS, None),
            (Delete("a", 3), VERSION, None),
            (Delete("a", 3), MISSING, 0),
        ],
    )
    def test_a_version_that_is_not_there_is_told(
        self, operation: StoreOperation, error: Exception, found: int | None
    ) -> None:
        """L2: and nothing is sent again."""
        core = core_of(Put("b", b""), operation)
        core.step(Started())
        told = error_of(core.step(CommitFailed(index=1, error=error)))
        assert isinstance(told, VersionMismatchError)
        assert told.__cause__ is error
        assert (told.path, told.version) == ("a", found)

    def test_any_other_error_is_told_as_it_is(self) -> None:
        """L4: it did not happen, and why."""
        core = core_of(Put("a", b"1"))
        core.step(Started())
        error = DidNotHappenError("quota")
        assert error_of(core.step(CommitFailed(index=0, error=error))) is error

    def test_a_bundle_that_is_gone_is_made_again(self) -> None:
        """The check of it comes after all operations."""
        core = core_of(Put("a", b"x" * 500), size_bytes_max=300)
        first = core.step(Started())
        assert core.step(CommitFailed(index=1, error=MISSING)) == (
            ForgetParents(),
            *first,
        )

    def test_what_is_not_there_when_we_look_must_not_be_there_when_it_is_sent(
        self,
    ) -> None:
        """L1: a commit that was never answered may put it there in between."""
        core = core_of(Delete("a"))
        core.step(Started())
        assert core.step(CommitFailed(index=0, error=MISSING)) == (
            ForgetParents(),
            Look(paths=(A,)),
        )
        assert core.step(Looked(are_there=(False,))) == (
            NoteNode(path=A, is_there=False),
            *sent(CreateNode(path=A, value=b""), DeleteNode(path=A)),
        )
        assert core.step(CommitFailed(index=0, error=EXISTS)) == (Look(paths=(A,)),)

    def test_after_five_attempts_it_did_not_happen(self) -> None:
        """L4: others may change the store for ever."""
        core = core_of(Put("a", b"1"))
        core.step(Started())
        for _ in range(4):
            core.step(CommitFailed(index=0, error=EXISTS))
            core.step(Looked(are_there=(False,)))
        core.step(CommitFailed(index=0, error=EXISTS))
        _, effect = core.step(Looked(are_there=(False,)))
        assert isinstance(error_of((effect,)), DidNotHappenError)


def test_the_check_of_a_bundle_is_part_of_what_is_measured() -> None:
    """The request that is sent is no larger than what was measured."""
    seen: list[Sequence[NodeOperation]] = []

    def measure(nodes: Sequence[NodeOperation]) -> int:
        seen.append(nodes)
        return 10_000 if len(seen) == 1 else 1

    core = CommitCore(
        (Put("a", b"1"),), paths=PATHS, known={}, size_of=measure, size_bytes_max=9_000
    )
    core.step(Started())
    assert isinstance(seen[1][0], CheckNode)
    assert isinstance(seen[1][-2], CheckNode)
    assert seen[1][-1] == MARK
