"""
The shell around `StandbyCore`: threads, the election, the queries, the end.

Theory of operation
-------------------
Everything that happens goes into one queue, which the thread of `Driver.run` takes from
and hands to the core.  What blocks has a thread of its own: the warm-up, the
application, one watcher for each query, the stop.  A revocation is acknowledged when
the queries have stopped, as far as the name service waits for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from attrs import frozen
from py4j.protocol import Py4JError, Py4JNetworkError

from nameservice import (
    NS_PER_SECOND,
    AuthenticationError,
    ConfigurationError,
    LeadershipLostError,
    LocalProtocolError,
    SystemClock,
    get_logger,
    seconds_to_ns,
)
from nameservice.interruptible import InterruptibleQueue
from sparkpipeline.batch_guard import guard_starts
from sparkpipeline.configuration import use_ha_config
from sparkpipeline.failures import lodestar_error
from sparkpipeline.standby.checks import QueryChecks
from sparkpipeline.standby.contender import DriverContender
from sparkpipeline.standby.core import (
    AbandonWarmUp,
    ApplicationFailed,
    BeliefRead,
    Collided,
    Contend,
    EndProcess,
    EndReason,
    Fenced,
    Finish,
    JVMLost,
    QueriesEnded,
    QueriesStopped,
    StandbyCore,
    StandbyEffect,
    StandbyEvent,
    StandbyState,
    StartApplication,
    StopQueries,
    StopRequested,
    WarmedUp,
    Withdraw,
)
from sparkpipeline.standby.fuse import HALT_EXIT_CODE, JVMFuse
from sparkpipeline.standby.leadership import StandbyLeadership
from sparkpipeline.standby.queries import (
    active_queries,
    is_collision,
    queries_of,
    stop_queries,
    watch_queries,
)
from sparkpipeline.standby.stop_requests import stop_requests
from sparkpipeline.standby.takeover import Takeover
from sparkpipeline.standby.warm_up import WarmUp


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from election import LeaderElection, LeaderSession
    from haservices import HAServices
    from sparkpipeline.standby.settings import DriverSettings


__all__ = ["Application", "Driver"]

Application: TypeAlias = (
    "Callable[[SparkSession, StandbyLeadership],"
    " StreamingQuery | Sequence[StreamingQuery]]"
)

_Happening: TypeAlias = "StandbyEvent | Exception | _OfApplication"

# A part of the lease: how often belief is read, and the JVM's deadline put ahead.
_TICK_DIVISOR: Final = 5
_TICK_SECONDS_MAX: Final = 0.5
_LAPSE_LEASES: Final = 2
# The JVM of a driver that was paused is over before a silent session is.
_FUSE_DIVISOR: Final = 2


@final
@frozen(kw_only=True)
class _OfApplication:
    """
    What the application of one leadership tells, maybe when that is over.

    Attributes:
        leadership: Whose.
        happening: What: an event, or what it or one of its queries has failed with.
    """

    leadership: StandbyLeadership
    happening: StandbyEvent | Exception


@final
class Driver:
    """
    One driver.

    Args:
        spark: Its session.
        ha: The name service; stays its owner's.
        application: What it runs while it leads.
        settings: How.
        warm_up: What else to warm.
    """

    def __init__(
        self,
        spark: SparkSession,
        ha: HAServices,
        application: Application,
        settings: DriverSettings,
        *,
        warm_up: Callable[[SparkSession], object] | None,
    ) -> None:
        lease_seconds = ha.config.lease_seconds
        self._spark = spark
        self._ha = ha
        self._application = application
        self._settings = settings
        self._clock = SystemClock()
        self._log = get_logger(component="standby", component_id=settings.job_id)
        self._happenings: InterruptibleQueue[_Happening] = InterruptibleQueue()
        self._store = ha.get_leader_store(settings.job_id)
        self._takeover = Takeover(ha, settings)
        self._checks = QueryChecks(spark, settings.checked_locations)
        self._warm_up = WarmUp(spark, warm_up)
        self._fuse = JVMFuse(
            spark.sparkContext._gateway,  # noqa: SLF001 (there is no other way to it)
            ha.config.session_timeout_seconds / _FUSE_DIVISOR,
        )
        self._tick_seconds = min(lease_seconds / _TICK_DIVISOR, _TICK_SECONDS_MAX)
        self._core = StandbyCore(
            warm_up_ns=seconds_to_ns(settings.warm_up_seconds),
            lapse_ns=seconds_to_ns(lease_seconds * _LAPSE_LEASES),
            stop_ns=seconds_to_ns(settings.stop_seconds),
            now_ns=self._clock.now_ns(),
        )
        self._election: LeaderElection | None = None
        self._contender: DriverContender | None = None
        self._leadership: StandbyLeadership | None = None
        self._starting: threading.Thread | None = None
        self._queries: Sequence[StreamingQuery] = ()
        self._error: Exception | None = None
        self._is_unwarmed = False
        self._began_seconds = time.monotonic()

    def run(self) -> None:
        """
        Warm up, contend, lead, and so on, to the end.

        Raises:
            Exception: What the application, a query or the election has failed with.
        """
        try:
            self._takeover.check_version()
            with stop_requests(
                lambda: self._happenings.put(StopRequested())
            ) as tell_state:
                self._log.info("standby.warming")
                self._start_thread("warm-up", self._warm)
                told: StandbyState | None = None
                while self._core.state is not StandbyState.ENDED:
                    if told is not self._core.state:
                        told = self._core.state
                        is_cold = told is StandbyState.WARM and self._is_unwarmed
                        tell_state("cold" if is_cold else told.value, self._epoch())
                    self._turn()
        finally:
            guard_starts(None)
            self._withdraw()
            with contextlib.suppress(Py4JError, OSError):
                self._fuse.close()
        self._log.info(
            "standby.ended",
            reason=None if self._core.reason is None else self._core.reason.value,
        )
        if self._core.reason is EndReason.FAILED:
            assert self._error is not None
            raise self._error

    # -- the loop ----------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for what happens next, and do what comes of it."""
        try:
            happening: _Happening | None = self._happenings.get(
                timeout=self._timeout_seconds()
            )
        except queue.Empty:
            happening = None
        self._step(self._event(happening))
        self._watch()

    def _epoch(self) -> int | None:
        leadership = self._leadership
        return None if leadership is None else leadership.epoch

    def _timeout_seconds(self) -> float:
        """Return how long to wait; never long, for a signal may be seen late."""
        if self._core.state in {StandbyState.LEADING, StandbyState.STOPPING}:
            return self._tick_seconds
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is None:
            return _TICK_SECONDS_MAX
        left_ns = max(deadline_ns - self._clock.now_ns(), 0)
        return min(left_ns / NS_PER_SECOND, _TICK_SECONDS_MAX)

    def _event(self, happening: _Happening | None) -> StandbyEvent | None:
        """Return what *happening* comes to."""
        if isinstance(happening, _OfApplication):
            if happening.leadership is not self._leadership:
                return None
            if not isinstance(happening.happening, Exception):
                return happening.happening
            error = lodestar_error(happening.happening) or happening.happening
            if isinstance(error, LeadershipLostError):
                return Fenced()  # a batch was refused, which is no failure
            if is_collision(error):
                self._log.warning("standby.collided", epoch=happening.leadership.epoch)
                return self._failed(error, Collided())
            return self._failed(error)
        if isinstance(happening, Exception):
            if isinstance(happening, AuthenticationError | ConfigurationError):
                return self._failed(happening)
            self._log.warning("election.failed", error=str(happening))
            return None
        return happening

    def _failed(
        self, error: Exception, event: StandbyEvent | None = None
    ) -> StandbyEvent:
        """Return the event of a failure, which `run` raises if it ends the driver."""
        # What is being stopped may fail in any way.
        if self._core.state is not StandbyState.STOPPING:
            self._error = error
        return ApplicationFailed() if event is None else event

    def _watch(self) -> None:
        """Read belief, put the JVM's deadline ahead, and see that there is a JVM."""
        leadership, election = self._leadership, self._election
        if self._core.state is StandbyState.LEADING and leadership is not None:
            assert election is not None
            is_believing = election.has_leadership(leadership.leader_session_id)
            self._step(BeliefRead(is_believing=is_believing))
        try:
            if self._core.state in {StandbyState.LEADING, StandbyState.STOPPING}:
                self._fuse.renew()
            elif self._core.state is StandbyState.WARM:
                self._fuse.check()
        except (Py4JError, OSError) as error:
            self._error = self._jvm_lost(error)
            self._step(JVMLost())

    def _jvm_lost(self, error: Exception) -> LocalProtocolError:
        """Return what the driver fails with, for it is of no use without its JVM."""
        if self._fuse.is_overdue():
            config = self._ha.config
            allowed_seconds = config.session_timeout_seconds / _FUSE_DIVISOR
            lost = LocalProtocolError(
                f"the driver's JVM has ended itself: it or its Python did not run for "
                f"{allowed_seconds:g} s, half of the session timeout, and after that "
                "another driver may lead; if they were not stopped on purpose, the "
                "machine is too busy or collecting garbage takes too long: give the "
                "driver more, or set a longer session_timeout_seconds"
            )
        else:
            lost = LocalProtocolError(f"the driver's JVM does not answer: {error}")
        lost.__cause__ = error
        return lost

    def _step(self, event: StandbyEvent | None) -> None:
        for effect in self._core.step(event, now_ns=self._clock.now_ns()):
            self._perform(effect)

    def _perform(self, effect: StandbyEffect) -> None:
        match effect:
            case AbandonWarmUp():
                self._is_unwarmed = True
                self._log.warning(
                    "standby.unwarmed", waited_seconds=self._settings.warm_up_seconds
                )
                self._start_thread("abandon", self._warm_up.abandon)
            case Contend():
                self._contend()
            case StartApplication(session=session):
                self._start_application(session)
            case StopQueries():
                assert self._core.reason is not None
                self._log.info("standby.stopping", reason=self._core.reason.value)
                self._start_thread("stop", self._stop)
            case Withdraw():
                self._withdraw()
            case Finish():
                pass  # the state says it
            case EndProcess():
                self._end_process()
            case _:
                assert_never(effect)

    def _start_thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"standby-{name}", daemon=True)
        thread.start()
        return thread

    # -- warming, contending -----------------------------------------------------------

    def _warm(self) -> None:
        try:
            self._warm_up.run()
        except Exception as error:  # noqa: BLE001 - the application may do all the same
            self._is_unwarmed = True
            self._log.warning("standby.unwarmed", error=str(error))
        self._happenings.put(WarmedUp())

    def _contend(self) -> None:
        election = self._ha.get_leader_election(self._settings.job_id)
        self._election = election
        self._contender = DriverContender(
            election, self._settings.address, self._happenings.put
        )
        self._log.info(
            "standby.warm",
            after_seconds=round(time.monotonic() - self._began_seconds, 3),
        )
        election.start(self._contender)

    def _withdraw(self) -> None:
        with contextlib.suppress(Py4JError, OSError):
            self._fuse.disarm()
        if self._contender is not None:
            self._contender.is_idle.set()
        if self._election is not None:
            self._election.close()
        self._election = self._contender = self._leadership = None
        self._queries = ()

    # -- leading -----------------------------------------------------------------------

    def _start_application(self, session: LeaderSession) -> None:
        assert self._election is not None
        assert self._contender is not None
        leadership = StandbyLeadership(
            self._election,
            session,
            self._store,
            lost=self._contender.leadership_lost,
            on_fenced=lambda: self._tell(leadership, Fenced()),
            check_query=self._checks.check_id,
        )
        self._log.info("standby.leading", epoch=session.epoch)
        self._leadership, election = leadership, self._election
        self._starting = self._start_thread(
            "application", lambda: self._run_application(leadership, election)
        )

    def _run_application(
        self, leadership: StandbyLeadership, election: LeaderElection
    ) -> None:
        try:
            if not self._takeover.complete(leadership, election):
                return
            if not leadership.begin():
                return
            self._is_unwarmed = False  # what it does now warms it
            use_ha_config(self._spark, self._ha.config)
            guard_starts(leadership.guard)
            started = self._application(self._spark, leadership)
            queries = queries_of(started)
            self._queries = queries
            for query in queries:
                if query.isActive:
                    self._checks.check(query)
        except Exception as error:  # noqa: BLE001 - it is raised by run()
            self._tell(leadership, error)
            return
        self._log.info(
            "standby.started",
            epoch=leadership.epoch,
            query_ids=[str(query.id) for query in queries],
        )
        watch_queries(
            queries,
            on_failed=lambda error: self._tell(leadership, error),
            on_all_ended=lambda: self._tell(leadership, QueriesEnded()),
        )

    def _tell(
        self, leadership: StandbyLeadership, happening: StandbyEvent | Exception
    ) -> None:
        self._happenings.put(_OfApplication(leadership=leadership, happening=happening))

    # -- stopping ----------------------------------------------------------------------

    def _stop(self) -> None:
        """Wait for the present batch to finish, stop the queries, and tell."""
        leadership = self._leadership
        assert leadership is not None
        assert self._starting is not None
        # The take-over alone is not waited for: the name service may be away.
        if leadership.begin_stop():
            self._starting.join()
        try:
            # Also what the application has started and not returned.
            active = active_queries(self._spark)
            known = {str(query.id) for query in self._queries}
            others = [query for query in active if str(query.id) not in known]
            stop_queries([*self._queries, *others], leadership)
        except (Py4JNetworkError, OSError) as error:
            # Without a JVM no query runs.
            self._log.warning("standby.jvm_lost", error=str(error))
        except Exception as error:  # noqa: BLE001 - then it is ended after stop_seconds
            self._log.warning("standby.unstopped", error=str(error))
            return
        self._happenings.put(QueriesStopped())

    def _end_process(self) -> None:
        """End the JVM and this process: something of it may still write."""
        self._log.error(
            "standby.killed_itself", waited_seconds=self._settings.stop_seconds
        )
        self._fuse.blow()
        os._exit(HALT_EXIT_CODE)
