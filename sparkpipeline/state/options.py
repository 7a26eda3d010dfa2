"""
What a query says of the states that it writes, checked before it starts (rule W6).

`StateSpec` and `WriteOptions` are what users say; together with the columns of their
DataFrame they make a `StateLayout` per state, which is all that a task must know.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from attrs import field, frozen
from pyspark.sql.types import StructType

from nameservice import ConfigurationError, check_component_id
from queryablestate.schema.operator_states import RESERVED_STATE_PREFIX
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    Field,
    MapType,
    StateKind,
    StateSchema,
)
from queryablestate.schema.schema import StructType as StateStructType
from queryablestate.schema.schema_json import parse_fields
from rescaling.key_groups import MAX_PARALLELISM_MAX


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = [
    "Columns",
    "Kind",
    "OnNewQuery",
    "OutputMode",
    "StateLayout",
    "StateSpec",
    "WriteOptions",
    "parse_write_options",
]

Columns: TypeAlias = "str | Sequence[str]"
"""One column, or several."""

Kind: TypeAlias = Literal["value", "list", "map"]
OutputMode: TypeAlias = Literal["append", "update", "complete"]
OnNewQuery: TypeAlias = Literal["refuse", "replace", "continue"]

MAX_PARALLELISM_DEFAULT: Final = 128
COMMIT_TIMEOUT_SECONDS_DEFAULT: Final = 60.0

_KINDS: Final = tuple(kind.value for kind in StateKind)
_OUTPUT_MODES: Final = ("append", "update", "complete")
_ON_NEW_QUERY: Final = ("refuse", "replace", "continue")
_TIMEOUT_SECONDS_MAX: Final = 3_600.0


def _to_names(value: Columns | None) -> tuple[str, ...]:
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else tuple(value)
    for name in names:
        _check_name(name)
    return names


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{name!r} is no name of a column")


def _to_names_or_none(value: Columns | None) -> tuple[str, ...] | None:
    return None if value is None else _to_names(value)


def _to_states(states: Sequence[StateSpec]) -> tuple[StateSpec, ...]:
    return tuple(states)


@final
@frozen(kw_only=True)
class StateSpec:
    """
    One of the states that a query writes, told by columns of its DataFrame.

    Attributes:
        state_name: Its name within the job.
        key: The key columns, in the order in which keys are given by readers.
        columns: The value columns; by default all that have no other part here, and
            those of *order_by*.
        kind: ``value``, ``list`` or ``map``.
        map_key: The columns that tell the entries of one key apart, in a map state.
        order_by: Of several rows of one key in a batch, the one that is greatest here
            stays; the items of lists are sorted by it.
        delete: A boolean column: where it is true, the key is deleted.
        ttl: A timestamp column: the row is absent from then on; null is never.

    Raises:
        ConfigurationError: If something is malformed in itself; says what to change.
    """

    state_name: str
    key: tuple[str, ...] = field(converter=_to_names)
    columns: tuple[str, ...] | None = field(default=None, converter=_to_names_or_none)
    kind: Kind = "value"
    map_key: tuple[str, ...] = field(default=None, converter=_to_names)
    order_by: tuple[str, ...] = field(default=None, converter=_to_names)
    delete: str | None = None
    ttl: str | None = None

    def __attrs_post_init__(self) -> None:
        check_component_id(self.state_name, what="state_name")
        if self.state_name.startswith(RESERVED_STATE_PREFIX):
            raise ConfigurationError(
                f"names that begin with {RESERVED_STATE_PREFIX!r} are those of "
                f"published operator state: call {self.state_name!r} something else"
            )
        _check_choice("kind", self.kind, _KINDS)
        if not self.key:
            raise ConfigurationError(
                f"{self.state_name} needs a key: name at least one column"
            )

    def names_used(self, names: Sequence[str]) -> tuple[str, ...]:
        """
        Return the columns that the state needs, each once, in the order of *names*.

        Args:
            names: The columns that there are.

        Raises:
            ConfigurationError: If there is no such column; names what is there.
        """
        wanted = {*self.key, *self.map_key, *self.order_by, *(self.columns or ())}
        wanted |= {name for name in (self.delete, self.ttl) if name is not None}
        for name in sorted(wanted):
            if name not in names:
                raise ConfigurationError(
                    f"{self.state_name} uses a column {name!r}, which is not there"
                    f"{_hint(name, names)}: the columns are {', '.join(names)}"
                )
        if self.columns is None:
            return tuple(names)
        return tuple(name for name in names if name in wanted)

    def value_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the value columns, where *names* are the columns that there are."""
        if self.columns is not None:
            return self.columns
        others = {*self.key, *self.map_key, self.delete, self.ttl}
        return tuple(name for name in names if name not in others)


@final
@frozen(kw_only=True)
class StateLayout:
    """
    Where the parts of a state are in a DataFrame; picklable.

    Attributes:
        state_name: Its name.
        schema: What it is registered with.
        order_by: See `StateSpec`.
        delete: See `StateSpec`.
        ttl: See `StateSpec`.
    """

    state_name: str
    schema: StateSchema
    order_by: tuple[str, ...]
    delete: str | None
    ttl: str | None

    @property
    def is_list(self) -> bool:
        """Return whether the state is of lists."""
        return self.schema.kind is StateKind.LIST

    @property
    def names_used(self) -> tuple[str, ...]:
        """Return the columns that a task needs, each once."""
        schema = self.schema
        names = [one.name for one in (*schema.key, *schema.map_key, *schema.value)]
        names += self.order_by
        names += [name for name in (self.delete, self.ttl) if name is not None]
        return tuple(dict.fromkeys(names))


@final
@frozen(kw_only=True)
class WriteOptions:
    """
    How a query writes its states.

    Attributes:
        job_id: The job that the states belong to.
        states: What it writes.
        output_mode: ``append``, ``update`` or ``complete``.
        max_parallelism: The number of key groups; the same for all states of a job,
            for life.
        on_new_query: What to do with states that belong to another query (rule W5).
        commit_timeout_seconds: How long a batch may take to be applied by its nodes.

    Raises:
        ConfigurationError: If they are not allowed, or not together; says what to
            change.
    """

    job_id: str
    states: tuple[StateSpec, ...] = field(converter=_to_states)
    output_mode: OutputMode
    max_parallelism: int = MAX_PARALLELISM_DEFAULT
    on_new_query: OnNewQuery = "refuse"
    commit_timeout_seconds: float = COMMIT_TIMEOUT_SECONDS_DEFAULT

    def __attrs_post_init__(self) -> None:
        check_component_id(self.job_id, what="job_id")
        _check_choice("output_mode", self.output_mode, _OUTPUT_MODES)
        _check_choice("on_new_query", self.on_new_query, _ON_NEW_QUERY)
        if not 1 <= self.max_parallelism <= MAX_PARALLELISM_MAX:
            raise ConfigurationError(
                f"max_parallelism must be 1 to {MAX_PARALLELISM_MAX}, "
                f"not {self.max_parallelism}"
            )
        if not 0 < self.commit_timeout_seconds <= _TIMEOUT_SECONDS_MAX:
            raise ConfigurationError(
                "commit_timeout_seconds must be above 0 and at most "
                f"{_TIMEOUT_SECONDS_MAX:g}, not {self.commit_timeout_seconds!r}"
            )
        if not self.states:
            raise ConfigurationError("name at least one state to write")
        names = [spec.state_name for spec in self.states]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"two states cannot both be called {name!r}")
        for spec in self.states:
            self._check_mode(spec)

    @property
    def is_complete(self) -> bool:
        """Return whether each batch is all there is."""
        return self.output_mode == "complete"

    def layouts(self, schema: StructType) -> tuple[StateLayout, ...]:
        """
        Return where the parts of every state are in a DataFrame of *schema*.

        Raises:
            ConfigurationError: If a column is not there, or has a type that does not
                do; names the column.
        """
        return tuple(_layout(spec, schema) for spec in self.states)

    def _check_mode(self, spec: StateSpec) -> None:
        if spec.kind == "list":
            if self.output_mode != "append":
                raise ConfigurationError(
                    f"{spec.state_name} is a list state, which only grows: use "
                    f'output_mode="append", not "{self.output_mode}"'
                )
        elif self.output_mode == "append" and not spec.order_by:
            raise ConfigurationError(
                f"{spec.state_name} is a {spec.kind} state in append mode, where a "
                "batch may have several rows of one key: say with order_by which of "
                'them stays, or use output_mode="update"'
            )


def _layout(spec: StateSpec, schema: StructType) -> StateLayout:
    names = schema.fieldNames()
    used = spec.names_used(names)
    for name in used:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"there are several columns called {name!r}: rename all but one"
            )
    # Only what is used has to be something that a state can hold.
    chosen = StructType([schema[name] for name in used])
    fields = {one.name: one for one in parse_fields(chosen.json())}
    if spec.delete is not None:
        _check_type(spec, "delete", fields[spec.delete], AtomicType.BOOLEAN)
    if spec.ttl is not None:
        _check_type(spec, "ttl", fields[spec.ttl], AtomicType.TIMESTAMP)
    for name in spec.order_by:
        if isinstance(fields[name].type, ArrayType | MapType | StateStructType):
            raise ConfigurationError(
                f"order_by of {spec.state_name} names {fields[name]}: name a column "
                "with one value per row, such as one of its fields"
            )
    return StateLayout(
        state_name=spec.state_name,
        schema=StateSchema(
            kind=StateKind(spec.kind),
            key=tuple(fields[name] for name in spec.key),
            map_key=tuple(fields[name] for name in spec.map_key),
            value=tuple(fields[name] for name in spec.value_names(names)),
            has_ttl=spec.ttl is not None,
        ),
        order_by=spec.order_by,
        delete=spec.delete,
        ttl=spec.ttl,
    )


def _check_type(spec: StateSpec, what: str, column: Field, wanted: AtomicType) -> None:
    if column.type is not wanted:
        raise ConfigurationError(
            f"{what} of {spec.state_name} must have type {wanted}, but "
            f"{column.name!r} has type {column.type}: cast it to {wanted}"
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(choices)}, not {value!r}"
        )


def _hint(name: str, names: Sequence[str]) -> str:
    lowered = {one.lower(): one for one in names}
    found = difflib.get_close_matches(name.lower(), list(lowered), n=1)
    return f" (is {lowered[found[0]]!r} meant?)" if found else ""


# --- Options of format("lodestar") ------------------------------------------------

_NAMES_OPTIONS: Final = ("key", "columns", "map_key", "order_by")
_STATE_OPTIONS: Final = ("state_name", "kind", "delete", "ttl", *_NAMES_OPTIONS)
_WRITE_OPTIONS: Final = (
    "job_id",
    "max_parallelism",
    "on_new_query",
    "commit_timeout_seconds",
)

WRITE_OPTION_NAMES: Final = frozenset({*_STATE_OPTIONS, *_WRITE_OPTIONS})
"""The names of `parse_write_options`."""


def parse_write_options(
    options: Mapping[str, str], *, output_mode: OutputMode
) -> WriteOptions:
    """
    Return what options of ``format("lodestar")`` say; several columns have commas.

    Args:
        options: By name; others than `WRITE_OPTION_NAMES` are passed over.
        output_mode: What Spark writes in.

    Raises:
        ConfigurationError: If one is missing or malformed.
    """
    for name in ("job_id", "state_name", "key"):
        if name not in options:
            raise ConfigurationError(
                f'the option {name} is missing: add .option("{name}", …)'
            )
    state: dict[str, Any] = {
        name: options[name] for name in _STATE_OPTIONS if name in options
    }
    for name in _NAMES_OPTIONS:
        if name in state:
            text = state[name].strip()
            state[name] = [part.strip() for part in text.split(",")] if text else []
    write: dict[str, Any] = {
        name: options[name] for name in _WRITE_OPTIONS if name in options
    }
    if "max_parallelism" in write:
        write["max_parallelism"] = _number("max_parallelism", write, int)
    if "commit_timeout_seconds" in write:
        write["commit_timeout_seconds"] = _number(
            "commit_timeout_seconds", write, float
        )
    return WriteOptions(states=(StateSpec(**state),), output_mode=output_mode, **write)


def _number(
    name: str, options: Mapping[str, str], number_type: type[int | float]
) -> int | float:
    try:
        return number_type(options[name])
    except ValueError as error:
        raise ConfigurationError(
            f"the option {name} must be a number, not {options[name]!r}"
        ) from error
