"""How long-running verbs hear that they shall end."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


__all__ = ["STOP_SIGNALS", "stop_signals"]

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def stop_signals(
    notify: Callable[[signal.Signals], None], *, takes_hangup: bool = False
) -> Iterator[None]:
    """
    Call *notify* for each signal that asks us to end, instead of dying of it.

    Enter it on the main thread, before anything is opened: no signal may then find
    something half open.

    Args:
        notify: Runs between any two instructions of the main thread, so it must take
            no lock: ``queue.SimpleQueue.put`` is made for that.
        takes_hangup: Whether SIGHUP has a meaning of its own here, and is wanted even
            where it was to be ignored.
    """

    def handle(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's arguments
        notify(signal.Signals(signal_number))

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        # Whoever started us with nohup wants to be left alone by SIGHUP.
        is_wanted = takes_hangup and number is signal.SIGHUP
        if is_wanted or before[number] is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
