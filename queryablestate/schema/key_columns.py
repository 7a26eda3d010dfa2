"""
One column of a key: its value, what Spark computes with, bytes that sort, its hash.

A key passes through three forms.  The *value* is what a user writes: a ``str``, an
aware ``datetime``, a tuple.  The *stored form* is what Spark computes with: bytes for a
string, days for a date, microseconds for a timestamp, the unscaled integer of a
decimal, tuples for structs and arrays.  The *encoded* column is bytes.  Going from
value to stored form is where everything is checked: a value that Spark could not have
written into the column is refused, because looking for it would be a miss that goes
unnoticed (Spark hashes int 1 and bigint 1 differently, and 1.1 as decimal(2,1)
otherwise than as decimal(3,2)).

The bytes, and the order of things, are described in `queryablestate.schema.keys`.

Source of the hashes: Spark, ``XxHash64Function`` and ``HashExpression``.
"""

from __future__ import annotations

import math
import operator
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final, assert_never, final

from xxhash import xxh64_intdigest

from nameservice import ConfigurationError
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StructType,
)
from queryablestate.schema.times import (
    YearError,
    date_of,
    days_of,
    microseconds_of,
    moment_of,
)


__all__ = [
    "COLUMN_END",
    "COLUMN_NULL",
    "COLUMN_PRESENT",
    "BytesColumn",
    "KeyColumn",
    "KeyColumns",
    "MisfitError",
    "escaped",
    "key_column",
    "reason_of",
]

COLUMN_NULL: Final = b"\x00"
COLUMN_PRESENT: Final = b"\x01"
# What ends a string: no byte of one follows, since 00 itself is written as 00 01.
COLUMN_END: Final = b"\x00\x00"

_INT_LE: Final = struct.Struct("<i")
_LONG_LE: Final = struct.Struct("<q")
_FLOAT: Final = struct.Struct(">f")


class MisfitError(Exception):
    """A value does not fit its column; `KeyCodec` makes a `WrongKeyTypeError` of it."""


def reason_of(error: Exception) -> str:
    """Return the reason of the `RemoteProtocolError` that *error* becomes."""
    return "no-python-value" if isinstance(error, YearError) else "malformed"


class KeyColumn(ABC):
    """
    One column, field or element of a key: its value, stored form, bytes and hash.

    *value* and *stored* may be None in all methods.  Made by `key_column`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @final
    def to_stored(self, value: object) -> Any:
        """Return the stored form of what a user gave, or raise a misfit."""
        return None if value is None else self._to_stored(value)

    @final
    def to_value(self, stored: Any) -> Any:
        """Return what a user sees."""
        return None if stored is None else self._to_value(stored)

    @final
    def to_plain(self, stored: Any) -> Any:
        """Return what a user sees, but days and microseconds since 1970 for times."""
        return None if stored is None else self._to_plain(stored)

    @final
    def to_bytes(self, stored: Any) -> bytes:
        """Return *stored* encoded, with its mark of null or not."""
        return (
            COLUMN_NULL if stored is None else COLUMN_PRESENT + self._to_bytes(stored)
        )

    @final
    def from_bytes(self, encoded: bytes, position: int) -> tuple[Any, int]:
        """Return what stands at *position*, as stored form, and where it ends."""
        match encoded[position]:
            case 0:
                return None, position + 1
            case 1:
                return self._from_bytes(encoded, position + 1)
            case mark:
                raise ValueError(f"{mark} marks neither null nor a value")

    @final
    def hash(self, stored: Any, seed: int) -> int:
        """Return Spark's hash of *stored*, as an unsigned integer."""
        return seed if stored is None else self._hash(stored, seed)

    @abstractmethod
    def _to_stored(self, value: object) -> Any: ...

    def _to_value(self, stored: Any) -> Any:
        return stored

    def _to_plain(self, stored: Any) -> Any:
        return self._to_value(stored)

    @abstractmethod
    def _to_bytes(self, stored: Any) -> bytes: ...

    @abstractmethod
    def _from_bytes(self, encoded: bytes, position: int) -> tuple[Any, int]: ...

    @abstractmethod
    def _hash(self, stored: Any, seed: int) -> int: ...

    @final
    def _misfit(self, wanted: str, value: object) -> MisfitError:
        return MisfitError(f"{self._name} takes {wanted}, not {type(value).__name__}")

    @final
    def _inexact(self, data_type: object) -> MisfitError:
        return MisfitError(f"{self._name} is not exactly a {data_type}")

    @final
    def _out_of_range(self, of: object) -> MisfitError:
        # Without the value: an int may be too long to be written out.
        return MisfitError(f"{self._name} is out of the range of {of}")


class _NumberColumn(KeyColumn):
    """What is stored as a signed integer of fixed width."""

    def __init__(self, name: str, data_type: object, width: int) -> None:
        super().__init__(name)
        self._type = data_type
        self._width = width
        self._offset = 1 << (8 * width - 1)

    def _within(self, number: int) -> int:
        if not -self._offset <= number < self._offset:
            raise self._out_of_range(self._type)
        return number

    def _to_bytes(self, stored: int) -> bytes:
        return (stored + self._offset).to_bytes(self._width, "big")

    def _from_bytes(self, encoded: bytes, position: int) -> tuple[int, int]:
        end = position + self._width
        if end > len(encoded):
            raise ValueError("it ends within a number")
        return int.from_bytes(encoded[position:end], "big") - self._offset, end

    def _hash(self, stored: int, seed: int) -> int:
        layout = _INT_LE if self._width <= _INT_LE.size else _LONG_LE
        return xxh64_intdigest(layout.pack(stored), seed)


@final
class _IntegerColumn(_NumberColumn):
    def _to_stored(self, value: object) -> int:
        if isinstance(value, bool):
            raise self._misfit("an int", value)
        try:
            # Integers of other libraries, numpy's for one, are welcome.
            return self._within(operator.index(value))  # type: ignore[arg-type]  # is what is tried
        except TypeError:
            raise self._misfit("an int", value) from None


@final
class _DateColumn(_NumberColumn):
    def _to_stored(self, value: object) -> int:
        if isinstance(value, datetime) or not isinstance(value, date):
            raise self._misfit("a date", value)
        return days_of(value)

    def _to_value(self, stored: int) -> date:
        return date_of(stored)

    def _to_plain(self, stored: int) -> int:
        return stored


@final
class _TimestampColumn(_NumberColumn):
    def __init__(self, name: str, *, is_aware: bool) -> None:
        super().__init__(name, "timestamp" if is_aware else "timestamp_ntz", 8)
        self._is_aware = is_aware

    def _to_stored(self, value: object) -> int:
        wanted = "an aware datetime" if self._is_aware else "a naive datetime"
        if not isinstance(value, datetime):
            raise self._misfit(wanted, value)
        try:
            if (value.utcoffset() is not None) is not self._is_aware:
                other = "a naive" if self._is_aware else "an aware"
                raise MisfitError(f"{self._name} takes {wanted}, not {other} one")
            return microseconds_of(value, is_aware=self._is_aware)
        except (OverflowError, TypeError, ValueError):  # pandas.NaT is a datetime
            raise self._out_of_range(wanted) from None

    def _to_value(self, stored: int) -> datetime:
        return moment_of(stored, is_aware=self._is_aware)

    def _to_plain(self, stored: int) -> int:
        return stored


@final
class _DecimalColumn(_NumberColumn):
    def __init__(self, name: str, data_type: DecimalType) -> None:
        super().__init__(name, data_type, 8 if data_type.precision <= 18 else 16)
        self._scale = data_type.scale
        self._unit = Decimal((0, (1,), -data_type.scale))
        self._exact = Context(
            prec=data_type.precision, traps=[Inexact, InvalidOperation]
        )

    def _to_stored(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
            raise self._misfit("a Decimal", value)
        number = Decimal(value)
        if not number.is_finite():
            raise MisfitError(f"{self._name} takes a finite Decimal")
        try:
            number = self._exact.quantize(number, self._unit)
        except (Inexact, InvalidOperation):
            raise self._inexact(self._type) from None
        return int(self._exact.scaleb(number, self._scale))

    def _to_value(self, stored: int) -> Decimal:
        return self._exact.scaleb(Decimal(stored), -self._scale)

    def _hash(self, stored: int, seed: int) -> int:
        if self._width == _LONG_LE.size:
            return super()._hash(stored, seed)
        # As few bytes as hold it, like java.math.BigInteger.toByteArray.
        bit_count = (stored if stored >= 0 else ~stored).bit_length()
        data = stored.to_bytes(bit_count // 8 + 1, "big", signed=True)
        return xxh64_intdigest(data, seed)


@final
class _BooleanColumn(KeyColumn):
    def _to_stored(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise self._misfit("a bool", value)
        return value

    def _to_bytes(self, stored: bool) -> bytes:  # noqa: FBT001  # it is the value
        return b"\x01" if stored else b"\x00"

    def _from_bytes(self, encoded: bytes, position: int) -> tuple[bool, int]:
        if encoded[position] > 1:
            raise ValueError("a boolean is 0 or 1")
        return encoded[position] == 1, position + 1

    def _hash(self, stored: bool, seed: int) -> int:  # noqa: FBT001  # it is the value
        return xxh64_intdigest(_INT_LE.pack(stored), seed)


@final
class _FloatColumn(KeyColumn):
    def __init__(self, name: str, data_type: AtomicType) -> None:
        super().__init__(name)
        is_single = data_type is AtomicType.FLOAT
        self._type = data_type
        self._is_single = is_single
        self._big = struct.Struct(">f" if is_single else ">d")
        self._little = struct.Struct("<f" if is_single else "<d")
        self._bits = struct.Struct(">I" if is_single else ">Q")
        self._sign = 1 << (8 * self._big.size - 1)
        self._all = 2 * self._sign - 1
        # One NaN, whatever bits the platform's has: Java's Double.NaN.
        self._nan = bytes.fromhex("7fc00000" if is_single else "7ff8000000000000")

    def _to_stored(self, value: object) -> float:
        if isinstance(value, float):
            number = float(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
        else:
            raise self._misfit("a float", value)
        if self._is_single:
            # To the nearest one that the column can hold, as Spark casts.
            try:
                (number,) = _FLOAT.unpack(_FLOAT.pack(number))
            except OverflowError:
                raise self._out_of_range(self._type) from None
        if isinstance(value, int) and number != value:
            raise self._inexact(self._type)
        return self._canonical(number)

    def _canonical(self, number: float) -> float:
        # The NaN of `math` is found again as part of a tuple or as a dict's key, being
        # the same object; and -0.0 + 0.0 is 0.0.
        return math.nan if math.isnan(number) else number + 0.0

    def _to_bytes(self, stored: float) -> bytes:
        stored = self._canonical(stored)
        data = self._nan if math.isnan(stored) else self._big.pack(stored)
        (bits,) = self._bits.unpack(data)
        return self._bits.pack(bits ^ (self._all if bits & self._sign else self._sign))

    def _from_bytes(self, encoded: bytes, position: int) -> tuple[float, int]:
        (bits,) = self._bits.unpack_from(encoded, position)
        bits ^= self._sign if bits & self._sign else self._all
        (number,) = self._big.unpack(self._bits.pack(bits))
        return self._canonical(number), position + self._big.size

    def _hash(self, stored: float, seed: int) -> int:
        if math.isnan(stored):
            return xxh64_intdigest(self._nan[::-1], seed)
        # Columns come from Spark as they are: -0.0 + 0.0 is 0.0.
        return xxh64_intdigest(self._little.pack(stored + 0.0), seed)


class BytesColumn(KeyColumn):
    """What is stored as bytes of any length."""

    def _to_bytes(self, stored: bytes) -> bytes:
        return escaped(stored) + COLUMN_END

    def _from_bytes(self, encoded: bytes, position: int) -> tuple[bytes, int]:
        end = encoded.index(0, position)
        while encoded[end + 1] != 0:
            if encoded[end + 1] != 1:
                raise ValueError("a byte 0 is followed by 0 or 1")
            end = encoded.index(0, end + 2)
        return encoded[position:end].replace(b"\x00\x01", b"\x00"), end + 2

    def _hash(self, stored: bytes, seed: int) -> int:
        return xxh64_intdigest(stored, seed)


@final
class _StringColumn(BytesColumn):
    def _to_stored(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise self._misfit("a str", value)
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise MisfitError(f"{self._name} takes text: {error}") from None

    def _to_value(self, stored: bytes) -> str:
        # Spark takes any bytes for a string, and shows what is no text like this.
        return stored.decode(errors="replace")


@final
class _BinaryColumn(BytesColumn):
    def _to_stored(self, value: object) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise self._misfit("bytes", value)
        return bytes(value)


@final
class _StructColumn(KeyColumn):
    def __init__(self, name: str, fields: Sequence[Field]) -> None:
        super().__init__(name)
        self._fields = KeyColumns(fields, f"{name}." if name else "")

    def _to_stored(self, value: object) -> tuple[Any, ...]:
        return self._fields.to_stored(value)

    def _to_value(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._fields.to_value(stored)

    def _to_plain(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._fields.to_plain(stored)

    def _to_bytes(self, stored: tuple[Any, ...]) -> bytes:
        return self._fields.to_bytes(stored)

    def _from_bytes(self, encoded: bytes, position: int) -> tuple[Any, int]:
        return self._fields.from_bytes(encoded, position)

    def _hash(self, stored: tuple[Any, ...], seed: int) -> int:
        return self._fields.hash(stored, seed)


@final
class _ArrayColumn(KeyColumn):
    def __init__(self, name: str, element: DataType) -> None:
        super().__init__(name)
        self._element = key_column(f"{name}.element", element)

    def _to_stored(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise self._misfit("a list", value)
        return tuple(map(self._element.to_stored, value))

    def _to_value(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(self._element.to_value, stored))

    def _to_plain(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(self._element.to_plain, stored))

    def _to_bytes(self, stored: tuple[Any, ...]) -> bytes:
        elements = (COLUMN_PRESENT + self._element.to_bytes(one) for one in stored)
        return b"".join(elements) + COLUMN_NULL

    def _from_bytes(self, encoded: bytes, position: int) -> tuple[Any, int]:
        elements = []
        while encoded[position] == 1:
            one, position = self._element.from_bytes(encoded, position + 1)
            elements.append(one)
        if encoded[position] != 0:
            raise ValueError("an array ends with 0")
        return tuple(elements), position + 1

    def _hash(self, stored: tuple[Any, ...], seed: int) -> int:
        for one in stored:
            seed = self._element.hash(one, seed)
        return seed


@final
class KeyColumns:
    """Several columns one after the other: those of a key, or a struct's fields."""

    def __init__(self, fields: Sequence[Field], prefix: str = "") -> None:
        self._names = tuple(one.name for one in fields)
        self.columns = tuple(key_column(prefix + one.name, one.type) for one in fields)

    def to_stored(self, value: object) -> tuple[Any, ...]:
        """Return the stored forms of a tuple or mapping, or raise a misfit."""
        if isinstance(value, Mapping):
            value = self._in_order(value)
        elif not isinstance(value, tuple):
            raise MisfitError(
                f"a tuple of ({', '.join(self._names)}) is wanted, not "
                f"{type(value).__name__}"
            )
        if len(value) != len(self.columns):
            raise MisfitError(
                f"({', '.join(self._names)}) takes {len(self.columns)} values, "
                f"not {len(value)}"
            )
        return tuple(
            column.to_stored(one)
            for column, one in zip(self.columns, value, strict=True)
        )

    def _in_order(self, value: Mapping[Any, object]) -> tuple[object, ...]:
        for name in self._names:
            if name not in value:
                raise MisfitError(f"the field {name} is missing")
        for name in value:
            if name not in self._names:
                raise MisfitError(f"there is no field {name!r}")
        return tuple(value[name] for name in self._names)

    def to_value(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """Return what a user sees of all columns."""
        return tuple(
            column.to_value(one)
            for column, one in zip(self.columns, stored, strict=True)
        )

    def to_plain(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """Return them with days and microseconds since 1970 for times."""
        return tuple(
            column.to_plain(one)
            for column, one in zip(self.columns, stored, strict=True)
        )

    def to_bytes(self, stored: Sequence[Any]) -> bytes:
        """Return the bytes of the columns that *stored* has: all or the first ones."""
        return b"".join(
            [
                column.to_bytes(one)
                for column, one in zip(self.columns, stored, strict=False)
            ]
        )

    def from_bytes(self, encoded: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        """Return the columns that stand at *position*, and where they end."""
        stored = []
        for column in self.columns:
            one, position = column.from_bytes(encoded, position)
            stored.append(one)
        return tuple(stored), position

    def hash(self, stored: Sequence[Any], seed: int) -> int:
        """Return Spark's hash of all columns, each seeding the next."""
        for column, one in zip(self.columns, stored, strict=True):
            seed = column.hash(one, seed)
        return seed


def key_column(name: str, data_type: DataType) -> KeyColumn:
    """
    Return what encodes and hashes a key column *name* of type *data_type*.

    Raises:
        ConfigurationError: If no key can have the type.
    """
    match data_type:
        case AtomicType.TINYINT:
            return _IntegerColumn(name, data_type, 1)
        case AtomicType.SMALLINT:
            return _IntegerColumn(name, data_type, 2)
        case AtomicType.INT:
            return _IntegerColumn(name, data_type, 4)
        case AtomicType.BIGINT:
            return _IntegerColumn(name, data_type, 8)
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            return _FloatColumn(name, data_type)
        case AtomicType.BOOLEAN:
            return _BooleanColumn(name)
        case AtomicType.STRING:
            return _StringColumn(name)
        case AtomicType.BINARY:
            return _BinaryColumn(name)
        case AtomicType.DATE:
            return _DateColumn(name, data_type, 4)
        case AtomicType.TIMESTAMP:
            return _TimestampColumn(name, is_aware=True)
        case AtomicType.TIMESTAMP_NTZ:
            return _TimestampColumn(name, is_aware=False)
        case DecimalType():
            return _DecimalColumn(name, data_type)
        case StructType(fields=fields):
            return _StructColumn(name, fields)
        case ArrayType(element=element):
            return _ArrayColumn(name, element)
        case MapType() | CollatedStringType():
            raise ConfigurationError(
                f"key column {name!r} cannot have type {data_type}"
            )
        case _:
            assert_never(data_type)


def escaped(data: bytes) -> bytes:
    """Return *data* so that `COLUMN_END` is not part of it, and in the same order."""
    return data.replace(b"\x00", b"\x00\x01")
