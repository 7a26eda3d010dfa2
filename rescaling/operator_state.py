"""
Operator state: the state of a subtask, not of a key (FLIP-8; rules O1, O2).

Theory of operation.  A subtask keeps what it must remember in an `OperatorStateStore`,
in states that have names.  A state is a list of items that can be moved one by one, or
a table that all subtasks hold alike.  What a subtask leaves is a *snapshot*, in which
`redistribute` moves items when the number of subtasks changes.

Items are plain values, and come back as the very values they were, tuples too: what
would not is refused while it is written, when somebody can still do something about
it.  So is a snapshot above its limit.  Nothing is ever pickled.

In bytes, a snapshot is one msgpack list of (name, mode, items), sorted by name, whose
items are bytes themselves: a reader of sizes alone need not read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec.msgpack import Ext

from nameservice.errors import ConfigurationError
from rescaling.errors import (
    OperatorStateError,
    SnapshotTooLargeError,
    UnsupportedItemError,
)
from rescaling.redistribution import RedistributionMode, modes_of


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from rescaling.redistribution import Snapshot


__all__ = [
    "SNAPSHOT_SIZE_BYTES_MAX",
    "BroadcastState",
    "ListState",
    "OperatorStateStore",
    "check_takeover",
    "decode_items",
    "decode_snapshot",
    "encode_snapshot",
    "encoded_states",
]

SNAPSHOT_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
"""How large a subtask's snapshot may be, unless it is said otherwise."""

_STATE_NAME_LENGTH_MAX: Final = 255
_DEPTH_MAX: Final = 32
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_TUPLE_CODE: Final = 1
_KEY_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes})


@final
class ListState:
    """
    A list of items, each of which may be moved to another subtask.

    Made by `OperatorStateStore`; not thread-safe.
    """

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def get(self) -> list[Any]:
        """Return the items, in a list of the caller's own."""
        return list(self._items)

    def add(self, item: Any) -> None:
        """Put *item* behind the others."""
        self._items.append(item)

    def update(self, items: Iterable[Any]) -> None:
        """Have *items* instead of those that there are."""
        self._items[:] = list(items)

    def clear(self) -> None:
        """Have no items."""
        self._items.clear()


@final
class BroadcastState:
    """
    A table that every subtask should hold alike: it is not checked that they do.

    Made by `OperatorStateStore`; not thread-safe.  In snapshots its items are pairs of
    key and value, in the order in which the keys came.
    """

    def __init__(self, table: dict[Any, Any]) -> None:
        self._table = table

    def __contains__(self, key: Hashable) -> bool:
        return key in self._table

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: Hashable, default: Any = None) -> Any:
        """Return what is kept under *key*, or *default*."""
        return self._table.get(key, default)

    def put(self, key: Hashable, value: Any) -> None:
        """Keep *value* under *key*."""
        self._table[key] = value

    def remove(self, key: Hashable) -> None:
        """Keep nothing under *key*; it is no error if nothing was."""
        self._table.pop(key, None)

    def items(self) -> list[tuple[Any, Any]]:
        """Return all pairs of key and value, in a list of the caller's own."""
        return list(self._table.items())

    def clear(self) -> None:
        """Keep nothing."""
        self._table.clear()


@final
class OperatorStateStore:
    """
    The states of one subtask, by name; not thread-safe.

    States that were restored and never asked for are in the next snapshot, too: a
    function that forgets a state for a while loses nothing.

    Args:
        snapshot_size_bytes_max: How large a snapshot may be; at least 1.

    Raises:
        ConfigurationError: If the limit is below 1.
    """

    def __init__(
        self, *, snapshot_size_bytes_max: int = SNAPSHOT_SIZE_BYTES_MAX
    ) -> None:
        if snapshot_size_bytes_max < 1:
            message = (
                "snapshot_size_bytes_max must be at least 1, not "
                f"{snapshot_size_bytes_max}"
            )
            raise ConfigurationError(message)
        self._size_bytes_max = snapshot_size_bytes_max
        self._modes: dict[str, RedistributionMode] = {}
        self._lists: dict[str, list[Any]] = {}
        self._tables: dict[str, dict[Any, Any]] = {}

    def list_state(self, name: str) -> ListState:
        """
        Return the state *name*, whose items are dealt out among new subtasks.

        Args:
            name: 1 to 255 characters.

        Raises:
            ConfigurationError: If *name* is none, or has another mode (rule O2).
        """
        return ListState(self._list(name, RedistributionMode.SPLIT_DISTRIBUTE))

    def union_list_state(self, name: str) -> ListState:
        """
        Return the state *name*, all of whose items every new subtask gets.

        A subtask keeps its own items, as long as there are as many subtasks as before;
        once there are more or fewer, each has those of all.  A subtask that then keeps
        what is not its own makes the state grow with every change.

        Args:
            name: 1 to 255 characters.

        Raises:
            ConfigurationError: If *name* is none, or has another mode (rule O2).
        """
        return ListState(self._list(name, RedistributionMode.UNION))

    def broadcast_state(self, name: str) -> BroadcastState:
        """
        Return the state *name*, which every new subtask takes over from an old one.

        Args:
            name: 1 to 255 characters.

        Raises:
            ConfigurationError: If *name* is none, or has another mode (rule O2).
        """
        self._register(name, RedistributionMode.BROADCAST)
        return BroadcastState(self._tables.setdefault(name, {}))

    def snapshot(self) -> dict[str, tuple[RedistributionMode, list[Any]]]:
        """
        Return mode and items of every state, sorted by name: copies, down to the last.

        Raises:
            SnapshotTooLargeError: If it is above the limit; names the largest state.
            UnsupportedItemError: If an item is no plain value.
        """
        return decode_snapshot(self.encoded_snapshot())

    def encoded_snapshot(self) -> bytes:
        """
        Return the snapshot in bytes, for `decode_snapshot`.

        Raises:
            SnapshotTooLargeError: As `snapshot`.
            UnsupportedItemError: As `snapshot`.
        """
        return encode_snapshot(
            {name: (mode, self._items(name)) for name, mode in self._modes.items()},
            size_bytes_max=self._size_bytes_max,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """
        Have what *snapshot* holds, and nothing else; its items become the store's.

        What was returned for a state before goes on to stand for it.

        Raises:
            ConfigurationError: If a state was asked for in another mode before, or is
                broadcast and holds what is no table.
        """
        for name, (mode, _) in snapshot.items():
            self._register(name, mode)
        for name, mode in self._modes.items():
            items = snapshot[name][1] if name in snapshot else ()
            if mode is not RedistributionMode.BROADCAST:
                self._lists.setdefault(name, [])[:] = list(items)
                continue
            try:
                table = {key: value for key, value in items}  # noqa: C416 (checks pairs)
            except (TypeError, ValueError) as error:
                message = (
                    f"the broadcast state {name!r} holds what is no pair of key and "
                    "value: give it another name"
                )
                raise ConfigurationError(message) from error
            held = self._tables.setdefault(name, {})
            held.clear()
            held.update(table)

    def _list(self, name: str, mode: RedistributionMode) -> list[Any]:
        self._register(name, mode)
        return self._lists.setdefault(name, [])

    def _items(self, name: str) -> Sequence[Any]:
        if self._modes[name] is RedistributionMode.BROADCAST:
            return list(self._tables[name].items())
        return self._lists[name]

    def _register(self, name: str, mode: RedistributionMode) -> None:
        if not 1 <= len(name) <= _STATE_NAME_LENGTH_MAX:
            message = (
                f"a state's name must be 1 to {_STATE_NAME_LENGTH_MAX} characters, "
                f"not {len(name)}"
            )
            raise ConfigurationError(message)
        held = self._modes.setdefault(name, mode)
        if held is not mode:
            message = (
                f"the state {name!r} is {held.value} already and cannot be "
                f"{mode.value}: give them different names"
            )
            raise ConfigurationError(message)


def encode_snapshot(snapshot: Snapshot, *, size_bytes_max: int | None = None) -> bytes:
    """
    Return *snapshot* in bytes; equal snapshots give equal bytes.

    Args:
        snapshot: Of one subtask.
        size_bytes_max: The limit, or None for none.

    Raises:
        SnapshotTooLargeError: If it is above the limit; names the largest state.
        UnsupportedItemError: If an item is no plain value.
    """
    states = []
    sizes = {}
    for name in sorted(snapshot):
        mode, items = snapshot[name]
        encoded = _encode_items(name, items)
        states.append((name, mode.value, encoded))
        sizes[name] = len(encoded)
    data = msgspec.msgpack.encode(states)
    if size_bytes_max is not None and len(data) > size_bytes_max:
        largest = max(sizes, key=sizes.__getitem__)
        raise SnapshotTooLargeError(largest, sizes[largest], len(data), size_bytes_max)
    return data


def decode_snapshot(data: bytes) -> dict[str, tuple[RedistributionMode, list[Any]]]:
    """
    Return the snapshot that `encode_snapshot` made *data* of.

    Raises:
        OperatorStateError: If *data* is nothing of the kind.
    """
    try:
        return {
            name: (mode, _items_decoder.decode(items))
            for name, mode, items in _snapshot_decoder.decode(data)
        }
    except msgspec.MsgspecError as error:
        message = f"these {len(data)} bytes are no snapshot: {error}"
        raise OperatorStateError(message) from error


def encoded_states(data: bytes) -> dict[str, tuple[RedistributionMode, bytes]]:
    """
    Return the states of a snapshot by name, their items still in bytes.

    Args:
        data: As `encode_snapshot` made it.

    Raises:
        OperatorStateError: If *data* is nothing of the kind.
    """
    try:
        return {
            name: (mode, items) for name, mode, items in _snapshot_decoder.decode(data)
        }
    except msgspec.MsgspecError as error:
        message = f"these {len(data)} bytes are no snapshot: {error}"
        raise OperatorStateError(message) from error


def decode_items(data: bytes) -> list[Any]:
    """
    Return the items of one state that `encoded_states` gave in bytes.

    Raises:
        OperatorStateError: If *data* is nothing of the kind.
    """
    try:
        items: list[Any] = _items_decoder.decode(data)
    except msgspec.MsgspecError as error:
        message = f"these {len(data)} bytes are no items of a state: {error}"
        raise OperatorStateError(message) from error
    return items


def check_takeover(snapshots: Sequence[bytes], *, size_bytes_max: int) -> None:
    """
    See that what subtasks leave can be redistributed, should their number change (O2).

    What was left is gone on from: an error that is found only then has no cure, for
    restored states go on being left, whatever the function is by that time.

    Each snapshot may be within its limit and all of them together far above it: who
    takes over gets the union states of all, and a table of each broadcast state.

    Args:
        snapshots: Of all subtasks, as `encode_snapshot` made them.
        size_bytes_max: The limit for one subtask.

    Raises:
        ConfigurationError: If a name has two modes.
        SnapshotTooLargeError: If that is above the limit; names the largest state.
    """
    parts = [encoded_states(data) for data in snapshots]
    modes = modes_of(parts)
    sizes = {}
    for name, mode in sorted(modes.items()):
        held = [len(part[name][1]) for part in parts if name in part]
        if mode is RedistributionMode.UNION:
            sizes[name] = sum(held)
        elif mode is RedistributionMode.BROADCAST:
            sizes[name] = max(held)
    size_bytes = sum(sizes.values())
    if size_bytes > size_bytes_max:
        largest = max(sizes, key=sizes.__getitem__)
        raise SnapshotTooLargeError(
            largest, sizes[largest], size_bytes, size_bytes_max, is_union=True
        )


def _encode_items(name: str, items: Iterable[Any]) -> bytes:
    return _encode_plain(name, [_plain(name, item, _DEPTH_MAX) for item in items])


def _encode_plain(name: str, items: list[Any]) -> bytes:
    try:
        return msgspec.msgpack.encode(items)
    except UnicodeEncodeError as error:
        raise UnsupportedItemError(
            name, f"a str is no Unicode text ({error})"
        ) from None


def _plain(name: str, item: Any, depth_max: int) -> Any:
    """Return *item* as msgpack can have it: with its tuples marked."""
    kind = type(item)  # exact: what is derived from these would not come back
    if kind is int:
        if not _INT_MIN <= item <= _INT_MAX:
            raise UnsupportedItemError(name, "an int of more than 64 bits")
        return item
    if kind in _KEY_TYPES:
        return item
    if depth_max == 0:
        raise UnsupportedItemError(name, f"it is nested more than {_DEPTH_MAX} deep")
    if kind is list:
        return [_plain(name, one, depth_max - 1) for one in item]
    if kind is tuple:
        parts = [_plain(name, one, depth_max - 1) for one in item]
        return Ext(_TUPLE_CODE, _encode_plain(name, parts))
    if kind is dict:
        return dict(_plain_pairs(name, item, depth_max - 1))
    raise UnsupportedItemError(name, f"a value of the type {kind.__qualname__}")


def _plain_pairs(
    name: str, table: dict[Any, Any], depth_max: int
) -> Iterator[tuple[Any, Any]]:
    for key, value in table.items():
        if type(key) not in _KEY_TYPES:
            raise UnsupportedItemError(
                name, f"a dict with a key of the type {type(key).__qualname__}"
            )
        yield _plain(name, key, depth_max), _plain(name, value, depth_max)


def _extension(code: int, data: memoryview) -> tuple[Any, ...]:
    if code != _TUPLE_CODE:
        message = f"unknown extension {code}"
        raise msgspec.ValidationError(message)
    return tuple(_items_decoder.decode(data))


_items_decoder: Final = msgspec.msgpack.Decoder(list[Any], ext_hook=_extension)
_snapshot_decoder: Final = msgspec.msgpack.Decoder(
    list[tuple[str, RedistributionMode, bytes]]
)
