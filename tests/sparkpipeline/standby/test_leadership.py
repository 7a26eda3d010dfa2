"""The guard of a leadership: which batches run, and which are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, final

import pytest

from election import LeaderElection, LeaderSession, LeaderStore
from haservices import HAConfig, HAServices, open_ha_services
from haservices.embedded import forget_embedded
from haservices.testing import LeadershipControl
from nameservice import ConfigurationError, LeadershipLostError, NameServiceError
from sparkpipeline.batch_guard import BatchFunction, guard_starts, guarded
from sparkpipeline.standby.leadership import CLAIMS, StandbyLeadership
from sparkpipeline.standby.record import DriverRecord, check_record, code_version
from sparkpipeline.standby.settings import DriverSettings
from sparkpipeline.standby.takeover import Takeover
from tests.opening import open_patiently
from tests.recording import wait_until


JOB: Final = "flights"
CONFIG: Final = HAConfig(
    url="embedded:standby-guard", lease_seconds=0.2, session_timeout_seconds=1.0
)
TIMEOUT_SECONDS: Final = 30.0


@final
class Contender:
    """Confirms what it is granted, and keeps it."""

    def __init__(self, ha: HAServices, address: str) -> None:
        self.election: LeaderElection = ha.get_leader_election(JOB)
        self.address = address
        self.is_leading = threading.Event()
        self.lost = threading.Event()
        self.session: LeaderSession | None = None
        self.election.start(self)

    def grant_leadership(self, session: LeaderSession) -> None:
        """Confirm at once."""
        self.election.confirm_leadership(session.leader_session_id, self.address)
        self.session = session
        self.is_leading.set()

    def revoke_leadership(self) -> None:
        """Tell the test."""
        self.lost.set()

    def handle_error(self, error: Exception) -> None:
        """Do nothing: elections go on."""

    def lead(
        self, store: LeaderStore, fenced: threading.Event | None = None
    ) -> StandbyLeadership:
        """Return its leadership as soon as it leads."""
        assert self.is_leading.wait(TIMEOUT_SECONDS)
        assert self.session is not None
        return StandbyLeadership(
            self.election,
            self.session,
            store,
            lost=self.lost,
            on_fenced=(fenced or threading.Event()).set,
        )


@pytest.fixture
def services() -> Iterator[tuple[HAServices, HAServices]]:
    """Yield the services of two drivers of one embedded name service."""
    with open_ha_services(CONFIG) as first, open_ha_services(CONFIG) as second:
        yield first, second
    forget_embedded("standby-guard")


def claim(ha: HAServices) -> dict[str, object]:
    """Return the last claim of the query."""
    found = ha.get_leader_store(JOB).get(CLAIMS + "query")
    assert found is not None
    value = json.loads(found.value)
    assert isinstance(value, dict)
    return value


def is_claiming() -> bool:
    """Return whether a claim waits for its answer."""
    return any(thread.name == "standby-claim" for thread in threading.enumerate())


@pytest.mark.proves("H3")
class TestGuard:
    def test_a_batch_is_claimed_before_it_runs(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H3: the leader store says which batch, under which epoch."""
        ha, _ = services
        leadership = Contender(ha, "one").lead(ha.get_leader_store(JOB))
        seen: list[dict[str, object]] = []
        leadership.run_batch("query", "run", 3, lambda: seen.append(claim(ha)))
        assert seen == [{"batch_id": 3, "epoch": leadership.epoch, "run_id": "run"}]
        assert leadership.finished_batch("query") == 3
        assert leadership.finished_batch("another") is None

    def test_a_zombie_is_refused_before_its_sink_is_called(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H3: paused, replaced, and woken, it writes nothing of any batch."""
        first, second = services
        control = LeadershipControl(second)
        fenced = threading.Event()
        zombie = Contender(first, "one").lead(first.get_leader_store(JOB), fenced)
        successor = Contender(second, "two")
        control.pause(first)
        leadership = successor.lead(second.get_leader_store(JOB))
        called: list[str] = []
        leadership.run_batch("query", None, 3, lambda: called.append("successor"))
        control.resume(first)
        with pytest.raises(LeadershipLostError):
            zombie.run_batch("query", None, 3, lambda: called.append("zombie"))
        assert called == ["successor"]
        assert claim(second)["epoch"] == leadership.epoch

    def test_the_store_refuses_what_belief_does_not_see(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H3: a claim is refused by the epoch alone, whatever the driver was told."""
        first, second = services
        fenced = threading.Event()
        one = Contender(first, "one")
        one.lead(first.get_leader_store(JOB))
        Contender(second, "two")
        wait_until(lambda: len(second.operations.contenders(JOB)) == 2)
        LeadershipControl(second).revoke(JOB)
        assert one.lost.wait(TIMEOUT_SECONDS)
        one.lost.clear()  # as if it had not been told
        stale = one.lead(first.get_leader_store(JOB), fenced)
        with pytest.raises(LeadershipLostError):
            stale.run_batch("query", None, 0, pytest.fail)
        assert fenced.is_set()

    def test_a_pause_between_claim_and_sink_is_seen(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H3: the claim was good; the clock says that it is so no more."""
        first, second = services
        control = LeadershipControl(second)
        one = Contender(first, "one")
        store = first.get_leader_store(JOB)
        has_claimed = threading.Event()

        @final
        class PausedAfterPut:
            """A leader store whose caller is paused when its first claim is there."""

            def put(self, path: str, value: bytes, *, session: LeaderSession) -> None:
                store.put(path, value, session=session)
                if not has_claimed.is_set():
                    has_claimed.set()
                    control.pause(first)
                    assert two.is_leading.wait(TIMEOUT_SECONDS)

        leadership = one.lead(PausedAfterPut())  # type: ignore[arg-type]
        two = Contender(second, "two")
        outcome: list[Exception] = []

        def run() -> None:
            try:
                leadership.run_batch("query", None, 0, pytest.fail)
            except LeadershipLostError as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert two.is_leading.wait(TIMEOUT_SECONDS)
        control.resume(first)
        thread.join(TIMEOUT_SECONDS)
        assert len(outcome) == 1

    def test_a_batch_waits_while_the_name_service_is_away(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """A leadership that outlasts a lost connection costs no failed query."""
        control = LeadershipControl(services[1])
        # The session must outlast the test's own delays.
        config = HAConfig(url=CONFIG.url, session_timeout_seconds=60.0)
        with open_ha_services(config) as ha:
            one = Contender(ha, "one")
            leadership = one.lead(ha.get_leader_store(JOB))
            control.cut(ha)
            while one.election.has_leadership(leadership.leader_session_id):
                threading.Event().wait(0.01)  # belief runs out by the clock alone
            ran = threading.Event()
            thread = threading.Thread(
                target=leadership.run_batch, args=("query", None, 0, ran.set)
            )
            thread.start()
            assert not ran.is_set()
            control.heal(ha)
            assert ran.wait(TIMEOUT_SECONDS)
            thread.join(TIMEOUT_SECONDS)

    def test_a_claim_that_is_not_answered_does_not_keep_a_driver_from_stopping(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H3: a driver that is cut off stops in time, however long a call may take."""
        control = LeadershipControl(services[1])
        config = HAConfig(
            url=CONFIG.url, session_timeout_seconds=600.0, connect_timeout_seconds=600.0
        )
        with open_ha_services(config) as ha:
            one = Contender(ha, "one")
            leadership = one.lead(ha.get_leader_store(JOB))
            control.cut(ha)
            errors: list[Exception] = []

            def run() -> None:
                try:
                    leadership.run_batch("query", None, 0, pytest.fail)
                except LeadershipLostError as error:
                    errors.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            wait_until(is_claiming)
            leadership.begin_stop()
            thread.join(TIMEOUT_SECONDS)
            assert len(errors) == 1
            control.heal(ha)
        wait_until(lambda: not is_claiming())

    def test_what_stops_begins_no_batch(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H3: the batch under way is finished, and no other one is begun."""
        ha, _ = services
        leadership = Contender(ha, "one").lead(ha.get_leader_store(JOB))
        has_begun, may_end = threading.Event(), threading.Event()

        def work() -> None:
            has_begun.set()
            assert may_end.wait(TIMEOUT_SECONDS)

        thread = threading.Thread(
            target=leadership.run_batch, args=("query", None, 0, work)
        )
        thread.start()
        assert has_begun.wait(TIMEOUT_SECONDS)
        leadership.begin_stop()
        with pytest.raises(LeadershipLostError):
            leadership.run_batch("query", None, 1, pytest.fail)
        idle = threading.Thread(target=leadership.wait_until_idle)
        idle.start()
        assert leadership.finished_batch("query") is None
        may_end.set()
        idle.join(TIMEOUT_SECONDS)
        thread.join(TIMEOUT_SECONDS)
        assert leadership.finished_batch("query") == 0

    def test_a_batch_that_fails_is_not_finished(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """What the function raises is the query's, and nothing hangs on it."""
        ha, _ = services
        leadership = Contender(ha, "one").lead(ha.get_leader_store(JOB))
        with pytest.raises(ZeroDivisionError):
            leadership.run_batch("query", None, 0, lambda: 1 // 0)
        leadership.wait_until_idle()
        assert leadership.finished_batch("query") is None


class TestLeadership:
    @pytest.mark.proves("H5")
    def test_an_address_moves_within_a_leadership(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H5: an application publishes where it is found, under its epoch."""
        ha, other = services
        leadership = Contender(ha, "one").lead(ha.get_leader_store(JOB))
        with other.get_leader_retriever(JOB) as retriever:
            changes = retriever.changes()
            leadership.publish_address("http://10.0.0.7:4040")
            for leader in changes:
                if leader is not None and leader.address == "http://10.0.0.7:4040":
                    break
        assert leader is not None
        assert leader.epoch == leadership.epoch

    def test_check_raises_once_it_is_lost(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """A sink can ask before it commits."""
        ha, _ = services
        one = Contender(ha, "one")
        leadership = one.lead(ha.get_leader_store(JOB))
        leadership.check()
        LeadershipControl(ha).revoke(JOB)
        assert one.lost.wait(TIMEOUT_SECONDS)
        with pytest.raises(LeadershipLostError):
            leadership.check()

    @pytest.mark.proves("H3")
    def test_an_application_that_was_not_called_is_not_waited_for(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """H3: a driver that stops while it takes over calls it no more."""
        ha, _ = services
        store = ha.get_leader_store(JOB)
        one = Contender(ha, "one")
        called = one.lead(store)
        assert called.begin()
        assert called.begin_stop()
        not_called = one.lead(store)
        assert not not_called.begin_stop()
        assert not not_called.begin()
        assert not not_called.begin_stop()

    def test_all_that_is_to_be_stopped_is(
        self, services: tuple[HAServices, HAServices]
    ) -> None:
        """The last one first, whatever one of them raises, and once."""
        ha, _ = services
        leadership = Contender(ha, "one").lead(ha.get_leader_store(JOB))
        called: list[str] = []
        leadership.when_stopping(lambda: called.append("first"))
        leadership.when_stopping(lambda: called.append(str(1 // 0)))
        leadership.when_stopping(lambda: called.append("last"))
        leadership.begin_stop()
        leadership.begin_stop()
        assert called == ["last", "first"]


class TestGuarding:
    def test_what_begins_meanwhile_is_guarded(self) -> None:
        """Sinks of ours ask for a guard when they are started."""
        guarded_functions: list[object] = []

        def function(batch: object, batch_id: int) -> None:
            del batch, batch_id

        def guard(inner: BatchFunction) -> BatchFunction:
            guarded_functions.append(inner)
            return inner

        assert guarded(function) is function
        guard_starts(guard)
        try:
            assert guarded(function) is function
        finally:
            guard_starts(None)
        assert guarded_functions == [function]
        assert guarded(function) is function
        assert guarded_functions == [function]


@pytest.mark.proves("H4")
class TestRecord:
    RECORD: Final = DriverRecord(
        application="flights", version="1", contender_id=None, epoch=1
    )

    class Called:
        """An application that is an object."""

        def __call__(self) -> None:
            """Be called."""

    def refusal(self, **changes: str | bool) -> str:
        """Return how a driver is refused."""
        asked: dict[str, str | bool] = {
            "application": "flights",
            "version": "1",
            "is_other_version_admitted": False,
        }
        asked |= changes
        with pytest.raises(ConfigurationError) as refused:
            check_record(self.RECORD, job_id=JOB, **asked)  # type: ignore[arg-type]
        return str(refused.value)

    def test_another_application_is_refused(self) -> None:
        """H4: two applications under one job id."""
        said = self.refusal(application="trains", is_other_version_admitted=True)
        assert "give each application a job id of its own" in said

    def test_another_version_is_refused_unless_it_is_admitted(self) -> None:
        """H4: a standby of another version of the code."""
        assert 'on_other_version="admit"' in self.refusal(version="2")
        check_record(
            self.RECORD,
            job_id=JOB,
            application="flights",
            version="2",
            is_other_version_admitted=True,
        )

    def test_a_version_is_that_of_the_file(self) -> None:
        """Functions of one file have one version; of another file another."""
        here = code_version(claim)
        assert here == code_version(Contender.lead)
        assert here != code_version(check_record)
        assert code_version(partial(claim)) == here
        assert code_version(self.Called()) == here

    def test_what_is_in_no_file_has_no_version(self) -> None:
        """H4: typed into a shell, it takes one that is given."""
        namespace: dict[str, Any] = {}
        exec("def typed(spark, leadership): ...", namespace)
        for application in (namespace["typed"], partial(namespace["typed"]), print):
            with pytest.raises(ConfigurationError, match="pass version="):
                code_version(application)


@pytest.mark.proves("H1")
def test_a_driver_that_takes_over_waits_for_a_name_service_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H1: it leads still when that is back; it would have to be started again, cold."""
    config = HAConfig(
        url="embedded:takeover",
        session_timeout_seconds=60.0,
        connect_timeout_seconds=0.2,
    )
    settings = DriverSettings(
        job_id=JOB,
        address="a:1",
        application_name="application",
        version="1",
        is_other_version_admitted=False,
        warm_up_seconds=1.0,
        stop_seconds=1.0,
        hand_over_seconds=1.0,
        checked_locations=(),
    )
    with open_patiently(config) as ha:
        contender = Contender(ha, "a:1")
        leadership = contender.lead(ha.get_leader_store(JOB))
        takeover = Takeover(ha, settings)
        control = LeadershipControl(ha)
        check_version = takeover.check_version
        failures: list[NameServiceError] = []

        def check_while_cut() -> DriverRecord | None:
            try:
                return check_version()
            except NameServiceError as error:
                failures.append(error)
                control.heal(ha)
                raise

        monkeypatch.setattr(takeover, "check_version", check_while_cut)
        control.cut(ha)
        assert takeover.complete(leadership, contender.election)
        assert failures
