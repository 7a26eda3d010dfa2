"""
Plot how late each carrier is, from a running job; needs matplotlib, and no Spark.

Run it as ``python examples/plot_delays.py leaderserver://127.0.0.1:5170 delays.svg``
while ``make demo KEEP=1`` is up.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt

from queryablestate import QueryableStateClient


# %% Ask: one row for each carrier, as of the batch that was committed last.
url, file = sys.argv[1:]
with QueryableStateClient(url) as client:
    table = client.table(
        "flights", "carriers", columns=["carrier", "arrived", "arrival_delay"]
    )

# %% Compute: minutes for each flight that arrived.
carriers = table.to_pandas().set_index("carrier").query("arrived > 0")
delays = (carriers["arrival_delay"] / carriers["arrived"]).sort_values()

# %% Plot.
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
colours = ["tab:green" if delay <= 0 else "tab:red" for delay in delays]
axes.bar(delays.index, delays, color=colours)
axes.axhline(0, color="black", linewidth=0.8)
axes.set_ylabel("mean arrival delay [min]")
batch_id = table.schema.metadata[b"lodestar.batch_id"].decode()
axes.set_title(
    f"{carriers['arrived'].sum():,} flights of {len(carriers)} carriers, "
    f"as of batch {batch_id} or later"
)
figure.savefig(file)
