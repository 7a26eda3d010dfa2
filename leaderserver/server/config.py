"""
`ServerConfig`: where a LeaderServer listens, what it admits, and its limits.

Settings are validated together, when the configuration is made: what starts, fits.
"""

from __future__ import annotations

from typing import Final, final

from attrs import Attribute, field, frozen
from attrs.validators import optional

from leaderserver.server.core.memory_plan import MEMORY_LIMIT_BYTES_MIN, MemoryPlan
from nameservice.clock import seconds_to_ns
from nameservice.errors import ConfigurationError
from nameservice.settings import (
    FilePath,
    check_all_or_none,
    check_count,
    check_flag,
    check_frame_size,
    check_optional_path,
    insecure_error,
    renamed_settings,
    seconds_between,
    whole_between,
)
from zmqtransport.endpoints import Endpoint, parse_endpoint


__all__ = ["ServerConfig"]

_LEASE_SECONDS_MIN: Final = 0.01
_SECONDS_MAX: Final = 3600.0
_BYTES_MAX: Final = 2**50
_DURABLE_STORE_BYTES_MAX: Final = 1024 * 1024 * 1024


_CHECK_SECONDS: Final = seconds_between(_LEASE_SECONDS_MIN, _SECONDS_MAX)
_CHECK_MEMORY: Final = whole_between(MEMORY_LIMIT_BYTES_MIN, _BYTES_MAX, unit="bytes")
_CHECK_STORE: Final = optional(whole_between(1, _BYTES_MAX, unit="bytes"))
_CURVE_FILES: Final = (
    "curve_public_key_file",
    "curve_secret_key_file",
    "allow_list_file",
)
_RENAMED: Final = {"insecure": "is_insecure_allowed"}


def _check_endpoint(_: object, attribute: Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        message = f"{attribute.name} must be text, tcp://HOST:PORT, not {value!r}"
        raise ConfigurationError(message)


_CHECK_OPTIONAL: Final = optional(_check_endpoint)


@final
@renamed_settings(_RENAMED)
@frozen(kw_only=True)
class ServerConfig:
    """
    Where a LeaderServer listens, what it admits, and its limits.

    Attributes:
        bind: Where requests come in: ``tcp://HOST:PORT``; port 0 takes any free one.
        publish_bind: Where changes are published; by default any free port of the
            host of *bind*.
        publish_address: What clients are told instead of the port of *publish_bind*
            on the host that they connected to; for what stands behind a proxy.
        data_dir: Where epochs and leader stores outlive the server; None keeps them
            in memory.
        lease_seconds_min: Shorter leases are lengthened to this.
        lease_seconds_max: Longer ones are shortened to this.  After its start the
            server grants nothing for the longest lease that it or, by its data
            directory, an earlier server admitted: a holder may believe that long (E9);
            and for 0.3 s at the least, in which clients come back.
        lease_seconds_unrecorded_max: The longest lease that an earlier server may have
            admitted that left no record in the data directory; and so the longest that
            a server without a data directory admits.
        session_timeout_seconds_min: Shorter session timeouts are lengthened to this.
        session_timeout_seconds_max: Longer ones are shortened to this.
        frame_size_bytes_max: Of one request.  The default holds the largest commit:
            1,000 operations on paths of 255 four-byte characters, 1,000,000 bytes of
            values.
        connections_max: Connections to each of the two ports.  The system's limit of
            open files may be lower; the server then says so, and keeps to that.
        sessions_max: Sessions.
        contenders_per_component_max: Contenders of one component.
        contenders_per_session_max: Contenders of one session.
        subscriptions_per_session_max: Components that one session hears of; likewise
            the topics of one connection to the publishing port.
        components_max: Components that are remembered, and topics of the publishing
            port.
        queued_replies_per_peer_max: Messages that wait for one peer to read; further
            ones are dropped, and the client asks again.
        memory_limit_bytes: What a process takes that runs this server and nothing
            else.  Connections, sessions, subscriptions, queues, and a store in memory
            have shares of it (see `MemoryPlan`); what is above its share is refused.
        store_bytes_max: Paths and values of all leader stores; by default a share of
            the memory limit in memory, 1 GiB with a data directory.
        store_bytes_per_component_max: Paths and values of one component's; by default
            a quarter of *store_bytes_max*.
        curve_public_key_file: The server's CURVE public key.
        curve_secret_key_file: The server's CURVE secret key, readable by it alone.
        allow_list_file: Who may do what; see ``zmqtransport.access``.
        is_insecure_allowed: Listen beyond this machine even without CURVE.

    Raises:
        ConfigurationError: On construction; says which setting to change, and how.
    """

    bind: str = field(default="tcp://127.0.0.1:5170", validator=_check_endpoint)
    publish_bind: str | None = field(default=None, validator=_CHECK_OPTIONAL)
    publish_address: str | None = field(default=None, validator=_CHECK_OPTIONAL)
    data_dir: FilePath | None = field(default=None, validator=check_optional_path)
    lease_seconds_min: float = field(default=0.05, validator=_CHECK_SECONDS)
    lease_seconds_max: float = field(default=1.0, validator=_CHECK_SECONDS)
    lease_seconds_unrecorded_max: float = field(default=1.0, validator=_CHECK_SECONDS)
    session_timeout_seconds_min: float = field(default=0.1, validator=_CHECK_SECONDS)
    session_timeout_seconds_max: float = field(default=300.0, validator=_CHECK_SECONDS)
    frame_size_bytes_max: int = field(default=2_100_000, validator=check_frame_size)
    connections_max: int = field(default=10_000, validator=check_count)
    sessions_max: int = field(default=10_000, validator=check_count)
    contenders_per_component_max: int = field(default=1_000, validator=check_count)
    contenders_per_session_max: int = field(default=1_000, validator=check_count)
    subscriptions_per_session_max: int = field(default=10_000, validator=check_count)
    components_max: int = field(default=100_000, validator=check_count)
    queued_replies_per_peer_max: int = field(default=1_000, validator=check_count)
    memory_limit_bytes: int = field(default=256 * 1024 * 1024, validator=_CHECK_MEMORY)
    store_bytes_max: int | None = field(default=None, validator=_CHECK_STORE)
    store_bytes_per_component_max: int | None = field(
        default=None, validator=_CHECK_STORE
    )
    curve_public_key_file: FilePath | None = field(
        default=None, validator=check_optional_path, repr=False
    )
    curve_secret_key_file: FilePath | None = field(
        default=None, validator=check_optional_path, repr=False
    )
    allow_list_file: FilePath | None = field(
        default=None, validator=check_optional_path, repr=False
    )
    is_insecure_allowed: bool = field(default=False, validator=check_flag)

    def __attrs_post_init__(self) -> None:
        self._check_times()
        check_all_or_none(self, *_CURVE_FILES, what="CURVE")
        self._check_endpoints()

    @property
    def bind_endpoint(self) -> Endpoint:
        """Return *bind*, taken apart."""
        return parse_endpoint(self.bind)

    @property
    def publish_endpoint(self) -> Endpoint:
        """Return *publish_bind*, taken apart and defaulted."""
        if self.publish_bind is None:
            return Endpoint(host=self.bind_endpoint.host, port=0)
        return parse_endpoint(self.publish_bind)

    @property
    def uses_curve(self) -> bool:
        """Return whether clients must prove who they are."""
        return self.curve_secret_key_file is not None

    @property
    def memory_plan(self) -> MemoryPlan:
        """Return how *memory_limit_bytes* is divided."""
        return MemoryPlan(limit_bytes=self.memory_limit_bytes)

    @property
    def store_bytes(self) -> int:
        """Return *store_bytes_max*, defaulted."""
        if self.store_bytes_max is not None:
            return self.store_bytes_max
        if self.data_dir is None:
            return self.memory_plan.memory_store_bytes_max
        return _DURABLE_STORE_BYTES_MAX

    @property
    def store_bytes_per_component(self) -> int:
        """Return *store_bytes_per_component_max*, defaulted."""
        if self.store_bytes_per_component_max is not None:
            return self.store_bytes_per_component_max
        return max(1, self.store_bytes // 4)

    @property
    def lease_ns_min(self) -> int:
        """Return *lease_seconds_min* in nanoseconds."""
        return seconds_to_ns(self.lease_seconds_min)

    @property
    def lease_ns_max(self) -> int:
        """Return *lease_seconds_max* in nanoseconds."""
        return seconds_to_ns(self.lease_seconds_max)

    @property
    def lease_ns_unrecorded_max(self) -> int:
        """Return *lease_seconds_unrecorded_max* in nanoseconds."""
        return seconds_to_ns(self.lease_seconds_unrecorded_max)

    @property
    def session_timeout_ns_min(self) -> int:
        """Return *session_timeout_seconds_min* in nanoseconds."""
        return seconds_to_ns(self.session_timeout_seconds_min)

    @property
    def session_timeout_ns_max(self) -> int:
        """Return *session_timeout_seconds_max* in nanoseconds."""
        return seconds_to_ns(self.session_timeout_seconds_max)

    def _check_times(self) -> None:
        for lower, upper in (
            ("lease_seconds_min", "lease_seconds_max"),
            ("session_timeout_seconds_min", "session_timeout_seconds_max"),
        ):
            if getattr(self, lower) > getattr(self, upper):
                message = (
                    f"{lower} ({getattr(self, lower):g}) must be at most {upper} "
                    f"({getattr(self, upper):g}): lower the one or raise the other"
                )
                raise ConfigurationError(message)
        if (
            self.data_dir is None
            and self.lease_seconds_max > self.lease_seconds_unrecorded_max
        ):
            message = (
                f"lease_seconds_max ({self.lease_seconds_max:g}) needs a data_dir: "
                "without one no later server can know how long to wait for what this "
                "one grants. Or raise lease_seconds_unrecorded_max "
                f"({self.lease_seconds_unrecorded_max:g}), here and for every later "
                "server without a data directory"
            )
            raise ConfigurationError(message)
        if 2 * self.lease_seconds_min > self.session_timeout_seconds_min:
            message = (
                f"lease_seconds_min ({self.lease_seconds_min:g}) must be at most half "
                f"of session_timeout_seconds_min "
                f"({self.session_timeout_seconds_min:g}): a session must outlive its "
                "lease; lower the one or raise the other"
            )
            raise ConfigurationError(message)

    def _check_endpoints(self) -> None:
        bind = self.bind_endpoint
        publish = self.publish_endpoint
        if self.publish_bind is not None and bind.port and bind == publish:
            message = (
                f"publish_bind must differ from bind ({bind}): it is a port of its "
                "own; port 0 takes any free one"
            )
            raise ConfigurationError(message)
        for name, endpoint in (("bind", bind), ("publish_bind", publish)):
            is_secure = self.uses_curve or self.is_insecure_allowed
            if not (endpoint.is_loopback or is_secure):
                raise insecure_error(name, endpoint, _CURVE_FILES)
        if self.publish_address is not None:
            parse_endpoint(self.publish_address).check_connectable()
