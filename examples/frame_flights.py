"""
Sum up what a running job knows with pandas; needs no Spark.

Run it as ``python examples/frame_flights.py leaderserver://127.0.0.1:5170``.
"""

from __future__ import annotations

import sys

from queryablestate import QueryableStateClient


if __name__ == "__main__":
    (url,) = sys.argv[1:]
    with QueryableStateClient(url) as client:
        table = client.table("flights", "aircraft", columns=["last_dest", "flights"])

    aircraft = table.to_pandas()
    by_airport = aircraft.groupby("last_dest")["flights"].sum()
    print(by_airport.sort_values(ascending=False).head(10).to_string())

    as_of = table.schema.metadata
    print(
        f"of {len(aircraft)} aircraft, as of batch "
        f"{as_of[b'lodestar.batch_id'].decode()} or later"
    )
