"""
A process of listeners, or of one candidate; see `benchmarks.peers._names`.

``listen PEER ADDRESS COUNT`` says ``VALUE WHEN`` once all its listeners were told of a
value.  ``idle PEER ADDRESS COUNT`` says ``idle`` once it has as many sessions.
``candidate PEER ADDRESS SECONDS`` takes orders: ``contend COMPONENT NAME`` says
``queued`` and, later, ``leads WHEN``; ``resign`` says ``resigns WHEN`` and, when it is
done, ``resigned``.  Times are nanoseconds of the monotonic clock, which all processes
of a machine share.
"""

from __future__ import annotations

import sys
import threading
import time

from benchmarks.peers._names import Candidate, Tally, say
from benchmarks.peers.name_services import LISTENED, NAME_SERVICES


_INTERVAL_SECONDS = 0.02


def _contend(candidate: Candidate, component: str, name: str) -> threading.Event:
    """Contend on a thread; return what ends it."""
    over = threading.Event()

    def lead() -> None:
        candidate.lead(component, name, lambda: say("leads", time.monotonic_ns()), over)
        say("resigned")

    leading = threading.Thread(target=lead, daemon=True)
    leading.start()
    # Nothing tells of one that waits; but of one that failed, its thread does.
    while not candidate.is_queued(component, name):
        leading.join(_INTERVAL_SECONDS)
        if not leading.is_alive():
            raise RuntimeError(f"{name} does not contend for {component} any more")
    say("queued")
    return over


def main(role: str, peer: str, address: str, number: str) -> None:
    """Do as asked until standard input ends."""
    if role == "listen":
        LISTENED[peer].listen(address, int(number), Tally(int(number)))
        return
    service = NAME_SERVICES[peer]
    if role == "idle":
        service.keep(address, int(number))
        return
    over = threading.Event()
    with service.candidate(address, float(number)) as candidate:
        say("ready")
        for line in sys.stdin:
            match line.split():
                case ["contend", component, name]:
                    over = _contend(candidate, component, name)
                case ["resign"]:
                    say("resigns", time.monotonic_ns())
                    over.set()
                case order:
                    raise ValueError(order)


if __name__ == "__main__":
    main(*sys.argv[1:])
