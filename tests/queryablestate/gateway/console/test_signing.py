from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from queryablestate.gateway.console.signing import (
    SignedIn,
    check_same_site,
    cookie_of,
    local_path,
    no_cookie,
)
from queryablestate.gateway.problems import GatewayError


def seen(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Return which ``Authorization`` headers are seen behind the cookie."""
    scopes: list[dict[str, Any]] = []

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    async def nothing(*_: Any) -> Any:
        """Neither receive nor send."""

    asyncio.run(SignedIn(routes)({"headers": headers}, nothing, nothing))
    (scope,) = scopes
    return [value for name, value in scope["headers"] if name == b"authorization"]


class TestCookie:
    def test_it_becomes_the_header(self) -> None:
        """Among other cookies, and with any character that a token may have."""
        token = 'a=b;c,"d\\ e~'
        cookie = cookie_of(token, is_secure=False).partition(";")[0].encode()
        assert seen([(b"cookie", b"x=1; " + cookie + b"; y=2")]) == [
            b"Bearer " + token.encode()
        ]

    def test_no_script_and_no_other_site_has_it(self) -> None:
        """Nor any other path; nor a connection that others can read, where none is."""
        _, *attributes = cookie_of("t", is_secure=True).split("; ")
        assert attributes == ["Path=/console", "HttpOnly", "SameSite=Strict", "Secure"]
        assert "Secure" not in cookie_of("t", is_secure=False)
        assert "Max-Age=0" in no_cookie(is_secure=False)

    @pytest.mark.parametrize("token", ["", "a\nb", "ü", "a" * 1_025])
    def test_what_is_no_token_is_not_kept(self, token: str) -> None:
        """And not repeated."""
        with pytest.raises(GatewayError) as refused:
            cookie_of(token, is_secure=False)
        assert not token or token not in refused.value.problem.detail

    @pytest.mark.parametrize(
        "cookie",
        [b"", b"lodestar-token=", b"lodestar-token=***", b"x-lodestar-token=YQ"],
    )
    def test_another_cookie_is_nobody(self, cookie: bytes) -> None:
        """As if there were none."""
        assert seen([(b"cookie", cookie)]) == []

    def test_a_header_outweighs_it(self) -> None:
        """A proxy that signs people in says who it is."""
        cookie = cookie_of("mine", is_secure=False).partition(";")[0].encode()
        shown = (b"authorization", b"Bearer theirs")
        assert seen([(b"cookie", cookie), shown]) == [b"Bearer theirs"]


class TestTarget:
    @pytest.mark.parametrize(
        "text",
        [
            "https://evil.example",
            "//evil.example",
            "/console",
            "/v1/jobs",
            "/console/\\evil",
            "/console/\r\nSet-Cookie: a=b",
            "/console/" + "a" * 4_000,
            "",
        ],
    )
    def test_it_is_a_page_of_the_console(self, text: str) -> None:
        """Everything else is the overview."""
        assert local_path(text) == "/console/"

    def test_any_of_them(self) -> None:
        """With what stands behind the question mark."""
        assert local_path("/console/jobs/a%2Fb?x=1") == "/console/jobs/a%2Fb?x=1"


class TestSite:
    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
        ],
    )
    def test_a_form_of_another_site_is_refused(self, headers: dict[str, str]) -> None:
        """Nobody is signed in as somebody else by a page elsewhere."""
        with pytest.raises(GatewayError):
            check_same_site(request(headers))

    @pytest.mark.parametrize(
        "headers",
        [{}, {"sec-fetch-site": "same-origin"}, {"origin": "http://here:1"}],
    )
    def test_ours_is_taken(self, headers: dict[str, str]) -> None:
        """From browsers that tell where a form is from, and from programs."""
        check_same_site(request(headers))


def request(headers: dict[str, str]) -> Request:
    """Return a request to ``here:1`` with these headers."""
    given = [(b"host", b"here:1")]
    given += [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": given})
