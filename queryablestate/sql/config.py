"""`SQLConfig`: where `lodestar sql` listens, and what it limits; pure."""

from __future__ import annotations

import ipaddress
from typing import Final, final

from attrs import field, frozen

from nameservice import ConfigurationError
from nameservice.settings import (
    check_all_or_none,
    check_count,
    check_flag,
    check_optional_text,
    seconds_between,
    whole_between,
)


__all__ = ["SQLConfig", "split_address"]

_MIB: Final = 1024 * 1024
_PORT_MAX: Final = 65_535
_TLS_FILES: Final = ("certificate_file", "certificate_key_file")


def split_address(text: str) -> tuple[str, int]:
    """
    Return host and port of ``HOST:PORT``; without HOST it is 127.0.0.1.

    Raises:
        ConfigurationError: If it is no such text.
    """
    host, mark, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > _PORT_MAX or (mark and " " in host):
        raise ConfigurationError(f"bind must be HOST:PORT, not {text!r}")
    return host or "127.0.0.1", int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@final
@frozen(kw_only=True)
class SQLConfig:
    """
    The settings of a `SQLServer`.

    Attributes:
        bind: ``HOST:PORT``; port 0 takes any free one.
        certificate_file: PEM file of the server's certificate, with those between
            it and its authority.
        certificate_key_file: PEM file of its key.
        is_insecure_allowed: Whether other machines may connect without TLS.
        worker_count: How many queries run at once, each in a process of its own.
        thread_count: How many threads compute one.
        memory_limit_bytes: What a worker may take for one query, beside what it has
            without any; on Linux the kernel holds it to that.
        statement_timeout_seconds: How long a statement may take; sessions may set less.
        login_timeout_seconds: How long a tool may take to begin a session.
        connection_count_max: How many sessions there may be, and how many connections
            beside them that have yet to begin one.
        client_count_max: How many callers' connections to the proxy are kept.
        message_size_bytes_max: How long a message of a tool may be.
        text_size_max: How long a text of statements may be, in characters.
    """

    bind: str = "127.0.0.1:5432"
    certificate_file: str | None = field(default=None, validator=check_optional_text)
    certificate_key_file: str | None = field(
        default=None, validator=check_optional_text
    )
    is_insecure_allowed: bool = field(default=False, validator=check_flag)
    worker_count: int = field(
        default=2, validator=whole_between(1, 64, unit="processes")
    )
    thread_count: int = field(default=1, validator=whole_between(1, 64, unit="threads"))
    memory_limit_bytes: int = field(
        default=512 * _MIB, validator=whole_between(16 * _MIB, 1024**4, unit="bytes")
    )
    statement_timeout_seconds: float = field(
        default=60.0, validator=seconds_between(0.01, 86_400.0)
    )
    login_timeout_seconds: float = field(
        default=10.0, validator=seconds_between(0.01, 3_600.0)
    )
    connection_count_max: int = field(default=100, validator=check_count)
    client_count_max: int = field(default=50, validator=check_count)
    message_size_bytes_max: int = field(
        default=_MIB, validator=whole_between(1_024, 1024 * _MIB, unit="bytes")
    )
    text_size_max: int = field(
        default=65_536, validator=whole_between(100, 16 * _MIB, unit="characters")
    )

    def __attrs_post_init__(self) -> None:
        host, _ = split_address(self.bind)
        check_all_or_none(self, *_TLS_FILES, what="TLS")
        is_safe = _is_loopback(host) or self.certificate_file is not None
        if not is_safe and not self.is_insecure_allowed:
            raise ConfigurationError(
                f"bind {self.bind} lets other machines send their tokens in the clear: "
                f"set {' and '.join(_TLS_FILES)}, bind to 127.0.0.1, or accept it with "
                "is_insecure_allowed (--insecure)"
            )

    @property
    def is_tls_required(self) -> bool:
        """Return whether a session may begin over TLS alone."""
        host, _ = split_address(self.bind)
        has_tls = self.certificate_file is not None
        return has_tls and not self.is_insecure_allowed and not _is_loopback(host)
