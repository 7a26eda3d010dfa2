"""
`uninterrupted` and `detached`: what no exception of a signal handler may break off.

Python runs signal handlers on the main thread only, between any two steps of what that
does: within the taking of a lock, too.  What has to be whole, and is rare, is done on
another thread, at the cost of some 60 us.  So the main thread holds no lock of ours,
and a signal handler may call whatever it likes.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["detached", "uninterrupted"]

T = TypeVar("T")

_NO_THREAD: Final = "can't start new thread"


def uninterrupted(
    action: Callable[[], T], *, undo: Callable[[T], object] = lambda _: None
) -> T:
    """
    Do *action* to its end, and return what it returns.

    What a signal handler raises meanwhile is raised then, in place of the result.

    Args:
        action: Must not wait for the main thread, nor for a lock that it holds.
        undo: Is given the result if that is not returned; it is done to its end, too.
    """
    if not _is_interruptible():
        return action()
    errand = _Errand(action)
    interruption: BaseException | None = None
    while not errand.is_over:
        try:
            try:
                _thread.start_new_thread(errand.run, ())
            except RuntimeError as error:
                if _NO_THREAD not in str(error):
                    raise
                errand.run()  # better here than not at all
            errand.over.acquire()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            interruption = error
    if interruption is not None:
        if errand.results:
            uninterrupted(lambda: undo(errand.results[0]))
        raise interruption
    return errand.outcome()


def detached(
    action: Callable[[], T], *, undo: Callable[[T], object] = lambda _: None
) -> T:
    """
    Do *action*, which may take long, and return what it returns.

    What a signal handler raises meanwhile is raised at once, and *action* goes on.

    Args:
        action: Must not wait for the main thread, nor for a lock that it holds.
        undo: Is given the result if that is not returned.
    """
    if not _is_interruptible():
        return action()
    errand = _Errand(action)
    # Two may find that there is a result, and that none waits for it: one takes this.
    undoing = [undo]

    def undo_once() -> None:
        if errand.results and errand.is_abandoned:
            with contextlib.suppress(IndexError):
                undoing.pop()(errand.results[0])

    def run() -> None:
        errand.run()
        undo_once()

    def begin() -> None:
        try:
            threading.Thread(target=run, name="detached", daemon=True).start()
        except RuntimeError:  # the process may have no more of them
            run()

    try:
        try:
            # What `threading` makes is started there: an exception amid that lames it.
            _thread.start_new_thread(begin, ())
        except RuntimeError as error:
            if _NO_THREAD not in str(error):
                raise
            begin()
        errand.over.acquire()
        return errand.outcome()
    except BaseException:
        errand.is_abandoned = True
        undo_once()
        raise


def _is_interruptible() -> bool:
    # Without `threading.current_thread`: it makes an object for each thread that asks.
    return threading.get_ident() == threading.main_thread().ident


@final
class _Errand(Generic[T]):
    """
    An action on another thread, in the context of who asks for it.

    Attributes:
        over: Held until it is over.
        results: What it returned, if it did.
        is_abandoned: Whether who asked for it waits no more.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self._actions = [action]
        self._context = contextvars.copy_context()
        self.over = threading.Lock()
        self.over.acquire()
        self.results: list[T] = []
        self.is_abandoned = False
        self._errors: list[BaseException] = []

    @property
    def is_over(self) -> bool:
        """Return whether there is an outcome."""
        return bool(self.results or self._errors)

    def run(self) -> None:
        """Do it, once; the threads that come too late find nothing to do."""
        try:
            action = self._actions.pop()
        except IndexError:
            return
        try:
            self.results.append(self._context.run(action))
        except BaseException as error:  # noqa: BLE001 (it is raised by who waits)
            self._errors.append(error)
        finally:
            self.over.release()

    def outcome(self) -> T:
        """Return what it returned, or raise what it raised; once."""
        if self._errors:
            raise self._errors.pop()
        return self.results[0]
