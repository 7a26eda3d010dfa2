"""The console over HTTP: every page, its escaping, its errors, and who is signed in."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import pytest
import structlog

from haservices import HAConfig, open_ha_services
from queryablestate import (
    DeadlineExceededError,
    NodeConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
    StateUnavailableError,
    token_sha256,
)
from queryablestate.connect.tokens import generate_token
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.gateway.console.pages import POLICY
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.proxy.config_toml import parse_proxy_config
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.asking import Answer, Asker
from tests.queryablestate.gateway.conftest import ODD_NAMES, Served
from tests.queryablestate.gateway.console.reading import Page
from tests.recording import wait_until


pytestmark = [pytest.mark.shells, pytest.mark.proves("F5")]

_numbers = itertools.count(1)
FLIGHTS: Final = "/console/jobs/flights/states"
AIRCRAFT: Final = f"{FLIGHTS}/aircraft"
ODD: Final = f"{FLIGHTS}/{quote('odd: ü&?')}"

EVIL_JOB: Final = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
EVIL_STATE: Final = '"><script>alert(2)<\\script>'
EVIL_KEY: Final = "</td></main><script>alert(3)</script>{{7*7}}"
EVIL_VALUE: Final = "'\"><svg onload=alert(4)>"
EVIL_COLUMN: Final = '<b onclick="alert(5)">'


def page_of(answer: Answer, status: int = 200) -> Page:
    """Return the page that was answered, with the headers that keep it safe."""
    assert answer.status == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    page = Page(answer.body)
    # Everything is of this host, and no page holds a script or a style itself.
    assert [
        one.get("src", "").partition("?")[0] for one in page.attributes("script")
    ] == ["/console/static/console.js"]
    assert page.attributes("style") == []
    for _, given, _, _ in page.elements:
        assert [
            name for name in given if name.startswith("on") or name == "style"
        ] == []
        for name in ("src", "href", "action"):
            assert re.match(r"[/#](?!/)|$", given.get(name, ""))
    # What readers of the page without eyes go by.
    assert len(page.attributes("main")) == 1
    assert len(page.texts("h1")) == 1
    labelled = {one["for"] for one in page.attributes("label")}
    for name in ("input", "select"):
        for given in page.attributes(name):
            assert given.get("type") == "hidden" or given["id"] in labelled
    return page


@pytest.fixture(scope="module")
def evil() -> Iterator[Asker]:
    """Return what asks a gateway whose every name tries to be a script."""
    config = HAConfig(url=f"embedded:console-{next(_numbers)}")
    schema = StateSchema(
        kind=StateKind.MAP,
        key=(Field(EVIL_COLUMN, AtomicType.STRING),),
        map_key=(Field("m", AtomicType.STRING),),
        value=(Field("v", AtomicType.STRING), Field("n", AtomicType.INT)),
    )
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha, nodes=1),
        GatewayServer(ha, GatewayConfig()) as gateway,
    ):
        Publisher(config, EVIL_JOB, {EVIL_STATE: schema}).write(
            {EVIL_STATE: [(EVIL_KEY, EVIL_VALUE, EVIL_VALUE, 1)]}
        )
        yield Asker(gateway.url)


class TestPages:
    def test_the_root_leads_to_them(self, ask: Asker) -> None:
        """Without a slash, too."""
        for path in ("/", "/console"):
            answer = ask.get(path)
            assert (answer.status, answer.headers["location"]) == (302, "/console/")

    def test_the_overview_says_what_there_is(self, ask: Asker) -> None:
        """Kind, key, batch, and that it answers."""
        page = page_of(ask.get("/console/"))
        assert page.texts("section h2") == ["flights"]
        assert "odd: ü&?" in page.text
        assert page.texts("tbody tr")[0].startswith("aircraft value tailnum 0 ")
        assert page.texts("tbody tr")[0].endswith("answers")

    def test_every_link_leads_to_a_page(self, ask: Asker) -> None:
        """Of every page that can be reached from the overview."""
        seen, pending = {"/console/"}, ["/console/"]
        while pending:
            page = page_of(ask.get(pending.pop()))
            # Of hundreds of keys a few will do.
            ours = [link for link in page.links() if link.startswith("/console")][:30]
            new = {link for link in ours if len(seen) < 120} - seen
            seen |= new
            pending += sorted(new)
        kinds = ("/rows", "/chart?kind=bars", "/chart?kind=histogram", "/keys/")
        assert all(any(kind in link for link in seen) for kind in kinds)

    def test_a_state_says_its_columns(self, ask: Asker) -> None:
        """With their types, and an input for each column of the key."""
        page = page_of(ask.get(f"{FLIGHTS}/log"))
        assert page.texts("tbody tr") == [
            "carrier string key",
            "day date key",
            "event string value",
            "fare decimal(9,2) value",
        ]
        names = [one["name"] for one in page.attributes("input")]
        assert names == ["k0", "k1"]

    def test_files_are_kept_by_browsers(self, ask: Asker) -> None:
        """Their address changes with what is in them."""
        page = page_of(ask.get("/console/"))
        for path in [one["href"] for one in page.attributes("link")]:
            answer = ask.get(path)
            assert answer.status == 200
            assert "immutable" in answer.headers["cache-control"]
        page_of(ask.get("/console/static/nix"), 404)

    @pytest.mark.parametrize("query", ["?v=0123456789abcdef", "?v=", ""])
    def test_files_of_another_version(self, ask: Asker, query: str) -> None:
        """
        What a gateway of before has is not kept under the address of the next one.

        While gateways are replaced, a page of one asks another for its files.
        """
        for name in ("console.js", "console.css", "icon.svg"):
            answer = ask.get(f"/console/static/{name}{query}")
            assert answer.status == 200
            assert answer.headers["cache-control"] == "no-store"

    def test_without_them(self, served: Served) -> None:
        """``--no-console``: the root leads to the documentation, as it did."""
        config = GatewayConfig(has_console=False, is_announced=False)
        with GatewayServer(served.ha, config) as gateway:
            asker = Asker(gateway.url)
            assert asker.get("/").headers["location"] == "/docs"
            assert asker.get("/console/").problem == "unknown-path"


class TestValues:
    def test_a_value_is_found_by_its_key(self, ask: Asker) -> None:
        """The form leads to the page of the key, which says as of when it is."""
        answer = ask.get(f"{AIRCRAFT}/find?k0=N007")
        assert answer.status == 303
        assert answer.headers["location"] == f"{AIRCRAFT}/keys/%22N007%22"
        page = page_of(ask.get(answer.headers["location"]))
        assert page.texts("tbody tr") == ["7 2026-03-01T12:00:00Z"]
        assert page.texts("dd")[0] == "0"

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_any_key_has_a_page(self, ask: Asker, name: str) -> None:
        """Also one that looks like a part of a URL; and a whole number is whole."""
        answer = ask.get(f"{ODD}/find?k0={quote(name, safe='')}")
        page = page_of(ask.get(answer.headers["location"]))
        assert page.texts("tbody tr") == [f"{2**62 + 1} NaN"]

    def test_keys_of_several_columns(self, ask: Asker) -> None:
        """Typed by the schema; a comma is no separator there."""
        answer = ask.get(f"{FLIGHTS}/log/find?k0=x%2Cy&k1=2026-03-01")
        page = page_of(ask.get(answer.headers["location"]))
        assert page.texts("tbody tr") == ["0 z null"]

    @pytest.mark.parametrize(
        "query", ["", "k0=AA", "k0=AA&k1=yesterday", "k0=AA&k1=2026-03-01&x=1"]
    )
    def test_what_is_no_key(self, ask: Asker, query: str) -> None:
        """The page says what is wrong with it."""
        page = page_of(ask.get(f"{FLIGHTS}/log/find?{query}"), 400)
        assert "What to do:" in page.text

    def test_a_key_without_a_value(self, ask: Asker) -> None:
        """Is a page, too: a value may come while one looks."""
        page = page_of(ask.get(f"{AIRCRAFT}/keys/%22nix%22"), 404)
        assert "There is nothing under this key." in page.text
        (watched,) = [
            given for _, given, _, _ in page.elements if "data-watch" in given
        ]
        with ask.watch(watched["data-watch"]) as watching:
            assert watching.next().name == "absent"

    def test_maps_and_lists(self, ask: Asker) -> None:
        """Each entry and each item is a row."""
        page = page_of(ask.get(f"{FLIGHTS}/delays/keys/%22N1%22"))
        assert page.texts("tbody tr") == [f"A{n:02} {n}" for n in range(12)]
        key = quote('{"carrier":"AA","day":"2026-03-01"}')
        page = page_of(ask.get(f"{FLIGHTS}/log/keys/{key}"))
        assert page.texts("tbody tr")[4] == "4 e4 4.00"


class TestRows:
    def test_a_page_after_the_other(self, ask: Asker) -> None:
        """All rows, in the order of the keys, each once."""
        path: str | None = f"{AIRCRAFT}/rows"
        names: list[str] = []
        while path is not None:
            page = page_of(ask.get(path))
            names += page.texts("tbody th")
            following = [
                one["href"] for one in page.attributes("a") if one.get("rel") == "next"
            ]
            path = following[0] if following else None
        assert names == [f"N{number:03}" for number in range(250)]

    def test_keys_that_begin_so(self, ask: Asker) -> None:
        """An empty input asks for all."""
        page = page_of(ask.get(f"{AIRCRAFT}/rows?prefix=N24"))
        assert page.texts("tbody th") == [f"N{number:03}" for number in range(240, 250)]
        assert len(page_of(ask.get(f"{AIRCRAFT}/rows?prefix=")).texts("tbody th")) == 50
        assert "no rows" in page_of(ask.get(f"{AIRCRAFT}/rows?prefix=X")).text

    def test_a_token_of_another_question(self, ask: Asker) -> None:
        """Is refused, and not taken for a place in this one."""
        page_of(ask.get(f"{AIRCRAFT}/rows?page_token=AAAA"), 400)


class TestCharts:
    def test_the_largest(self, ask: Asker) -> None:
        """As a table with bars, so that it can be read without seeing them."""
        page = page_of(ask.get(f"{AIRCRAFT}/chart?kind=bars&column=delay&count=3"))
        assert page.texts("tbody tr") == ["N249 249", "N248 248", "N247 247"]
        assert page.attributes("rect")[0]["width"] == "100.0"
        assert "Over all 250 numbers" in page.text

    def test_how_they_are_spread(self, ask: Asker) -> None:
        """All of them are in some range."""
        page = page_of(ask.get(f"{AIRCRAFT}/chart?kind=histogram&column=delay"))
        assert sum(int(text) for text in page.texts("tbody td") if text) == 250

    def test_a_large_state_is_not_read_whole(self, served: Served) -> None:
        """The page says so, and over how many rows the chart is."""
        publisher = Publisher(
            served.config,
            "large",
            {
                "numbers": StateSchema(
                    kind=StateKind.VALUE,
                    key=(Field("k", AtomicType.INT),),
                    value=(Field("n", AtomicType.INT),),
                )
            },
        )
        publisher.write({"numbers": [(n, n) for n in range(25_000)]})
        path = "/console/jobs/large/states/numbers"
        page = page_of(served.ask.get(f"{path}/chart?kind=bars&count=1"))
        assert "Not over all rows: over 10,000 numbers" in page.text
        assert page.texts("tbody tr") == ["9999 9,999"]
        assert len(page_of(served.ask.get(f"{path}/rows")).texts("tbody tr")) == 50

    @pytest.mark.parametrize(
        "query", ["kind=pie", "column=last", "column=nix", "count=0", "count=1000"]
    )
    def test_what_cannot_be_charted(self, ask: Asker, query: str) -> None:
        """Says what can."""
        page_of(ask.get(f"{AIRCRAFT}/chart?{query}"), 400)


class TestLeadersAndNodes:
    def test_who_leads(self, ask: Asker) -> None:
        """The proxy and the gateway lead something themselves."""
        page = page_of(ask.get("/console/leaders"))
        assert "QUERY_PROXY" in page.text
        assert "REST_ENDPOINT" in page.text
        assert f"http://127.0.0.1:{ask.address[1]}" in page.text

    def test_nodes_and_their_key_groups(self, ask: Asker) -> None:
        """Where the proxy lists no callers, everybody is told."""
        page = page_of(ask.get("/console/nodes"))
        assert page.texts("li h2") == ["node-1", "node-2"]
        (first, second), job = page.texts("tbody tr")[:2], page.texts("section h2")[0]
        assert (job, first, second) == ("flights", "node-1 64 64 0", "node-2 64 64 0")


class TestEscaping:
    def test_names_are_text(self, evil: Asker) -> None:
        """On every page that shows them, and nothing of them is run."""
        state = f"/console/jobs/{quote(EVIL_JOB, safe='')}/states/"
        state += quote(EVIL_STATE, safe="")
        key = evil.get(f"{state}/find?k0={quote(EVIL_KEY, safe='')}")
        answers = {
            "overview": ("/console/", [EVIL_JOB, EVIL_STATE, EVIL_COLUMN]),
            "state": (state, [EVIL_JOB, EVIL_STATE, EVIL_COLUMN]),
            "rows": (f"{state}/rows", [EVIL_COLUMN, EVIL_KEY, EVIL_VALUE]),
            "chart": (f"{state}/chart", [EVIL_KEY, EVIL_VALUE]),
            "key": (key.headers["location"], [EVIL_KEY, EVIL_VALUE, EVIL_COLUMN]),
            "nodes": ("/console/nodes", [EVIL_JOB]),
        }
        for path, names in answers.values():
            page = page_of(evil.get(path))
            for name in names:
                assert " ".join(name.split()) in page.text, path
            assert "49" not in page.texts("h1")[0]

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            (f"/console/jobs/{quote(EVIL_JOB, safe='')}/states/x", 404),
            (f"/console/jobs/x/states/{quote(EVIL_STATE, safe='')}", 404),
            (f"/console/{quote(EVIL_KEY, safe='')}", 404),
            (f"/console/?{quote(EVIL_KEY, safe='')}=1", 400),
            (f"{AIRCRAFT}/chart?kind={quote(EVIL_KEY, safe='')}", 400),
            (f"{AIRCRAFT}/keys/{quote(EVIL_KEY, safe='')}", 400),
            (f"/console/sign-in?target={quote(EVIL_KEY, safe='')}", 200),
            ("/console/jobs/%FF/states/x", 400),
            ("/console/jobs/%00/states/x", 404),
        ],
    )
    def test_what_is_asked_is_text(self, ask: Asker, path: str, status: int) -> None:
        """Errors repeat it, and are pages with the status of the problem document."""
        page_of(ask.get(path), status)

    def test_a_wrong_method(self, ask: Asker) -> None:
        """Is a page, too."""
        page_of(ask.ask("POST", "/console/"), 405)


class TestUnavailable:
    def test_pages_say_why_and_what_to_do(self) -> None:
        """A node is gone: what it had is named, and all else is shown."""
        config = HAConfig(url=f"embedded:console-{next(_numbers)}")
        schema = StateSchema(
            kind=StateKind.VALUE,
            key=(Field("k", AtomicType.INT),),
            value=(Field("n", AtomicType.INT),),
        )
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=2) as cluster,
            GatewayServer(ha, GatewayConfig()) as gateway,
            QueryableStateClient(config) as client,
        ):
            Publisher(config, "flights", {"aircraft": schema}).write(
                {"aircraft": [(n, n) for n in range(100)]}
            )
            ask = Asker(gateway.url)
            cluster.nodes[0].close()
            lost = unavailable_keys(client)
            assert 0 < len(lost) < 100
            page = page_of(ask.get(f"{AIRCRAFT}/keys/{lost[0]}"), 503)
            assert "No node can answer for some key groups now" in page.text
            assert "Key groups: " in page.text
            assert "Start the nodes that are away" in page.text
            there = next(n for n in range(100) if n not in lost)
            page_of(ask.get(f"{AIRCRAFT}/keys/{there}"))
            page = page_of(ask.get("/console/"))
            assert "Unavailable now" in page.text
            assert page.texts("tbody tr")[0].endswith("unavailable")
            page = page_of(ask.get("/console/nodes"))
            assert "2 nodes, 1 away" in page.text
            assert "node-1 is away, and is asked for key groups of flights" in page.text
            page = page_of(ask.get(f"{AIRCRAFT}/rows"), 503)
            assert "Ask again" in page.text


def unavailable_keys(client: QueryableStateClient) -> list[int]:
    """Return the keys that nobody answers for, once the proxy knows that."""
    while True:
        found = client.get_many("flights", "aircraft", range(100), partial=True)
        if isinstance(found.error, StateUnavailableError):
            return list(found.unavailable)
        assert found.error is None or isinstance(found.error, DeadlineExceededError)


NAMES: Final = ("writer", "node", "reader", "operator")
TOKENS: Final = {name: generate_token() for name in NAMES}
ACCESS: Final = """
[callers.writer]
token_sha256 = "{writer}"
write = ["flights/*"]

[callers.node]
token_sha256 = "{node}"
node = true

[callers.reader]
token_sha256 = "{reader}"
read = ["flights/aircraft"]

[callers.operator]
token_sha256 = "{operator}"
admin = true
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Return what asks a gateway in front of a proxy that lists callers."""
    hashes = {name: token_sha256(token) for name, token in TOKENS.items()}
    config = HAConfig(url=f"embedded:console-{next(_numbers)}")
    node_config = NodeConfig(
        data_dir=tmp_path_factory.mktemp("node"),
        node_id="node-1",
        token=TOKENS["node"],
    )
    proxy_config = parse_proxy_config(ACCESS.format(**hashes), source="here")
    schema = StateSchema(
        kind=StateKind.VALUE,
        key=(Field("k", AtomicType.STRING),),
        value=(Field("n", AtomicType.INT),),
    )
    with (
        open_ha_services(config) as ha,
        QueryStateProxyServer(ha, proxy_config),
        StateNode(ha, node_config) as node,
        GatewayServer(ha, GatewayConfig(leaders="callers")) as gateway,
    ):
        node.wait_until_registered(30.0)
        Publisher(
            config,
            "flights",
            {"aircraft": schema, "secret": schema},
            token=TOKENS["writer"],
        ).write({"aircraft": [("N1", 1)], "secret": [("N1", 2)]})
        yield Asker(gateway.url)


def sign_in(ask: Asker, token: str, target: str = "", **headers: str) -> Answer:
    """Return the answer to the form."""
    body = f"token={quote(token, safe='')}&target={quote(target, safe='')}"
    return ask.ask("POST", "/console/sign-in", body.encode(), headers)


def cookie_in(answer: Answer) -> str:
    """Return the cookie as a browser sends it back."""
    return answer.headers["set-cookie"].partition(";")[0]


class TestSignIn:
    def test_nobody_is_asked_to(self, guarded: Asker) -> None:
        """Every page of state is 401, and has the form; no dialog of the browser."""
        for path in ("/console/", AIRCRAFT, "/console/nodes", "/console/leaders"):
            answer = guarded.get(path)
            page = page_of(answer, 401)
            assert "www-authenticate" not in answer.headers
            (target,) = [
                one["value"]
                for one in page.attributes("input")
                if one["name"] == "target"
            ]
            assert target == path

    @pytest.mark.proves("F4")
    def test_who_signs_in_sees_what_it_may(self, guarded: Asker) -> None:
        """As that caller: rights are the proxy's, and nodes are for operators."""
        answer = sign_in(guarded, TOKENS["reader"], AIRCRAFT)
        assert (answer.status, answer.headers["location"]) == (303, AIRCRAFT)
        assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
        cookie = cookie_in(answer)
        assert "Sign out" in page_of(guarded.get(AIRCRAFT, cookie=cookie)).text
        page_of(guarded.get(f"{AIRCRAFT}/keys/%22N1%22", cookie=cookie))
        overview = page_of(guarded.get("/console/", cookie=cookie))
        assert "aircraft" in overview.text
        assert "secret" not in overview.text
        page = page_of(guarded.get(f"{FLIGHTS}/secret", cookie=cookie), 403)
        assert "Ask who runs the proxy for the right" in page.text
        page_of(guarded.get("/console/nodes", cookie=cookie), 403)
        page_of(guarded.get("/console/leaders", cookie=cookie))
        operator = cookie_in(sign_in(guarded, TOKENS["operator"]))
        page_of(guarded.get("/console/nodes", cookie=operator))

    def test_the_cookie_counts_on_pages_alone(self, guarded: Asker) -> None:
        """A page elsewhere that has a program's answer read by a browser gets none."""
        cookie = cookie_in(sign_in(guarded, TOKENS["reader"]))
        assert guarded.get("/v1/jobs", cookie=cookie).status == 401

    def test_a_key_is_watched_as_that_caller(self, guarded: Asker) -> None:
        """The cookie is all that the browser sends."""
        cookie = cookie_in(sign_in(guarded, TOKENS["reader"]))
        path = f"{AIRCRAFT}/keys/%22N1%22/watch?json_key=true"
        assert guarded.get(path).status == 401
        answer = guarded.ask("HEAD", path, headers={"cookie": cookie})
        assert answer.status == 200

    @pytest.mark.proves("F1")
    @pytest.mark.parametrize("headers", [{}, {"cookie": "lodestar-token=eA"}])
    def test_pages_are_counted_as_such(self, headers: dict[str, str]) -> None:
        """So are those of somebody who is signed in."""
        with (
            open_ha_services(f"embedded:console-{next(_numbers)}") as ha,
            GatewayServer(ha) as gateway,
        ):
            page_of(Asker(gateway.url).get("/console/leaders", **headers))
            wait_until(lambda: len(gateway.observe().latencies) == 1)
            (latencies,) = gateway.observe().latencies
            assert latencies.kind == "console"

    @pytest.mark.parametrize("token", ["not-a-token", "", "ü", "x" * 1_025])
    def test_a_token_that_nobody_has(self, guarded: Asker, token: str) -> None:
        """Is not kept, and not repeated; the page has the form again."""
        answer = sign_in(guarded, token)
        page = page_of(answer, 401)
        assert "set-cookie" not in answer.headers
        assert not token or token not in page.source
        assert [one["name"] for one in page.attributes("input")] == ["target", "token"]

    def test_signing_out(self, guarded: Asker) -> None:
        """Takes the cookie away."""
        answer = guarded.ask("POST", "/console/sign-out", b"")
        assert answer.status == 303
        assert "Max-Age=0" in answer.headers["set-cookie"]

    def test_forms_of_other_sites(self, guarded: Asker) -> None:
        """Sign nobody in, nor out."""
        evil = {"Origin": "https://evil.example"}
        assert sign_in(guarded, TOKENS["reader"], **evil).status == 403
        assert guarded.ask("POST", "/console/sign-out", b"", evil).status == 403

    @pytest.mark.parametrize(
        "body", [b"", b"token", b"token=a&token=b", b"x=1", b"\xff=1", b"token=%FF"]
    )
    def test_what_is_no_form(self, guarded: Asker, body: bytes) -> None:
        """Says so."""
        page_of(guarded.ask("POST", "/console/sign-in", body), 400)

    @pytest.mark.proves("F4")
    def test_no_token_is_logged_or_shown(self, guarded: Asker) -> None:
        """Neither a good one nor a bad one, on any page."""
        with structlog.testing.capture_logs() as lines:
            cookie = cookie_in(sign_in(guarded, TOKENS["reader"]))
            bodies = [
                guarded.get(path, cookie=cookie).body
                for path in ("/console/", AIRCRAFT, "/console/nodes", "/console/nix")
            ]
            bodies.append(sign_in(guarded, "not-a-token-of-anybody").body)
        shown = repr(lines).encode() + b"".join(bodies)
        for secret in (TOKENS["reader"], cookie.partition("=")[2], "not-a-token"):
            assert secret.encode() not in shown
