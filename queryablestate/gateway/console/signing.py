"""
Who is signed in: the caller's token in a cookie, under the console's paths alone.

A browser shows no ``Authorization`` header by itself, so the console keeps the token in
a cookie that no script can read and that no other site's page sends along.  Each
request under the console's paths gets its header from it before anything else sees the
request: rights, limits and errors are those of every other caller (rule F4).
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, final

from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.requests import bearer_token


if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send


__all__ = ["SignedIn", "check_same_site", "cookie_of", "local_path", "no_cookie"]

_NAME: Final = "lodestar-token"
_PATH: Final = "/console"
_HOME: Final = "/console/"
_TARGET_LENGTH_MAX: Final = 4_000


def cookie_of(token: str, *, is_secure: bool) -> str:
    """
    Return the value of ``Set-Cookie`` that keeps *token* until the browser ends.

    Args:
        token: What the caller has shown.
        is_secure: Whether the browser reaches us over HTTPS.

    Raises:
        GatewayError: If it is no token; the answer does not repeat it.
    """
    bearer_token([(b"authorization", b"Bearer " + token.encode())])
    value = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    return f"{_NAME}={value}; {_attributes(is_secure)}"


def no_cookie(*, is_secure: bool) -> str:
    """Return the value of ``Set-Cookie`` that takes the cookie away."""
    return f"{_NAME}=; Max-Age=0; {_attributes(is_secure)}"


def _attributes(is_secure: bool) -> str:  # noqa: FBT001 (only called from here)
    secure = "; Secure" if is_secure else ""
    return f"Path={_PATH}; HttpOnly; SameSite=Strict{secure}"


def local_path(text: str) -> str:
    """Return *text* if it is a path of the console, else the overview's."""
    is_ours = (
        text.startswith(_HOME)
        and len(text) <= _TARGET_LENGTH_MAX
        and text.isascii()
        and text.isprintable()
        and not set(text) & {"\\", " "}
    )
    return text if is_ours else _HOME


def check_same_site(request: Request) -> None:
    """
    Refuse a form that another site has sent: it would sign people in as its owner.

    Raises:
        GatewayError: If the browser says that it comes from elsewhere.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_ours = site in {"same-origin", "none"}
    elif origin is not None:  # an older browser
        is_ours = origin.partition("://")[2] == request.headers.get("host")
    else:
        is_ours = True  # no browser
    if not is_ours:
        raise GatewayError("not-allowed", "this form was sent by another site")


@final
class SignedIn:
    """
    An ASGI application that gives each request the header that its cookie stands for.

    A request that has the header itself, as behind a proxy that signs people in, keeps
    it.

    Args:
        routes: What answers.
    """

    def __init__(self, routes: ASGIApp) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if not any(name == b"authorization" for name, _ in headers):
            token = _token_in(headers)
            if token is not None:
                shown = (b"authorization", b"Bearer " + token)
                # In place: what answers says in this scope what it counts as.
                scope["headers"] = [*headers, shown]
        await self._routes(scope, receive, send)


def _token_in(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return the token that a cookie holds; None if there is none of ours."""
    for name, value in headers:
        if name != b"cookie":
            continue
        for part in value.split(b";"):
            cookie_name, _, text = part.strip().partition(b"=")
            if cookie_name == _NAME.encode():
                try:
                    token = base64.b64decode(
                        text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
                    )
                except (binascii.Error, ValueError):
                    return None
                return token or None
    return None
