"""
`uninterrupted` and `detached`: what no exception of a signal handler may break off.

Python runs signal handlers on the main thread only, between any two steps of what that
does: within the taking of a lock, too.  What has to be whole, and is rare, is done on
another thread, at the cost of some 60 us.  So the main thread holds no lock of ours,
and a signal handler may call what it likes.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import sys
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Errand", "detached", "uninterrupted"]

T = TypeVar("T")

# Of "can't start new thread", and of "can't create new thread at interpreter shutdown".
_NO_THREAD: Final = "new thread"


@final
class Errand(Generic[T]):
    """
    An action on a thread of its own, in the context of who makes the errand.

    That thread is none of `threading`: an exception amid the making of one lames it,
    and one that is freed on the main thread swallows what a handler raises.

    Args:
        action: Must not wait for the main thread, nor for a lock that it holds.
        on_over: Called at the end, on the same thread; must not raise.

    Attributes:
        over: Held until it is over.
        results: What it returned, if it did.
    """

    def __init__(
        self, action: Callable[[], T], on_over: Callable[[], object] = lambda: None
    ) -> None:
        # Taken by who does it: what is called at its end may refer to this errand.
        self._tasks = [(action, on_over)]
        self._context = contextvars.copy_context()
        self._errors: list[BaseException] = []
        self.results: list[T] = []
        self.over = threading.Lock()
        self.over.acquire()

    @property
    def is_over(self) -> bool:
        """Return whether there is an outcome."""
        return bool(self.results or self._errors)

    def begin(self) -> None:
        """Begin, unless that was done.  Where no thread may begin it is done here."""
        if sys.is_finalizing():  # a thread would begin, and never run
            self._run()
            return
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            self._run()
            if _NO_THREAD not in str(error):
                raise  # it is a signal handler's

    def outcome(self) -> T:
        """Return what it returned, or raise what it raised; once."""
        if self._errors:
            raise self._errors.pop()
        return self.results[0]

    def _run(self) -> None:
        try:
            action, on_over = self._tasks.pop()
        except IndexError:
            return  # it was begun before
        try:
            self.results.append(self._context.run(action))
        except BaseException as error:  # noqa: BLE001 (it is raised by who waits)
            self._errors.append(error)
        finally:
            _forget_thread()
            on_over()
            self.over.release()


def uninterrupted(action: Callable[[], T]) -> T:
    """
    Do *action* to its end, and return what it returns.

    What a signal handler raises meanwhile is raised then, in place of the result.

    Args:
        action: Must not wait for the main thread, nor for a lock that it holds.
    """
    if not _is_interruptible():
        return action()
    errand = Errand(action)
    interruption: BaseException | None = None
    while not errand.is_over:
        # Python handles what came meanwhile where a loop goes back, too: a second
        # signal is handled there, which is why there is a loop within.
        try:
            while not errand.is_over:
                try:
                    errand.begin()
                    errand.over.acquire()
                except BaseException as error:  # noqa: BLE001 (raised below)
                    interruption = error
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            interruption = error
    if interruption is not None:
        try:
            raise interruption
        finally:
            del interruption  # it refers to this frame, and would stay with it
    return errand.outcome()


def detached(
    action: Callable[[], T], *, undo: Callable[[T], object] = lambda _: None
) -> T:
    """
    Do *action*, which may take long, and return what it returns.

    What a signal handler raises meanwhile is raised at once, and *action* goes on.

    Args:
        action: Must not wait for the main thread, nor for a lock that it holds.
        undo: Is given the result if that is not returned, on a thread of its own.
    """
    if not _is_interruptible():
        return action()
    is_abandoned = False
    # Two may find that there is a result, and that none waits for it: one takes this.
    undoing = [undo]

    def undo_if_abandoned() -> None:
        if is_abandoned and errand.results:
            with contextlib.suppress(IndexError):
                undo_result = undoing.pop()
                Errand(lambda: undo_result(errand.results[0])).begin()

    errand = Errand(action, undo_if_abandoned)
    try:
        errand.begin()
        errand.over.acquire()
        return errand.outcome()
    except BaseException:
        is_abandoned = True
        undo_if_abandoned()
        raise


def _is_interruptible() -> bool:
    # Without `threading.current_thread`: it makes an object for each thread that asks.
    return (
        not sys.is_finalizing()
        and threading.get_ident() == threading.main_thread().ident
    )


def _forget_thread() -> None:
    """Remove what `threading` has made for this thread, as Python does from 3.13 on."""
    made = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    if isinstance(made, threading._DummyThread):  # noqa: SLF001
        threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]  # noqa: SLF001
