"""
Stories: what the golden traces are written in.

A story is a text file.  Lines that begin with ``#`` say what it shows.  Then come
turns: commands, each with its time; a line of ``----``; and all that follows, each
line with its time.  A blank line ends a turn::

    # Alice falls silent.
    0ms alice opens a session
    ----
    0ms OpenSession session_id=alice

Time passes between commands as it does in a shell: deadline by deadline.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from attrs import frozen

from election.epochs import COUNTER_BITS


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "MS",
    "Command",
    "Names",
    "Progress",
    "Stage",
    "duration",
    "epoch",
    "epoch_of",
    "play",
    "time_of",
]

MS: Final = 1_000_000
SEPARATOR: Final = "----"
_UNITS: Final = {"ns": 1, "ms": MS}
_TIMED: Final = re.compile(r"(\d+)(ns|ms) (.+)")
_EPOCH: Final = re.compile(r"(\d+)\.(\d+)")


@frozen(kw_only=True)
class Command:
    """One line of a story: at *at_ns*, *text* happens."""

    at_ns: int
    text: str


class Stage(Protocol):
    """What plays the commands of a story."""

    def play(self, command: Command) -> Sequence[str]:
        """Move time on to *command*, have it happen; return lines of output."""


def play(story: str, make_stage: Callable[[], Stage]) -> str:
    """Return *story* with its output as it comes out now."""
    stage = make_stage()
    told: list[str] = []
    is_output = False
    pending: list[Command] = []
    for line in story.splitlines():
        if line == SEPARATOR:
            told.append(line)
            for command in pending:
                told += stage.play(command)
            pending.clear()
            is_output = True
        elif not line.strip():
            is_output = False
            told.append("")
        elif not is_output:
            told.append(line)
            if not line.startswith("#"):
                pending.append(_parse(line))
    assert not pending, f"no {SEPARATOR} after {pending[0].text!r}"
    return "\n".join(told).rstrip("\n") + "\n"


def _parse(line: str) -> Command:
    match = _TIMED.fullmatch(line)
    assert match is not None, f"a command is '100ms something', not {line!r}"
    count, unit, text = match.groups()
    return Command(at_ns=int(count) * _UNITS[unit], text=text)


def duration(text: str) -> int:
    """Return the nanoseconds that ``500ms`` or ``7ns`` means."""
    match = re.fullmatch(r"(\d+)(ns|ms)", text)
    assert match is not None, f"a time is 500ms or 7ns, not {text!r}"
    return int(match[1]) * _UNITS[match[2]]


def time_of(moment_ns: int) -> str:
    """Return a time as stories write it."""
    if moment_ns % MS:
        return f"{moment_ns}ns"
    return f"{moment_ns // MS}ms"


def epoch(number: int) -> str:
    """Return an epoch, or a ticket, as ``incarnation.counter``."""
    return f"{number >> COUNTER_BITS}.{number & (1 << COUNTER_BITS) - 1}"


def epoch_of(text: str) -> int:
    """Return the epoch that ``7.1`` means."""
    match = _EPOCH.fullmatch(text)
    assert match is not None, f"an epoch is 7.1, not {text!r}"
    return int(match[1]) << COUNTER_BITS | int(match[2])


class Progress:
    """Sees to it that time passes: a deadline that is not met comes again for ever."""

    STEP_COUNT_MAX: Final = 100

    def __init__(self) -> None:
        self._now_ns = -1
        self._step_count = 0

    def made(self, now_ns: int) -> None:
        """Take note of one more step at *now_ns*."""
        self._step_count = self._step_count + 1 if now_ns == self._now_ns else 1
        self._now_ns = now_ns
        assert self._step_count <= self.STEP_COUNT_MAX, (
            f"time stands still at {time_of(now_ns)}"
        )


class Names:
    """Short names for what is drawn at random: the first is #1, the second #2."""

    def __init__(self, prefix: str = "#") -> None:
        self._prefix = prefix
        self._names: dict[UUID | str, str] = {}

    def of(self, drawn: UUID | str | None) -> str:
        """Return the name of *drawn*."""
        if drawn is None:
            return "None"
        return self._names.setdefault(drawn, f"{self._prefix}{len(self._names) + 1}")
