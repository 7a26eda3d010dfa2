"""
`ServerConfig`: where a LeaderServer listens, what it admits, and its limits.

Settings are validated together, when the configuration is made: what starts, fits.
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeAlias, final

from attrs import Attribute, field, frozen

from leaderserver.server.core.memory_plan import MEMORY_LIMIT_BYTES_MIN, MemoryPlan
from nameservice.clock import seconds_to_ns
from nameservice.errors import ConfigurationError
from zmqtransport.endpoints import Endpoint, parse_endpoint


__all__ = ["ServerConfig"]

_FilePath: TypeAlias = str | os.PathLike[str]

_LEASE_SECONDS_MIN: Final = 0.01
_SECONDS_MAX: Final = 3600.0
_COUNT_MAX: Final = 10_000_000
_FRAME_SIZE_BYTES_MIN: Final = 65_536
_FRAME_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
_BYTES_MAX: Final = 2**50
_DURABLE_STORE_BYTES_MAX: Final = 1024 * 1024 * 1024


def _check_seconds(_: object, attribute: Attribute[float], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"{attribute.name} must be a number of seconds, not {value!r}"
        raise ConfigurationError(message)
    if not _LEASE_SECONDS_MIN <= value <= _SECONDS_MAX:  # also refuses NaN
        message = (
            f"{attribute.name} must be {_LEASE_SECONDS_MIN:g} to {_SECONDS_MAX:g} "
            f"seconds, not {value!r}"
        )
        raise ConfigurationError(message)


def _check_count(_: object, attribute: Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{attribute.name} must be a whole number, not {value!r}"
        raise ConfigurationError(message)
    if not 1 <= value <= _COUNT_MAX:
        message = f"{attribute.name} must be 1 to {_COUNT_MAX:,}, not {value:,}"
        raise ConfigurationError(message)


def _check_frame_size(_: object, attribute: Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{attribute.name} must be a whole number of bytes, not {value!r}"
        raise ConfigurationError(message)
    if not _FRAME_SIZE_BYTES_MIN <= value <= _FRAME_SIZE_BYTES_MAX:
        message = (
            f"{attribute.name} must be {_FRAME_SIZE_BYTES_MIN:,} to "
            f"{_FRAME_SIZE_BYTES_MAX:,} bytes, not {value:,}"
        )
        raise ConfigurationError(message)


def _check_memory(_: object, attribute: Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{attribute.name} must be a whole number of bytes, not {value!r}"
        raise ConfigurationError(message)
    if not MEMORY_LIMIT_BYTES_MIN <= value <= _BYTES_MAX:
        message = (
            f"{attribute.name} must be {MEMORY_LIMIT_BYTES_MIN:,} to {_BYTES_MAX:,} "
            f"bytes, not {value:,}"
        )
        raise ConfigurationError(message)


def _check_store_bytes(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{attribute.name} must be a whole number of bytes, not {value!r}"
        raise ConfigurationError(message)
    if not 1 <= value <= _BYTES_MAX:
        message = f"{attribute.name} must be 1 to {_BYTES_MAX:,} bytes, not {value:,}"
        raise ConfigurationError(message)


def _check_text(_: object, attribute: Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        message = f"{attribute.name} must be text, tcp://HOST:PORT, not {value!r}"
        raise ConfigurationError(message)


def _check_optional_text(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None:
        _check_text(_, attribute, value)


def _check_file(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (isinstance(value, str | os.PathLike) and str(value)):
        message = f"{attribute.name} must be a path, not {value!r}"
        raise ConfigurationError(message)


def _check_flag(_: object, attribute: Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        message = f"{attribute.name} must be true or false, not {value!r}"
        raise ConfigurationError(message)


@final
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
            directory, an earlier server admitted: a holder may believe that long (E9).
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
        insecure: Listen beyond this machine even without CURVE.

    Raises:
        ConfigurationError: On construction; says which setting to change, and how.
    """

    bind: str = field(default="tcp://127.0.0.1:5170", validator=_check_text)
    publish_bind: str | None = field(default=None, validator=_check_optional_text)
    publish_address: str | None = field(default=None, validator=_check_optional_text)
    data_dir: _FilePath | None = field(default=None, validator=_check_file)
    lease_seconds_min: float = field(default=0.05, validator=_check_seconds)
    lease_seconds_max: float = field(default=1.0, validator=_check_seconds)
    lease_seconds_unrecorded_max: float = field(default=1.0, validator=_check_seconds)
    session_timeout_seconds_min: float = field(default=0.1, validator=_check_seconds)
    session_timeout_seconds_max: float = field(default=300.0, validator=_check_seconds)
    frame_size_bytes_max: int = field(default=2_100_000, validator=_check_frame_size)
    connections_max: int = field(default=10_000, validator=_check_count)
    sessions_max: int = field(default=10_000, validator=_check_count)
    contenders_per_component_max: int = field(default=1_000, validator=_check_count)
    contenders_per_session_max: int = field(default=1_000, validator=_check_count)
    subscriptions_per_session_max: int = field(default=10_000, validator=_check_count)
    components_max: int = field(default=100_000, validator=_check_count)
    queued_replies_per_peer_max: int = field(default=1_000, validator=_check_count)
    memory_limit_bytes: int = field(default=256 * 1024 * 1024, validator=_check_memory)
    store_bytes_max: int | None = field(default=None, validator=_check_store_bytes)
    store_bytes_per_component_max: int | None = field(
        default=None, validator=_check_store_bytes
    )
    curve_public_key_file: _FilePath | None = field(
        default=None, validator=_check_file, repr=False
    )
    curve_secret_key_file: _FilePath | None = field(
        default=None, validator=_check_file, repr=False
    )
    allow_list_file: _FilePath | None = field(
        default=None, validator=_check_file, repr=False
    )
    insecure: bool = field(default=False, validator=_check_flag)

    def __attrs_post_init__(self) -> None:
        self._check_times()
        self._check_curve()
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

    def _check_curve(self) -> None:
        files = {
            "curve_public_key_file": self.curve_public_key_file,
            "curve_secret_key_file": self.curve_secret_key_file,
            "allow_list_file": self.allow_list_file,
        }
        missing = [name for name, value in files.items() if value is None]
        if 0 < len(missing) < len(files):
            message = (
                "CURVE needs all of curve_public_key_file, curve_secret_key_file and "
                f"allow_list_file: set {' and '.join(missing)} too"
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
            if not (endpoint.is_loopback or self.uses_curve or self.insecure):
                message = (
                    f"{name} {endpoint} lets other machines in without proving who "
                    "they are: set curve_public_key_file, curve_secret_key_file and "
                    "allow_list_file (lodestar keygen makes keys), bind to 127.0.0.1, "
                    "or accept it with insecure"
                )
                raise ConfigurationError(message)
        if self.publish_address is not None:
            parse_endpoint(self.publish_address).check_connectable()
