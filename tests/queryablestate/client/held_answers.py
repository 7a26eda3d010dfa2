"""Answers, and a thread that receives them, which wait until they are told to go on."""

from __future__ import annotations

import threading
from typing import Any, final

from queryablestate.wire.questions import Ask
from tests.queryablestate.scripted_proxy import Reply, ScriptedProxy
from tests.queryablestate.scripted_state import ScriptedState
from tests.recording import WAIT_SECONDS


@final
class Held:
    """Questions that a proxy answers when it is told to."""

    def __init__(self, proxy: ScriptedProxy, state: ScriptedState) -> None:
        self._proxy = proxy
        self._state = state
        self._held: list[tuple[bytes, Ask, bytes]] = []
        self._came = threading.Semaphore(0)
        self.hold()

    def hold(self) -> None:
        """Hold what comes from now on."""
        self._state.on_ask = self._hold

    def _hold(self, ask: Ask, payload: bytes) -> Reply:
        self._held.append((self._proxy.last_routing_id, ask, payload))
        self._came.release()
        return [b"LDQ"]

    def wait_for_one(self) -> None:
        """Return once another has come."""
        assert self._came.acquire(timeout=WAIT_SECONDS)

    def answer(self, *numbers: int) -> None:
        """Answer those of them, in that order, and from now on all that come."""
        self._state.on_ask = None
        for number in numbers:
            routing_id, ask, payload = self._held[number]
            answer = self._state.answer(ask, payload)
            self._proxy.call(lambda r=routing_id, a=answer: self._proxy.send(r, a))  # type: ignore[misc]  # a default binds


@final
class PausedPoll:
    """A poll object whose first wait begins when it is told to."""

    def __init__(self, poll: Any) -> None:
        self._poll = poll
        self.is_paused = threading.Event()
        self.go_on = threading.Event()

    def poll(self, wait_ms: int) -> list[tuple[int, int]]:
        """Wait as the other one does, once that may begin."""
        self.is_paused.set()
        assert self.go_on.wait(WAIT_SECONDS)
        ready: list[tuple[int, int]] = self._poll.poll(wait_ms)
        return ready
