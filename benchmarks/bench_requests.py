"""
How fast a LeaderServer answers, next to a bare ROUTER/DEALER echo in the same run.

Workload: one client process (this one) against a server thread over loopback TCP;
``get`` of 100 bytes from the leader store, one at a time; ``put`` with and without a
data directory; `has_leadership`.  Unit: microseconds a call, each call measured by
itself.  Bad: a get above four times the echo.
"""

from __future__ import annotations

import tempfile
import threading
import time
from typing import TYPE_CHECKING

import zmq

from benchmarks._harness import Figure, figure, report, sized
from haservices import campaign, open_ha_services
from leaderserver import LeaderServer, ServerConfig


if TYPE_CHECKING:
    from collections.abc import Callable


# Multiples of ten: a tenth more is asked before, to warm up.
_COUNT = sized(3_000, tiny=10)
_PUT_COUNT = sized(300, tiny=10)
_VALUE = b"v" * 100


def _each_us(action: Callable[[], None], *, count: int) -> list[float]:
    """Return the microseconds of each of *count* calls, after a tenth more."""
    values = []
    for index in range(-count // 10, count):
        began = time.perf_counter_ns()
        action()
        if index >= 0:
            values.append((time.perf_counter_ns() - began) / 1_000)
    return values


def _echo_us() -> list[float]:
    """Return the round trips of a bare ROUTER/DEALER pair over loopback TCP."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        count = _COUNT + _COUNT // 10

        def serve() -> None:
            for _ in range(count):
                router.send_multipart(router.recv_multipart())

        thread = threading.Thread(target=serve)
        thread.start()
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(f"tcp://127.0.0.1:{port}")

            def ask() -> None:
                dealer.send(_VALUE)
                dealer.recv()

            values = _each_us(ask, count=_COUNT)
        thread.join()
    return values


def _against(url: str, where: str) -> list[Figure]:
    """Return the figures of one server."""
    with open_ha_services(url) as ha, campaign(ha, "bench", "host:1") as leadership:
        store = ha.get_leader_store("bench")

        def put() -> None:
            store.put("path", _VALUE, session=leadership.session)

        def get() -> None:
            store.get("path")

        return [
            figure(f"put, {where}", "us", _each_us(put, count=_PUT_COUNT)),
            figure(f"get, {where}", "us", _each_us(get, count=_COUNT)),
            figure("has_leadership", "us", _each_us(leadership.check, count=_COUNT)),
        ]


def run() -> list[Figure]:
    """Measure, and return the figures."""
    figures = [figure("bare ROUTER/DEALER echo", "us", _echo_us())]
    with tempfile.TemporaryDirectory() as directory:
        for data_dir in (None, directory):
            where = "in memory" if data_dir is None else "on disk"
            config = ServerConfig(bind="tcp://127.0.0.1:0", data_dir=data_dir)
            with LeaderServer(config) as server:
                figures += _against(server.url, where)
    report("requests", figures)
    return figures
