from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodestar.output import (
    address_text,
    ago_text,
    duration_text,
    json_line,
    json_text,
    pairs_text,
    printable,
    rounded_seconds,
    size_text,
    table_text,
    timestamp_text,
)
from tests.lodestar.running import environment


class TestPrintable:
    def test_what_can_be_printed_is_left_alone(self) -> None:
        """Letters of any script are printable."""
        assert printable("tcp://größe-航班:5170") == "tcp://größe-航班:5170"

    def test_an_address_cannot_move_the_cursor(self) -> None:
        """Control characters that somebody put into an address arrive escaped."""
        assert printable("a\x1b[2Jb\nc\x00") == "a\\x1b[2Jb\\nc\\x00"

    @given(st.text())
    def test_the_result_is_always_printable(self, text: str) -> None:
        """Whatever comes in, one line without control characters goes out."""
        assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (12_345_678, "12.3 MB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (4.1e9, "4.1 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_a_size_has_two_or_three_digits(size_bytes: float, text: str) -> None:
    """A person sees at once which of two is larger."""
    assert size_text(size_bytes) == text


class TestDurations:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (None, "-"),
            (-0.001, "0.00 s"),
            (0.0, "0.00 s"),
            (0.214, "0.21 s"),
            (9.994, "9.99 s"),
            (9.996, "10 s"),
            (59.4, "59 s"),
            (59.6, "1 min"),
            (61.0, "1 min 1 s"),
            (3599.4, "59 min 59 s"),
            (3600.0, "1 h"),
            (3659.0, "1 h"),
            (3660.0, "1 h 1 min"),
            (86_399.0, "23 h 59 min"),
            (86_400.0, "1 d"),
            (187_200.0, "2 d 4 h"),
        ],
    )
    def test_a_duration_reads_as_a_person_says_it(
        self, seconds: float | None, text: str
    ) -> None:
        """Two units at most, and no unit that is full."""
        assert duration_text(seconds) == text

    def test_how_long_ago(self) -> None:
        """What is not known is not said to be ago."""
        assert ago_text(0.5) == "0.50 s ago"
        assert ago_text(None) == "-"

    def test_programs_get_microseconds(self) -> None:
        """What no clock here can tell is not written, nor what is not known."""
        assert rounded_seconds(8.0138e-05) == 0.00008
        assert rounded_seconds(None) is None


class TestTimestamps:
    MOMENT = datetime(2026, 3, 1, 4, 5, 6, 7_999, tzinfo=UTC)

    def test_programs_get_rfc_3339_in_utc(self) -> None:
        """A time in JSON names its zone and sorts as text."""
        text = timestamp_text(self.MOMENT, is_for_people=False)
        assert text == "2026-03-01T04:05:06.007Z"

    def test_people_get_the_time_of_their_clock(self) -> None:
        """A time in text is local, to the millisecond."""
        local = self.MOMENT.astimezone()
        text = timestamp_text(self.MOMENT, is_for_people=True)
        assert text == f"{local:%Y-%m-%d %H:%M:%S}.007"


class TestColumns:
    def test_columns_are_aligned_and_end_without_blanks(self) -> None:
        """Each column is as wide as its widest cell; no line ends in a blank."""
        assert table_text(
            ("JOB", "LEADER", ""),
            [("flights", "10.0.0.7:8000", "x"), ("b", "nobody", "")],
        ).splitlines() == [
            "JOB      LEADER",
            "flights  10.0.0.7:8000  x",
            "b        nobody",
        ]

    def test_a_cell_stays_on_its_line(self) -> None:
        """A newline in a cell does not begin a line."""
        assert table_text(("A",), [("x\ny",)]).splitlines() == ["A", "x\\ny"]

    def test_values_of_pairs_are_aligned(self) -> None:
        """Names are as wide as the widest."""
        assert pairs_text([("job", "flights"), ("address", "a\tb")]).splitlines() == [
            "job      flights",
            "address  a\\tb",
        ]

    def test_no_pairs_are_no_text(self) -> None:
        """Nothing to say is said without an error."""
        assert pairs_text([]) == ""


class TestJson:
    DOCUMENT: ClassVar = {"job": "航班", "epoch": 2**60 + 1, "leader": None}

    def test_a_line_is_one_line(self) -> None:
        """A stream of documents has one on each line, whatever they hold."""
        line = json_line(self.DOCUMENT | {"address": "a\nb"})
        assert "\n" not in line
        assert json.loads(line)["address"] == "a\nb"

    def test_epochs_are_exact(self) -> None:
        """An epoch has up to 63 bits: no digit of it is lost."""
        assert json.loads(json_text(self.DOCUMENT)) == self.DOCUMENT
        assert str(2**60 + 1) in json_text(self.DOCUMENT)


@pytest.mark.shells
@pytest.mark.parametrize("columns", [30, 200])
def test_a_table_fits_the_terminal(columns: int) -> None:
    """The widest columns are cut there, and no line wraps; a pipe is no terminal."""
    rows = [("short", "x" * 100, "y" * 20)]
    script = (
        "from lodestar.output import table_text\n"
        f"print(table_text(('A', 'B', 'C'), {rows!r}))\n"
    )
    ours, theirs = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 5, columns, 0, 0))
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run(
            [sys.executable, "-c", script],
            stdout=theirs,
            check=True,
            timeout=60,
            env=environment(),
        )
        shown = terminal.read(10_000).decode()
        os.close(theirs)
    line = shown.splitlines()[1]
    if columns == 200:
        assert line == table_text(("A", "B", "C"), rows).splitlines()[1]
    else:
        assert len(line) == columns
        assert line.split()[0] == "short"
        assert line.count("…") == 2


def test_tables_leave_out_the_key_of_an_address() -> None:
    """Sixty-four digits tell a reader nothing, and push the rest off the screen."""
    address = "tcp://10.0.0.5:5172"
    assert address_text(address) == address
    assert address_text(f"{address}?key={'0f' * 32}") == f"{address}?key=…"
