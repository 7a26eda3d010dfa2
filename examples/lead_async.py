"""
Lead a job from an asyncio application, for as long as it lasts, and then again.

Start it twice::

    lodestar server --bind tcp://127.0.0.1:5170
    python -m examples.lead_async leaderserver://127.0.0.1:5170 10.0.0.7:8000
"""

from __future__ import annotations

import asyncio
import sys

from haservices import AsyncLeadership, HAServices, campaign_async, open_ha_services
from nameservice import LeadershipLostError


async def work(ha: HAServices, leadership: AsyncLeadership) -> None:
    """Do the leader's work, fenced by its epoch."""
    store = ha.get_leader_store("flights")

    async def save() -> None:
        # The store blocks, and the loop does not: a revocation waits for this.
        await asyncio.to_thread(
            store.put, "totals/UA", b"58665", session=leadership.session
        )

    while True:
        leadership.check()
        await leadership.run_if_leader(save)
        print(f"saved under epoch {leadership.epoch}", flush=True)
        await asyncio.sleep(1)


async def lead_once(ha: HAServices, address: str) -> None:
    """Wait for our turn, work while we lead, and stop as soon as that is over."""
    async with campaign_async(ha, "flights", address) as leadership:
        print(f"leading under epoch {leadership.epoch}", flush=True)
        working = asyncio.create_task(work(ha, leadership))
        lost = asyncio.create_task(leadership.lost.wait())
        try:
            await asyncio.wait((working, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            working.cancel()
        try:
            await working
        except (asyncio.CancelledError, LeadershipLostError):
            print("leading no more", flush=True)


async def main(url: str, address: str) -> None:
    """Lead again and again, until the process is stopped."""
    ha = await asyncio.to_thread(open_ha_services, url)
    try:
        while True:
            await lead_once(ha, address)
    finally:
        await asyncio.to_thread(ha.close)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(0)
