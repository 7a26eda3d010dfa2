"""
Room in a store for what is about to be decided (rule W3).

Theory of operation.  To apply a batch takes room: LMDB copies every page that it
changes, and frees the old one only when the transaction is over.  A batch that fitted
when it was staged may fit no longer when it is applied, and then its job stands still,
since it is decided.  So the node is asked **before** the decision:

* There is far more room than the batch can need: it fits.  The bound is coarse and
  cheap, and is all that a store pays that is not nearly full.
* Otherwise the batch is applied in a transaction that is given up: what that takes is
  exact, whatever the rows and the trees look like (`EntryApplier.rehearse`).

**What was promised is kept** until the batch is applied or dropped: chunks that would
take it are refused, and so are rows that are copied, or loaded of a snapshot: they can
be had again, while a job whose batch is decided stands still.  Promises are in memory
only.  A node that was restarted has none,
and its first entries are applied before it is asked again.

Two things are not seen: pages that a long read of an old snapshot holds, and a disk
with less room than the limit of the store.  An entry that fails because of them is
tried again, and the job goes on when there is room.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from queryablestate.store.marks import staged_sizes


if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmdb import Transaction, _Database, _StatDict

    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.staging import StagingArea


__all__ = ["RoomKeeper", "StoreSizes"]

_META_PAGE_COUNT: Final = 2
_ROW_SIZE_BYTES_MIN: Final = 8
# A row has a header and a pointer of its own, and a page may be half empty.
_GROWTH: Final = 8
# Chunks that are being staged meanwhile: two groups of the writing thread.
_SLACK_SIZE_BYTES: Final = 128 << 20
# The list of freed pages, branches, marks.
_MARGIN_PAGE_COUNT: Final = 16
_MARGIN_FRACTION: Final = 256


@frozen
class _Pages:
    """Pages of a store: all, those in use, the leaves among them, the staged ones."""

    all: int
    used: int
    leaves: int
    staged: int

    @property
    def free(self) -> int:
        return self.all - self.used

    @property
    def margin(self) -> int:
        return _MARGIN_PAGE_COUNT + self.used // _MARGIN_FRACTION

    def bound(self, row_count: int) -> int:
        """Return how many pages no staged batch of that many rows needs more than."""
        # A row changes one leaf at most, which is copied and may be split.
        changed = 2 * min(row_count, self.leaves)
        return changed + _GROWTH * self.staged + self.margin


@final
@frozen(kw_only=True)
class StoreSizes:
    """
    How large a store is.

    Attributes:
        used_bytes: Of pages in use.  Pages that only a read of an old snapshot holds
            are not among them.
        size_bytes_max: How much it may grow to.
        staged_bytes: Of rows that were brought and are not decided.
    """

    used_bytes: int
    size_bytes_max: int
    staged_bytes: int


@final
class RoomKeeper:
    """What was promised to batches; `promise_ample` is for any thread."""

    def __init__(self, environment: StoreEnvironment, staging: StagingArea) -> None:
        self._environment = environment
        self._staging = staging
        self._lock = threading.Lock()
        self._promised: dict[tuple[str, str], tuple[bytes, int]] = {}
        stat = environment.environment.stat()
        self._page_size_bytes: int = stat["psize"]

    def promise_ample(self, prefix: bytes) -> bool:
        """Promise room to the batch with *prefix* if there is more than it can need."""
        # Looked at first: a snapshot knows nothing of a slot that is opened later.
        slots = tuple(self._environment.slots)
        with self._environment.reading() as transaction:
            pages = self._pages(transaction, slots)
            staged_bytes = pages.staged * self._page_size_bytes
            bound = pages.bound(staged_bytes // _ROW_SIZE_BYTES_MIN)
            slack = _SLACK_SIZE_BYTES // self._page_size_bytes
            others = self.promised(transaction, prefix)
            is_ample = pages.free >= bound + slack + others
            if is_ample:
                # Of so much room only what the rows themselves take is kept.
                self._promise(transaction, prefix, _GROWTH * pages.staged)
        return is_ample

    def promise(self, prefix: bytes, row_count: int) -> None:
        """Promise room to the batch with *prefix*, which is known to fit."""
        with self._environment.reading() as transaction:
            pages = self._pages(transaction)
            others = self.promised(transaction, prefix)
            most = max(0, pages.free - others)
            self._promise(transaction, prefix, min(most, pages.bound(row_count)))

    def promised(self, transaction: Transaction[bytes], prefix: bytes = b"") -> int:
        """Return how many pages batches other than that with *prefix* were promised."""
        with self._lock:
            for key, (other, _) in list(self._promised.items()):
                head = self._staging.head(transaction, other)
                if head is None or head.kept_sequence:
                    del self._promised[key]  # it is applied, or dropped
            kept = self._promised.values()
            return sum(count for other, count in kept if other != prefix)

    def check_promised(self, transaction: Transaction[bytes]) -> None:
        """
        Return if what *transaction* has put leaves what was promised.

        Raises:
            StorageError: If not; the transaction is to be given up.
        """
        if self._promised:
            promised = self.promised(transaction)
            if promised and self._pages(transaction).free < promised:
                raise self._environment.full_error(self._used_bytes(transaction))

    def take_margin(self, transaction: Transaction[bytes], prefix: bytes) -> None:
        """Take, in a transaction to be given up, what must be left when it is over."""
        margin = self._pages(transaction).margin
        self._staging.fill(transaction, margin + self.promised(transaction, prefix))

    def sizes(self) -> StoreSizes:
        """Return how large the store is; from any thread."""
        slots = tuple(self._environment.slots)  # as in `promise_ample`
        with self._environment.reading() as transaction:
            pages = self._pages(transaction, slots)
            staged = staged_sizes(transaction, self._environment.meta)
        return StoreSizes(
            used_bytes=pages.used * self._page_size_bytes,
            size_bytes_max=pages.all * self._page_size_bytes,
            staged_bytes=sum(staged.values()),
        )

    def _used_bytes(self, transaction: Transaction[bytes]) -> int:
        return self._pages(transaction).used * self._page_size_bytes

    def _promise(
        self, transaction: Transaction[bytes], prefix: bytes, page_count: int
    ) -> None:
        head = self._staging.head(transaction, prefix)
        if head is not None:
            with self._lock:
                # A query has one batch on its way; an earlier one is over.
                self._promised[head.job_id, head.query_id] = (prefix, page_count)

    def _pages(
        self,
        transaction: Transaction[bytes],
        slots: Sequence[_Database] | None = None,
    ) -> _Pages:
        environment = self._environment
        slots = environment.slots if slots is None else slots
        rows = [transaction.stat(database) for database in slots]
        staged = _page_count(transaction.stat(environment.staged))
        others = [transaction.stat(environment.meta), environment.environment.stat()]
        used = sum(_page_count(stat) for stat in [*rows, *others])
        return _Pages(
            all=environment.environment.info()["map_size"] // self._page_size_bytes,
            used=_META_PAGE_COUNT + used + staged,
            leaves=sum(stat["leaf_pages"] for stat in rows),
            staged=staged,
        )


def _page_count(stat: _StatDict) -> int:
    return stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
