"""Long-running verbs hear of every signal (N7)."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Final

import pytest


pytestmark = pytest.mark.shells

PREPARE: Final = """
import queue, signal, threading, time
from lodestar.signals import stop_signals
heard = queue.SimpleQueue()
"""
OTHER_THREAD: Final = """
def send():
    time.sleep(0.2)  # the main thread waits by then
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with stop_signals(heard.put):
    threading.Thread(target=send).start()
    print(heard.get().name)
"""
TWICE: Final = """
for _ in range(2):
    with stop_signals(heard.put):
        signal.raise_signal(signal.SIGINT)
        print(heard.get().name)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
IGNORED: Final = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with stop_signals(heard.put):
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    print(heard.get().name)
with stop_signals(heard.put, takes_hangup=True):
    signal.raise_signal(signal.SIGHUP)
    print(heard.get().name)
print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
"""


def printed_by(program: str) -> list[str]:
    """Return the lines that *program* prints."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.proves("N7")
def test_a_signal_to_another_thread_is_heard() -> None:
    """The main thread waits, and nothing interrupts it."""
    assert printed_by(OTHER_THREAD) == [signal.SIGTERM.name]


@pytest.mark.proves("N7")
def test_what_was_before_is_restored() -> None:
    """It can be entered again."""
    assert printed_by(TWICE) == [signal.SIGINT.name] * 2 + ["True"]


@pytest.mark.proves("N7")
def test_an_ignored_hangup_stays_ignored() -> None:
    """Unless it has a meaning of its own."""
    assert printed_by(IGNORED) == ["SIGTERM", "SIGHUP", "True"]
