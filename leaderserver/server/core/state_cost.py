"""What sessions, contenders, subscriptions and the like cost in memory; pure."""

from __future__ import annotations

from typing import Final

from election.core import ElectionCore
from leaderserver.server.core.client_table import ClientTable
from leaderserver.server.core.memory_plan import (
    COMPONENT_COST_BYTES,
    CONTENDER_COST_BYTES,
    SESSION_COST_BYTES,
    SUBSCRIPTION_COST_BYTES,
    WATCH_COST_BYTES,
    name_cost_bytes,
)
from leaderserver.server.core.store_watches import StoreWatches
from leaderserver.server.core.subscriptions import Subscriptions


__all__ = ["NO_ROOM", "state_cost_bytes"]

NO_ROOM: Final = "the server has no memory left for more of this"


def state_cost_bytes(
    clients: ClientTable,
    core: ElectionCore,
    subscriptions: Subscriptions,
    watches: StoreWatches,
) -> int:
    """Return what all that clients have had us keep costs."""
    # A client may call itself what it likes, but seldom uses that.
    name_bytes = name_cost_bytes(" " * 64)
    cost_bytes = len(clients) * (SESSION_COST_BYTES + name_bytes)
    for component in core.components:
        name_bytes = name_cost_bytes(component.component_id)
        cost_bytes += COMPONENT_COST_BYTES + name_bytes
        cost_bytes += len(component.contenders) * (CONTENDER_COST_BYTES + name_bytes)
    for component_id, count in subscriptions.counts():
        cost_bytes += count * (SUBSCRIPTION_COST_BYTES + name_cost_bytes(component_id))
    for component_id, count in watches.counts():
        cost_bytes += count * (WATCH_COST_BYTES + name_cost_bytes(component_id))
    return cost_bytes
