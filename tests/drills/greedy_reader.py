"""
A process that asks more than it may; for drills of rate limits.

``python -m tests.drills.greedy_reader SETTINGS`` takes `GreedySettings` as JSON, asks
for one key after the other while it is told to, and writes what it was told as a line
of JSON.  Each line of its input is how many seconds to ask for.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, Final, Literal

from attrs import define, frozen

from haservices import HAConfig
from nameservice import NameServiceError, configure_logging
from queryablestate import QueryableStateClient, RateLimitedError


__all__ = ["GreedySettings", "Tally"]

_MARGIN_SECONDS: Final = 0.001


@frozen(kw_only=True)
class GreedySettings:
    """
    Who asks, what and how.

    Attributes:
        services: The settings of its `HAConfig`.
        token: What it shows the proxy.
        job_id: What it asks.
        state_name: What it asks.
        key: What it asks.
        manner: ``waits`` as long as it is told to; asks again ``at once``; or asks
            ``nothing`` and is merely busy, which is what the others are held against.
    """

    services: dict[str, Any]
    token: str
    job_id: str
    state_name: str
    key: str
    manner: Literal["waits", "at once", "nothing"]


@define(kw_only=True)
class Tally:
    """
    What it was told.

    Attributes:
        answered: How often it was answered.
        limited: How often it was told that this is too often.
        early: How often it was told so again, having waited as long as it was told to.
        failed: How often it was told anything else.
    """

    answered: int = 0
    limited: int = 0
    early: int = 0
    failed: int = 0


def ask(
    client: QueryableStateClient, settings: GreedySettings, seconds: float
) -> Tally:
    """Ask for so long; return what came of it."""
    tally = Tally()
    pause = threading.Event()  # is never set: it waits
    has_waited = False
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if settings.manner == "nothing":
            continue
        try:
            client.get(settings.job_id, settings.state_name, settings.key)
        except RateLimitedError as error:
            tally.limited += 1
            tally.early += has_waited
            has_waited = settings.manner == "waits"
            if has_waited:
                pause.wait(error.retry_after_seconds + _MARGIN_SECONDS)
        except NameServiceError:
            tally.failed += 1
        else:
            tally.answered += 1
            has_waited = False
    return tally


def main() -> None:
    """Ask as often as told to, until the input ends."""
    configure_logging("warning")
    settings = GreedySettings(**json.loads(sys.argv[1]))
    config = HAConfig(**settings.services)
    with QueryableStateClient(config, settings.token) as client:
        print("ready", flush=True)
        for line in sys.stdin:
            tally = ask(client, settings, float(line))
            print(
                json.dumps(
                    {
                        "answered": tally.answered,
                        "limited": tally.limited,
                        "early": tally.early,
                        "failed": tally.failed,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
