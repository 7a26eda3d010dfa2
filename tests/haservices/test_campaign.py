from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast, final
from uuid import UUID

import pytest

from election import LeaderElection
from haservices.campaign import Leadership, campaign
from haservices.open_services import OpenServices
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    UnreachableError,
)
from tests.election.fakes import FakeElectionDriver, session
from tests.recording import WAIT_SECONDS, Record, wait_until


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from election import ContenderInformation, LeaderSession
    from election.holder import DeliverGrant, DeliverRevoke
    from haservices import HAServices


FIRST, SECOND, THIRD = session(1), session(2), session(3)


@final
class StumblingDriver:
    """A `FakeElectionDriver` whose first confirms fail as it is told."""

    def __init__(self, *faults: Exception) -> None:
        self.inner = FakeElectionDriver()
        self.confirm_count = 0
        self._faults = list(faults)
        self.services = OpenServices(lambda: None)

    def open(
        self,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Register."""
        self.inner.open(deliver, fail)

    def believes(self, leader_session_id: UUID) -> bool:
        """Return whether that leadership is held."""
        return self.inner.believes(leader_session_id)

    def belief_left_ns(self, leader_session_id: UUID) -> int:
        """Return how long that leadership is held."""
        return self.inner.belief_left_ns(leader_session_id)

    def confirm(self, leader_session_id: UUID, address: str) -> None:
        """Raise the next fault, or publish."""
        self.confirm_count += 1
        if self._faults:
            raise self._faults.pop(0)
        self.inner.confirm(leader_session_id, address)

    def revoke_delivered(self) -> None:
        """Write it down."""
        self.inner.revoke_delivered()

    def withdraw(self) -> None:
        """Write it down."""
        self.inner.withdraw()

    def contenders(self) -> Sequence[ContenderInformation]:
        """Return the one contender."""
        return self.inner.contenders()


@final
class Services:
    """A name service that offers elections alone."""

    def __init__(self, driver: StumblingDriver) -> None:
        self._driver = driver

    def get_leader_election(self, job_id: str) -> LeaderElection:
        """Return the one election."""
        services = self._driver.services
        election = LeaderElection(job_id, self._driver, on_closed=services.forget)
        services.keep(election)
        return election


@final
class Campaign:
    """A campaign on a thread of its own."""

    def __init__(
        self, *faults: Exception, timeout_seconds: float | None = None
    ) -> None:
        self.driver = StumblingDriver(*faults)
        self.led: Record[Leadership] = Record()
        self.ended: Record[Exception | None] = Record()
        self.may_end = threading.Event()
        self._timeout_seconds = timeout_seconds
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: self.driver.inner.calls == ["open"])

    def _run(self) -> None:
        services = cast("HAServices", Services(self.driver))
        try:
            with campaign(services, "job", "a:1", self._timeout_seconds) as leadership:
                self.led.add(leadership)
                assert self.may_end.wait(WAIT_SECONDS)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.ended.add(error)
        else:
            self.ended.add(None)

    def grant(self, session: LeaderSession) -> None:
        """Make it lead."""
        self.driver.inner.grant(session)

    def lead(self, session: LeaderSession) -> Leadership:
        """Make it lead, and return its leadership."""
        self.grant(session)
        return self.led.wait_for_count(1)[0]

    def end(self) -> Exception | None:
        """End the block, and return what it raised."""
        self.may_end.set()
        ended = self.ended.wait_for_count(1)
        self._thread.join()
        return ended[0]


@pytest.fixture
def running() -> Iterator[Campaign]:
    """A campaign whose turn has not come; ended in the end."""
    it = Campaign()
    yield it
    if not it.led.items:
        it.grant(THIRD)
    it.end()


class TestCampaign:
    def test_leads_and_is_confirmed_when_the_block_begins(
        self, running: Campaign
    ) -> None:
        """E3: what the block gets is granted, confirmed, and believed."""
        leadership = running.lead(FIRST)
        assert running.driver.inner.published == [(FIRST, "a:1")]
        assert leadership.session == FIRST
        assert leadership.leader_session_id == FIRST.leader_session_id
        assert leadership.epoch == FIRST.epoch
        assert not leadership.lost.is_set()
        leadership.check()

    def test_resigns_on_exit(self) -> None:
        """E7: after the block nothing of it contends."""
        running = Campaign()
        leadership = running.lead(FIRST)
        assert running.end() is None
        assert running.driver.inner.calls == ["open", "withdraw"]
        assert leadership.lost.is_set()
        with pytest.raises(LeadershipLostError):
            leadership.check()

    def test_check_raises_while_belief_has_lapsed(self, running: Campaign) -> None:
        """E4: the clock decides, and nothing else is told."""
        leadership = running.lead(FIRST)
        running.driver.inner.lapse()
        with pytest.raises(LeadershipLostError) as caught:
            leadership.check()
        assert (caught.value.component_id, caught.value.epoch) == ("job", 1)
        assert not leadership.lost.is_set()

    def test_lost_is_set_and_stays(self) -> None:
        """E6: a revocation sets it; the campaign contends no more."""
        running = Campaign()
        leadership = running.lead(FIRST)
        running.driver.inner.revoke()
        assert leadership.lost.wait(WAIT_SECONDS)
        wait_until(lambda: "withdraw" in running.driver.inner.calls)
        running.grant(SECOND)
        with pytest.raises(LeadershipLostError):
            leadership.check()
        assert running.end() is None
        assert running.driver.confirm_count == 1

    def test_gives_up_in_time(self) -> None:
        """L4: a turn that does not come is NoLeaderError, and nothing stays behind."""
        running = Campaign(timeout_seconds=0.01)
        error = running.end()
        assert isinstance(error, NoLeaderError)
        assert error.component_id == "job"
        assert running.driver.inner.calls == ["open", "withdraw"]

    def test_waits_for_the_turn_that_it_can_confirm(self, running: Campaign) -> None:
        """E3: a grant that was over before it was confirmed is not the one."""
        running.driver._faults.append(LeadershipLostError("job", 1))
        running.grant(FIRST)
        wait_until(lambda: running.driver.confirm_count == 1)
        running.driver.inner.revoke()
        assert running.lead(SECOND).session == SECOND

    def test_confirms_again_what_may_have_happened(self, running: Campaign) -> None:
        """E3: an unanswered confirm is repeated: that is safe."""
        running.driver._faults.append(MayHaveHappenedError("no answer"))
        assert running.lead(FIRST).session == FIRST
        assert running.driver.confirm_count == 2

    @pytest.mark.parametrize(
        "faults",
        [
            (DidNotHappenError("not sent"),),
            (MayHaveHappenedError("no answer"), MayHaveHappenedError("no answer")),
            (MayHaveHappenedError("no answer"), DidNotHappenError("not sent")),
            (MayHaveHappenedError("no answer"), UnreachableError("h:1", 1.0, "")),
        ],
    )
    def test_confirms_until_the_answer_is_certain(
        self, running: Campaign, faults: tuple[Exception, ...]
    ) -> None:
        """E3: a confirm that was taken, but not answered, leaves no idle leader."""
        running.driver._faults.extend(faults)
        assert running.lead(FIRST).session == FIRST
        assert running.driver.confirm_count == len(faults) + 1

    def test_waits_on_when_it_is_revoked_while_it_confirms(
        self, running: Campaign
    ) -> None:
        """E3: unconfirmed it is revoked and queues last; its turn comes again."""
        running.driver._faults.extend(
            (MayHaveHappenedError("no answer"), LeadershipLostError("job", 1))
        )
        running.grant(FIRST)
        wait_until(lambda: running.driver.confirm_count == 2)
        running.driver.inner.revoke()
        assert running.lead(SECOND).session == SECOND

    def test_resigns_what_it_could_not_confirm_in_time(self) -> None:
        """E7: given up, it withdraws what may have been published."""
        running = Campaign(
            *[MayHaveHappenedError("no answer")] * 1000, timeout_seconds=0.05
        )
        running.grant(FIRST)
        assert isinstance(running.end(), NoLeaderError)
        assert running.driver.inner.calls == ["open", "withdraw"]

    def test_closed_while_it_waits_for_its_turn(self) -> None:
        """L4: to close its services ends the wait, with a typed error."""
        running = Campaign()
        running.driver.services.close()
        assert isinstance(running.end(), LocalProtocolError)
        assert running.driver.inner.calls == ["open", "withdraw"]

    def test_closed_while_it_confirms(self) -> None:
        """L4, E7: the same, and what may have been published is withdrawn."""
        running = Campaign(*[MayHaveHappenedError("no answer")] * 1000)
        running.grant(FIRST)
        wait_until(lambda: running.driver.confirm_count >= 1)
        running.driver.services.close()
        assert isinstance(running.end(), LocalProtocolError)
        assert running.driver.inner.calls == ["open", "withdraw"]

    @pytest.mark.parametrize("timeout_seconds", [float("nan"), float("inf"), -1, "1"])
    def test_refuses_what_is_no_timeout(self, timeout_seconds: float) -> None:
        """L4: it is an error at once; nothing is opened."""
        driver = StumblingDriver()
        services = cast("HAServices", Services(driver))
        with (
            pytest.raises(ConfigurationError),
            campaign(services, "job", "a:1", timeout_seconds),
        ):
            pytest.fail("it leads")
        assert driver.inner.calls == []

    def test_refusal_ends_it(self) -> None:
        """N4: who may not contend is told so, and does not wait."""
        running = Campaign()
        refusal = AuthenticationError("tcp://h:1", "no role")
        running.driver.inner.fail(refusal)
        assert running.end() is refusal
        assert running.driver.inner.calls == ["open", "withdraw"]

    def test_error_while_leading_does_not_end_it(self, running: Campaign) -> None:
        """E6: what happens to a leader that leads is told by `lost` alone."""
        leadership = running.lead(FIRST)
        running.driver.inner.fail(DidNotHappenError("passing"))
        running.driver.inner.fail(AuthenticationError("tcp://h:1", "no role"))
        leadership.check()

    def test_error_in_the_block_resigns_too(self) -> None:
        """E7: however the block ends, the entry is withdrawn."""
        driver = StumblingDriver()
        services = cast("HAServices", Services(driver))

        def grant() -> None:
            wait_until(lambda: driver.inner.calls == ["open"])
            driver.inner.grant(FIRST)

        granter = threading.Thread(target=grant)
        granter.start()
        with (
            pytest.raises(RuntimeError, match="mine"),
            campaign(services, "job", "a:1"),
        ):
            raise RuntimeError("mine")
        granter.join()
        assert driver.inner.calls == ["open", "withdraw"]
