"""What a server on an event loop tells of itself while that ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from nameservice import LocalProtocolError, UnreachableError
from nameservice.loop_observation import observe_on_loop
from nameservice.observation import Observation


SEEN = Observation(role="gateway", figures={}, problem=None)
WAIT_SECONDS = 30.0


class Stage:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_looking = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        await self._stop.wait()

    def end(self) -> None:
        """End the loop, and cancel what it still does."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def look(self) -> Observation:
        """Return what is seen at once."""
        return SEEN

    async def look_for_ever(self) -> Observation:
        """Never return."""
        self.is_looking.set()
        await asyncio.Event().wait()
        return SEEN


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Return a loop that runs."""
    made = Stage()
    yield made
    made.end()


def test_what_is_seen_is_told(stage: Stage) -> None:
    """The observer waits in its own thread."""
    seen = observe_on_loop(
        stage.look, stage.loop, target="here", timeout_seconds=WAIT_SECONDS
    )
    assert seen is SEEN


def test_a_loop_that_has_ended_is_told(stage: Stage) -> None:
    """A scrape that comes a moment late finds a server that does not run."""
    stage.end()
    with pytest.raises(LocalProtocolError, match="the server at here is not running"):
        observe_on_loop(
            stage.look, stage.loop, target="here", timeout_seconds=WAIT_SECONDS
        )


def test_a_loop_that_ends_meanwhile_is_told(stage: Stage) -> None:
    """What is cancelled at the end of a server is no mistake of the observer's."""

    def end() -> None:
        assert stage.is_looking.wait(WAIT_SECONDS)
        stage.end()

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(LocalProtocolError, match="the server at here is not running"):
        observe_on_loop(
            stage.look_for_ever, stage.loop, target="here", timeout_seconds=WAIT_SECONDS
        )
    ending.join()


def test_a_thread_that_is_late_is_told(stage: Stage) -> None:
    """The observer does not wait for ever."""
    with pytest.raises(UnreachableError):
        observe_on_loop(
            stage.look_for_ever, stage.loop, target="here", timeout_seconds=0.01
        )
