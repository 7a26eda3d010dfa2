"""The console in a browser over a million keys, some of them odd, and over 50 nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from haservices import open_ha_services
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.console.browsing import (
    WAIT_MS,
    ColorScheme,
    chromium,
    opened,
)


pytestmark = [
    pytest.mark.shells,
    pytest.mark.browser,
    pytest.mark.nightly,
    pytest.mark.proves("F5"),
]

COUNT: Final = 1_000_000
LOOKS: Final[tuple[tuple[int, ColorScheme], ...]] = ((1_280, "light"), (360, "dark"))
ODD: Final = (
    "<img src=x onerror='window.isHacked = true'>",
    '"><script>window.isHacked = true</script>',
    "a/b c?d#e%f&g",
    "'; DROP TABLE x; --",
    "ü😀\n\t",
)
SCHEMA: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("name", AtomicType.STRING),),
    value=(Field("number", AtomicType.INT), Field("text", AtomicType.STRING)),
)
STATE: Final = "/console/jobs/large/states/names"


def write_all(publisher: Publisher) -> None:
    """Write a million rows in ten batches, and the odd ones."""
    step = COUNT // 10
    for first in range(0, COUNT, step):
        names = [(f"n{n:07}", n, None) for n in range(first, first + step)]
        publisher.write({"names": names})
    publisher.write({"names": [(name, 7, name) for name in ODD]})


def test_it_is_browsed_like_any_other(tmp_path: Path) -> None:
    """A value is found, pages follow, charts say how far they go; text is text."""
    url = f"embedded:large-{tmp_path.name}"
    with (
        open_ha_services(url) as ha,
        LocalStateCluster(ha, nodes=2),
        GatewayServer(ha, GatewayConfig()) as gateway,
        chromium() as browser,
        opened(browser, width=1_280, scheme="light") as page,
    ):
        write_all(Publisher(ha, "large", {"names": SCHEMA}))
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{gateway.url}{STATE}")
        page.get_by_label("name", exact=False).first.fill("n0765432")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("[data-value] td").first).to_have_text("765432")

        page.goto(f"{gateway.url}{STATE}/rows?prefix=n05")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(50)
        expect(rows.first).to_contain_text("n0500000")
        page.get_by_role("link", name="Next page").click()
        expect(rows.first).to_contain_text("n0500050")

        page.goto(f"{gateway.url}{STATE}/chart?column=number&kind=bars")
        expect(page.locator("main")).to_contain_text("Not over all rows: over ")

        for name in ODD:
            check_odd(page, gateway.url, name)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_fifty_nodes_are_on_a_page(width: int, scheme: ColorScheme) -> None:
    """All of them, with their key groups, and no wider than the window."""
    with (
        open_ha_services(f"embedded:fifty-{width}") as ha,
        LocalStateCluster(ha, nodes=50),
        GatewayServer(ha, GatewayConfig()) as gateway,
        chromium() as browser,
        opened(browser, width=width, scheme=scheme) as page,
    ):
        Publisher(ha, "large", {"names": SCHEMA}).write({"names": [("n", 1, None)]})
        page.goto(f"{gateway.url}/console/nodes")
        expect(page.locator(".tiles > *")).to_have_count(50)
        expect(page.locator("tbody tr")).to_have_count(50)
        assert page.evaluate(
            "document.documentElement.scrollWidth <= window.innerWidth"
        )


def check_odd(page: Page, url: str, name: str) -> None:
    """See that a key is shown as the text that it is."""
    page.goto(f"{url}{STATE}/keys/{quote(json.dumps(name), safe='')}")
    expect(page.locator("[data-value] td").first).to_have_text("7")
    shown = page.locator("[data-value] td").nth(1).text_content()
    assert shown == name
    assert page.evaluate("window.isHacked") is None
