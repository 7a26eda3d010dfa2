"""
Writes that are larger than one commit of the leader store; pure (rule B3).

Theory of operation.  One commit takes 1,000 operations and 1,000,000 bytes.  A larger
write is written down first, in parts that mean nothing yet, and becomes true by one
last small write, as in a log that is written ahead::

    large/0, large/1, …   the operations, encoded; one part a commit
    large                 LargeWrite: from now on the parts count
    (the operations)      as many in a commit as it takes
    large deleted         with the last of them, and the parts, too

A leader that reads the store ignores parts without ``large``, and removes them.  With
``large``, it takes all of the operations for done (`with_large`).  It does them, before
it writes anything else: to put or delete twice is to do it once.  So a new leader comes
to the same outcome, wherever its predecessor died.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, final

import msgspec
from attrs import field, frozen, validators

from election import Delete, Put
from election.store import OPERATION_COUNT_MAX, STORE_SIZE_BYTES_MAX
from nameservice import ConfigurationError, StorageError
from queryablestate.wire.wire_struct import WireStruct


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from election import StoreOperation


__all__ = [
    "COMMIT_LIMITS",
    "LARGE",
    "NOTHING_LEFT",
    "CommitLimits",
    "DividedWrite",
    "divided",
    "unfinished",
    "with_large",
]

LARGE: Final = "large"
_DIGEST_SIZE_BYTES: Final = 16
_ENCODER: Final = msgspec.msgpack.Encoder()
_OPERATIONS_DECODER: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])
_PART_SIZE_BYTES_MIN: Final = 256


@final
@frozen(kw_only=True)
class CommitLimits:
    """
    How much one commit of the leader store takes.

    Attributes:
        operation_count_max: Operations; at least 2.
        size_bytes_max: All values together; at least 256.
    """

    # Each commit counts the witness up, too.
    operation_count_max: int = field(
        default=OPERATION_COUNT_MAX - 1, validator=validators.ge(2)
    )
    size_bytes_max: int = field(
        default=STORE_SIZE_BYTES_MAX, validator=validators.ge(_PART_SIZE_BYTES_MIN)
    )


COMMIT_LIMITS: Final = CommitLimits()
"""Those of every leader store (rule L3)."""


class LargeWrite(WireStruct, frozen=True, kw_only=True):
    """
    A large write is decided.

    Attributes:
        part_count: In how many parts its operations are there.
        digest: Of all parts.
    """

    part_count: int
    digest: bytes


_LARGE_DECODER: Final = msgspec.msgpack.Decoder(LargeWrite)


@final
@frozen(kw_only=True)
class DividedWrite:
    """
    The commits that one write takes, in their order.

    Attributes:
        commits: Each of them fits; none if there is nothing to write.
        deciding_index: The commit that makes the write true: what fails up to it has
            changed nothing, and what fails after it is done by the next reader of the
            store.
            -1 if it is true already.
    """

    commits: tuple[tuple[StoreOperation, ...], ...]
    deciding_index: int = 0


NOTHING_LEFT: Final = DividedWrite(commits=())
"""No commit at all."""


def divided(
    operations: Sequence[StoreOperation], limits: CommitLimits = COMMIT_LIMITS
) -> DividedWrite:
    """
    Return the commits that *operations* take.

    Raises:
        ConfigurationError: If one value alone is larger than a commit.
    """
    for operation in operations:
        if isinstance(operation, Put) and len(operation.value) > limits.size_bytes_max:
            raise ConfigurationError(
                f"a record of {len(operation.value):,} bytes is larger than one commit "
                f"of the leader store, which takes {limits.size_bytes_max:,} bytes "
                f"({operation.path!r})"
            )
    groups = tuple(_groups(operations, limits))
    if len(groups) <= 1:
        return DividedWrite(commits=groups)
    assert all(operation.version is None for operation in operations)
    encoded = _ENCODER.encode([_encodable(operation) for operation in operations])
    size_bytes = limits.size_bytes_max
    parts = {
        _part_path(index): encoded[first : first + size_bytes]
        for index, first in enumerate(range(0, len(encoded), size_bytes))
    }
    decided = LargeWrite(part_count=len(parts), digest=_digest(encoded))
    return DividedWrite(
        commits=(
            *((Put(path, part),) for path, part in parts.items()),
            (Put(LARGE, _ENCODER.encode(decided)),),
            *_groups([*operations, *_removed([LARGE, *parts])], limits),
        ),
        deciding_index=len(parts),
    )


def with_large(values: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """
    Return *values*, all that a leader store holds, with a large write done.

    Raises:
        StorageError: If it is decided, and its parts are not there.
    """
    operations = _decided_operations(values)
    if not operations:
        return values
    done = dict(values)
    for operation in operations:
        if isinstance(operation, Put):
            done[operation.path] = operation.value
        else:
            done.pop(operation.path, None)
    return done


def unfinished(
    values: Mapping[str, bytes], limits: CommitLimits = COMMIT_LIMITS
) -> DividedWrite:
    """
    Return what is still to be written: the rest of a large write, or its removal.

    Args:
        values: All that the leader store holds.
        limits: Of one commit.

    Raises:
        StorageError: If it is decided, and its parts are not there.
    """
    parts = sorted(path for path in values if path.startswith(f"{LARGE}/"))
    operations = list(_decided_operations(values))
    if LARGE in values:
        operations += _removed([LARGE])
    commits = tuple(_groups([*operations, *_removed(parts)], limits))
    if not commits:
        return NOTHING_LEFT
    # It is true already: whatever fails, it is to be read anew.
    return DividedWrite(commits=commits, deciding_index=-1)


def _decided_operations(values: Mapping[str, bytes]) -> Sequence[StoreOperation]:
    """Return the operations of a large write that is decided; none if none is."""
    value = values.get(LARGE)
    if value is None:
        return ()
    try:
        decided = _LARGE_DECODER.decode(value)
        paths = [_part_path(index) for index in range(decided.part_count)]
        encoded = b"".join(values[path] for path in paths)
        if _digest(encoded) != decided.digest:
            raise StorageError(
                "the leader store of the proxies holds a large write that is not the "
                "one that was decided: did somebody else write there?"
            )
        pairs = _OPERATIONS_DECODER.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise StorageError(
            f"the leader store of the proxies holds a large write that cannot be read: "
            f"{error}; was it written by another version?"
        ) from error
    return [
        Delete(path) if value is None else Put(path, value) for path, value in pairs
    ]


def _groups(
    operations: Sequence[StoreOperation], limits: CommitLimits
) -> Iterable[tuple[StoreOperation, ...]]:
    """Divide operations into commits, in their order."""
    group: list[StoreOperation] = []
    size_bytes = 0
    for operation in operations:
        value_size_bytes = len(operation.value) if isinstance(operation, Put) else 0
        is_full = len(group) >= limits.operation_count_max or (
            size_bytes + value_size_bytes > limits.size_bytes_max
        )
        if group and is_full:
            yield tuple(group)
            group, size_bytes = [], 0
        group.append(operation)
        size_bytes += value_size_bytes
    if group:
        yield tuple(group)


def _encodable(operation: StoreOperation) -> tuple[str, bytes | None]:
    return operation.path, operation.value if isinstance(operation, Put) else None


def _removed(paths: Iterable[str]) -> list[StoreOperation]:
    return [Delete(path) for path in paths]


def _part_path(index: int) -> str:
    return f"{LARGE}/{index}"


def _digest(encoded: bytes) -> bytes:
    return blake2b(encoded, digest_size=_DIGEST_SIZE_BYTES).digest()
