"""
`StateFollower`: publishes what a query has committed since the last time.

Theory of operation.  `StateFollower.advance` looks at the checkpoint, asks the proxy
who owns the state and how far it is, and publishes what is missing by the steps of
`queryablestate.writer.writer`, as a batch of a streaming query would be, under Spark's
own batch id.  `sparkpipeline.attach.steps` says whether the change feed will do.  The
proxy knows which batch was published last, and under which query id: nothing else is
remembered, so that another driver goes on where this one has ended.

**The query id** of an attached state is made from that of the query, and from what is
attached, so that the state is owned like a query's (rule W5).  Of two drivers that
attach the same, the one that came later goes on, and the other one is told that it is
over (rule W1).  A snapshot of a batch that is published already, because a node has
lost its rows, needs an id that has not published it yet: ``:refill-`` and a random
number are appended.  A follower that attaches later finds that id as the owner, and
goes on under it.

**A checkpoint that was put back** to an older batch is told by the time of a commit
(`sparkpipeline.attach.rewinds`): then all is read again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never, final

import pyarrow as pa
from attrs import frozen

from haservices import Backend
from nameservice import (
    ConfigurationError,
    NameServiceError,
    RemoteProtocolError,
    StorageError,
)
from nameservice.clock import MS_PER_SECOND
from queryablestate import StateOwnedError, UnknownJobError, UnknownStateError
from queryablestate.client.calls import ProxyConnection
from queryablestate.wire.clients import DescribeState, StateDescribed
from queryablestate.wire.codec import decode_to_client, encode
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import error_of, refusal_of
from queryablestate.writer.batches import StageMessage
from queryablestate.writer.writer import StateWriter
from sparkpipeline.attach.layout import attached_layout
from sparkpipeline.attach.rewinds import RewindWatch
from sparkpipeline.attach.steps import (
    FollowFeed,
    SnapshotReason,
    TakeSnapshot,
    next_step,
    pending_batch_ids,
)
from sparkpipeline.state.sink import stage_task


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from haservices import HAConfig
    from queryablestate.connect.credentials import Credentials
    from queryablestate.wire.clients import StateDescription
    from queryablestate.writer.batches import WriteRun
    from sparkpipeline.attach.checkpoint import Checkpoint
    from sparkpipeline.attach.layout import AttachedLayout, StateSource
    from sparkpipeline.attach.steps import Step
    from sparkpipeline.state.options import OnNewQuery, WriteOptions


__all__ = ["Published", "StateFollower"]

Mode: TypeAlias = Literal["feed", "snapshot"]

_DESCRIBE_TIMEOUT_SECONDS: Final = 10.0

_LIST_EVERY_COUNT: Final = 30
"""
Looks after which all batches are listed, though the next one is not there.

To look for two files is cheap on any file system; what it does not tell is that Spark
has passed over a number.
"""

_QUERY_ID_LENGTH_MAX: Final = 200
_REFILL: Final = ":refill-"
_STAGED_SCHEMA: Final = "message binary, refusal binary"


@final
@frozen(kw_only=True)
class Published:
    """
    What one step has brought to readers.

    Attributes:
        batch_id: The batch.
        mode: Whether its feed was read, or the whole state.
        reason: Why the whole state, if so.
    """

    batch_id: int
    mode: Mode
    reason: SnapshotReason | None = None


@final
class StateFollower:
    """
    Publishes one state.  For one thread, but for `cancel`.

    Args:
        spark: The session whose jobs read the state.
        config: The name service.
        credentials: Who writes.
        options: What it has in common with states that a query publishes.
        checkpoint: The query's.
        source: Which state of it.
        layout: How it becomes one of ours.
        spark_query_id: The query's.
        value_names: See `attached_layout`.

    Attributes:
        query_id: What owns the state, unless it had to be filled again.
        published: The last batch that is published, as far as is known.
        committed: The batches that were committed when it was looked last, sorted.
        pending_since_ms: When the oldest of them that was not published then was
            committed, ms since 1970 UTC; None if there was none.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        config: HAConfig,
        credentials: Credentials,
        options: WriteOptions,
        checkpoint: Checkpoint,
        source: StateSource,
        layout: AttachedLayout,
        spark_query_id: str,
        value_names: Sequence[str] | None,
    ) -> None:
        self.published: int | None = None
        self.committed: tuple[int, ...] = ()
        self.pending_since_ms: int | None = None
        self._spark = spark
        # An embedded name service does not leave the driver; see `sink`.
        self._task_config = None if config.backend is Backend.EMBEDDED else config
        self._credentials = credentials
        self._options = options
        self._checkpoint = checkpoint
        self._source = source
        self._layout = layout
        self._columns: dict[bool, list[Column]] = {}  # whether of the feed
        self._value_names = value_names
        self._state_name = layout.layout.state_name
        self._proxy = ProxyConnection(config, credentials)
        self._writer = StateWriter(self._proxy)
        self._run_id = secrets.token_hex(16)
        self._slot_count = spark.sparkContext.defaultParallelism
        self._spark_query_id = spark_query_id
        self.query_id = _query_id(spark_query_id, source, self._state_name)
        self._own_id: str | None = None  # what we have published under
        self._refill_ids: set[str] = set()
        self._look_count = 0
        self._rewinds = RewindWatch(checkpoint.committed_at_ms)
        self._is_feed_failed = False

    def advance(self) -> Published | None:
        """
        Publish what is missing; return what it was, or None if nothing is.

        Raises:
            StaleWriterError: If the same was attached again, later.
            StateOwnedError: If another query owns the state.
            SchemaMismatchError: If the state is registered otherwise (rule W5).
            CheckpointRewoundError: If what is published is not committed any more.
            ConfigurationError: If the checkpoint is another query's now.
            StorageError: If the checkpoint could not be read, or is gone.
            NameServiceError: If the proxy or a node could not be reached, or refused.
        """
        try:
            # Before it looks: one that is born later has seen no less.
            born_epoch = self._writer.be_born(
                self._options.job_id,
                query_id=self.query_id,
                run_id=self._run_id,
                timeout_seconds=_DESCRIBE_TIMEOUT_SECONDS,
            )
        finally:
            self._look()  # how far behind it is can be told all the same
        description = self._describe()
        described_ms = int(time.time() * MS_PER_SECOND)
        owner = None
        if description is not None and description.batch_id is not None:
            owner = description.query_id
        self._check_owner(owner)
        is_node_lost = description is not None and bool(description.lost_node_ids)
        self._check_still_there()
        is_known = self.published is not None and self._own_id is not None
        if not self.committed or (
            is_known
            and self.committed[-1] == self.published
            and not is_node_lost
            and not self._rewinds.is_rewound
        ):
            return None
        self._check_same_query()
        run = self._bind_as_owner(owner, born_epoch)
        self.published = run.batch_id_last
        if (
            description is not None
            and description.batch_id == self.published
            and self.published is not None
            and description.age_ms is not None
        ):
            decided_at_ms = described_ms - description.age_ms
            self._rewinds.compare_with_decision(self.published, decided_at_ms)
        step = next_step(
            run.origin.query_id,
            published=self.published,
            committed=self.committed,
            fed=self._checkpoint.fed(self._source.operator_id),
            is_feed_failed=self._is_feed_failed,
            is_node_lost=is_node_lost,
            is_rewound=self._rewinds.is_rewound,
        )
        if step is None:
            return None
        if isinstance(step, TakeSnapshot) and step.begins_anew:
            run = self._bind(self._new_id(), "replace")
        return self._publish(step, run)

    def cancel(self) -> None:
        """Give up what `advance` is doing, from another thread; and it is over."""
        self._proxy.close()
        if not self._checkpoint.is_over():
            self._spark.sparkContext.cancelJobGroup(self._run_id)

    def close(self) -> None:
        """Close what it has opened.  Idempotent."""
        self._proxy.close()

    # -- looking -----------------------------------------------------------------------

    def _look(self) -> None:
        """Take note of what is committed."""
        self._look_count += 1
        if (
            self.published is not None
            # Where it is purged, the next one may be purged as well.
            and self._rewinds.is_as_it_was(self.published)
            and self._look_count % _LIST_EVERY_COUNT
            and not self._checkpoint.is_committed(self.published + 1)
        ):
            return
        self.committed = tuple(self._checkpoint.committed())
        pending = pending_batch_ids(self.committed, self.published)
        self.pending_since_ms = (
            self._checkpoint.committed_at_ms(pending[0]) if pending else None
        )

    def _describe(self) -> StateDescription | None:
        """Return what the proxy knows of the state, or None if it is new."""
        try:
            answer = self._proxy.call(
                lambda request_id, session: DescribeState(
                    request_id=request_id,
                    session=session,
                    job_id=self._options.job_id,
                    state_name=self._state_name,
                ),
                timeout_seconds=_DESCRIBE_TIMEOUT_SECONDS,
            )
        except (UnknownJobError, UnknownStateError):
            return None
        if not isinstance(answer, StateDescribed):
            raise RemoteProtocolError("unexpected", type(answer).__name__)
        return answer.description

    def _check_still_there(self) -> None:
        """
        Return if there may be more to publish than there is.

        Raises:
            StorageError: If batches were committed, and none is any more.
        """
        if self.published is not None and not self.committed:
            raise StorageError(
                f"no batch is committed any more at {self._checkpoint.location}, and "
                f"batch {self.published} is published: if the checkpoint was moved, "
                "attach it where it is now, or put it back; if it was deleted, and the "
                'query begins with a new one, attach that with on_new_query="replace"'
            )

    def _check_same_query(self) -> None:
        query_id = self._checkpoint.query_id()
        if query_id not in {None, self._spark_query_id}:
            raise ConfigurationError(
                f"the checkpoint {self._checkpoint.location} is of query {query_id} "
                f"now, and was of {self._spark_query_id} when it was attached: attach "
                'it again, with on_new_query="replace"'
            )

    # -- who we are --------------------------------------------------------------------

    def _check_owner(self, owner: str | None) -> None:
        """
        Return if the state is still ours, as far as it was.

        Raises:
            StateOwnedError: If another query has it now.
        """
        if owner in self._refill_ids:  # decided, though perhaps we were not told
            self._own_id = owner
        if self._own_id is not None and owner not in {None, self._own_id}:
            raise self._owned_by(str(owner))

    def _bind_as_owner(self, owner: str | None, born_epoch: int) -> WriteRun:
        """Return a run of the query that owns the state, or will own it."""
        if self._own_id is not None:
            return self._bind(self._own_id, "refuse")
        if owner is None:
            return self._bind(self.query_id, "refuse")
        if owner == self.query_id or owner.startswith(self.query_id + _REFILL):
            # Another one may go by that id since: who of us is older does not change.
            run = self._bind(owner, "refuse", born_epoch)
            self._own_id = owner
            return run
        if self._options.on_new_query == "refuse":
            raise self._owned_by(owner)
        run = self._bind(self.query_id, "replace")
        if run.batch_id_last is not None:
            # It was ours once; what is there now is not what we had published.
            run = self._bind(self._new_id(), "replace")
        return run

    def _owned_by(self, owner: str) -> StateOwnedError:
        query_id = self._own_id or self.query_id
        return StateOwnedError(self._options.job_id, self._state_name, owner, query_id)

    def _new_id(self) -> str:
        """Return an id of our own that has published nothing."""
        query_id = f"{self.query_id}{_REFILL}{secrets.token_hex(4)}"
        self._refill_ids.add(query_id)
        return query_id

    def _bind(
        self, query_id: str, on_new_query: OnNewQuery, born_epoch: int | None = None
    ) -> WriteRun:
        timeout_seconds = self._options.commit_timeout_seconds
        return self._writer.begin(
            self._options.job_id,
            {self._state_name: self._layout.layout.schema},
            query_id=query_id,
            run_id=self._run_id,
            max_parallelism=self._options.max_parallelism,
            on_new_query=on_new_query,
            born_epoch=born_epoch,
            timeout_seconds=timeout_seconds,
        )

    # -- publishing --------------------------------------------------------------------

    def _publish(self, step: Step, run: WriteRun) -> Published:
        match step:
            case FollowFeed(first=first, last=batch_id):
                published = Published(batch_id=batch_id, mode="feed")
                what = f"batches {first} to {batch_id}"
            case TakeSnapshot(batch_id=batch_id, reason=reason):
                published = Published(batch_id=batch_id, mode="snapshot", reason=reason)
                what = f"all of batch {batch_id}"
                self._checkpoint.check_readable(batch_id)
            case _:
                assert_never(step)
        self._spark.sparkContext.setJobGroup(
            self._run_id,
            f"attached state {self._options.job_id}/{self._state_name}: {what}",
        )
        committed_at_ms = self._checkpoint.committed_at_ms(batch_id)
        try:
            frame = self._frame(step)
            run = self._bind_again_if_changed(frame, run)
            rows = self._staged(frame, run, batch_id, is_feed=published.mode == "feed")
        except StorageError:
            self._is_feed_failed = published.mode == "feed"
            raise
        self._writer.commit(
            run.origin,
            batch_id,
            _messages(rows),
            is_complete=published.mode == "snapshot",
            is_digested=False,  # the feed, or a snapshot: their rows differ
            timeout_seconds=self._options.commit_timeout_seconds,
        )
        self._is_feed_failed = False
        self._rewinds.published(batch_id, committed_at_ms)
        self._own_id = run.origin.query_id
        self.published = batch_id
        pending = pending_batch_ids(self.committed, batch_id)
        if not pending:
            self.pending_since_ms = None
        return published

    def _frame(self, step: Step) -> DataFrame:
        operator_id, variable = self._source.operator_id, self._source.state_var_name
        match step:
            case FollowFeed(first=first, last=last):
                return self._checkpoint.feed(operator_id, variable, first, last)
            case TakeSnapshot(batch_id=batch_id):
                return self._checkpoint.snapshot(operator_id, variable, batch_id)
            case _:
                assert_never(step)

    def _bind_again_if_changed(self, frame: DataFrame, run: WriteRun) -> WriteRun:
        """Register the state anew if the query has come back with other columns."""
        layout = attached_layout(
            self._source,
            frame.schema,
            state_name=self._state_name,
            value_names=self._value_names,
        )
        if layout == self._layout:
            return run
        self._layout = layout
        self._columns.clear()
        plan = run.plan
        on_new_query: OnNewQuery = (
            "replace" if plan.on_new_query == "replace" else "refuse"
        )
        return self._bind(run.origin.query_id, on_new_query)

    def _staged(
        self, frame: DataFrame, run: WriteRun, batch_id: int, *, is_feed: bool
    ) -> list[Row]:
        """Have tasks stage the rows of *frame*; return what they tell."""
        layout = self._layout
        columns = self._columns.get(is_feed)
        if columns is None:
            columns = self._columns[is_feed] = layout.columns(
                is_feed=is_feed, max_parallelism=self._options.max_parallelism
            )
        task = stage_task(
            run,
            batch_id,
            [layout.layout],
            layout.names,
            config=self._task_config,
            credentials=self._credentials,
            timeout_seconds=self._options.commit_timeout_seconds,
        )
        # A state has as many partitions as the query wants, which may be far more than
        # it takes to read what a batch has changed.
        rows = frame.select(*columns).coalesce(self._slot_count)
        return self._checkpoint.collect(rows.mapInArrow(_telling(task), _STAGED_SCHEMA))


def _telling(
    task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """
    Return *task*, but that it tells why it was refused instead of failing.

    Spark would run it again, which the stager has done already as far as it helps; and
    it would give the driver a text in place of the error.
    """

    def tell(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages: list[bytes | None] = []
        refusals: list[bytes | None] = []
        try:
            for batch in task(batches):
                messages += batch.column("message").to_pylist()
                refusals += [None] * batch.num_rows
        except NameServiceError as error:
            messages, refusals = [None], [encode(refusal_of(error, 0))]
        yield pa.RecordBatch.from_pydict(
            {
                "message": pa.array(messages, pa.binary()),
                "refusal": pa.array(refusals, pa.binary()),
            }
        )

    return tell


def _messages(rows: Sequence[Row]) -> list[StageMessage]:
    """
    Return what tasks have staged, those without rows left out.

    Raises:
        NameServiceError: Why a task was refused.
    """
    for row in rows:
        if row.refusal is not None:
            refusal = decode_to_client(bytes(row.refusal))
            assert isinstance(refusal, Refusal)
            raise error_of(refusal)
    messages = [StageMessage.from_bytes(bytes(row.message)) for row in rows]
    return [message for message in messages if message.stage.row_count]


def _query_id(spark_query_id: str, source: StateSource, state_name: str) -> str:
    """Return what an attached state is owned by; see the module docstring."""
    what = f"{source.operator_id}:{source.state_var_name or ''}:{state_name}"
    found = f"attach:{spark_query_id}:{what}"
    if len(found) > _QUERY_ID_LENGTH_MAX:
        digest = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
        found = f"attach:{spark_query_id}:{digest}"
    return found
