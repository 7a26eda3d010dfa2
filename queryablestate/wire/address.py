"""
The address that a proxy leader publishes: where it listens, and its CURVE key.

``tcp://HOST:PORT``, followed by ``?key=`` and the public key in 64 hexadecimal digits
where the proxy uses CURVE.  The key travels with the address, so a client that can ask
the name service needs nothing else to reach the proxy: no file of server keys.  It is
in hexadecimal because Z85 uses ``?`` and ``&`` itself.
"""

from __future__ import annotations

import re
from typing import Final, final

import attrs
from zmq.utils import z85

from nameservice import ConfigurationError
from zmqtransport import Endpoint, is_z85_key, parse_endpoint


__all__ = ["StateAddress", "parse_address"]

_KEY_QUERY: Final = "?key="
_KEY_DIGITS: Final = re.compile(r"[0-9a-f]{64}")


@final
@attrs.frozen(kw_only=True)
class StateAddress:
    """
    Where a proxy or a node is reached; ``str()`` gives the text that is published.

    Attributes:
        endpoint: Where it listens.
        server_public_key: Its CURVE key in Z85, or None if it uses no CURVE.
    """

    endpoint: Endpoint
    server_public_key: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.server_public_key is not None and not is_z85_key(
            self.server_public_key
        ):
            raise ConfigurationError(
                f"{self.server_public_key!r} is not a public key: 40 characters of Z85"
            )

    def __str__(self) -> str:
        if self.server_public_key is None:
            return str(self.endpoint)
        key = z85.decode(self.server_public_key.encode("ascii"))
        return f"{self.endpoint}{_KEY_QUERY}{key.hex()}"


def parse_address(text: str) -> StateAddress:
    """
    Return *text*, as a proxy published it, taken apart.

    Raises:
        ConfigurationError: If *text* is not ``tcp://HOST:PORT`` or
            ``tcp://HOST:PORT?key=<64 hexadecimal digits>``, or if no socket can connect
            to it (every interface at once, port 0).
    """
    endpoint_text, query, key_text = text.partition(_KEY_QUERY)
    endpoint = parse_endpoint(endpoint_text).check_connectable()
    if not query:
        return StateAddress(endpoint=endpoint)
    if not _KEY_DIGITS.fullmatch(key_text):
        raise ConfigurationError(
            f"the key of the address {text!r} must be 64 hexadecimal digits"
        )
    key = z85.encode(bytes.fromhex(key_text)).decode("ascii")
    return StateAddress(endpoint=endpoint, server_public_key=key)
