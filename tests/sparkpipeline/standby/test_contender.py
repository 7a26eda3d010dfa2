"""A driver's part in the election, without a driver."""

from __future__ import annotations

import queue
import threading
from typing import Any
from uuid import UUID

import pytest

from haservices import open_ha_services
from haservices.testing import LeadershipControl
from sparkpipeline.standby.contender import DriverContender
from sparkpipeline.standby.core import Granted, LeadershipRevoked
from tests.recording import WAIT_SECONDS


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = WAIT_SECONDS / 3


@pytest.mark.proves("H1", "E7")
@pytest.mark.parametrize("is_stopped_early", [True, False])
def test_a_driver_that_is_to_end_leaves_whatever_it_is_granted(
    monkeypatch: pytest.MonkeyPatch, *, is_stopped_early: bool
) -> None:
    """H1, E7: a signal may come while it confirms; else the next would never lead."""
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with open_ha_services("embedded:") as ha:
        election = ha.get_leader_election("job")
        contender = DriverContender(election, "address", told.put)
        confirm = election.confirm_leadership

        def confirm_slowly(leader_session_id: UUID, address: str) -> None:
            confirm(leader_session_id, address)
            if is_stopped_early:
                contender.is_idle.set()
            told.put("confirmed")

        monkeypatch.setattr(election, "confirm_leadership", confirm_slowly)
        election.start(contender)
        assert told.get(timeout=WAIT_SECONDS) == "confirmed"
        if not is_stopped_early:
            assert isinstance(told.get(timeout=WAIT_SECONDS), Granted)
            contender.is_idle.set()
        closing = threading.Thread(target=election.close, daemon=True)
        closing.start()
        closing.join(TIMEOUT_SECONDS)
        is_left = not closing.is_alive()
        contender.is_idle.set()  # else this test would never end
        assert is_left
        # Nothing that it was granted is begun any more.
        assert isinstance(told.get(timeout=WAIT_SECONDS), LeadershipRevoked)
        assert told.empty()


@pytest.mark.proves("H1", "E8")
def test_a_driver_that_is_revoked_before_it_has_confirmed_contends_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H1, E8: nothing is to be stopped for it, and it leads when its turn comes."""
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with open_ha_services("embedded:") as ha:
        election = ha.get_leader_election("job")
        contender = DriverContender(election, "address", told.put)
        confirm = election.confirm_leadership
        lost: list[UUID] = []

        def confirm_late(leader_session_id: UUID, address: str) -> None:
            if not lost:
                lost.append(leader_session_id)
                LeadershipControl(ha).revoke("job")
            confirm(leader_session_id, address)

        monkeypatch.setattr(election, "confirm_leadership", confirm_late)
        election.start(contender)
        try:
            assert isinstance(told.get(timeout=WAIT_SECONDS), LeadershipRevoked)
            granted = told.get(timeout=WAIT_SECONDS)
        finally:
            contender.is_idle.set()  # else this test would never end
        assert isinstance(granted, Granted)
        assert granted.session.leader_session_id not in lost
