"""
`HAConfig`: which name service, and how to live with it.

One line decides the backend: ``url``.  Settings come, the later the stronger, from
``lodestar.toml``, ``LODESTAR_*`` in the environment, and keyword arguments.
"""

from __future__ import annotations

import difflib
import os
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final
from urllib.parse import SplitResult, unquote, urlsplit

from attrs import field, fields, frozen

from nameservice import ConfigurationError, check_component_id
from nameservice.toml import parse_toml


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


__all__ = [
    "Backend",
    "HAConfig",
    "OnSuspended",
    "ServerAddress",
    "unknown_environment",
]

OnSuspended: TypeAlias = Literal["keep", "clear"]

CONFIG_FILE_NAME: Final = "lodestar.toml"
ENVIRONMENT_PREFIX: Final = "LODESTAR_"
STANDBY_JOB: Final = "LODESTAR_STANDBY_JOB"
"""By it ``lodestar standby`` tells a driver what to contend for."""
STANDBY_CONTROL: Final = "LODESTAR_STANDBY_CONTROL"
"""A socket of ``lodestar standby``: a driver tells its state, and ends with it."""

_OTHER_NAMES: Final = frozenset(
    {
        "LODESTAR_CONFIG",
        "LODESTAR_EPOCH",
        "LODESTAR_LEADER_SESSION_ID",
        STANDBY_CONTROL,
        STANDBY_JOB,
        "LODESTAR_TOKEN_FILE",
    }
)
_OTHERS: Final = re.compile(
    r"LODESTAR_(PORT|SERVICE|SERVER|PROXY|NODE|GATEWAY|SQL)(_|$)"
)
_LIKENESS_MIN: Final = 0.85

_SESSION_TIMEOUT_SECONDS_MIN: Final = 0.1
_SESSION_TIMEOUT_SECONDS_MAX: Final = 3600.0
_LEASE_SECONDS_MIN: Final = 0.05
_CONFIRM_TIMEOUT_SECONDS_MIN: Final = 0.05
_TIMEOUT_SECONDS_MAX: Final = 3600.0
_PORT_MAX: Final = 65535
_PORT_LENGTH_MAX: Final = 5

_FILE_FIELDS: Final = (
    "curve_public_key_file",
    "curve_secret_key_file",
    "curve_server_key_file",
    "zookeeper_auth_file",
    "zookeeper_tls_ca_file",
    "zookeeper_tls_cert_file",
    "zookeeper_tls_key_file",
)
_SECONDS_FIELDS: Final = (
    "session_timeout_seconds",
    "lease_seconds",
    "confirm_timeout_seconds",
    "connect_timeout_seconds",
)


class Backend(Enum):
    """The schemes of a URL."""

    EMBEDDED = "embedded"
    LEADERSERVER = "leaderserver"
    ZOOKEEPER = "zookeeper"


@frozen(kw_only=True)
class ServerAddress:
    """
    One ``host:port`` of a URL.

    Attributes:
        host: A name or an address, an IPv6 address without its brackets.
        port: 1 to 65,535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@final
@frozen(kw_only=True)
class HAConfig:
    """
    Which name service, and how to live with it.

    Frozen and picklable; an embedded configuration refuses to be pickled, since it
    means nothing in another process.

    Attributes:
        url: ``embedded:NAME`` (shared by all services of that name in this process;
            ``embedded:`` alone is private), ``leaderserver://host:port`` or
            ``zookeeper://h1:2181,h2:2181/chroot``.
        cluster_id: Separates deployments that share one name service; 1 to 255
            printable characters without ``/``.
        session_timeout_seconds: Silence after which the name service ends a session;
            0.1 to 3,600.
        lease_seconds: Bounds how long a leader believes without an acknowledgement;
            at least 0.05, at most half the session timeout.
        confirm_timeout_seconds: A granted contender that has not confirmed by then is
            revoked and queues last; None means the session timeout.
        connect_timeout_seconds: How long opening and single requests may take.
        on_suspended: ``"keep"`` tells listeners and contenders only when the session
            is lost, ``"clear"`` as soon as contact is.
        curve_public_key_file: Our own CURVE public key.
        curve_secret_key_file: Our own CURVE secret key, readable by us alone.
        curve_server_key_file: The server's CURVE public key; or several, of which it
            has one.  It is read again when the server has none of those read before.
        zookeeper_auth_file: ``scheme:credential`` on one line, readable by us alone.
        zookeeper_tls_ca_file: Turns TLS on: whom to trust.
        zookeeper_tls_cert_file: Our own certificate, where the ensemble wants one.
        zookeeper_tls_key_file: Its key.

    Raises:
        ConfigurationError: On construction; says which setting to change, and how.
    """

    url: str
    cluster_id: str = "default"
    session_timeout_seconds: float = 10.0
    lease_seconds: float = 0.5
    confirm_timeout_seconds: float | None = None
    connect_timeout_seconds: float = 5.0
    on_suspended: OnSuspended = "keep"
    curve_public_key_file: str | None = field(default=None, repr=False)
    curve_secret_key_file: str | None = field(default=None, repr=False)
    curve_server_key_file: str | None = field(default=None, repr=False)
    zookeeper_auth_file: str | None = field(default=None, repr=False)
    zookeeper_tls_ca_file: str | None = field(default=None, repr=False)
    zookeeper_tls_cert_file: str | None = field(default=None, repr=False)
    zookeeper_tls_key_file: str | None = field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        self._make_exact()
        self._check_url()
        check_component_id(self.cluster_id, what="cluster_id")
        self._check_times()
        if self.on_suspended not in ("keep", "clear"):
            message = (
                f'on_suspended must be "keep" or "clear", not {self.on_suspended!r}'
            )
            raise ConfigurationError(message)
        self._check_files()

    @classmethod
    def load(
        cls, path: str | os.PathLike[str] | None = None, **settings: Any
    ) -> HAConfig:
        """
        Return the configuration of this machine and process.

        Args:
            path: The TOML file; by default ``LODESTAR_CONFIG``, or ``lodestar.toml``
                in the working directory if there is one.
            settings: What outweighs file and environment.

        Raises:
            ConfigurationError: If a setting is unknown, malformed or missing, or the
                file cannot be read.
        """
        _check_names(settings, "")
        merged: dict[str, Any] = {}
        merged |= _read_file(path)
        merged |= _read_environment(os.environ)
        merged |= settings
        if "url" not in merged:
            message = (
                "no name service is named: give --url on the command line or url=… in "
                "Python, LODESTAR_URL in the environment, or url in lodestar.toml"
            )
            raise ConfigurationError(message)
        return cls(**merged)

    @property
    def backend(self) -> Backend:
        """Return which backend the URL names."""
        return Backend(self.url.partition(":")[0])

    @property
    def embedded_name(self) -> str:
        """Return the name of an embedded URL; empty for a private one."""
        assert self.backend is Backend.EMBEDDED
        return self.url.partition(":")[2]

    @property
    def server_addresses(self) -> tuple[ServerAddress, ...]:
        """Return the addresses of the URL, in its order."""
        return _parse_addresses(self.url)

    @property
    def chroot(self) -> str:
        """Return the path of a ZooKeeper URL: empty, or ``/a/b``, no slash last."""
        return unquote(_split(self.url).path).rstrip("/")

    @property
    def effective_confirm_timeout_seconds(self) -> float:
        """Return the confirm timeout, defaulted."""
        if self.confirm_timeout_seconds is None:
            return self.session_timeout_seconds
        return self.confirm_timeout_seconds

    @property
    def is_encrypted(self) -> bool:
        """Return whether the settings ask for CURVE or TLS."""
        return (
            self.curve_server_key_file is not None
            or self.zookeeper_tls_ca_file is not None
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self.backend is Backend.EMBEDDED:
            message = (
                f"{self.url!r} does not leave its process, so it cannot be sent to "
                "another: use a LeaderServer instead, which can run as a thread of "
                "the driver (url='leaderserver://host:port')"
            )
            raise ConfigurationError(message)
        return (_rebuild, (self.to_settings(),))

    def to_settings(self) -> dict[str, str | float]:
        """Return every setting that is not None by its name; `HAConfig` takes it."""
        values = {name: getattr(self, name) for name in sorted(_field_names())}
        return {name: value for name, value in values.items() if value is not None}

    def _make_exact(self) -> None:
        """Keep text and numbers of subclasses (``numpy.str_``) as what they say."""
        for name in sorted(_field_names()):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, str.__str__(value))
            elif isinstance(value, float):
                object.__setattr__(self, name, float.__float__(value))
            elif isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, int.__index__(value))

    def _check_url(self) -> None:
        if not isinstance(self.url, str):
            message = f"url must be text, not {type(self.url).__name__}"
            raise ConfigurationError(message)
        if not self.url.isprintable():
            # urlsplit would drop a newline, and read another address than is shown.
            message = f"the url {self.url!r} must be printable"
            raise ConfigurationError(message)
        scheme, colon, rest = self.url.partition(":")
        schemes = [backend.value for backend in Backend]
        if not colon or scheme not in schemes:
            message = (
                f"the url {self.url!r} names no known backend: it must begin with "
                "'embedded:', 'leaderserver://' or 'zookeeper://'"
            )
            raise ConfigurationError(message)
        if scheme == Backend.EMBEDDED.value:
            if rest:
                check_component_id(rest, what="the name after 'embedded:'")
            return
        addresses = _parse_addresses(self.url)
        if scheme == Backend.LEADERSERVER.value:
            if len(addresses) != 1:
                message = f"a LeaderServer is one host and port, not {self.url!r}"
                raise ConfigurationError(message)
            if self.chroot:
                message = (
                    f"a LeaderServer has no paths: take {self.chroot!r} off "
                    f"{self.url!r}"
                )
                raise ConfigurationError(message)
        elif self.chroot:
            names = self.chroot[1:].split("/")
            if not self.chroot.isprintable() or not {"", ".", ".."}.isdisjoint(names):
                message = (
                    f"the path of the url {self.url!r} must be printable names "
                    "between single slashes, none of them '.' or '..'"
                )
                raise ConfigurationError(message)

    def _check_times(self) -> None:
        for name in _SECONDS_FIELDS:
            value = getattr(self, name)
            if value is None and name == "confirm_timeout_seconds":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                message = f"{name} must be a number of seconds, not {value!r}"
                raise ConfigurationError(message)
            if not 0 < value <= _TIMEOUT_SECONDS_MAX:  # also refuses NaN
                message = (
                    f"{name} must be above 0 and at most {_TIMEOUT_SECONDS_MAX:g} "
                    f"seconds, not {value!r}"
                )
                raise ConfigurationError(message)
        _at_least(
            "session_timeout_seconds",
            self.session_timeout_seconds,
            _SESSION_TIMEOUT_SECONDS_MIN,
        )
        if self.backend is not Backend.ZOOKEEPER:
            _at_least("lease_seconds", self.lease_seconds, _LEASE_SECONDS_MIN)
            if self.lease_seconds > self.session_timeout_seconds / 2:
                message = (
                    f"lease_seconds ({self.lease_seconds:g}) must be at most half of "
                    f"session_timeout_seconds ({self.session_timeout_seconds:g}): "
                    "lower the one or raise the other"
                )
                raise ConfigurationError(message)
        _at_least(
            "confirm_timeout_seconds",
            self.effective_confirm_timeout_seconds,
            _CONFIRM_TIMEOUT_SECONDS_MIN,
        )

    def _check_files(self) -> None:
        for name in _FILE_FIELDS:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                message = f"{name} must be the path of a file, not {value!r}"
                raise ConfigurationError(message)
        curve = (
            self.curve_public_key_file,
            self.curve_secret_key_file,
            self.curve_server_key_file,
        )
        if any(curve) and not all(curve):
            message = (
                "CURVE needs all of curve_public_key_file, curve_secret_key_file and "
                "curve_server_key_file: set the ones that are missing"
            )
            raise ConfigurationError(message)
        if any(curve) and self.backend is not Backend.LEADERSERVER:
            message = f"CURVE keys are for leaderserver:// URLs, not for {self.url!r}"
            raise ConfigurationError(message)
        tls = (self.zookeeper_tls_cert_file, self.zookeeper_tls_key_file)
        if any(tls) and not (all(tls) and self.zookeeper_tls_ca_file):
            message = (
                "a TLS certificate needs all of zookeeper_tls_ca_file, "
                "zookeeper_tls_cert_file and zookeeper_tls_key_file"
            )
            raise ConfigurationError(message)
        if (
            self.zookeeper_auth_file or self.zookeeper_tls_ca_file
        ) and self.backend is not Backend.ZOOKEEPER:
            message = (
                f"zookeeper_* settings are for zookeeper:// URLs, not {self.url!r}"
            )
            raise ConfigurationError(message)


def _field_names() -> frozenset[str]:
    return frozenset(attribute.name for attribute in fields(HAConfig))


def _rebuild(settings: dict[str, Any]) -> HAConfig:
    return HAConfig(**settings)


def _at_least(name: str, value: float, minimum: float) -> None:
    if value < minimum:
        message = f"{name} must be at least {minimum:g} seconds, not {value:g}"
        raise ConfigurationError(message)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # brackets that do not match, for one
        message = f"the url {url!r} is malformed: {error}"
        raise ConfigurationError(message) from error


def _parse_addresses(url: str) -> tuple[ServerAddress, ...]:
    parts = _split(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        message = (
            f"the url {url!r} may have a host, a port and a path only: credentials "
            "and options are settings of their own"
        )
        raise ConfigurationError(message)
    texts = parts.netloc.split(",") if parts.netloc else []
    if not url.partition(":")[2].startswith("//") or not texts:
        message = f"the url {url!r} names no server: write it as scheme://host:port"
        raise ConfigurationError(message)
    return tuple(_parse_address(text, url) for text in texts)


def _parse_address(text: str, url: str) -> ServerAddress:
    host, colon, port_text = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not host.isprintable() or " " in host:
        message = f"{text!r} in the url {url!r} is not host:port"
        raise ConfigurationError(message)
    is_number = port_text.isascii() and port_text.isdigit()
    if not (
        is_number
        and len(port_text) <= _PORT_LENGTH_MAX
        and 1 <= int(port_text) <= _PORT_MAX
    ):
        message = f"the port in {text!r} of the url {url!r} must be 1 to {_PORT_MAX}"
        raise ConfigurationError(message)
    return ServerAddress(host=host, port=int(port_text))


def _read_file(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return the settings of the TOML file: its top level, or its [lodestar] table."""
    is_named = path is not None or "LODESTAR_CONFIG" in os.environ
    chosen = Path(path or os.environ.get("LODESTAR_CONFIG") or CONFIG_FILE_NAME)
    if not is_named and not chosen.exists():
        return {}
    try:
        with chosen.open("rb") as file:
            content = parse_toml(file.read())
    except OSError as error:
        message = f"cannot read the configuration {chosen}: {error.strerror}"
        raise ConfigurationError(message) from error
    except ValueError as error:
        message = f"the configuration {chosen} is not TOML: {error}"
        raise ConfigurationError(message) from error
    table = content.get("lodestar", content)
    if not isinstance(table, dict):
        message = f"'lodestar' in {chosen} must be a table of settings"
        raise ConfigurationError(message)
    _check_names(table, f"the configuration {chosen} has ")
    return table


def _check_names(settings: Iterable[str], place: str) -> None:
    """Refuse names that no setting has, and say in which *place* they stand."""
    known = sorted(_field_names())
    unknown = sorted(set(settings).difference(known))
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], known, 1, _LIKENESS_MIN)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    message = f"{place}unknown settings: {', '.join(unknown)}; {hint}"
    raise ConfigurationError(message)


def unknown_environment(environment: Mapping[str, str]) -> list[str]:
    """
    Return the ``LODESTAR_*`` names of *environment* that mean nothing, sorted.

    ``lodestar elect`` sets some for its command, servers have their own (as
    ``LODESTAR_NODE_DATA_DIR``), and Kubernetes sets ``LODESTAR_PORT`` and the like
    where a service is called lodestar.
    """
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in _field_names()}
    return sorted(
        name
        for name in set(environment) - known - _OTHER_NAMES
        if name.startswith(ENVIRONMENT_PREFIX) and not _OTHERS.match(name)
    )


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings among *environment*; refuse what must be a misspelt one."""
    known = [f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in sorted(_field_names())]
    for name in unknown_environment(environment):
        near = difflib.get_close_matches(name, known, 1, _LIKENESS_MIN)
        if near:
            raise ConfigurationError(f"{name} is no setting: did you mean {near[0]}?")
    settings: dict[str, Any] = {}
    for name in sorted(_field_names()):
        text = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if text is None:
            continue
        if name not in _SECONDS_FIELDS:
            settings[name] = text
            continue
        try:
            settings[name] = float(text)
        except ValueError as error:
            message = (
                f"{ENVIRONMENT_PREFIX}{name.upper()} must be a number of seconds, "
                f"not {text!r}"
            )
            raise ConfigurationError(message) from error
    return settings
