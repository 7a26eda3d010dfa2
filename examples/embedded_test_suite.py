"""
A test suite of yours, with an election and without a server.

The fixtures come with lodestar.  Run it as ``pytest examples/embedded_test_suite.py``.
"""

from __future__ import annotations

import pytest

from haservices import HAServices, campaign
from haservices.testing import LeadershipControl
from nameservice import LeadershipLostError


def test_the_leader_is_found_and_deposed(
    ha_services: HAServices, leadership_control: LeadershipControl
) -> None:
    """The leader is found; once it is deposed, it knows."""
    with (
        campaign(ha_services, "flights", "10.0.0.7:8000") as leadership,
        ha_services.get_leader_retriever("flights") as retriever,
    ):
        assert retriever.wait_for_leader(timeout_seconds=10).address == "10.0.0.7:8000"
        leadership.check()
        leadership_control.revoke("flights")
        assert leadership.lost.wait(timeout=10)
        with pytest.raises(LeadershipLostError):
            leadership.check()
