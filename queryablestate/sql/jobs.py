"""What passes between a server and its workers, and how it is framed; values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec


if TYPE_CHECKING:
    import asyncio


__all__ = [
    "Described",
    "Done",
    "FrameReader",
    "FromWorker",
    "Job",
    "More",
    "Parameter",
    "Ready",
    "Refused",
    "Rows",
    "SessionFacts",
    "Setup",
    "Stop",
    "ToWorker",
    "from_worker",
    "send",
    "to_worker",
]

_FRAME_SIZE_BYTES_MAX: Final = 1024 * 1024 * 1024


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Crosses a pipe between two processes of one release."""


@final
class Setup(_Frame, frozen=True):
    """
    The first frame to a worker.

    Attributes:
        settings: Of the name service.
        memory_limit_bytes: For each statement.
        thread_count: How many threads compute one.
    """

    settings: dict[str, str | float]
    memory_limit_bytes: int
    thread_count: int


class Parameter(msgspec.Struct, frozen=True, array_like=True):
    """
    A parameter of a statement.

    Attributes:
        oid: Its type; 0 if it is to be inferred.
        is_binary: In which form it is.
        value: None for null.
    """

    oid: int
    is_binary: bool = False
    value: bytes | None = None


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a statement may ask about its session.

    Attributes:
        user: The name that was given.
        database: Likewise.
        search_path: Jobs that tables without one are looked up in.
        settings: Names and values, in lower case.
        process_id: What the session is called in a cancel request.
    """

    user: str
    database: str
    search_path: tuple[str, ...]
    settings: dict[str, str]
    process_id: int


@final
class Job(_Frame, frozen=True):
    """
    A query to run or to describe.

    Attributes:
        number: What it is known by.
        token: Of the caller; None for one who shows nothing.
        text: The query.
        parameters: Of what is described types alone.
        result_formats: As in a `Bind`.
        is_description: Whether only its columns are wanted.
        session: Whose it is.
        timeout_seconds: How long it may take in all.
    """

    number: int
    token: str | None
    text: str
    parameters: list[Parameter]
    result_formats: list[int]
    is_description: bool
    session: SessionFacts
    timeout_seconds: float


@final
class More(_Frame, frozen=True):
    """Another `Rows` may come."""

    number: int


@final
class Stop(_Frame, frozen=True):
    """Nothing more is wanted of a job."""

    number: int


ToWorker: TypeAlias = Setup | Job | More | Stop


@final
class Ready(_Frame, frozen=True):
    """The first frame of a worker: it takes jobs from now on."""


@final
class Described(_Frame, frozen=True):
    """
    The columns of a job; rows follow, if they are wanted.

    Attributes:
        number: Of the job.
        columns: Names, and types as the engine has them.
        parameters: The types of the parameters.
    """

    number: int
    columns: list[tuple[str, str]]
    parameters: list[int]


@final
class Rows(_Frame, frozen=True):
    """Rows, each as the message that a tool is sent."""

    number: int
    rows: list[bytes]


@final
class Done(_Frame, frozen=True):
    """
    There are no more rows.

    Attributes:
        number: Of the job.
        is_worker_spent: Whether the worker is to be replaced.
    """

    number: int
    is_worker_spent: bool


@final
class Refused(_Frame, frozen=True):
    """
    The job has failed; the fields of a `SQLError`.

    Attributes:
        number: Of the job.
        is_worker_spent: As of `Done`.
    """

    number: int
    is_worker_spent: bool
    sqlstate: str
    message: str
    hint: str
    position: int


FromWorker: TypeAlias = Ready | Described | Rows | Done | Refused

_ENCODER: Final = msgspec.msgpack.Encoder()
to_worker: Final = msgspec.msgpack.Decoder(ToWorker)
from_worker: Final = msgspec.msgpack.Decoder(FromWorker)


def send(writer: asyncio.StreamWriter, frame: ToWorker | FromWorker) -> None:
    """Write *frame*; the caller drains."""
    data = _ENCODER.encode(frame)
    writer.write(len(data).to_bytes(4, "big") + data)


@final
class FrameReader:
    """
    Reads frames, one at a time.

    Who waits for one may be cancelled: what is there of it is not lost, and the next
    call goes on with it.
    """

    def __init__(self, reader: asyncio.StreamReader, decoder: Any) -> None:
        self._reader = reader
        self._decoder = decoder
        self._size: int | None = None  # of the frame that has begun

    async def receive(self) -> Any:
        """
        Return the next frame.

        Raises:
            EOFError: If the other side has ended, or sends what is no frame: it is
                broken; `asyncio.IncompleteReadError` is one.
        """
        if self._size is None:
            self._size = int.from_bytes(await self._reader.readexactly(4), "big")
        if self._size > _FRAME_SIZE_BYTES_MAX:
            raise EOFError
        data = await self._reader.readexactly(self._size)
        self._size = None
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise EOFError from error
