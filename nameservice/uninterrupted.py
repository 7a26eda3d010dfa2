"""
`uninterrupted`: what no exception of a signal handler may break off.

Python runs signal handlers on the main thread only.  What has to be whole, and is rare,
is done on another, at the cost of a thread (some 50 us).
"""

from __future__ import annotations

import _thread
import threading
from typing import TYPE_CHECKING, Final, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["uninterrupted"]

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
    # Without `threading.current_thread`: it makes an object for each thread that asks.
    if threading.get_ident() != threading.main_thread().ident:
        return action()
    over = threading.Lock()
    over.acquire()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 (it is raised by who waits)
            errors.append(error)
        finally:
            over.release()

    interruption: BaseException | None = None
    is_begun = False
    while not (results or errors):
        try:
            if not is_begun:
                is_begun = True
                _thread.start_new_thread(run, ())
            over.acquire()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
                run()  # better here than not at all
            else:
                interruption = error
    if interruption is not None:
        if results:
            uninterrupted(lambda: undo(results[0]))
        raise interruption
    if errors:
        raise errors[0]
    return results[0]
