"""
Draw the pictures of the console in docs/images: ``python -m scripts.draw_console``.

Needs chromium, and what `make setup` installs.  The numbers are made up, the same each
time; ages and times of day are those of the moment.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Final, Literal, NamedTuple

from playwright.sync_api import Page, expect

from haservices import open_ha_services
from queryablestate import StateOperations
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.console.browsing import chromium, opened


DIRECTORY: Final = Path(__file__).parent.parent / "docs" / "images"
AIRCRAFT: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(
        Field("flights", AtomicType.INT),
        Field("worst_delay", AtomicType.INT),
        Field("last_dest", AtomicType.STRING),
    ),
)
CARRIERS: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("carrier", AtomicType.STRING),),
    value=(Field("arrived", AtomicType.INT), Field("arrival_delay", AtomicType.INT)),
)
NAMES: Final = [f"N{number}" for number in range(14_000, 14_400)]
BATCH_COUNT: Final = 9
STATE: Final = "/console/jobs/flights/states/aircraft"
KEY: Final = f"{STATE}/keys/%22N14228%22"


class Picture(NamedTuple):
    """One picture: its name, the page, and how that is looked at."""

    name: str
    path: str
    width: int
    height: int
    scheme: Literal["light", "dark"]


PICTURES: Final = (
    Picture("console-key", KEY, 960, 780, "light"),
    Picture("console-chart", f"{STATE}/chart?column=worst_delay", 960, 680, "dark"),
    Picture("console-nodes", "/console/nodes", 960, 860, "light"),
    Picture("console-phone", KEY, 360, 740, "dark"),
)


def publish(publisher: Publisher, dice: random.Random) -> None:
    """Write the next batch: each aircraft has flown, and may have been late."""
    publisher.write(
        {
            "aircraft": [
                (
                    name,
                    dice.randrange(1, 30),
                    max(0, round(dice.gauss(45, 40))),
                    dice.choice(["BOS", "CLE", "IAH", "SFO", "TPA"]),
                )
                for name in NAMES
            ],
            "carriers": [
                (name, dice.randrange(200), dice.randrange(9_000))
                for name in ("AA", "B6", "UA")
            ],
        }
    )


def draw(page: Page, picture: Picture, publisher: Publisher) -> None:
    """Look at a page until it shows what it should, and write the picture."""
    dice = random.Random(4)  # noqa: S311 (nothing is to be kept secret)
    page.set_viewport_size({"width": picture.width, "height": picture.height})
    if picture.path == KEY:
        lines = page.locator("[data-log] li")
        expect(page.locator("[data-notes]")).to_contain_text("Watching")
        for number in range(BATCH_COUNT):
            publish(publisher, dice)
            expect(lines).to_have_count(number + 1)
    page.screenshot(path=DIRECTORY / f"{picture.name}.png")


def main() -> int:
    """Draw all of them."""
    with (
        chromium() as browser,
        open_ha_services("embedded:pictures") as ha,
        LocalStateCluster(ha, nodes=3, replicas=2) as cluster,
        GatewayServer(ha, GatewayConfig()) as gateway,
        StateOperations(ha) as operations,
    ):
        publisher = Publisher(
            ha, "flights", {"aircraft": AIRCRAFT, "carriers": CARRIERS}
        )
        publish(publisher, random.Random(3))  # noqa: S311 (as above)
        cluster.add_node()
        operations.rescale("flights", node_count=4)
        operations.wait_until_rescaled("flights", timeout_seconds=60.0)
        for picture in PICTURES:
            with opened(browser, width=picture.width, scheme=picture.scheme) as page:
                page.goto(gateway.url + picture.path)
                draw(page, picture, publisher)
    return 0


if __name__ == "__main__":
    sys.exit(main())
