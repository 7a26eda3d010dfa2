"""
Lead job ``flights`` on whichever name service the configuration names.

Nothing here knows the backend: change ``url`` in cluster.toml, or set ``LODESTAR_URL``.
"""

from __future__ import annotations

from pathlib import Path

from haservices import HAConfig, campaign, open_ha_services


if __name__ == "__main__":
    config = HAConfig.load(Path(__file__).with_name("cluster.toml"))
    with (
        open_ha_services(config) as ha,
        campaign(ha, "flights", "10.0.0.7:8000", timeout_seconds=30) as leadership,
        ha.get_leader_retriever("flights") as retriever,
    ):
        leader = retriever.wait_for_leader(timeout_seconds=10)
        print(f"{config.url}: {leader.address} leads under epoch {leadership.epoch}")
