"""
`NodeConfig`: where a state node keeps its rows, where it listens, and its limits; pure.

Settings are validated together, when the configuration is made: what starts, fits.
"""

from __future__ import annotations

from typing import Any, Final, final

from attrs import Attribute, field, frozen

from nameservice.clock import seconds_to_ns
from nameservice.errors import ConfigurationError
from nameservice.fields import check_name
from nameservice.settings import (
    FilePath,
    check_all_or_none,
    check_count,
    check_flag,
    check_frame_size,
    check_optional_path,
    check_optional_text,
    check_path,
    check_text,
    insecure_error,
    seconds_between,
    whole_between,
)
from queryablestate.node.core.core import NodeLimits
from zmqtransport.endpoints import Endpoint, parse_endpoint


__all__ = ["NodeConfig"]

_SECONDS_MIN: Final = 0.01
_SECONDS_MAX: Final = 10 * 365 * 24 * 3600.0
_SIZE_BYTES_MAX: Final = 2**46
_HOST_PORT: Final = 1
_PORT_MAX: Final = 65_535
_READERS_MAX: Final = 64
_CURVE_FILES: Final = (
    "curve_public_key_file",
    "curve_secret_key_file",
    "allow_list_file",
)

_CHECK_SECONDS: Final = seconds_between(_SECONDS_MIN, _SECONDS_MAX)
_CHECK_WAIT: Final = seconds_between(0.0, _SECONDS_MAX)
_CHECK_READERS: Final = whole_between(0, _READERS_MAX)
_CHECK_SIZE: Final = whole_between(1 << 20, _SIZE_BYTES_MAX, unit="bytes")


def _check_node_id(_: object, attribute: Attribute[Any], value: object) -> None:
    check_optional_text(_, attribute, value)
    if isinstance(value, str):
        check_name(value, what=attribute.name)
        if " " in value:
            raise ConfigurationError(
                f"{attribute.name} must be one word, not {value!r}: lists of nodes are "
                "separated by spaces"
            )


@final
@frozen(kw_only=True)
class NodeConfig:
    """
    Where a state node keeps its rows, where it listens, and its limits.

    Attributes:
        data_dir: The directory of its rows; made if it is not there.  One node uses
            it at a time.
        bind: Where writers connect: ``tcp://HOST:PORT``; port 0 takes any free one,
            since writers are told by the proxy.
        advertised_host: The host that writers are told instead of that of *bind*.  If
            *bind* means every interface, it is by default the address of this machine
            that the name service is reached from.
        node_id: Its name, unique in the cluster; by default one that is drawn when the
            data directory is made.
        token: What it shows the proxy, if that has an access list; or *token_file*.
        token_file: A file with the token, that its owner alone may read.
        curve_public_key_file: The node's own CURVE public key; it proves with it who it
            is to the proxy, and writers are told it with the node's address.
        curve_secret_key_file: The node's CURVE secret key, readable by it alone.
        allow_list_file: Which writers and other nodes may connect; see
            `zmqtransport.access`.  Whatever their roles, those on it may bring rows,
            and copy them.
        is_insecure_allowed: Listen beyond this machine even without CURVE.
        size_bytes_max: How big the data may grow; disk is taken as it grows.
        is_durable: Whether what is staged and applied survives the machine, and not
            only the process.
        stage_retention_seconds: After so long, rows that no commit named are dropped.
        staged_bytes_per_job_max: How much of one job may be staged here and not
            decided; what goes beyond is refused (`StagingQuotaError`).  Batches of runs
            that have failed count until a later batch of their query is applied, or
            until *stage_retention_seconds* are over.
        chunk_size_bytes_max: Of one chunk of rows.
        chunks_per_writer_max: Chunks of one connection that wait for the disk.
        chunks_size_bytes_max: All chunks that wait for the disk; further ones are
            refused, and the writer brings them again.
        answer_size_bytes_max: Of one answer; keep it below the proxy's
            ``frame_size_bytes_max``.
        questions_waiting_max: Questions that wait for a batch, or for a scan's turn.
        connections_max: Connections of writers and other nodes.  The system's limit of
            open files may be lower; the node then says so, and keeps to that.
        copies_max: Other nodes that may copy rows from this one at the same time.
        readers: Processes that answer clients beside the node's own, from the same
            rows; 0 to 64.  Limits of memory hold for each.  They listen at the ports
            after that of *bind*, or at any free ones.
        drain_timeout_seconds: How long `StateNode.leave` waits until others have what
            is here, and no batch needs the node any more; 0: do not ask them.

    Raises:
        ConfigurationError: On construction; says which setting to change, and how.
    """

    data_dir: FilePath = field(validator=check_path)
    bind: str = field(default="tcp://127.0.0.1:0", validator=check_text)
    advertised_host: str | None = field(default=None, validator=check_optional_text)
    node_id: str | None = field(default=None, validator=_check_node_id)
    token: str | None = field(default=None, validator=check_optional_text, repr=False)
    token_file: FilePath | None = field(default=None, validator=check_optional_path)
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
    size_bytes_max: int = field(default=64 << 30, validator=_CHECK_SIZE)
    is_durable: bool = field(default=True, validator=check_flag)
    stage_retention_seconds: float = field(default=86_400.0, validator=_CHECK_SECONDS)
    staged_bytes_per_job_max: int = field(default=16 << 30, validator=_CHECK_SIZE)
    chunk_size_bytes_max: int = field(default=16 << 20, validator=check_frame_size)
    chunks_per_writer_max: int = field(default=64, validator=check_count)
    chunks_size_bytes_max: int = field(default=256 << 20, validator=_CHECK_SIZE)
    answer_size_bytes_max: int = field(
        default=(16 << 20) - (64 << 10), validator=check_frame_size
    )
    questions_waiting_max: int = field(default=10_000, validator=check_count)
    connections_max: int = field(default=10_000, validator=check_count)
    copies_max: int = field(default=8, validator=check_count)
    readers: int = field(default=0, validator=_CHECK_READERS)
    drain_timeout_seconds: float = field(default=60.0, validator=_CHECK_WAIT)

    def __attrs_post_init__(self) -> None:
        self._check_credentials()
        self._check_sizes()
        self._check_endpoints()

    @property
    def bind_endpoint(self) -> Endpoint:
        """Return *bind*, taken apart."""
        return parse_endpoint(self.bind)

    @property
    def uses_curve(self) -> bool:
        """Return whether writers must prove who they are."""
        return self.curve_secret_key_file is not None

    @property
    def stage_retention_us(self) -> int:
        """Return *stage_retention_seconds* in microseconds."""
        return seconds_to_ns(self.stage_retention_seconds) // 1_000

    @property
    def limits(self) -> NodeLimits:
        """Return what of this the core goes by."""
        return NodeLimits(
            questions_waiting_max=self.questions_waiting_max,
            chunks_per_writer_max=self.chunks_per_writer_max,
            chunks_size_bytes_max=self.chunks_size_bytes_max,
        )

    def _check_credentials(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise ConfigurationError("give token or token_file, not both")
        check_all_or_none(self, *_CURVE_FILES, what="CURVE")

    def _check_sizes(self) -> None:
        if self.chunks_size_bytes_max < self.chunk_size_bytes_max:
            raise ConfigurationError(
                f"chunks_size_bytes_max ({self.chunks_size_bytes_max:,}) must be at "
                f"least chunk_size_bytes_max ({self.chunk_size_bytes_max:,}): one "
                "chunk has to fit"
            )
        if self.staged_bytes_per_job_max < self.chunk_size_bytes_max:
            raise ConfigurationError(
                "staged_bytes_per_job_max "
                f"({self.staged_bytes_per_job_max:,}) must be at least "
                f"chunk_size_bytes_max ({self.chunk_size_bytes_max:,}): one chunk has "
                "to fit"
            )

    def _check_endpoints(self) -> None:
        bind = self.bind_endpoint
        if not (bind.is_loopback or self.uses_curve or self.is_insecure_allowed):
            raise insecure_error("bind", bind, _CURVE_FILES)
        if bind.port and bind.port + self.readers > _PORT_MAX:
            raise ConfigurationError(
                f"readers ({self.readers}) listen at the ports after that of bind "
                f"({bind}), up to {_PORT_MAX:,}: choose a lower port, or fewer readers"
            )
        if self.advertised_host is not None:
            endpoint = Endpoint(host=self.advertised_host, port=_HOST_PORT)
            parse_endpoint(str(endpoint)).check_connectable()
