"""`Workers`: the processes that answer queries, and the answers as they come."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final, final

from nameservice import get_logger
from queryablestate.sql import jobs
from queryablestate.sql.jobs import (
    Described,
    Done,
    FrameReader,
    FromWorker,
    Job,
    More,
    Ready,
    Refused,
    Rows,
    Setup,
    Stop,
)
from queryablestate.sql.memory import ALLOCATORS
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.turns import Turns


if TYPE_CHECKING:
    from queryablestate.sql.jobs import Parameter, SessionFacts


__all__ = ["Answer", "Workers"]

_GRACE_SECONDS: Final = 5.0
_START_SECONDS: Final = 120.0
_STREAM_LIMIT_BYTES: Final = 1024 * 1024


@final
class Answer:
    """
    What a worker answers to one job.

    Attributes:
        columns: Names, and types as the engine has them.
        parameters: The types of the parameters.
        due: When its time is over, as the loop's clock tells it.
    """

    def __init__(self, process: _Process, job: Job) -> None:
        self._process = process
        self._number = job.number
        self._is_over = False
        self.due = asyncio.get_running_loop().time() + job.timeout_seconds
        self.columns: Sequence[tuple[str, str]] = ()
        self.parameters: Sequence[int] = ()

    async def begin(self) -> None:
        """
        Learn the columns.

        Raises:
            SQLError: If the job has failed.
        """
        frame = await self._next()
        assert isinstance(frame, Described)
        self.columns = frame.columns
        self.parameters = frame.parameters

    async def rows(self) -> Sequence[bytes]:
        """
        Return the next rows; none at the end.

        Raises:
            SQLError: If the job has failed.
        """
        if self._is_over:
            return ()
        frame = await self._next()
        if isinstance(frame, Done):
            return ()
        assert isinstance(frame, Rows)
        self._process.send(More(number=self._number))
        return frame.rows

    async def _next(self) -> FromWorker:
        while True:
            try:
                async with asyncio.timeout_at(self.due + _GRACE_SECONDS):
                    frame = await self._process.receive()
            except TimeoutError:
                # It keeps its time itself, unless something is wrong with it.
                self._process.kill()
                raise SQLError("57014", "the statement took too long") from None
            assert not isinstance(frame, Ready)
            if frame.number != self._number:
                continue
            if isinstance(frame, Done | Refused):
                self._is_over = True
                if frame.is_worker_spent:
                    self._process.kill()
            if isinstance(frame, Refused):
                raise SQLError(
                    frame.sqlstate, frame.message, frame.hint, position=frame.position
                )
            return frame

    async def end(self) -> None:
        """Have the worker be ready for the next job, or end it."""
        if self._is_over or not self._process.is_alive:
            return
        self._process.send(Stop(number=self._number))
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                while not self._is_over:
                    try:
                        await self._next()
                    except SQLError:  # it has said so, or has ended
                        return
        except TimeoutError:
            self._process.kill()


@final
class _Process:
    """One worker."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._frames = FrameReader(process.stdout, jobs.from_worker)
        self._is_given_up = False

    @property
    def is_alive(self) -> bool:
        """Return whether it is of use: we have not ended it, nor has another."""
        return not self._is_given_up and self._process.returncode is None

    @classmethod
    async def start(cls, setup: Setup) -> _Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "queryablestate.sql.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_STREAM_LIMIT_BYTES,
            start_new_session=True,  # a terminal's Ctrl-C is for the server
            env={**os.environ, **ALLOCATORS},
        )
        started = cls(process)
        started.send(setup)
        return started

    def send(self, frame: jobs.ToWorker) -> None:
        assert self._process.stdin is not None
        if self.is_alive:
            jobs.send(self._process.stdin, frame)

    async def ready(self) -> None:
        """
        Wait until it takes jobs; once.

        Raises:
            SQLError: If it has ended.
            TimeoutError: If it has not started in the time that any machine needs.
        """
        async with asyncio.timeout(_START_SECONDS):
            frame = await self.receive()
        assert isinstance(frame, Ready)

    async def receive(self) -> FromWorker:
        try:
            frame: FromWorker = await self._frames.receive()
        except (EOFError, OSError):
            self.kill()
            raise SQLError(
                "57P01",
                "the process that ran this statement has ended",
                "ask again; if it ends again, ask for less at once",
            ) from None
        return frame

    def kill(self) -> None:
        self._is_given_up = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        """Return the status that it has ended with; a negative one is a signal."""
        return await self._process.wait()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._is_given_up = True
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()


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
        self._ready: list[_Process] = []
        self._waiters: deque[asyncio.Future[_Process]] = deque()
        self._all: set[_Process] = set()
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
        process: _Process | None = None
        try:
            try:
                process = await _Process.start(self._setup)
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

    def _offer(self, process: _Process) -> None:
        """Give *process*, which is ready, to the statement that has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(process)
                return
        self._ready.append(process)

    def _refuse(self, error: SQLError) -> None:
        """Tell the statement that has waited longest that there is no process."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)
                return

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

    async def _take(self, timeout_seconds: float) -> _Process:
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
        waiter: asyncio.Future[_Process] = asyncio.get_running_loop().create_future()
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

    async def _give_back(self, caller: str, process: _Process, answer: Answer) -> None:
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

    async def _bury(self, process: _Process) -> None:
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
