"""
How moves of key groups are shown while somebody waits for them.

On a terminal as a bar, which is drawn anew in its place: the line before is overwritten
with what is new and with blanks, so that it takes no terminal that understands more
than a carriage return.  Elsewhere as plain lines, or as JSON, a line for each change,
at most one a second.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, final

from lodestar.output import duration_text, json_line, printable, size_text, write
from nameservice import NS_PER_SECOND, SystemClock


if TYPE_CHECKING:
    from nameservice import Clock
    from queryablestate.operations.move_progress import MoveFigures


__all__ = [
    "BarReport",
    "JSONReport",
    "LineReport",
    "MoveReport",
    "bar_line",
    "bar_text",
    "cell_count",
    "details_text",
    "move_report",
]

_BAR_WIDTH_MIN: Final = 10
_BAR_WIDTH_MAX: Final = 40
_WIDTH: Final = 80
"""Of a terminal that does not tell its own."""

_GAP: Final = "  "
_ELLIPSIS: Final = "..."
_INTERVAL_NS: Final = NS_PER_SECOND


def bar_text(done_count: int, planned_count: int, *, width: int) -> str:
    """
    Return a bar of *width* characters, the brackets included, at least 3.

    It is full when everything is done, and not before.
    """
    inner = max(1, width - 2)
    filled = inner if not planned_count else inner * done_count // planned_count
    filled = min(max(filled, 0), inner)
    return f"[{'#' * filled}{'.' * (inner - filled)}]"


def details_text(figures: MoveFigures) -> str:
    """Return all that is known of a move: ``32 of 64 key groups, 1.2 MB, 8 s left``."""
    return ", ".join(_details(figures))


def bar_line(title: str, figures: MoveFigures, *, width: int) -> str:
    """
    Return a line with a bar that is at most *width* cells wide.

    What there is no room for is left out: first how fast it goes and how much it was,
    then the bar, then how long it may take, then the end of the title.

    Args:
        title: What is moved.
        figures: How far that is.
        width: Cells of the terminal, at least 1.
    """
    title = printable(title)
    count, *others = _details(figures)
    left = others[-1:] if figures.seconds_left is not None else []
    for details in ([count, *others], [count, *others[:1], *left], [count, *left]):
        text = ", ".join(dict.fromkeys(details))
        taken = cell_count(title) + cell_count(text) + 2 * len(_GAP)
        if width - taken >= _BAR_WIDTH_MIN:
            bar = bar_text(
                figures.done_count,
                figures.planned_count,
                width=min(width - taken, _BAR_WIDTH_MAX),
            )
            return f"{title}{_GAP}{bar}{_GAP}{text}"
    for text in (", ".join([count, *left]), count):
        room = width - cell_count(text) - len(_GAP)
        if room >= min(cell_count(title), _BAR_WIDTH_MIN):
            return f"{_cut(title, room)}{_GAP}{text}"
    return _cut(count, width)


def cell_count(text: str) -> int:
    """Return how many cells of a terminal *text* takes."""
    return sum(_cells(character) for character in text)


@final
class BarReport:
    """
    A bar that is drawn anew in its place.

    Args:
        out: A terminal.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = ""

    def show(
        self,
        title: str,
        figures: MoveFigures,
        documents: Mapping[str, Mapping[str, Any]],
        *,
        sentence: str | None = None,
    ) -> None:
        """Draw how far it is; nothing at all as long as there is nothing to be done."""
        if not (figures.planned_count or self._drawn or sentence):
            return
        # The last column stays free: some terminals begin a new line when it is used.
        width = max(1, _terminal_width(self._out) - 1)
        if sentence is None:
            line = bar_line(title, figures, width=width)
        else:
            line = _cut(sentence, width)
        if line == self._drawn:
            return
        blank = max(0, min(cell_count(self._drawn), width) - cell_count(line))
        print(f"\r{line}{' ' * blank}", end="", file=self._out, flush=True)
        self._drawn = line

    def end(self) -> None:
        """Go on below the bar."""
        if self._drawn:
            print(file=self._out, flush=True)
            self._drawn = ""


@final
class LineReport:
    """
    A line for each change, at most one a second.

    Args:
        out: Where to.
        clock: What a second is measured by.
    """

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._shown: tuple[str, int, int, str | None] | None = None
        self._due_ns = clock.now_ns()

    def show(
        self,
        title: str,
        figures: MoveFigures,
        documents: Mapping[str, Mapping[str, Any]],
        *,
        sentence: str | None = None,
    ) -> None:
        """Write how far it is, if that is news."""
        state = (title, figures.done_count, figures.planned_count, sentence)
        now_ns = self._clock.now_ns()
        is_news = state != self._shown and (figures.planned_count or sentence)
        if not is_news or now_ns < self._due_ns:
            return
        self._shown = state
        self._due_ns = now_ns + _INTERVAL_NS
        line = sentence or f"{printable(title)}: {details_text(figures)}"
        write(line, self._out)

    def end(self) -> None:
        """Do nothing: every line is whole."""


@final
class JSONReport:
    """
    A JSON object on a line for each change of each subject, at most one a second.

    Args:
        out: Where to.
        clock: What a second is measured by.
    """

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._shown: dict[str, Mapping[str, Any]] = {}
        self._due_ns = clock.now_ns()
        self._waiting: dict[str, Mapping[str, Any]] = {}

    def show(
        self,
        title: str,
        figures: MoveFigures,
        documents: Mapping[str, Mapping[str, Any]],
        *,
        sentence: str | None = None,
    ) -> None:
        """Write the documents that are new."""
        self._waiting = {
            name: document
            for name, document in documents.items()
            if _without_times(document) != _without_times(self._shown.get(name, {}))
        }
        now_ns = self._clock.now_ns()
        if self._waiting and now_ns >= self._due_ns:
            self._due_ns = now_ns + _INTERVAL_NS
            self.end()

    def end(self) -> None:
        """Write what would have waited: the last line tells how it ended."""
        for name, document in self._waiting.items():
            write(json_line(document), self._out)
            self._shown[name] = document
        self._waiting = {}


class MoveReport(Protocol):
    """Shows how far moves are."""

    def show(
        self,
        title: str,
        figures: MoveFigures,
        documents: Mapping[str, Mapping[str, Any]],
        *,
        sentence: str | None = None,
    ) -> None:
        """
        Show how far it is now.

        Args:
            title: What is moved.
            figures: How far that is.
            documents: The same for programs, by job or node.
            sentence: What to tell people instead, where there is nothing to count.
        """

    def end(self) -> None:
        """Leave what was shown as it is: something else is written next."""


def move_report(
    out: TextIO, *, is_json: bool, clock: Clock | None = None
) -> MoveReport:
    """Return what fits *out*."""
    if is_json:
        return JSONReport(out, clock or SystemClock())
    if out.isatty():
        return BarReport(out)
    return LineReport(out, clock or SystemClock())


def _details(figures: MoveFigures) -> list[str]:
    """Return the count, the size, how fast it goes, and how long it may take."""
    details = [f"{figures.done_count} of {figures.planned_count} key groups"]
    if figures.size_bytes:
        details.append(size_text(figures.size_bytes))
        if figures.size_bytes_per_second:
            details.append(f"{size_text(figures.size_bytes_per_second)}/s")
    if figures.seconds_left is not None:
        details.append(f"{duration_text(figures.seconds_left)} left")
    return details


def _without_times(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a document makes it another one: that time passes does not."""
    return {
        name: value
        for name, value in document.items()
        if not name.endswith(("_seconds", "seconds_left", "_per_second"))
    }


def _cut(text: str, width: int) -> str:
    """Return the beginning of *text* that *width* cells have room for."""
    if cell_count(text) <= width:
        return text
    ellipsis = _ELLIPSIS if width > len(_ELLIPSIS) else ""
    room = width - len(ellipsis)
    kept: list[str] = []
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + ellipsis


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"F", "W"} else 1


def _terminal_width(out: TextIO) -> int:
    # Asked each time: people change the size of a window while they wait.  One that
    # does not know its width says 0.
    try:
        return os.get_terminal_size(out.fileno()).columns or _WIDTH
    except OSError:
        return _WIDTH
