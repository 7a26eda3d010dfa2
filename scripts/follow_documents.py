"""
Follow what documents tell a reader to type, and compare what is printed.

``scripts/check_wheel`` runs it with the wheel in an empty environment::

    python -m scripts.follow_documents --bin ENVIRONMENT/bin README.md

Theory of operation.  Every block of shell (```` ```console ````) of a document that is
followed is preceded by a comment:

*   ``<!-- terminal 2 -->``: type the lines after ``$`` in terminal 2.  The lines below
    a command are what must be printed next there, and nothing else.
*   ``<!-- every terminal -->``: type this first in every terminal that is opened.
*   ``<!-- not followed: why -->``: the reader is shown something else.

After a comma a comment may say more: ``any REGEX`` (what it matches may vary),
``with FILE`` (the reader has saved that file of the project), ``typing TEXT`` (the last
line printed is a question, and ends in this answer).

A terminal is a bash with a pseudo-terminal and job control, as a reader has.  Ids,
times, ports and epochs may vary everywhere, and so may the number of spaces.  A line
``…`` stands for any lines, and ``^C`` for pressing Ctrl-C.  What a shell says of its
jobs is left out.  Nothing sleeps: each line is waited for.  Linux only, for it looks
into /proc for what is left running.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, final

from attrs import frozen


__all__ = ["Block", "Command", "DocumentError", "Follower", "blocks", "same"]

_ROOT: Final = Path(__file__).parent.parent
_DEADLINE_SECONDS: Final = 240.0
_PROMPT: Final = "\x1e"
_COLUMNS: Final = 160
_CTRL_C: Final = b"\x03"
_ENDED: Final = {b"Z", b"X"}

_BLOCK: Final = re.compile(
    r"^(?:<!-- (?P<comment>[^\n]*) -->\n)?^```console\n(?P<code>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
_COMMENT: Final = re.compile(r"terminal (?P<terminal>\d+)(?:, (?P<more>.*))?")
_MORE: Final = re.compile(r"(any (?P<any>.+)|with (?P<file>\S+)|typing (?P<typed>.+))?")
_JOB_NOTICE: Final = re.compile(r"\[\d+\][ +-]")
_FIXED_PORT: Final = re.compile(r"127\.0\.0\.1:(\d+)")
_VARIES: Final = re.compile(
    r"""[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}  # a UUID
    | \b[0-9a-f]{16,}\b  # an id, or an epoch
    | \d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d(\.\d+)?
    | (?<=tcp://127\.0\.0\.1:)\d+
    | \b\d+(\.\d+)?\ s\b""",
    flags=re.VERBOSE,
)


class DocumentError(Exception):
    """A document says something else than what happens; says where and what."""


@final
@frozen(kw_only=True)
class Command:
    """
    What is typed, and what is printed then.

    Attributes:
        text: What is typed; None where the lines come from what runs already.
        lines: What is printed.
    """

    text: str | None
    lines: tuple[str, ...]


@final
@frozen(kw_only=True)
class Block:
    """
    One block of a document.

    Attributes:
        line_number: Where its first line is, from 1.
        terminal: Where it is typed; 0 for every terminal.
        commands: What is typed and printed, in order.
        varies: What may vary in what is printed, or None.
        file: A file of the project that the reader has saved, or None.
        typed: The answer to a question, or None.
    """

    line_number: int
    terminal: int
    commands: tuple[Command, ...]
    varies: str | None = None
    file: str | None = None
    typed: str | None = None


def blocks(text: str) -> Iterator[Block]:
    """
    Yield the blocks of a document that are followed, in order.

    Raises:
        DocumentError: If a block of shell does not say where it is typed.
    """
    for found in _BLOCK.finditer(text):
        line_number = text.count("\n", 0, found.start("code")) + 1
        comment = found["comment"] or ""
        if comment.startswith("not followed: "):
            continue
        commands = tuple(_commands(found["code"]))
        if comment == "every terminal":
            yield Block(line_number=line_number, terminal=0, commands=commands)
            continue
        parts = _COMMENT.fullmatch(comment)
        more = _MORE.fullmatch((parts and parts["more"]) or "")
        if parts is None or more is None:
            raise DocumentError(
                f"line {line_number}: <!-- {comment} --> does not say in which "
                "terminal the block is typed, or why it is not followed"
            )
        yield Block(
            line_number=line_number,
            terminal=int(parts["terminal"]),
            commands=commands,
            varies=more["any"],
            file=more["file"],
            typed=more["typed"],
        )


def _commands(code: str) -> Iterator[Command]:
    text: str | None = None
    lines: list[str] = []
    for line in code.replace("\\\n", "").splitlines():
        if not line.startswith("$ "):
            lines.append(line)
            continue
        if text is not None or lines:
            yield Command(text=text, lines=tuple(lines))
        text, lines = line.removeprefix("$ "), []
    yield Command(text=text, lines=tuple(lines))


def same(told: str, printed: str, varies: str | None = None) -> bool:
    """Return whether a line is what a document tells, but for what may vary."""
    return _settled(told, varies) == _settled(printed, varies)


def _settled(line: str, varies: str | None) -> str:
    line = _VARIES.sub("~", line)
    if varies is not None:
        line = re.sub(varies, "~", line)
    return " ".join(line.split())


def _take_terminal() -> None:
    """In the shell to be: take the terminal, and heed Ctrl-C whatever started us."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        # What a script runs in the background ignores both, and so would its children.
        signal.signal(number, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@final
class _Terminal:
    """A shell with a pseudo-terminal, and what it has printed so far."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.descriptor, inner = os.openpty()
        settings = termios.tcgetattr(inner)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(inner, termios.TCSANOW, settings)
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 50, _COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],  # noqa: S607 (the reader's shell)
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=directory,
            env={**environment, "PS1": _PROMPT, "PS2": ""},
            # Its own session, with this terminal in control: Ctrl-C and %1 work.
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 (no thread runs here)
        )
        os.close(inner)
        self.is_idle = False
        self._has_jobs = False
        self._text = ""
        self._read_count = 0

    @property
    def lines(self) -> list[str]:
        """Return the whole lines that are printed and not yet taken."""
        whole = self._text.split("\n")[:-1]
        ours = [line for line in whole if not _JOB_NOTICE.match(line)]
        return ours[self._read_count :]

    @property
    def beginning(self) -> str:
        """Return what is printed of a line that has not ended."""
        return self._text.rpartition("\n")[2]

    @property
    def is_over(self) -> bool:
        """Return whether nothing runs that could print more."""
        return self.is_idle and not self._has_jobs

    def take_line(self) -> str:
        """Take the next line."""
        line = self.lines[0]
        self._read_count += 1
        return line

    def type(self, text: str) -> None:
        """Type a line."""
        self.is_idle = False
        self._has_jobs = self._has_jobs or text.endswith("&")
        os.write(self.descriptor, f"{text}\n".encode())

    def answer(self, text: str) -> None:
        """Type an answer, which the line that asks for it ends with."""
        self._text += f"{text}\n"
        os.write(self.descriptor, f"{text}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self.descriptor, _CTRL_C)

    def read(self) -> None:
        """Take in what has been printed."""
        try:
            text = os.read(self.descriptor, 65_536).decode(errors="replace")
        except OSError as error:
            raise DocumentError("the shell has ended") from error
        self.is_idle = self.is_idle or _PROMPT in text
        self._text += text.replace(_PROMPT, "").replace("\r\n", "\n")

    def running(self) -> dict[int, str]:
        """Return what still runs that was started here, but for the shell."""
        found: dict[int, str] = {}
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            try:
                if os.getsid(pid) != self.process.pid or pid == self.process.pid:
                    continue
                # After the name, which may have any sign in it, comes the state.
                state = (path / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state in _ENDED:
                    continue
                # While it begins to run a program it has no command line.
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile
            found[pid] = b" ".join(words).decode(errors="replace").strip()
        return found

    def close(self) -> None:
        """End the shell and all that was started in it."""
        for pid in [*self.running(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended meanwhile
        self.process.wait()
        os.close(self.descriptor)


@final
class Follower:
    """
    Follows one document.  A context manager, which ends all that was started.

    Args:
        directory: Where the reader is.
        environment: Of the reader's shells.
        deadline_seconds: How long each line is waited for.
    """

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        *,
        deadline_seconds: float = _DEADLINE_SECONDS,
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._deadline_seconds = deadline_seconds
        self._selector = selectors.DefaultSelector()
        self._terminals: dict[int, _Terminal] = {}
        self._first: tuple[Command, ...] = ()
        self._ports: dict[str, str] = {}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self._terminals.values():
            terminal.close()
        self._selector.close()

    def follow(self, text: str) -> None:
        """
        Type what *text* tells, and see that what is printed is what it tells.

        Raises:
            DocumentError: If something else is printed, or something is left running.
        """
        for block in blocks(text):
            try:
                self._follow(block)
            except DocumentError as error:
                raise DocumentError(f"line {block.line_number}: {error}") from error
        for number, terminal in self._terminals.items():
            # The prompt first: before it, what was typed may not have begun.
            self._await(lambda: terminal.is_idle, terminal, "for the prompt")  # noqa: B023 (awaited at once)
            self._await(lambda: not terminal.running(), terminal, "for all to end")  # noqa: B023 (awaited at once)
            # After Ctrl-C a shell ends the line.
            if any(terminal.lines):
                raise DocumentError(
                    f"at the end, terminal {number} has printed {terminal.lines}"
                )

    def _follow(self, block: Block) -> None:
        if block.terminal == 0:
            self._first = block.commands
            return
        terminal = self._terminals.get(block.terminal) or self._open(block.terminal)
        if block.file is not None:
            shutil.copy(_ROOT / block.file, self._directory)
        for command in block.commands:
            if command.text is not None:
                self._await(lambda: terminal.is_idle, terminal, "for the prompt")
                if terminal.lines:
                    raise DocumentError(
                        f"before {command.text!r} is also printed: {terminal.lines}"
                    )
                terminal.type(self._with_free_ports(command.text))
            self._compare(terminal, command.lines, block)

    def _compare(
        self,
        terminal: _Terminal,
        lines: Sequence[str],
        block: Block,
    ) -> None:
        """Take *lines* from *terminal*."""
        is_open = False
        for line in lines:
            told = self._with_free_ports(line)
            if told == "…":
                is_open = True
                continue
            if told == "^C":
                terminal.interrupt()
                continue
            if block.typed is not None and told.endswith(block.typed):
                question = told.removesuffix(block.typed)
                self._await(
                    lambda: terminal.beginning == question,  # noqa: B023 (awaited at once)
                    terminal,
                    f"for {question!r}",
                )
                terminal.answer(block.typed)
            while True:
                self._await(
                    lambda: terminal.lines or terminal.is_over,
                    terminal,
                    f"for {told!r}",
                )
                if not terminal.lines:
                    raise DocumentError(f"told: {told}\nprinted: nothing more")
                printed = terminal.take_line()
                if same(told, printed, block.varies):
                    break
                if not is_open:
                    raise DocumentError(f"told: {told}\nprinted: {printed}")
            is_open = False

    def _open(self, number: int) -> _Terminal:
        terminal = _Terminal(self._directory, self._environment)
        self._terminals[number] = terminal
        self._selector.register(terminal.descriptor, selectors.EVENT_READ, terminal)
        for command in self._first:
            self._await(lambda: terminal.is_idle, terminal, "for the prompt")
            assert command.text is not None
            terminal.type(self._with_free_ports(command.text))
        return terminal

    def _await(
        self, condition: Callable[[], object], terminal: _Terminal, what: str
    ) -> None:
        """Read what all terminals print until *condition* holds."""
        deadline = time.monotonic() + self._deadline_seconds
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise DocumentError(
                    f"waited {self._deadline_seconds:g} s {what}; printed is "
                    f"{[*terminal.lines, terminal.beginning]}, and there run "
                    f"{list(terminal.running().values())}"
                )
            # A process that ends prints nothing: look again now and then.
            for key, _ in self._selector.select(min(left, 0.2)):
                key.data.read()

    def _with_free_ports(self, text: str) -> str:
        """Return *text* with ports of this machine that are free instead of its own."""
        for port in _FIXED_PORT.findall(text):
            if port not in self._ports and port not in self._ports.values():
                self._ports[port] = _free_port()
        for port, free in self._ports.items():
            text = re.sub(rf"(?<![\d.]){port}(?![\d.])", free, text)
        return text


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def main() -> int:
    """Follow the documents that are named; return 1 if one does not tell the truth."""
    parser = argparse.ArgumentParser(description="Do what documents tell a reader.")
    parser.add_argument("--bin", type=Path, required=True, help="of the environment")
    parser.add_argument("documents", nargs="+", type=Path)
    arguments = parser.parse_args()
    kept = ("HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS", "LANG", "LC_ALL", "TZ")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["PATH"] = f"{arguments.bin.absolute()}:{os.environ['PATH']}"
    status = 0
    for document in arguments.documents:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lodestar-reader-") as name:
            # The reader has the examples of the checkout, and nothing else of it.
            shutil.copytree(_ROOT / "examples", Path(name) / "examples")
            try:
                with Follower(Path(name), environment) as follower:
                    follower.follow(document.read_text(encoding="utf-8"))
            except DocumentError as error:
                print(f"{document}, {error}", file=sys.stderr)
                status = 1
                continue
        print(f"{document}: as told, in {time.monotonic() - began:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
