"""`Workers`: the processes that answer queries, and which statement has which."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, final

from nameservice import get_logger
from queryablestate.sql.jobs import Job
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.turns import Turns
from queryablestate.sql.worker_process import Answer, WorkerProcess


if TYPE_CHECKING:
    from queryablestate.sql.jobs import Parameter, SessionFacts, Setup


__all__ = ["Workers"]


@final
class Workers:
    """
    A number of worker processes.  For one event loop.

    Args:
        setup: What each is told first.
        count: How many.
    """

    def __init__(self, setup: Setup, count: int) -> None:
        self._setup = setup
        self._count = count
        self._turns = Turns(count)
        self._ready: list[WorkerProcess] = []
        self._waiters: deque[asyncio.Future[WorkerProcess]] = deque()
        self._all: set[WorkerProcess] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._unstarted_count = 0  # of `_starts`: those that are not in `_all` yet
        self._returning: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._numbers = itertools.count(1)
        self._log = get_logger(component="sql")
        self.restart_count = 0

    @property
    def running_count(self) -> int:
        """Return how many statements run."""
        return self._turns.running_count

    @property
    def waiting_count(self) -> int:
        """Return how many statements wait for their turn."""
        return self._turns.waiting_count

    def start(self) -> None:
        """Begin to start them."""
        while self._is_short:
            self._begin_start()

    @property
    def _is_short(self) -> bool:
        return (
            not self._is_closed and len(self._all) + self._unstarted_count < self._count
        )

    def _begin_start(self) -> None:
        self._unstarted_count += 1
        start = asyncio.create_task(self._start_one())
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)

    async def _start_one(self) -> None:
        """Start one, and offer it; the one that waits for it is told if it fails."""
        process: WorkerProcess | None = None
        try:
            try:
                process = await WorkerProcess.start(self._setup)
            finally:
                self._unstarted_count -= 1
            if self._is_closed:  # it would be left behind
                await process.close()
                return
            self._all.add(process)
            await process.ready()
        except Exception as error:  # noqa: BLE001 (asyncio starts a thread, for one)
            if self._is_closed:
                return  # it has ended with all others
            self._log.warning("worker.unstarted", error=str(error) or "it takes long")
            if process is not None:
                process.kill()
                await self._bury(process)
            if len(self._waiters) >= len(self._starts):  # of which this is one
                self._refuse(
                    SQLError(
                        "53000",
                        "no process can be started for this statement",
                        "ask again later; the server's log has more",
                    )
                )
        else:
            self._offer(process)

    def _offer(self, process: WorkerProcess) -> None:
        """Give *process*, which is ready, to the statement that has waited longest."""
        waiter = self._next_waiter()
        if waiter is None:
            self._ready.append(process)
        else:
            waiter.set_result(process)

    def _refuse(self, error: SQLError) -> None:
        """Tell the statement that has waited longest that there is no process."""
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_exception(error)

    def _next_waiter(self) -> asyncio.Future[WorkerProcess] | None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # else it was cancelled, and has not run since
                return waiter
        return None

    @contextlib.asynccontextmanager
    async def answer(
        self,
        caller: str,
        *,
        token: str | None,
        text: str,
        parameters: list[Parameter],
        result_formats: Sequence[int],
        session: SessionFacts,
        timeout_seconds: float,
        held_count: int = 0,
        is_description: bool = False,
    ) -> AsyncIterator[Answer]:
        """
        Run a query, or describe it.

        Args:
            caller: Whose turn it is to be.
            token: Of the caller.
            text: The query.
            parameters: Values, or types alone for a description.
            result_formats: As in a `Bind`.
            session: Whose it is.
            timeout_seconds: How long it may take in all, without waiting for its turn,
                or for a worker that starts; for either it waits no longer than this.
            held_count: How many places are held by the one that asks, who gives none of
                them back while it waits.
            is_description: Whether only its columns are wanted.

        Raises:
            SQLError: If too many wait, or the query fails.
        """
        if held_count >= self._turns.caller_count_max:
            raise SQLError(
                "53300",
                "rows of another statement of this session wait to be fetched, and no "
                f"more than {held_count} may run at once",
                "fetch all of them first, or close that statement, or start "
                "'lodestar sql' with a larger --worker-count",
            )
        await self._wait(caller, timeout_seconds)
        try:
            process = await self._take(timeout_seconds)
        except BaseException:
            self._leave(caller)
            raise
        job = Job(
            number=next(self._numbers),
            token=token,
            text=text,
            parameters=parameters,
            result_formats=list(result_formats),
            is_description=is_description,
            session=session,
            timeout_seconds=timeout_seconds,
        )
        answer = Answer(process, job)
        try:
            process.send(job)
            await answer.begin()
            yield answer
        finally:
            returning = asyncio.create_task(self._give_back(caller, process, answer))
            self._returning.add(returning)
            returning.add_done_callback(self._returning.discard)
            # This wait may be cancelled as well: the place is not free before the end.
            await asyncio.shield(returning)

    async def _wait(self, caller: str, timeout_seconds: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.ask(caller, turn)
        self._call_next()
        try:
            async with asyncio.timeout(timeout_seconds):
                await turn
        except BaseException as error:
            if not self._turns.withdraw(caller, turn):
                self._leave(caller)
            if isinstance(error, TimeoutError):
                raise SQLError(
                    "57014", "other statements took too long", "ask again later"
                ) from None
            raise

    def _leave(self, caller: str) -> None:
        self._turns.done(caller)
        self._call_next()

    def _call_next(self) -> None:
        for turn in self._turns.next_tickets():
            if not turn.done():
                turn.set_result(None)

    async def _take(self, timeout_seconds: float) -> WorkerProcess:
        """
        Return a worker that is ready.

        One that starts is not ended when the time is over: where workers start more
        slowly than statements may take, none would be answered.
        """
        while self._ready:
            process = self._ready.pop()
            if process.is_alive:
                return process
            await self._bury(process)  # it was ended while it had nothing to do
        if self._is_closed:
            raise _shutting_down()
        waiter: asyncio.Future[WorkerProcess] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiters.append(waiter)
        if self._is_short:
            self._begin_start()
        try:
            async with asyncio.timeout(timeout_seconds):
                return await waiter
        except BaseException as error:
            if waiter.cancel() or waiter.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
            elif waiter.exception() is None:  # it came just as the time was over
                self._offer(waiter.result())
            if isinstance(error, TimeoutError):
                raise SQLError(
                    "57014", "the process for this statement still starts", "ask again"
                ) from None
            raise

    async def _give_back(
        self, caller: str, process: WorkerProcess, answer: Answer
    ) -> None:
        try:
            await answer.end()
            if process.is_alive:
                self._offer(process)
                return
            if self._is_closed:
                return  # it has ended with all others
            await self._bury(process)
            if self._is_short:  # and not closed meanwhile
                self._begin_start()
        finally:
            self._leave(caller)

    async def _bury(self, process: WorkerProcess) -> None:
        """Count one that another is started for."""
        self._all.discard(process)
        self.restart_count += 1
        self._log.warning("worker.ended", status=await process.ended())

    async def close(self) -> None:
        """End all.  Idempotent."""
        self._is_closed = True
        while self._waiters:
            self._refuse(_shutting_down())
        processes, self._all = self._all, set()
        await asyncio.gather(*(process.close() for process in processes))
        if others := self._returning | self._starts:
            await asyncio.wait(others)


def _shutting_down() -> SQLError:
    return SQLError("57P01", "the server is shutting down", "connect again")
