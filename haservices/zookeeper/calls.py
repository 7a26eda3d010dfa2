"""`BlockingCalls`: what other threads ask a session for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    SessionExpiredError,
    UnreachableError,
)
from nameservice.answer import Answer
from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from haservices.config import HAConfig
    from haservices.event_loop import EventLoop


__all__ = ["BlockingCalls"]

T = TypeVar("T")

_CLOSED: Final = "these services are closed: open new ones"


@final
class BlockingCalls:
    """
    Requests of other threads than the loop's, which wait for their answers.

    No lock is held: a signal handler may close the services amid a request of its own
    thread, and waits for the loop.

    Args:
        config: Says how long a call waits: its connect timeout, in seconds.
        loop: Where requests are made.
        last_messages: Tells what the connection last complained of.

    Attributes:
        is_reachable: Set while requests are answered, or refused.
        refusal: Why the session is not taken any more; None while it is.
        is_closed: Whether nothing may be asked any more.
    """

    def __init__(
        self, config: HAConfig, loop: EventLoop, last_messages: Callable[[], str]
    ) -> None:
        self._config = config
        self._loop = loop
        self._last_messages = last_messages
        self.is_reachable: Final = InterruptibleEvent()
        self.refusal: NameServiceError | None = None
        self.is_closed = False
        # Whether the loop has begun with it.
        self._unanswered: dict[Answer[Any], bool] = {}
        self._is_loop_over = False

    def read(self, request: Callable[[], Future[T]]) -> T:
        """
        Ask until there is an answer, and return it.

        Args:
            request: Called on the loop; asks for something that changes nothing.

        Raises:
            UnreachableError: If there is no answer within the connect timeout.
        """
        (answer,) = self.read_all([request])
        return answer

    def read_all(self, requests: Sequence[Callable[[], Future[T]]]) -> list[T]:
        """Do as `read` does for many requests, which are on their way together."""
        began = time.monotonic()
        limit_seconds = self._config.connect_timeout_seconds
        while True:
            self._wait_until_reachable(began)
            answers = [self.request(request) for request in requests]
            try:
                return [
                    answer.result(max(0.0, began + limit_seconds - time.monotonic()))
                    for answer in answers
                ]
            except TimeoutError:
                raise self._unreachable() from None
            except (MayHaveHappenedError, SessionExpiredError) as error:
                lost: Exception = error  # it was only a question: ask again
            except DidNotHappenError as error:
                if type(error) is not DidNotHappenError:
                    raise  # it is the answer
                lost = error
            if time.monotonic() - began >= limit_seconds:
                raise self._unreachable() from lost

    def write(self, request: Callable[[], Future[T]]) -> T:
        """
        Ask for a change once, and return the answer.

        Raises:
            UnreachableError: If it could not be sent within the connect timeout.
            MayHaveHappenedError: If it was sent, and not answered.
        """
        began = time.monotonic()
        self._wait_until_reachable(began)
        try:
            return self.request(request).result(self._config.connect_timeout_seconds)
        except TimeoutError:
            message = f"{self._config.url} did not answer in time"
            raise MayHaveHappenedError(message) from None
        except SessionExpiredError as error:
            message = f"{self._config.url} ended the session before it answered"
            raise MayHaveHappenedError(message) from error

    def request(self, request: Callable[[], Future[T]]) -> Answer[T]:
        """
        Call *request* on the loop; return its answer.

        There is one in any case: `end` gives it where the loop does not.
        """
        answer: Answer[T] = Answer()

        def ask() -> None:
            self._unanswered[answer] = True
            try:
                asked = request()
            except Exception as error:  # noqa: BLE001 - told to the asker alone
                self._fail(answer, error)
            else:
                asked.add_done_callback(lambda asked: self._hand_on(asked, answer))

        self._unanswered[answer] = False
        if self._is_loop_over:  # after that: `end` looks after it has said so
            self._fail(answer, LocalProtocolError(_CLOSED))
        else:
            self._loop.call(ask)
        return answer

    def _hand_on(self, asked: Future[T], answer: Answer[T]) -> None:
        error = asked.exception()
        if error is not None:
            self._fail(answer, error)
        else:
            self._unanswered.pop(answer, None)
            answer.set_result(asked.result())

    def _fail(self, answer: Answer[Any], error: BaseException) -> None:
        self._unanswered.pop(answer, None)
        answer.set_exception(error)

    def end(self) -> None:
        """Answer those who still wait, and all that come; the loop is over."""
        self._is_loop_over = True
        for answer in list(self._unanswered):
            if self._unanswered.get(answer):
                message = "these services were closed before there was an answer"
                self._fail(answer, MayHaveHappenedError(message))
            else:
                self._fail(answer, LocalProtocolError(_CLOSED))

    def check_open(self) -> None:
        """
        Check that the services were not closed.

        Raises:
            LocalProtocolError: If they were.
        """
        if self.is_closed:
            raise LocalProtocolError(_CLOSED)

    def _wait_until_reachable(self, began: float) -> None:
        self.check_open()
        left_seconds = began + self._config.connect_timeout_seconds - time.monotonic()
        if not self.is_reachable.wait(max(0.0, left_seconds)):
            raise self._unreachable()
        if self.refusal is not None:
            raise self.refusal

    def _unreachable(self) -> UnreachableError:
        return UnreachableError(
            self._config.url,
            self._config.connect_timeout_seconds,
            self._last_messages(),
        )
