"""
`StandbyLeadership`: what an application has while it leads; the guard of its batches.

Theory of operation
-------------------
Before a guarded function is called for a batch, a *claim* is committed to the leader
store of the job: which batch of which query, under which epoch.  The leader store takes
a write only from the session that leads (rule L2), so the claim of a driver whose
successor was granted is refused, whatever its clock or its belief say.  After the claim
the local clock is asked (rule E4), which sees a pause between the two.  Then the
function is called.

A claim that is not answered, since the name service is away, is waited for as long as
the queries run: not when they are to be stopped.

What cannot be seen is a pause after that: a function that has begun goes on when its
process does.  A sink that must not be written even then compares epochs itself, or
keeps the batch id with what it writes (docs/howto/keep-a-standby.md).
"""

from __future__ import annotations

import functools
import json
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, final

from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    StaleEpochError,
    UnreachableError,
    get_logger,
)
from nameservice.fields import check_address
from nameservice.interruptible import InterruptibleEvent
from sparkpipeline.failures import through_spark
from sparkpipeline.state.sink import QUERY_ID_PROPERTY, RUN_ID_PROPERTY


if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from pyspark.sql import DataFrame, SparkSession

    from election import LeaderElection, LeaderSession, LeaderStore
    from sparkpipeline.batch_guard import BatchFunction


__all__ = ["CLAIMS", "StandbyLeadership"]

CLAIMS: Final = "standby/claims/"
"""Below it, the leader store has the last claim of each query."""

_PAUSE_SECONDS: Final = 0.05


@final
class StandbyLeadership:
    """
    One leadership of a driver, from `run_with_standby`.  Thread-safe.

    Attributes:
        session: The leadership, as the leader store takes it.
        store: The leader store of the job, for the application's own use; paths that
            begin with ``standby/`` are the driver's.
        lost: Set once the leadership is revoked.  Belief may lapse before that, and
            come back: ask `check` where it matters.
    """

    def __init__(
        self,
        election: LeaderElection,
        session: LeaderSession,
        store: LeaderStore,
        *,
        lost: threading.Event | None = None,
        on_fenced: Callable[[], None] = lambda: None,
        check_query: Callable[[SparkSession, str], None] = lambda _session, _id: None,
    ) -> None:
        """
        Make that of a leadership that was confirmed.

        Args:
            election: Which granted it.
            session: What was granted.
            store: Of the job.
            lost: What is set when it is revoked.
            on_fenced: Called when the leader store refuses a claim of ours.
            check_query: Called before the first guarded batch of a query, with its
                session and its id; what it raises fails the query.
        """
        self._election = election
        self.store = store
        self._on_fenced = on_fenced
        self._check_query = check_query
        self._log = get_logger(component="standby", component_id=election.component_id)
        self._changed = threading.Condition()
        self._is_begun = False
        self._is_stopping = False
        self._running_count = 0
        self._checked: set[str] = set()
        self._guarded: set[str] = set()
        self._finished: dict[str, int] = {}
        self._stop_callbacks: list[Callable[[], None]] = []
        self.session = session
        self.lost = InterruptibleEvent() if lost is None else lost

    @property
    def job_id(self) -> str:
        """Return what we lead."""
        return self._election.component_id

    @property
    def leader_session_id(self) -> UUID:
        """Return the identity of this leadership."""
        return self.session.leader_session_id

    @property
    def epoch(self) -> int:
        """Return the fencing token of this leadership."""
        return self.session.epoch

    def check(self) -> None:
        """
        Return while we lead.

        Raises:
            LeadershipLostError: While we do not believe that we lead.
        """
        if not self._is_believing():
            raise LeadershipLostError(self.job_id, self.epoch)

    def publish_address(self, address: str) -> None:
        """
        Have those who look for the leader find *address* from now on.

        Args:
            address: 1 to 1,024 printable characters.

        Raises:
            LeadershipLostError: The leadership is over.
            MayHaveHappenedError: It was sent, and never answered.
            DidNotHappenError: It changed nothing, and will not.
            ConfigurationError: If *address* breaks the rule above.
        """
        self._election.confirm_leadership(
            self.leader_session_id, check_address(address)
        )

    def when_stopping(self, callback: Callable[[], None]) -> None:
        """
        Call *callback* when the queries of this leadership are about to be stopped.

        For what the application has started besides: a web server, an attached state.
        Callbacks run one at a time, the last one first, on a thread of the driver.
        What they raise is logged.
        """
        with self._changed:
            self._stop_callbacks.append(callback)

    def guard(self, function: BatchFunction) -> BatchFunction:
        """
        Return *function*, for ``foreachBatch``, so that it runs only while we lead.

        It is called with the batch and its id as before.  A batch is refused before
        *function* is called if another driver leads; a batch that begins while the
        name service cannot be reached waits until it can, or until the leadership is
        over.  As everywhere with ``foreachBatch``, the last batch of a driver that was
        killed comes again, with the same id, to its successor.

        The guarded function raises `LeadershipLostError` for a batch that it refuses.
        """

        @functools.wraps(function)
        def run_guarded(batch: DataFrame, batch_id: int) -> None:
            session = batch.sparkSession
            query_id = session.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
            run_id = session.sparkContext.getLocalProperty(RUN_ID_PROPERTY)
            if query_id is None:
                raise LocalProtocolError(
                    "this is no micro-batch of a streaming query: give what guard "
                    "returns to foreachBatch"
                )
            if query_id not in self._checked:
                self._check_query(session, query_id)
                self._checked.add(query_id)
            self.run_batch(
                query_id, run_id, batch_id, lambda: function(batch, batch_id)
            )

        return through_spark(run_guarded)

    # -- for the driver ----------------------------------------------------------------

    def run_batch(
        self,
        query_id: str,
        run_id: str | None,
        batch_id: int,
        action: Callable[[], Any],
    ) -> None:
        """
        Claim one batch, and call *action*.

        Raises:
            LeadershipLostError: If *action* was not called: another driver leads, or
                we are stopping.
        """
        self._guarded.add(query_id)
        while True:
            self._claim(query_id, run_id, batch_id)
            with self._changed:
                # Belief that has lapsed since the claim may come back: claim again.
                if not self._is_stopping and self._is_believing():
                    self._running_count += 1
                    break
        try:
            action()
            with self._changed:
                self._finished[query_id] = batch_id
        finally:
            with self._changed:
                self._running_count -= 1
                self._changed.notify_all()

    def begin(self) -> bool:
        """Return whether the application may be called: False once we stop."""
        with self._changed:
            self._is_begun = not self._is_stopping
            return self._is_begun

    def begin_stop(self) -> bool:
        """
        Refuse every batch from now on, and call what `when_stopping` was given.

        Returns:
            Whether the application was called.
        """
        with self._changed:
            self._is_stopping = True
            is_begun = self._is_begun
            callbacks, self._stop_callbacks = self._stop_callbacks, []
            self._changed.notify_all()
        for callback in reversed(callbacks):
            try:
                callback()
            except Exception:  # noqa: BLE001 - the rest is stopped all the same
                self._log.exception("standby.callback_failed")
        return is_begun

    def wait_until_idle(self) -> None:
        """Return when no guarded function runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._running_count == 0)

    def is_guarded(self, query_id: str) -> bool:
        """Return whether a batch of that query has come to a guard."""
        return query_id in self._guarded

    def finished_batch(self, query_id: str) -> int | None:
        """Return the last batch whose guarded function has returned, or None."""
        with self._changed:
            return self._finished.get(query_id)

    def _claim(self, query_id: str, run_id: str | None, batch_id: int) -> None:
        """Return when the leader store has our claim, and we believe after that."""
        value = json.dumps(
            {"batch_id": batch_id, "epoch": self.epoch, "run_id": run_id}
        ).encode()
        while not self._is_over():
            claimed = self._put(CLAIMS + query_id, value)
            with self._changed:
                while not (claimed.done() or self._is_over()):
                    self._changed.wait(_PAUSE_SECONDS)  # *lost* wakes no one
            if not claimed.done():
                break  # its outcome does not matter any more
            try:
                claimed.result()
            except StaleEpochError as error:
                self._log.warning(
                    "standby.fenced",
                    epoch=self.epoch,
                    query_id=query_id,
                    batch_id=batch_id,
                )
                self._on_fenced()
                raise LeadershipLostError(self.job_id, self.epoch) from error
            except (DidNotHappenError, MayHaveHappenedError, UnreachableError) as error:
                # To claim again is safe, and the leadership may outlast this.
                self._log.info("standby.unclaimed", batch_id=batch_id, error=str(error))
            else:
                if self._is_believing():
                    return
            self.lost.wait(_PAUSE_SECONDS)
        raise LeadershipLostError(self.job_id, self.epoch)

    def _put(self, path: str, value: bytes) -> Future[None]:
        """Put *value*, on a thread of its own: it may take the connect timeout."""
        answer: Future[None] = Future()

        def put() -> None:
            try:
                self.store.put(path, value, session=self.session)
            except Exception as error:  # noqa: BLE001 - it is raised by result()
                answer.set_exception(error)
            else:
                answer.set_result(None)
            with self._changed:
                self._changed.notify_all()

        threading.Thread(target=put, name="standby-claim", daemon=True).start()
        return answer

    def _is_over(self) -> bool:
        return self._is_stopping or self.lost.is_set()

    def _is_believing(self) -> bool:
        return not self.lost.is_set() and self._election.has_leadership(
            self.leader_session_id
        )
