"""What a client says of itself when its thread did not run in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import pytest
from structlog.testing import capture_logs

from leaderserver.client.client import LeaderClient
from leaderserver.client.core.config import ClientConfig
from leaderserver.messages import Hello, Welcome
from nameservice import ManualClock
from nameservice.clock import NS_PER_MS, NS_PER_SECOND


if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any

    from leaderserver.messages import ToServer


@final
class _StillLink:
    """A link without a thread: what is posted is done at once, by the poster."""

    def __init__(self, client: LeaderClient) -> None:
        self.client = client
        self.sent: list[ToServer] = []

    def post(self, action: Callable[[], None]) -> None:
        """Do it now."""
        action()

    def send(self, message: ToServer) -> None:
        """Keep it."""
        self.sent.append(message)

    def connect_publisher(self, welcome: Welcome) -> None:
        """Do nothing."""

    def join_topic(self, component_id: str) -> None:
        """Do nothing."""

    def leave_topic(self, component_id: str) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


@final
class _Scene:
    """A client with a session, and the clock that it reads."""

    def __init__(self) -> None:
        self.clock = ManualClock(NS_PER_SECOND)
        self.links: list[_StillLink] = []

        def link_factory(client: LeaderClient) -> _StillLink:
            self.links.append(_StillLink(client))
            return self.links[-1]

        self.client = LeaderClient(
            ClientConfig(
                target="leaderserver://tests:1",
                client="tests",
                session_timeout_ns=9 * NS_PER_SECOND,
                lease_ns=NS_PER_SECOND // 2,
                clears_on_suspended=False,
                seed=bytes(32),
            ),
            clock=self.clock,
            link_factory=link_factory,
            connect_timeout_seconds=1.0,
        )
        self.client.opened()
        (hello,) = self.links[0].sent
        assert isinstance(hello, Hello)
        self.client.received(
            Welcome(
                nonce=hello.nonce,
                secret=bytes(32),
                session_id="s",
                session_timeout_ns=9 * NS_PER_SECOND,
                lease_ns=NS_PER_SECOND // 2,
                incarnation=7,
                publish_port=0,
                publish_address=None,
                is_durable=False,
            )
        )
        self.client.advance()
        self.began_ns = self.clock.now_ns()

    def due_ns(self) -> int:
        """Return when the client wants to be advanced."""
        due_ns = self.client.next_deadline_ns()
        assert due_ns is not None
        return due_ns

    def late_by(self, late_ns: int) -> list[MutableMapping[str, Any]]:
        """Advance the client that much too late; return what it logs of stalls."""
        self.clock.advance(max(0, self.due_ns() - self.clock.now_ns()) + late_ns)
        with capture_logs() as logs:
            self.client.advance()
        return [line for line in logs if line["event"] == "client.stalled"]


def _quiet_scene() -> _Scene:
    """Return a client that has listened for a moment: it sends heartbeats seldom."""
    scene = _Scene()
    while scene.due_ns() < scene.began_ns + 2 * NS_PER_SECOND:
        assert scene.late_by(0) == []
    return scene


@pytest.mark.proves("E4")
def test_a_stall_is_told_with_its_length() -> None:
    """Who leads no more since its process stood finds that in its own log (E4)."""
    tolerated_ns = 6 * NS_PER_SECOND  # two thirds of the session timeout
    assert _quiet_scene().late_by(tolerated_ns) == []
    (stalled,) = _quiet_scene().late_by(tolerated_ns + 5 * NS_PER_MS)
    assert stalled["log_level"] == "warning"
    assert stalled["duration_ms"] == 6_005


@pytest.mark.proves("E4")
def test_a_contender_has_less_time() -> None:
    """It sends a heartbeat every fifth of the lease: two of them are 0.2 s (E4)."""
    scene = _Scene()
    scene.client.add_contender(
        "a-contender",
        "job",
        confirm_timeout_ns=NS_PER_SECOND,
        on_added=lambda *_: None,
        deliver=lambda _: None,
        fail=lambda _: None,
    )
    assert scene.late_by(200 * NS_PER_MS) == []
    (stalled,) = scene.late_by(201 * NS_PER_MS)
    assert stalled["duration_ms"] == 201
