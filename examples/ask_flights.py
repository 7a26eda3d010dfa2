"""
Ask a running job for an aircraft; needs no Spark, and knows no executor.

Run it as ``python examples/ask_flights.py leaderserver://127.0.0.1:5170 N14228``.
"""

from __future__ import annotations

import sys

from nameservice import StateUnavailableError, UnknownKeyError
from queryablestate import QueryableStateClient


def tell(client: QueryableStateClient, tailnum: str) -> None:
    """Print what the job knows of one aircraft, and as of when."""
    try:
        found = client.lookup("flights", "aircraft", tailnum)
    except UnknownKeyError:
        print(f"{tailnum} has not flown")
    except StateUnavailableError as error:
        print(f"ask again in {error.retry_after_seconds} s: {error}")
    else:
        aircraft = found.value
        print(
            f"{tailnum}: {aircraft['flights']} flights, {aircraft['miles']} miles, "
            f"last seen in {aircraft['last_dest']} "
            f"(batch {found.batch_id}, {found.age_seconds:.1f} s ago)"
        )


if __name__ == "__main__":
    url, tailnum = sys.argv[1:]
    with QueryableStateClient(url) as client:
        client.wait_for_state("flights", "aircraft", timeout_seconds=120)
        tell(client, tailnum)

        fleet = client.get_many("flights", "aircraft", ["N14228", "N24211", "N0"])
        print(f"{len(fleet)} of 3 aircraft have flown")

        for key, aircraft in client.scan("flights", "aircraft", prefix="N1", limit=3):
            print(f"{key} has flown {aircraft['flights']} times")
