"""A state that a `ScriptedProxy` answers about, as nodes behind it would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import msgspec

from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.schema_json import schema_json
from queryablestate.schema.values import ValueCodec
from queryablestate.wire.clients import (
    DescribeState,
    JobsListed,
    ListJobs,
    ListStates,
    StateDescribed,
    StateDescription,
    StatesListed,
)
from queryablestate.wire.codec import decode_keys, encode, encode_payload
from queryablestate.wire.questions import (
    Ask,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Reading,
    Refusal,
    ScanRows,
    Told,
    WalkRows,
)
from queryablestate.wire.refusals import STALE_ROUTE
from tests.queryablestate.scripted_proxy import Reply, error_frame


NAME = Field("name", AtomicType.STRING)
WHERE = Field("airport", AtomicType.STRING)
ORIGIN = Field("origin", AtomicType.STRING)
DELAY = Field("delay", AtomicType.BIGINT)

VALUE_SCHEMA = StateSchema(kind=StateKind.VALUE, key=(NAME,), value=(ORIGIN, DELAY))
STATE: Final = ("flights", "aircraft")
"""The job and the name of a `ScriptedState` that is told nothing else."""

LIST_SCHEMA = StateSchema(kind=StateKind.LIST, key=(NAME,), value=(ORIGIN, DELAY))
MAP_SCHEMA = StateSchema(
    kind=StateKind.MAP, key=(NAME,), map_key=(WHERE,), value=(ORIGIN, DELAY)
)

_numbers = itertools.count(1)


def row(number: int) -> dict[str, Any]:
    """Return the row that is kept under ``N<number>``."""
    return {"origin": f"A{number}", "delay": number}


@final
class ScriptedState:
    """
    One state of one job, and what its nodes would say.

    Attributes:
        rows: What is kept; keys as users write them; values rows, lists of rows, or
            rows by map key.
        batch_ids: For each node the last batch that it has applied.
        generation: The present one.
        node_ids: The nodes.
        owners: For each key group the index of its node.
        version: Of the assignment.
        on_ask: Is asked first, and may answer in place of the nodes.
    """

    def __init__(
        self,
        schema: StateSchema = VALUE_SCHEMA,
        rows: Mapping[Any, Any] | None = None,
        *,
        job_id: str = "flights",
        state_name: str = "aircraft",
        node_count: int = 2,
        max_parallelism: int = 8,
    ) -> None:
        self.schema = schema
        self.rows: dict[Any, Any] = dict(rows or {})
        self.job_id = job_id
        self.state_name = state_name
        self.state_number = next(_numbers)
        self.max_parallelism = max_parallelism
        self.generation = 1
        self.batch_ids: list[int | None] = [1] * node_count
        self.node_ids = tuple(f"node-{index}" for index in range(node_count))
        self.owners = tuple(group % node_count for group in range(max_parallelism))
        self.version = 1
        self.page_row_count_max = 10_000
        self.on_ask: Callable[[Ask, bytes], Reply] | None = None
        self.ask_count = 0

    @property
    def keys(self) -> KeyCodec:
        """Return how keys become bytes."""
        return KeyCodec(
            self.schema.key,
            max_parallelism=self.max_parallelism,
            map_fields=self.schema.map_key,
        )

    @property
    def description(self) -> StateDescription:
        """Return what a proxy says of it."""
        return StateDescription(
            job_id=self.job_id,
            state_name=self.state_name,
            state_number=self.state_number,
            schema=schema_json(self.schema),
            max_parallelism=self.max_parallelism,
            generation=self.generation,
            batch_id=max((b for b in self.batch_ids if b is not None), default=None),
            query_id="query",
            age_ms=5,
            assignment_version=self.version,
            node_ids=self.node_ids,
            owners=self.owners,
        )

    def __call__(self, message: msgspec.Struct, payload: bytes) -> Reply:
        """Answer as proxy and nodes together would."""
        match message:
            case DescribeState(request_id=number, job_id=job_id, state_name=name):
                if job_id != self.job_id:
                    return error_frame("unknown-job", number, job_id)
                if name != self.state_name:
                    return error_frame("unknown-state", number, job_id, name)
                return StateDescribed(request_id=number, description=self.description)
            case ListJobs(request_id=number):
                return JobsListed(request_id=number, job_ids=(self.job_id,))
            case ListStates(request_id=number, job_id=job_id):
                if job_id != self.job_id:
                    return error_frame("unknown-job", number, job_id)
                return StatesListed(request_id=number, states=(self.description,))
            case Ask():
                self.ask_count += 1
                if self.on_ask is not None:
                    reply = self.on_ask(message, payload)
                    if reply is not None:
                        return reply
                return self.answer(message, payload)
            case _:
                raise AssertionError(message)

    def answer(self, ask: Ask, payload: bytes) -> Sequence[bytes] | Refusal:
        """Answer as the node would."""
        if (
            ask.state_number != self.state_number
            or ask.assignment_version != self.version
        ):
            return error_frame(STALE_ROUTE, ask.request_id)
        next_start = None
        values: object
        match ask.operation:
            case GetValues():
                flat = self._stored_values()
                keys = self._asked_keys(ask, payload)
                values = [flat.get(key) for key in keys]
            case GetItems(start=start, stop=stop):
                lists = self._stored()
                values = [
                    None if (items := lists.get(key)) is None else items[start:stop]
                    for key in self._asked_keys(ask, payload)
                ]
            case HasRows():
                is_value = self.schema.kind is StateKind.VALUE
                kept = self._stored_values() if is_value else self._stored()
                values = [bool(kept.get(key)) for key in self._asked_keys(ask, payload)]
            case GetEntries():
                maps = self._stored()
                values = [
                    None
                    if (entries := maps.get(key)) is None
                    else list(itertools.chain.from_iterable(sorted(entries.items())))
                    for key in self._asked_keys(ask, payload)
                ]
            case ScanRows(start=start_key, stop=stop_key, limit=limit):
                assert (ask.key_count, payload) == (limit, b"")
                limit = min(limit, self.page_row_count_max)
                rows = [
                    row
                    for row in self._scanned(ask.node_index)
                    if row[0] >= start_key and (stop_key is None or row[0] < stop_key)
                ]
                if len(rows) > limit:
                    next_start = rows[limit][0]
                values = list(itertools.chain.from_iterable(rows[:limit]))
            case WalkRows(key_groups=runs, start=start_key, limit=limit):
                assert (ask.key_count, payload) == (limit, b"")
                limit = min(limit, self.page_row_count_max)
                groups = [group for one in runs for group in range(one[0], one[1] + 1)]
                if any(self.owners[group] != ask.node_index for group in groups):
                    return error_frame(STALE_ROUTE, ask.request_id)
                rows = [
                    row
                    for row in self._stored_rows(ask.node_index)
                    if row[0] >= start_key
                    and int.from_bytes(row[0][:2], "big") in groups
                ]
                if len(rows) > limit:
                    next_start = rows[limit][0]
                values = [
                    part for key, value in rows[:limit] for part in (key[2:], value)
                ]
            case CountKeys():
                assert (ask.key_count, payload) == (1, b"")
                values = sum(
                    self.owners[self.keys.key_group(key)] == ask.node_index
                    for key in self.rows
                )
        reading = Reading(
            generation=self.generation,
            batch_id=self.batch_ids[ask.node_index],
            age_ms=7,
        )
        told = Told(request_id=ask.request_id, reading=reading, next_start=next_start)
        return [encode(told), encode_payload(values)]

    def _asked_keys(self, ask: Ask, payload: bytes) -> list[bytes]:
        """Return the keys, and make sure that they came to the right node."""
        keys = decode_keys(payload)
        assert len(keys) == ask.key_count
        for key in keys:
            assert self.owners[int.from_bytes(key[:2], "big")] == ask.node_index
        return keys

    def _stored(self) -> dict[bytes, Any]:
        """Return lists and maps as they are stored, by storage key."""
        keys, values = self.keys, ValueCodec(self.schema.value)
        if self.schema.kind is StateKind.LIST:
            return {
                keys.storage_key(key): [values.encode_row(item) for item in items]
                for key, items in self.rows.items()
            }
        return {
            keys.storage_key(key): {
                keys.encode_map_key(map_key): values.encode_row(row)
                for map_key, row in entries.items()
            }
            for key, entries in self.rows.items()
        }

    def _stored_values(self) -> dict[bytes, bytes]:
        """Return rows and map entries as they are stored, by storage key."""
        keys, values = self.keys, ValueCodec(self.schema.value)
        if self.schema.kind is StateKind.VALUE:
            return {
                keys.storage_key(key): values.encode_row(row)
                for key, row in self.rows.items()
            }
        return {
            keys.map_entry_key(key, map_key): values.encode_row(row)
            for key, entries in self.rows.items()
            for map_key, row in entries.items()
        }

    def _scanned(self, node_index: int) -> list[tuple[bytes, bytes]]:
        """Return all rows of a node in the order of their keys."""
        rows = self._stored_rows(node_index)
        return sorted((key[2:], value) for key, value in rows)

    def _stored_rows(self, node_index: int) -> list[tuple[bytes, bytes]]:
        """Return all rows of a node in the order in which they are stored."""
        rows: list[tuple[bytes, bytes]] = []
        if self.schema.kind is StateKind.LIST:
            for key, items in self._stored().items():
                rows += [
                    (key + index.to_bytes(8, "big"), item)
                    for index, item in enumerate(items)
                ]
        else:
            rows = list(self._stored_values().items())
        return sorted(
            (key, row)
            for key, row in rows
            if self.owners[int.from_bytes(key[:2], "big")] == node_index
        )
