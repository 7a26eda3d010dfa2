"""State for the command line to ask, written as Spark's tasks write it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

from haservices import HAConfig, HAServices
from queryablestate.client.calls import ProxyConnection
from queryablestate.connect.credentials import as_credentials
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import StateKind, StateSchema
from queryablestate.schema.values import ValueCodec
from queryablestate.writer.batches import WritePlan, WriteRun
from queryablestate.writer.rows import StateRows
from queryablestate.writer.stager import Stager
from queryablestate.writer.writer import StateWriter


MAX_PARALLELISM = 128
TIMEOUT_SECONDS = 60.0


@final
class Publisher:
    """
    One run of a query that writes states of one job, batch by batch.

    Args:
        config: The name service, or how to open it.
        job_id: The job.
        states: The states by name; each batch writes all of them.
        token: What it shows the proxy.
        on_new_query: What becomes of a state of another query.
    """

    def __init__(
        self,
        config: HAConfig | HAServices,
        job_id: str,
        states: Mapping[str, StateSchema],
        *,
        token: str | None = None,
        on_new_query: str = "refuse",
    ) -> None:
        self._config = config
        self._job_id = job_id
        self._states = dict(states)
        self._on_new_query = on_new_query
        self._credentials = as_credentials(token)
        self._query_id = str(uuid.uuid4())
        self._run_id = str(uuid.uuid4())
        self._batch_id = 0

    def restart(self, states: Mapping[str, StateSchema]) -> None:
        """Go on with the next batch as another run of the query, with these states."""
        self._run_id = str(uuid.uuid4())
        self._states = dict(states)

    def write(self, rows: Mapping[str, Sequence[tuple[Any, ...]] | StateRows]) -> int:
        """
        Write a batch, and return its number once it is visible.

        Args:
            rows: For each state tuples of the key, the map key if it is a map state,
                and each value column; or rows as they are stored, for what Spark may
                write and Python has no value for.
        """
        proxy = ProxyConnection(self._config, self._credentials)
        try:
            writer = StateWriter(proxy)
            run = writer.begin(
                self._job_id,
                self._states,
                query_id=self._query_id,
                run_id=self._run_id,
                max_parallelism=MAX_PARALLELISM,
                on_new_query=self._on_new_query,
                timeout_seconds=TIMEOUT_SECONDS,
            )
            with Stager(
                run,
                self._batch_id,
                credentials=self._credentials,
                find_node=partial(_find_node, writer, run.plan),
                renew_grant=partial(_renew_grant, writer, run),
            ) as stager:
                numbers = dict(zip(self._states, run.origin.state_numbers, strict=True))
                for name, schema in self._states.items():
                    is_list = schema.kind is StateKind.LIST
                    stager.add(
                        numbers[name],
                        _encoded(schema, rows.get(name, ())),
                        is_list=is_list,
                    )
                message = stager.finish()
            writer.commit(
                run.origin,
                self._batch_id,
                [message],
                is_complete=False,
                timeout_seconds=TIMEOUT_SECONDS,
            )
        finally:
            proxy.close()
        self._batch_id += 1
        return self._batch_id - 1


def _renew_grant(writer: StateWriter, run: WriteRun) -> bytes:
    return writer.renew_grant(run, timeout_seconds=TIMEOUT_SECONDS)


def _find_node(writer: StateWriter, plan: WritePlan, node_id: str) -> str | None:
    return writer.find_node(plan, node_id, timeout_seconds=TIMEOUT_SECONDS)


def _encoded(
    schema: StateSchema, rows: Sequence[tuple[Any, ...]] | StateRows
) -> StateRows:
    if isinstance(rows, StateRows):
        return rows
    codec = KeyCodec(
        schema.key, max_parallelism=MAX_PARALLELISM, map_fields=schema.map_key
    )
    values = ValueCodec(schema.value)
    if schema.kind is StateKind.MAP:
        return StateRows(
            keys=[codec.map_entry_key(key, map_key) for key, map_key, *_ in rows],
            values=[values.encode_row(value) for _, _, *value in rows],
        )
    return StateRows(
        keys=[codec.storage_key(key) for key, *_ in rows],
        values=[values.encode_row(value) for _, *value in rows],
    )
