"""The console as people use it: in a browser, wide and narrow, light and dark."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from haservices import HAConfig, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from queryablestate import NodeConfig, QueryableStateClient, StateNode
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.operations.state_operations import StateOperations
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
)
from tests.lodestar.publishing import Publisher
from tests.lodestar.running import Running
from tests.queryablestate.gateway.asking import Asker
from tests.queryablestate.gateway.console.browsing import (
    WAIT_MS,
    ColorScheme,
    chromium,
    opened,
)


pytestmark = [pytest.mark.shells, pytest.mark.browser, pytest.mark.proves("F5")]

SCHEMA: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("delay", AtomicType.INT), Field("seen", AtomicType.BIGINT)),
)
NAMES: Final = [f"N{number:03}" for number in range(120)]
# The largest whole number of 64 bits: no double holds it.
MOST: Final = 2**63 - 1
STATE: Final = "/console/jobs/flights/states/aircraft"
KEY: Final = f"{STATE}/keys/%22N007%22"
PAGES: Final = (
    "/console/",
    STATE,
    f"{STATE}/rows",
    f"{STATE}/chart?kind=bars",
    f"{STATE}/chart?kind=histogram",
    KEY,
    "/console/leaders",
    "/console/nodes",
    "/console/sign-in",
    "/console/nix",
    f"{STATE}/keys/%22nix%22",
)
LOOKS: Final[tuple[tuple[int, ColorScheme], ...]] = ((1_280, "light"), (360, "dark"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return chromium, for all tests of this file."""
    with chromium() as found:
        yield found


@frozen
class Stage:
    """A cluster whose proxies are processes of their own."""

    config: HAConfig
    url: str
    leading: Running
    nodes: Sequence[Running]
    publisher: Publisher
    server: LeaderServer

    def write(self, delay: int) -> int:
        """Write the same delay for every aircraft; return the batch."""
        return self.publisher.write({"aircraft": [(n, delay, MOST) for n in NAMES]})


@contextlib.contextmanager
def node_process(url: str, directory: Path) -> Iterator[Running]:
    """Yield a node that is a process, once it serves."""
    options = ("--node-id", "node-1", "--data-dir", str(directory / "node-1"))
    with Running("node", "--url", url, *options) as node:
        node.out.until("serving ")
        yield node


@contextlib.contextmanager
def staged(directory: Path, *, is_node_a_process: bool = False) -> Iterator[Stage]:
    """
    Yield a cluster with two proxies, of which the first one leads.

    Args:
        directory: Where rows go.
        is_node_a_process: Whether there is one node, which can be killed; else two.
    """
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            LeaderServer(
                ServerConfig(
                    bind="tcp://127.0.0.1:0", data_dir=str(directory / "names")
                )
            )
        )
        ha = stack.enter_context(open_ha_services(server.url))
        at = ("--url", server.url, "--bind", "tcp://127.0.0.1:0")
        leading = stack.enter_context(Running("proxy", *at, LODESTAR_LEASE_SECONDS="1"))
        leading.err.until("leadership.confirmed")
        waiting = stack.enter_context(Running("proxy", *at, LODESTAR_LEASE_SECONDS="1"))
        waiting.err.until("proxy.started")
        nodes = []
        if is_node_a_process:
            nodes.append(stack.enter_context(node_process(server.url, directory)))
        for number in () if is_node_a_process else (1, 2):
            name = f"node-{number}"
            node_config = NodeConfig(data_dir=directory / name, node_id=name)
            node = stack.enter_context(StateNode(ha, node_config))
            node.wait_until_registered(60.0)
        gateway = stack.enter_context(GatewayServer(ha, GatewayConfig()))
        config = HAConfig(url=server.url)
        publisher = Publisher(config, "flights", {"aircraft": SCHEMA})
        stage = Stage(config, gateway.url, leading, nodes, publisher, server)
        stage.write(0)
        yield stage


@pytest.fixture(scope="module")
def stage(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Return a cluster for the tests that leave it as it is."""
    with staged(tmp_path_factory.mktemp("stage")) as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
class TestLooks:
    def test_no_page_shuts_anybody_out(
        self, browser: Browser, stage: Stage, width: int, scheme: ColorScheme
    ) -> None:
        """axe-core has nothing serious to say, and nothing is wider than the window."""
        with opened(browser, width=width, scheme=scheme) as page:
            for path in PAGES:
                page.goto(stage.url + path)
                if path == KEY:
                    expect(page.locator("[data-notes]")).to_contain_text("Watching")
                found = Axe().run(page).response["violations"]
                serious = [
                    (path, one["id"], [node["html"] for node in one["nodes"]])
                    for one in found
                    if one["impact"] in {"serious", "critical"}
                ]
                assert serious == []
                is_wide = page.evaluate(
                    "document.documentElement.scrollWidth > window.innerWidth"
                )
                assert not is_wide, path

    def test_a_value_is_found_and_changes(
        self, browser: Browser, stage: Stage, width: int, scheme: ColorScheme
    ) -> None:
        """From the overview to a key, by clicks; then it changes by itself."""
        with opened(browser, width=width, scheme=scheme) as page:
            page.goto(stage.url)
            page.get_by_role("link", name="aircraft").click()
            page.get_by_label("tailnum").fill("N042")
            page.get_by_role("button", name="Find").click()
            expect(page.locator("h1")).to_contain_text("N042")
            expect(page.locator("[data-notes]")).to_contain_text("Watching")
            for delay in (width, width + 5):
                batch_id = stage.write(delay)
                expect(cell(page, 0)).to_have_text(str(delay))
                # As it was written: a double would end in 808.
                expect(cell(page, 1)).to_have_text(str(MOST))
                assert [line_count(cell(page, place)) for place in (0, 1)] == [1, 1]
                expect(page.locator("[data-batch]")).to_have_text(str(batch_id))
            expect(page.locator("[data-log] li")).to_have_count(2)
            expect(page.locator("[data-chart] circle")).to_have_count(3)
            label = page.locator("[data-chart]").get_attribute("aria-label")
            assert label is not None
            assert "3 values, from " in label
            assert f" to {width + 5}, " in label


def line_count(shown: Locator) -> int:
    """Return how many lines the text of an element takes: a number is one."""
    found = shown.evaluate(
        "one => { const range = document.createRange();"
        " range.selectNodeContents(one); return range.getClientRects().length; }"
    )
    return int(found)


def cell(page: Page, place: int) -> Locator:
    """Return a cell of the value that is shown."""
    return page.locator("[data-value] td").nth(place)


class TestWays:
    def test_by_keyboard(self, browser: Browser, stage: Stage) -> None:
        """From the first key that is pressed to the value."""
        with opened(browser, width=1_280, scheme="light") as page:
            page.goto(stage.url + STATE)
            page.keyboard.press("Tab")
            expect(page.locator(":focus")).to_have_text("To the content")
            page.keyboard.press("Enter")
            for _ in range(3):  # two links that say where this is, then the input
                page.keyboard.press("Tab")
                if page.locator(":focus").get_attribute("name") == "k0":
                    break
            page.keyboard.type("N001")
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_contain_text("N001")

    def test_without_javascript(self, browser: Browser, stage: Stage) -> None:
        """Everything but what is live."""
        with opened(browser, width=360, scheme="light", has_scripts=False) as page:
            page.goto(stage.url)
            page.get_by_role("link", name="aircraft").click()
            page.get_by_role("link", name="Chart how values").click()
            page.get_by_role("button", name="Draw").click()
            expect(page.locator("rect").first).to_be_attached()
            page.goto(stage.url + STATE)
            page.get_by_label("tailnum").fill("N007")
            page.get_by_role("button", name="Find").click()
            expect(page.get_by_role("link", name="Read it again")).to_be_visible()
            expect(page.locator("[data-value] td").first).to_be_visible()

    def test_signing_in_and_out(self, browser: Browser, stage: Stage) -> None:
        """By the form, as a browser sends it; no script can read the token."""
        with opened(browser, width=360, scheme="dark") as page:
            page.goto(f"{stage.url}/console/sign-in?target=/console/nodes")
            page.get_by_label("Token").fill("a-token")
            page.get_by_role("button", name="Sign in").click()
            expect(page.locator("h1")).to_contain_text("Nodes")
            assert page.evaluate("document.cookie") == ""
            page.get_by_role("button", name="Sign out").click()
            expect(page.locator("h1")).to_have_text("Sign in")
            assert page.context.cookies() == []

    def test_a_page_is_fresh_until_it_is_paused(
        self, browser: Browser, stage: Stage
    ) -> None:
        """A job that comes is shown by itself, and said aloud."""
        with opened(browser, width=1_280, scheme="light") as page:
            page.goto(stage.url)
            expect(page.locator("section")).to_have_count(1)
            weather = Publisher(stage.config, "weather", {"w": SCHEMA})
            weather.write({"w": [("a", 1, 1)]})
            expect(page.get_by_role("heading", name="weather")).to_be_visible()
            expect(page.get_by_role("status")).to_contain_text("2 jobs, 2 states")
            page.get_by_role("button", name="Pause").click()
            pressed = page.get_by_role("button", name="Go on")
            assert pressed.get_attribute("aria-pressed") == "true"


class TestValues:
    def test_a_whole_number_within_another_value(self, browser: Browser) -> None:
        """What is live says all of its digits, as the page does that was sent."""
        inner = StructType((Field("n", AtomicType.BIGINT),))
        columns: tuple[DataType, ...] = (
            inner,
            ArrayType(AtomicType.BIGINT),
            MapType(inner, inner),
        )
        schema = StateSchema(
            kind=StateKind.VALUE,
            key=(Field("name", AtomicType.STRING),),
            value=tuple(Field(f"v{place}", one) for place, one in enumerate(columns)),
        )
        struct = {"n": MOST}
        row = ("a", struct, [MOST, -MOST], {(MOST,): struct})
        with (
            published({"nested": schema}) as (url, _, publisher),
            opened(browser, width=1_280, scheme="light") as page,
        ):
            publisher.write({"nested": [row]})
            page.goto(f"{url}/console/jobs/flights/states/nested/keys/%22a%22")
            expect(page.locator("[data-notes]")).to_contain_text("Watching")
            expect(cell(page, 0)).to_have_text(f'{{"n":{MOST}}}')
            expect(cell(page, 1)).to_have_text(f"[{MOST},-{MOST}]")
            expect(cell(page, 2)).to_have_text(f'[[{{"n":{MOST}}},{{"n":{MOST}}}]]')

    def test_a_state_gets_other_columns(self, browser: Browser) -> None:
        """The page does not show them under the old ones: it says what to do."""
        (key,) = SCHEMA.key
        wider = StateSchema(
            kind=StateKind.VALUE,
            key=(key,),
            value=(*SCHEMA.value, Field("more", AtomicType.INT)),
        )
        with (
            published({"aircraft": SCHEMA}) as (url, _, publisher),
            opened(browser, width=1_280, scheme="light") as page,
        ):
            publisher.write({"aircraft": [("N007", 1, MOST)]})
            page.goto(url + KEY)
            expect(page.get_by_role("status")).to_have_text("Live.")
            publisher.restart({"aircraft": wider})
            publisher.write({"aircraft": [("N007", 2, MOST, 3)]})
            trouble = page.locator("[data-trouble]")
            expect(trouble).to_contain_text("other columns")
            expect(page.get_by_role("status")).to_have_text("Not live.")
            page.reload()
            expect(cell(page, 2)).to_have_text("3")
            expect(page.get_by_role("status")).to_have_text("Live.")
            expect(trouble).to_be_hidden()

    def test_a_state_becomes_one_of_another_kind(self, browser: Browser) -> None:
        """Behind another tab the page hears of nothing, and then of another state."""
        listed = StateSchema(kind=StateKind.LIST, key=SCHEMA.key, value=SCHEMA.value)
        with (
            published({"aircraft": listed}) as (url, config, publisher),
            opened(browser, width=1_280, scheme="light") as page,
        ):
            publisher.write({"aircraft": [("N007", 1, MOST)]})
            page.goto(url + KEY)
            expect(page.get_by_role("status")).to_have_text("Live.")
            turn(page, "true")
            with StateOperations(config) as operations:
                operations.drop_state("flights", "aircraft")
            other = Publisher(config, "flights", {"aircraft": SCHEMA})
            other.write({"aircraft": [("N007", 2, MOST)]})
            turn(page, "false")
            expect(page.locator("[data-trouble]")).to_contain_text("of another kind")
            expect(page.get_by_role("status")).to_have_text("Not live.")

    def test_a_key_that_cannot_be_watched_at_first(self, browser: Browser) -> None:
        """
        A browser gives a watch up that was answered with a problem; the page does not.

        So it is while no proxy leads, a gateway has much to do, or one that balances
        them knows of none: what passes needs no reader who reads the page again.
        """
        with (
            published({"aircraft": SCHEMA}, watch_count_max=1) as (url, _, publisher),
            opened(browser, width=1_280, scheme="light") as page,
        ):
            publisher.write({"aircraft": [("N007", 1, MOST)]})
            with Asker(url).watch(f"{KEY}/watch?json_key=true") as only:
                assert only.next().name == "value"
                page.goto(url + KEY)
                expect(page.get_by_role("status")).to_have_text("Not live.")
                trouble = page.locator("[data-trouble]")
                expect(trouble).to_contain_text("asked for again by itself")
            expect(page.get_by_role("status")).to_have_text("Live.")
            expect(trouble).to_be_hidden()
            publisher.write({"aircraft": [("N007", 2, MOST)]})
            expect(cell(page, 0)).to_have_text("2")


def turn(page: Page, is_hidden: str) -> None:
    """Have *page* believe that it is behind another tab, or no more."""
    page.evaluate(
        "Object.defineProperty(document, 'hidden',"
        f" {{ value: {is_hidden}, configurable: true }});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


@contextlib.contextmanager
def published(
    states: dict[str, StateSchema], *, watch_count_max: int = 100
) -> Iterator[tuple[str, HAConfig, Publisher]]:
    """Yield a gateway's URL, the name service, and what writes states of a job."""
    gateway_config = GatewayConfig(
        park_seconds=1.0, watch_count_per_caller_max=watch_count_max
    )
    config = HAConfig(url=f"embedded:console-{uuid.uuid4()}")
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha),
        GatewayServer(ha, gateway_config) as gateway,
    ):
        yield gateway.url, config, Publisher(config, "flights", states)


class TestFailures:
    def test_the_proxy_leader_is_killed(self, browser: Browser, tmp_path: Path) -> None:
        """The page says so and goes on, while a publisher does; nothing is lost."""
        with (
            staged(tmp_path) as stage,
            opened(browser, width=1_280, scheme="dark") as page,
        ):
            page.goto(stage.url + KEY)
            expect(page.locator("[data-notes]")).to_contain_text("Watching")
            is_over = threading.Event()
            written: list[int] = []

            def publish() -> None:
                while not is_over.is_set():
                    stage.write(len(written) + 1)
                    written.append(len(written) + 1)

            publishing = threading.Thread(target=publish)
            publishing.start()
            try:
                expect(cell(page, 0)).not_to_have_text("0")
                stage.leading.process.kill()
                notes = page.locator("[data-notes]")
                expect(notes).to_contain_text("leads now, epoch", timeout=WAIT_MS)
                expect(page.get_by_role("status")).to_contain_text("Another proxy")
                place = len(written)
                page.wait_for_function(
                    "least => Number("
                    "document.querySelector('[data-value] td').textContent) > least",
                    arg=place,
                    timeout=WAIT_MS,
                )
            finally:
                is_over.set()
                publishing.join()
            expect(cell(page, 0)).to_have_text(str(written[-1]))
            with QueryableStateClient(stage.config) as client:
                value = client.get("flights", "aircraft", "N007")
            assert value == {"delay": written[-1], "seen": MOST}
            page.goto(f"{stage.url}/console/leaders")
            rows = page.locator("details", has_text="QUERY_PROXY").locator("tbody tr")
            expect(rows).to_have_count(2)

    def test_a_node_is_killed(self, browser: Browser, tmp_path: Path) -> None:
        """The page says which one is away, and goes on when it is back."""
        with (
            staged(tmp_path, is_node_a_process=True) as stage,
            opened(browser, width=360, scheme="light") as page,
        ):
            page.goto(stage.url + KEY)
            expect(page.locator("[data-notes]")).to_contain_text("Watching")
            stage.write(1)
            expect(cell(page, 0)).to_have_text("1")
            stage.nodes[0].process.kill()
            trouble = page.locator("[data-trouble]")
            expect(trouble).to_contain_text("node node-1 is away", timeout=WAIT_MS)
            expect(cell(page, 0)).to_have_text("1")  # what it has shown stays
            with opened(browser, width=1_280, scheme="dark") as other:
                other.goto(f"{stage.url}/console/nodes")
                expect(other.get_by_text("node-1 is away")).to_be_visible()
            with node_process(stage.server.url, tmp_path):
                expect(trouble).to_be_hidden(timeout=WAIT_MS)
                batch_id = stage.write(2)
                expect(cell(page, 0)).to_have_text("2", timeout=WAIT_MS)
                expect(page.locator("[data-batch]")).to_have_text(str(batch_id))

    def test_the_gateway_ends(self, browser: Browser, reserved: ReservedPort) -> None:
        """The page keeps what it shows, says so, and comes back with the gateway."""
        config = GatewayConfig(bind=f"127.0.0.1:{reserved.port}")
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            opened(browser, width=360, scheme="light") as page,
        ):
            with GatewayServer(ha, config) as gateway:
                page.goto(f"{gateway.url}/console/leaders")
                expect(page.locator("tbody th").first).to_be_visible()
            status = page.get_by_role("status")
            expect(status).to_contain_text("The gateway does not answer")
            expect(page.locator("tbody th").first).to_be_visible()
            with GatewayServer(ha, config):
                expect(status).to_contain_text("1 leader of 1 component")
