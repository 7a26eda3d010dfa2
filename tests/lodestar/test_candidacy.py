"""One election of ``lodestar elect``, and what happens to it at awkward moments."""

from __future__ import annotations

import threading
from typing import Any, final
from uuid import UUID

import pytest

from election import LeaderElection
from haservices import HAConfig, open_ha_services
from haservices.testing import LeadershipControl
from lodestar.candidacy import Candidacy
from nameservice.clock import NS_PER_SECOND
from nameservice.interruptible import InterruptibleQueue
from tests.lodestar.running import WAIT_SECONDS


pytestmark = pytest.mark.shells


@final
class Happenings(InterruptibleQueue[Any]):
    """What a candidacy is told, and how often it was told something."""

    def __init__(self) -> None:
        super().__init__()
        self._told = threading.Semaphore(0)

    def put(self, item: Any) -> None:
        """Note that something has happened."""
        super().put(item)
        self._told.release()

    def wait(self) -> None:
        """Wait until something more has happened."""
        assert self._told.acquire(timeout=WAIT_SECONDS)


@pytest.mark.proves("N7", "E5")
def test_a_revocation_before_the_same_leadership_was_granted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    N7, E5: contact that was gone for a moment while we confirmed ends no command.

    With ``on_suspended = "clear"`` we were revoked and granted the same leadership
    again before the command was started.  The revocation was still to be heard, was
    taken for one of the present, and ended the command that had just begun, and elect.
    """
    config = HAConfig(url="embedded:", on_suspended="clear")
    happenings = Happenings()
    with open_ha_services(config) as ha:
        control = LeadershipControl(ha)
        confirm = LeaderElection.confirm_leadership

        def confirm_late(
            election: LeaderElection, leader_session_id: UUID, address: str
        ) -> None:
            """Confirm; the answer comes when contact was gone, and is back."""
            happenings.wait()  # for the grant
            confirm(election, leader_session_id, address)
            control.cut(ha)
            happenings.wait()  # for the revocation
            control.heal(ha)
            happenings.wait()  # for the grant

        monkeypatch.setattr(LeaderElection, "confirm_leadership", confirm_late)
        candidacy = Candidacy(
            ha=ha,
            job="flights",
            address="a:1",
            command=("sh", "-c", "exit 7"),
            grace_ns=NS_PER_SECOND,
            happenings=happenings,
            health=None,
        )
        assert candidacy.run(give_up_seconds=float("inf")) == 7
        assert not candidacy.has_lost_leadership
