"""
`ReaderCrew`: the reader processes of a node, as the node sees them.

Each has a thread here that starts it, hears its reports and starts it anew when it
has ended, after a pause that doubles from a tenth of a second to ten.  One that falls
silent for ten seconds (it was stopped, it hangs) is killed: the snapshot that it may
be reading would keep pages of the store from being used again.  It comes back at the
same port, so no one need be told.  Before its first word it has a minute: it reads
nothing yet, and starts slowly on a busy machine.

The page is the node's alone: what is published binds readers without their doing.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import IO, TYPE_CHECKING, Final, final

import msgspec
from attrs import evolve

from nameservice import ConfigurationError, get_logger
from nameservice.clock import MS_PER_SECOND
from nameservice.observation import LatencyBuckets
from queryablestate.node.readers import process as reader_process
from queryablestate.node.readers.orders import (
    KeepSecret,
    ReaderOrder,
    ReaderReport,
    decode_report,
    line_of,
)
from queryablestate.node.readers.shared_page import open_page, page_path


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryablestate.node.config import NodeConfig
    from queryablestate.node.core.standing import Standing
    from zmqtransport import Endpoint


__all__ = ["NO_READERS", "ReaderCrew", "merged"]

NO_READERS: Final = dict.fromkeys(
    (
        "readers",
        "readers_running",
        "reader_restarts_total",
        "reader_page_writes_total",
        "reader_jobs_left_out",
    ),
    0,
)
"""The figures of a node that has none."""

_START_SECONDS: Final = 60.0
_SILENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 10.0
_GRACE_SECONDS: Final = 5.0
_LINE_SIZE_BYTES_MAX: Final = 1 << 16

_SETTINGS: Final = (
    "size_bytes_max",
    "answer_size_bytes_max",
    "questions_waiting_max",
    "connections_max",
)
_FILES: Final = ("curve_public_key_file", "curve_secret_key_file", "allow_list_file")


@final
class ReaderCrew:
    """
    The readers of one node.  `publish` and `keep_secret` are for the node's loop.

    Args:
        config: How many, where, and their limits.
        run: Drawn for this process of the node.
        on_ended: Is told, on a thread of its own, that a reader has ended.

    Raises:
        StorageError: If there is no room for the page.
    """

    def __init__(
        self, config: NodeConfig, *, run: str, on_ended: Callable[[], None]
    ) -> None:
        self._page = open_page(config.data_dir, run)
        self._store = ""
        self._slots = [
            _Slot(config, number, run=run, on_ended=on_ended)
            for number in range(config.readers)
        ]

    def start(self, store: str) -> Sequence[Endpoint]:
        """
        Start them all; return where each listens.

        Args:
            store: The sub-directory with the rows.

        Raises:
            ConfigurationError: If one of them cannot be started; its log says why.
        """
        self._store = store
        for slot in self._slots:
            slot.start(store)
        return [slot.wait() for slot in self._slots]

    def publish(self, standing: Standing, *, store: str) -> None:
        """Bind all of them from now on; return when that is so."""
        if store != self._store:
            self._store = store
            for slot in self._slots:
                slot.store = store  # those that run end by themselves
        self._page.publish(standing, store=store)

    def keep_secret(self, secret: bytes) -> None:
        """Have them take tickets made with *secret*."""
        for slot in self._slots:
            slot.keep_secret(secret)

    @property
    def problem(self) -> str | None:
        """Return why no reader answers, or None if one does."""
        if any(slot.is_running for slot in self._slots):
            return None
        return "no reader process runs: clients ask through the proxy"

    def figures(self) -> dict[str, int]:
        """Return what they have done together, by name."""
        figures: Counter[str] = Counter()
        for slot in self._slots:
            figures.update(slot.figures())
        return {
            **figures,
            "readers": len(self._slots),
            "readers_running": sum(slot.is_running for slot in self._slots),
            "reader_restarts_total": sum(slot.restart_count for slot in self._slots),
            "reader_page_writes_total": self._page.count,
            "reader_jobs_left_out": self._page.left_out_count,
        }

    def latencies(self) -> Sequence[LatencyBuckets]:
        """Return how long their answers took; a kind may come more than once."""
        return [one for slot in self._slots for one in slot.latencies()]

    def close(self) -> None:
        """End them, and wait for it.  Idempotent."""
        self._page.withdraw()
        for slot in self._slots:
            slot.ask_to_end()
        for slot in self._slots:
            slot.join()


@final
class _Slot:
    """One reader, again and again."""

    def __init__(
        self,
        config: NodeConfig,
        number: int,
        *,
        run: str,
        on_ended: Callable[[], None],
    ) -> None:
        self._config = config
        self._number = number
        self._run_id = run
        self._on_ended = on_ended
        self.store = ""
        bind = config.bind_endpoint
        self._endpoint = evolve(bind, port=bind.port and bind.port + 1 + number)
        self._log = get_logger(component="state-node", reader=number)
        self._changed = threading.Condition()  # guards all that follow
        self._secret = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._report: ReaderReport | None = None
        self._done: Counter[str] = Counter()
        self._done_latencies: Sequence[LatencyBuckets] = ()
        self._is_closing = False
        self.restart_count = 0
        self._thread = threading.Thread(
            target=self._run, name=f"state-node-reader-{number}", daemon=True
        )

    # -- for the node ----------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Return whether it has said where it listens, and has not ended since."""
        return self._report is not None

    def start(self, store: str) -> None:
        """Start it."""
        self.store = store
        self._thread.start()

    def wait(self) -> Endpoint:
        """Wait until it listens for the first time; return where."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_running or self.restart_count, _START_SECONDS
            )
            if not self.is_running:
                raise ConfigurationError(
                    f"reader process {self._number + 1} of {self._config.readers} "
                    f"cannot listen at {self._endpoint}: its log says why; choose "
                    "another port, or fewer readers"
                )
            return self._endpoint

    def keep_secret(self, secret: bytes) -> None:
        """Tell it, now or when it starts."""
        with self._changed:
            self._secret = secret
            self._tell_secret()

    def figures(self) -> Counter[str]:
        """Return what it has done, and those before it."""
        with self._changed:
            now = {} if self._report is None else self._report.figures
            return self._done + Counter(now)

    def latencies(self) -> Sequence[LatencyBuckets]:
        """Return how long that took, by kind."""
        with self._changed:
            return merged([*self._done_latencies, *_latencies_of(self._report)])

    def ask_to_end(self) -> None:
        """Have it end, for good."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()

    def join(self) -> None:
        """Wait until it has ended; it is killed if that takes long."""
        if self._thread.ident is None:
            return
        self._thread.join(_GRACE_SECONDS)
        if self._thread.is_alive():
            with self._changed:
                if self._process is not None:
                    self._process.kill()
            self._thread.join()

    # -- its thread ------------------------------------------------------------------

    def _run(self) -> None:
        pause_seconds = _PAUSE_SECONDS_MIN
        while True:
            began = time.monotonic()
            try:
                process = self._begin()
            except OSError as error:  # there is no room for one more process
                self._log.warning("reader.failed", error=str(error))
                self._count_end()
            else:
                if process is None:
                    return
                self._hear(process)
                process.kill()
                process.wait()
                self._end(process)
            if time.monotonic() - began > _PAUSE_SECONDS_MAX:
                pause_seconds = _PAUSE_SECONDS_MIN
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closing, pause_seconds):
                    return
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)

    def _begin(self) -> subprocess.Popen[bytes] | None:
        """Start a process, and tell it what it is to be; None at the end."""
        with self._changed:
            if self._is_closing:
                return None
            # The kernel ends it when this thread ends, which is when the node does.
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", reader_process.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # a terminal's Ctrl-C is for the node
            )
            self._tell(line_of(self._order()))
            self._tell_secret()
            return process

    def _order(self) -> ReaderOrder:
        config = self._config
        settings = {name: getattr(config, name) for name in _SETTINGS}
        files = {
            name: str(getattr(config, name))
            for name in _FILES
            if getattr(config, name) is not None
        }
        return ReaderOrder(
            page=str(page_path(config.data_dir)),
            run=self._run_id,
            data_dir=str(config.data_dir),
            store=self.store,
            bind=str(self._endpoint),
            config={**settings, **files},
        )

    def _tell_secret(self) -> None:
        if self._secret:
            self._tell(line_of(KeepSecret(secret=self._secret)))

    def _tell(self, line: bytes) -> None:
        """Write to its standard input; it is short, and read at once."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        with contextlib.suppress(OSError):
            if not _is_ready(process.stdin, select.POLLOUT, within_seconds=0):
                process.kill()  # it has not read for long: the next one is told
                return
            process.stdin.write(line)

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        """Take its reports until it ends, or says nothing for too long."""
        assert process.stdout is not None
        said = b""
        patience_seconds = _START_SECONDS  # until its first word
        while _is_ready(process.stdout, select.POLLIN, within_seconds=patience_seconds):
            patience_seconds = _SILENCE_SECONDS
            more = process.stdout.read(_LINE_SIZE_BYTES_MAX)
            said += more or b""
            if not more or len(said) > _LINE_SIZE_BYTES_MAX:
                return
            *lines, said = said.split(b"\n")
            try:
                for line in lines[-1:]:
                    self._take(decode_report(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                return  # something else has written there: it is started anew
        self._log.warning("reader.silent", process_id=process.pid)

    def _take(self, report: ReaderReport) -> None:
        with self._changed:
            self._report = report
            self._endpoint = evolve(self._endpoint, port=report.port)
            self._changed.notify_all()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._changed:
            if not self._is_closing:
                self._log.warning(
                    "reader.ended", process_id=process.pid, status=process.returncode
                )
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            if self._report is not None:
                counts = self._report.figures.items()
                self._done += Counter(
                    {name: n for name, n in counts if name.endswith("_total")}
                )
                self._done_latencies = merged(
                    [*self._done_latencies, *_latencies_of(self._report)]
                )
            self._report = None
            self._process = None
            is_closing = self._is_closing
        self._count_end()
        if not is_closing:
            self._on_ended()

    def _count_end(self) -> None:
        with self._changed:
            self.restart_count += 1
            self._changed.notify_all()


def _is_ready(pipe: IO[bytes], event: int, *, within_seconds: float) -> bool:
    """Return whether *pipe* is ready, or closed at its other end, in time."""
    # `select.select` takes no number from 1,024 on, and a node has many connections.
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(within_seconds * MS_PER_SECOND))


def _latencies_of(report: ReaderReport | None) -> Sequence[LatencyBuckets]:
    if report is None:
        return ()
    return [
        LatencyBuckets(kind=kind, counts=counts, sum_seconds=sum_seconds)
        for kind, (counts, sum_seconds) in sorted(report.latencies.items())
    ]


def merged(latencies: Sequence[LatencyBuckets]) -> Sequence[LatencyBuckets]:
    """Return *latencies* with one of each kind, sorted: what all of them counted."""
    found: dict[str, LatencyBuckets] = {}
    for one in latencies:
        known = found.get(one.kind)
        if known is not None:
            known = evolve(
                known,
                counts=tuple(map(sum, zip(known.counts, one.counts, strict=True))),
                sum_seconds=known.sum_seconds + one.sum_seconds,
            )
        found[one.kind] = known or one
    return [found[kind] for kind in sorted(found)]
