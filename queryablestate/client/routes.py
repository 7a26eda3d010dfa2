"""
`Route`: where the key groups of one state are, and how its rows are read; pure.

Made of a `StateDescription`.  What users mean by a question (`Asking`) becomes here
what nodes are asked (an `Operation`), which depends on the kind of the state.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Any, Final, cast, final

from attrs import frozen

from nameservice.clock import MS_PER_SECOND
from nameservice.errors import LocalProtocolError, RemoteProtocolError
from nameservice.fields import INTEGER_MAX
from queryablestate.client.results import StateInformation
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import Field, StateKind, StateSchema, fields_text
from queryablestate.schema.schema_json import parse_schema
from queryablestate.schema.values import ValueCodec
from queryablestate.wire.clients import StateDescription
from queryablestate.wire.codec import (
    decode_flags,
    decode_items,
    decode_keys,
    decode_values,
)
from queryablestate.wire.questions import (
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Operation,
)


__all__ = ["ENTRY", "EXISTS", "ROWS", "Asking", "Route", "information_of"]

_GET_VALUES: Final = GetValues()
_GET_ITEMS: Final = GetItems()
_GET_ENTRIES: Final = GetEntries()
_HAS_ROWS: Final = HasRows()
_COUNT_KEYS: Final = CountKeys()


class _Wanted(Enum):
    ROWS = "rows"
    EXISTS = "exists"
    ENTRY = "entry"
    ITEMS = "items"


@final
@frozen
class Asking:
    """
    What a user wants to know of some keys; `ROWS`, `EXISTS`, `ENTRY` or `items`.

    Attributes:
        wanted: Which of them.
        start: The first item of a list, as a slice means it.
        stop: Where the items end, likewise.
    """

    wanted: _Wanted
    start: int = 0
    stop: int | None = None

    @classmethod
    def items(cls, start: int | None, stop: int | None) -> Asking:
        """Return the question for a part of some lists."""
        first = 0 if start is None else _within_wire(start)
        return cls(_Wanted.ITEMS, first, None if stop is None else _within_wire(stop))


ROWS: Final = Asking(_Wanted.ROWS)
"""All that is kept under a key, whatever the kind of the state."""

EXISTS: Final = Asking(_Wanted.EXISTS)
"""Whether anything is."""

ENTRY: Final = Asking(_Wanted.ENTRY)
"""One entry of a map; the keys are pairs of key and map key."""


def _within_wire(index: int) -> int:
    """Return *index*, or what means the same to a slice and fits a message."""
    return max(-INTEGER_MAX, min(index, INTEGER_MAX))


@final
class Route:
    """
    The route to one state, of one version.

    Attributes:
        description: What it was made of.
        schema: The columns.
        version: The version of the assignment.
        owners: For each key group the index of its node.
        node_ids: The nodes.
        key_codec: How keys become bytes.
        value_codec: How bytes become rows.

    Raises:
        RemoteProtocolError: If the description contradicts itself.
        ConfigurationError: If a column has a type that this version does not know.
    """

    def __init__(self, description: StateDescription, previous: Route | None) -> None:
        """Make a route; what *previous* has in common with it is not made again."""
        self.description = description
        self.state_number = description.state_number
        self.version = description.assignment_version
        self.node_ids = description.node_ids
        self.owners = description.owners
        if (
            previous is not None
            and previous.description.schema == description.schema
            and previous.description.max_parallelism == description.max_parallelism
        ):
            self.schema: StateSchema = previous.schema
            self.key_codec: KeyCodec = previous.key_codec
            self.value_codec: ValueCodec = previous.value_codec
        else:
            self.schema = parse_schema(description.schema)
            self.key_codec = KeyCodec(
                self.schema.key,
                max_parallelism=description.max_parallelism,
                map_fields=self.schema.map_key,
            )
            self.value_codec = ValueCodec(self.schema.value)
        if len(self.owners) != description.max_parallelism or not all(
            0 <= owner < len(self.node_ids) for owner in self.owners
        ):
            raise RemoteProtocolError(
                "malformed", "the route of a state does not name a node for each group"
            )
        self.node_indexes = tuple(sorted(set(self.owners)))

    def is_same_as(self, description: StateDescription) -> bool:
        """Return whether *description* leads where this route does."""
        known = self.description
        return (
            known.state_number == description.state_number
            and known.assignment_version == description.assignment_version
            and known.owners == description.owners
            and known.node_ids == description.node_ids
            and known.max_parallelism == description.max_parallelism
            and known.schema == description.schema
        )

    def operation(self, asking: Asking) -> Operation:
        """
        Return what nodes are asked for *asking*.

        Raises:
            LocalProtocolError: If the state is not of the kind that it is about.
        """
        kind = self.schema.kind
        match asking.wanted, kind:
            case (_Wanted.EXISTS, _):
                return _HAS_ROWS
            case (_Wanted.ROWS, StateKind.VALUE):
                return _GET_VALUES
            case (_Wanted.ROWS, StateKind.MAP):
                return _GET_ENTRIES
            case (_Wanted.ROWS, StateKind.LIST):
                return _GET_ITEMS
            case (_Wanted.ENTRY, StateKind.MAP):
                return _GET_VALUES
            case (_Wanted.ITEMS, StateKind.LIST):
                return GetItems(start=asking.start, stop=asking.stop)
            case _:
                is_map = asking.wanted is _Wanted.ENTRY
                raise self._wrong_kind(StateKind.MAP if is_map else StateKind.LIST)

    def check_map(self) -> None:
        """
        Return if it is the route to a map state.

        Raises:
            LocalProtocolError: If it is not.
        """
        if self.schema.kind is not StateKind.MAP:
            raise self._wrong_kind(StateKind.MAP)

    def _wrong_kind(self, needed: StateKind) -> LocalProtocolError:
        return LocalProtocolError(
            f"{self.description.job_id}/{self.description.state_name} is a "
            f"{self.schema.kind.value} state, and this is a question to a "
            f"{needed.value} state: use get, which answers for every kind"
        )

    def counting(self) -> CountKeys:
        """Return what a node is asked for the number of its keys."""
        if self.schema.kind is StateKind.MAP:
            # Nodes know no schemas: this one tells where the key of an entry ends.
            return CountKeys(schema=self.description.schema)
        return _COUNT_KEYS

    def storage_keys(self, asking: Asking, keys: Sequence[Any]) -> list[bytes]:
        """
        Return the storage keys of *keys*; each begins with its key group.

        Raises:
            WrongKeyTypeError: For the first key that no row could have.
            KeyTooLargeError: If one is too long.
            LocalProtocolError: If they are of entries, and it is no map state.
        """
        if asking.wanted is _Wanted.ENTRY:
            self.check_map()
            encode = self.key_codec.map_entry_key
            return [encode(key, map_key) for key, map_key in keys]
        return self.key_codec.storage_keys(keys)

    def decode(
        self, operation: Operation, payload: bytes | memoryview, count: int
    ) -> list[Any]:
        """
        Return what *payload* answers to *count* keys, None for what is not there.

        Raises:
            RemoteProtocolError: If it is no answer to them.
        """
        rows: list[Any]
        match operation:
            case GetValues():
                rows = self.value_codec.decode_rows(decode_values(payload))
            case HasRows():
                rows = [True if flag else None for flag in decode_flags(payload)]
            case GetItems():
                decode_rows = self.value_codec.decode_rows
                rows = [
                    None if items is None else decode_rows(items)
                    for items in decode_items(payload)
                ]
            case _:
                rows = [
                    None if entries is None else self._map_of(entries)
                    for entries in decode_items(payload)
                ]
        if len(rows) != count:
            raise RemoteProtocolError(
                "malformed", f"{len(rows)} answers to {count} keys"
            )
        return rows

    @staticmethod
    def page_rows(payload: bytes | memoryview) -> list[tuple[bytes, bytes]]:
        """
        Return the rows of a page as they are stored: the encoded key, the value.

        Raises:
            RemoteProtocolError: If *payload* is no page.
        """
        flat = decode_keys(payload)
        if len(flat) % 2:
            raise RemoteProtocolError("malformed", "a page ends in mid-row")
        return list(zip(flat[::2], flat[1::2], strict=True))

    def decode_page(
        self, rows: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[Any, dict[str, Any]]]:
        """
        Return the keys for the user and the values of `page_rows`.

        Raises:
            RemoteProtocolError: If they are no rows of this state.
        """
        encoded = [key for key, _ in rows]
        values = self.value_codec.decode_rows([stored for _, stored in rows])
        is_map = self.schema.kind is StateKind.MAP
        codec = self.key_codec
        columns = codec.all_columns(encoded) if is_map else codec.columns(encoded)
        count = len(self.schema.key)
        keys = _bare_rows(columns[:count])
        if is_map:
            keys = list(zip(keys, _bare_rows(columns[count:]), strict=True))
        return list(zip(keys, cast("Any", values), strict=True))

    def hashable(self, key: Any) -> Hashable:
        """Return *key* as it can stand in a dict: as given, or in its normal form."""
        try:
            hash(key)
        except TypeError:
            key = self.key_codec.normalize(key)
        normal: Hashable = key
        return normal

    def _map_of(self, entries: list[bytes]) -> dict[Any, dict[str, Any]]:
        if len(entries) % 2:
            raise RemoteProtocolError("malformed", "a map ends in mid-entry")
        decode_map_key = self.key_codec.decode_map_key
        values = self.value_codec.decode_rows(entries[1::2])
        found: dict[Any, dict[str, Any]] = {}
        for encoded, value in zip(entries[::2], values, strict=True):
            assert value is not None
            found[_bare(decode_map_key(encoded))] = value
        return found


def information_of(description: StateDescription) -> StateInformation:
    """
    Return *description* as users see it.

    Raises:
        RemoteProtocolError: If its schema cannot be read.
    """
    schema = parse_schema(description.schema)
    text = fields_text(schema.key)
    if schema.map_key:
        text += f"; {fields_text(schema.map_key)}"
    age_ms = description.age_ms
    owners = set(description.owners)
    return StateInformation(
        job_id=description.job_id,
        name=description.state_name,
        kind=schema.kind.value,
        schema=f"{text} -> {fields_text(schema.value)}",
        key_columns=_names(schema.key),
        map_key_columns=_names(schema.map_key),
        value_columns=_names(schema.value),
        has_ttl=schema.has_ttl,
        generation=description.generation,
        batch_id=description.batch_id,
        owner=description.query_id,
        max_parallelism=description.max_parallelism,
        nodes=tuple(
            node_id
            for index, node_id in enumerate(description.node_ids)
            if index in owners
        ),
        age_seconds=None if age_ms is None else age_ms / MS_PER_SECOND,
        registered_schema=schema,
    )


def _names(fields: tuple[Field, ...]) -> tuple[str, ...]:
    return tuple(one.name for one in fields)


def _bare_rows(columns: Sequence[list[Any]]) -> list[Any]:
    """Return the values of one column, or a tuple for each row of several."""
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _bare(columns: tuple[Any, ...]) -> Any:
    """Return one column as it is, several as a tuple."""
    return columns[0] if len(columns) == 1 else columns
