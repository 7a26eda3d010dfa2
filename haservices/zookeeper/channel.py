"""`ZooKeeperChannel`: one question at a time, so that an answer fits what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, final

from nameservice import NameServiceError


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


__all__ = ["ZooKeeperChannel"]

T = TypeVar("T")


@final
class ZooKeeperChannel:
    """
    Waits for one answer at a time; for the event loop alone.

    Args:
        on_idle: Called after each answer was taken, to ask the next question.
        on_failed: Takes the errors that were not expected.
    """

    def __init__(
        self, on_idle: Callable[[], None], on_failed: Callable[[Exception], None]
    ) -> None:
        self._on_idle = on_idle
        self._on_failed = on_failed
        self._awaited: object | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether an answer is being waited for."""
        return self._awaited is not None

    def ask(
        self,
        asked: Future[T],
        answered: Callable[[T], None],
        *,
        failed: Callable[[Exception], bool] | None = None,
    ) -> None:
        """
        Wait for the answer to a question that was just asked.

        Args:
            asked: The answer.
            answered: Takes it; may ask the next question itself.
            failed: Takes an error instead, and returns whether it was expected.
        """
        assert not self.is_busy
        self._awaited = asked

        def done(future: Future[T]) -> None:
            if self._awaited is not asked:
                return  # no longer waited for
            self._awaited = None
            try:
                answered(future.result())
            except NameServiceError as error:
                if failed is None or not failed(error):
                    self._on_failed(error)
            self._on_idle()

        asked.add_done_callback(done)

    def forget(self) -> None:
        """Wait no more: the answer is dropped if it ever comes."""
        self._awaited = None
