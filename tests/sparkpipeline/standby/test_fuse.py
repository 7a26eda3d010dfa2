"""The deadline that ends a driver's JVM, with a JVM of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

from sparkpipeline.standby.fuse import HALT_EXIT_CODE, JVMFuse
from tests.recording import WAIT_SECONDS, wait_until


pytestmark = [pytest.mark.shells, pytest.mark.proves("H3")]

SECONDS = 0.2


@pytest.fixture
def gateway() -> Iterator[JavaGateway]:
    """Yield the way to a JVM, which is ended with the test."""
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    yield gateway
    gateway.proc.kill()
    gateway.proc.wait()
    gateway.shutdown()
    gateway.proc.stdin.close()


def exit_code(gateway: Any) -> int:
    """Return what the JVM has ended with, waiting for that."""
    code = gateway.proc.wait(WAIT_SECONDS)
    assert isinstance(code, int)
    return code


def hold_timer(gateway: Any, fuse: JVMFuse) -> None:
    """Have the JVM's own deadline come too late, as where Python wakes first."""
    latch = gateway.jvm.java.util.concurrent.CountDownLatch(1)
    runnable = gateway.jvm.java.lang.Class.forName("java.lang.Runnable")
    waiting = gateway.jvm.java.beans.EventHandler.create(runnable, latch, "await")
    fuse._timers.execute(waiting)


def test_a_jvm_of_which_python_is_silent_ends(gateway: JavaGateway) -> None:
    """H3: by itself, with the code that says to start the driver again."""
    JVMFuse(gateway, SECONDS).renew()
    assert exit_code(gateway) == HALT_EXIT_CODE


@pytest.mark.nightly
def test_one_that_wakes_after_python_ends_all_the_same(gateway: JavaGateway) -> None:
    """H3: Python takes no deadline back that had passed."""
    fuse = JVMFuse(gateway, SECONDS)
    hold_timer(gateway, fuse)
    fuse.renew()
    wait_until(fuse.is_overdue)
    with pytest.raises(OSError, match="had passed"):
        fuse.renew()
    assert exit_code(gateway) == HALT_EXIT_CODE
    assert fuse.is_overdue()


def test_one_that_is_told_in_time_goes_on(gateway: JavaGateway) -> None:
    """H3: and one that need not be told any more."""
    fuse = JVMFuse(gateway, WAIT_SECONDS)
    for _ in range(3):
        fuse.renew()
        assert not fuse.is_overdue()
    fuse.close()
    fuse.check()
    assert gateway.proc.poll() is None
