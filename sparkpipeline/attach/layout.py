"""
From what Spark's ``statestore`` reader gives to the rows of a queryable state.

Theory of operation.  The reader gives structs, whose names depend on what it reads:

*   every stateful operator: ``key``, ``value``;
*   value, list and map variables of ``transformWithState``: ``key`` with ``value``,
    ``list_element``, or ``user_map_key`` and ``user_map_value``.  With a TTL, the value
    is once more wrapped: ``value``, ``ttlExpirationMs``.

The fields of the key become the key columns, those of the value the value columns.
Aggregations call the fields of their state after what they compute, so that two sums
are both called ``sum``: the second one becomes ``sum_2`` here.

The change feed has ``change_type`` besides: ``update`` and ``delete``, and for lists
``append``.  An ``update`` of a list puts one element in place of the list, and those
that follow are appended; so it is a delete, then an append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from attrs import evolve, frozen
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.types import NullType, StructField, StructType

from nameservice import ConfigurationError
from queryablestate.schema.schema import StateKind, StateSchema
from queryablestate.schema.schema_json import parse_fields
from sparkpipeline.state.options import StateLayout


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from queryablestate.schema.schema import Field


__all__ = ["AttachedLayout", "StateSource", "attached_layout", "find_source"]

JOIN_OPERATOR: Final = "symmetricHashJoin"
WITH_VARIABLES: Final = "transformWithState"
"""What the names of such operators begin with, in Scala and in Python."""

_VARIABLE_KINDS: Final = {
    "ValueState": StateKind.VALUE,
    "ListState": StateKind.LIST,
    "MapState": StateKind.MAP,
}
_VALUE_COLUMNS: Final = {
    StateKind.VALUE: "value",
    StateKind.LIST: "list_element",
    StateKind.MAP: "user_map_value",
}
_TTL_VALUE: Final = "value"
_TTL_EXPIRY: Final = "ttlExpirationMs"


# --- What there is --------------------------------------------------------------------


@final
@frozen(kw_only=True)
class StateSource:
    """
    A state that Spark keeps for a query.

    Attributes:
        operator_id: The number of the operator within the query.
        operator_name: What Spark calls it.
        state_var_name: The variable of ``transformWithState``, or None.
        kind: What is kept under one key.
        has_ttl: Whether Spark removes values after a time.
    """

    operator_id: int
    operator_name: str
    state_var_name: str | None = None
    kind: StateKind = StateKind.VALUE
    has_ttl: bool = False


@final
class _Variable(msgspec.Struct, frozen=True, rename="camel"):
    """A variable of ``transformWithState``, in Spark's own JSON."""

    state_name: str
    state_variable_type: str
    ttl_enabled: bool = False


@final
class _OperatorProperties(msgspec.Struct, frozen=True, rename="camel"):
    """What Spark's ``state-metadata`` tells of ``transformWithState``."""

    state_variables: list[_Variable] = []


def find_source(
    operators: Iterable[Mapping[str, Any]],
    operator_id: int,
    state_var_name: str | None,
) -> StateSource:
    """
    Return the state that is meant.

    Args:
        operators: The rows of Spark's ``state-metadata`` reader.
        operator_id: The number of the operator; 0 if there is only one.
        state_var_name: The variable, if the operator is a ``transformWithState``.

    Raises:
        ConfigurationError: If there is no such state, or it cannot be attached; says
            which there are, or why not.
    """
    found = {int(row["operatorId"]): row for row in operators}
    row = found.get(operator_id)
    if row is None:
        listed = ", ".join(
            f"{number} ({found[number]['operatorName']})" for number in sorted(found)
        )
        if not listed:
            raise ConfigurationError(
                "the query keeps no state: it has no stateful operator; attach a query "
                "that aggregates, joins, drops duplicates or uses transformWithState"
            )
        raise ConfigurationError(
            f"the query has no stateful operator {operator_id}: it has {listed}"
        )
    operator_name = str(row["operatorName"])
    if operator_name == JOIN_OPERATOR:
        raise ConfigurationError(
            f"operator {operator_id} is a stream-stream join, which cannot be "
            "attached: it keeps rows that wait for their match in four stores, which "
            "have no change feed together.  Publish its result with publish_state"
        )
    properties = _parse_properties(row["operatorProperties"])
    is_with_variables = operator_name.startswith(WITH_VARIABLES)
    if not properties.state_variables and not is_with_variables:
        if state_var_name is not None:
            raise ConfigurationError(
                f"operator {operator_id} is a {operator_name} and has no variables: "
                "leave state_var_name out"
            )
        return StateSource(operator_id=operator_id, operator_name=operator_name)
    variables = {
        variable.state_name: variable
        for variable in properties.state_variables
        if variable.state_variable_type in _VARIABLE_KINDS
    }
    if not variables:
        raise ConfigurationError(
            f"operator {operator_id} is a transformWithState that keeps no variables, "
            "so there is nothing to publish"
        )
    chosen = variables.get(state_var_name) if state_var_name is not None else None
    if chosen is None:
        raise ConfigurationError(
            f"operator {operator_id} is a transformWithState: say which of its "
            f"variables is meant with state_var_name, {', '.join(sorted(variables))}"
            + ("" if state_var_name is None else f"; not {state_var_name!r}")
        )
    return StateSource(
        operator_id=operator_id,
        operator_name=operator_name,
        state_var_name=chosen.state_name,
        kind=_VARIABLE_KINDS[chosen.state_variable_type],
        has_ttl=chosen.ttl_enabled,
    )


def _parse_properties(text: str | None) -> _OperatorProperties:
    if not text:
        return _OperatorProperties()
    try:
        return msgspec.json.decode(text, type=_OperatorProperties)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"what Spark tells of the operator cannot be read ({error}): this version "
            "of Spark keeps it otherwise"
        ) from error


# --- Columns --------------------------------------------------------------------------


@final
@frozen(kw_only=True)
class _Part:
    """
    A struct of the reader whose fields become columns.

    Attributes:
        column: Where it is, with dots.
        type: Its fields as the reader has them.
        names: What they are called in the state; None for those that it leaves out.
    """

    column: str
    type: StructType
    names: tuple[str | None, ...]

    def columns(self) -> list[Column]:
        """Return its fields as columns; by position, since names may occur twice."""
        renamed = StructType(
            [
                StructField(f"field{index}", one.dataType)
                for index, one in enumerate(self.type)
            ]
        )
        struct = F.col(self.column).cast(renamed)
        return [
            struct.getField(f"field{index}")
            for index, name in enumerate(self.names)
            if name is not None
        ]

    def fields(self) -> tuple[Field, ...]:
        """Return its fields as the state is registered with them."""
        chosen = [
            StructField(name, one.dataType)
            for one, name in zip(self.type, self.names, strict=True)
            if name is not None
        ]
        return parse_fields(StructType(chosen).json())


@final
@frozen(kw_only=True)
class AttachedLayout:
    """
    How a state of Spark becomes one of ours.

    Attributes:
        layout: What tasks must know, and the registered schema.
    """

    layout: StateLayout
    _parts: tuple[_Part, ...]
    _expiry: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Return what the columns are called, but for the key group behind them."""
        return self.layout.names_used

    def columns(self, *, is_feed: bool, max_parallelism: int) -> list[Column]:
        """
        Return what to select of a frame of the ``statestore`` reader.

        These are the columns of `names`, in their order, and the key group of each row.
        They are made by many calls of the JVM, and serve for every batch.

        Args:
            is_feed: Whether the frame is a change feed.
            max_parallelism: The number of key groups.
        """
        key, *others = (part.columns() for part in self._parts)
        columns = [*key, *(column for part in others for column in part)]
        columns.append(self._is_deleted() if is_feed else F.lit(col=False))
        if self._expiry is not None:
            columns.append(F.timestamp_millis(F.col(self._expiry)))
        group = F.pmod(F.xxhash64(*key), F.lit(max_parallelism)).cast("int")
        # Under names of ours, for mapInArrow cannot take every name.
        named = [column.alias(f"c{index}") for index, column in enumerate(columns)]
        return [*named, group.alias("g")]

    def _is_deleted(self) -> Column:
        """Return whether a row of the feed takes away; for lists a row becomes two."""
        change = F.col("change_type")
        unknown = F.raise_error(
            F.concat(F.lit("Lodestar does not know this change of state: "), change)
        )
        if not self.layout.is_list:
            return (
                F.when(change == "update", F.lit(col=False))
                .when(change == "delete", F.lit(col=True))
                .otherwise(unknown)
            )
        put, clear = F.lit(col=False), F.lit(col=True)
        return F.explode(
            F.when(change == "append", F.array(put))
            .when(change == "update", F.array(clear, put))
            .when(change == "delete", F.array(clear))
            .otherwise(unknown)
        )


def attached_layout(
    source: StateSource,
    schema: StructType,
    *,
    state_name: str,
    value_names: Sequence[str] | None,
) -> AttachedLayout:
    """
    Return how a state that the reader gives with *schema* becomes one of ours.

    Args:
        source: Which state.
        schema: Of the reader; with or without the columns of the feed.
        state_name: What ours is called.
        value_names: The value columns, in their order; by default as Spark has them.

    Raises:
        ConfigurationError: If the state has no key, or columns of a type that does not
            do, or not as many value columns as *value_names*.
    """
    taken: set[str] = set()
    key = _part(schema, "key", taken)
    if not key.type.fields:
        raise ConfigurationError(
            f"operator {source.operator_id} is a {source.operator_name} without a "
            "key, so that its state is one row: publish its result with publish_state"
        )
    parts = [key]
    is_map = source.kind is StateKind.MAP
    if is_map:
        parts.append(_part(schema, "user_map_key", taken))
    column = _VALUE_COLUMNS[source.kind]
    expiry = None
    if source.has_ttl:
        expiry = f"{column}.{_TTL_EXPIRY}"
        column = f"{column}.{_TTL_VALUE}"
    value = _part(schema, column, taken)
    if value_names is not None:
        value = evolve(value, names=_renamed(value, value_names))
    parts.append(value)
    key_fields, *other_fields = (part.fields() for part in parts)
    state_schema = StateSchema(
        kind=source.kind,
        key=key_fields,
        map_key=other_fields[0] if is_map else (),
        value=other_fields[-1],
        has_ttl=source.has_ttl,
    )
    taken.update(name.lower() for name in value_names or ())
    return AttachedLayout(
        layout=StateLayout(
            state_name=state_name,
            schema=state_schema,
            order_by=(),
            delete=_free_name("is_deleted", taken),
            ttl=_free_name("expires_at", taken) if source.has_ttl else None,
        ),
        parts=tuple(parts),
        expiry=expiry,
    )


def _part(schema: StructType, column: str, taken: set[str]) -> _Part:
    """Return the struct *column* of *schema*, with names that are not *taken* yet."""
    found: DataType = schema
    for name in column.split("."):
        if not isinstance(found, StructType) or name not in found.fieldNames():
            raise ConfigurationError(
                f"Spark's statestore reader gives no {column} for this state, but "
                f"{schema.simpleString()}: this version of Spark keeps it otherwise"
            )
        found = found[name].dataType
    if not isinstance(found, StructType):
        raise ConfigurationError(
            f"Spark's statestore reader gives {column} as {found.simpleString()}, "
            "which is no struct: this version of Spark keeps it otherwise"
        )
    # A column without a type, such as Spark's own placeholder, has nothing to tell.
    names = tuple(
        None if isinstance(one.dataType, NullType) else _free_name(one.name, taken)
        for one in found
    )
    return _Part(column=column, type=found, names=names)


def _renamed(value: _Part, value_names: Sequence[str]) -> tuple[str | None, ...]:
    """Return *value_names* for the columns of *value* that are kept."""
    kept = [name for name in value.names if name is not None]
    if isinstance(value_names, str) or len(value_names) != len(kept):
        raise ConfigurationError(
            f"value_names must name {len(kept)} columns, which Spark calls "
            f"{', '.join(kept)}; not {value_names!r}"
        )
    names = iter(value_names)
    return tuple(None if name is None else next(names) for name in value.names)


def _free_name(name: str, taken: set[str]) -> str:
    """Return *name*, or with a number behind it if it is *taken*; it is taken then."""
    # Spark does not tell case apart, unless it is told to.
    free, number = name, 1
    while free.lower() in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free.lower())
    return free
