from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodestar.progress import (
    BarReport,
    JSONReport,
    LineReport,
    bar_line,
    bar_text,
    cell_count,
    details_text,
    move_report,
)
from nameservice import NS_PER_SECOND, ManualClock
from queryablestate.operations.move_progress import MoveFigures


def figures(
    done_count: int,
    planned_count: int = 64,
    *,
    size_bytes: int = 12_345_678,
    pace: float | None = 4_100_000.0,
    seconds_left: float | None = 8.2,
) -> MoveFigures:
    """Return figures of a move."""
    return MoveFigures(
        planned_count=planned_count,
        done_count=done_count,
        size_bytes=size_bytes,
        elapsed_seconds=3.0,
        size_bytes_per_second=pace,
        seconds_left=seconds_left,
    )


UNKNOWN = figures(0, size_bytes=0, pace=None, seconds_left=None)


class TestBarText:
    """The bar itself."""

    @pytest.mark.parametrize(
        ("done_count", "planned_count", "expected"),
        [
            (0, 64, "[..........]"),
            (32, 64, "[#####.....]"),
            (63, 64, "[#########.]"),
            (64, 64, "[##########]"),
            (0, 0, "[##########]"),
        ],
    )
    def test_it_is_full_when_all_is_done(
        self, done_count: int, planned_count: int, expected: str
    ) -> None:
        """And not before."""
        assert bar_text(done_count, planned_count, width=12) == expected


class TestBarLine:
    """A line with a bar."""

    def test_there_is_room_for_everything(self) -> None:
        """Key groups, bytes, how fast, time left."""
        assert bar_line("flights", figures(32), width=120) == (
            f"flights  [{'#' * 19}{'.' * 19}]  "
            "32 of 64 key groups, 12.3 MB, 4.1 MB/s, 8.20 s left"
        )
        assert bar_line("flights", UNKNOWN, width=50) == (
            f"flights  [{'.' * 19}]  0 of 64 key groups"
        )

    @pytest.mark.parametrize(
        ("width", "expected"),
        [
            (
                69,
                "flights  [#######........]  32 of 64 key groups, 12.3 MB, 8.20 s left",
            ),
            (60, "flights  [#######........]  32 of 64 key groups, 8.20 s left"),
            (41, "flights  32 of 64 key groups, 8.20 s left"),
            (40, "flights  32 of 64 key groups"),
            (30, "flights  32 of 64 key groups"),
            (24, "32 of 64 key groups"),
            (10, "32 of 6..."),
            (1, "3"),
        ],
    )
    def test_what_there_is_no_room_for_is_left_out(
        self, width: int, expected: str
    ) -> None:
        """How fast it goes is left out first, the count last."""
        assert bar_line("flights", figures(32), width=width) == expected

    @given(
        st.text(max_size=60),
        st.integers(0, 200),
        st.integers(1, 200),
        st.sampled_from([None, 0.0, 8.2, 1e6]),
    )
    def test_it_is_never_wider(
        self, title: str, done_count: int, width: int, seconds_left: float | None
    ) -> None:
        """Whatever the title, wide letters and control characters included."""
        line = bar_line(
            title, figures(done_count, 200, seconds_left=seconds_left), width=width
        )
        assert cell_count(line) <= width
        assert line.isprintable()
        assert line

    def test_letters_that_take_two_cells_count_twice(self) -> None:
        """The title is cut by what is seen of it."""
        assert cell_count("航班") == 4
        assert cell_count("e\u0301") == 1
        line = bar_line("航班航班航班航班航班", UNKNOWN, width=32)
        assert line == "航班航班...  0 of 64 key groups"


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """Return what a terminal shows, and the terminal."""
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # newlines come as they were written
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    out = os.fdopen(theirs, "w", encoding="utf-8")
    try:
        yield ours, out
    finally:
        out.close()
        os.close(ours)


def set_width(out: TextIO, columns: int) -> None:
    """Give a terminal that many columns."""
    fcntl.ioctl(out, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


class TestBarReport:
    """The bar on a terminal."""

    def test_it_is_drawn_in_its_place(self, terminal: tuple[int, TextIO]) -> None:
        """A carriage return, no escape codes, a newline at the end."""
        ours, out = terminal
        set_width(out, 50)
        report = move_report(out, is_json=False)
        assert isinstance(report, BarReport)
        for done_count in (0, 0, 64):
            report.show("flights", figures(done_count, size_bytes=0), {})
        report.end()
        report.end()
        shown = ""
        while not shown.endswith("\n"):
            shown += os.read(ours, 4_096).decode()
        assert "\x1b" not in shown
        assert shown.count("\n") == 1
        first, second = shown.rstrip("\n").split("\r")[1:]
        assert first.startswith("flights")
        assert "0 of 64" in first
        assert "64 of 64" in second
        assert max(len(first), len(second)) < 50

    def test_a_shorter_line_leaves_nothing_of_a_longer_one(
        self, terminal: tuple[int, TextIO]
    ) -> None:
        """And a terminal that became narrow is never overrun."""
        ours, out = terminal
        report = BarReport(out)
        set_width(out, 100)
        report.show("flights", figures(10), {})
        long = os.read(ours, 4_096).decode().lstrip("\r")
        report.show("flights", UNKNOWN, {})
        short = os.read(ours, 4_096).decode().lstrip("\r")
        assert len(short) == len(long) > len(short.rstrip())
        assert short.rstrip() == bar_line("flights", UNKNOWN, width=99)
        set_width(out, 20)
        report.show("flights", figures(10), {})
        assert len(os.read(ours, 4_096).decode().lstrip("\r")) < 20

    def test_what_cannot_be_counted_is_told_in_words(
        self, terminal: tuple[int, TextIO]
    ) -> None:
        """No full bar whose pace falls, while something else is awaited."""
        ours, out = terminal
        set_width(out, 40)
        report = BarReport(out)
        sentence = "n-1 waits for batches"
        for done_count, told in ((64, None), (64, sentence), (64, sentence)):
            report.show("n-1", figures(done_count), {}, sentence=told)
        report.end()
        shown = os.read(ours, 4_096).decode()
        while not shown.endswith("\n"):
            shown += os.read(ours, 4_096).decode()
        bar, words = shown.rstrip("\r\n").split("\r")[1:]
        assert "64 of 64" in bar
        assert words.rstrip() == sentence
        assert len(words) == len(bar)

    def test_nothing_to_do_shows_nothing(self, terminal: tuple[int, TextIO]) -> None:
        """No bar flashes up for a move that there is not."""
        ours, out = terminal
        report = BarReport(out)
        report.show("flights", figures(0, 0), {})
        report.end()
        assert not report._drawn
        os.set_blocking(ours, False)
        with pytest.raises(BlockingIOError):
            os.read(ours, 4_096)

    def test_a_terminal_without_a_width_has_80_columns(
        self, terminal: tuple[int, TextIO]
    ) -> None:
        """Some say 0."""
        ours, out = terminal
        set_width(out, 0)
        BarReport(out).show("flights", figures(10), {})
        assert len(os.read(ours, 4_096).decode().lstrip("\r")) == 79


class TestLineReport:
    """Plain lines where there is no terminal."""

    def test_a_line_for_each_change_at_most_one_a_second(self) -> None:
        """What is the same is not said again, and nothing fancy is."""
        out, clock = io.StringIO(), ManualClock(5)
        report = LineReport(out, clock)
        assert isinstance(move_report(out, is_json=False), LineReport)
        for elapsed_ns, done_count in (
            (0, 1),
            (NS_PER_SECOND - 1, 2),  # too soon
            (1, 2),
            (NS_PER_SECOND, 2),  # no change
            (NS_PER_SECOND, 64),
        ):
            clock.advance(elapsed_ns)
            report.show("flights", figures(done_count), {})
        report.end()
        assert out.getvalue().splitlines() == [
            f"flights: {details_text(figures(count))}" for count in (1, 2, 64)
        ]
        assert out.getvalue().isascii()

    def test_what_cannot_be_counted_is_told_in_words(self) -> None:
        """Once, be there something to count besides or not."""
        for planned_count in (0, 64):
            out, clock = io.StringIO(), ManualClock(5)
            report = LineReport(out, clock)
            for _ in range(3):
                done = figures(planned_count, planned_count)
                report.show("n-1", done, {}, sentence="n-1 waits")
                clock.advance(NS_PER_SECOND)
            assert out.getvalue() == "n-1 waits\n"


class TestJSONReport:
    """JSON lines for programs."""

    def test_a_document_for_each_change_and_the_last_one(self) -> None:
        """That time has passed is no change; how it ended is always told."""
        out, clock = io.StringIO(), ManualClock(5)
        report = move_report(out, is_json=True, clock=clock)
        assert isinstance(report, JSONReport)
        for second, (left, gone) in enumerate([(9, 1), (9, 1), (8, 1)]):
            documents = {
                "a": {"job": "a", "left": left, "elapsed_seconds": second},
                "b": {"job": "b", "left": gone, "elapsed_seconds": second},
            }
            report.show("all jobs", figures(1), documents)
            clock.advance(NS_PER_SECOND)
        report.show("all jobs", figures(1), {"a": {"job": "a", "left": 3}})
        report.show("all jobs", figures(1), {"a": {"job": "a", "left": 0}})
        report.end()
        found = [json.loads(line) for line in out.getvalue().splitlines()]
        assert [(each["job"], each["left"]) for each in found] == [
            ("a", 9),
            ("b", 1),
            ("a", 8),
            ("a", 3),
            ("a", 0),
        ]
