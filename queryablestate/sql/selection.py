"""
Which keys a condition leaves: what of a state must be read, and no less; pure.

The engine evaluates every statement as it stands, over what was read.  So the rows that
a `Selection` gives need only be all that can satisfy the condition: more do no harm.
Conditions whose meaning might differ between the engine and the order of keys (floats,
casts, collations) select nothing here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, TypeAlias, final

from attrs import define, frozen

from queryablestate.schema.keys import KEY_SIZE_BYTES_MAX
from queryablestate.schema.schema import AtomicType, Field


__all__ = [
    "KEY_COUNT_MAX",
    "WHOLE",
    "Node",
    "Selection",
    "conjuncts_of",
    "of_one_key",
    "select",
]

KEY_COUNT_MAX: Final = 1_000
"""How many keys are looked up one by one; of more, the state is scanned."""

Node: TypeAlias = Mapping[str, Any]
"""A part of a statement as the engine's parser gives it."""

_INTEGER_BITS: Final = {
    AtomicType.TINYINT: 8,
    AtomicType.SMALLINT: 16,
    AtomicType.INT: 32,
    AtomicType.BIGINT: 64,
}
_CANONICAL_INTEGER: Final = re.compile(r"0|-?[1-9]\d{0,18}")
_CANONICAL_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_FLIPPED: Final = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}
_CASTS: Final = {
    AtomicType.STRING: frozenset({"text", "varchar"}),
    AtomicType.DATE: frozenset({"date"}),
}
_UNKNOWN: Final = object()
_BOUND_SIZE_BYTES_MAX: Final = KEY_SIZE_BYTES_MAX - 8
"""Of a text between which and others keys are; what ends a column comes on top."""


@final
@frozen(kw_only=True)
class Selection:
    """
    A part of a state.

    Attributes:
        keys: These keys alone, each a bare value or a tuple; None for no such list.
        prefix: What keys begin with, as `scan` takes it.
        start: The first key, included.
        stop: The key to end at, not included.
        is_exact: Whether every row of it satisfies the whole condition.
    """

    keys: tuple[Any, ...] | None = None
    prefix: Any = None
    start: Any = None
    stop: Any = None
    is_exact: bool = False

    @property
    def is_whole(self) -> bool:
        """Return whether it is the whole state."""
        bounds = (self.keys, self.prefix, self.start, self.stop)
        return all(one is None for one in bounds)


WHOLE: Final = Selection()


def conjuncts_of(where: Node | None) -> list[Node]:
    """Return the conditions that must all hold."""
    if where is None:
        return []
    if where["type"] == "CONJUNCTION_AND":
        return [one for child in where["children"] for one in conjuncts_of(child)]
    return [where]


@final
@define
class _Column:
    """What conditions say of one key column."""

    field: Field
    values: set[Any] | None = None
    low: Any = None
    is_low_included: bool = True
    high: Any = None
    is_high_included: bool = True
    prefix: str | None = None

    def only(self, values: set[Any]) -> None:
        self.values = values if self.values is None else self.values & values


def select(
    key: Sequence[Field],
    conjuncts: Iterable[Node],
    names: frozenset[str],
    parameters: Mapping[str, Any],
    *,
    key_count_max: int = KEY_COUNT_MAX,
) -> Selection:
    """
    Return what of a state can satisfy all of *conjuncts*.

    Args:
        key: The key columns.
        conjuncts: Conditions that must all hold.
        names: What the table is called in them, in lower case; "" if columns may
            stand without it.
        parameters: What was bound, by the number of the parameter.
        key_count_max: How many keys may be looked up one by one.
    """
    columns = {one.name.lower(): _Column(one) for one in key}
    is_exact = True
    for conjunct in conjuncts:
        if not _take(conjunct, columns, names, parameters):
            is_exact = False
    found = list(columns.values())
    keys = _keys(found, key_count_max)
    if keys is not None:
        # A range beside a list of keys is left to the engine.
        plain = all(one.low is one.high is one.prefix is None for one in found)
        return Selection(keys=keys, is_exact=is_exact and plain)
    if len(found) == 1:
        return _range(found[0], is_exact=is_exact)
    fixed = list(
        itertools.takewhile(
            lambda one: one.values is not None and len(one.values) == 1, found
        )
    )
    if fixed:
        return Selection(prefix=tuple(next(iter(one.values or ())) for one in fixed))
    return WHOLE


def _keys(columns: Sequence[_Column], count_max: int) -> tuple[Any, ...] | None:
    if any(one.values == set() for one in columns):
        return ()
    count = 1
    for one in columns:
        if one.values is None:
            return None
        count *= len(one.values)
    if count > count_max:
        return None
    ordered = [sorted(one.values or ()) for one in columns]
    if len(ordered) == 1:
        return tuple(ordered[0])
    return tuple(itertools.product(*ordered))


def _range(column: _Column, *, is_exact: bool) -> Selection:
    if column.values is not None:
        return WHOLE  # too many keys
    start = column.low
    if start is not None and not column.is_low_included:
        above = _successor(column.field, start)
        if above is not None:
            start = above
        elif isinstance(start, date):
            is_exact = False
        else:
            return Selection(keys=())
    stop = column.high
    if stop is not None and column.is_high_included:
        stop = _successor(column.field, stop)  # None: no key is greater
        if stop is None and isinstance(column.high, date):
            is_exact = False
    # Nulls sort first, and satisfy no condition.
    has_low = start is not None or column.prefix is not None
    return Selection(
        prefix=column.prefix,
        start=start,
        stop=stop,
        is_exact=is_exact and has_low,
    )


def of_one_key(key: Sequence[Field], value: Any) -> Selection:
    """Return the selection of all rows under one key, as a part of a scan."""
    if len(key) > 1:
        return Selection(prefix=value)
    return Selection(start=value, stop=_successor(key[0], value))


def _successor(column: Field, value: Any) -> Any:
    """
    Return the least value above *value*, or None.

    Keys may be above the last day, or moment, all the same: Spark's years go on.
    """
    if isinstance(value, str):
        return f"{value}\0"
    if isinstance(value, int):
        assert isinstance(column.type, AtomicType)
        top = (1 << (_INTEGER_BITS[column.type] - 1)) - 1
        return value + 1 if value < top else None
    step = timedelta(days=1)
    if isinstance(value, datetime):
        step = timedelta(microseconds=1)
    try:
        return value + step
    except OverflowError:
        return None


# -- conditions ----------------------------------------------------------------------


def _take(
    node: Node,
    columns: Mapping[str, _Column],
    names: frozenset[str],
    parameters: Mapping[str, Any],
) -> bool:
    """Take one condition; return whether the column says all of it now."""
    match node["class"]:
        case "COMPARISON":
            return _take_comparison(node, columns, names, parameters)
        case "BETWEEN":
            column = _column(node["input"], columns, names)
            if column is None:
                return False
            low = _value(node["lower"], column.field, parameters)
            high = _value(node["upper"], column.field, parameters)
            took = [
                _bound(column, "COMPARE_GREATERTHANOREQUALTO", low),
                _bound(column, "COMPARE_LESSTHANOREQUALTO", high),
            ]
            return all(took)
        case "OPERATOR" if node["type"] == "COMPARE_IN":
            column = _column(node["children"][0], columns, names)
            if column is None:
                return False
            values = [
                _value(child, column.field, parameters)
                for child in node["children"][1:]
            ]
            return _only(column, values)
        case "SUBQUERY":
            return _take_any(node, columns, names, parameters)
        case "FUNCTION":
            return _take_prefix(node, columns, names, parameters)
        case _:
            return False


def _take_comparison(
    node: Node,
    columns: Mapping[str, _Column],
    names: frozenset[str],
    parameters: Mapping[str, Any],
) -> bool:
    how, other = node["type"], node["right"]
    column = _column(node["left"], columns, names)
    if column is None:
        column, other = _column(node["right"], columns, names), node["left"]
        how = _FLIPPED.get(how, "")
    if column is None or how not in _FLIPPED:
        return False
    value = _value(other, column.field, parameters)
    if how == "COMPARE_EQUAL":
        return _only(column, [value])
    return _bound(column, how, value)


def _only(column: _Column, values: Sequence[Any]) -> bool:
    if any(value is _UNKNOWN for value in values):
        return False
    column.only({value for value in values if value is not None})
    return True


def _bound(column: _Column, how: str, value: Any) -> bool:
    if value is _UNKNOWN or _is_too_long(value):
        return False
    if value is None:  # it is true of nothing
        column.only(set())
        return True
    is_included = how.endswith("OREQUALTO")
    if "GREATER" in how:
        rank = (value, not is_included)
        if column.low is None or rank > (column.low, not column.is_low_included):
            column.low, column.is_low_included = value, is_included
    elif column.high is None or (value, is_included) < (
        column.high,
        column.is_high_included,
    ):
        column.high, column.is_high_included = value, is_included
    return True


def _is_too_long(value: Any) -> bool:
    """Return whether *value*, or what comes next behind it, may be longer than keys."""
    if not isinstance(value, str):
        return False
    return len(value.encode()) + value.count("\0") > _BOUND_SIZE_BYTES_MAX


def _take_any(
    node: Node,
    columns: Mapping[str, _Column],
    names: frozenset[str],
    parameters: Mapping[str, Any],
) -> bool:
    """Take ``key = ANY (parameter)``, which the parser makes a subquery of."""
    if node["subquery_type"] != "ANY" or node["comparison_type"] != "COMPARE_EQUAL":
        return False
    column = _column(node["child"], columns, names)
    inner = node["subquery"]["node"]
    is_unnest = (
        column is not None
        and inner["type"] == "SELECT_NODE"
        and inner["from_table"]["type"] == "EMPTY"
        and not inner["where_clause"]
        and not inner["modifiers"]
        and len(inner["select_list"]) == 1
        and inner["select_list"][0].get("function_name") == "unnest"
    )
    if not is_unnest or column is None:
        return False
    (argument,) = inner["select_list"][0]["arguments"]
    expression = argument["expression"]
    if expression["class"] == "CAST" and not expression["try_cast"]:
        # What a tool casts a parameter to is what it was sent as.
        expression = expression["child"]
    if expression["class"] != "PARAMETER":
        return False
    values = parameters.get(expression["identifier"], _UNKNOWN)
    if not isinstance(values, list):
        return False
    return _only(column, [_bound_value(value, column.field) for value in values])


def _take_prefix(
    node: Node,
    columns: Mapping[str, _Column],
    names: frozenset[str],
    parameters: Mapping[str, Any],
) -> bool:
    name = node["function_name"]
    if name not in {"~~", "^@", "starts_with", "prefix"}:
        return False
    if len(node["arguments"]) != 2:
        return False
    left, right = (argument["expression"] for argument in node["arguments"])
    column = _column(left, columns, names)
    if column is None or column.field.type is not AtomicType.STRING:
        return False
    value = _value(right, column.field, parameters)
    if not isinstance(value, str):
        return False
    is_all = True
    if name == "~~":
        if "\\" in value:
            return False
        pattern = value
        value = re.split("[%_]", pattern, maxsplit=1)[0]
        is_all = pattern == f"{value}%"
    if not value:
        return False
    if column.prefix is None or value.startswith(column.prefix):
        column.prefix = value
    elif not column.prefix.startswith(value):
        column.only(set())
    return is_all


# -- columns and values --------------------------------------------------------------


def _column(
    node: Node, columns: Mapping[str, _Column], names: frozenset[str]
) -> _Column | None:
    """Return the key column that *node* is, or None."""
    if node["class"] != "COLUMN_REF":
        return None
    *qualifiers, name = (part.lower() for part in node["column_names"])
    if ".".join(qualifiers) not in names:
        return None
    return columns.get(name)


def _value(node: Node, column: Field, parameters: Mapping[str, Any]) -> Any:
    """Return the value of the column's type that *node* is; None is null."""
    match node["class"]:
        case "CONSTANT":
            literal = node["literal"]
            return _literal(literal["kind"], literal.get("text", ""), column)
        case "PARAMETER":
            value = parameters.get(node["identifier"], _UNKNOWN)
            return _bound_value(value, column)
        case "CAST" if not node["try_cast"]:
            wanted: frozenset[str] = frozenset()
            if isinstance(column.type, AtomicType):
                wanted = _CASTS.get(column.type, wanted)
            if node["type_expr"].get("type_name", "").lower() in wanted:
                return _value(node["child"], column, parameters)
    return _UNKNOWN


def _literal(kind: str, text: str, column: Field) -> Any:
    match kind, column.type:
        case "NULL_LITERAL", _:
            return None
        case "STRING", AtomicType.STRING:
            return text
        case (("STRING" | "INTEGER"), AtomicType()) if column.type in _INTEGER_BITS:
            if not _CANONICAL_INTEGER.fullmatch(text):
                return _UNKNOWN
            return _bound_value(int(text), column)
        case "STRING", AtomicType.DATE if _CANONICAL_DATE.fullmatch(text):
            try:
                return date.fromisoformat(text)
            except ValueError:
                return _UNKNOWN
        case "BOOLEAN", AtomicType.BOOLEAN:
            return _UNKNOWN  # two keys are as soon scanned
        case _:
            return _UNKNOWN


def _bound_value(value: Any, column: Field) -> Any:
    """Return *value* if it is of the column's type; None is null."""
    if value is None:
        return None
    column_type = column.type
    if not isinstance(column_type, AtomicType):
        return _UNKNOWN
    bits = _INTEGER_BITS.get(column_type)
    if bits is not None:
        fits = isinstance(value, int) and not isinstance(value, bool)
        return (
            value
            if fits and -(1 << (bits - 1)) <= value < 1 << (bits - 1)
            else _UNKNOWN
        )
    match column_type, value:
        case AtomicType.STRING, str():
            return value
        case AtomicType.TIMESTAMP, datetime() if value.tzinfo is not None:
            return value
        case AtomicType.TIMESTAMP_NTZ, datetime() if value.tzinfo is None:
            return value
        case AtomicType.DATE, date() if not isinstance(value, datetime):
            return value
        case _:
            return _UNKNOWN
