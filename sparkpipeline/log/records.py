"""
Lines of a log as rows: JSON objects, as a whole or by their fields.

Without a schema of its own a source gives each line as it is, with where it stands.
With a schema, it gives the fields of that name, which must be of the very types that
JSON has for them: nothing is guessed or converted.
"""

from __future__ import annotations

import typing
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from nameservice import ConfigurationError
from rescaling import LogRecordError


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["LINE_SCHEMA", "RecordDecoder"]

LINE_SCHEMA: Final = StructType(
    [
        StructField(
            "partition",
            StringType(),
            metadata={"comment": "the file that has the line"},
        ),
        StructField(
            "offset",
            LongType(),
            metadata={"comment": "where it begins there, in bytes"},
        ),
        StructField(
            "value", StringType(), metadata={"comment": "the line, without its end"}
        ),
    ]
)
"""
The rows of a source that was given no schema: where a line stands, and the line.

The comments tell it from a schema that somebody gives whose fields have these names.
"""

_INTEGERS: Final[dict[type[DataType], tuple[int, Any]]] = {
    ByteType: (8, pa.int8()),
    ShortType: (16, pa.int16()),
    IntegerType: (32, pa.int32()),
    LongType: (64, pa.int64()),
}

_FLOAT_LIMIT: Final = (2.0 - 2.0**-24) * 2.0**127
"""What is less is rounded to a ``float`` that is not infinite."""


@final
class RecordDecoder:
    """
    Makes rows of lines; not picklable, to be made where it is used.

    Args:
        schema: `LINE_SCHEMA`, or the fields that are wanted.

    Raises:
        ConfigurationError: If JSON has no values of a type, or nulls are not allowed.
    """

    def __init__(self, schema: StructType) -> None:
        self._is_whole = schema == LINE_SCHEMA
        fields = [
            (one.name, *_types(one.dataType, one.name, is_nullable=one.nullable))
            for one in schema.fields
        ]
        self._arrow_schema = pa.schema([(name, kind) for name, _, kind in fields])
        record: Any = _record_type((name, kind) for name, kind, _ in fields)
        if self._is_whole:
            record = dict[str, msgspec.Raw]
        self._decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(
            record
        )

    def decode(self, path: str, name: str, offset: int, line: bytes) -> dict[str, Any]:
        """
        Return the row of one line.

        Args:
            path: The file, for people.
            name: The partition.
            offset: Where the line begins.
            line: Without its line end.

        Raises:
            LogRecordError: If it is no JSON object with such fields.
        """
        try:
            record = self._decoder.decode(line)
            if not self._is_whole:
                return record
            value = line.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise LogRecordError(path, offset, str(error)) from None
        return {"partition": name, "offset": offset, "value": value}

    def batch(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Return *rows* as Spark takes them."""
        return pa.RecordBatch.from_pylist(list(rows), schema=self._arrow_schema)


def _types(data_type: DataType, name: str, *, is_nullable: bool) -> tuple[Any, Any]:
    """Return what to decode a field as, and what Arrow calls it."""
    if not is_nullable:
        raise ConfigurationError(
            f"the column {name} is NOT NULL, and missing fields are null: leave NOT "
            "NULL out (in types of Python: nullable=False, containsNull=False)"
        )
    kind: Any
    arrow_type: Any
    match data_type:
        case BooleanType():
            kind, arrow_type = bool, pa.bool_()
        case ByteType() | ShortType() | IntegerType() | LongType():
            bits, arrow_type = _INTEGERS[type(data_type)]
            limits = msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)
            kind = Annotated[int, limits]
        case FloatType():
            limits = msgspec.Meta(gt=-_FLOAT_LIMIT, lt=_FLOAT_LIMIT)
            kind, arrow_type = Annotated[float, limits], pa.float32()
        case DoubleType():
            kind, arrow_type = float, pa.float64()
        case StringType():
            kind, arrow_type = str, pa.string()
        case ArrayType():
            item, item_type = _types(
                data_type.elementType,
                f"{name}.element",
                is_nullable=data_type.containsNull,
            )
            kind, arrow_type = GenericAlias(list, (item,)), pa.list_(item_type)
        case StructType():
            parts = [
                (
                    one.name,
                    *_types(
                        one.dataType, f"{name}.{one.name}", is_nullable=one.nullable
                    ),
                )
                for one in data_type.fields
            ]
            kind = _record_type((part, inner) for part, inner, _ in parts)
            arrow_type = pa.struct([(part, inner) for part, _, inner in parts])
        case _:
            raise ConfigurationError(
                f"the column {name} is {data_type.simpleString()}, which JSON does "
                "not have: read it as a string, and cast it"
            )
    return kind | None, arrow_type


def _record_type(fields: Iterable[tuple[str, Any]]) -> Any:
    """Return the type of an object with *fields*, any of which may be missing."""
    make: Any = getattr(typing, "TypedDict")  # noqa: B009 (mypy knows no such call)
    return make("Record", dict(fields), total=False)
