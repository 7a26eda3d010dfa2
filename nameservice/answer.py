"""`Answer`: what one thread waits for, and an event loop gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["Answer", "wait_for_any"]

T = TypeVar("T")


@final
class Answer(Generic[T]):
    """
    Does as a `concurrent.futures.Future` does, and holds no lock.  Thread-safe.

    That one holds a lock while a wait begins, and while it ends, which the loop needs
    to complete it.  A signal handler that comes just then may close the services, and
    wait for the loop: it would wait for ever.
    """

    def __init__(self) -> None:
        self._outcome: tuple[T | None, BaseException | None] | None = None
        self.given = InterruptibleEvent()

    def done(self) -> bool:
        """Return whether there is a result, or an error."""
        return self._outcome is not None

    def set_result(self, result: T) -> None:
        """Give the result; what was given before counts."""
        self._give(result, None)

    def set_exception(self, error: BaseException) -> None:
        """Give the error; what was given before counts."""
        self._give(None, error)

    def result(self, timeout_seconds: float | None = None) -> T:
        """
        Wait for the result, and return it.

        Raises:
            TimeoutError: If there is none within *timeout_seconds*.
            BaseException: The error, if that was given.
        """
        self.given.wait(timeout_seconds)
        if self._outcome is None:
            raise TimeoutError
        result, error = self._outcome
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # there is one or the other

    def _give(self, result: T | None, error: BaseException | None) -> None:
        if self._outcome is None:
            self._outcome = (result, error)
        self.given.set()


def wait_for_any(answers: Sequence[Answer[Any]], timeout_seconds: float) -> None:
    """Return when one of *answers* was given, or after *timeout_seconds*."""
    InterruptibleEvent.wait_for_any(
        [answer.given for answer in answers], timeout_seconds
    )
