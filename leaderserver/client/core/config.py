"""`ClientConfig`: how a client lives with its server."""

from __future__ import annotations

from attrs import field, frozen, validators


__all__ = ["ClientConfig"]


@frozen(kw_only=True)
class ClientConfig:
    """
    How a client lives with its server.

    Attributes:
        target: The server's URL, for errors.
        client: Who we are, for operators; at most 255 characters.
        session_timeout_ns: Asked for; the server may agree on another.
        lease_ns: Asked for likewise; at most half the session timeout.
        clears_on_suspended: Whether contenders are told of a suspension.
        seed: Random, 32 bytes: what nonces are derived from.
    """

    target: str
    client: str
    session_timeout_ns: int = field(validator=validators.ge(1))
    lease_ns: int = field(validator=validators.ge(1))
    clears_on_suspended: bool
    seed: bytes = field(repr=False, validator=validators.min_len(16))
