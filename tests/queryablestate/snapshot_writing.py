"""A query that writes states of all kinds, and what they hold after each batch."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, final

from queryablestate.client.calls import ProxyConnection
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.operator_states import OPERATOR_STATE_SCHEMA, published_name
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.values import ValueCodec
from queryablestate.writer.operator_states import published_rows, published_states
from queryablestate.writer.rows import StateRows
from queryablestate.writer.stager import Stager
from queryablestate.writer.writer import StateWriter
from rescaling.operator_state import encode_snapshot
from rescaling.redistribution import RedistributionMode


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from haservices import HAServices
    from queryablestate.client.client import QueryableStateClient
    from queryablestate.wire.clients import BatchCommitted


__all__ = [
    "ALL_KINDS",
    "COMPLETE",
    "KEYS",
    "Query",
    "Writing",
    "check_all_kinds",
    "check_complete",
]

MAX_PARALLELISM: Final = 32
TIMEOUT_SECONDS: Final = 60.0
KEYS: Final = tuple(f"key-{number:03}" for number in range(60))
_KEY: Final = (Field("key", AtomicType.STRING),)
_NUMBER: Final = (Field("number", AtomicType.BIGINT),)
_TTL_US: Final = 3_600_000_000

ALL_KINDS: Final[Mapping[str, StateSchema]] = {
    "values": StateSchema(kind=StateKind.VALUE, key=_KEY, value=_NUMBER),
    "passing": StateSchema(kind=StateKind.VALUE, key=_KEY, value=_NUMBER, has_ttl=True),
    "lists": StateSchema(kind=StateKind.LIST, key=_KEY, value=_NUMBER),
    "maps": StateSchema(
        kind=StateKind.MAP,
        key=_KEY,
        map_key=(Field("slot", AtomicType.BIGINT),),
        value=_NUMBER,
    ),
}
COMPLETE: Final[Mapping[str, StateSchema]] = {
    "totals": StateSchema(kind=StateKind.VALUE, key=_KEY, value=_NUMBER),
    published_name("offsets"): OPERATOR_STATE_SCHEMA,
}


@final
class Query:
    """
    One run of a query; each batch has the same rows in whichever run.

    Args:
        ha: The name service.
        job_id: The job.
        states: `ALL_KINDS` or `COMPLETE`.
        query_id: The query.
        run_id: The run.
    """

    def __init__(
        self,
        ha: HAServices,
        job_id: str,
        states: Mapping[str, StateSchema],
        *,
        query_id: str,
        run_id: str,
    ) -> None:
        self._ha = ha
        self._job_id = job_id
        self._states = states
        self._query_id = query_id
        self._run_id = run_id
        self.is_complete = states is COMPLETE

    def write(self, batch_id: int) -> BatchCommitted:
        """Write batch *batch_id*, and return what the proxy says of it."""
        return self.stage(batch_id)()

    def stage(self, batch_id: int) -> Callable[[], BatchCommitted]:
        """Stage the rows of batch *batch_id*, and return what commits it."""
        with ProxyConnection(self._ha) as proxy:
            writer = StateWriter(proxy)
            run = writer.begin(
                self._job_id,
                self._states,
                query_id=self._query_id,
                run_id=self._run_id,
                max_parallelism=MAX_PARALLELISM,
                on_new_query="refuse",
                timeout_seconds=TIMEOUT_SECONDS,
            )
            with Stager(run, batch_id) as stager:
                numbers = dict(zip(self._states, run.origin.state_numbers, strict=True))
                for name, schema in self._states.items():
                    stager.add(
                        numbers[name],
                        _offsets_of(batch_id, run.origin.writer_epoch)
                        if schema is OPERATOR_STATE_SCHEMA
                        else _rows_of(name, schema, batch_id),
                        is_list=schema.kind is StateKind.LIST,
                    )
                message = stager.finish()

        def commit() -> BatchCommitted:
            with ProxyConnection(self._ha) as proxy:
                return StateWriter(proxy).commit(
                    run.origin,
                    batch_id,
                    [message],
                    is_complete=self.is_complete,
                    # Rows of operator state name the epoch of the run that wrote them.
                    is_digested=OPERATOR_STATE_SCHEMA not in self._states.values(),
                    timeout_seconds=TIMEOUT_SECONDS,
                )

        return commit


def _rows_of(name: str, schema: StateSchema, batch_id: int) -> StateRows:
    """Return what a batch writes to a state: every key, and it says which batch."""
    codec = KeyCodec(
        schema.key, max_parallelism=MAX_PARALLELISM, map_fields=schema.map_key
    )
    value = ValueCodec(schema.value).encode_row([batch_id])
    if name == "maps":
        keys = [codec.map_entry_key(key, batch_id % 5) for key in KEYS]
        return StateRows(keys=keys, values=[value] * len(keys))
    keys = [codec.storage_key(key) for key in KEYS]
    if name == "totals":  # complete mode: what is left out is gone
        keys = [codec.storage_key(key) for key in KEYS[batch_id % 3 :]]
    if not schema.has_ttl:
        return StateRows(keys=keys, values=[value] * len(keys))
    now_us = time.time_ns() // 1_000
    values: list[bytes | None] = []
    for number in range(len(keys)):  # every other row has expired already
        expires_at_us = now_us + _TTL_US if number % 2 else now_us - 1
        values.append(expires_at_us.to_bytes(8, "big") + value)
    # Run again, a batch has the same rows, and here another time.
    return StateRows(keys=keys, values=values, digested=[value] * len(keys))


def _offsets_of(batch_id: int, writer_epoch: int) -> StateRows:
    """Return the operator state of two subtasks as it is after a batch."""
    mode = RedistributionMode.SPLIT_DISTRIBUTE
    (state,) = published_states(
        [
            encode_snapshot({"offsets": (mode, [offset])})
            for offset in (batch_id, -batch_id)
        ]
    )
    return published_rows(
        state,
        writer_epoch=writer_epoch,
        batch_id=batch_id,
        max_parallelism=MAX_PARALLELISM,
    )


def check_all_kinds(client: QueryableStateClient, job_id: str, batch_id: int) -> None:
    """Compare every state of `ALL_KINDS` with what it must hold after *batch_id*."""
    one: Any = {"number": batch_id}
    assert client.get_many(job_id, "values", KEYS) == dict.fromkeys(KEYS, one)
    assert client.get_many(job_id, "passing", KEYS) == dict.fromkeys(KEYS[1::2], one)
    batches = range(batch_id + 1)
    items = [{"number": number} for number in batches]
    for key in KEYS[::7]:
        assert client.get_list(job_id, "lists", key) == items
        entries = {number % 5: {"number": number} for number in batches}
        assert client.get(job_id, "maps", key) == entries
    assert client.count(job_id, "values") == len(KEYS)
    assert client.describe(job_id, "lists").batch_id == batch_id


def check_complete(client: QueryableStateClient, job_id: str, batch_id: int) -> None:
    """Compare the states of `COMPLETE` with what it must hold after *batch_id*."""
    found = {key: value["number"] for key, value in client.scan(job_id, "totals")}
    assert found == dict.fromkeys(KEYS[batch_id % 3 :], batch_id)
    offsets = client.operator_state(job_id, "offsets")
    assert (offsets.batch_id, offsets.items) == (
        batch_id,
        ((0, batch_id), (1, -batch_id)),
    )


@final
class Writing:
    """Writes batch after batch in a thread; a context manager."""

    def __init__(self, *queries: Query, batch_id_first: int) -> None:
        self._queries = queries
        self._batch_id = batch_id_first
        self._changed = threading.Condition()
        self._is_over = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="writing")

    @property
    def batch_id_next(self) -> int:
        """Return the batch that is being written, or comes next."""
        return self._batch_id

    def wait_for(self, batch_id: int) -> None:
        """Wait until that batch is committed."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._batch_id > batch_id or self.failure is not None,
                TIMEOUT_SECONDS,
            )
        assert self.failure is None, self.failure

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        assert self.failure is None, self.failure

    def _run(self) -> None:
        while not self._is_over:
            try:
                for query in self._queries:
                    query.write(self._batch_id)
            except Exception as error:  # noqa: BLE001 (raised where it is joined)
                with self._changed:
                    self.failure = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._batch_id += 1
                self._changed.notify_all()
