"""
`LeaderStore`: metadata of a component that only its leader may write (rules L1-L3).

Paths are flat keys; what looks like a folder is a string prefix.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from attrs import frozen

from election.contender import LeaderSession
from election.store_values import VersionedValue
from election.store_watch import StoreWatch
from nameservice import ConfigurationError, ForkGuard, LocalProtocolError
from nameservice.fields import (
    STORE_PATH_LENGTH_MAX,
    check_epoch,
    check_leader_session_id,
    check_store_path,
    check_store_prefix,
    check_value,
    check_version,
    value_size_bytes,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from election.store_watch import StoreFeeds


__all__ = [
    "OPERATION_COUNT_MAX",
    "STORE_PATH_LENGTH_MAX",
    "STORE_SIZE_BYTES_MAX",
    "Delete",
    "LeaderStore",
    "LeaderStoreDriver",
    "Put",
    "StoreOperation",
    "VersionedValue",
    "check_operations",
    "check_store_path",
]

STORE_SIZE_BYTES_MAX: Final = 1_000_000
OPERATION_COUNT_MAX: Final = 1_000


@frozen
class Put:
    """
    Write *value* under *path*.

    Attributes:
        path: 1 to 255 printable characters.
        value: At most 1,000,000 bytes; a ``bytearray`` or ``memoryview`` is copied
            when it is committed.
        version: The version that must be there; 0 says that nothing may be there;
            None overwrites whatever is.
    """

    path: str
    value: bytes
    version: int | None = None


@frozen
class Delete:
    """
    Remove *path*; removing what is not there is no error unless *version* is given.

    Attributes:
        path: 1 to 255 printable characters.
        version: The version that must be there; None removes whatever is.
    """

    path: str
    version: int | None = None


StoreOperation: TypeAlias = Put | Delete


class LeaderStoreDriver(Protocol):
    """What a backend must provide so that a `LeaderStore` can work over it."""

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*, sorted."""

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        """Do all of *operations*, or none, while *session* leads and is our own."""


@final
class LeaderStore:
    """
    What the leaders of one component leave for each other.  Thread-safe.

    Everybody may read.  Every write is atomic with the check that its leader session
    leads now and is the caller's own, so a deposed leader writes nothing (rule L2).
    """

    def __init__(
        self,
        component_id: str,
        driver: LeaderStoreDriver,
        *,
        feeds: StoreFeeds | None = None,
    ) -> None:
        self._component_id = component_id
        self._driver = driver
        self._feeds = feeds
        self._fork_guard = ForkGuard()

    @property
    def component_id(self) -> str:
        """Return whose store this is."""
        return self._component_id

    def get(self, path: str) -> VersionedValue | None:
        """
        Return what is under *path*, or None if nothing is.

        Raises:
            ConfigurationError: If *path* is not 1 to 255 printable characters.
            UnreachableError: If the name service does not answer in time.
        """
        self._fork_guard.check()
        return self._driver.get(check_store_path(path))

    def list(self, prefix: str = "") -> list[str]:
        """
        Return the paths that begin with *prefix*, sorted.

        Raises:
            ConfigurationError: If *prefix* is not up to 255 printable characters.
            UnreachableError: If the name service does not answer in time.
        """
        self._fork_guard.check()
        return self._driver.list(check_store_prefix(prefix))

    def watch(self, path: str) -> StoreWatch:
        """
        Watch what is under *path*: what is there at once, None included, then changes.

        The latest value always arrives; values in between may be left out.  Close the
        watch, or use it as a context manager; it ends with the services otherwise.

        Raises:
            ConfigurationError: If *path* is not 1 to 255 printable characters.
            LocalProtocolError: If the services are closed.
        """
        return self._watch(check_store_path(path), "")

    def watch_prefix(self, prefix: str = "") -> StoreWatch:
        """
        Watch all paths that begin with *prefix*: those that are there, then changes.

        As `watch`, for each path by itself: those of one commit may arrive one after
        another, each with the latest value that it has by then.

        Raises:
            ConfigurationError: If *prefix* is not up to 255 printable characters.
            LocalProtocolError: If the services are closed.
        """
        return self._watch(None, check_store_prefix(prefix))

    def _watch(self, path: str | None, prefix: str) -> StoreWatch:
        self._fork_guard.check()
        if self._feeds is None:
            message = "this store is not one that can be watched"
            raise LocalProtocolError(message)
        return StoreWatch(self._driver, self._feeds, path=path, prefix=prefix)

    def commit(
        self, operations: Iterable[StoreOperation], *, session: LeaderSession
    ) -> None:
        """
        Do all of *operations*, or none.

        Args:
            operations: 1 to 1,000, each path at most once; their values together at
                most 1,000,000 bytes.
            session: The leadership under which it is written.

        Raises:
            StaleEpochError: *session* does not lead now; nothing was written.
            VersionMismatchError: A path is not at its version; nothing was written.
            DidNotHappenError: Nothing was written; retrying is safe.
            MayHaveHappenedError: It was sent, and never answered: read before you
                write again.
            ConfigurationError: If *operations* break a limit, or *session* is none;
                nothing was sent.
        """
        self._fork_guard.check()
        checked = check_operations(operations)
        self._driver.commit(checked, _check_session(session))

    def put(
        self,
        path: str,
        value: bytes,
        *,
        session: LeaderSession,
        version: int | None = None,
    ) -> None:
        """Write one value; see `Put` and `commit`."""
        self.commit([Put(path, value, version)], session=session)

    def delete(
        self, path: str, *, session: LeaderSession, version: int | None = None
    ) -> None:
        """Remove one path; see `Delete` and `commit`."""
        self.commit([Delete(path, version)], session=session)


def check_operations(
    operations: Iterable[StoreOperation],
) -> tuple[StoreOperation, ...]:
    """
    Return *operations* as they can be sent: every field of its exact builtin type.

    Raises:
        ConfigurationError: Says which limit of one commit is broken.
    """
    try:
        asked = tuple(islice(operations, OPERATION_COUNT_MAX + 1))
    except TypeError:
        kind = type(operations).__name__
        message = f"a commit is a list of Put and Delete, not {kind}"
        raise ConfigurationError(message) from None
    if not 1 <= len(asked) <= OPERATION_COUNT_MAX:
        count = "more" if asked else 0
        message = f"a commit has 1 to {OPERATION_COUNT_MAX:,} operations, not {count}"
        raise ConfigurationError(message)
    size_bytes = 0
    paths = set()
    checked: list[StoreOperation] = []
    for operation in asked:
        if not isinstance(operation, Put | Delete):
            message = f"an operation is a Put or a Delete, not {operation!r}"
            raise ConfigurationError(message)
        path = check_store_path(operation.path)
        if path in paths:
            message = f"a commit names a path once; {path!r} is there twice"
            raise ConfigurationError(message)
        paths.add(path)
        version = check_version(operation.version)
        if isinstance(operation, Delete):
            checked.append(Delete(path, version))
            continue
        size_bytes += value_size_bytes(operation.value)
        if size_bytes <= STORE_SIZE_BYTES_MAX:  # or it is not even copied
            checked.append(Put(path, check_value(operation.value), version))
    if size_bytes > STORE_SIZE_BYTES_MAX:
        message = (
            f"the values of a commit are at most {STORE_SIZE_BYTES_MAX:,} bytes "
            f"together, not {size_bytes:,}: split it, or store a reference"
        )
        raise ConfigurationError(message)
    return tuple(checked)


def _check_session(session: LeaderSession) -> LeaderSession:
    """Return *session* with every field of its exact type; `ConfigurationError`."""
    if not isinstance(session, LeaderSession):
        kind = type(session).__name__
        message = f"session is the LeaderSession that was granted, not {kind}"
        raise ConfigurationError(message)
    return LeaderSession(
        leader_session_id=check_leader_session_id(session.leader_session_id),
        epoch=check_epoch(session.epoch),
    )
