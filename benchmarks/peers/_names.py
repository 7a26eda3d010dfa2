"""What questions about leaders and their peers have in common."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Protocol, final

from attrs import frozen


__all__ = [
    "COMPONENT",
    "Candidate",
    "Child",
    "Listened",
    "NamePeer",
    "NameService",
    "Server",
    "Setting",
    "Tally",
    "address_of",
    "children",
    "say",
]

COMPONENT: Final = "bench"
"""What listeners listen to."""


_TIMEOUT_SECONDS: Final = 180.0


@frozen(kw_only=True)
class Setting:
    """
    How soon a name service takes a silent leader for dead.

    Attributes:
        seconds: The session, lease or time to live that decides.
        label: The same in words, for the table.
    """

    seconds: float
    label: str


class Server(Protocol):
    """The process of a server."""

    @property
    def pid(self) -> int:
        """Return its process id."""
        ...

    def kill(self) -> None:
        """End it with SIGKILL."""
        ...

    def start(self) -> None:
        """Start it again, with what it has kept, on the same port."""
        ...


class NameService(Protocol):
    """A server in a process of its own, and a client that leads `COMPONENT`."""

    address: str

    @property
    def server(self) -> Server:
        """Return its process."""
        ...

    def announce(self, value: str) -> None:
        """Have all listeners told of another address of the leader."""
        ...

    def register(self, prefix: str, count: int) -> float:
        """Enter a contender for each of *count* components; return the seconds."""
        ...


class Candidate(Protocol):
    """A client that contends."""

    def lead(
        self,
        component: str,
        name: str,
        on_leading: Callable[[], None],
        over: threading.Event,
    ) -> None:
        """Contend, call *on_leading* once it leads, and resign when it is *over*."""
        ...

    def is_queued(self, component: str, name: str) -> bool:
        """Return whether the name service knows that *name* contends."""
        ...


@frozen(kw_only=True)
class Listened:
    """
    What tells listeners of a leader.

    Attributes:
        serve: Starts the server; yields the service.
        listen: Connects as many listeners as asked for, each with a session of its own,
            and returns when standard input ends; in a process of its own.
        listener_count_max: How many are tried, and why not more.
    """

    serve: Callable[[], AbstractContextManager[NameService]]
    listen: Callable[[str, int, Tally], None]
    listener_count_max: int = 1_000_000
    listener_limit: str = ""


@frozen(kw_only=True)
class NamePeer(Listened):
    """
    What a name service does for the questions.

    Attributes:
        settings: Its ``"default"``, and the shortest that is safe, ``"short"``.
        candidate: Connects a client with a setting's seconds; in a process of its own.
        keep: Opens as many sessions as asked for, and keeps them alive, as `listen`.
        kept: What such a session is, in words.
        session_count_max: How many idle sessions are tried.
        session_limit: Why not more.
    """

    settings: Mapping[str, Setting]
    candidate: Callable[[str, float], AbstractContextManager[Candidate]]
    keep: Callable[[str, int], None]
    kept: str
    session_count_max: int = 1_000_000
    session_limit: str = ""


@final
class Tally:
    """
    Says on standard output when all listeners of a process were told of a value.

    Args:
        count: How many listeners there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._told: dict[str, int] = {}

    def told(self, value: str) -> None:
        """Count one listener that was told of *value*."""
        now_ns = time.monotonic_ns()
        with self._lock:
            known = self._told[value] = self._told.get(value, 0) + 1
        if known == self._count:
            say(value, now_ns)


def say(*words: object) -> None:
    """Write one line for the parent, whole, from any thread."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def address_of(number: int) -> str:
    """Return the address that a leader has after *number* changes."""
    return f"host:{number}"


@final
class Child:
    """A process of listeners, or a candidate."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers._child", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._arguments = arguments
        self._heard: dict[str, int] = {}
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def tell(self, *words: object) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def heard(self, word: str) -> int:
        """Wait for a line that begins with *word*; return the number after it."""
        # Threads of the child speak: what is waited for may not come first.
        while word not in self._heard:
            try:
                line = self._lines.get(timeout=_TIMEOUT_SECONDS)
            except queue.Empty:
                line = ""
            if not line:
                raise RuntimeError(f"{self._arguments} never said {word!r}")
            first, _, rest = line.strip().partition(" ")
            self._heard[first] = int(rest or 0)
        return self._heard.pop(word)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def kill(self) -> int:
        """Kill it; return when, by the clock of the machine."""
        now_ns = time.monotonic_ns()
        self._process.kill()
        return now_ns

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Yield what starts a child; all of them end with the block."""
    with ExitStack() as stack:

        def start(*arguments: object) -> Child:
            child = Child(*arguments)
            stack.callback(child.close)
            return child

        yield start
