"""
What every drill of queryable state writes: a query of two states, without Spark.

Each batch gives every row of ``rows`` its own number, and adds it to every list of
``log``.  So whatever a reader is told names the batch that it is of; a row of an older
batch beside one of a newer one is half a batch; and a list that is not ``0, 1, 2, …``
has lost a batch, or applied one twice.

A batch is written in the steps of `sparkpipeline.state.sink`: planned, bound, staged by
two tasks, committed.  A third stage, of a task attempt that did not win, is staged each
time and never named: its rows must not be seen by anybody.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, Self, final

from queryablestate.client.calls import ProxyConnection
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.values import ValueCodec
from queryablestate.wire.clients import DescribeState, StateDescribed
from queryablestate.writer.rows import StateRows
from queryablestate.writer.stager import StageLimits, Stager
from queryablestate.writer.writer import StateWriter


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from haservices import HAConfig, HAServices
    from queryablestate.wire.clients import StateDescription
    from queryablestate.writer.batches import StageMessage, WriteRun


__all__ = [
    "JOB",
    "KEYS",
    "LOG",
    "LOG_KEYS",
    "LOSER",
    "MAX_PARALLELISM",
    "ROWS",
    "DrillQuery",
    "keys_by_group",
]

JOB: Final = "drill"
ROWS: Final = "rows"
LOG: Final = "log"
KEYS: Final = tuple(f"key-{number:03d}" for number in range(120))
LOG_KEYS: Final = KEYS[:12]

LOSER: Final = -1
"""What stands in the rows of the attempt that did not win."""

MAX_PARALLELISM: Final = 32
_FIND_TIMEOUT_SECONDS: Final = 2.0


def _schema(kind: StateKind) -> StateSchema:
    return StateSchema(
        kind=kind,
        key=(Field(name="key", type=AtomicType.STRING),),
        value=(Field(name="batch", type=AtomicType.BIGINT),),
    )


_STATES: Final = {ROWS: _schema(StateKind.VALUE), LOG: _schema(StateKind.LIST)}
_KEY_CODEC: Final = KeyCodec(_STATES[ROWS].key, max_parallelism=MAX_PARALLELISM)
_VALUE_CODEC: Final = ValueCodec(_STATES[ROWS].value)


def keys_by_group(keys: Sequence[str] = KEYS) -> Mapping[str, Sequence[str]]:
    """Return which of the keys are in each key group, by a name for that."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(f"group {_KEY_CODEC.key_group(key)}", []).append(key)
    return found


@final
class DrillQuery:
    """
    A streaming query of one driver, and its first run.  A context manager.

    Args:
        config: The name service, or how to open it.
        query_id: Which query; it outlives drivers.
        commit_timeout_seconds: How long each step of a batch may take.
        on_new_query: As for Spark's sink.
        keys: The keys that each batch writes.
        job_id: The job that the states belong to.
        first_value: What stands in the rows of batch 0; of batch 1, one more.
        token: What it shows the proxy.
    """

    def __init__(
        self,
        config: HAConfig | HAServices,
        *,
        query_id: str,
        commit_timeout_seconds: float = 60.0,
        on_new_query: str = "refuse",
        keys: Sequence[str] = KEYS,
        job_id: str = JOB,
        first_value: int = 0,
        token: str | None = None,
    ) -> None:
        self._job_id = job_id
        self._first_value = first_value
        self._proxy = ProxyConnection(config, token)
        self._writer = StateWriter(self._proxy)
        self._query_id = query_id
        self._timeout_seconds = commit_timeout_seconds
        self._on_new_query = on_new_query
        self._keys = keys
        self._run_id = ""
        self.begin_run()

    def close(self) -> None:
        """Close the connection to the proxy."""
        self._proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def begin_run(self) -> None:
        """Be what Spark is after the query was started again."""
        self._run_id = str(uuid.uuid4())

    def write(
        self,
        batch_id: int,
        *,
        is_complete: bool = False,
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Write a batch, and return when every owner has applied it.

        Args:
            batch_id: Its number.
            is_complete: Whether its rows are all there is (rule W6).
            on_commit: Called before it can be decided.

        Raises:
            NameServiceError: Why it is not known to be applied.
        """
        run = self.begin()
        messages = [] if run.is_decided(batch_id) else self.stage(run, batch_id)
        on_commit()
        self.commit(run, batch_id, messages, is_complete=is_complete)

    # -- the steps -----------------------------------------------------------------

    def begin(self) -> WriteRun:
        """Plan a batch of this run."""
        return self._writer.begin(
            self._job_id,
            _STATES,
            query_id=self._query_id,
            run_id=self._run_id,
            max_parallelism=MAX_PARALLELISM,
            on_new_query=self._on_new_query,
            timeout_seconds=self._timeout_seconds,
        )

    def stage(
        self, run: WriteRun, batch_id: int, *, keys: Sequence[str] | None = None
    ) -> list[StageMessage]:
        """Stage its rows (all, or those of *keys*), and those of a losing attempt."""
        keys = self._keys if keys is None else keys
        self._task(run, batch_id, keys, value=LOSER)
        value = self._first_value + batch_id
        return [
            self._task(run, batch_id, part, value=value)
            for part in (keys[::2], keys[1::2])
        ]

    def commit(
        self,
        run: WriteRun,
        batch_id: int,
        messages: Sequence[StageMessage],
        *,
        is_complete: bool = False,
    ) -> None:
        """Have it decided and applied."""
        self._writer.commit(
            run.origin,
            batch_id,
            messages,
            is_complete=is_complete,
            timeout_seconds=self._timeout_seconds,
        )

    def _task(
        self,
        run: WriteRun,
        batch_id: int,
        keys: Sequence[str],
        *,
        value: int,
    ) -> StageMessage:
        log_keys = [key for key in keys if key in LOG_KEYS]
        payload = _VALUE_CODEC.encode_row([value])
        rows_number, log_number = run.origin.state_numbers
        with Stager(
            run,
            batch_id,
            find_node=lambda node_id: self._writer.find_node(
                run.plan, node_id, timeout_seconds=_FIND_TIMEOUT_SECONDS
            ),
            renew_grant=lambda: self._writer.renew_grant(
                run, timeout_seconds=_FIND_TIMEOUT_SECONDS
            ),
            limits=StageLimits(timeout_seconds=self._timeout_seconds),
        ) as stager:
            for number, those, is_list in (
                (rows_number, keys, False),
                (log_number, log_keys, True),
            ):
                rows = StateRows(
                    keys=_KEY_CODEC.storage_keys(those), values=[payload] * len(those)
                )
                stager.add(number, rows, is_list=is_list)
            return stager.finish()

    # -- what is asked about it ----------------------------------------------------

    def describe(self, state_name: str = ROWS) -> StateDescription:
        """Return what the proxy knows of a state."""
        answer = self._proxy.call(
            lambda request_id, session: DescribeState(
                request_id=request_id,
                session=session,
                job_id=self._job_id,
                state_name=state_name,
            ),
            timeout_seconds=self._timeout_seconds,
        )
        assert isinstance(answer, StateDescribed), answer
        return answer.description

    def keys_by_node(self, keys: Sequence[str] = KEYS) -> Mapping[str, Sequence[str]]:
        """Return which of the keys each node owns."""
        description = self.describe()
        found: dict[str, list[str]] = {node_id: [] for node_id in description.node_ids}
        for key in keys:
            owner = description.owners[_KEY_CODEC.key_group(key)]
            found[description.node_ids[owner]].append(key)
        return found

    def key_groups(self, node_id: str) -> tuple[int, ...]:
        """Return the key groups that a node owns."""
        description = self.describe()
        index = description.node_ids.index(node_id)
        return tuple(
            group for group, owner in enumerate(description.owners) if owner == index
        )
