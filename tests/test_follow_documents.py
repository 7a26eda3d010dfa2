"""What checks the documents sees when they do not tell the truth."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from scripts.draw_overview import DIRECTORY, PALETTES, overview
from scripts.follow_documents import (
    Block,
    Command,
    DocumentError,
    Follower,
    blocks,
    same,
)


ROOT = Path(__file__).parent.parent
FOLLOWED = [
    "README.md",
    "docs/howto/ask-over-http.md",
    "docs/tutorial/ask-a-job.md",
    "docs/tutorial/first-leader.md",
]


def page(comment: str, code: str) -> str:
    """Return a document of one block."""
    return f"Text.\n\n<!-- {comment} -->\n```console\n{code}\n```\n"


class TestBlocks:
    """What is read out of a document."""

    def test_commands_and_what_they_print(self) -> None:
        """Lines after ``$`` are typed, and the lines below them are printed."""
        text = page(r"terminal 2, any \d+", "$ one \\\n    more\n1\n$ two\n2\n3")
        assert list(blocks(text)) == [
            Block(
                line_number=5,
                terminal=2,
                varies=r"\d+",
                commands=(
                    Command(text="one     more", lines=("1",)),
                    Command(text="two", lines=("2", "3")),
                ),
            )
        ]

    def test_lines_without_a_command(self) -> None:
        """They come from what runs already."""
        (block,) = blocks(page("terminal 1", "it has happened"))
        assert block.commands == (Command(text=None, lines=("it has happened",)),)

    @pytest.mark.parametrize("comment", ["", "terminal", "terminal 1, soon"])
    def test_a_block_must_say_where(self, comment: str) -> None:
        """One that says nothing is no block that is silently left out."""
        with pytest.raises(DocumentError, match="line 5"):
            list(blocks(page(comment, "$ true")))

    def test_a_reason_is_enough_not_to_follow(self) -> None:
        """A block may say why it is not followed."""
        assert list(blocks(page("not followed: it takes an hour", "$ true"))) == []

    @pytest.mark.parametrize("name", FOLLOWED)
    def test_documents_that_are_followed(self, name: str) -> None:
        """Each block of README and tutorials is followed, or says why not."""
        found = list(blocks((ROOT / name).read_text(encoding="utf-8")))
        assert found
        assert name in (ROOT / "scripts" / "check_wheel").read_text(encoding="utf-8")


class TestSame:
    """How lines are compared."""

    @pytest.mark.parametrize(
        ("told", "printed"),
        [
            ("serving tcp://127.0.0.1:43751", "serving tcp://127.0.0.1:9"),
            ("age 0.26 s ago", "age 12 s ago"),
            ("epoch 933663913772318721", "epoch 934454806230073345"),
            ("2026-11-21 00:52:56.789  x", "2027-01-02 10:00:00.1 x"),
            ("a    b", "a b"),
        ],
    )
    def test_ids_times_and_ports_may_vary(self, told: str, printed: str) -> None:
        """What cannot be known beforehand is not compared."""
        assert same(told, printed)

    @pytest.mark.parametrize(
        ("told", "printed"),
        [
            ("host-a:8000 leads flights", "host-b:8000 leads flights"),
            ("batch 3", "batch 4"),
            ("serving x", "serving"),
        ],
    )
    def test_everything_else_may_not(self, told: str, printed: str) -> None:
        """Numbers are compared unless the document says that they vary."""
        assert not same(told, printed)

    def test_what_the_document_says_varies(self) -> None:
        """A pattern of the document's own."""
        assert same("batch 3", "batch 4", r"\d+")


@pytest.mark.shells
class TestFollower:
    """Real shells."""

    def follow(self, directory: Path, text: str) -> None:
        """Follow *text* with a deadline that no test waits for."""
        with Follower(directory, os.environ, deadline_seconds=60) as follower:
            follower.follow(text)

    def test_what_is_told_is_what_happens(self, tmp_path: Path) -> None:
        """Two terminals, a background job, Ctrl-C, and a question."""
        self.follow(
            tmp_path,
            page("every terminal", "$ export NAME=x")
            + page("terminal 1", "$ mkfifo pipe\n$ cat pipe &\n$ echo $NAME\nx")
            + page("terminal 2", "$ echo hello >pipe\n$ sh -c 'echo on; exec cat'\non")
            + page("terminal 1", "hello")
            + page("terminal 2", "^C")
            + page("terminal 1, typing yes", "$ read -p 'Sure? ' A\nSure? yes")
            + page("terminal 1", "$ echo $A; seq 5\nyes\n1\n…\n5"),
        )

    def test_ctrl_c_is_heeded_whatever_started_it(self, tmp_path: Path) -> None:
        """A script in the background ignores SIGINT, and its children would."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            # The job says that it runs: until then bash itself takes the signal.
            self.follow(
                tmp_path,
                page("terminal 1", "$ mkfifo up; sh -c 'echo >up; exec sleep 600' &")
                + page("terminal 1", "$ read <up; kill -INT $!; wait"),
            )
        finally:
            signal.signal(signal.SIGINT, before)

    @pytest.mark.parametrize(
        ("code", "found"),
        [
            ("$ echo a\nb", "printed: a"),
            ("$ echo a\na\nb", "nothing more"),
            ("$ echo a; echo b\na\n$ true", "is also printed"),
            ("$ echo a; echo b\na", "at the end"),
        ],
    )
    def test_a_document_that_is_wrong(
        self, tmp_path: Path, code: str, found: str
    ) -> None:
        """Another line, a line that is missing, and one that is not told."""
        with pytest.raises(DocumentError, match=found):
            self.follow(tmp_path, page("terminal 1", code))

    def test_what_is_left_running(self, tmp_path: Path) -> None:
        """A document that does not clean up is found, and is cleaned up after."""
        os.mkfifo(tmp_path / "pipe")
        with (
            Follower(tmp_path, os.environ, deadline_seconds=10) as follower,
            pytest.raises(DocumentError, match="for all to end"),
        ):
            follower.follow(page("terminal 1", "$ cat pipe &"))


@pytest.mark.parametrize("name", PALETTES)
def test_the_picture_is_what_the_script_draws(name: str) -> None:
    """``python -m scripts.draw_overview`` would change nothing."""
    file = DIRECTORY / f"overview-{name}.svg"
    assert file.read_text(encoding="utf-8") == overview(PALETTES[name])


def test_the_readme_comes_to_the_point() -> None:
    """At most 170 lines, and the first command on the first screen."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 170
    assert next(n for n, line in enumerate(lines) if line.startswith("$ ")) < 40
