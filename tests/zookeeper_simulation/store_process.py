"""
A process of the store's simulation: shipped code over a session that is made here.

What is shipped is the driver of the leader store with all that it uses: guesses, turns,
bundles, cleanups.  What is made here is what a session gives it: requests are done in
their order, each at some time after it was sent; answers come later, or never.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from attrs import define

from haservices.zookeeper.nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeMissingError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper.parents import Parents
from haservices.zookeeper.store import OwnCommits, ZooKeeperStoreDriver
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    StaleEpochError,
    UnreachableError,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election.contender import LeaderSession
    from election.store import StoreOperation
    from haservices.zookeeper.entry import Commit
    from haservices.zookeeper.nodes import Node, NodeOperation, NodeStat
    from tests.zookeeper_simulation.store_world import StoreWorld


__all__ = ["Attempt", "Process"]

T = TypeVar("T")

_SECONDS: Final = 5.0
_ACL_SIZE_BYTES: Final = 30


@define(eq=False)
class Attempt:
    """
    A call of ``commit``, and what came of it.

    Attributes:
        operations: What it was to do.
        session: The leadership under which.
        applied_count: How often it was done.
        did_not_happen: Whether the caller was told so.
    """

    operations: tuple[StoreOperation, ...]
    session: LeaderSession
    applied_count: int = 0
    did_not_happen: bool = False


@define(eq=False)
class _Asked:
    """
    A request that was sent.

    Attributes:
        do: Does it, at the server.
        answer: Completed once it is answered.
        result: What came of it, if it was done.
        error: Why it was not done.
        shown: What the server showed then.
    """

    do: Callable[[], Any]
    answer: Future[Any]
    result: Any = None
    error: Exception | None = None
    shown: int = 0


@final
class _Answer(Future[T]):
    """The future of a request; who waits for it lets others run."""

    def __init__(self, world: StoreWorld) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> T:
        if not self._world.wait(self.done):
            raise TimeoutError
        return super().result(timeout)


@final
class _Connection:
    """What a `ZooKeeperConnection` offers, as far as stores use it."""

    acl_size_bytes: Final = _ACL_SIZE_BYTES

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def sync(self) -> Future[None]:
        """Have what follows show all that was committed before."""
        return self._process.submit(self._process.catch_up)

    def get(self, path: str) -> Future[Node]:
        """Return a node."""

        def do() -> Node:
            node = self._process.nodes_shown().get(path)
            if node is None:
                raise NodeMissingError(path)
            return node

        return self._process.submit(do)

    def exists(self, path: str) -> Future[NodeStat | None]:
        """Return what is known of a node, or None."""

        def do() -> NodeStat | None:
            node = self._process.nodes_shown().get(path)
            return None if node is None else node.stat

        return self._process.submit(do)

    def children(self, path: str) -> Future[list[str]]:
        """Return the names of the children of a node."""

        def do() -> list[str]:
            nodes = self._process.nodes_shown()
            if path not in nodes:
                raise NodeMissingError(path)
            above = f"{path}/"
            return [one[len(above) :] for one in nodes if one.startswith(above)]

        return self._process.submit(do)

    def create(self, path: str, value: bytes = b"") -> Future[None]:
        """Create a node."""
        return self._write(CreateNode(path=path, value=value))

    def set(self, path: str, value: bytes, version: int) -> Future[None]:
        """Set a node."""
        return self._write(SetNode(path=path, value=value, version=version))

    def delete(self, path: str) -> Future[None]:
        """Delete a node."""
        return self._write(DeleteNode(path=path))

    def transact(self, operations: Sequence[NodeOperation]) -> Future[None]:
        """Do all of *operations*, or none."""
        return self._process.submit(lambda: self._process.transact(operations, None))

    def _write(self, operation: NodeOperation) -> Future[None]:
        def do() -> None:
            try:
                self._process.transact([operation], None)
            except TransactionFailedError as failure:
                raise failure.error from None

        return self._process.submit(do)


@final
class _Calls:
    """What `BlockingCalls` offers."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def check_open(self) -> None:
        """The services are open."""

    def read(self, request: Callable[[], Future[T]]) -> T:
        """Ask until there is an answer."""
        (answer,) = self.read_all([request])
        return answer

    def read_all(self, requests: Sequence[Callable[[], Future[T]]]) -> list[T]:
        """Ask until there are all answers."""
        while True:
            asked = [self.request(request) for request in requests]
            try:
                return [one.result() for one in asked]
            except TimeoutError:
                raise UnreachableError("simulated", _SECONDS) from None
            except MayHaveHappenedError:
                continue  # it was only a question

    def write(self, request: Callable[[], Future[T]]) -> T:
        """Ask once."""
        try:
            return self.request(request).result()
        except TimeoutError:
            message = "no answer in time"
            raise MayHaveHappenedError(message) from None

    def request(self, request: Callable[[], Future[T]]) -> Future[T]:
        """Ask on the loop."""
        answer: _Answer[T] = _Answer(self._world)

        def ask() -> None:
            request().add_done_callback(lambda asked: _hand_on(asked, answer))

        self._process.loop_calls.append(ask)
        return answer


def _hand_on(asked: Future[Any], answer: Future[Any]) -> None:
    error = asked.exception()
    if error is None:
        answer.set_result(asked.result())
    else:
        answer.set_exception(error)


@final
class _Holder:
    """What `ZooKeeperElections` offers: one request of the holder at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: deque[tuple[Commit, Attempt | None]] = deque()
        self._is_busy = False

    def holder_of(self, _component_id: str, session: LeaderSession) -> _Holder | None:
        """Return whether the process was told of that leadership."""
        return self if self._process.told == session else None

    def ask(self, _holder: _Holder, request: Commit) -> None:
        """Have *request* done, and wait until it is."""
        process = self._process
        asked = (request, process.world.attempt)
        bundles = f"{process.world.paths.bundles}/"
        process.referred.update(
            operation.path.removeprefix(bundles)
            for operation in request.operations
            if isinstance(operation, CheckNode) and operation.path.startswith(bundles)
        )

        def send() -> None:
            self._waiting.append(asked)
            self._next()

        process.loop_calls.append(send)
        if not process.world.wait(request.answer.done):
            if asked in self._waiting or send in process.loop_calls:
                self._withdraw(asked, send)
                message = "it was not sent in time"
                raise DidNotHappenError(message)
            message = "no answer in time"
            raise MayHaveHappenedError(message)
        request.answer.result()

    def _withdraw(
        self, asked: tuple[Commit, Attempt | None], send: Callable[[], None]
    ) -> None:
        if asked in self._waiting:
            self._waiting.remove(asked)
        else:
            self._process.loop_calls.remove(send)

    def _next(self) -> None:
        if self._is_busy or not self._waiting:
            return
        self._is_busy = True
        request, attempt = self._waiting.popleft()
        process = self._process
        own = CheckNode(path=process.world.own_node(request.session))
        asked = process.submit(
            lambda: process.transact([own, *request.operations], attempt)
        )
        asked.add_done_callback(lambda asked: self._answered(request, asked))

    def _answered(self, request: Commit, asked: Future[None]) -> None:
        self._is_busy = False
        error = asked.exception()
        if error is None:
            request.answer.set_result(None)
        elif not isinstance(error, TransactionFailedError):
            request.answer.set_exception(error)
        elif error.index == 0:
            world = self._process.world
            request.answer.set_exception(
                StaleEpochError(
                    world.paths.component_id, request.session.epoch, world.epoch
                )
            )
        else:
            request.answer.set_exception(
                TransactionFailedError(error.index - 1, error.error)
            )
        self._next()


@final
class _VirtualCondition:
    """A condition that lets others run."""

    def __init__(self, world: StoreWorld) -> None:
        self._world = world

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def wait_for(self, is_so: Callable[[], bool], _timeout: float) -> bool:
        """Wait until it *is_so*."""
        return self._world.wait(is_so)

    def notify_all(self) -> None:
        """Do nothing: the scheduler looks at every waiting thread before each step."""


@final
class Process:
    """
    One process with some threads, and one session.

    Attributes:
        told: The leadership that it believes in, or None.
        referred: The bundles that its commits have referred to.
        loop_calls: What its loop is still to do, in order.
        store: The shipped driver.
        own: What the driver knows of its own commits.
    """

    def __init__(self, world: StoreWorld, index: int) -> None:
        self.world: Final = world
        self.index: Final = index
        self.told: LeaderSession | None = None
        self.referred: set[str] = set()
        self.loop_calls: deque[Callable[[], None]] = deque()
        self._sent: deque[_Asked] = deque()
        self._done: deque[_Asked] = deque()
        self._shown = 0
        self._seen = 0
        connection = _Connection(self)
        session: Any = SimpleNamespace(
            connection=connection,
            calls=_Calls(self),
            parents=Parents(lambda: connection),  # type: ignore[arg-type, return-value]
            loop=SimpleNamespace(call=self.loop_calls.append),
            config=SimpleNamespace(connect_timeout_seconds=_SECONDS, url="simulated"),
        )
        self.session = session
        self.own = OwnCommits()
        self.own.turns._changed = _VirtualCondition(world)  # type: ignore[assignment]
        holder: Any = _Holder(self)
        self.store = ZooKeeperStoreDriver(session, world.paths, holder, self.own)

    # -- what the scheduler may do -----------------------------------------------------

    def steps(self) -> list[Callable[[], None]]:
        """Return what can be done next."""
        found: list[Callable[[], None]] = []
        if self.loop_calls:
            found.append(self._run_call)
        if self._sent:
            found.append(self._serve)
        if self._done:
            found.append(self._answer)
        return found

    def lose_connection(self) -> None:
        """Have some of what was sent be done, and nothing of it be answered."""
        lost = [asked.answer for asked in (*self._done, *self._sent)]
        self._done.clear()
        for _ in range(self.world.rng.randint(0, len(self._sent))):
            asked = self._sent.popleft()
            try:
                asked.do()
            except DidNotHappenError:
                continue
        self._sent.clear()
        # The next server is no older than what we were answered with; it may be older
        # than what was done for us, and not answered.
        self._shown = self._seen
        for answer in lost:
            answer.set_exception(MayHaveHappenedError("the connection was lost"))

    def _run_call(self) -> None:
        self.loop_calls.popleft()()

    def _answer(self) -> None:
        asked = self._done.popleft()
        self._seen = asked.shown
        if asked.error is None:
            asked.answer.set_result(asked.result)
        else:
            asked.answer.set_exception(asked.error)

    def _serve(self) -> None:
        asked = self._sent.popleft()
        try:
            asked.result = asked.do()
        except DidNotHappenError as error:
            asked.error = error
        asked.shown = self._shown
        self._done.append(asked)

    # -- requests ----------------------------------------------------------------------

    def submit(self, do: Callable[[], T]) -> Future[T]:
        """Send a request that *do* does."""
        answer: Future[T] = Future()
        self._sent.append(_Asked(do, answer))
        return answer

    def transact(
        self, operations: Sequence[NodeOperation], attempt: Attempt | None
    ) -> None:
        """Do *operations* at the server, which shows them from then on, or why not."""
        try:
            self.world.transact(self, operations, attempt)
        finally:
            self.catch_up()

    def catch_up(self) -> None:
        """Have the server that we are connected to show all there is."""
        self._shown = len(self.world.history) - 1

    def nodes_shown(self) -> dict[str, Node]:
        """Return what our server shows: it may lag behind, and never goes back."""
        self._shown = self.world.rng.randint(self._shown, len(self.world.history) - 1)
        return self.world.history[self._shown].nodes
