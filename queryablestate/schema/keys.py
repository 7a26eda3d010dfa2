"""
Keys as bytes that sort as the keys do, and the key group of a key.

Theory of operation
===================

What users write is checked and brought into the form that Spark computes with
(`queryablestate.schema.key_columns`), column by column; that form is encoded and
hashed.

*Encoding.*  Bytewise order of encoded keys is the order of the keys, nulls first.  A
column is ``00`` if it is null, else ``01`` and a payload:

* integers, dates (days), timestamps (microseconds): big-endian in the width of the
  type, sign bit flipped; booleans one byte;
* float and double: IEEE 754, big-endian, all bits flipped if negative, else the sign
  bit; -0.0 is 0.0, and there is one NaN, the greatest;
* decimals: unscaled, 8 bytes up to precision 18, else 16, sign bit flipped;
* string and binary: the bytes, ``00`` written as ``00 01``, ended by ``00 00``; no
  encoded string is the beginning of another one;
* a struct: its fields; an array: ``01`` and the element, for each, ended by ``00``.

A *storage key* is the key group in two bytes, big-endian, and the encoded key; in a map
state the encoded map key follows.

*Key group.*  The non-negative remainder of Spark's ``xxhash64`` over the key columns:
seed 42, each column's hash is the seed of the next one, a null leaves the seed as it
is, structs and arrays are folded in the same way.  Map keys have no part in it.

Source: Spark, ``XxHash64Function`` and ``HashExpression``; 20,000 values of each type
are compared with it by the tests of `sparkpipeline.state.columns`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, cast, final

from xxhash import xxh64_intdigest

from nameservice import ConfigurationError, RemoteProtocolError
from queryablestate.errors import KeyTooLargeError, WrongKeyTypeError
from queryablestate.schema.key_columns import (
    COLUMN_END,
    COLUMN_PRESENT,
    BytesColumn,
    KeyColumns,
    MisfitError,
    escaped,
    reason_of,
)
from queryablestate.schema.key_groups import GROUP_SIZE_BYTES, group_start
from queryablestate.schema.schema import AtomicType, Field, fields_text
from rescaling.key_groups import MAX_PARALLELISM_MAX


__all__ = ["ITEM_INDEX_SIZE_BYTES", "KEY_SIZE_BYTES_MAX", "KeyCodec"]

# LMDB takes keys of 511 bytes: the rest is for the state, the key group and the index
# of a list item.
KEY_SIZE_BYTES_MAX: Final = 480

ITEM_INDEX_SIZE_BYTES: Final = 8
"""What stands behind the key in a row of a list state."""

# What is left of a string's place beside its mark and its end.
_STRING_SIZE_BYTES_MAX: Final = (
    KEY_SIZE_BYTES_MAX - len(COLUMN_PRESENT) - len(COLUMN_END)
)

HASH_SEED: Final = 42
"""Spark's own, of ``xxhash64``."""

_LONG_LE: Final = struct.Struct("<q")
_BIGINT: Final = struct.Struct(">BQ")
_LONG_COUNT: Final = 1 << 64
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1

# What reading damaged bytes ends in.
_MALFORMED: Final = (ArithmeticError, IndexError, ValueError, struct.error)


@final
class _Key:
    """The key columns, or the map key's: a bare value for one, a tuple for several."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.is_single = len(fields) == 1
        self.all = KeyColumns(fields)

    def to_stored(self, key: object) -> tuple[Any, ...]:
        try:
            if self.is_single:
                return (self.all.columns[0].to_stored(key),)
            return self.all.to_stored(key)
        except MisfitError as error:
            raise self.wrong(key, str(error)) from None

    def from_bytes(
        self, encoded: bytes, *, is_plain: bool = False
    ) -> tuple[tuple[Any, ...], int]:
        """
        Return the values that *encoded* begins with, and where they end.

        Times are numbers where *is_plain*: those of Spark are not all Python's.
        """
        stored, end = self.stored_from_bytes(encoded)
        to_value = self.all.to_plain if is_plain else self.all.to_value
        try:
            return to_value(stored), end
        except _MALFORMED as error:
            raise self._unreadable(error) from error

    def stored_from_bytes(self, encoded: bytes) -> tuple[tuple[Any, ...], int]:
        """Return the stored forms that *encoded* begins with, and where they end."""
        try:
            return self.all.from_bytes(encoded, 0)
        except _MALFORMED as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> RemoteProtocolError:
        return RemoteProtocolError(
            reason_of(error), f"no key of ({fields_text(self.fields)}): {error}"
        )

    def from_all_bytes(
        self, encoded: bytes, *, is_plain: bool = False
    ) -> tuple[Any, ...]:
        values, end = self.from_bytes(encoded, is_plain=is_plain)
        if end != len(encoded):
            raise RemoteProtocolError(
                "malformed",
                f"a key of ({fields_text(self.fields)}) has {len(encoded) - end} "
                "bytes too many",
            )
        return values

    def wrong(self, key: object, detail: str) -> WrongKeyTypeError:
        return WrongKeyTypeError(fields_text(self.fields), key, detail)


@final
class KeyCodec:
    """
    The keys of one state as bytes, and their key groups.

    Made once per state and used for every key; safe to share between threads.  A key
    is a bare value where there is one key column, else a tuple in the order of the
    columns, or a mapping from their names.  Structs are tuples or mappings, arrays
    lists or tuples.  None is a key value like any other.

    Args:
        fields: The key columns.
        max_parallelism: The number of key groups, 1 to 32,768.
        map_fields: The columns of the map key, in a map state.

    Raises:
        ConfigurationError: If a column has a type that no key can have, if there is no
            key column, or if *max_parallelism* is out of its range.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        *,
        max_parallelism: int,
        map_fields: Sequence[Field] = (),
    ) -> None:
        if not fields:
            raise ConfigurationError("a key needs at least one column")
        if not 1 <= max_parallelism <= MAX_PARALLELISM_MAX:
            raise ConfigurationError(
                f"max_parallelism must be 1 to {MAX_PARALLELISM_MAX}, "
                f"not {max_parallelism}"
            )
        self._key = _Key(tuple(fields))
        self._map_key = _Key(tuple(map_fields))
        self._max_parallelism = max_parallelism
        self._storage_keys: Callable[[Sequence[object]], list[bytes]]
        match self._key.fields:
            case (Field(type=AtomicType.STRING),):
                self._storage_keys = self._storage_keys_of_strings
            case (Field(type=AtomicType.BIGINT),):
                self._storage_keys = self._storage_keys_of_bigints
            case _:
                self._storage_keys = self._storage_keys_of_any
        # Key group and mark of the first column: three bytes that many keys share.
        self._heads = [
            group_start(group) + COLUMN_PRESENT for group in range(max_parallelism)
        ]

    def normalize(self, key: object) -> Any:
        """
        Return *key* as `decode` gives it back: what two equal keys have in common.

        Times are in UTC, decimals have the scale of the column, floats the precision
        of theirs, structs and arrays are tuples, -0.0 is 0.0.  Can be hashed.

        Returns:
            A bare value where there is one key column, else a tuple.

        Raises:
            WrongKeyTypeError: If no row could have this key.
        """
        values = self._key.all.to_value(self._key.to_stored(key))
        return values[0] if self._key.is_single else values

    def encode(self, key: object) -> bytes:
        """
        Return *key* as bytes that sort as keys do, without its key group.

        Raises:
            WrongKeyTypeError: If no row could have this key.
            KeyTooLargeError: If it is longer than `KEY_SIZE_BYTES_MAX`.
        """
        return _limited(self._key.all.to_bytes(self._key.to_stored(key)))

    def encode_map_key(self, map_key: object) -> bytes:
        """
        Return the second key of a map state's entry as bytes that sort as it does.

        `map_entry_key` also sees to the length of both keys together.

        Raises:
            WrongKeyTypeError: If no row could have this map key.
            KeyTooLargeError: If it is longer than `KEY_SIZE_BYTES_MAX`.
        """
        return _limited(self._map_key.all.to_bytes(self._map_key.to_stored(map_key)))

    def key_group(self, key: object) -> int:
        """
        Return the key group of *key*, 0 to below *max_parallelism*.

        Raises:
            WrongKeyTypeError: If no row could have this key.
        """
        return self._group(self._key.all.hash(self._key.to_stored(key), HASH_SEED))

    def storage_key(self, key: object) -> bytes:
        """
        Return the key group of *key* in two bytes, big-endian, and `encode` of it.

        Raises:
            WrongKeyTypeError: If no row could have this key.
            KeyTooLargeError: If it is longer than `KEY_SIZE_BYTES_MAX`.
        """
        return self._storage_keys((key,))[0]

    def storage_keys(self, keys: Sequence[object]) -> list[bytes]:
        """
        Return the `storage_key` of every one of *keys*, in their order.

        Raises:
            WrongKeyTypeError: For the first one that no row could have.
            KeyTooLargeError: If one is longer than `KEY_SIZE_BYTES_MAX`.
        """
        return self._storage_keys(keys)

    def map_entry_key(self, key: object, map_key: object) -> bytes:
        """
        Return the storage key of one entry of a map state.

        Raises:
            WrongKeyTypeError: If no row could have these keys.
            KeyTooLargeError: If both together are longer than `KEY_SIZE_BYTES_MAX`.
        """
        stored = self.storage_key(key)
        return stored[:GROUP_SIZE_BYTES] + _limited(
            stored[GROUP_SIZE_BYTES:] + self.encode_map_key(map_key)
        )

    def encode_prefix(self, key_prefix: object) -> bytes:
        """
        Return what the encoded keys that begin with *key_prefix* begin with.

        Args:
            key_prefix: Where there is one key column, of type string or binary: what
                its value begins with; null begins with nothing, not even with ``""``.
                Where there are several: a tuple of values for the first ones, each of
                which is compared as a whole.

        Raises:
            WrongKeyTypeError: If it is neither.
            KeyTooLargeError: If no key is as long.
        """
        if self._key.is_single:
            if not isinstance(self._key.all.columns[0], BytesColumn):
                raise self._key.wrong(
                    key_prefix,
                    "a prefix needs a string or several columns; use start and stop",
                )
            if key_prefix is None:
                raise self._key.wrong(key_prefix, "nothing begins with null")
            (stored,) = self._key.to_stored(key_prefix)
            return _limited(COLUMN_PRESENT + escaped(stored))
        columns = self._key.all.columns
        if not isinstance(key_prefix, tuple) or len(key_prefix) > len(columns):
            raise self._key.wrong(
                key_prefix, "a prefix is a tuple of values for the first key columns"
            )
        try:
            leading = [
                column.to_stored(one)
                for column, one in zip(columns, key_prefix, strict=False)
            ]
        except MisfitError as error:
            raise self._key.wrong(key_prefix, str(error)) from None
        return _limited(self._key.all.to_bytes(leading))

    def decode(self, encoded: bytes) -> tuple[Any, ...]:
        """
        Return the key columns of what `encode` gave.

        Raises:
            RemoteProtocolError: If *encoded* is no such thing.
        """
        return self._key.from_all_bytes(encoded)

    def decode_map_key(self, encoded: bytes) -> tuple[Any, ...]:
        """
        Return the columns of what `encode_map_key` gave.

        Raises:
            RemoteProtocolError: If *encoded* is no such thing.
        """
        return self._map_key.from_all_bytes(encoded)

    def size_of(self, encoded: bytes) -> int:
        """
        Return how many bytes of *encoded* are the key columns; the rest follows them.

        No value is made of a key: it may hold what Python has none for.

        Args:
            encoded: A storage key without its key group.  What follows is the encoded
                map key of a map state, the index of a list item.

        Raises:
            RemoteProtocolError: If *encoded* begins with no key.
        """
        _, end = self._key.stored_from_bytes(encoded)
        return end

    def columns(
        self, encoded: Sequence[bytes], *, is_plain: bool = False
    ) -> list[list[Any]]:
        """
        Return the key columns that each of *encoded* begins with, column by column.

        Args:
            encoded: Storage keys without their key groups.
            is_plain: Have days and microseconds since 1970 for dates and timestamps, of
                any year.

        Raises:
            RemoteProtocolError: If one of them begins with no key.
        """
        read = _READ_AT_ONCE.get(self._key.fields[0].type)
        if read is not None and self._key.is_single:
            found = read(encoded)
            if found is not None:
                return [found]
        values = [self._key.from_bytes(one, is_plain=is_plain)[0] for one in encoded]
        return _transposed(values, self._key)

    def all_columns(
        self, encoded: Sequence[bytes], *, is_plain: bool = False
    ) -> list[list[Any]]:
        """
        Return the key columns, and those of the map key, of entries of a map state.

        Args:
            encoded: Storage keys of entries without their key groups.
            is_plain: As in `columns`.

        Raises:
            RemoteProtocolError: If one of them is no such thing.
        """
        keys, rests = [], []
        for one in encoded:
            values, end = self._key.from_bytes(one, is_plain=is_plain)
            keys.append(values)
            rests.append(one[end:])
        map_keys = [
            self._map_key.from_all_bytes(one, is_plain=is_plain) for one in rests
        ]
        return [
            *_transposed(keys, self._key),
            *_transposed(map_keys, self._map_key),
        ]

    def _group(self, unsigned_hash: int) -> int:
        # Spark's hash is a signed bigint, and pmod's result is not negative.
        if unsigned_hash > _LONG_MAX:
            unsigned_hash -= _LONG_COUNT
        return unsigned_hash % self._max_parallelism

    def _storage_keys_of_any(self, keys: Sequence[object]) -> list[bytes]:
        found = []
        for key in keys:
            stored = self._key.to_stored(key)
            group = self._group(self._key.all.hash(stored, HASH_SEED))
            encoded = _limited(self._key.all.to_bytes(stored))
            found.append(group_start(group) + encoded)
        return found

    # The two most common kinds of key, without a call per column: `get_many` hashes
    # and encodes a thousand keys at once.

    def _storage_keys_of_strings(self, keys: Sequence[object]) -> list[bytes]:
        if len(keys) == 1:
            return [self._storage_key_of_string(keys[0])]
        if not keys or set(map(type, keys)) != {str}:
            return self._storage_keys_of_any(keys)
        texts = cast("Sequence[str]", keys)
        try:
            encoded = list(map(str.encode, texts))
        except UnicodeEncodeError as error:
            raise self._key.wrong(error.object, str(error)) from None
        numbers = list(map(xxh64_intdigest, encoded, repeat(HASH_SEED)))
        heads = self._heads
        count = self._max_parallelism
        if _LONG_COUNT % count:
            # Spark's hash is signed; where this is 0, its remainder is the same.
            numbers = [n - _LONG_COUNT if n > _LONG_MAX else n for n in numbers]
        if 0 in b"".join(encoded):
            encoded = [escaped(data) if 0 in data else data for data in encoded]
        size_bytes = max(map(len, encoded))
        if size_bytes > _STRING_SIZE_BYTES_MAX:
            raise KeyTooLargeError(size_bytes + 3, KEY_SIZE_BYTES_MAX)
        return [
            heads[number % count] + data + COLUMN_END
            for number, data in zip(numbers, encoded, strict=True)
        ]

    def _storage_key_of_string(self, key: object) -> bytes:
        """Do the same for one key: four times as fast."""
        if key.__class__ is not str:
            (storage_key,) = self._storage_keys_of_any((key,))
            return storage_key
        try:
            data = key.encode()
        except UnicodeEncodeError as error:
            raise self._key.wrong(key, str(error)) from None
        group = self._group(xxh64_intdigest(data, HASH_SEED))
        if 0 in data:
            data = escaped(data)
        if len(data) > _STRING_SIZE_BYTES_MAX:
            raise KeyTooLargeError(len(data) + 3, KEY_SIZE_BYTES_MAX)
        return self._heads[group] + data + COLUMN_END

    def _storage_keys_of_bigints(self, keys: Sequence[object]) -> list[bytes]:
        heads = self._heads
        count = self._max_parallelism
        pack_little = _LONG_LE.pack
        found = []
        for key in keys:
            if key.__class__ is not int or not _LONG_MIN <= key <= _LONG_MAX:
                found += self._storage_keys_of_any((key,))
                continue
            number = xxh64_intdigest(pack_little(key), HASH_SEED)
            if number > _LONG_MAX:
                number -= _LONG_COUNT
            found.append(heads[number % count] + (key - _LONG_MIN).to_bytes(8, "big"))
        return found


def _transposed(keys: Sequence[tuple[Any, ...]], key: _Key) -> list[list[Any]]:
    if not keys:
        return [[] for _ in key.fields]
    return [list(column) for column in zip(*keys, strict=True)]


# The two most common kinds of key, likewise: thousands of them in a page of a scan.


def _strings(encoded: Sequence[bytes]) -> list[str] | None:
    """Return what the strings *encoded* are, or None if one is not as most are."""
    whole = b"".join(encoded)
    count = len(encoded)
    if not whole.startswith(COLUMN_PRESENT) or whole.count(0) != 2 * count:
        return None
    # Each ends with both of its zeros, and all that is between them is text.
    if not all(one.endswith(COLUMN_END) for one in encoded):
        return None
    try:
        found = whole[1:-2].decode().split("\0\0\1")
    except UnicodeDecodeError:
        return None
    return found if len(found) == count else None


def _bigints(encoded: Sequence[bytes]) -> list[int] | None:
    """Return what the bigints *encoded* are, or None if one is not as most are."""
    if not set(map(len, encoded)) <= {_BIGINT.size}:
        return None
    found = list(_BIGINT.iter_unpack(b"".join(encoded)))
    if any(mark != 1 for mark, _ in found):
        return None
    return [number + _LONG_MIN for _, number in found]


_READ_AT_ONCE: Final[
    dict[object, Callable[[Sequence[bytes]], list[str] | list[int] | None]]
] = {AtomicType.STRING: _strings, AtomicType.BIGINT: _bigints}


def _limited(encoded: bytes) -> bytes:
    if len(encoded) > KEY_SIZE_BYTES_MAX:
        raise KeyTooLargeError(len(encoded), KEY_SIZE_BYTES_MAX)
    return encoded
