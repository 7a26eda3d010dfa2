from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from election import service as election_service
from election.service import LeaderElection
from nameservice import (
    AuthenticationError,
    CallbackLane,
    ConfigurationError,
    ForkedClientError,
    LeadershipLostError,
    LocalProtocolError,
)
from nameservice.fields import ADDRESS_LENGTH_MAX
from tests.election.fakes import FakeElectionDriver, session
from tests.forking import run_in_child
from tests.recording import (
    WAIT_SECONDS,
    Failed,
    FullDisk,
    Granted,
    Record,
    RecordingContender,
    Revoked,
    wait_until,
)


if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from uuid import UUID

    from election import LeaderSession


FIRST, SECOND, THIRD = session(1), session(2), session(3)


@pytest.fixture
def driver() -> FakeElectionDriver:
    """A name service that grants when it is told to."""
    return FakeElectionDriver()


@pytest.fixture
def election(driver: FakeElectionDriver) -> Iterator[LeaderElection]:
    """An election over *driver*, not started; closed in the end."""
    with LeaderElection("job", driver) as not_started:
        yield not_started


class HoldingContender(RecordingContender):
    """Stays in one of its callbacks until it is released."""

    def __init__(self, holds_in: str) -> None:
        super().__init__()
        self.is_held = threading.Event()
        self.let_go = threading.Event()
        self._holds_in = holds_in

    def grant_leadership(self, session: LeaderSession) -> None:
        """Write it down; stay, if it is told to."""
        super().grant_leadership(session)
        self._hold("grant")

    def revoke_leadership(self) -> None:
        """Write it down; stay, if it is told to."""
        super().revoke_leadership()
        self._hold("revoke")

    def handle_error(self, error: Exception) -> None:
        """Write it down; stay, if it is told to."""
        super().handle_error(error)
        self._hold("error")

    def _hold(self, callback: str) -> None:
        if callback == self._holds_in and not self.is_held.is_set():
            self.is_held.set()
            assert self.let_go.wait(WAIT_SECONDS)


class FaultyContender(RecordingContender):
    """Raises out of both callbacks."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__()
        self._fault = fault

    def grant_leadership(self, session: LeaderSession) -> None:
        """Write it down, and raise."""
        super().grant_leadership(session)
        raise self._fault

    def revoke_leadership(self) -> None:
        """Write it down, and raise."""
        super().revoke_leadership()
        raise self._fault


class TestArguments:
    @pytest.mark.parametrize("wrong", [None, "x", RecordingContender, object()])
    def test_what_is_no_contender_is_refused(
        self, election: LeaderElection, driver: FakeElectionDriver, wrong: object
    ) -> None:
        """L4: at once, and nothing was registered: it could not be told."""
        with pytest.raises(ConfigurationError):
            election.start(wrong)  # type: ignore[arg-type]
        assert driver.calls == []
        election.start(RecordingContender())
        assert driver.calls == ["open"]

    @pytest.mark.parametrize("wrong", [None, "x", 1])
    def test_what_is_no_action_is_refused(
        self, election: LeaderElection, wrong: object
    ) -> None:
        """L4: at once, and not in the future."""
        election.start(RecordingContender())
        with pytest.raises(ConfigurationError):
            election.run_if_leader(FIRST.leader_session_id, wrong)  # type: ignore[arg-type]


@pytest.mark.proves("E7")
class TestWhenClosing:
    def test_told_once_as_soon_as_it_closes(self, election: LeaderElection) -> None:
        """E7: one that waits for a turn hears that none will come."""
        told: Record[str] = Record()
        election.start(RecordingContender())
        election.when_closing(lambda: told.add("before"))
        assert not told.items
        election.close()
        election.close()
        assert told.items == ("before",)

    def test_told_at_once_if_it_was_closed(self, election: LeaderElection) -> None:
        """E7: also if it was never started."""
        told: Record[str] = Record()
        election.close()
        election.when_closing(lambda: told.add("after"))
        assert told.items == ("after",)


class TestCallbacks:
    @pytest.mark.proves("E6")
    def test_grant_and_revoke_alternate(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: what the driver delivers reaches the contender in its order."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.record.wait_for_count(1)
        driver.revoke()
        contender.record.wait_for_count(2)
        driver.grant(SECOND)
        assert contender.record.wait_for_count(3) == (
            Granted(FIRST),
            Revoked(),
            Granted(SECOND),
        )
        assert driver.calls == ["open", "revoke_delivered"]

    @pytest.mark.proves("E6")
    def test_one_at_a_time_on_one_thread(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: grant, revoke, errors and actions all run on the election's thread."""
        threads: Record[str] = Record()

        class Contender(RecordingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                threads.add(threading.current_thread().name)

            def revoke_leadership(self) -> None:
                threads.add(threading.current_thread().name)

            def handle_error(self, error: Exception) -> None:
                threads.add(threading.current_thread().name)

        election.start(Contender())
        driver.grant(FIRST)
        threads.wait_for_count(1)
        election.run_if_leader(
            FIRST.leader_session_id,
            lambda: threads.add(threading.current_thread().name),
        ).result(WAIT_SECONDS)
        driver.fail(RuntimeError("theirs"))
        threads.wait_for_count(3)
        driver.revoke()
        assert threads.wait_for_count(4) == ("election-job",) * 4

    @pytest.mark.proves("E6")
    def test_under_no_lock(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: while a callback runs, other threads use election and driver freely."""
        contender = HoldingContender("grant")
        election.start(contender)
        driver.grant(FIRST)
        assert contender.is_held.wait(WAIT_SECONDS)
        election.confirm_leadership(FIRST.leader_session_id, "a:1")
        assert election.has_leadership(FIRST.leader_session_id)
        assert len(election.contenders()) == 1
        later = election.run_if_leader(FIRST.leader_session_id, lambda: 7)
        driver.fail(RuntimeError("theirs"))
        assert not later.done()
        contender.let_go.set()
        assert later.result(WAIT_SECONDS) == 7

    @pytest.mark.proves("E3", "E6")
    def test_contender_may_use_the_election_in_its_callbacks(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E3, E6: confirming inside the grant callback is the common case."""

        class Contender(RecordingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                election.confirm_leadership(session.leader_session_id, "a:1")
                super().grant_leadership(session)

        contender = Contender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        assert driver.published == [(FIRST, "a:1")]

    @pytest.mark.proves("E6")
    def test_undelivered_grant_goes_with_its_revocation(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: a busy contender hears nothing of leaderships that came and went."""
        contender = HoldingContender("grant")
        election.start(contender)
        driver.grant(FIRST)
        assert contender.is_held.wait(WAIT_SECONDS)
        driver.revoke()
        for epoch in range(2, 100):
            driver.grant(session(epoch))
            driver.revoke()
        driver.grant(session(100))
        contender.let_go.set()
        assert contender.record.wait_for_count(3) == (
            Granted(FIRST),
            Revoked(),
            Granted(session(100)),
        )
        wait_until(lambda: driver.calls.count("revoke_delivered") == 99)

    @pytest.mark.proves("E5")
    def test_same_leadership_may_be_granted_again(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E5: revoked for a while and granted again, both are told."""
        contender = HoldingContender("grant")
        election.start(contender)
        driver.grant(FIRST)
        assert contender.is_held.wait(WAIT_SECONDS)
        driver.revoke()
        driver.grant(FIRST)
        contender.let_go.set()
        assert contender.record.wait_for_count(3) == (
            Granted(FIRST),
            Revoked(),
            Granted(FIRST),
        )

    @pytest.mark.proves("E6")
    @pytest.mark.parametrize("fault", [RuntimeError("mine"), SystemExit(3)])
    def test_fault_goes_to_the_contenders_own_handle_error(
        self,
        election: LeaderElection,
        driver: FakeElectionDriver,
        fault: BaseException,
    ) -> None:
        """E6: what a callback raises stops neither the thread nor the election."""
        contender = FaultyContender(fault)
        election.start(contender)
        driver.grant(FIRST)
        contender.record.wait_for_count(2)
        driver.revoke()
        contender.record.wait_for_count(4)
        driver.grant(SECOND)
        calls = contender.record.wait_for_count(6)
        assert [type(call) for call in calls] == [
            Granted,
            Failed,
            Revoked,
            Failed,
            Granted,
            Failed,
        ]
        for error in contender.errors:
            assert fault in (error, error.__cause__)
        assert driver.calls == ["open", "revoke_delivered"]

    @pytest.mark.proves("E6")
    def test_fault_goes_to_nobody_else(self, driver: FakeElectionDriver) -> None:
        """E6: another election of the same process hears nothing of it."""
        other_driver = FakeElectionDriver()
        faulty, other = FaultyContender(RuntimeError("mine")), RecordingContender()
        with (
            LeaderElection("job", driver) as election,
            LeaderElection("job", other_driver) as other_election,
        ):
            election.start(faulty)
            other_election.start(other)
            driver.grant(FIRST)
            faulty.record.wait_for_count(2)
            other_driver.grant(SECOND)
            other.record.wait_for_count(1)
        assert other.calls == (Granted(SECOND), Revoked())

    @pytest.mark.proves("E6")
    def test_fault_of_handle_error_is_logged(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: a contender that cannot even take its error stops nothing."""

        class Contender(FaultyContender):
            def handle_error(self, error: Exception) -> None:
                super().handle_error(error)
                raise error

        contender = Contender(RuntimeError("mine"))
        with capture_logs() as lines:
            election.start(contender)
            driver.grant(FIRST)
            contender.record.wait_for_count(2)
            driver.revoke()
            contender.record.wait_for_count(4)
            election.close()
        assert [line["event"] for line in lines if line["log_level"] == "error"] == [
            "contender.failed",
            "contender.failed",
        ]

    @pytest.mark.proves("E6")
    def test_told_though_no_log_line_can_be_written(
        self,
        election: LeaderElection,
        driver: FakeElectionDriver,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """E6: a full disk under the log keeps no leader from hearing of its end."""
        monkeypatch.setattr("sys.stderr", FullDisk())
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.record.wait_for_count(1)
        driver.revoke()
        contender.record.wait_for_count(2)
        closing = threading.Thread(target=election.close, daemon=True)
        closing.start()
        closing.join(WAIT_SECONDS)
        assert not closing.is_alive()
        assert contender.calls == (Granted(FIRST), Revoked())

    @pytest.mark.proves("E8")
    def test_error_of_the_driver_is_told(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E8: an election that cannot go on says why; it does not wait in silence."""
        contender = RecordingContender()
        election.start(contender)
        error = AuthenticationError("tcp://h:1", "no role")
        driver.fail(error)
        assert contender.record.wait_for_count(1) == (Failed(error),)


class TestHasLeadership:
    @pytest.mark.proves("E4", "E6")
    def test_is_true_from_the_grant_callback_on(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E4, E6: true inside the grant callback, and only for that leadership."""
        seen: list[tuple[bool, bool]] = []

        class Contender(RecordingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                seen.append(
                    (
                        election.has_leadership(session.leader_session_id),
                        election.has_leadership(SECOND.leader_session_id),
                    )
                )
                super().grant_leadership(session)

        contender = Contender()
        assert not election.has_leadership(FIRST.leader_session_id)
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        assert seen == [(True, False)]

    @pytest.mark.proves("E6")
    def test_is_false_once_revoke_begins(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: false inside the revoke callback, even when the driver still believes."""
        seen: list[bool] = []

        class Contender(RecordingContender):
            def revoke_leadership(self) -> None:
                seen.append(election.has_leadership(FIRST.leader_session_id))
                super().revoke_leadership()

        contender = Contender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        election.close()
        assert driver.believes(FIRST.leader_session_id)
        assert seen == [False]
        assert not election.has_leadership(FIRST.leader_session_id)

    @pytest.mark.proves("E4")
    def test_is_false_when_belief_has_lapsed(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E4: the clock decides, whatever the contender was told."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        assert election.has_leadership(FIRST.leader_session_id)
        driver.lapse()
        assert not election.has_leadership(FIRST.leader_session_id)
        assert contender.calls == (Granted(FIRST),)

    @pytest.mark.proves("E6")
    def test_is_false_before_the_contender_is_told(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: a grant that waits behind another callback is not yet held."""
        contender = HoldingContender("error")
        election.start(contender)
        driver.fail(RuntimeError("theirs"))
        assert contender.is_held.wait(WAIT_SECONDS)
        driver.grant(FIRST)
        assert not election.has_leadership(FIRST.leader_session_id)
        contender.let_go.set()
        contender.wait_for_grant()
        assert election.has_leadership(FIRST.leader_session_id)


class TestLeadershipSecondsLeft:
    @pytest.mark.proves("E4", "E6")
    def test_it_is_what_the_driver_says_while_the_contender_is_told(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E4, E6: none before the grant, after the revoke, or of others."""
        assert election.leadership_seconds_left(FIRST.leader_session_id) == 0
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        assert election.leadership_seconds_left(FIRST.leader_session_id) == 1
        assert election.leadership_seconds_left(SECOND.leader_session_id) == 0
        election.close()
        assert election.leadership_seconds_left(FIRST.leader_session_id) == 0


@pytest.mark.proves("E3")
class TestConfirm:
    def test_address_reaches_the_driver(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E3: confirmed again within one leadership, the address is published anew."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        election.confirm_leadership(FIRST.leader_session_id, "a:1")
        election.confirm_leadership(FIRST.leader_session_id, "b:1")
        assert driver.published == [(FIRST, "a:1"), (FIRST, "b:1")]

    def test_stale_confirm_raises(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E3: what the driver refuses reaches the caller."""
        election.start(RecordingContender())
        driver.grant(FIRST)
        with pytest.raises(LeadershipLostError):
            election.confirm_leadership(SECOND.leader_session_id, "a:1")
        assert driver.published == []

    @pytest.mark.parametrize(
        "address", ["", "x" * (ADDRESS_LENGTH_MAX + 1), "a\n", b"a:1", None]
    )
    def test_bad_address_reaches_no_driver(
        self, election: LeaderElection, driver: FakeElectionDriver, address: str
    ) -> None:
        """E3: an address is 1 to 1,024 printable characters."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        with pytest.raises(ConfigurationError, match=r"^an address is 1 to 1,024"):
            election.confirm_leadership(FIRST.leader_session_id, address)
        assert driver.published == []

    def test_longest_address_is_taken(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E3: the limit itself is within it."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        address = "x" * ADDRESS_LENGTH_MAX
        election.confirm_leadership(FIRST.leader_session_id, address)
        assert driver.published == [(FIRST, address)]


@pytest.mark.proves("E6")
class TestRunIfLeader:
    def start_leading(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> RecordingContender:
        """Return a contender that has been granted FIRST."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        return contender

    def test_returns_what_the_action_returns(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: while leading, the action runs."""
        self.start_leading(election, driver)
        future = election.run_if_leader(FIRST.leader_session_id, lambda: 7)
        assert future.result(WAIT_SECONDS) == 7

    @pytest.mark.parametrize("fault", [KeyError("mine"), SystemExit(3)])
    def test_raises_what_the_action_raises(
        self,
        election: LeaderElection,
        driver: FakeElectionDriver,
        fault: BaseException,
    ) -> None:
        """E6: an action's fault goes to the holder of its future, and no further."""
        contender = self.start_leading(election, driver)

        def act() -> None:
            raise fault

        future = election.run_if_leader(FIRST.leader_session_id, act)
        with pytest.raises(type(fault)):
            future.result(WAIT_SECONDS)
        again = election.run_if_leader(FIRST.leader_session_id, lambda: 7)
        assert again.result(WAIT_SECONDS) == 7
        assert contender.errors == ()

    def test_does_not_begin_without_leadership(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: never granted, lapsed or revoked: it is not begun."""
        contender = self.start_leading(election, driver)
        began: list[str] = []

        def lost(leader_session_id: UUID) -> int | None:
            future = election.run_if_leader(
                leader_session_id, lambda: began.append("no")
            )
            with pytest.raises(LeadershipLostError) as caught:
                future.result(WAIT_SECONDS)
            return caught.value.epoch

        assert lost(SECOND.leader_session_id) is None
        driver.lapse()
        assert lost(FIRST.leader_session_id) == FIRST.epoch
        driver.grant(SECOND)
        contender.wait_for_grant(2)
        driver.revoke()
        contender.wait_for_revoke()
        assert lost(SECOND.leader_session_id) is None
        assert began == []

    def test_revoke_waits_for_it(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: the revoke callback begins after the action has ended."""
        contender = self.start_leading(election, driver)
        began, may_end = threading.Event(), threading.Event()

        def act() -> tuple[object, ...]:
            began.set()
            assert may_end.wait(WAIT_SECONDS)
            return contender.calls

        future = election.run_if_leader(FIRST.leader_session_id, act)
        assert began.wait(WAIT_SECONDS)
        driver.revoke()
        may_end.set()
        assert future.result(WAIT_SECONDS) == (Granted(FIRST),)
        contender.wait_for_revoke()

    def test_what_waits_behind_a_revocation_does_not_begin(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: it starts only while believing, when its turn comes."""
        contender = HoldingContender("grant")
        election.start(contender)
        driver.grant(FIRST)
        assert contender.is_held.wait(WAIT_SECONDS)
        future = election.run_if_leader(FIRST.leader_session_id, lambda: 7)
        driver.revoke()
        contender.let_go.set()
        with pytest.raises(LeadershipLostError):
            future.result(WAIT_SECONDS)

    def test_cancelled_before_its_turn_it_does_not_begin(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: a future may be cancelled, as futures may."""
        contender = HoldingContender("grant")
        election.start(contender)
        driver.grant(FIRST)
        assert contender.is_held.wait(WAIT_SECONDS)
        began: list[str] = []
        cancelled = election.run_if_leader(
            FIRST.leader_session_id, lambda: began.append("no")
        )
        refused = election.run_if_leader(SECOND.leader_session_id, lambda: 7)
        assert cancelled.cancel()
        assert refused.cancel()
        contender.let_go.set()
        after = election.run_if_leader(FIRST.leader_session_id, lambda: 7)
        assert after.result(WAIT_SECONDS) == 7
        with pytest.raises(CancelledError):
            cancelled.result(WAIT_SECONDS)
        assert began == []

    @pytest.mark.proves("E7")
    def test_close_refuses_what_has_not_begun(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6, E7: no thread waits for ever on a future of a closed election."""
        contender = HoldingContender("grant")
        election.start(contender)
        driver.grant(FIRST)
        assert contender.is_held.wait(WAIT_SECONDS)
        before = election.run_if_leader(FIRST.leader_session_id, lambda: 7)
        closer = threading.Thread(target=election.close)
        closer.start()
        wait_until(lambda: election._deliveries.is_closing)
        after = election.run_if_leader(FIRST.leader_session_id, lambda: 7)
        futures: list[Future[int]] = [before, after]
        contender.let_go.set()
        for future in futures:
            with pytest.raises(LeadershipLostError):
                future.result(WAIT_SECONDS)
        closer.join()


class TestLifetime:
    def test_component_id_is_what_it_was_made_for(
        self, election: LeaderElection
    ) -> None:
        """An election knows what is being led."""
        assert election.component_id == "job"

    @pytest.mark.proves("E7")
    def test_is_started_once(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E7: a second start is our caller's mistake; the first goes on."""
        contender, other = RecordingContender(), RecordingContender()
        election.start(contender)
        with pytest.raises(LocalProtocolError):
            election.start(other)
        driver.grant(FIRST)
        contender.wait_for_grant()
        assert other.calls == ()
        assert driver.calls == ["open"]

    @pytest.mark.proves("E7")
    def test_is_not_started_after_it_was_closed(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E7: so is a start after close."""
        election.close()
        with pytest.raises(LocalProtocolError):
            election.start(RecordingContender())
        assert driver.calls == ["withdraw"]

    @pytest.mark.proves("E7")
    def test_is_asked_only_after_it_was_started(self, election: LeaderElection) -> None:
        """E7: without a contender there is nothing to confirm, and nothing to run."""
        with pytest.raises(LocalProtocolError, match="start the election first"):
            election.confirm_leadership(FIRST.leader_session_id, "a:1")
        with pytest.raises(LocalProtocolError, match="start the election first"):
            election.run_if_leader(FIRST.leader_session_id, lambda: 7)

    @pytest.mark.proves("E7")
    def test_leader_is_revoked_before_the_entry_is_withdrawn(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E7: the successor is granted only after the revoke callback has finished."""
        contender = HoldingContender("revoke")
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        closer = threading.Thread(target=election.close)
        closer.start()
        assert contender.is_held.wait(WAIT_SECONDS)
        assert driver.calls == ["open"]
        assert driver.believes(FIRST.leader_session_id)  # store writes work until then
        contender.let_go.set()
        closer.join()
        assert driver.calls == ["open", "withdraw"]
        assert contender.calls == (Granted(FIRST), Revoked())

    @pytest.mark.proves("E7")
    def test_waiting_contender_just_leaves(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E7: who was granted nothing is revoked nothing."""
        contender = RecordingContender()
        election.start(contender)
        election.close()
        assert contender.calls == ()
        assert driver.calls == ["open", "withdraw"]

    @pytest.mark.proves("E6", "E7")
    def test_undelivered_grant_is_not_delivered_on_close(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6, E7: closing, the contender hears only of the end of what it knows."""
        contender = HoldingContender("error")
        election.start(contender)
        driver.fail(RuntimeError("theirs"))
        assert contender.is_held.wait(WAIT_SECONDS)
        driver.grant(FIRST)
        closer = threading.Thread(target=election.close)
        closer.start()
        wait_until(lambda: election._deliveries.is_closing)
        contender.let_go.set()
        closer.join()
        assert [type(call) for call in contender.calls] == [Failed]
        assert driver.calls == ["open", "withdraw"]

    @pytest.mark.proves("E7")
    def test_close_is_idempotent(self, driver: FakeElectionDriver) -> None:
        """E7: closing twice is closing once; the owner is told once."""
        closed: list[LeaderElection] = []
        election = LeaderElection("job", driver, on_closed=closed.append)
        election.start(RecordingContender())
        election.close()
        election.close()
        assert driver.calls == ["open", "withdraw"]
        assert closed == [election]

    @pytest.mark.proves("E7")
    def test_close_without_a_start_is_idempotent_too(
        self, driver: FakeElectionDriver
    ) -> None:
        """E7: what was never started leaves just the same."""
        closed: list[LeaderElection] = []
        election = LeaderElection("job", driver, on_closed=closed.append)
        election.close()
        election.close()
        assert driver.calls == ["withdraw"]
        assert closed == [election]

    @pytest.mark.proves("E6")
    def test_nothing_is_delivered_after_close(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: what the driver says later is not told; the thread is gone."""
        contender = RecordingContender()
        election.start(contender)
        election.close()
        driver.grant(FIRST)
        driver.revoke()
        driver.fail(RuntimeError("late"))
        assert contender.calls == ()
        assert not [
            thread for thread in threading.enumerate() if thread.name == "election-job"
        ]

    @pytest.mark.proves("E6")
    def test_close_waits_for_the_callback_under_way(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E6: however many close it, each returns after the last callback."""
        contender = HoldingContender("grant")
        election.start(contender)
        driver.grant(FIRST)
        assert contender.is_held.wait(WAIT_SECONDS)
        ended: Record[tuple[object, ...]] = Record()

        def close() -> None:
            election.close()
            ended.add(contender.calls)

        closers = [threading.Thread(target=close) for _ in range(2)]
        for closer in closers:
            closer.start()
        wait_until(lambda: election._deliveries.is_closing)
        assert ended.items == ()
        contender.let_go.set()
        assert ended.wait_for_count(2) == ((Granted(FIRST), Revoked()),) * 2
        for closer in closers:
            closer.join()

    @pytest.mark.proves("E6")
    @pytest.mark.parametrize("callback", ["grant", "revoke", "error", "action"])
    def test_close_inside_a_callback_does_not_wait(
        self, election: LeaderElection, driver: FakeElectionDriver, callback: str
    ) -> None:
        """E6: it returns at once; the rest happens when the callback returns."""
        closed: Record[str] = Record()

        def close(where: str) -> None:
            if where == callback:
                election.close()
                closed.add(where)

        class Contender(RecordingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                super().grant_leadership(session)
                close("grant")

            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                close("revoke")

            def handle_error(self, error: Exception) -> None:
                super().handle_error(error)
                close("error")

        contender = Contender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        if callback == "action":
            election.run_if_leader(FIRST.leader_session_id, lambda: close("action"))
        elif callback == "error":
            driver.fail(RuntimeError("theirs"))
        elif callback == "revoke":
            driver.revoke()
        assert closed.wait_for_count(1) == (callback,)
        election.close()
        assert driver.calls[-1] == "withdraw"
        expected = {
            "grant": [Granted, Revoked],
            "action": [Granted, Revoked],
            "revoke": [Granted, Revoked],
            "error": [Granted, Failed, Revoked],
        }
        assert [type(call) for call in contender.calls] == expected[callback]

    @pytest.mark.proves("E7")
    def test_closing_waits_for_no_thread_that_wakes_the_callbacks(
        self,
        election: LeaderElection,
        driver: FakeElectionDriver,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """
        E7: a signal handler that closes may have interrupted the waking of another.

        What grants to this election waits for that, and the handler waited for it.
        """
        is_waking, may_wake = threading.Event(), threading.Event()
        wake = CallbackLane.wake

        def wake_late(lane: CallbackLane) -> None:
            if threading.current_thread() is granting:
                is_waking.set()
                assert may_wake.wait(WAIT_SECONDS)
            wake(lane)

        election.start(RecordingContender())
        granting = threading.Thread(target=driver.grant, args=[FIRST])
        monkeypatch.setattr(CallbackLane, "wake", wake_late)
        granting.start()
        assert is_waking.wait(WAIT_SECONDS)
        closing = threading.Thread(target=election.begin_close)
        closing.start()
        closing.join(WAIT_SECONDS / 2)
        has_returned = not closing.is_alive()
        may_wake.set()
        granting.join()
        closing.join()
        assert has_returned

    @pytest.mark.proves("E7")
    def test_close_during_start_withdraws_last(self) -> None:
        """
        E7: what is closed while it registers does not stay registered.

        The close does not wait for the start: it may be in a signal handler that has
        interrupted that.
        """
        is_opening, may_open = threading.Event(), threading.Event()
        calls: list[str] = []

        class SlowDriver:
            def open(self, deliver: object, fail: object) -> None:
                is_opening.set()
                assert may_open.wait(WAIT_SECONDS)
                calls.append("open")

            def withdraw(self) -> None:
                calls.append("withdraw")

        election = LeaderElection("job", SlowDriver())  # type: ignore[arg-type]
        starter = threading.Thread(target=election.start, args=[RecordingContender()])
        starter.start()
        assert is_opening.wait(WAIT_SECONDS)
        closer = threading.Thread(target=election.close)
        closer.start()
        closer.join(WAIT_SECONDS)
        assert calls == ["withdraw"]
        may_open.set()
        starter.join()
        assert calls == ["withdraw", "open", "withdraw"]

    @pytest.mark.proves("E7")
    def test_a_lane_that_comes_after_the_close_is_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """E7: a start that finds its services ended leaves none who waits for it."""
        is_making, may_make = threading.Event(), threading.Event()

        class Ended:
            def open(self, deliver: object, fail: object) -> None:
                raise LocalProtocolError("its loop has ended")

            def withdraw(self) -> None:
                """Do nothing."""

        def lane(*args: Any) -> CallbackLane:
            is_making.set()
            assert may_make.wait(WAIT_SECONDS)
            return CallbackLane(*args)

        monkeypatch.setattr(election_service, "CallbackLane", lane)
        election = LeaderElection("job", Ended())  # type: ignore[arg-type]
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(election.start, RecordingContender())
            assert is_making.wait(WAIT_SECONDS)
            election.close()
            may_make.set()
            with pytest.raises(LocalProtocolError):
                starting.result(WAIT_SECONDS)
        assert election.lane is not None
        assert election.lane.over.wait(WAIT_SECONDS)

    @pytest.mark.proves("E7")
    def test_who_closes_tells_so_on_its_own_thread(self) -> None:
        """E7: what is told may need a lock that the thread that closes holds."""
        told_on: list[int] = []
        election = LeaderElection("job", FakeElectionDriver())
        changed = threading.Condition()

        def tell() -> None:
            with changed:
                changed.notify_all()
            told_on.append(threading.get_ident())

        election.when_closing(tell)
        election.start(RecordingContender())
        with changed:
            election.close()
        election.when_closing(tell)
        assert told_on == [threading.get_ident()] * 2

    @pytest.mark.proves("E7")
    def test_driver_that_does_not_open_can_be_closed(self) -> None:
        """E7: after a start that failed, close() still ends the thread."""

        class BrokenDriver:
            def open(self, deliver: object, fail: object) -> None:
                raise LocalProtocolError("the services are closed")

            def withdraw(self) -> None:
                pass

        election = LeaderElection("job", BrokenDriver())  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError):
            election.start(RecordingContender())
        election.close()
        assert not [
            thread for thread in threading.enumerate() if thread.name == "election-job"
        ]


class TestContenders:
    def test_are_the_drivers(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """Asking works without contending."""
        assert [item.contender_id for item in election.contenders()] == ["c1"]


@pytest.mark.proves("E10")
class TestFork:
    def test_child_is_told_that_it_may_not_use_it(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E10: every use in the child raises; the parent is not disturbed."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()
        identity = FIRST.leader_session_id
        uses = {
            "start": lambda: election.start(contender),
            "confirm": lambda: election.confirm_leadership(identity, "a:1"),
            "has": lambda: election.has_leadership(identity),
            "run": lambda: election.run_if_leader(identity, lambda: None),
            "contenders": election.contenders,
        }
        outcomes = {name: run_in_child(use) for name, use in uses.items()}
        assert outcomes == dict.fromkeys(uses, ForkedClientError.__name__)
        assert election.has_leadership(identity)

    def test_close_in_the_child_is_silent_and_closes_nothing(
        self, election: LeaderElection, driver: FakeElectionDriver
    ) -> None:
        """E10: a child that cleans up what it inherited does no harm."""
        contender = RecordingContender()
        election.start(contender)
        driver.grant(FIRST)
        contender.wait_for_grant()

        def close() -> list[str]:
            election.close()
            return driver.calls

        assert run_in_child(close) == repr(["open"])
        assert election.has_leadership(FIRST.leader_session_id)
        assert contender.calls == (Granted(FIRST),)
