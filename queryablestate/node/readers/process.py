"""
A reader process; started as a module by its node (`queryablestate.node.readers.crew`).

It takes its order on standard input, says on standard output where it listens and, over
and over, that it lives, and ends with its node: when standard input ends, and by the
kernel's promise (``PR_SET_PDEATHSIG``) if it cannot see that.  What it may answer is on
the page of the node alone.  So one that outlives its node answers until the lease ends
that is written there, or until another process of that node begins to write.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, final

from nameservice import NameServiceError, SystemClock, configure_logging, get_logger
from nameservice.clock import NS_PER_MS
from queryablestate.node.config import NodeConfig
from queryablestate.node.readers.gate import ReaderGate
from queryablestate.node.readers.orders import (
    ReaderReport,
    decode_order,
    decode_secret,
    line_of,
)
from queryablestate.node.readers.page import PAGE_SIZE_BYTES, PageReader
from queryablestate.node.readers.server import ReaderServer
from queryablestate.store.read_only import ReadOnlyStore
from zmqtransport import PollLoop


if TYPE_CHECKING:
    from queryablestate.node.readers.orders import ReaderOrder


__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1
_REPORT_NS: Final = 500 * NS_PER_MS
_SWITCH_SECONDS: Final = 0.0005
"""As in `lodestar.state_node`: a page that is read does not delay a question long."""


@final
class _Reader:
    """One process: a page, a store, a port, and reports about them."""

    def __init__(self, order: ReaderOrder, out: BinaryIO) -> None:
        self._out = out
        self._clock = SystemClock()
        self.loop = PollLoop(name="state-reader", clock=self._clock)
        config = NodeConfig(data_dir=order.data_dir, **order.config)
        descriptor = os.open(order.page, os.O_RDONLY | os.O_CLOEXEC)
        try:
            page = mmap.mmap(descriptor, PAGE_SIZE_BYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        lock = threading.Lock()

        def fence() -> None:
            # Two locks taken and released: no load passes both (page.py).
            with lock:
                pass
            with lock:
                pass

        self._page = PageReader(memoryview(page), fence)
        self._gate = ReaderGate(self._page.look, run=order.run, store=order.store)
        self._store = ReadOnlyStore(
            Path(order.data_dir) / order.store, size_bytes_max=config.size_bytes_max
        )
        self.server = ReaderServer(
            config,
            bind=order.bind,
            store=self._store,
            gate=self._gate,
            loop=self.loop,
            clock=self._clock,
        )
        self.loop.at_end(self._store.close)  # the first one is called last
        self.loop.at_end(self.server.close)
        self._report_due_ns = self._clock.now_ns()
        self.loop.set_deadline(lambda: self._report_due_ns, self._report)

    def _report(self) -> None:
        """Say that this process lives; end it if it is of no use."""
        self._report_due_ns = self._clock.now_ns() + _REPORT_NS
        self._gate.standing("")  # looks at the page
        if self._gate.is_over:
            self.loop.stop()
            return
        latencies = self.server.latencies.buckets()
        report = ReaderReport(
            port=self.server.port_number,
            figures=self.server.figures(),
            latencies={
                one.kind: (tuple(one.counts), one.sum_seconds) for one in latencies
            },
        )
        try:
            self._out.write(line_of(report))
        except OSError:
            self.loop.stop()  # the node is gone


def main() -> None:
    """Run one, until standard input ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A terminal's, and a supervisor's, are for the node, which may go on for a while.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    configure_logging("warning")
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What prints by mistake is not to be taken for a report.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines = sys.stdin.buffer
    first = lines.readline()
    if not first:
        return
    try:
        reader = _Reader(decode_order(first), out)
    except (NameServiceError, OSError) as error:
        get_logger(component="state-reader").error("reader.failed", error=str(error))
        sys.exit(1)

    def obey() -> None:
        for line in lines:
            keep_secret = partial(reader.server.keep_secret, decode_secret(line).secret)
            reader.loop.call_soon_threadsafe(keep_secret)
        reader.loop.stop()

    threading.Thread(target=obey, name="state-reader-orders", daemon=True).start()
    reader.loop.run()
    os._exit(0)  # the thread above may be waiting for standard input


if __name__ == "__main__":
    main()
