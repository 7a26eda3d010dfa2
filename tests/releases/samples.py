"""
A sample of every message and record, made of its type alone.

Every field has a value, those with a default too.  Where a field takes one of several
messages there is a sample with each.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import inspect


__all__ = ["samples"]

_UUID: Final = "12345678-1234-5678-1234-567812345678"


def samples(kind: Any) -> list[Any]:
    """
    Return samples of *kind*, a message, a record, or a union of such.

    Two calls return the same.
    """
    described = inspect.type_info(kind)
    return [
        msgspec.convert(sample, kind, builtin_types=(bytes,))
        for sample in _structs(described)
    ]


def _structs(described: inspect.Type) -> list[Any]:
    if isinstance(described, inspect.UnionType):
        return [one for each in described.types for one in _structs(each)]
    assert isinstance(described, inspect.StructType)
    return _variants(described)


def _variants(described: inspect.StructType) -> list[Any]:
    """Return a struct with the first value of each field, and one for each other."""
    values = {field.encode_name: _values(field.type) for field in described.fields}
    first = {name: possible[0] for name, possible in values.items()}
    found = [_struct(described, first)]
    for name, possible in values.items():
        found += [_struct(described, first | {name: other}) for other in possible[1:]]
    return found


def _struct(described: inspect.StructType, fields: dict[str, Any]) -> Any:
    if described.array_like:
        return list(fields.values())
    if described.tag_field is None:
        return fields
    return {described.tag_field: described.tag, **fields}


def _values(described: inspect.Type) -> list[Any]:
    """Return a value of a field; of several messages each."""
    match described:
        case inspect.Metadata():
            return _values(described.type)
        case inspect.UnionType(types=types):
            structs = [one for one in types if isinstance(one, inspect.StructType)]
            if structs:
                return [_variants(one)[0] for one in structs]
            return _values(types[0])
        case inspect.StructType():
            return [_variants(described)[0]]
        case inspect.BoolType():
            return [True]
        case inspect.IntType(ge=ge, gt=gt):
            return [1 if ge is None and gt is None else (ge or gt or 0) + 1]
        case inspect.FloatType():
            return [0.5]
        case inspect.StrType(min_length=least, pattern=pattern):
            # All patterns are of hexadecimal digits, that many.
            digits = re.search(r"{(\d+)}", pattern or "")
            return ["a" * (int(digits[1]) if digits else max(1, least or 0))]
        case inspect.BytesType(min_length=least):
            return [b"\x01" * max(1, least or 0)]
        case inspect.UUIDType():
            return [_UUID]
        case inspect.LiteralType(values=values):
            return [values[0]]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [[one] for one in _values(item)]
        case inspect.TupleType(item_types=items):
            return [[_values(item)[0] for item in items]]
        case inspect.DictType(key_type=key, value_type=value):
            return [{_values(key)[0]: _values(value)[0]}]
        case inspect.AnyType():
            return ["a"]
        case inspect.NoneType():
            return [None]
        case _:
            raise AssertionError(described)
