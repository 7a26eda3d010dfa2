"""
What leaders, readers and cleanups do to one leader store at once, and what must hold.

Two processes contend; the threads of each commit, small and large, and read.  A third
one reads and cleans up.  The scheduler chooses what goes on: a thread, a loop, a
server, an answer.  Meanwhile connections are lost, waits are given up, and leaderships
end.

After each transaction the nodes are compared with a model, a dictionary to which the
operations of the commit are applied: so a value that cannot be read, a commit that is
done in part, twice, or against its versions is seen at once.
"""

from __future__ import annotations

import uuid
from collections import Counter
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from election.contender import LeaderSession
from election.store import Delete, Put
from haservices.zookeeper import bundles
from haservices.zookeeper.nodes import CreateNode, DeleteNode, SetNode
from haservices.zookeeper.packing import unused_bundles
from haservices.zookeeper.paths import ZooKeeperPaths, ancestors_of, decode_name
from haservices.zookeeper.store import cleanup_store
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    RemoteProtocolError,
    StaleEpochError,
    UnreachableError,
    VersionMismatchError,
)
from tests.haservices.zookeeper.store_model import Tree, expected
from tests.state_simulation.virtual_threads import VirtualThread
from tests.zookeeper_simulation.store_process import Attempt, Process
from tests.zookeeper_simulation.world import RuleBrokenError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election.store import StoreOperation
    from haservices.zookeeper.nodes import Node, NodeOperation
    from tests.haservices.zookeeper.store_model import Contents


__all__ = ["StoreWorld"]

_NAMES: Final = (*"abcdefgh", *(f"p/{letter}" for letter in "abcdefgh"))
_LARGE_SIZE_BYTES: Final = 600_000
"""Two of them are bundled."""
_ACTION_COUNT_MAX: Final = 24
_GRANT_PROBABILITY: Final = 0.02
_STALL_PROBABILITY: Final = 0.1
_STALL_STEPS_MAX: Final = 100
_STEP_COUNT_MAX: Final = 100_000
_CALM_STEP_COUNT: Final = 3_000


@frozen(eq=False)
class _Moment:
    """What there is after a transaction: the nodes, and what the store holds."""

    nodes: dict[str, Node]
    contents: Contents


def _shown(attempt: Attempt) -> str:
    """Return what a commit does, without its values."""
    return ", ".join(
        f"{type(operation).__name__} {operation.path} {operation.version}"
        for operation in attempt.operations
    )


@final
class _Worker:
    """A thread of a process, and what it waits for."""

    def __init__(self, process: Process, act: Callable[[], None]) -> None:
        self.process = process
        self.thread = VirtualThread(act)
        self.is_ready: Callable[[], bool] = lambda: True
        self.has_given_up = False
        self.attempt: Attempt | None = None
        self.stalled_until = 0


@final
class StoreWorld:
    """
    Everything of one seed.

    Args:
        seed: What all draws follow from.
        write: Takes the lines of a trace.

    Attributes:
        history: What there was after each transaction.
        epoch: Of the present leader, or of the last one.
    """

    def __init__(self, seed: int, write: Callable[[str], None] | None = None) -> None:
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter()
        self.paths: Final = ZooKeeperPaths("", "test").component("job")
        self._write = write
        self._tree = Tree(self.paths)
        self._model: Contents = {}
        self._written: dict[str, int] = {}
        self.history = [_Moment(self._tree.nodes, {})]
        self.epoch = 0
        self._leader: LeaderSession | None = None
        self._processes = [Process(self, index) for index in range(3)]
        self._workers: list[_Worker] = []
        self._present: _Worker | None = None
        self._number = 0
        self._is_calm = False
        self._fault_probability = self.rng.choice((0.0, 0.002, 0.01, 0.03))
        self._is_disturbed = self._fault_probability > 0
        self._cleanup_share = self.rng.choice((0.0, 0.3))
        self._names = self.rng.choice((_NAMES, _NAMES[:2]))
        self._large_share = self.rng.choice((0.1, 0.8))
        self._threads_max = self.rng.choice((2, 4))

    # -- threads -----------------------------------------------------------------------

    def wait(self, is_ready: Callable[[], bool]) -> bool:
        """Let others run until it *is_ready*; return whether it is: False, given up."""
        worker = self._present
        assert worker is not None
        worker.is_ready = is_ready
        worker.has_given_up = False
        worker.thread.pause()
        return not worker.has_given_up or is_ready()

    @property
    def attempt(self) -> Attempt | None:
        """Return what the present thread commits, or None."""
        assert self._present is not None
        return self._present.attempt

    def _resume(self, worker: _Worker, *, gives_up: bool = False) -> None:
        worker.has_given_up = gives_up
        self._present = worker
        worker.thread.resume()
        self._present = None
        if worker.thread.is_over:
            self._workers.remove(worker)

    def _start(self, process: Process, act: Callable[[], None]) -> None:
        self._workers.append(_Worker(process, act))

    # -- the nodes ---------------------------------------------------------------------

    def own_node(self, session: LeaderSession) -> str:
        """Return the node whose check each commit of *session* begins with."""
        return self.paths.contender(f"own-{session.epoch}")

    def transact(
        self,
        process: Process,
        operations: Sequence[NodeOperation],
        attempt: Attempt | None,
    ) -> None:
        """Do *operations*, or raise; then compare what there is with the model."""
        self._tree.transact(operations)
        last = operations[-1]
        is_commit = isinstance(last, SetNode) and last.path == self.paths.store
        if is_commit and attempt is not None:
            self._committed(process, attempt)
        else:
            for operation in operations:
                if isinstance(operation, DeleteNode):
                    self._deleted(operation.path)
        try:
            found = self._tree.contents(self.paths)
        except AssertionError as error:
            raise self._broken(f"L1: {error}") from None
        self._require("L1: nodes hold what was committed", found == self._model)
        self.history.append(_Moment(self._tree.nodes, self._model))

    def _committed(self, process: Process, attempt: Attempt) -> None:
        after = expected(self._model, attempt.operations)
        self.trace(f"process {process.index} has committed {_shown(attempt)}")
        self._require("L1: a commit holds to its versions", after is not None)
        self._require("L2: only the leader commits", attempt.session == self._leader)
        attempt.applied_count += 1
        self._require("L4: a commit is done once", attempt.applied_count == 1)
        self._require(
            "L4: what did not happen does not happen later", not attempt.did_not_happen
        )
        assert after is not None
        self._model = after
        for operation in attempt.operations:
            self._written[operation.path] = len(self.history)
        self.count("commits done")

    def _deleted(self, path: str) -> None:
        above = f"{self.paths.store}/"
        if path.startswith(above):
            self._model = self._model.copy()
            self._model.pop(decode_name(path[len(above) :]), None)

    # -- what threads do ---------------------------------------------------------------

    def _act(self, process: Process) -> None:
        for _ in range(self.rng.randint(1, _ACTION_COUNT_MAX)):
            self.wait(lambda: True)
            session = process.told
            draw = self.rng.random()
            if session is not None and draw < 0.75:
                self._commit(process, session, self._operations())
            elif process.index == 2 and draw < self._cleanup_share:
                self._clean_up(process)
            elif self.rng.random() < 0.5:
                self._get(process)
            else:
                self._list(process)

    def _operations(self) -> tuple[StoreOperation, ...]:
        rng = self.rng
        is_large = rng.random() < self._large_share
        names = rng.sample(self._names, rng.randint(1, min(3, len(self._names))))
        made: list[StoreOperation] = []
        for name in names:
            version = rng.choice((0, 1, 2, 3)) if rng.random() < 0.2 else None
            if not is_large and rng.random() < 0.3:
                made.append(Delete(name, version))
            else:
                self._number += 1
                value = b"%d" % self._number
                size = _LARGE_SIZE_BYTES if is_large else 0
                made.append(Put(name, value.ljust(size, b"."), version))
        return tuple(made)

    def _commit(
        self,
        process: Process,
        session: LeaderSession,
        operations: tuple[StoreOperation, ...],
    ) -> None:
        assert self._present is not None
        attempt = self._present.attempt = Attempt(operations, session)
        began = len(self.history) - 1
        try:
            self._traced(process, lambda: process.store.commit(operations, session))
        except MayHaveHappenedError:
            self.count("commits in doubt")
        except VersionMismatchError:
            self._did_not_happen(attempt)
            self._require(
                "L1: a commit is refused for a version that is not there",
                any(
                    expected(moment.contents, operations) is None
                    for moment in self.history[began:]
                ),
            )
            self.count("commits refused for a version")
        except StaleEpochError:
            self._did_not_happen(attempt)
            self._require(
                "L2: only a leader that is stale is told so", session != self._leader
            )
            if process.told == session:
                process.told = None
            self.count("commits refused for an epoch")
        except (DidNotHappenError, UnreachableError):
            self._did_not_happen(attempt)
            self._require(
                "L4: threads of one leader do not refuse one another",
                self._is_disturbed,
            )
            self.count("commits that did not happen")
        else:
            self._require("L1: what is told to be done is", attempt.applied_count == 1)
            self.count("commits acknowledged")
        self._present.attempt = None

    def _traced(self, process: Process, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.trace(f"process {process.index} is told {error!r}")
            raise

    def _did_not_happen(self, attempt: Attempt) -> None:
        attempt.did_not_happen = True
        self._require(
            "L4: what did not happen has not happened", attempt.applied_count == 0
        )

    def _get(self, process: Process) -> None:
        path = self.rng.choice(self._names)
        began = len(self.history) - 1
        try:
            found = process.store.get(path)
        except (UnreachableError, RemoteProtocolError):
            self.count("reads given up")
            return
        value = None if found is None else (found.value, found.version)
        self._require(
            "L1: what is read was there while it was read",
            any(moment.contents.get(path) == value for moment in self.history[began:]),
        )

    def _list(self, process: Process) -> None:
        prefix = self.rng.choice(("", "p/"))

        def has_prefix(path: str) -> bool:
            return path.startswith(prefix)

        began = len(self.history) - 1
        try:
            found = process.store.list(prefix)
        except UnreachableError:
            self.count("reads given up")
            return
        self._require(
            "L1: what is listed was there while it was listed",
            any(
                found == sorted(filter(has_prefix, moment.contents))
                for moment in self.history[began:]
            ),
        )

    def _clean_up(self, process: Process) -> None:
        self._is_disturbed = True
        began = len(self.history) - 1
        try:
            cleanup_store(process.session, self.paths)
        except (UnreachableError, MayHaveHappenedError):
            self.count("cleanups in doubt")
            return
        self._require(
            "L3: a cleanup leaves nothing of what there was before",
            all(self._written[path] > began for path in self._model),
        )
        self.count("cleanups")

    # -- faults ------------------------------------------------------------------------

    def _fault(self) -> None:
        draw = self.rng.random()
        if draw < 0.35:
            process = self.rng.choice(self._processes)
            self.trace(f"process {process.index} loses its connection")
            self.count("fault: lost connection")
            process.lose_connection()
        elif draw < 0.6:
            waiting = [one for one in self._workers if not one.is_ready()]
            if waiting:
                self.count("fault: wait given up")
                self._resume(self.rng.choice(waiting), gives_up=True)
        else:
            self._end_leadership()

    def _end_leadership(self) -> None:
        if self._leader is not None:
            self.trace(f"epoch {self._leader.epoch} ends")
            self.count("fault: leadership ended")
            own = self.own_node(self._leader)
            self._leader = None
            self._tree.transact([DeleteNode(path=own)])
            self.history.append(_Moment(self._tree.nodes, self._model))

    def _grant(self) -> None:
        """Have another leader, now or soon: it is told, and the last one may not be."""
        if self._leader is not None:
            return
        self.epoch += 1
        self._leader = LeaderSession(
            leader_session_id=uuid.UUID(int=self.epoch), epoch=self.epoch
        )
        process = self._processes[self.rng.randrange(2)]
        process.told = self._leader
        for path in ancestors_of(self.own_node(self._leader)):
            if path not in self._tree.nodes:
                self._tree.transact([CreateNode(path=path, value=b"")])
        self.history.append(_Moment(self._tree.nodes, self._model))
        self.trace(f"process {process.index} leads in epoch {self.epoch}")
        self.count("leaderships granted")

    # -- a run -------------------------------------------------------------------------

    def run(self) -> None:
        """
        Run it to its end.

        Raises:
            RuleBrokenError: If a rule did not hold.
        """
        drawn = SimpleNamespace(uuid4=lambda: uuid.UUID(int=self.rng.getrandbits(128)))
        kept = vars(bundles)["uuid"]
        vars(bundles)["uuid"] = drawn
        try:
            self._grant()
            for process in self._processes:
                for _ in range(self.rng.randint(1, self._threads_max)):
                    self._start(process, partial(self._act, process))
            self._schedule()
            self._end()
        finally:
            vars(bundles)["uuid"] = kept

    def _schedule(self) -> None:
        """Have something go on until there is nothing to do."""
        for worker in self._workers:
            worker.stalled_until = 0
        for number in range(_STEP_COUNT_MAX):
            self._is_calm = self._is_calm or number > _CALM_STEP_COUNT
            if not self._is_calm and self.rng.random() < self._fault_probability:
                self._fault()
            if self._leader is None and self.rng.random() < _GRANT_PROBABILITY:
                self._grant()
            steps = [step for process in self._processes for step in process.steps()]
            ready = [one for one in self._workers if one.is_ready()]
            if not steps and not ready:
                self._require("L4: each call ends", not self._workers)
                return
            # Some threads get no processor for a while, though they could go on.
            awake = [one for one in ready if one.stalled_until <= number]
            ready = awake if awake or steps else ready
            chosen = self.rng.randrange(len(steps) + len(ready))
            if chosen < len(steps):
                steps[chosen]()
                continue
            worker = ready[chosen - len(steps)]
            if self.rng.random() < _STALL_PROBABILITY:
                worker.stalled_until = number + self.rng.randint(1, _STALL_STEPS_MAX)
            self._resume(worker)
        raise self._broken("L4: calls go on for ever")

    def _end(self) -> None:
        """Have one more large commit, which leaves no bundle that is of no use."""
        self._is_calm = True
        self._grant()
        leader = next(one for one in self._processes if one.told == self._leader)
        assert self._leader is not None
        session = self._leader
        large = tuple(Put(name, b"." * _LARGE_SIZE_BYTES) for name in _NAMES[:3])
        done = self.counts["commits acknowledged"]
        # They are of no use, it may be, once its values have replaced others.
        used = set(self._tree.names_in(self.paths.bundles)) - self._unused_bundles()
        self._start(leader, lambda: self._commit(leader, session, large))
        self._schedule()
        self._require(
            "L1: a leader commits where all is quiet",
            self.counts["commits acknowledged"] == done + 1,
        )
        # It is not known of some whether they are referred to yet.
        in_doubt = leader.own.bundles_under_way & leader.referred
        self._require(
            "L3: no bundle is left that was of no use",
            self._unused_bundles() <= in_doubt | used,
        )

    def _unused_bundles(self) -> set[str]:
        store = self.paths.store
        values = (
            self._tree.nodes[f"{store}/{name}"].value
            for name in self._tree.names_in(store)
        )
        return set(unused_bundles(self._tree.names_in(self.paths.bundles), values))

    # -- what must hold ----------------------------------------------------------------

    def count(self, what: str) -> None:
        """Count something for the summary."""
        self.counts[what] += 1

    def trace(self, line: str) -> None:
        """Write a line of the trace."""
        if self._write is not None:
            self._write(f"{len(self.history):6} {line}")

    def _require(self, rule: str, holds: bool) -> None:
        name, _, what = rule.partition(": ")
        self.count(f"checked: {name} {what}")
        if not holds:
            raise self._broken(rule)

    def _broken(self, message: str) -> RuleBrokenError:
        self.trace(message)
        return RuleBrokenError(message)
