"""
`QuestionDesk`: answers what readers ask of a node.

A question is read first, and admitted after (`NodeCore.admit`): what the lease says is
looked at when the rows are there already (rule Q4).  Points are read in the loop, up to
half a megabyte; whatever may take longer, and larger answers, on the scanner's thread,
which then hands over to the loop (rule B1).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

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
from queryablestate.node.reads import (
    Found,
    answer_of,
    is_long,
    is_too_early,
    problem_of,
    read,
)
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import refusal_of
from zmqtransport import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from nameservice import Clock
    from queryablestate.node.core.core import Admission
    from queryablestate.node.stores import NodeStore, OpenStore
    from queryablestate.store.reader import StoreReader
    from queryablestate.wire.questions import Question


__all__ = ["QuestionDesk"]

_RETRY_AFTER_SECONDS: Final = 0.1
_LOOP_LOOKS_MAX: Final = 100
_LOOP_SIZE_BYTES_MAX: Final = 512 << 10
"""Of an answer that is read in the loop: a fraction of a millisecond to copy."""


@final
@frozen
class _Asked:
    """A question, its second frame, when it came, and over which connection."""

    question: Question
    keys: bytes
    asked_at_ns: int
    link: int


@final
class QuestionDesk:
    """
    Answers questions from a store.  Belongs to the thread of the node's loop.

    Args:
        store: Where the rows are.
        answer_size_bytes_max: Of the second frame of an answer.
        clock: What deadlines are measured by.
        admit: Says whether a question about a state of that job may be answered now.
        reply: Sends a message, and a payload, over that connection to the proxy.
        defer: Is told what cannot be answered yet.

    Attributes:
        answered_count: Answers given.
        refused_count: Refusals given.
    """

    def __init__(
        self,
        store: NodeStore,
        *,
        answer_size_bytes_max: int,
        clock: Clock,
        admit: Callable[[Question, str | None], Admission],
        reply: Callable[[msgspec.Struct, bytes | None, int], None],
        defer: Callable[[QuestionDeferred], None],
    ) -> None:
        self._store = store
        self._answer_size_bytes_max = answer_size_bytes_max
        self._clock = clock
        self._admit = admit
        self._reply = reply
        self._defer = defer
        self._budget = LogBudget()
        self._log = get_logger(component="state-node")
        self.answered_count = 0
        self.refused_count = 0

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
        if is_long(question, keys):
            self._ask_scanner(asked)
            return
        now_us = time.time_ns() // NS_PER_US
        reader = self._store.opened.reader
        size_bytes_max = min(_LOOP_SIZE_BYTES_MAX, self._answer_size_bytes_max)
        try:
            found = read(
                reader, question, keys, (), now_us, size_bytes_max, _LOOP_LOOKS_MAX
            )
        except (
            LocalProtocolError
        ):  # it is not refused for what the loop has no time for
            self._ask_scanner(asked)
            return
        except NameServiceError as error:
            self._refuse(asked, error)
            return
        self._finish(asked, found, now_us)

    def _ask_scanner(self, asked: _Asked) -> None:
        """Have the scanner read, if the node may answer at all."""
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
        task = partial(self._read_long, opened, asked, admitted.key_groups)
        if not opened.scanner.run(task):
            no_room = StateUnavailableError(
                admitted.job_id, None, (), _RETRY_AFTER_SECONDS, "too many scans wait"
            )
            self._refuse(asked, no_room)

    def _read_long(
        self,
        opened: OpenStore,
        asked: _Asked,
        key_groups: Sequence[int],
        reader: StoreReader,
    ) -> None:
        """Read on the scanner's thread."""
        question = asked.question
        waited_ns = self._clock.now_ns() - asked.asked_at_ns
        if waited_ns >= question.deadline_ms * NS_PER_MS:
            late = DeadlineExceededError(
                waited_ns / NS_PER_SECOND, "the node had no time for it"
            )
            self._store.post(partial(self._refuse, asked, late))
            return
        now_us = time.time_ns() // NS_PER_US
        size_bytes_max = self._answer_size_bytes_max
        try:
            found = read(
                reader, question, asked.keys, key_groups, now_us, size_bytes_max
            )
        except NameServiceError as error:
            self._store.post(partial(self._refuse, asked, error))
            return

        def finish() -> None:
            if opened is self._store.opened:
                self._finish(asked, found, now_us)

        self._store.post(finish)

    def _finish(self, asked: _Asked, found: Found, now_us: int) -> None:
        """Answer with what was found, if the node may answer now."""
        question = asked.question
        job_id = None if found.view is None else found.view.job_id
        admitted = self._admit(question, job_id)
        if not isinstance(admitted, ServedJob):
            self._not_now(asked, admitted, job_id)
            return
        problem = problem_of(question, found, admitted)
        if problem is not None:
            self._not_now(asked, problem, job_id)
        elif is_too_early(question, found):
            self._not_now(asked, Wait.BATCH, job_id)
        else:
            self.answered_count += 1
            answer = answer_of(question, found, now_us)
            self._reply(answer, found.payload, asked.link)

    def _not_now(self, asked: _Asked, why: Refusal | Wait, job_id: str | None) -> None:
        if isinstance(why, Refusal):
            self.refused_count += 1
            self._reply(why, None, asked.link)
            return
        deferred = AskedQuestion(
            question=asked.question, keys=asked.keys, asked_at_ns=asked.asked_at_ns
        )
        self._defer(QuestionDeferred(asked=deferred, job_id=job_id, wait=why))

    def _refuse(self, asked: _Asked, error: NameServiceError) -> None:
        self.refused_count += 1
        if isinstance(error, StorageError) and self._budget.admits(
            "storage", now_ns=self._clock.now_ns()
        ):
            self._log.error("store.read_failed", error=str(error))
        refusal = refusal_of(error, asked.question.question_id)
        self._reply(refusal, None, asked.link)
