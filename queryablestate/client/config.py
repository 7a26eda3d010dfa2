"""`QueryConfig`: the limits of a client, and how nodes are asked; pure."""

from __future__ import annotations

from attrs import evolve, field, frozen, validators

from nameservice.clock import NS_PER_SECOND
from nameservice.errors import ConfigurationError


__all__ = ["QueryConfig", "reading_config"]


@frozen(kw_only=True)
class QueryConfig:
    """
    The limits of a client.

    Attributes:
        request_count_max: Requests that may wait; more are refused at once.
        flight_count_max: Questions for keys that may be under way.
        answer_timeout_ns: After how long without an answer a greeting, or the question
            for a route, is put again.
        refused_pause_ns: How long a proxy that does not admit us is left alone.
        route_refresh_ns: How old a route may get before it is asked for in passing:
            columns may have been added.
        patience_ns: How long a request may wait for the address that was given first,
            before the name service is asked, too.
        is_direct: Whether nodes are asked without the proxy where that is possible
            (rule D1); `reading_config` says so.
    """

    request_count_max: int = field(default=100_000, validator=validators.ge(1))
    flight_count_max: int = field(default=256, validator=validators.ge(1))
    answer_timeout_ns: int = 2 * NS_PER_SECOND
    refused_pause_ns: int = NS_PER_SECOND
    route_refresh_ns: int = 10 * NS_PER_SECOND
    patience_ns: int = 3 * NS_PER_SECOND
    is_direct: bool = False


def reading_config(config: QueryConfig | None, *, direct: object) -> QueryConfig:
    """
    Return *config*, or the defaults, for a client that asks nodes itself or not.

    Raises:
        ConfigurationError: If *direct* is neither True nor False.
    """
    if not isinstance(direct, bool):
        raise ConfigurationError(f"direct must be True or False, not {direct!r}")
    config = QueryConfig() if config is None else config
    return evolve(config, is_direct=direct)
