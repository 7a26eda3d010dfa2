"""What the embedded name service does that the conformance suite does not look at."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from haservices import HAConfig, open_ha_services
from haservices.embedded import link_of
from haservices.testing import LeadershipControl
from nameservice import UnreachableError
from tests.exhausted_threads import no_more_threads
from tests.opening import open_patiently
from tests.recording import (
    WAIT_SECONDS,
    ConfirmingContender,
    Record,
    RecordingListener,
    wait_until,
)


if TYPE_CHECKING:
    from haservices import HAServices
    from haservices.client_services import ClientHAServices


class TestEmbeddedHub:
    def test_what_a_closed_client_left_does_not_stop_the_next(self) -> None:
        """E7: closed while it was cut off, it leaves a session that has to time out."""
        config = HAConfig(
            url="embedded:left-behind",
            session_timeout_seconds=60.0,
            connect_timeout_seconds=0.2,
        )
        left = open_patiently(config)
        LeadershipControl(left).cut(left)
        left.close()
        # Longer than the hub's clock takes for a stall, so that there is one to excuse.
        time.sleep(1.0)  # noqa: TID251
        with open_ha_services(config.url) as ha:
            assert ha.operations.status()["sessions"] in {1, 2}
            election = ha.get_leader_election("job")
            contender = ConfirmingContender(election, "a:1")
            election.start(contender)
            contender.wait_for_confirm()

    def test_hub_that_does_not_run_is_out_of_reach(self) -> None:
        """R3: it is told as for a server that does not answer, and nothing is left."""
        url = "embedded:stuck"
        go_on = threading.Event()

        def stand_still() -> None:
            go_on.wait()

        with open_ha_services(url) as ha:
            link_of(cast("ClientHAServices", ha)).hub.post(stand_still)
            try:
                with pytest.raises(UnreachableError, match=url):
                    open_ha_services(HAConfig(url=url, connect_timeout_seconds=0.1))
            finally:
                go_on.set()
            wait_until(lambda: len(ha.operations.sessions()) == 1)

    def test_services_that_come_while_the_last_one_leaves(self) -> None:
        """E1: one thread at a time runs the hub, while others come and go."""
        url = "embedded:coming-and-going"
        names: Record[set[str]] = Record()
        faults: Record[Exception] = Record()

        def come_and_go() -> None:
            try:
                for _ in range(100):
                    with open_ha_services(url) as ha:
                        names.add({item.client for item in ha.operations.sessions()})
            except Exception as error:  # noqa: BLE001 - the test looks at it
                faults.add(error)

        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert faults.items == ()
        assert len(names.items) == 400
        running = [thread.name for thread in threading.enumerate()]
        assert "embedded-coming-and-going" not in running

    @pytest.mark.proves("E7", "R2")
    def test_a_service_that_comes_while_the_others_are_told_of_a_leader(self) -> None:
        """E7, R2: they are told at once all the same, and so is who leads next."""
        # No heartbeat tells of it while the test runs.
        config = HAConfig(
            url="embedded:newcomer",
            session_timeout_seconds=3_600.0,
            lease_seconds=1_800.0,
        )
        newcomers: Record[HAServices] = Record()
        newcomer = threading.Thread(
            target=lambda: newcomers.add(open_patiently(config))
        )

        class Topics(set[str]):
            """Those of the one that is told first; then there is one more to tell."""

            def __contains__(self, topic: object) -> bool:
                if newcomer.ident is None:
                    newcomer.start()
                    wait_until(lambda: len(hub._links) == 3)
                return super().__contains__(topic)

        with open_patiently(config) as first, open_patiently(config) as ha:
            link = link_of(cast("ClientHAServices", first))
            hub = link.hub
            leading = first.get_leader_election("job")
            leader = ConfirmingContender(leading, "a:1")
            leading.start(leader)
            leader.wait_for_confirm()
            following = ha.get_leader_election("job")
            successor = ConfirmingContender(following, "b:1")
            following.start(successor)
            wait_until(lambda: len(following.contenders()) == 2)
            ha.get_leader_retriever("job").start(listener := RecordingListener())
            listener.wait_for_leader(lambda told: told is not None)
            link.topics = Topics(link.topics)
            leading.close()
            successor.wait_for_confirm()
            listener.wait_for_leader(lambda told: told is None)
            newcomer.join(WAIT_SECONDS)
            newcomers.wait_for_count(1)[0].close()

    def test_a_process_that_may_have_no_more_threads(self) -> None:
        """It is told so, and what is opened once there is room again works."""
        url = "embedded:no-threads"
        with (
            no_more_threads("embedded-no-threads"),
            pytest.raises(RuntimeError, match="new thread"),
        ):
            open_ha_services(url)
        with open_patiently(HAConfig(url=url)) as ha:
            assert len(ha.operations.sessions()) == 1
