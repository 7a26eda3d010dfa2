"""
What tells the rows of one batch from those of another (rule W4); pure.

Spark runs a batch again whose commit it has not written down, with the same number and
the same rows.  A checkpoint that is one batch old gives the same number to other rows:
taken for a repetition, they would be lost.  So each decision keeps a digest of its
rows, and a repetition has to show the same.

A digest does not depend on how the rows are dealt out to tasks, nor on their order: it
is a sum over rows, and the sums of tasks add up.  In front of it stands what the state
looks like.  Digests of two schemas do not compare: a query that was given another
column may come with a batch that it has written without.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = [
    "DIGEST_SIZE_BYTES",
    "BatchDigest",
    "digest_of",
    "is_rewritten",
    "sum_of_digests",
    "sum_of_rows",
]

_SHAPE_SIZE_BYTES: Final = 8
_SUM_SIZE_BYTES: Final = 16
_SUM_MODULUS: Final = 1 << (8 * _SUM_SIZE_BYTES)
_DELETED: Final = 1
DIGEST_SIZE_BYTES: Final = _SHAPE_SIZE_BYTES + _SUM_SIZE_BYTES

BatchDigest: TypeAlias = Annotated[
    bytes, Meta(min_length=DIGEST_SIZE_BYTES, max_length=DIGEST_SIZE_BYTES)
]


def sum_of_rows(keys: Sequence[bytes], values: Sequence[bytes | None]) -> int:
    """Return what rows add to the digest of a batch; a value of None is a delete."""
    total = 0
    for key, value in zip(keys, values, strict=True):
        seed = xxh3_64_intdigest(key)
        if value is None:
            total += xxh3_128_intdigest(b"", seed ^ _DELETED)
        else:
            total += xxh3_128_intdigest(value, seed)
    return total


def digest_of(schema: str, total: int) -> bytes:
    """Return the digest of rows that add up to *total*, of a state of that schema."""
    shape = blake2b(schema.encode(), digest_size=_SHAPE_SIZE_BYTES).digest()
    return shape + (total % _SUM_MODULUS).to_bytes(_SUM_SIZE_BYTES, "big")


def sum_of_digests(digests: Iterable[bytes]) -> bytes:
    """Return the digest of all rows of which tasks say these; they have one schema."""
    shape, total = b"", 0
    for digest in digests:
        shape = digest[:_SHAPE_SIZE_BYTES]
        total += int.from_bytes(digest[_SHAPE_SIZE_BYTES:], "big")
    return shape + (total % _SUM_MODULUS).to_bytes(_SUM_SIZE_BYTES, "big")


def is_rewritten(decided: bytes, shown: bytes) -> bool:
    """
    Return whether the rows of a batch are others than those that were decided.

    Where one of the digests is not known, or the schemas differ, that cannot be told.
    """
    return (
        len(decided) == len(shown) == DIGEST_SIZE_BYTES
        and decided[:_SHAPE_SIZE_BYTES] == shown[:_SHAPE_SIZE_BYTES]
        and decided != shown
    )
