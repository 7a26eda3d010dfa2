"""
The state of a log source, made queryable: `attach_log_state` (rule O5).

Theory of operation.  What the subtasks of a log hold is in Spark's offset log and
nowhere else, and so it stays: a thread of the driver reads that log from outside, and
publishes what it says of the newest batch that is committed.  The query knows nothing
of it, needs it for nothing, and is never held up.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from nameservice import ConfigurationError
from queryablestate import CheckpointRewoundError
from queryablestate.client.calls import ProxyConnection
from queryablestate.schema.operator_states import published_name
from rescaling.operator_state import encode_snapshot
from rescaling.redistribution import RedistributionMode
from sparkpipeline.attach.attach import AttachedState, check_seconds, wait_for_batch
from sparkpipeline.attach.checkpoint import Checkpoint
from sparkpipeline.attach.follower import Published
from sparkpipeline.attach.steps import pending_batch_ids
from sparkpipeline.log.state import STATE_NAME, LogOffset
from sparkpipeline.operators.publication import (
    OperatorStatePublication,
    PublishedBatch,
    PublishingRun,
    be_born,
    publish_batch,
)
from sparkpipeline.state.options import (
    COMMIT_TIMEOUT_SECONDS_DEFAULT,
    MAX_PARALLELISM_DEFAULT,
)


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from haservices import HAConfig
    from queryablestate.connect.credentials import Credentials


__all__ = ["LogStateFollower", "attach_log_state"]

_POLL_SECONDS_DEFAULT: Final = 1.0
_START_TIMEOUT_SECONDS_DEFAULT: Final = 30.0


def attach_log_state(
    spark: SparkSession,
    config: HAConfig | str,
    checkpoint_location: str,
    source_index: int = 0,
    *,
    job_id: str,
    state_name: str = STATE_NAME,
    poll_seconds: float = _POLL_SECONDS_DEFAULT,
    max_parallelism: int = MAX_PARALLELISM_DEFAULT,
    on_new_query: Literal["refuse", "replace"] = "refuse",
    start_timeout_seconds: float = _START_TIMEOUT_SECONDS_DEFAULT,
    commit_timeout_seconds: float = COMMIT_TIMEOUT_SECONDS_DEFAULT,
    credentials: str | Credentials | None = None,
) -> AttachedState:
    """
    Keep what a query over ``format("lodestar-log")`` has read queryable.

    Clients ask with ``operator_state(job_id, state_name)``; items are (partition,
    offset in bytes).  The query may run, here or in another application, or have
    stopped.

    Args:
        spark: A session of this driver.
        config: The name service by which the proxy is found; its URL will do.
        checkpoint_location: The query's.
        source_index: Which source of the query is the log, from 0.
        job_id: The job that the copy belongs to.
        state_name: What clients call the state.
        poll_seconds: How often to look for a new batch.
        max_parallelism: The number of key groups, the same for all states of a job and
            for life.
        on_new_query: Whether a copy that belongs to another query is an error
            (``"refuse"``) or begins anew (``"replace"``).
        start_timeout_seconds: How long to wait here for the query's first batch.
        commit_timeout_seconds: How long a batch may take to be applied by its nodes
            before it is tried again.
        credentials: A token or CURVE keys, if the proxy wants to know who writes.

    Returns:
        What follows the query until it is stopped.

    Raises:
        ConfigurationError: If an argument is wrong, there is no such query, or its
            sources have names (of several, the order is not known).
        OperatorCheckpointError: If that source is no log.
        StorageError: If the checkpoint cannot be read.
    """
    check_seconds("poll_seconds", poll_seconds)
    check_seconds("start_timeout_seconds", start_timeout_seconds)
    published_name(state_name)  # says now what it would say in the first batch
    publication = OperatorStatePublication(
        config=config,
        job_id=job_id,
        max_parallelism=max_parallelism,
        on_new_query=on_new_query,
        commit_timeout_seconds=commit_timeout_seconds,
        credentials=credentials,
    )
    checkpoint = Checkpoint(spark, checkpoint_location)
    spark_query_id, newest = wait_for_batch(checkpoint, start_timeout_seconds)
    follower = LogStateFollower(
        checkpoint,
        publication,
        state_name=state_name,
        source_index=source_index,
        spark_query_id=spark_query_id,
    )
    follower.snapshots(newest)
    attached = AttachedState(
        follower,
        checkpoint,
        job_id=job_id,
        state_name=state_name,
        poll_seconds=poll_seconds,
    )
    attached.start()
    return attached


@final
class LogStateFollower:
    """
    Publishes what a log source has read; a `Follower`.

    Args:
        checkpoint: The query's.
        publication: Where to.
        state_name: What clients call the state.
        source_index: Which source of the query is the log.
        spark_query_id: The query's.

    Attributes:
        query_id: What owns the copy.
        published: See `Follower`, like the others.
        committed: See `Follower`.
        pending_since_ms: See `Follower`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        publication: OperatorStatePublication,
        *,
        state_name: str,
        source_index: int,
        spark_query_id: str,
    ) -> None:
        self.published: int | None = None
        self.committed: tuple[int, ...] = ()
        self.pending_since_ms: int | None = None
        self._checkpoint = checkpoint
        self._publication = publication
        self._state_name = state_name
        self._source_index = source_index
        self._spark_query_id = spark_query_id
        # Of its own, so that it can be closed while it is waited for.
        self._proxy = ProxyConnection(publication.config, publication.credentials)
        # One name is published by one thread at a time: the next one goes on.
        digest = hashlib.sha256(state_name.encode()).hexdigest()[:16]
        self.query_id = f"{spark_query_id}:log-{source_index}-{digest}"
        self._run = PublishingRun(query_id=self.query_id, run_id=secrets.token_hex(16))

    def advance(self) -> Published | None:
        """
        Publish the newest batch; return it, or None if it is published.

        Raises:
            StaleWriterError: If the same was attached again, later.
            StateOwnedError: If another query owns the copy.
            CheckpointRewoundError: If what is published is not committed any more.
            ConfigurationError: If the checkpoint is another query's now.
            OperatorCheckpointError: If the source is no log any more.
            StorageError: If the checkpoint could not be read.
            NameServiceError: If the proxy or a node could not be reached, or refused.
        """
        try:
            # Before it looks: one that is born later has seen no less.
            be_born(self._publication, self._run, self._proxy)
        finally:
            pending = self._look()  # how far behind it is can be told all the same
        if not pending:
            self._check_not_rewound()
            return None
        self._check_same_query()
        batch_id = pending[-1]
        snapshots = self.snapshots(batch_id)
        if snapshots is None:  # purged since: there is a newer one
            return None
        publish_batch(
            self._publication,
            PublishedBatch(
                run=self._run,
                batch_id=batch_id,
                snapshots=snapshots,
            ),
            self._proxy,
        )
        self.published = batch_id
        self.pending_since_ms = None
        return Published(batch_id=batch_id, mode="snapshot")

    def _look(self) -> list[int]:
        """Take note of what is committed; return what is yet to be published."""
        self.committed = tuple(self._checkpoint.committed())
        pending = pending_batch_ids(self.committed, self.published)
        self.pending_since_ms = (
            self._checkpoint.committed_at_ms(pending[0]) if pending else None
        )
        return pending

    def snapshots(self, batch_id: int) -> list[bytes] | None:
        """
        Return what each subtask held after a batch, by operator index.

        None if Spark's offset log holds the batch no more.

        Raises:
            ConfigurationError: If the query has no such source, or several with names.
            OperatorCheckpointError: If that source is no log.
            StorageError: If the offset log cannot be read.
        """
        offsets = self._checkpoint.offsets(batch_id)
        if offsets is None:
            return None
        if not 0 <= self._source_index < len(offsets):
            raise ConfigurationError(
                f"the query at {self._checkpoint.location} has {len(offsets)} sources, "
                f"and none of index {self._source_index}"
            )
        held = _offset(offsets[self._source_index])
        return [
            encode_snapshot(
                {self._state_name: (RedistributionMode.SPLIT_DISTRIBUTE, subtask)}
            )
            for subtask in held.subtasks
        ]

    def cancel(self) -> None:
        """Give up what `advance` is doing, from another thread; and it is over."""
        self._proxy.close()

    def close(self) -> None:
        """Close what it has opened.  Idempotent."""
        self._proxy.close()

    def _check_same_query(self) -> None:
        query_id = self._checkpoint.query_id()
        if query_id not in {None, self._spark_query_id}:
            raise ConfigurationError(
                f"the checkpoint {self._checkpoint.location} is of query {query_id} "
                f"now, and was of {self._spark_query_id} when it was attached: attach "
                'it again, with on_new_query="replace"'
            )

    def _check_not_rewound(self) -> None:
        newest = self.committed[-1] if self.committed else -1
        if self.published is not None and newest < self.published:
            raise CheckpointRewoundError(self.query_id, newest, self.published)


def _offset(text: str) -> LogOffset:
    """Return what *text*, which a source gave to Spark, says of a log."""
    try:
        content = msgspec.json.decode(text)
    except msgspec.DecodeError:
        content = text  # such as "-", of a source that had nothing yet
    return LogOffset.from_json(content)
