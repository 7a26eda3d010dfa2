"""One interface to every name service, and the names of what each promises."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol, Self

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from election import (
        ContenderInformation,
        LeaderElection,
        LeaderSession,
        LeaderStore,
    )
    from haservices.config import HAConfig
    from retrieval import LeaderInformation, LeaderRetriever


__all__ = [
    "ComponentInformation",
    "Guarantee",
    "HAOperations",
    "HAServices",
    "SessionInformation",
]


class Guarantee(Enum):
    """What a backend promises beyond the common contract; never skipped in silence."""

    ACROSS_PROCESSES = "across-processes"
    """Contenders and retrievers of different processes see each other."""

    SURVIVES_SERVER_LOSS = "survives-server-loss"
    """The name service goes on when one of its machines dies."""

    SURVIVES_SERVER_RESTART = "survives-server-restart"
    """The store and the epochs are there again after the name service restarts."""

    SURVIVES_SERVER_PAUSE = "survives-server-pause"
    """A pause of the name service costs no leader its leadership."""

    FAILOVER_WITHIN_LEASE = "failover-within-lease"
    """A leader whose process dies is succeeded within about one lease."""

    PASSES_OVER_SILENT = "passes-over-silent"
    """A contender that is not heard from keeps its place, and is not granted."""

    ENCRYPTED = "encrypted"
    """What is sent cannot be read or changed on the way."""


@frozen(kw_only=True)
class ComponentInformation:
    """
    One component as operators see it.

    Attributes:
        component_id: What is being led.
        leader: Its confirmed leader, or None.
        contender_count: How many contend for it, the leader included.
        epoch: Its newest epoch, or None if the name service does not tell.
    """

    component_id: str
    leader: LeaderInformation | None
    contender_count: int
    epoch: int | None


@frozen(kw_only=True)
class SessionInformation:
    """
    One session with the name service as operators see it.

    Attributes:
        session_id: Its id, as `HAOperations.expire` takes it.
        client: Who it is: the name that its key is listed under, or its address.
        component_ids: What it contends for, sorted.
        leads_component_ids: What it has been granted, sorted.
        age_seconds: How long it has existed, or None where that is not told.
        last_heard_seconds: How long ago it was heard from, or None likewise.
        timeout_seconds: After how much silence it ends, or None likewise.
    """

    session_id: str
    client: str
    component_ids: Sequence[str]
    leads_component_ids: Sequence[str]
    age_seconds: float | None
    last_heard_seconds: float | None
    timeout_seconds: float | None


class HAOperations(Protocol):
    """
    What operators ask of a name service and do to it (rule N6).

    Everything here works without contending for anything.  All methods raise
    `UnreachableError` when the name service does not answer in time, and
    `AuthenticationError` where the caller is not allowed to.
    """

    def leaders(self) -> Sequence[ComponentInformation]:
        """Return every component that has a contender or a leader, sorted by id."""

    def contenders(self, component_id: str) -> Sequence[ContenderInformation]:
        """Return the contenders of *component_id* in order, the leader first."""

    def sessions(self) -> Sequence[SessionInformation]:
        """Return every session of the cluster that the name service tells of."""

    def status(self) -> Mapping[str, str | int | float]:
        """Return the figures of the name service itself, by name."""

    def revoke(self, component_id: str) -> LeaderSession:
        """
        End the present leadership of *component_id*; its holder queues last.

        Returns:
            The leadership that was ended.

        Raises:
            NoLeaderError: If no contender has been granted it.
        """

    def transfer(self, component_id: str, contender_id: str) -> LeaderSession | None:
        """
        Hand the leadership of *component_id* to *contender_id*.

        The present holder is revoked and queues last.  When its revoke callback has
        returned, or when it believes no longer, *contender_id* is granted.  Should it
        be silent by then, or not confirm in time, the next in the queue leads.  Where
        there is no leader, *contender_id* goes first.

        On ZooKeeper the contenders that queued before *contender_id* queue last, too.

        Args:
            component_id: What to lead.
            contender_id: One of ``contenders(component_id)``.

        Returns:
            The leadership that was ended, or None if there was none to end:
            *contender_id* leads already, or there was no leader.

        Raises:
            UnknownContenderError: If it does not contend for *component_id*.
            DidNotHappenError: If it would not be granted, because the name service
                has not heard from it within its lease; nothing was ended.
        """

    def expire(self, session_id: str) -> None:
        """
        End a session as if it had fallen silent.

        Raises:
            UnknownSessionError: If there is no such session.
        """


class HAServices(Protocol):
    """
    One name service, whichever it is; open one with ``open_ha_services``.

    Thread-safe; a context manager that closes itself.  After ``fork()`` a child's use
    raises `ForkedClientError`, and its `close` is silent (rule E10).
    """

    @property
    def config(self) -> HAConfig:
        """Return the configuration it was opened with."""

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Return what this backend, as it is configured, promises."""

    @property
    def operations(self) -> HAOperations:
        """Return what operators may ask and do."""

    def get_leader_retriever(self, job_id: str) -> LeaderRetriever:
        """
        Return a new retriever of the leader of *job_id*; start it to begin.

        Raises:
            ConfigurationError: If *job_id* is not 1 to 255 printable characters
                without ``/``.
        """

    def get_leader_election(self, job_id: str) -> LeaderElection:
        """Return a new election for *job_id*; start it to contend."""

    def get_leader_store(self, job_id: str) -> LeaderStore:
        """Return the metadata of *job_id* that only its leader may write."""

    def cleanup(self, job_id: str) -> None:
        """Remove what is stored for *job_id*; never contenders or epochs."""

    def close(self) -> None:
        """
        Release everything, keep what is stored.  Idempotent.

        Elections and retrievers that are still open are closed first, as their own
        ``close`` would: belief ends at once, and the session ends when the last running
        action and revoke callback have returned.  A second caller waits for the same
        end.  Called inside a callback of one of them it does not wait: the rest happens
        when that callback returns.
        """

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close itself."""


def forgets_at_restart(services: HAServices) -> bool:
    """
    Return whether what leaders store is gone when the name service is started again.

    That is so of a LeaderServer without a data directory.  An embedded name service is
    none that is started again: it ends with everybody that uses it.
    """
    is_embedded = Guarantee.ACROSS_PROCESSES not in services.guarantees
    is_durable = Guarantee.SURVIVES_SERVER_RESTART in services.guarantees
    return not (is_embedded or is_durable)
