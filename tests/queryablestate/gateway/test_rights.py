"""Whose rights a caller has, and what is kept of its token (F4)."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

import pytest
import structlog
from attrs import evolve
from starlette.requests import Request

from haservices import (
    ComponentInformation,
    HAConfig,
    HAServices,
    open_ha_services,
)
from nameservice import AuthenticationError, ConfigurationError, LocalProtocolError
from queryablestate import (
    AccessList,
    CallerEntry,
    NodeConfig,
    ProxyConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
    token_sha256,
)
from queryablestate.connect.tokens import generate_token
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.gateway.boundary import ENDS_WITH_CLIENT
from queryablestate.gateway.callers import Callers
from queryablestate.gateway.questions import StateQuestion, asking
from queryablestate.proxy.config_toml import parse_proxy_config
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.asking import Asker
from tests.queryablestate.gateway.conftest import AIRCRAFT, DELAYS
from tests.queryablestate.test_roles import serve
from zmqtransport import CurveKeyPair, load_key_files, write_key_pair


pytestmark = [pytest.mark.shells, pytest.mark.proves("F4")]

_numbers = itertools.count(1)
TLS = Path(__file__).parents[2] / "haservices" / "tls"
HTTPS = GatewayConfig(
    certificate_file=str(TLS / "server.pem"),
    certificate_key_file=str(TLS / "server.pem"),
)
NAMES = ("writer", "node", "reader", "other", "hasty")
TOKENS = {name: generate_token() for name in NAMES}
PATH = "/v1/jobs/flights/states/aircraft"

ACCESS = """
[callers.writer]
token_sha256 = "{writer}"
write = ["flights/*"]
read = ["flights/*"]

[callers.node]
token_sha256 = "{node}"
node = true

[callers.reader]
token_sha256 = "{reader}"
read = ["flights/aircraft"]

[callers.other]
token_sha256 = "{other}"
read = ["nothing/*"]

[callers.hasty]
token_sha256 = "{hasty}"
read = ["flights/*"]

[[rate_limits]]
scope = "caller"
caller = "hasty"
keys_per_second = 0.5
burst = 3
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    """Return a gateway in front of a proxy that lists callers, all at debug level."""
    hashes = {name: token_sha256(token) for name, token in TOKENS.items()}
    proxy_config = parse_proxy_config(ACCESS.format(**hashes), source="here")
    config = HAConfig(url=f"embedded:rights-{next(_numbers)}")
    node_config = NodeConfig(
        data_dir=tmp_path_factory.mktemp("node"),
        node_id="node-1",
        token=TOKENS["node"],
    )
    with (
        open_ha_services(config) as ha,
        QueryStateProxyServer(ha, proxy_config),
        StateNode(ha, node_config) as node,
        GatewayServer(
            ha,
            GatewayConfig(leaders="callers", caller_count_max=2, heartbeat_seconds=0.5),
        ) as gateway,
    ):
        node.wait_until_registered(30.0)
        publisher = Publisher(
            config,
            "flights",
            {"aircraft": AIRCRAFT, "delays": DELAYS},
            token=TOKENS["writer"],
        )
        publisher.write({"aircraft": [("N1", 1, None)]})
        yield gateway


class TestCallers:
    """F4: a token is the caller that the proxy knows."""

    def test_each_sees_what_it_may(self, guarded: GatewayServer) -> None:
        """Jobs, states and keys are those of the token, and of no other."""
        reader = Asker(guarded.url, TOKENS["reader"])
        other = Asker(guarded.url, TOKENS["other"])
        assert reader.get("/v1/jobs").document == {"jobs": [{"job": "flights"}]}
        assert other.get("/v1/jobs").document == {"jobs": []}
        states = reader.get("/v1/jobs/flights/states").document["states"]
        assert [one["state"] for one in states] == ["aircraft"]
        assert reader.get(f"{PATH}/keys/N1").document["value"]["delay"] == 1
        for path in ("keys/N1", "keys/N1/watch", "rows", "count", ""):
            answer = other.get(f"{PATH}/{path}".rstrip("/"))
            assert (answer.status, answer.problem) == (403, "not-allowed")
            # Nor is it told what there is.
            nothing = other.get(f"/v1/jobs/none/states/none/{path}".rstrip("/"))
            assert (nothing.status, nothing.problem) == (403, "not-allowed")

    @pytest.mark.parametrize(
        "authorization",
        [
            None,
            "Bearer wrong",
            "Bearer",
            "Bearer  ",
            "Basic dXNlcjpwYXNz",
            f"Bearer {'x' * 1_025}",
            "Bearer a\xff",
            "",
        ],
    )
    def test_who_is_nobody(
        self, guarded: GatewayServer, authorization: str | None
    ) -> None:
        """401 says how to show who one is, and does not repeat what was shown."""
        headers = {} if authorization is None else {"Authorization": authorization}
        for path in ("/v1/jobs", f"{PATH}/keys/N1", f"{PATH}/keys/N1/watch"):
            answer = Asker(guarded.url).ask("GET", path, headers=headers)
            assert (answer.status, answer.problem) == (401, "not-authenticated")
            assert answer.headers["www-authenticate"] == 'Bearer realm="lodestar"'
            assert b"dXNlcjpwYXNz" not in answer.body

    def test_two_tokens(self, guarded: GatewayServer) -> None:
        """Whose request it is must not depend on who reads it."""
        request = "GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        for token in (TOKENS["reader"], TOKENS["other"]):
            request += f"Authorization: Bearer {token}\r\n"
        answer = Asker(guarded.url).raw(f"{request}\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 401 ")

    def test_what_needs_no_token(self, guarded: GatewayServer) -> None:
        """What can be asked is no secret."""
        for path in ("/openapi.json", "/docs"):
            assert Asker(guarded.url).get(path).status == 200

    def test_leaders_for_callers_alone(self, guarded: GatewayServer) -> None:
        """``--leaders callers``: those whom the proxy takes, whatever they may read."""
        assert Asker(guarded.url).get("/v1/leaders").status == 401
        for name in ("reader", "other"):
            asker = Asker(guarded.url, TOKENS[name])
            assert asker.get("/v1/leaders/QUERY_PROXY").status == 200
            with asker.watch("/v1/leaders/QUERY_PROXY/watch") as watching:
                assert watching.next().data["leader"] is not None

    def test_more_callers_than_clients(self, guarded: GatewayServer) -> None:
        """One makes room for another; one that watches keeps its place."""
        names = ("writer", "reader", "other")
        askers = [Asker(guarded.url, TOKENS[name]) for name in names]
        for asker in askers * 3:
            assert asker.get("/v1/jobs").status == 200
        with (
            askers[0].watch(f"{PATH}/keys/N1/watch") as first,
            askers[1].watch(f"{PATH}/keys/N1/watch") as second,
        ):
            first.next()
            second.next()
            answer = askers[2].get("/v1/jobs")
            assert (answer.status, answer.problem) == (503, "busy")
            assert answer.headers["retry-after"] == "1"
            assert askers[0].get("/v1/jobs").status == 200
        while guarded.observe().figures["watches"]:
            assert askers[0].get("/v1/jobs").status == 200  # they are still leaving

    @pytest.mark.proves("C2")
    def test_a_rate_limit_is_told(self, guarded: GatewayServer) -> None:
        """C2, F4: 429 says which limit, and when to ask again; others are answered."""
        hasty = Asker(guarded.url, TOKENS["hasty"])
        while (answer := hasty.get(f"{PATH}/keys/N1")).status == 200:
            pass
        assert (answer.status, answer.problem) == (429, "rate-limited")
        assert answer.document["limit"] == "caller"
        assert (
            int(answer.headers["retry-after"]) >= answer.document["retry_after_seconds"]
        )
        assert Asker(guarded.url, TOKENS["reader"]).get(f"{PATH}/keys/N1").status == 200

    def test_who_tries_tokens(self, guarded: GatewayServer) -> None:
        """Each is refused, and nothing is kept of any."""
        before = guarded.observe().figures["callers_refused_total"]
        for _ in range(50):
            assert Asker(guarded.url, generate_token()).get("/v1/jobs").status == 401
        figures = guarded.observe().figures
        assert int(figures["callers_refused_total"]) - int(before) == 50
        assert int(figures["callers"]) <= 2
        assert Asker(guarded.url, TOKENS["reader"]).get("/v1/jobs").status == 200

    def test_a_caller_that_is_refused_while_it_reads(self) -> None:
        """Its client is closed at the end of what it reads, and another one is made."""
        config = GatewayConfig()

        def reading(callers: Callers) -> AbstractAsyncContextManager[StateQuestion]:
            scope = {
                "type": "http",
                "headers": [(b"authorization", b"Bearer x")],
                "query_string": b"",
                "path_params": {"job": "flights", "state": "aircraft"},
                ENDS_WITH_CLIENT: lambda: None,
            }
            return asking(Request(scope), callers, config, "rows")

        async def ask(ha: HAServices) -> None:
            callers = Callers(ha, config)
            async with reading(callers) as question:
                refused, rows = question.client, question.held.pop_all()
            with pytest.raises(AuthenticationError):
                async with reading(callers):
                    raise AuthenticationError("tcp://127.0.0.1:1", "no longer listed")
            async with reading(callers) as question:
                assert question.client is not refused
            rows.close()
            await callers.close()
            with pytest.raises(LocalProtocolError, match="closed"):
                await refused.jobs(deadline_seconds=0.1)

        with open_ha_services(f"embedded:rights-{next(_numbers)}") as ha:
            asyncio.run(ask(ha))


class TestSecrets:
    """F4: tokens are in no log, no error and no figure."""

    def test_no_token_is_logged(
        self, guarded: GatewayServer, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """At debug level, whatever goes well or wrong, also in a failure of ours."""
        written: list[str] = []

        def keep(_: object, __: str, event: structlog.typing.EventDict) -> str:
            written.append(repr(event))
            raise structlog.DropEvent

        handler = logging.Handler()
        handler.emit = lambda record: written.append(  # type: ignore[method-assign]
            f"{record.getMessage()} {record.exc_info}"
        )
        root = logging.getLogger()
        root.addHandler(handler)
        level = root.level
        root.setLevel(logging.DEBUG)
        before = structlog.get_config()
        structlog.configure(
            processors=[structlog.processors.format_exc_info, keep],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        )
        secrets = [*TOKENS.values(), wrong := generate_token()]
        try:
            for token in secrets:
                asker = Asker(guarded.url, token)
                for path in ("/v1/jobs", f"{PATH}/keys/N1", f"{PATH}/keys/X", "/x"):
                    asker.get(path)
                    asker.ask("DELETE", path)
                asker.post(f"{PATH}/keys:batchGet", {"keys": ["N1"]})
                assert asker.raw(head_of(token) + b"\r\n").startswith(b"HTTP/1.1 400")
            # One head has no end, and is waited for as long as is allowed.
            Asker(guarded.url).raw(head_of(TOKENS["reader"]))
            assert guarded._app is not None
            find = guarded._app.leaders.all
            guarded._app.leaders.all = _fail  # type: ignore[method-assign]
            answer = Asker(guarded.url, TOKENS["reader"]).get("/v1/leaders")
            guarded._app.leaders.all = find  # type: ignore[method-assign]
            assert (answer.status, answer.problem) == (500, "failed")
            assert b"deliberate" not in answer.body
        finally:
            structlog.configure(**before)
            root.removeHandler(handler)
            root.setLevel(level)
        everything = "".join((*written, *capfd.readouterr()))
        assert "request.failed" in everything
        everything += repr(guarded.observe()) + json.dumps(guarded.observe().figures)
        assert wrong is not None
        assert [token for token in secrets if token in everything] == []


def head_of(token: str) -> bytes:
    """Return a head with a wrong version, and with a token everywhere."""
    return f"GET /{token} HTTP/9\r\nAuthorization: {token}\r\n".encode()


async def _fail() -> Sequence[ComponentInformation]:
    raise RuntimeError("a deliberate mistake")


class TestListening:
    """F4: other machines are served over HTTPS alone, unless it is said."""

    @pytest.mark.parametrize("bind", ["0.0.0.0:0", "*:0", "[::]:0", "example.com:80"])
    def test_other_machines(self, bind: str) -> None:
        """Refused, with what to do; or accepted."""
        with pytest.raises(ConfigurationError, match="--insecure"):
            GatewayConfig(bind=bind)
        GatewayConfig(
            bind=bind, is_insecure_allowed=True, advertised_url="http://example.com"
        )

    def test_https(self) -> None:
        """With certificates it speaks TLS 1.2 or newer, and tells browsers to stay."""
        context = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
        with (
            open_ha_services("embedded:") as ha,
            GatewayServer(ha, HTTPS) as gateway,
        ):
            assert gateway.url.startswith("https://127.0.0.1:")
            answer = Asker(gateway.url, tls=context).get("/v1/leaders")
            assert answer.status == 200
            assert "max-age" in answer.headers["strict-transport-security"]
            # Plain HTTP is no way in.
            assert b"200" not in Asker(gateway.url).raw(b"GET / HTTP/1.0\r\n\r\n")

    @pytest.mark.parametrize("name", ["x", "nothing"])
    def test_certificates_that_are_not(self, tmp_path: Path, name: str) -> None:
        """The gateway does not start, and says which settings to correct."""
        (tmp_path / "x").write_text("no certificate")
        wrong = str(tmp_path / name)
        with open_ha_services("embedded:") as ha:
            for config in (
                evolve(HTTPS, certificate_file=wrong),
                evolve(HTTPS, certificate_key_file=wrong),
            ):
                with pytest.raises(ConfigurationError, match="certificate_file"):
                    GatewayServer(ha, config).start()

    def test_browsers_are_told_to_do_nothing_else(self) -> None:
        """Every answer, also one that is refused, forbids scripts, frames, guesses."""
        with (
            open_ha_services("embedded:") as ha,
            GatewayServer(ha) as gateway,
        ):
            asker = Asker(gateway.url)
            for path in ("/v1/leaders", "/x", "/docs", "/openapi.json", "/"):
                headers = asker.get(path).headers
                assert headers["x-content-type-options"] == "nosniff"
                policy = headers["content-security-policy"]
                assert policy.startswith("default-src 'none';")
                assert "unsafe" not in policy
                assert "http" not in policy
                assert "server" not in headers


class TestKeysOfTheGateway:
    """F4: what the gateway proves to the name service, it proves to no proxy."""

    def test_no_caller_has_its_rights(self, tmp_path: Path) -> None:
        """A proxy from which the gateway itself may read all: a caller is none."""
        roles = {
            "proxy": ["observe", "contend:*"],
            "gateway": ["observe", "contend:REST_ENDPOINT"],
        }
        with ExitStack() as stack:
            configs = serve(stack, tmp_path, roles)
            own = configs["gateway"]
            ours, _ = load_key_files(
                own.curve_secret_key_file, own.curve_public_key_file
            )
            assert ours is not None
            entry = CallerEntry(
                name="gateway", public_key=ours.public_key, read=("*/*",)
            )
            known = generate_token()
            caller = CallerEntry(
                name="known", token_sha256=token_sha256(known), read=("*/*",)
            )
            keys = write_key_pair(CurveKeyPair.generate(), tmp_path / "the-proxy")
            proxy_config = ProxyConfig(
                curve_public_key_file=keys.public_file,
                curve_secret_key_file=keys.secret_file,
                access=AccessList(callers=(entry, caller)),
            )
            names = stack.enter_context(open_ha_services(configs["proxy"]))
            stack.enter_context(QueryStateProxyServer(names, proxy_config))
            client = stack.enter_context(QueryableStateClient(configs["gateway"]))
            assert client.jobs() == []  # such are the gateway's own rights
            ha = stack.enter_context(open_ha_services(configs["gateway"]))
            gateway = stack.enter_context(GatewayServer(ha))
            assert Asker(gateway.url).get("/v1/jobs").status == 401
            assert Asker(gateway.url, known).get("/v1/jobs").status == 200
            # Nor are leaders told, which the name service tells to keys alone.
            assert Asker(gateway.url, known).get("/v1/leaders").status == 403


class TestWhoIsTakenOff:
    """F4: a caller is one for as long as the proxy says so."""

    def test_it_is_told_of_leaders_no_more(self) -> None:
        """Neither when it asks, nor by the watch that it has; others are."""
        tokens = {name: generate_token() for name in ("kept", "gone")}
        kept, gone = (
            CallerEntry(name=name, token_sha256=token_sha256(token), read=("*/*",))
            for name, token in tokens.items()
        )
        config = HAConfig(url=f"embedded:taken-off-{next(_numbers)}")
        both = ProxyConfig(access=AccessList(callers=(kept, gone)))
        with (
            open_ha_services(config) as ha,
            QueryStateProxyServer(ha, both) as proxy,
            GatewayServer(
                ha, GatewayConfig(leaders="callers", heartbeat_seconds=0.2)
            ) as gateway,
        ):
            proxy.wait_until_leader(30.0)
            path = "/v1/leaders/QUERY_PROXY"
            askers = [Asker(gateway.url, token) for token in tokens.values()]
            with (
                askers[0].watch(f"{path}/watch") as stays,
                askers[1].watch(f"{path}/watch") as ends,
            ):
                assert stays.next().name == ends.next().name == "leader"
                proxy.reconfigure(ProxyConfig(access=AccessList(callers=(kept,))))
                (last,) = (event for event in ends.rest() if event.name)
                assert last.name == "problem"
                assert last.data["status"] == 401
                assert askers[1].get(path).status == 401
                assert askers[0].get(path).status == 200
                assert stays.next_or_comment().name == ""
