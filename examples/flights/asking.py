"""
Somebody who only wants a value: given the name service's URL, and nothing else.

Asks for aircraft while the stream runs, keeps count, and remembers the longest it had
to wait; at the end asks for every key there is and compares.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from examples.flights.collector import JOB_ID
from examples.flights.states import AIRCRAFT, FlightState
from examples.flights.timeline import Timeline
from nameservice import NameServiceError, UnknownKeyError
from queryablestate import QueryableStateClient, StateEntry


__all__ = ["Asker", "differences"]

_DEADLINE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.02
_SHOWN_EVERY_SECONDS: Final = 2.0
_JOIN_SECONDS: Final = 60.0
_SEED: Final = 2013


@final
class Asker:
    """
    Asks for one aircraft after another, in a thread of its own, until closed.

    Args:
        url: Of the name service.
        tail_numbers: What to ask for.
        timeline: Told of some answers, and of failures.
    """

    def __init__(
        self, url: str, tail_numbers: Sequence[str], timeline: Timeline
    ) -> None:
        self._url = url
        self._tail_numbers = tail_numbers
        self._timeline = timeline
        self._is_closing = threading.Event()
        self.answer_count = 0
        self.failure_count = 0
        self.longest_seconds = 0.0
        self._thread = threading.Thread(target=self._ask, name="asker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop asking."""
        self._is_closing.set()
        self._thread.join(_JOIN_SECONDS)

    def summary(self) -> str:
        """Return what it came to."""
        return (
            f"Asked while the stream ran: {self.answer_count:,} answers, "
            f"{self.failure_count} failures, the longest wait "
            f"{self.longest_seconds:.2f} s"
        )

    def _ask(self) -> None:
        drawn = random.Random(_SEED)  # noqa: S311 (which aircraft are shown is no secret)
        shown_at = 0.0
        with QueryableStateClient(
            self._url, deadline_seconds=_DEADLINE_SECONDS
        ) as client:
            client.wait_for_state(JOB_ID, AIRCRAFT.name, _DEADLINE_SECONDS)
            while not self._is_closing.wait(_PAUSE_SECONDS):
                tail_number = drawn.choice(self._tail_numbers)
                asked_at = time.monotonic()
                try:
                    entry = client.lookup(JOB_ID, AIRCRAFT.name, tail_number)
                except UnknownKeyError:
                    entry = None  # it has not flown yet
                except NameServiceError as error:
                    self.failure_count += 1
                    self._timeline.say("asker", f"{tail_number}: {error}")
                    continue
                now = time.monotonic()
                self.answer_count += 1
                self.longest_seconds = max(self.longest_seconds, now - asked_at)
                if entry is not None and now - shown_at > _SHOWN_EVERY_SECONDS:
                    shown_at = now
                    self._show(tail_number, entry, now - asked_at)

    def _show(self, tail_number: str, entry: StateEntry, seconds: float) -> None:
        value = entry.value
        self._timeline.say(
            "asker",
            f"{tail_number}: {value['flights']} flights, {value['miles']:,} miles "
            f"until batch {entry.batch_id} (answered in {seconds * 1_000:.1f} ms)",
        )


def differences(
    client: QueryableStateClient,
    state: FlightState,
    computed: Mapping[Any, Mapping[str, Any]],
    *,
    job_id: str = JOB_ID,
) -> Sequence[str]:
    """Return where *state* is not what was *computed*; asks for every key there is."""
    asked = client.get_many(job_id, state.name, list(computed))
    found = [
        f"{state.name} {key}: asked {asked.get(key)}, computed {dict(values)}"
        for key, values in computed.items()
        if asked.get(key) != values
    ]
    count = client.count(job_id, state.name)
    if count != len(computed):
        found.append(f"{state.name} has {count} keys, not {len(computed)}")
    return found
