"""The embedded name service's own thread, and its clock."""

from __future__ import annotations

import threading

import pytest

from haservices import HAConfig, campaign, open_ha_services
from haservices.client_services import ClientHAServices
from haservices.control import LeadershipControl
from haservices.embedded import link_of
from nameservice import ConfigurationError, LocalProtocolError


TIMEOUT_SECONDS = 20.0


class TestClock:
    """The hub's clock stands still while its thread does not run."""

    def test_a_stalled_process_loses_no_leadership(self) -> None:
        """E9: what stops the name service and its clients together is no silence."""
        config = HAConfig(
            url="embedded:", session_timeout_seconds=0.4, lease_seconds=0.1
        )
        with (
            open_ha_services(config) as ha,
            campaign(ha, "job", "a:1", TIMEOUT_SECONDS) as leadership,
        ):
            assert isinstance(ha, ClientHAServices)
            hub = link_of(ha).hub
            woken = threading.Event()

            def stall() -> None:
                # Real time must pass here, four session timeouts of it, in which the
                # hub's thread can do nothing.
                assert not threading.Event().wait(1.6)
                woken.set()

            hub.post(stall)
            assert woken.wait(TIMEOUT_SECONDS)
            (contender,) = ha.operations.contenders("job")
            assert contender.is_leader
            leadership.check()
            assert not leadership.lost.is_set()


class TestThread:
    """One thread for all services of a name, while there are any."""

    def test_the_thread_ends_with_the_last_service(self) -> None:
        """Services come and go; what is stored stays, the thread does not."""

        def hubs() -> list[threading.Thread]:
            return [t for t in threading.enumerate() if t.name == "embedded-thread"]

        for version in (1, 2):
            with (
                open_ha_services("embedded:thread") as one,
                open_ha_services("embedded:thread") as other,
                campaign(one, "job", "a:1", TIMEOUT_SECONDS) as leadership,
            ):
                assert len(hubs()) == 1
                one.get_leader_store("job").put("x", b"", session=leadership.session)
                found = other.get_leader_store("job").get("x")
                assert found is not None
                assert found.version == version
            assert hubs() == []


class TestControl:
    """Leadership control refuses what it cannot control."""

    def test_closed_services_are_an_error(self) -> None:
        """Nothing waits for a thread that has ended."""
        with open_ha_services("embedded:") as ha:
            control = LeadershipControl(ha)
        with pytest.raises(LocalProtocolError, match="closed"):
            control.cut(ha)

    def test_names_are_checked(self) -> None:
        """A job id that cannot be one is refused as everywhere else."""
        with open_ha_services("embedded:") as ha:
            control = LeadershipControl(ha)
            with pytest.raises(ConfigurationError, match="job id"):
                control.revoke("a/b")
