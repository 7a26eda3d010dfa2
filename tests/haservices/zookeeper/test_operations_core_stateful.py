"""`RevokeCore`, `TransferCore` and `ExpireCore` against queues that others change."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import attrs
import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from haservices.zookeeper.nodes import (
    CheckNode,
    DeleteNode,
    NodeOperation,
    NodeStat,
    SetNode,
)
from haservices.zookeeper.operations_core import (
    Attempt,
    Attempted,
    Began,
    Contender,
    ExpireCore,
    Fail,
    Finish,
    Interrupted,
    OperationCore,
    OperationEvent,
    PublicationRead,
    Queue,
    QueuesRead,
    ReadPublication,
    ReadQueues,
    RevokeCore,
    TransferCore,
)
from haservices.zookeeper.paths import ZooKeeperPaths
from haservices.zookeeper.records import ContenderRecord, decode_contender
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    NoLeaderError,
    UnknownContenderError,
    UnknownSessionError,
    UnreachableError,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATHS = ZooKeeperPaths("", "test")
COMPONENTS = (PATHS.component("a"), PATHS.component("b"))


class Ensemble:
    """The contenders of two components, and which leaders have published."""

    def __init__(self) -> None:
        self.queues: list[list[Contender]] = [[], []]
        self.published: list[bool] = [False, False]
        self.zxid = 0

    def register(self, index: int, contender: int) -> None:
        """Queue a contender, at the end."""
        self.zxid += 1
        contender_id = f"{contender:032x}"
        path = COMPONENTS[index].contender(f"{contender_id}-{self.zxid:010d}")
        stat = NodeStat(
            version=0,
            owner_session_id=contender % 2 + 1,
            created_zxid=self.zxid,
            children_zxid=0,
        )
        record = ContenderRecord(
            leader_session_id=uuid.UUID(int=self.zxid),
            client="c",
            session_timeout_ms=1,
        )
        self.queues[index].append(
            Contender(path=path, contender_id=contender_id, stat=stat, record=record)
        )

    def grant(self, index: int) -> None:
        """Have the first write its node, as a holder does all the time, and publish."""
        for first in self.queues[index][:1]:
            if not first.record.is_ended:
                record = msgspec.structs.replace(first.record, is_granted=True)
                self.queues[index][0] = self.written(first, record)
                self.published[index] = True

    def written(self, contender: Contender, record: ContenderRecord) -> Contender:
        """Return it after one more write."""
        stat = attrs.evolve(contender.stat, version=contender.stat.version + 1)
        return attrs.evolve(contender, stat=stat, record=record)

    def leave(self, index: int) -> None:
        """Remove the first, and what it has published."""
        if self.queues[index]:
            del self.queues[index][0]
            self.published[index] = False

    def attempt(self, operations: Sequence[NodeOperation]) -> bool:
        """Do all of *operations*, or none."""
        queues = [list(queue) for queue in self.queues]
        published = list(self.published)
        for operation in operations:
            for index, paths in enumerate(COMPONENTS):
                if operation.path == paths.leader:
                    if not published[index]:
                        return False
                    published[index] = False
                    break
            else:
                if not self._touch(queues, operation):
                    return False
        self.queues, self.published = queues, published
        return True

    def _touch(self, queues: list[list[Contender]], operation: NodeOperation) -> bool:
        for queue in queues:
            for place, each in enumerate(queue):
                if each.path != operation.path:
                    continue
                assert isinstance(operation, CheckNode | SetNode | DeleteNode)
                if operation.version not in (-1, each.stat.version):
                    return False
                if isinstance(operation, DeleteNode):
                    assert not each.record.is_granted, "a holder is marked instead"
                    del queue[place]
                elif isinstance(operation, SetNode):
                    record = decode_contender(operation.value, path=each.path)
                    queue[place] = self.written(each, record)
                return True
        return False

    def run(
        self,
        core: OperationCore,
        indices: Sequence[int],
        interfere: Callable[[], None],
    ) -> Finish | Fail:
        """Do what *core* decides; others *interfere* before each step."""
        event: OperationEvent = Began()
        for _ in range(1_000):
            effect = core.step(event)
            if not isinstance(effect, Finish | Fail):
                interfere()
            match effect:
                case ReadQueues():
                    event = QueuesRead(
                        queues=tuple(
                            Queue(
                                paths=COMPONENTS[index],
                                contenders=tuple(self.queues[index]),
                            )
                            for index in indices
                        )
                    )
                case ReadPublication(paths=paths):
                    is_published = self.published[COMPONENTS.index(paths)]
                    event = PublicationRead(is_published=is_published)
                case Attempt(operations=operations):
                    event = Attempted(is_done=self.attempt(operations))
                case Finish() | Fail():
                    return effect
        raise AssertionError("it never ends")


class OperationsMachine(RuleBasedStateMachine):
    """Contenders come, are granted and leave, also while an operation is under way."""

    @initialize()
    def begin(self) -> None:
        """Begin without contenders."""
        self.ensemble = Ensemble()

    @rule(index=st.integers(0, 1), contender=st.integers(1, 4))
    def register(self, index: int, contender: int) -> None:
        """Queue a contender, once at a time."""
        queue = self.ensemble.queues[index]
        if all(each.contender_id != f"{contender:032x}" for each in queue):
            self.ensemble.register(index, contender)

    @rule(index=st.integers(0, 1))
    def grant(self, index: int) -> None:
        """Make the first lead."""
        self.ensemble.grant(index)

    @rule(index=st.integers(0, 1))
    def leave(self, index: int) -> None:
        """Remove the first."""
        self.ensemble.leave(index)

    def interference(self, rounds: list[int]) -> Callable[[], None]:
        """Return what makes others do something, before as many steps as are given."""

        def interfere() -> None:
            if rounds:
                what = rounds.pop()
                index = what % 2
                if what // 2 == 0:
                    self.ensemble.grant(index)
                elif what // 2 == 1:
                    self.ensemble.leave(index)
                else:
                    self.register(index, what % 4 + 1)

        return interfere

    @rule(rounds=st.lists(st.integers(0, 5), max_size=6))
    def revoke(self, rounds: list[int]) -> None:
        """N6: the present leader is ended, or there was none."""
        core = RevokeCore(component_id="a")
        outcome = self.ensemble.run(core, [0], self.interference(rounds))
        if isinstance(outcome, Fail):
            assert isinstance(outcome.error, NoLeaderError)
            return
        assert outcome.ended is not None
        for each in self.ensemble.queues[0]:
            if each.stat.created_zxid == outcome.ended.epoch:
                assert each.record.is_ended
                assert not self.ensemble.published[0]

    @rule(contender=st.integers(1, 4), rounds=st.lists(st.integers(0, 5), max_size=6))
    def transfer(self, contender: int, rounds: list[int]) -> None:
        """N6: only one that is ended may be before the one that is to lead."""
        contender_id = f"{contender:032x}"
        core = TransferCore(component_id="a", contender_id=contender_id)
        outcome = self.ensemble.run(core, [0], self.interference(rounds))
        if isinstance(outcome, Fail):
            assert isinstance(outcome.error, UnknownContenderError)
            return
        for each in self.ensemble.queues[0]:
            if each.contender_id == contender_id:
                break
            assert each.record.is_ended

    @rule(session=st.integers(1, 2), rounds=st.lists(st.integers(0, 5), max_size=4))
    def expire(self, session: int, rounds: list[int]) -> None:
        """N6: nothing of the session leads or waits that was there at the beginning."""
        before = {
            each.path
            for queue in self.ensemble.queues
            for each in queue
            if each.stat.owner_session_id == session
        }
        core = ExpireCore(session_id=f"{session:#x}")
        outcome = self.ensemble.run(core, [0, 1], self.interference(rounds))
        if isinstance(outcome, Fail):
            assert isinstance(outcome.error, UnknownSessionError)
        for queue in self.ensemble.queues:
            for each in queue:
                if each.path in before:
                    assert each.record.is_ended


TestOperations = OperationsMachine.TestCase


class TestBounds:
    @pytest.mark.parametrize(
        "core",
        [
            RevokeCore(component_id="a"),
            TransferCore(component_id="a", contender_id=f"{2:032x}"),
            ExpireCore(session_id="0x2"),
        ],
        ids=["revoke", "transfer", "expire"],
    )
    def test_others_may_change_the_queue_all_the_time(
        self, core: OperationCore
    ) -> None:
        """L4: then it did not happen."""
        ensemble = Ensemble()
        ensemble.register(0, 1)
        ensemble.register(0, 2)
        ensemble.grant(0)
        event: OperationEvent = Began()
        error: Exception | None = None
        for _ in range(100):
            match core.step(event):
                case ReadQueues():
                    queue = Queue(
                        paths=COMPONENTS[0], contenders=tuple(ensemble.queues[0])
                    )
                    event = QueuesRead(queues=(queue,))
                case ReadPublication():
                    event = PublicationRead(is_published=True)
                case Attempt():
                    event = Attempted(is_done=False)
                case Fail(error=error):
                    break
        assert isinstance(error, DidNotHappenError)


class TestHalfDone:
    @pytest.mark.parametrize(
        "error",
        [UnreachableError("zookeeper://a", 1.0, ""), DidNotHappenError("busy")],
    )
    @pytest.mark.parametrize("is_begun", [False, True])
    def test_what_is_half_done_may_have_happened(
        self, is_begun: bool, error: Exception
    ) -> None:
        """L4: there is no one transaction for all entries of a session."""
        ensemble = Ensemble()
        ensemble.register(0, 1)
        ensemble.register(1, 3)
        core = ExpireCore(session_id="0x2")
        core.step(Began())
        queues = tuple(
            Queue(paths=paths, contenders=tuple(queue))
            for paths, queue in zip(COMPONENTS, ensemble.queues, strict=True)
        )
        core.step(QueuesRead(queues=queues))
        if is_begun:
            core.step(Attempted(is_done=True))
        effect = core.step(Interrupted(error=error))
        assert isinstance(effect, Fail)
        if is_begun:
            assert isinstance(effect.error, MayHaveHappenedError)
            assert effect.error.__cause__ is error
        else:
            assert effect.error is error

    def test_what_was_ended_is_written_down(self) -> None:
        """N6: with the epochs that ended."""
        ensemble = Ensemble()
        ensemble.register(0, 1)
        ensemble.register(1, 2)
        ensemble.register(1, 3)
        ensemble.grant(0)
        outcome = ensemble.run(ExpireCore(session_id="0x2"), [0, 1], lambda: None)
        assert outcome == Finish(
            fields={"expired_session_id": "0x2", "epochs": {"a": 1}}
        )
        assert [len(queue) for queue in ensemble.queues] == [1, 1]


class TestTransfer:
    def test_who_is_first_already_stays_so(self) -> None:
        """N6: nothing is done, and nothing written down."""
        ensemble = Ensemble()
        ensemble.register(0, 1)
        core = TransferCore(component_id="a", contender_id=f"{1:032x}")
        assert ensemble.run(core, [0], lambda: None) == Finish()

    def test_one_that_leaves_meanwhile_ends_nobody(self) -> None:
        """N6: the holder goes on if there is no one to hand over to."""
        ensemble = Ensemble()
        ensemble.register(0, 1)
        ensemble.register(0, 2)
        ensemble.grant(0)
        core = TransferCore(component_id="a", contender_id=f"{2:032x}")
        steps = iter(range(10))

        def interfere() -> None:
            if next(steps) == 2:
                ensemble.queues[0].pop()

        outcome = ensemble.run(core, [0], interfere)
        assert isinstance(outcome, Fail)
        assert isinstance(outcome.error, UnknownContenderError)
        assert not ensemble.queues[0][0].record.is_ended

    def test_the_leadership_that_ends_is_told(self) -> None:
        """N6: and none if there was no leader."""
        for is_granted in (False, True):
            ensemble = Ensemble()
            ensemble.register(0, 1)
            ensemble.register(0, 2)
            if is_granted:
                ensemble.grant(0)
            core = TransferCore(component_id="a", contender_id=f"{2:032x}")
            first = ensemble.queues[0][0].leadership
            outcome = ensemble.run(core, [0], lambda: None)
            assert isinstance(outcome, Finish)
            assert outcome.ended == (first if is_granted else None)
            assert outcome.fields is not None
            assert outcome.fields["epoch"] == (1 if is_granted else None)
