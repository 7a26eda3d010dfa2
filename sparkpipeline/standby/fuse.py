"""
Ends the driver's JVM when its Python part falls silent, or says so.

A driver is two processes.  Python knows who leads; the JVM runs the queries, and goes
on with those that need no Python while Python is stopped or gone.  So Python sets the
JVM a deadline, and moves it forward again and again.  The JVM keeps it by itself: with
a scheduled ``Runtime.halt``, made of method handles, for there is no class of ours in
it.  After a pause of both processes the deadline has passed, and the JVM ends at once.
So it does after a pause of its own, for it cannot tell one from the other.

Either may wake first.  Python does not take back a deadline that had passed: if the JVM
has not ended by itself yet, Python ends it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, final

from nameservice import get_logger


if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway


__all__ = ["HALT_EXIT_CODE", "JVMFuse"]

HALT_EXIT_CODE: Final = 75
"""Of a driver that ended itself: start it again, and it is a standby (EX_TEMPFAIL)."""

_HALT_TIMEOUT_SECONDS: Final = 2.0


@final
class JVMFuse:
    """
    A deadline after which a JVM ends itself.  For one thread.

    Args:
        gateway: To the JVM.
        seconds: How far ahead `renew` puts the deadline.
    """

    def __init__(self, gateway: JavaGateway, seconds: float) -> None:
        jvm: Any = gateway.jvm
        self._halt = _halting(jvm, gateway)
        self._runtime = jvm.java.lang.Runtime.getRuntime()
        self._timers = jvm.java.util.concurrent.Executors.newScheduledThreadPool(1)
        self._unit = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        self._delay_ms = max(int(seconds * 1_000), 1)
        self._pending: Any = None
        self._renewed_seconds: float | None = None

    def renew(self) -> None:
        """
        Put the deadline ahead.

        Raises:
            Py4JError: If the JVM is gone, or does not answer.
            OSError: Likewise; or the deadline had passed, and the JVM is ended now.
        """
        began_seconds = time.monotonic()
        before = self._pending
        self._pending = self._timers.schedule(self._halt, self._delay_ms, self._unit)
        if before is not None:
            before.cancel(False)  # noqa: FBT003 (Java's interface)
        # After that: a pause until here was one under the deadline that is taken back.
        if self.is_overdue():
            self.blow()
            raise TimeoutError("the deadline had passed")
        self._renewed_seconds = began_seconds

    def is_overdue(self) -> bool:
        """Return whether the deadline passed before it was put ahead again."""
        if self._renewed_seconds is None:
            return False
        silent_seconds = time.monotonic() - self._renewed_seconds
        return silent_seconds * 1_000 >= self._delay_ms

    def check(self) -> None:
        """Return if the JVM answers; raise what py4j does if it does not."""
        self._runtime.availableProcessors()

    def disarm(self) -> None:
        """Have no deadline until the next `renew`."""
        if self._pending is not None:
            self._pending.cancel(False)  # noqa: FBT003 (Java's interface)
            self._pending = None
            self._renewed_seconds = None

    def blow(self) -> None:
        """End the JVM now; return when it is gone, or hangs."""

        def halt() -> None:
            try:
                self._runtime.halt(HALT_EXIT_CODE)
            except Exception as error:  # noqa: BLE001 - it is gone, which is what was wanted
                get_logger(component="standby").debug("jvm.ended", error=str(error))

        thread = threading.Thread(target=halt, name="halt", daemon=True)
        thread.start()
        thread.join(_HALT_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Disarm it, and end its thread."""
        self.disarm()
        self._timers.shutdownNow()


def _halting(jvm: Any, gateway: Any) -> Any:
    """Return a ``Runnable`` that ends the JVM without its shutdown hooks."""
    lang = jvm.java.lang
    kind = lang.invoke.MethodType.methodType(lang.Void.TYPE, lang.Integer.TYPE)
    runtime = lang.Class.forName("java.lang.Runtime")
    method = (
        lang.invoke.MethodHandles.publicLookup()
        .findVirtual(runtime, "halt", kind)
        .bindTo(lang.Runtime.getRuntime())
    )
    code = gateway.new_array(lang.Object, 1)
    code[0] = HALT_EXIT_CODE
    method = lang.invoke.MethodHandles.insertArguments(method, 0, code)
    return lang.invoke.MethodHandleProxies.asInterfaceInstance(
        lang.Class.forName("java.lang.Runnable"), method
    )
