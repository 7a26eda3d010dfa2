"""
How long until listeners hear of a leader's new address; and registrations per second.

Workload: the leader changes its address again and again; 1 to 5,000 listeners, each
with a session (a watch stream, for etcd) of its own, in eight processes or more, of at
most 500 each, so that no interpreter's lock is what is measured; the server is a
process of its own.  Unit: milliseconds from the call of the leader until the last
listener was told.  Bad: less than 5 times (1 listener) or 20 times (200) as fast as
kazoo's DataWatch, or above 150 ms for 5,000.

Registrations: one client enters contenders as fast as its interface allows.  Bad: less
than 10 times kazoo's.

The floor of both is bare pyzmq with the same messages (`benchmarks.peers.floor_names`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from benchmarks.peers._interface import Row, Rows, opened
from benchmarks.peers._names import NameService, address_of, children
from benchmarks.peers._sizes import Sizes
from benchmarks.peers.name_services import LISTENED


__all__ = ["ask"]

_PER_PROCESS_MAX: Final = 500
_PROCESS_COUNT_MIN: Final = 8
_REGISTERED: Final = "registrations"


def ask(sizes: Sizes, is_asked: Callable[[str], bool]) -> list[Row]:
    """Measure."""
    rows = Rows()
    with ExitStack() as stack:
        openings = [
            (name, peer.serve) for name, peer in LISTENED.items() if is_asked(name)
        ]
        services = opened(stack, openings, rows, "leader change")
        changed = 0
        for count in sizes.listener_counts:
            changed = _change(sizes, services, rows, count, changed)
        for number in range(-1, sizes.round_count):
            counted = Rows() if number < 0 else rows
            for name, service in services.items():
                seconds = service.register(f"r{number}", sizes.registration_count)
                rate = sizes.registration_count / seconds
                counted.add(_REGISTERED, name, "registrations/s", [rate])
    return rows.rows()


def _change(
    sizes: Sizes, services: dict[str, NameService], rows: Rows, count: int, changed: int
) -> int:
    """Change addresses by turns; return how many changes there were so far."""
    question = f"leader change, {count:,} listeners"
    part = min(_PER_PROCESS_MAX, -(-count // _PROCESS_COUNT_MIN))
    with children() as start:
        groups = {}
        for name, service in services.items():
            peer = LISTENED[name]
            if count > peer.listener_count_max:
                rows.note(question, name, peer.listener_limit)
                continue
            groups[name] = [
                start("listen", name, service.address, min(part, count - first))
                for first in range(0, count, part)
            ]
        for group in groups.values():
            for child in group:
                child.heard(address_of(changed))
        for number in range(-1, sizes.change_count):
            changed += 1
            for name, group in groups.items():
                began_ns = time.monotonic_ns()
                services[name].announce(address_of(changed))
                told_ns = max(child.heard(address_of(changed)) for child in group)
                if number >= 0:
                    at = ("leader change", "listeners", count)
                    taken_ms = (told_ns - began_ns) / 1_000_000
                    rows.add(question, name, "ms", [taken_ms], at=at)
            for name in services.keys() - groups.keys():
                services[name].announce(address_of(changed))
    return changed
