"""
What idle sessions cost a server, and how soon all are back after its restart.

Workload, idle: 10,000 sessions that do nothing but keep alive, or as many as all have
room for, by each system's default (10 s with Lodestar and kazoo, 60 s with etcd), in
processes of 1,000; they speak the protocol by themselves, as ten thousand ordinary
clients do not fit one machine.  Units: milliseconds of the server's processor for each
second, and MiB of memory over what it took before.  Bad: above 300 ms or 64 MiB.

Workload, restart: listeners with ordinary clients, as in `ask_leaders`; the server is
killed and started on the same port, and the leader changes its address as soon as it is
heard again.  Unit: seconds from the start until the last listener was told of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from benchmarks.peers._interface import Row, Rows, opened
from benchmarks.peers._names import NameService, address_of, children
from benchmarks.peers._processes import usage_of
from benchmarks.peers._sizes import Sizes
from benchmarks.peers.name_services import NAME_SERVICES


__all__ = ["ask"]

_PER_PROCESS_MAX: Final = 1_000
_LISTENERS_PER_PROCESS_MAX: Final = 500


def ask(sizes: Sizes, is_asked: Callable[[str], bool]) -> list[Row]:
    """Measure."""
    rows = Rows()
    asked = {name: peer for name, peer in NAME_SERVICES.items() if is_asked(name)}
    idle_count = min(
        [sizes.idle_count, *(peer.session_count_max for peer in asked.values())]
    )
    for name, peer in asked.items():
        # One system at a time: what the others' sessions cost would be in the figures.
        with ExitStack() as stack:
            found = opened(stack, [(name, peer.serve)], rows, "idle sessions")
            for service in found.values():
                _idle(sizes, idle_count, name, service, rows)
                if sizes.idle_count > peer.session_count_max:
                    question = f"{sizes.idle_count:,} idle sessions"
                    rows.note(question, name, peer.session_limit)
        for count in sizes.restart_counts:
            question = f"all back after a restart, {count:,} listeners"
            if count > peer.listener_count_max:
                rows.note(question, name, peer.listener_limit)
                continue
            with ExitStack() as stack:
                found = opened(stack, [(name, peer.serve)], rows, question)
                for service in found.values():
                    seconds = _restart(name, service, count)
                    rows.add(question, name, "s", [seconds])
    return rows.rows()


def _idle(
    sizes: Sizes, count: int, name: str, service: NameService, rows: Rows
) -> None:
    with children() as start:
        before = usage_of(service.server.pid)
        firsts = range(0, count, _PER_PROCESS_MAX)
        group = [
            start("idle", name, service.address, min(_PER_PROCESS_MAX, count - first))
            for first in firsts
        ]
        for child in group:
            child.heard("idle")
        for _ in range(sizes.idle_rounds):
            began = usage_of(service.server.pid)
            time.sleep(sizes.idle_seconds)  # noqa: TID251 - a time of rest is measured
            ended = usage_of(service.server.pid)
            used = ended.processor_seconds - began.processor_seconds
            rate = 1_000 * used / sizes.idle_seconds
            question = f"{count:,} idle sessions, processor of the server"
            rows.add(question, name, "ms in a second", [rate])
            rows.note(question, name, NAME_SERVICES[name].kept)
            question = f"{count:,} idle sessions, memory of the server"
            rows.add(question, name, "MiB", [ended.resident_mib - before.resident_mib])


def _restart(name: str, service: NameService, count: int) -> float:
    """Return the seconds until all listeners were told of a change again."""
    with children() as start:
        part = _LISTENERS_PER_PROCESS_MAX
        group = [
            start("listen", name, service.address, min(part, count - first))
            for first in range(0, count, part)
        ]
        for child in group:
            child.heard(address_of(0))
        service.server.kill()
        began_ns = time.monotonic_ns()
        service.server.start()
        service.announce(address_of(1))
        told_ns = max(child.heard(address_of(1)) for child in group)
    return (told_ns - began_ns) / 1_000_000_000
