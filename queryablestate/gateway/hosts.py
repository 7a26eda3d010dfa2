"""
Which names a gateway on loopback may be asked by; pure.

A web page may not read what other origins answer.  But its own name may come to mean
this machine (DNS rebinding): then the browser takes the gateway for the page's origin,
and tells it what anybody on this machine may read.  The ``Host`` of such a request is
the page's, so a gateway that only this machine reaches goes by that.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit


if TYPE_CHECKING:
    from collections.abc import Collection


__all__ = ["foreign_host", "host_of"]


def host_of(url: str) -> str:
    """Return the host that *url* names, in lower case."""
    return (urlsplit(url).hostname or "").rstrip(".")


def foreign_host(host: str, own: Collection[str]) -> str | None:
    """
    Return the name in a ``Host`` header if a page of the web may have it, or None.

    Addresses are no names, and a name of one part, as in ``/etc/hosts`` or in a compose
    file, can be bought by no one on the web.

    Args:
        host: The header's value, with a port or without.
        own: Names that are the gateway's.
    """
    try:
        name = host_of(f"//{host}")
    except ValueError:
        return host
    is_ours = name in own or "." not in name or name.endswith(".localhost")
    return None if is_ours or _is_address(name) else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
