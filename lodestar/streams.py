"""The standard streams: closed, unread, without a reader, or on a full disk."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast, final


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["discard", "with_streams"]

# How long a reader may take before what is written is lost: less than half a lease.
_UNREAD_TIMEOUT_MS: Final = 200
# What is not ASCII may be written as an escape: ``\U0001f6f0``.
_CHARACTER_SIZE_BYTES_MAX: Final = 10

_DONE: Final = 0  # `ExitCode.DONE` and `FAILED`, which would load every error type
_FAILED: Final = 1


def with_streams(main: Callable[[], int]) -> int:
    """
    Call *main* with streams that can be written to; return the exit code.

    What standard error cannot take is lost, and nothing else is: a log on a full disk
    ends no leader, and one whose reader hangs stops no server.  What standard output
    cannot take has failed.  Python itself would try once more at its exit, tell of its
    own exception, and end with 120.
    """
    _open_closed()
    errors = sys.stderr
    with contextlib.redirect_stderr(cast("TextIO", _Losing(errors))):
        code = _written(main)
    try:
        errors.flush()
    except OSError:
        discard(errors)
    return code


def discard(stream: TextIO) -> None:
    """
    Have what *stream* gets go nowhere: its reader is gone, or its disk is full.

    What Python still holds for it goes there, too, rather than failing at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _written(main: Callable[[], int]) -> int:
    """Return what *main* does, or that its output could not be written."""
    code = _DONE
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)  # who reads has had enough
    except OSError as error:
        discard(sys.stdout)
        if code == _DONE:
            print(f"lodestar: {error.strerror}", file=sys.stderr)
            code = _FAILED
    return code


def _open_closed() -> None:
    """
    Open ``/dev/null`` in the place of each standard stream that is closed (``2>&-``).

    Python has None there, which is no stream to write to or to ask whether it is a
    terminal.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 (stays)
            setattr(sys, name, null)


@final
class _Losing:
    """
    A stream that loses what cannot be written.

    A full pipe is waited for once.  If its reader hangs, nothing more waits until there
    is room again: a thread that writes a line may be one that keeps a lease.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_unread = False

    def write(self, text: str) -> int:
        # Who polls a pipe learns that it has room for this much.  A line that fits is
        # written as one: what a command of ours writes there does not tear it.
        length = select.PIPE_BUF
        if not text.isascii():
            length //= _CHARACTER_SIZE_BYTES_MAX
        with contextlib.suppress(OSError):
            for begin in range(0, len(text), length):
                if not self._has_room():
                    break
                self._stream.write(text[begin : begin + length])
                self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Do nothing: what could be written is."""

    def _has_room(self) -> bool:
        """Return whether the stream takes another part at once, or almost."""
        poll = select.poll()
        try:
            poll.register(self._stream.fileno(), select.POLLOUT)
        except (OSError, ValueError):
            return True  # what has no descriptor has room
        self._is_unread = not poll.poll(0 if self._is_unread else _UNREAD_TIMEOUT_MS)
        return not self._is_unread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
