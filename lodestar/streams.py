"""The standard streams: one may be closed, its reader gone, or its disk full."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast, final


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["discard", "with_streams"]

_DONE: Final = 0  # `ExitCode.DONE` and `FAILED`, which would load every error type
_FAILED: Final = 1


def with_streams(main: Callable[[], int]) -> int:
    """
    Call *main* with streams that can be written to; return the exit code.

    What standard error cannot take is lost, and nothing else is: a log on a full disk
    ends no leader.  What standard output cannot take has failed.  Python itself would
    try once more at its exit, tell of its own exception, and end with 120.
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
    """A stream that loses what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
