"""
How long is a component without a leader: SIGKILL, and a clean hand-over.

Workload: pairs of processes that contend for a component each; the leaders are killed
with SIGKILL, a little apart.  Unit: milliseconds from the signal until the other
process knows that it leads; with each system's default session or lease, and with the
shortest that is safe.  Hand-over: two processes hand the leadership to and fro; from
the beginning of the resignation until the other knows.  Bad: less than 10 times as fast
as the others by default, a hand-over slower than any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from benchmarks.peers._interface import Row, Rows, opened
from benchmarks.peers._names import Child, NameService, children
from benchmarks.peers._sizes import Sizes
from benchmarks.peers.name_services import NAME_SERVICES


__all__ = ["ask"]

_HANDED: Final = "clean hand-over"
_KILLED: Final = "SIGKILL to the next leader"
_APART_SECONDS: Final = 0.07
_FLINK_NOTE: Final = (
    "not started: its services are ZooKeeper's, with a session of 60 s by default"
)


def ask(sizes: Sizes, is_asked: Callable[[str], bool]) -> list[Row]:
    """Measure."""
    rows = Rows()
    with ExitStack() as stack:
        openings = [
            (name, peer.serve) for name, peer in NAME_SERVICES.items() if is_asked(name)
        ]
        services = opened(stack, openings, rows, _HANDED)
        _hand_over(sizes, services, rows)
        for setting in sizes.failover_settings:
            _kill(sizes, services, rows, setting)
    if is_asked("Flink"):
        rows.note(f"{_KILLED}, default", "Flink 1.10.3", _FLINK_NOTE)
    return rows.rows()


def _kill(
    sizes: Sizes, services: dict[str, NameService], rows: Rows, setting_name: str
) -> None:
    question = f"{_KILLED}, {setting_name}"
    for name in services:
        rows.note(question, name, NAME_SERVICES[name].settings[setting_name].label)
    with children() as start:
        pairs: list[tuple[str, list[Child]]] = []
        # One of each system after the other, so that all meet the same machine.
        for _ in range(sizes.pair_count):
            for name, service in services.items():
                seconds = NAME_SERVICES[name].settings[setting_name].seconds
                address = service.address
                pair = [start("candidate", name, address, seconds) for _ in range(2)]
                pairs.append((name, pair))
        for index, (_, pair) in enumerate(pairs):
            _contend(pair, f"{setting_name}-{index}")
        killed = []
        for name, (leader, successor) in pairs:
            killed.append((name, leader.kill(), successor))
            time.sleep(_APART_SECONDS)  # noqa: TID251 - at any point of a heartbeat
        for name, killed_ns, successor in killed:
            taken_ns = successor.heard("leads") - killed_ns
            if taken_ns < 0:
                # A stall of the machine may cost a leadership that lasts so shortly.
                rows.note(question, name, "some were lost before the signal")
                continue
            rows.add(question, name, "ms", [taken_ns / 1_000_000])


def _contend(pair: Sequence[Child], component: str) -> None:
    """Have the first lead, and the second wait."""
    for child, name in zip(pair, ("a", "b"), strict=True):
        child.heard("ready")
        child.tell("contend", component, name)
        child.heard("queued")
        if name == "a":
            child.heard("leads")


def _hand_over(sizes: Sizes, services: dict[str, NameService], rows: Rows) -> None:
    with children() as start:
        pairs = {}
        for name, service in services.items():
            seconds = NAME_SERVICES[name].settings["default"].seconds
            address = service.address
            pair = [start("candidate", name, address, seconds) for _ in range(2)]
            _contend(pair, "handed")
            pairs[name] = pair
        for number in range(-1, sizes.hand_over_count):
            for name, pair in pairs.items():
                leader, successor = pair
                leader.tell("resign")
                began_ns = leader.heard("resigns")
                taken_ns = successor.heard("leads") - began_ns
                leader.heard("resigned")
                leader.tell("contend", "handed", f"n{number}")
                leader.heard("queued")
                pair.reverse()
                if number >= 0:
                    rows.add(_HANDED, name, "ms", [taken_ns / 1_000_000])
