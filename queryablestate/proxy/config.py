"""
`ProxyConfig`: where a proxy listens, whom it admits, what it limits (C4); pure.

Settings are validated together, when the configuration is made: what starts, fits.
What each setting means is said once, in its ``comment``, which `print_config` writes
into the file; `queryablestate.proxy.config_toml` reads and writes that file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final, final

import attrs
from attrs import Attribute, field, frozen

from nameservice import ConfigurationError, seconds_to_ns
from nameservice.settings import (
    FilePath,
    check_all_or_none,
    check_count,
    check_flag,
    check_frame_size,
    check_optional_text,
    check_text,
    insecure_error,
    renamed_settings,
    seconds_between,
    whole_between,
)
from queryablestate.control.limits import ControlLimits
from queryablestate.proxy.access import AccessList, open_access
from queryablestate.proxy.cache import CacheRule
from queryablestate.proxy.rate_limit import RateLimitRule
from zmqtransport.endpoints import Endpoint, parse_endpoint


__all__ = ["RENAMED", "ProxyConfig", "check_reloadable"]

_SECONDS_MIN: Final = 0.01
_SECONDS_MAX: Final = 3600.0
_TICKET_SECONDS_MIN: Final = 0.1
_TICKET_SECONDS_MAX: Final = 60.0
_CACHE_SIZE_BYTES_MAX: Final = 1024**4
_RULE_COUNT_MAX: Final = 1_000
_REPLICA_COUNT_MAX: Final = 16
_CURVE_FILES: Final = ("curve_public_key_file", "curve_secret_key_file")

RENAMED: Final = {"connection_count_max": "connections_max"}
"""What settings are called now that had another name once."""

_CHECK_SECONDS: Final = seconds_between(_SECONDS_MIN, _SECONDS_MAX)
_CHECK_TICKET: Final = seconds_between(_TICKET_SECONDS_MIN, _TICKET_SECONDS_MAX)
_CHECK_REPLICAS: Final = whole_between(1, _REPLICA_COUNT_MAX, unit="copies")
_CHECK_CACHE_SIZE: Final = whole_between(0, _CACHE_SIZE_BYTES_MAX, unit="bytes")


def _check_rules(_: object, attribute: Attribute[Any], value: tuple[Any, ...]) -> None:
    if len(value) > _RULE_COUNT_MAX:
        raise ConfigurationError(
            f"{attribute.name} must be at most {_RULE_COUNT_MAX:,} rules, "
            f"not {len(value):,}: use wildcards"
        )


def _to_path(value: FilePath | None) -> str | None:
    """Return the path as text; what is none is left to the validator."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _to_rate_limits(value: Iterable[RateLimitRule]) -> tuple[RateLimitRule, ...]:
    return tuple(value)


def _to_cache_rules(value: Iterable[CacheRule]) -> tuple[CacheRule, ...]:
    return tuple(value)


def _about(
    comment: str, *, example: str = "", is_reloadable: bool = False
) -> dict[str, Any]:
    """
    Return the metadata of a setting.

    Args:
        comment: What it means, for the file.
        example: What the file shows where it is not set.
        is_reloadable: Whether it can change while the proxy runs.
    """
    return {"comment": comment, "example": example, "is_reloadable": is_reloadable}


@final
@renamed_settings(RENAMED)
@frozen(kw_only=True)
class ProxyConfig:
    """
    Where a proxy listens, whom it admits, and its limits.

    Each setting is described by the ``comment`` in its metadata.

    Raises:
        ConfigurationError: On construction; says which setting to change, and how.
    """

    bind: str = field(
        default="tcp://127.0.0.1:0",
        validator=check_text,
        metadata=_about(
            "Where clients, writers and nodes connect: tcp://HOST:PORT. Port 0 takes "
            "any free one: everybody finds the proxy through the name service."
        ),
    )
    advertised_host: str | None = field(
        default=None,
        validator=check_optional_text,
        metadata=_about(
            "The host that is published to them instead of that of bind; needed if "
            "bind means every interface.",
            example="proxy-1.example.org",
        ),
    )
    is_insecure_allowed: bool = field(
        default=False,
        validator=check_flag,
        metadata=_about(
            "Let other machines in even without CURVE keys and callers. Every client "
            "that connects may then do everything, and tokens travel as they are."
        ),
    )
    curve_public_key_file: str | None = field(
        default=None,
        validator=check_optional_text,
        converter=_to_path,
        repr=False,
        metadata=_about(
            "The proxy's own CURVE public key ('lodestar keygen' makes one); together "
            "with the next it turns encryption on.",
            example="/etc/lodestar/proxy.key",
        ),
    )
    curve_secret_key_file: str | None = field(
        default=None,
        validator=check_optional_text,
        converter=_to_path,
        repr=False,
        metadata=_about(
            "The proxy's own CURVE secret key, readable by it alone.",
            example="/etc/lodestar/proxy.key_secret",
        ),
    )
    deadline_seconds_default: float = field(
        default=5.0,
        validator=_CHECK_SECONDS,
        metadata=_about(
            "How long a request may take that names no deadline of its own.",
            is_reloadable=True,
        ),
    )
    deadline_seconds_max: float = field(
        default=60.0,
        validator=_CHECK_SECONDS,
        metadata=_about(
            "Longer deadlines of requests are shortened to this.", is_reloadable=True
        ),
    )
    commit_timeout_seconds_max: float = field(
        default=600.0,
        validator=_CHECK_SECONDS,
        metadata=_about(
            "Writers that want to wait longer for the nodes are answered after this.",
            is_reloadable=True,
        ),
    )
    session_timeout_seconds: float = field(
        default=10.0,
        validator=_CHECK_SECONDS,
        metadata=_about(
            "Silence after which a node counts as gone. Nodes send a heartbeat every "
            "fifth of it (with direct_reads every twentieth, at most eight a second), "
            "and stop answering when none was confirmed for as long."
        ),
    )
    frame_size_bytes_max: int = field(
        default=16 * 1024 * 1024,
        validator=check_frame_size,
        metadata=_about("Who sends a larger frame is disconnected."),
    )
    connections_max: int = field(
        default=10_000,
        validator=check_count,
        metadata=_about(
            "Connections; the system's limit of open files may be lower, and is then "
            "kept to."
        ),
    )
    session_count_max: int = field(
        default=10_000,
        validator=check_count,
        metadata=_about("Sessions of clients and writers.", is_reloadable=True),
    )
    pending_count_max: int = field(
        default=100_000,
        validator=check_count,
        metadata=_about(
            "Requests that were passed on to nodes and are not answered yet, of "
            "256 MiB at most. Where they are short, callers share these places.",
            is_reloadable=True,
        ),
    )
    keys_per_request_max: int = field(
        default=10_000,
        validator=check_count,
        metadata=_about("Keys in one request.", is_reloadable=True),
    )
    job_count_max: int = field(
        default=1_000,
        validator=check_count,
        metadata=_about(
            "Jobs that are known. One that has no state makes room for a new one.",
            is_reloadable=True,
        ),
    )
    state_count_max: int = field(
        default=1_000,
        validator=check_count,
        metadata=_about("States of all jobs together.", is_reloadable=True),
    )
    node_count_max: int = field(
        default=1_000,
        validator=check_count,
        metadata=_about(
            "Nodes that are known. One that is away makes room for a new one if it "
            "has nothing.",
            is_reloadable=True,
        ),
    )
    replica_count: int = field(
        default=1,
        validator=_CHECK_REPLICAS,
        metadata=_about(
            "On how many nodes a new job keeps each key group, if there are that many "
            "nodes. With 2, the death of a node costs no read. 'lodestar rescale' "
            "changes it for a job that is there.",
            is_reloadable=True,
        ),
    )
    replica_reads: bool = field(
        default=True,
        validator=check_flag,
        metadata=_about(
            "Whether other copies are asked than the one that answers as a rule, if "
            "there are any: when its node is late (about the 99th percentile of late, "
            "20 ms at least; a tenth of all reads at most), unresponsive or away.",
            is_reloadable=True,
        ),
    )
    direct_reads: bool = field(
        default=True,
        validator=check_flag,
        metadata=_about(
            "Whether clients may ask nodes themselves, with a ticket of the proxy. "
            "Callers and states with a rate limit or a cache get none. After a node "
            "has lost its part of a job, a batch may wait for up to a fifth of "
            "session_timeout_seconds until it has heard of that.",
        ),
    )
    direct_ticket_seconds: float = field(
        default=10.0,
        validator=_CHECK_TICKET,
        metadata=_about(
            "How long such a ticket is worth something. A right, or a limit, that is "
            "changed holds for direct reads after this.",
            is_reloadable=True,
        ),
    )
    joining_key_groups_max: int = field(
        default=64,
        validator=check_count,
        metadata=_about(
            "How many key groups of a job a node copies at once, while the job moves. "
            "Of a job with more than 64 times as many, up to a 64th are. Fewer make a "
            "move dearer; but what a copy that fails costs, and how long a node "
            "keeps batches for it, is less then.",
            is_reloadable=True,
        ),
    )
    cache_size_bytes_max: int = field(
        default=64 * 1024 * 1024,
        validator=_CHECK_CACHE_SIZE,
        metadata=_about(
            "How much memory answers that are kept may take; 0 keeps none. Without a "
            "[[cache]] rule none are kept anyway.",
            is_reloadable=True,
        ),
    )
    access: AccessList = field(
        factory=open_access,
        metadata=_about(
            "Who may do what, a table for each caller. Without any, every "
            "client that connects may do everything. A caller has either a token, of "
            "which the SHA-256 stands here, or a CURVE key. read and write are globs, "
            "JOB/STATE; admin may drop states and do everything else; node may join as "
            "a node.",
            is_reloadable=True,
        ),
    )
    rate_limits: tuple[RateLimitRule, ...] = field(
        default=(),
        converter=_to_rate_limits,
        validator=_check_rules,
        metadata=_about(
            'How many keys per second may be asked. In the scope "caller" each caller '
            'has a budget of its own; in the scope "state" each state has one, which '
            "its callers share. Of each scope the first rule that matches counts; "
            "without one there is no limit. burst is how many keys may be asked at "
            "once, by default those of one second. A question costs its keys, and the "
            "rows that it reads beyond them: a map its entries, a page what it "
            "returns, a count what it counts. Without callers everybody is one "
            "caller.",
            is_reloadable=True,
        ),
    )
    cache: tuple[CacheRule, ...] = field(
        default=(),
        converter=_to_cache_rules,
        validator=_check_rules,
        metadata=_about(
            "How long answers may be given again, if no newer batch was committed. The "
            "first rule that matches a state counts; without one, and with 0 seconds, "
            "every answer is a new one.",
            is_reloadable=True,
        ),
    )

    def __attrs_post_init__(self) -> None:
        if self.deadline_seconds_default > self.deadline_seconds_max:
            raise ConfigurationError(
                f"deadline_seconds_default ({self.deadline_seconds_default:g}) must be "
                f"at most deadline_seconds_max ({self.deadline_seconds_max:g}): lower "
                "the one or raise the other"
            )
        self._check_curve()
        self._check_endpoints()

    @property
    def bind_endpoint(self) -> Endpoint:
        """Return *bind*, taken apart."""
        return parse_endpoint(self.bind)

    @property
    def uses_curve(self) -> bool:
        """Return whether connections are encrypted."""
        return self.curve_secret_key_file is not None

    @property
    def control_limits(self) -> ControlLimits:
        """Return how much the control plane takes on."""
        return ControlLimits(
            job_count_max=self.job_count_max,
            state_count_max=self.state_count_max,
            node_count_max=self.node_count_max,
            replica_count=self.replica_count,
            joining_key_groups_max=self.joining_key_groups_max,
        )

    @property
    def session_timeout_ns(self) -> int:
        """Return *session_timeout_seconds* in nanoseconds."""
        return seconds_to_ns(self.session_timeout_seconds)

    def _check_curve(self) -> None:
        check_all_or_none(self, *_CURVE_FILES, what="CURVE")
        with_key = [
            entry.name
            for entry in self.access.callers or ()
            if entry.public_key is not None
        ]
        if with_key and not self.uses_curve:
            raise ConfigurationError(
                f"caller {with_key[0]!r} has a public_key, which cannot be proved to a "
                "proxy without CURVE: set curve_public_key_file and "
                "curve_secret_key_file, or give it token_sha256 instead"
            )

    def _check_endpoints(self) -> None:
        bind = self.bind_endpoint
        is_secure = self.uses_curve and not self.access.is_open
        if not (bind.is_loopback or is_secure or self.is_insecure_allowed):
            needed = (*_CURVE_FILES, "[callers.NAME] tables")
            raise insecure_error("bind", bind, needed)
        if self.advertised_host is not None:
            published = Endpoint(host=self.advertised_host, port=1)
            try:
                parse_endpoint(str(published)).check_connectable()
            except ConfigurationError as exc:
                raise ConfigurationError(
                    "advertised_host must be a host name or an address that others "
                    f"can connect to, not {self.advertised_host!r}"
                ) from exc
        elif bind.is_wildcard:
            raise ConfigurationError(
                f"bind {bind} is every interface, which is no address to connect to: "
                "set advertised_host to how others reach this machine"
            )


def check_reloadable(old: ProxyConfig, new: ProxyConfig) -> None:
    """
    Refuse to go on from *old* to *new* where that takes a restart.

    Raises:
        ConfigurationError: Names the settings that a running proxy cannot change.
    """
    fixed = [
        attribute.name
        for attribute in attrs.fields(ProxyConfig)
        if not attribute.metadata["is_reloadable"]
        and getattr(old, attribute.name) != getattr(new, attribute.name)
    ]
    if fixed:
        raise ConfigurationError(
            f"{', '.join(fixed)} cannot change while the proxy runs: restart it, or "
            "take the change back; nothing was changed"
        )
