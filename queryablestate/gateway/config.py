"""`GatewayConfig`: where a gateway listens, for whom, and its limits; pure."""

from __future__ import annotations

from typing import Any, Final, final
from urllib.parse import urlsplit

from attrs import Attribute, field, frozen

from nameservice.errors import ConfigurationError
from nameservice.fields import check_address
from nameservice.settings import (
    check_all_or_none,
    check_flag,
    check_optional_path,
    check_optional_text,
    check_text,
    seconds_between,
    whole_between,
)
from zmqtransport.endpoints import Endpoint, parse_endpoint


__all__ = ["LEADERS", "GatewayConfig"]

LEADERS: Final = ("open", "callers", "off")
"""Who is told of leaders: everybody, those whom the proxy takes, or no caller."""

_CERTIFICATE_FILES: Final = ("certificate_file", "certificate_key_file")
_CHECK_SECONDS: Final = seconds_between(0.01, 86_400.0)
_CHECK_COUNT: Final = whole_between(1, 1_000_000)
_CHECK_HEADERS: Final = whole_between(1_024, 1 << 20, unit="bytes")
_CHECK_BODY: Final = whole_between(1_024, 64 << 20, unit="bytes")


def _check_leaders(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and value not in LEADERS:
        raise ConfigurationError(
            f"{attribute.name} must be {', '.join(LEADERS)}, not {value!r}"
        )


@final
@frozen(kw_only=True)
class GatewayConfig:
    """
    Where a gateway listens, for whom, and its limits.

    Attributes:
        bind: Where it listens: ``HOST:PORT``; port 0 takes any free one, ``*`` is every
            interface.
        advertised_url: How others reach it, if not by *bind*: it is announced, and on
            loopback no other name of the web is answered.
        certificate_file: The chain of certificates for HTTPS, in PEM.
        certificate_key_file: The key of the first one.
        is_insecure_allowed: Whether others than this machine may be served without
            HTTPS: everybody on the way reads tokens and values.
        is_announced: Whether it contends for ``REST_ENDPOINT`` under its URL, so that
            it is found by the name service; each gateway answers, leading or not.
        leaders: Who is told of leaders, one of `LEADERS`.  None is ``open`` where the
            name service asks the gateway for no credentials, and ``off`` where it does:
            what it tells the gateway is not for everybody.
        has_console: Whether there are web pages under ``/console/``.
        deadline_seconds: How long a question may take that does not say.
        deadline_seconds_max: How long one may say that it may take.
        request_seconds: Within which head and body of a request have come.
        idle_seconds: After which a connection without a request ends.
        write_seconds: Within which a client has read what waits for it (64 KiB).
        drain_seconds: How long requests under way may take when the gateway ends.
        heartbeat_seconds: After which a watcher is told that the gateway is there.
        park_seconds: How long nodes are asked to wait for the next batch.
        header_size_bytes_max: Of the head of a request.
        body_size_bytes_max: Of the body of a request.
        connection_count_max: Connections; the oldest without a request goes for a new
            one.
        request_count_max: Requests that are answered at once, without watches.
        caller_count_max: Callers that are connected to the proxy at once.
        caller_idle_seconds: After which the connection of a caller ends.
        newcomer_count_max: Callers at once that the proxy has not yet taken.
        watch_count_max: Watches of all callers.
        watch_count_per_caller_max: Watches of one caller.
        large_read_count_per_caller_max: Pages, counts, whole states and batches of keys
            that one caller reads at once.
        batch_size_bytes_max: Of the answer to one ``keys:batchGet``.
        batch_key_count_max: Keys of one ``keys:batchGet``.

    Raises:
        ConfigurationError: Says what to change.
    """

    bind: str = field(default="127.0.0.1:0", validator=check_text)
    advertised_url: str | None = field(default=None, validator=check_optional_text)
    certificate_file: str | None = field(default=None, validator=check_optional_path)
    certificate_key_file: str | None = field(
        default=None, validator=check_optional_path
    )
    is_insecure_allowed: bool = field(default=False, validator=check_flag)
    is_announced: bool = field(default=True, validator=check_flag)
    leaders: str | None = field(default=None, validator=_check_leaders)
    has_console: bool = field(default=True, validator=check_flag)
    deadline_seconds: float = field(default=5.0, validator=_CHECK_SECONDS)
    deadline_seconds_max: float = field(default=60.0, validator=_CHECK_SECONDS)
    request_seconds: float = field(default=10.0, validator=_CHECK_SECONDS)
    idle_seconds: float = field(default=30.0, validator=_CHECK_SECONDS)
    write_seconds: float = field(default=30.0, validator=_CHECK_SECONDS)
    drain_seconds: float = field(default=10.0, validator=_CHECK_SECONDS)
    heartbeat_seconds: float = field(default=15.0, validator=_CHECK_SECONDS)
    park_seconds: float = field(default=20.0, validator=_CHECK_SECONDS)
    header_size_bytes_max: int = field(default=16 * 1024, validator=_CHECK_HEADERS)
    body_size_bytes_max: int = field(default=1 << 20, validator=_CHECK_BODY)
    connection_count_max: int = field(default=5_000, validator=_CHECK_COUNT)
    request_count_max: int = field(default=512, validator=_CHECK_COUNT)
    caller_count_max: int = field(default=64, validator=_CHECK_COUNT)
    caller_idle_seconds: float = field(default=60.0, validator=_CHECK_SECONDS)
    newcomer_count_max: int = field(default=16, validator=_CHECK_COUNT)
    watch_count_max: int = field(default=4_000, validator=_CHECK_COUNT)
    watch_count_per_caller_max: int = field(default=2_000, validator=_CHECK_COUNT)
    large_read_count_per_caller_max: int = field(default=8, validator=_CHECK_COUNT)
    batch_size_bytes_max: int = field(default=32 << 20, validator=_CHECK_BODY)
    batch_key_count_max: int = field(default=1_000, validator=_CHECK_COUNT)

    def __attrs_post_init__(self) -> None:
        check_all_or_none(self, *_CERTIFICATE_FILES, what="HTTPS")
        bind = self.endpoint
        if not (bind.is_loopback or self.uses_https or self.is_insecure_allowed):
            raise ConfigurationError(
                f"bind {self.bind} lets other machines send tokens that anybody on the "
                "way can read: set certificate_file and certificate_key_file for HTTPS "
                "(--certificate-file, --certificate-key-file), bind to 127.0.0.1, or "
                "accept it with is_insecure_allowed (--insecure)"
            )
        if self.deadline_seconds > self.deadline_seconds_max:
            raise ConfigurationError(
                f"deadline_seconds is {self.deadline_seconds:g}: it must be at most "
                f"deadline_seconds_max, {self.deadline_seconds_max:g}"
            )
        if self.advertised_url is not None:
            _check_url(self.advertised_url)
        elif bind.is_wildcard and self.is_announced:
            raise ConfigurationError(
                f"bind {self.bind} is every interface, which is no address to connect "
                "to: set advertised_url to how others reach this machine, or "
                "is_announced to false"
            )

    @property
    def endpoint(self) -> Endpoint:
        """Return where it listens."""
        try:
            return parse_endpoint(f"tcp://{self.bind}")
        except ConfigurationError as error:
            raise ConfigurationError(
                f"bind must be HOST:PORT, e.g. 127.0.0.1:8080, [::1]:8080 or *:8080, "
                f"not {self.bind!r}"
            ) from error

    @property
    def uses_https(self) -> bool:
        """Return whether it has certificates."""
        return self.certificate_file is not None


def _check_url(text: str) -> None:
    check_address(text)
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigurationError(
            f"advertised_url must be http://HOST[:PORT] or https://…, not {text!r}"
        )
