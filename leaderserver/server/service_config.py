"""`ServiceConfig`: the limits of a `LeaderService`, and what it tells of itself."""

from __future__ import annotations

from attrs import field, frozen, validators


__all__ = ["ServiceConfig"]


@frozen(kw_only=True)
class ServiceConfig:
    """
    The limits of a `LeaderService`, and what it tells its clients of itself.

    Attributes:
        lease_ns_min: Shorter leases are lengthened to this.
        lease_ns_max: Longer ones are shortened to this; also how long the service is
            undecided after its start.
        session_timeout_ns_min: Shorter session timeouts are lengthened to this.
        session_timeout_ns_max: Longer ones are shortened to this.
        subscription_count_max: Subscriptions of one session.
        session_count_per_connection_max: Sessions over one connection; a client needs
            one at a time.
        state_bytes_max: What sessions, contenders, components, subscriptions and
            watches may cost in memory, in sum.
        cached_bytes_max: What values may cost in memory that were read from a storage
            apart.
        publish_port: Where changes are published, on the host of the request channel.
        publish_address: Where they are published instead, or None.
        server_id: What tells this start of a server from every other one.
    """

    lease_ns_min: int = field(validator=validators.ge(1))
    lease_ns_max: int = field(validator=validators.ge(1))
    session_timeout_ns_min: int = field(validator=validators.ge(1))
    session_timeout_ns_max: int = field(validator=validators.ge(1))
    subscription_count_max: int = field(default=10_000, validator=validators.ge(1))
    session_count_per_connection_max: int = field(
        default=16, validator=validators.ge(1)
    )
    state_bytes_max: int = field(default=2**50, validator=validators.ge(1))
    cached_bytes_max: int = field(default=2**20, validator=validators.ge(0))
    publish_port: int = 0
    publish_address: str | None = None
    server_id: str = ""
