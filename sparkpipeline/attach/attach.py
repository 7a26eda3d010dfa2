"""
State that Spark keeps for a query, made queryable without a change of its job.

`attach_state` follows a checkpoint from outside: it needs nothing of the query but that
its checkpoint can be read, and works while it runs and after it has stopped.

Theory of operation.  A thread of the driver looks at the checkpoint every so often,
and has `sparkpipeline.attach.follower` publish what is new.  What goes wrong is either
passing (a proxy or a node is away, a file was purged while it was read), and tried
again after a pause; or it would be so the next time, too, and ends the thread.
`AttachedState.status` tells of the one, `AttachedState.failure` of the other.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, final

from attrs import evolve, frozen
from pyspark import InheritableThread

from haservices import HAConfig
from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    NameServiceError,
    SystemClock,
    get_logger,
    seconds_to_ns,
)
from nameservice.clock import MS_PER_SECOND
from nameservice.interruptible import InterruptibleEvent
from nameservice.parameters import check_timeout_seconds
from queryablestate import DeadlineExceededError
from queryablestate.connect.credentials import Credentials, as_credentials
from sparkpipeline.attach.checkpoint import Checkpoint
from sparkpipeline.attach.follower import StateFollower
from sparkpipeline.attach.layout import attached_layout, find_source
from sparkpipeline.attach.steps import SnapshotReason
from sparkpipeline.lasting_errors import LASTING_ERRORS
from sparkpipeline.state.options import (
    COMMIT_TIMEOUT_SECONDS_DEFAULT,
    MAX_PARALLELISM_DEFAULT,
    StateSpec,
    WriteOptions,
)


if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from pyspark.sql import SparkSession

    from sparkpipeline.attach.follower import Mode, Published


__all__ = [
    "AttachStatus",
    "AttachedState",
    "Follower",
    "attach_state",
    "check_seconds",
    "wait_for_batch",
]

_POLL_SECONDS_DEFAULT: Final = 1.0
_START_TIMEOUT_SECONDS_DEFAULT: Final = 30.0
_SECONDS_MAX: Final = 3_600.0
_START_POLL_SECONDS: Final = 0.2
_PAUSE_SECONDS: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 30.0
_STOP_TIMEOUT_SECONDS: Final = 60.0


def attach_state(
    spark: SparkSession,
    config: HAConfig | str,
    checkpoint_location: str,
    operator_id: int = 0,
    *,
    job_id: str,
    state_name: str,
    state_var_name: str | None = None,
    value_names: Sequence[str] | None = None,
    poll_seconds: float = _POLL_SECONDS_DEFAULT,
    max_parallelism: int = MAX_PARALLELISM_DEFAULT,
    on_new_query: Literal["refuse", "replace"] = "refuse",
    start_timeout_seconds: float = _START_TIMEOUT_SECONDS_DEFAULT,
    commit_timeout_seconds: float = COMMIT_TIMEOUT_SECONDS_DEFAULT,
    credentials: str | Credentials | None = None,
) -> AttachedState:
    """
    Keep the state of a stateful streaming query queryable, without touching the query.

    The query may run, here or in another application, or have stopped.  Its state is
    published batch by batch under the query's own batch ids: from the change feed where
    there is one, else by snapshots that replace what was there.

    Args:
        spark: A session of this driver; jobs of it read the state.
        config: The name service by which the proxy is found; its URL will do.
        checkpoint_location: The query's.
        operator_id: Which of its stateful operators, counted as Spark counts them.
        job_id: The job that the state belongs to.
        state_name: Its name within the job.
        state_var_name: Which variable of a ``transformWithState``; value, list and map
            variables become states of these kinds, and a TTL is kept.
        value_names: What to call the value columns, in their order; by default they are
            called what Spark calls them, which for aggregations is what it computes.
        poll_seconds: How often to look for a new batch.
        max_parallelism: The number of key groups, the same for all states of a job and
            for life.
        on_new_query: Whether a state that belongs to another query is an error
            (``"refuse"``) or begins anew (``"replace"``).
        start_timeout_seconds: How long to wait here for the query's first batch.
        commit_timeout_seconds: How long a batch may take to be applied by its nodes
            before it is tried again.
        credentials: A token or CURVE keys, if the proxy wants to know who writes.

    Returns:
        What follows the query until it is stopped.

    Raises:
        ConfigurationError: If there is no such state, or it cannot be attached; says
            which there are, or why not.
        StorageError: If the checkpoint cannot be read.
    """
    check_seconds("poll_seconds", poll_seconds)
    check_seconds("start_timeout_seconds", start_timeout_seconds)
    if on_new_query not in {"refuse", "replace"}:
        raise ConfigurationError(
            f'on_new_query must be "refuse" or "replace", not {on_new_query!r}: an '
            "attached state begins with all that there is"
        )
    # What it has in common with states that a query publishes is checked as theirs.
    options = WriteOptions(
        job_id=job_id,
        states=[StateSpec(state_name=state_name, key="key")],
        output_mode="update",
        max_parallelism=max_parallelism,
        on_new_query=on_new_query,
        commit_timeout_seconds=commit_timeout_seconds,
    )
    checkpoint = Checkpoint(spark, checkpoint_location)
    checkpoint.check_location()
    query_id, newest = wait_for_batch(checkpoint, start_timeout_seconds)
    source = find_source(
        [row.asDict() for row in checkpoint.operators()], operator_id, state_var_name
    )
    checkpoint.check_readable(newest)
    layout = attached_layout(
        source,
        checkpoint.snapshot(operator_id, source.state_var_name, newest).schema,
        state_name=state_name,
        value_names=value_names,
    )
    follower = StateFollower(
        spark,
        config=HAConfig(url=config) if isinstance(config, str) else config,
        credentials=as_credentials(credentials),
        options=options,
        checkpoint=checkpoint,
        source=source,
        layout=layout,
        spark_query_id=query_id,
        value_names=value_names,
    )
    attached = AttachedState(
        follower,
        checkpoint,
        job_id=job_id,
        state_name=state_name,
        poll_seconds=poll_seconds,
    )
    attached.start()
    return attached


def check_seconds(name: str, value: float) -> None:
    """Raise `ConfigurationError` if *value* is no time that can be waited for."""
    if not 0 < value <= _SECONDS_MAX:
        raise ConfigurationError(
            f"{name} must be above 0 and at most {_SECONDS_MAX:g}, not {value!r}"
        )


def wait_for_batch(checkpoint: Checkpoint, timeout_seconds: float) -> tuple[str, int]:
    """Return the id of the query, and its newest batch, as soon as there is one."""
    clock = SystemClock()
    deadline_ns = clock.now_ns() + seconds_to_ns(timeout_seconds)
    while True:
        query_id = checkpoint.query_id()
        committed = checkpoint.committed()
        if query_id is not None and committed:
            return query_id, committed[-1]
        if clock.now_ns() >= deadline_ns:
            what = "no checkpoint" if query_id is None else "no committed batch"
            raise ConfigurationError(
                f"there is {what} at {checkpoint.location} after "
                f"{timeout_seconds:.3g} s: start the query, or name its checkpoint"
            )
        # Nothing tells us when files are written.
        InterruptibleEvent().wait(_START_POLL_SECONDS)


@final
@frozen(kw_only=True)
class AttachStatus:
    """
    How far an attached state is.

    Attributes:
        is_running: Whether it follows the query.
        batch_id: The last batch that is published, or None if none is yet.
        committed_batch_id: The last batch of the query that was seen to be committed.
        lag_batches: How many batches are committed and not published.
        lag_seconds: How long ago the oldest of them was committed, by the clocks of the
            file system and of this machine; 0 if there is none.
        mode: How the last batch was published, by the feed or by a snapshot; None if
            none was yet.
        feed_count: Feeds that were read and published; one may be of several batches.
        snapshot_count: Snapshots that were read and published.
        snapshot_reason: Why the last one was needed, or None.
        last_error: What went wrong last, or None since something was published.
    """

    is_running: bool = True
    batch_id: int | None = None
    committed_batch_id: int | None = None
    lag_batches: int = 0
    lag_seconds: float = 0.0
    mode: Mode | None = None
    feed_count: int = 0
    snapshot_count: int = 0
    snapshot_reason: str | None = None
    last_error: NameServiceError | None = None


class Follower(Protocol):
    """
    What `AttachedState` has to publish; see `StateFollower`.  For its thread alone.

    Attributes:
        query_id: What owns the state.
        published: The last batch that is published, as far as is known.
        committed: The batches that were committed when it was looked last, sorted.
        pending_since_ms: When the oldest of them that was not published was committed.
    """

    query_id: str
    published: int | None
    committed: tuple[int, ...]
    pending_since_ms: int | None

    def advance(self) -> Published | None:
        """Publish what is missing; return what it was, or None if nothing is."""

    def cancel(self) -> None:
        """Give up what `advance` is doing, from another thread; and it is over."""

    def close(self) -> None:
        """Close what it has opened.  Idempotent."""


@final
class AttachedState:
    """
    Follows the state of a query until it is stopped.

    Made by `attach_state` and `attach_log_state`.

    A context manager: leaving the block stops it.  Thread-safe.

    Attributes:
        job_id: The job that the state belongs to.
        state_name: Its name within the job.
    """

    def __init__(
        self,
        follower: Follower,
        checkpoint: Checkpoint,
        *,
        job_id: str,
        state_name: str,
        poll_seconds: float,
    ) -> None:
        self.job_id = job_id
        self.state_name = state_name
        self._follower = follower  # of the thread alone, but for `cancel`
        self._checkpoint = checkpoint
        self._poll_seconds = poll_seconds
        self._log = get_logger(
            component="attached-state", component_id=job_id, state_name=state_name
        )
        self._stopping = InterruptibleEvent()
        # The caller may have set a scheduler pool for what comes of it.
        self._thread = InheritableThread(
            target=self._follow, name=f"attached-{state_name}", daemon=True
        )
        # No lock: a Ctrl-C amid the taking of one would stop the thread, too.
        self._shown: tuple[AttachStatus, int | None] = (AttachStatus(), None)
        self._failure: NameServiceError | None = None
        self._waiting: dict[InterruptibleEvent, None] = {}

    def start(self) -> None:
        """Begin to follow; `attach_state` has done so."""
        self._thread.start()

    def stop(self) -> None:
        """
        Follow no more; what is published stays.  Idempotent.

        A batch that is on its way is given up, unless it is decided already.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._follower.cancel()
            self._thread.join(_STOP_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- questions ---------------------------------------------------------------------

    def status(self) -> AttachStatus:
        """Return how far it is."""
        status, since_ms = self._shown
        if since_ms is None:
            return status
        lag_seconds = time.time() - since_ms / MS_PER_SECOND
        return evolve(status, lag_seconds=max(0.0, lag_seconds))

    @property
    def failure(self) -> NameServiceError | None:
        """Return why it has ended by itself, or None."""
        return self._failure

    def wait_for_batch(self, batch_id: int, timeout_seconds: float) -> None:
        """
        Wait until a batch of the query, or a later one, is published.

        Raises:
            DeadlineExceededError: If it was not in time.
            LocalProtocolError: If it has been stopped.
            NameServiceError: Why it has ended by itself.
        """
        check_timeout_seconds(timeout_seconds)
        until = time.monotonic() + timeout_seconds
        news = InterruptibleEvent()
        self._waiting[news] = None
        try:
            while True:
                news.clear()  # before the look: what comes later wakes us again
                status, _ = self._shown
                if status.batch_id is not None and status.batch_id >= batch_id:
                    return
                left_seconds = until - time.monotonic()
                if not status.is_running or not news.wait(left_seconds):
                    break
        finally:
            self._waiting.pop(news, None)
        if not status.is_running:
            if self._failure is not None:
                raise self._failure
            raise LocalProtocolError("this state is followed no more: attach it again")
        detail = "nothing is published yet"
        if status.batch_id is not None:
            detail = f"batch {status.batch_id} is the last that is published"
        if status.last_error is not None:
            detail = f"{detail} ({status.last_error})"
        raise DeadlineExceededError(timeout_seconds, detail)

    # -- the thread --------------------------------------------------------------------

    def _follow(self) -> None:
        self._log.info(
            "attach.started",
            checkpoint=self._checkpoint.location,
            query_id=self._follower.query_id,
        )
        failure: NameServiceError | None = None
        pause_seconds = _PAUSE_SECONDS
        try:
            while not self._stopping.is_set():
                self._checkpoint.check_running()
                try:
                    published = self._follower.advance()
                except LASTING_ERRORS:
                    raise
                except NameServiceError as error:
                    if self._stopping.is_set():
                        break
                    self._log.warning(
                        "attach.delayed", error=str(error), pause_seconds=pause_seconds
                    )
                    self._tell(last_error=error)
                    self._stopping.wait(pause_seconds)
                    pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
                    continue
                pause_seconds = _PAUSE_SECONDS
                self._tell_published(published)
                if published is None:
                    self._stopping.wait(self._poll_seconds)
        except NameServiceError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 (a bug is no end that was wanted)
            failure = LocalProtocolError(f"unexpected {type(error).__name__}: {error}")
            failure.__cause__ = error
        finally:
            self._follower.close()
            self._end(None if self._stopping.is_set() else failure)

    def _tell_published(self, published: Published | None) -> None:
        """Take note of what a step has brought, if there was one."""
        if published is None:
            self._tell(last_error=None)
            return
        if published.reason is SnapshotReason.REWOUND:
            self._log.warning("attach.rewound", batch_id=published.batch_id)
        status, _ = self._shown  # changed on this thread only
        is_feed = published.mode == "feed"
        reason = None if published.reason is None else published.reason.value
        self._tell(
            mode=published.mode,
            feed_count=status.feed_count + is_feed,
            snapshot_count=status.snapshot_count + (not is_feed),
            snapshot_reason=reason or status.snapshot_reason,
            last_error=None,
        )
        self._log.debug(
            "batch.published",
            batch_id=published.batch_id,
            mode=published.mode,
            reason=reason,
        )

    def _tell(self, **changes: Any) -> None:
        """Publish how far it is, and *changes* of the status."""
        follower = self._follower
        committed, published = follower.committed, follower.published
        lag_batches = 0
        if committed:
            lag_batches = len(committed)
            if published is not None:  # those that were purged count as well
                lag_batches = max(0, committed[-1] - published)
        status = evolve(
            self._shown[0],
            batch_id=published,
            committed_batch_id=committed[-1] if committed else None,
            lag_batches=lag_batches,
            **changes,
        )
        self._show(status, follower.pending_since_ms)

    def _show(self, status: AttachStatus, pending_since_ms: int | None) -> None:
        self._shown = (status, pending_since_ms)
        for news in list(self._waiting):
            news.set()

    def _end(self, failure: NameServiceError | None) -> None:
        status, pending_since_ms = self._shown
        self._failure = failure  # before it is said that it has ended
        status = evolve(
            status, is_running=False, last_error=failure or status.last_error
        )
        self._show(status, pending_since_ms)
        if failure is None:
            self._log.info("attach.stopped", batch_id=status.batch_id)
        else:
            self._log.error(
                "attach.failed", batch_id=status.batch_id, error=str(failure)
            )
