"""`WorkerProcess`: a process that answers queries, and the `Answer` to one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final, final

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
from queryablestate.sql.memory import ENVIRONMENT
from queryablestate.sql.protocol.refusals import SQLError


__all__ = ["Answer", "WorkerProcess"]

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

    def __init__(self, process: WorkerProcess, job: Job) -> None:
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
class _Pipes(asyncio.subprocess.SubprocessStreamProtocol):
    """
    What a worker says, as asyncio has it.

    A process may have begun though asyncio could not start the thread that waits for
    it: its caller is told of an error, and is given nothing to end it by.

    Attributes:
        is_unwanted: Whether that has happened.
    """

    is_unwanted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """End the process if nothing else will."""
        super().connection_made(transport)
        if self.is_unwanted:
            transport.close()


@final
class WorkerProcess:
    """One worker.  For one event loop."""

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
    async def start(cls, setup: Setup) -> WorkerProcess:
        """
        Start one, which is told *setup*.

        Raises:
            OSError: If there are no more processes or files.
            RuntimeError: If there are no more threads: asyncio may wait by one.
        """
        loop = asyncio.get_running_loop()
        pipes = _Pipes(limit=_STREAM_LIMIT_BYTES, loop=loop)
        try:
            transport, _ = await loop.subprocess_exec(
                lambda: pipes,
                *(sys.executable, "-m", "queryablestate.sql.worker"),
                stderr=None,
                start_new_session=True,  # a terminal's Ctrl-C is for the server
                env={**os.environ, **ENVIRONMENT},
            )
        except BaseException:
            pipes.is_unwanted = True
            raise
        started = cls(asyncio.subprocess.Process(transport, pipes, loop))
        started.send(setup)
        return started

    def send(self, frame: jobs.ToWorker) -> None:
        """Send *frame*; nothing if it is of no use."""
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
        """
        Return what it says next.

        Raises:
            SQLError: If it has ended.
        """
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
        """End it at once.  Idempotent."""
        self._is_given_up = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> int:
        """Return the status that it has ended with; a negative one is a signal."""
        return await self._process.wait()

    async def close(self) -> None:
        """Have it end, or end it."""
        assert self._process.stdin is not None
        self._is_given_up = True
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
