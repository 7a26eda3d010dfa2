"""
`QuestionAnswerer`: answers what readers ask of a node.

A question is read first, and admitted after (`NodeCore.admit`): what the lease says is
looked at when the rows are there already (rule Q4).  What takes a millisecond at most
is read in the loop: points, small lists and maps.  Whatever takes longer is begun anew
on the reading thread, in its turn, which then hands over to the loop (rules B1, B2).
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, assert_never, final

import zmq
from attrs import frozen
from msgspec.structs import replace

from nameservice import (
    LocalProtocolError,
    NameServiceError,
    StorageError,
    get_logger,
)
from nameservice.clock import NS_PER_MS, NS_PER_SECOND, NS_PER_US
from queryablestate.errors import DeadlineExceededError, StateUnavailableError
from queryablestate.node.core.events import AskedQuestion, QuestionDeferred, Wait
from queryablestate.node.core.jobs import ServedJob
from queryablestate.node.core.read_schedule import DropReason, ReadAsked, ReadId
from queryablestate.node.core.refusals import cancelled
from queryablestate.node.reading import LongRead
from queryablestate.node.reads import (
    Found,
    answer_of,
    holds_rows,
    is_long,
    is_too_early,
    problem_of,
    read,
    read_points,
)
from queryablestate.store.steps import ReadWork
from queryablestate.wire.questions import KINDS, Refusal, size_bytes_of
from queryablestate.wire.refusals import error_label, refusal_of
from queryablestate.wire.slices import SLICE_SIZE_BYTES
from zmqtransport import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from nameservice import Clock
    from nameservice.observation import Latencies
    from queryablestate.node.core.core import Admission
    from queryablestate.node.stores import NodeStore
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.steps import Steps
    from queryablestate.wire.questions import Question


__all__ = ["QuestionAnswerer", "Reply", "read_now"]

_RETRY_AFTER_SECONDS: Final = 0.1
_LOOP_PAUSE_COUNT_MAX: Final = 3
"""Where a read in the loop pauses more often, it takes more than a millisecond."""

_LOOP_SIZE_BYTES_MAX: Final = 512 << 10
"""Of an answer that is read in the loop: a fraction of a millisecond to copy."""


def read_now(
    reader: StoreReader,
    question: Question,
    keys: bytes,
    now_us: int,
    answer_size_bytes_max: int,
) -> Found | None:
    """
    Return what is found in a moment, or None if it takes longer.

    Raises:
        RemoteProtocolError: If *keys* are none.
        StorageError: If the store cannot be read.
    """
    size_bytes_max = min(_LOOP_SIZE_BYTES_MAX, answer_size_bytes_max)
    points = read_points(reader, question, keys, now_us, size_bytes_max)
    if points is not None:
        return points
    steps = read(reader, question, keys, (), now_us, size_bytes_max, ReadWork())
    try:
        for _ in range(_LOOP_PAUSE_COUNT_MAX):
            next(steps)
    except StopIteration as done:
        found: Found = done.value
        return found
    except LocalProtocolError:
        return None  # it is not refused for what the loop has no time for
    steps.close()
    return None


class Reply(Protocol):
    """Sends a message and a payload over a connection to the proxy."""

    def __call__(
        self,
        message: msgspec.Struct,
        payload: bytes | zmq.Frame | None,
        link: int,
        on_gone: Callable[[], None] | None = None,
        /,
    ) -> None:
        """Send; *on_gone* is called when that takes no memory any more."""


@final
@frozen
class _Asked:
    """A question, its second frame, when it came, and over which connection."""

    question: Question
    keys: bytes
    asked_at_ns: int
    link: int


@final
class QuestionAnswerer:
    """
    Answers questions from a store.  Belongs to the thread of the node's loop.

    Args:
        store: Where the rows are.
        answer_size_bytes_max: Of the second frame of an answer.
        clock: What deadlines are measured by.
        admit: Says whether a question about a state of that job may be answered now.
        reply: Sends a message, and a payload, over that connection to the proxy; tells
            when these take no memory any more.
        is_congested: Says whether too much waits to be sent.
        defer: Is told what cannot be answered yet.
        latencies: Is told how long it took from a question to its answer.

    Attributes:
        answered_count: Answers given.
        refused_count: Refusals given.
        errors: The same by their codes, as figures.
        latencies: As above.
    """

    def __init__(
        self,
        store: NodeStore,
        *,
        answer_size_bytes_max: int,
        clock: Clock,
        admit: Callable[[Question, str | None], Admission],
        reply: Reply,
        is_congested: Callable[[], bool],
        defer: Callable[[QuestionDeferred], None],
        latencies: Latencies,
    ) -> None:
        self._store = store
        self._answer_size_bytes_max = answer_size_bytes_max
        self._clock = clock
        self._admit = admit
        self._reply = reply
        self._is_congested = is_congested
        self._defer = defer
        self._reads: dict[tuple[int, int], ReadId] = {}
        self._read_number = 0
        self._budget = LogBudget()
        self._log = get_logger(component="state-node")
        self.answered_count = 0
        self.refused_count = 0
        self.errors: Counter[str] = Counter()
        self.latencies = latencies

    def ask(
        self, question: Question, keys: bytes, *, asked_at_ns: int, link: int
    ) -> None:
        """
        Answer a question, now or when its answer has been read.

        Args:
            question: What is asked.
            keys: Its second frame.
            asked_at_ns: When it came.
            link: The connection that it came over.
        """
        asked = _Asked(question, keys, asked_at_ns, link)
        if is_long(question, keys) or self._is_congested():
            self._read_later(asked)
            return
        now_us = time.time_ns() // NS_PER_US
        try:
            found = read_now(
                self._store.opened.reader,
                question,
                keys,
                now_us,
                self._answer_size_bytes_max,
            )
        except NameServiceError as error:
            self._refuse(asked, error)
            return
        if found is None:
            self._read_later(asked)
        else:
            self._finish(asked, found, bytes(found.payload), now_us)

    def figures(self) -> dict[str, int]:
        """Return the figures of questions by name."""
        return {
            "questions_answered_total": self.answered_count,
            "questions_refused_total": self.refused_count,
        }

    def cancel(self, question_ids: Sequence[int], *, link: int) -> None:
        """Read no more of what is asked by these questions."""
        reads = self._reads
        read_ids = [reads[link, one] for one in question_ids if (link, one) in reads]
        self._store.opened.reading.cancel(read_ids)

    def cancel_all(self) -> None:
        """Read no more for anybody: the askers are not there any more."""
        self._reads.clear()
        self._store.opened.reading.cancel_all()

    def _read_later(self, asked: _Asked) -> None:
        """Have the reading thread read, if the node may answer at all."""
        opened = self._store.opened
        question = asked.question
        try:
            view = opened.store.state(question.state_number)
        except StorageError as error:
            self._refuse(asked, error)
            return
        job_id = None if view is None else view.job_id
        admitted = self._admit(question, job_id)
        if not isinstance(admitted, ServedJob):
            self._not_now(asked, admitted, job_id)
            return
        job_id = admitted.job_id
        key_groups = admitted.key_groups
        # A question may be read again before the thread has done with it.
        self._read_number += 1
        read_id = (question.question_id, self._read_number)
        self._reads[asked.link, question.question_id] = read_id

        def post(action: Callable[[], None]) -> None:
            def act() -> None:
                self._reads.pop((asked.link, question.question_id), None)
                action()

            self._store.post(act)

        def begin(reader: StoreReader, work: ReadWork) -> Steps[Found]:
            begun_at_us = time.time_ns() // NS_PER_US
            size_bytes_max = self._answer_size_bytes_max
            return read(
                reader,
                question,
                asked.keys,
                key_groups,
                begun_at_us,
                size_bytes_max,
                work,
            )

        def done(found: Found) -> None:
            # The loop only hands it over; what is small is cheaper copied than kept.
            is_copied = len(found.payload) <= SLICE_SIZE_BYTES
            payload = zmq.Frame(found.payload, copy=is_copied, track=not is_copied)
            found.payload = b""
            gone = partial(opened.reading.gone, read_id)

            def finish() -> None:
                if opened is self._store.opened:
                    # Meanwhile its batch grew older, and rows nearer to their expiry.
                    now_us = time.time_ns() // NS_PER_US
                    self._finish(asked, found, payload, now_us, gone)
                else:
                    gone()

            post(finish)

        def failed(error: NameServiceError, work: ReadWork) -> None:
            post(partial(self._refuse, asked, error, work.row_count))

        def dropped(reason: DropReason, work: ReadWork) -> None:
            post(partial(self._dropped, asked, job_id, reason, work.row_count))

        deadline_ns = asked.asked_at_ns + question.deadline_ms * NS_PER_MS
        wanted = ReadAsked(
            read_id=read_id,
            asker=question.asker,
            deadline_ns=deadline_ns,
            holds_rows=holds_rows(question),
            size_bytes=size_bytes_of(question.operation, asked.keys),
        )
        opened.reading.read(
            LongRead(
                asked=wanted,
                begin=begin,
                size_of=lambda found: len(found.payload),
                done=done,
                failed=failed,
                dropped=dropped,
            )
        )

    def _dropped(
        self, asked: _Asked, job_id: str, reason: DropReason, row_count: int
    ) -> None:
        """Tell why something was not read to its end."""
        error: NameServiceError
        match reason:
            case DropReason.LATE:
                waited_ns = self._clock.now_ns() - asked.asked_at_ns
                error = DeadlineExceededError(
                    waited_ns / NS_PER_SECOND, "the node had no time for it"
                )
            case DropReason.NO_ROOM:
                error = StateUnavailableError(
                    job_id, None, (), _RETRY_AFTER_SECONDS, "too many reads wait"
                )
            case DropReason.CANCELLED:
                refusal = replace(cancelled(asked.question), row_count=row_count)
                self._tell(asked, refusal)
                return
            case _:
                assert_never(reason)
        self._refuse(asked, error, row_count)

    def _finish(
        self,
        asked: _Asked,
        found: Found,
        payload: bytes | zmq.Frame,
        now_us: int,
        on_gone: Callable[[], None] | None = None,
    ) -> None:
        """Answer with what was found, if the node may answer now."""
        question = asked.question
        job_id = None if found.view is None else found.view.job_id
        admitted = self._admit(question, job_id)
        why: Refusal | Wait | None
        if not isinstance(admitted, ServedJob):
            why = admitted
        else:
            why = problem_of(question, found, admitted)
            if why is None and is_too_early(question, found):
                why = Wait.BATCH
        if why is None:
            self.answered_count += 1
            self.latencies.add(
                KINDS[type(question.operation)],
                self._clock.now_ns() - asked.asked_at_ns,
            )
            answer = answer_of(question, found, now_us)
            self._reply(answer, payload, asked.link, on_gone)
            return
        if on_gone is not None:
            on_gone()
        if isinstance(why, Wait) and self._has_changed(question, found):
            self._read_later(asked)
            return
        self._not_now(asked, why, job_id)

    def _has_changed(self, question: Question, found: Found) -> bool:
        """
        Return whether the state is not any more what it was when *found* was read.

        What has changed it may be known already: then nothing would wake the question.
        """
        try:
            view = self._store.opened.store.state(question.state_number)
        except StorageError:
            return False  # an entry that cannot be applied wakes all that wait
        return view != found.view

    def _not_now(self, asked: _Asked, why: Refusal | Wait, job_id: str | None) -> None:
        if isinstance(why, Refusal):
            self._tell(asked, why)
            return
        deferred = AskedQuestion(
            question=asked.question, keys=asked.keys, asked_at_ns=asked.asked_at_ns
        )
        self._defer(QuestionDeferred(asked=deferred, job_id=job_id, wait=why))

    def _refuse(
        self, asked: _Asked, error: NameServiceError, row_count: int = 0
    ) -> None:
        if isinstance(error, StorageError) and self._budget.admits(
            "storage", now_ns=self._clock.now_ns()
        ):
            self._log.error("store.read_failed", error=str(error))
        refusal = refusal_of(error, asked.question.question_id)
        if row_count:
            refusal = replace(refusal, row_count=row_count)
        self._tell(asked, refusal)

    def _tell(self, asked: _Asked, refusal: Refusal) -> None:
        self.count_refused(refusal)
        self._reply(refusal, None, asked.link)

    def count_refused(self, refusal: Refusal) -> None:
        """Count a refusal, also one that is sent elsewhere."""
        self.refused_count += 1
        self.errors[f"errors_{error_label(refusal.code)}"] += 1
