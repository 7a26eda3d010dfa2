"""
How answers are written: columns and relative times for people, JSON for programs.

What other processes chose (addresses, names) may hold anything; it is made printable
before a terminal sees it, so that no address can move the cursor.
"""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = [
    "ABSENT",
    "address_text",
    "ago_text",
    "duration_text",
    "json_line",
    "json_text",
    "pairs_text",
    "printable",
    "rounded_seconds",
    "say",
    "size_text",
    "table_text",
    "timestamp_text",
    "write",
    "write_answer",
]

ABSENT: Final = "-"
"""What stands in a column for which there is no value."""

_COLUMN_GAP: Final = "  "
_COLUMN_WIDTH_MIN: Final = 8
_KEY_IN_ADDRESS: Final = re.compile(r"\?key=[0-9a-f]{64}$")
_MINUTE_SECONDS: Final = 60
_HOUR_SECONDS: Final = 60 * _MINUTE_SECONDS
_DAY_SECONDS: Final = 24 * _HOUR_SECONDS
_KILO: Final = 1_000
_SIZE_UNITS: Final = ("kB", "MB", "GB", "TB")


def printable(text: str) -> str:
    """Return *text* with everything that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def say(verb: str, sentence: str) -> None:
    """Tell a person on standard error what *verb* does, or why it did not."""
    print(f"lodestar {verb}: {printable(sentence)}", file=sys.stderr, flush=True)


def duration_text(seconds: float | None) -> str:
    """
    Return a duration as a person says it: ``0.21 s``, ``3 min 20 s``, ``2 d 4 h``.

    Args:
        seconds: None is written as `ABSENT`; what is below 0 as 0.
    """
    if seconds is None:
        return ABSENT
    seconds = max(seconds, 0.0)
    if seconds < 9.995:  # what rounds to 10.00 is written without decimals
        return f"{seconds:.2f} s"
    if seconds < _MINUTE_SECONDS - 0.5:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < _HOUR_SECONDS:
        return _two_units(whole, _MINUTE_SECONDS, "min", 1, "s")
    if whole < _DAY_SECONDS:
        return _two_units(whole, _HOUR_SECONDS, "h", _MINUTE_SECONDS, "min")
    return _two_units(whole, _DAY_SECONDS, "d", _HOUR_SECONDS, "h")


def rounded_seconds(seconds: float | None) -> float | None:
    """Return a duration for JSON, to the microsecond; nothing here is truer."""
    return None if seconds is None else round(seconds, 6)


def size_text(size_bytes: float) -> str:
    """Return a size as a person says it, in powers of ten: ``512 B``, ``1.2 MB``."""
    if size_bytes < _KILO:
        return f"{size_bytes:.0f} B"
    for unit in _SIZE_UNITS:
        size_bytes /= _KILO
        # What rounds to 1000 is the next unit's.
        if size_bytes < _KILO - 0.5 or unit == _SIZE_UNITS[-1]:
            break
    text = f"{size_bytes:.1f}" if size_bytes < 99.95 else f"{size_bytes:.0f}"
    return f"{text} {unit}"


def ago_text(seconds: float | None) -> str:
    """Return how long ago something was; None is written as `ABSENT`."""
    return ABSENT if seconds is None else f"{duration_text(seconds)} ago"


def _two_units(
    seconds: int, large_seconds: int, large: str, small_seconds: int, small: str
) -> str:
    large_count, rest_seconds = divmod(seconds, large_seconds)
    small_count = rest_seconds // small_seconds
    if not small_count:
        return f"{large_count} {large}"
    return f"{large_count} {large} {small_count} {small}"


def timestamp_text(moment: datetime, *, is_for_people: bool) -> str:
    """
    Return *moment* to the millisecond.

    Args:
        moment: An aware time.
        is_for_people: Local time of day with its date; otherwise RFC 3339 in UTC.
    """
    if is_for_people:
        local = moment.astimezone()
        return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d}"
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def table_text(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    Return *rows* under *headings* in aligned columns, a line each.

    On a terminal the widest columns are cut until a line fits; a pipe gets them whole.
    """
    lines = [headings, *([printable(cell) for cell in row] for row in rows)]
    widths = [
        max(len(line[column]) for line in lines) for column in range(len(headings))
    ]
    width_max = _terminal_width()
    if width_max is not None:
        _narrow(widths, width_max - len(_COLUMN_GAP) * (len(widths) - 1))
    return "\n".join(
        _COLUMN_GAP.join(
            _cut(cell, width).ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def _narrow(widths: list[int], width_sum_max: int) -> None:
    """Take from the widest columns what is too much, and leave something of each."""
    while sum(widths) > width_sum_max and max(widths) > _COLUMN_WIDTH_MIN:
        widths[widths.index(max(widths))] -= 1


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"


def _terminal_width() -> int | None:
    """Return how many characters a line of standard output shows, or None."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):  # no terminal; not even a file
        return None


def address_text(address: str) -> str:
    """Return *address* for a table: the key of a proxy or a node says little there."""
    return _KEY_IN_ADDRESS.sub("?key=…", address)


def pairs_text(pairs: Sequence[tuple[str, str]]) -> str:
    """Return *pairs* of name and value, a line each, the values aligned."""
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(
        f"{printable(name).ljust(width)}{_COLUMN_GAP}{printable(value)}".rstrip()
        for name, value in pairs
    )


def json_text(document: Any) -> str:
    """Return *document* as JSON over several lines, for one answer."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def json_line(document: Any) -> str:
    """Return *document* as JSON on one line, for a stream of answers."""
    return json.dumps(document, ensure_ascii=False)


def write(text: str, file: TextIO | None = None) -> None:
    """
    Write *text* and a newline, and flush: the reader of a pipe waits for it.

    Raises:
        BrokenPipeError: If the reader is gone.
    """
    print(text, file=sys.stdout if file is None else file, flush=True)


def write_answer(document: Any, text: str, *, is_json: bool) -> None:
    """Write *document* as JSON, or *text*, which tells people the same."""
    write(json_text(document) if is_json else text)
