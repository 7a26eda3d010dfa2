"""
`OperatorStatePublisher`: publishes the newest state of an operator beside its query.

Theory of operation.  The driver offers what each batch has left, and a thread publishes
it: always the newest, so that a name service that was away costs readers some batches
in between, and the query nothing.  Behind its sink a batch waits for its own, within a
bound: as long as all goes well, a reader of what the sink was given can ask for the
state behind it.  A batch that has waited in vain is the last one to wait until
something was published again.

A run is born (rule W1) before it computes its first batch, with the epoch that was
drawn when it was started: a driver that was asleep meanwhile would else be taken for
younger than the one that has replaced it, and fence it.

The thread ends when there is nothing left to publish, or has not been for long.

What trying again does not mend (a name that another query owns, access that is refused)
fails the first batch of a run, when somebody is there to see it.  Later on the query is
worth more than the copy: it is logged, and tried again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, final

from attrs import define

from nameservice import (
    LocalProtocolError,
    NameServiceError,
    SystemClock,
    get_logger,
    seconds_to_ns,
)
from queryablestate import DeadlineExceededError, StaleWriterError
from sparkpipeline.lasting_errors import LASTING_ERRORS
from sparkpipeline.operators.publication import be_born, draw_epoch, publish_batch


if TYPE_CHECKING:
    from sparkpipeline.operators.publication import (
        OperatorStatePublication,
        PublishedBatch,
        PublishingRun,
    )


__all__ = ["Offer", "OperatorStatePublisher"]

_PAUSE_SECONDS: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 30.0
_TRY_SECONDS_MAX: Final = 3_600.0
"""How long one batch is tried, if no other comes: the query may have ended."""


@final
@define(eq=False, kw_only=True)
class Offer:
    """
    A batch that is to be published.  Its publisher's own, but to be waited for.

    Attributes:
        run: Whose batch it is.
        batch: The state after it; None if the run is only to be born.
        offered_ns: When it was offered.
        is_over: Whether it is published, or a newer one is, or it was given up.
        error: What went wrong last, or None.
    """

    run: PublishingRun
    batch: PublishedBatch | None
    offered_ns: int
    is_over: bool = False
    error: NameServiceError | None = None

    @property
    def batch_id(self) -> int | None:
        """Return which batch is to be published, or None."""
        return None if self.batch is None else self.batch.batch_id


@final
class OperatorStatePublisher:
    """
    Publishes what one query's batches leave.  Thread-safe.

    Args:
        publication: Where to, and what it may cost.
    """

    def __init__(self, publication: OperatorStatePublication) -> None:
        self._publication = publication
        self._clock = SystemClock()
        self._log = get_logger(
            component="operator-state", component_id=publication.job_id
        )
        self._changed = threading.Condition()  # guards what follows
        self._newest: Offer | None = None
        self._is_working = False
        self._begun: PublishingRun | None = None
        self._run: PublishingRun | None = None  # of which something is published
        self._is_behind = False

    def draw_epoch(self) -> int:
        """Draw an epoch for a run that is being started, for `PublishingRun.drawn`."""
        return draw_epoch(self._publication)

    def begin(self, run: PublishingRun) -> None:
        """
        Have *run* born, before it has anything to publish.  Idempotent.

        Raises:
            StaleWriterError: If one has begun that was started later.  A run that was
                stopped may still be on its way to here.
        """
        with self._changed:
            begun = self._begun
            if begun is not None and run.start_number < begun.start_number:
                raise _stale(run)
            if run != begun:
                self._begun = run
                self._is_behind = False  # that was another one
                self._put(run, None)

    def offer(self, batch: PublishedBatch) -> Offer:
        """
        Have *batch* published, in place of what still waits to be.

        Raises:
            StaleWriterError: If a newer run has begun here.  One that was stopped may
                still be in its batch: it must not take the place of the newer one's.
        """
        with self._changed:
            if self._is_stale(batch.run):
                raise _stale(batch.run)
            return self._put(batch.run, batch)

    def _is_stale(self, run: PublishingRun) -> bool:
        """Return whether another run has begun since *run* has.  Under the lock."""
        return self._begun is not None and self._begun != run

    def _put(self, run: PublishingRun, batch: PublishedBatch | None) -> Offer:
        """Put an offer in place of what still waits.  Under the lock."""
        offer = Offer(run=run, batch=batch, offered_ns=self._clock.now_ns())
        superseded, self._newest = self._newest, offer
        if superseded is not None:
            superseded.is_over = True
            if superseded.run != run:  # who waits for it is not published by this
                superseded.error = _stale(superseded.run)
        if not self._is_working:
            threading.Thread(
                target=self._work, name="operator-state", daemon=True
            ).start()  # raises where a process may have no more of them
            self._is_working = True
        self._changed.notify_all()
        return offer

    def wait(self, offer: Offer) -> None:
        """
        Wait until *offer* is published, as long as its query is willing to.

        Raises:
            NameServiceError: Why it is not, if the query should not go on without.
        """
        publication = self._publication
        is_required = publication.is_required
        timeout_seconds = publication.wait_seconds
        if is_required:
            timeout_seconds = publication.commit_timeout_seconds
        with self._changed:
            if is_required or not self._is_behind:
                self._changed.wait_for(lambda: offer.is_over, timeout_seconds)
            error = offer.error
            if offer.is_over and error is None:
                return
            is_first = self._run != offer.run
            is_lasting = is_first and isinstance(error, LASTING_ERRORS)
            is_stale = self._is_stale(offer.run)
            fails = is_required or is_lasting or is_stale
            if fails:
                self._end(offer)  # it comes again with its batch
            is_behind_now = not self._is_behind
            # Whether the newest run is behind is not for a stopped one to say.
            self._is_behind = self._is_behind or not is_stale
        if fails:
            raise error or DeadlineExceededError(
                timeout_seconds,
                f"the operator state of batch {offer.batch_id} is not published",
            )
        if is_behind_now:
            self._log.warning(
                "operator_state.delayed",
                query_id=offer.run.query_id,
                batch_id=offer.batch_id,
                waited_seconds=timeout_seconds,
                error=None if error is None else str(error),
            )

    # -- the thread --------------------------------------------------------------------

    def _work(self) -> None:
        pause_seconds = _PAUSE_SECONDS
        while True:
            with self._changed:
                offer = self._newest
                if offer is None:
                    self._is_working = False
                    return
            error = self._try(offer)
            with self._changed:
                offer.error = error
                newest = self._newest
                if newest is not None and newest.run == offer.run:
                    newest.error = error  # who waits for it meanwhile is told why
                if error is None:
                    self._end(offer)
                    if offer.batch is not None:
                        self._run = offer.run
                        self._is_behind = False
                    pause_seconds = _PAUSE_SECONDS
                    continue
                if self._is_given_up(offer, error):
                    self._end(offer)
                    continue
                self._wait_for_newer(offer, pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)

    def _try(self, offer: Offer) -> NameServiceError | None:
        """Publish *offer*; return why that did not work, or None."""
        try:
            if offer.batch is None:
                be_born(self._publication, offer.run)
            else:
                publish_batch(self._publication, offer.batch)
        except NameServiceError as error:
            self._log.debug(
                "operator_state.failed",
                query_id=offer.run.query_id,
                batch_id=offer.batch_id,
                error=str(error),
            )
            return error
        except Exception as error:  # noqa: BLE001 (those who wait must be told)
            failure = LocalProtocolError(f"unexpected {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        if offer.batch is not None:
            self._log.debug(
                "operator_state.published",
                query_id=offer.run.query_id,
                batch_id=offer.batch_id,
                size_bytes=sum(map(len, offer.batch.snapshots)),
            )
        return None

    def _is_given_up(self, offer: Offer, error: NameServiceError) -> bool:
        """Return whether *offer* need not be tried again.  Under the lock."""
        fails_batch = (
            self._publication.is_required or self._run != offer.run
        ) and isinstance(error, LASTING_ERRORS)
        age_ns = self._clock.now_ns() - offer.offered_ns
        if not fails_batch and age_ns < seconds_to_ns(_TRY_SECONDS_MAX):
            return False
        self._log.error(
            "operator_state.abandoned",
            query_id=offer.run.query_id,
            batch_id=offer.batch_id,
            error=str(error),
        )
        return True

    def _wait_for_newer(self, offer: Offer, timeout_seconds: float) -> None:
        """Wait for something newer than *offer* to be published.  Under the lock."""
        self._changed.wait_for(lambda: self._newest is not offer, timeout_seconds)

    def _end(self, offer: Offer) -> None:
        """Release *offer*, and those who wait for it.  Under the lock."""
        offer.is_over = True
        if self._newest is offer:
            self._newest = None
        self._changed.notify_all()


def _stale(run: PublishingRun) -> StaleWriterError:
    return StaleWriterError(run.query_id, 0, 0)
