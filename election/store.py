"""
`LeaderStore`: metadata of a component that only its leader may write (rules L1-L3).

Paths are flat keys; what looks like a folder is a string prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from attrs import frozen

from nameservice import ConfigurationError, ForkGuard


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election.contender import LeaderSession


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
STORE_PATH_LENGTH_MAX: Final = 255
OPERATION_COUNT_MAX: Final = 1_000


@frozen(kw_only=True)
class VersionedValue:
    """
    A value of the store.

    Attributes:
        value: The bytes as they were put.
        version: 1 when the path was created, one more with each put since.
    """

    value: bytes
    version: int


@frozen
class Put:
    """
    Write *value* under *path*.

    Attributes:
        path: 1 to 255 printable characters.
        value: At most 1,000,000 bytes.
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

    def __init__(self, component_id: str, driver: LeaderStoreDriver) -> None:
        self._component_id = component_id
        self._driver = driver
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
        check_store_path(path)
        return self._driver.get(path)

    def list(self, prefix: str = "") -> list[str]:
        """
        Return the paths that begin with *prefix*, sorted.

        Raises:
            UnreachableError: If the name service does not answer in time.
        """
        self._fork_guard.check()
        if prefix:
            check_store_path(prefix)
        return self._driver.list(prefix)

    def commit(
        self, operations: Sequence[StoreOperation], *, session: LeaderSession
    ) -> None:
        """
        Do all of *operations*, or none.

        Args:
            operations: Up to 1,000, each path at most once; their values together at
                most 1,000,000 bytes.
            session: The leadership under which it is written.

        Raises:
            StaleEpochError: *session* does not lead now; nothing was written.
            VersionMismatchError: A path is not at its version; nothing was written.
            DidNotHappenError: Nothing was written; retrying is safe.
            MayHaveHappenedError: It was sent, and never answered: read before you
                write again.
            ConfigurationError: If *operations* break a limit; nothing was sent.
        """
        self._fork_guard.check()
        check_operations(operations)
        self._driver.commit(operations, session)

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


def check_store_path(path: str) -> None:
    """
    Return if *path* is a path of the store.

    Raises:
        ConfigurationError: If it is not 1 to 255 printable characters.
    """
    if not _is_store_path(path):
        message = (
            f"a store path is 1 to {STORE_PATH_LENGTH_MAX} printable characters, "
            f"not {path!r}"
        )
        raise ConfigurationError(message)


def _is_store_path(path: object) -> bool:
    return (
        isinstance(path, str)
        and 1 <= len(path) <= STORE_PATH_LENGTH_MAX
        and path.isprintable()
    )


def _is_version(version: object) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and version >= 0


def check_operations(operations: Sequence[StoreOperation]) -> None:
    """
    Return if *operations* are within the limits of one commit.

    Raises:
        ConfigurationError: Says which limit is broken.
    """
    if not 1 <= len(operations) <= OPERATION_COUNT_MAX:
        message = (
            f"a commit has 1 to {OPERATION_COUNT_MAX} operations, not {len(operations)}"
        )
        raise ConfigurationError(message)
    size_bytes = 0
    paths = set()
    for operation in operations:
        if not isinstance(operation, Put | Delete):
            message = f"an operation is a Put or a Delete, not {operation!r}"
            raise ConfigurationError(message)
        check_store_path(operation.path)
        if operation.path in paths:
            message = f"a commit names a path once; {operation.path!r} is there twice"
            raise ConfigurationError(message)
        paths.add(operation.path)
        if operation.version is not None and not _is_version(operation.version):
            message = f"a version is a whole number from 0, not {operation.version!r}"
            raise ConfigurationError(message)
        if isinstance(operation, Put):
            if not isinstance(operation.value, bytes):
                message = f"a value is bytes, not {type(operation.value).__name__}"
                raise ConfigurationError(message)
            size_bytes += len(operation.value)
    if size_bytes > STORE_SIZE_BYTES_MAX:
        message = (
            f"the values of a commit are at most {STORE_SIZE_BYTES_MAX:,} bytes "
            f"together, not {size_bytes:,}: split it, or store a reference"
        )
        raise ConfigurationError(message)
