"""
Reads of a `queryablestate.store.StateStore`: points, lists, maps, scans and counts.

Everything in one answer is one snapshot, the view of the state included (rule Q1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, final

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["Read", "ScanRead", "StateView", "StoreReader"]

T = TypeVar("T")


@final
@frozen(kw_only=True)
class StateView:
    """
    What a node knows of a state, as of one moment.

    Attributes:
        job_id: The job that it belongs to.
        generation: The ownership that the last applied batch belongs to; 0 before one.
        batch_id: The last batch applied, or None before the first.
        decided_at_us: When that was decided, microseconds since 1970 UTC; 0 before.
        kind: ``value``, ``list`` or ``map``; an empty string before the first batch.
        has_ttl: Whether rows carry an expiry.
        is_lost: Whether its rows were lost, and no batch has replaced them yet (W7).
    """

    job_id: str
    generation: int
    batch_id: int | None
    decided_at_us: int
    kind: str
    has_ttl: bool
    is_lost: bool


@final
@frozen(kw_only=True)
class Read(Generic[T]):
    """
    What some keys hold.

    Attributes:
        view: As of what; None if there is no such state.
        values: One for each key, in the order of the keys; None where there is nothing.
        valid_until_us: When the first of what was looked at expires, or None.
    """

    view: StateView | None
    values: list[T | None]
    valid_until_us: int | None


@final
@frozen(kw_only=True)
class ScanRead:
    """
    A page of a scan.

    Attributes:
        view: As of what; None if there is no such state.
        rows: Encoded key (with map key or index), value, encoded key, value, …
        next_start: Where the next page starts, or None at the end.  A page may hold
            fewer rows than asked for, even none, and yet not be the last.
        valid_until_us: When the first of these rows expires, or None.
    """

    view: StateView | None
    rows: list[bytes]
    next_start: bytes | None
    valid_until_us: int | None


@final
class StoreReader:
    """Reads a store; for one thread."""

    def get_values(
        self, state_number: int, keys: Sequence[bytes], *, now_us: int
    ) -> Read[bytes]:
        """Return the values under these storage keys."""
        raise NotImplementedError

    def get_items(
        self,
        state_number: int,
        keys: Sequence[bytes],
        *,
        start: int = 0,
        stop: int | None = None,
        now_us: int,
    ) -> Read[list[bytes]]:
        """Return the items ``[start:stop]`` of these lists."""
        raise NotImplementedError

    def get_entries(
        self, state_number: int, keys: Sequence[bytes], *, now_us: int
    ) -> Read[list[bytes]]:
        """Return map key, value, map key, … of these maps, in map key order."""
        raise NotImplementedError

    def scan(
        self,
        state_number: int,
        groups: Sequence[int],
        *,
        start: bytes = b"",
        stop: bytes | None = None,
        limit: int,
        now_us: int,
    ) -> ScanRead:
        """Return a page of rows of these key groups, in the order of encoded keys."""
        raise NotImplementedError

    def count(
        self,
        state_number: int,
        groups: Sequence[int],
        *,
        now_us: int,
        key_size_of: Callable[[bytes], int] | None = None,
    ) -> tuple[StateView | None, int]:
        """
        Return how many keys these key groups hold.

        Args:
            key_size_of: For map states: how many bytes of an encoded key with map key
                are the key.  Without it the entries of maps are counted, not the maps.
        """
        raise NotImplementedError
