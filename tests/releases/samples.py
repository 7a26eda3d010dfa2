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


__all__ = ["field_list", "full_name", "samples", "structs_within"]

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


def structs_within(kind: Any) -> set[type[msgspec.Struct]]:
    """Return all structs that may be a part of *kind*, and those that it is."""
    found: set[type[msgspec.Struct]] = set()
    _collect(inspect.type_info(kind), found)
    return found


def _collect(described: inspect.Type, found: set[type[msgspec.Struct]]) -> None:
    match described:
        case inspect.StructType(cls=cls):
            if cls not in found:
                found.add(cls)
                for field in described.fields:
                    _collect(field.type, found)
        case inspect.UnionType(types=types):
            for each in types:
                _collect(each, found)
        case inspect.Metadata(type=each):
            _collect(each, found)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            _collect(item, found)
        case inspect.TupleType(item_types=items):
            for each in items:
                _collect(each, found)
        case inspect.DictType(key_type=key, value_type=value):
            _collect(key, found)
            _collect(value, found)


def full_name(struct: type) -> str:
    """Return what tells *struct* from others of its name."""
    return f"{struct.__module__}.{struct.__name__}"


def field_list(struct: type[msgspec.Struct]) -> list[str]:
    """
    Return what no sample shows of a struct's fields: their names, and their defaults.

    Without names two fields of one type may change places, and without defaults one
    that is left out may come to mean something else.
    """
    config = struct.__struct_config__
    if not (config.array_like or config.omit_defaults):
        return []
    return [
        field.name
        if field.required or not config.omit_defaults
        else f"{field.name}={field.default!r}"
        for field in msgspec.structs.fields(struct)
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
