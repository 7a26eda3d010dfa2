"""
Write the synchronous twin of each asynchronous file; ``make twins``.

With ``--check``, as ``make style`` calls it, nothing is written: the exit code is 1 if
a twin is not what would be written.

Theory of operation.  The asynchronous file is written by hand.  Its twin is the same
text with ``async`` and ``await`` left out, with other names (`WORDS`) and without the
lines that end with ``# async only``.  Passages that are true of one alone are replaced
as a whole (`Twin.passages`); one that is not found is an error, so none is forgotten.
Ruff then sorts and formats.  This is the way of httpcore's ``unasync --check``; the
library of that name neither checks nor replaces passages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs


ROOT: Final = Path(__file__).parent.parent

WORDS: Final = (
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"\banext\b", "next"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\bAsyncQueryShell\b", "QueryShell"),
    (r"\bAsyncQueryableStateClient\b", "QueryableStateClient"),
    (r"\bAsyncStateScans\b", "StateScans"),
    (r"\bqueryablestate\.client\.aio\b", "queryablestate.client.threads"),
    (
        r"\bqueryablestate\.client\.async_state_scans\b",
        "queryablestate.client.state_scans",
    ),
    (r".*# async only\n", ""),
)

RUFF_CHECK: Final = ("check", "--quiet", "--fix-only", "--unsafe-fixes", "--select")
RUFF_RULES: Final = "I,C416"
"""What leaving words out makes of good style: unsorted imports, idle comprehensions."""


@attrs.frozen
class Twin:
    """
    One asynchronous file and what is made of it.

    Attributes:
        source: The asynchronous file, from the top of the repository.
        target: Its twin, in the same folder.
        passages: What is said otherwise, and how; replaced before any word.
    """

    source: str
    target: str
    passages: tuple[tuple[str, str], ...] = ()


TWINS: Final = (
    Twin(
        "queryablestate/client/async_client.py",
        "queryablestate/client/client.py",
        (
            (
                """\
`AsyncQueryableStateClient`: `QueryableStateClient` for asyncio; needs no pyspark.

Every method has the name, the arguments and the errors of its twin, which is made from
this file (``make twins``), and does the same without blocking the event loop.
""",
                """\
`QueryableStateClient`: asks the state of running jobs; needs no pyspark.

Its users configure the name service and nothing else: who is the proxy leader, where
the nodes are and which of them holds which key is found out here, and found out again
when it changes.
""",
            ),
            (
                """\
        try:  # `run` would cost the shortest question a coroutine more
            await self._shell.ask(read)
        except asyncio.CancelledError:
            self._shell.drop(read)
            raise
""",
                """\
        self._shell.run(read)
""",
            ),
            (
                """\
    Asks the state of running jobs from coroutines.  An async context manager.

    It belongs to the event loop of its first question, and is used there alone.  A
    coroutine that is cancelled gives its question up; the others do not notice.  What
    many coroutines ask in one turn of the loop travels in common messages; `scan` is
    for ``async for``.
""",
                """\
    Asks the state of running jobs.  Thread-safe; a context manager.

    What many threads ask at once travels in common messages.
""",
            ),
        ),
    ),
    Twin(
        "queryablestate/client/async_state_scans.py",
        "queryablestate/client/state_scans.py",
        (
            (
                '''\
"""
`AsyncStateScans`: what is asked of all nodes of a state, for asyncio.

Its twin is made from this file (``make twins``).
"""
''',
                '''\
"""`StateScans`: what is asked of all nodes of a state."""
''',
            ),
        ),
    ),
    Twin(
        "tests/queryablestate/client/test_async_client.py",
        "tests/queryablestate/client/test_client.py",
        (
            ("runner.run(opened.close())", "opened.close()"),
            ("Awaitable[object]", "object"),
            ("import Awaitable, Callable", "import Callable"),
        ),
    ),
    Twin(
        "tests/queryablestate/client/test_async_frames.py",
        "tests/queryablestate/client/test_frames.py",
    ),
)


def twin_of(twin: Twin, source: str) -> str:
    """
    Return the text of the synchronous file.

    Args:
        twin: Which file it is.
        source: The text of the asynchronous file.

    Raises:
        ValueError: If a passage that is to be replaced is not in *source*.
    """
    for asynchronous, synchronous in twin.passages:
        if asynchronous not in source:
            raise ValueError(f"{twin.source} does not say: {asynchronous}")
        source = source.replace(asynchronous, synchronous)
    for pattern, word in WORDS:
        source = re.sub(pattern, word, source)
    header = (
        f"# Made from {Path(twin.source).name} by `make twins`: change that file,"
        " not this one.\n"
    )
    fixed = _ruff(*RUFF_CHECK, RUFF_RULES, path=twin.target, text=header + source)
    return _ruff("format", path=twin.target, text=fixed)


def _ruff(*command: str, path: str, text: str) -> str:
    """Return what ruff makes of *text*, which is to stand at *path*."""
    return subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout


def main() -> int:
    """Write every twin, or check it; return the exit code."""
    is_check = sys.argv[1:] == ["--check"]
    stale = 0
    for twin in TWINS:
        text = twin_of(twin, (ROOT / twin.source).read_text(encoding="utf-8"))
        target = ROOT / twin.target
        if not is_check:
            target.write_text(text, encoding="utf-8")
        elif target.read_text(encoding="utf-8") != text:
            stale += 1
            print(f"{twin.target} is not made from {twin.source}: run `make twins`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
