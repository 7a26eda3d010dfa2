"""The demo from beginning to end: start everything, stream, disrupt, compare."""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

from attrs import frozen
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.asking import Asker, differences
from examples.flights.children import ChildProcess
from examples.flights.cluster import collector_processes, collector_threads
from examples.flights.collector import JOB_ID, read_store
from examples.flights.comparison import comparison
from examples.flights.data import carrier_names, count_flights, write_replay
from examples.flights.disruption import Disruption, LeaderExpired, LeaderKilled
from examples.flights.job import (
    StreamSettings,
    deliver_from_driver,
    deliver_from_executors,
    open_spark,
    read_replay,
    start_stream,
)
from examples.flights.messages import Report
from examples.flights.name_service import name_service
from examples.flights.rescaling import Rescaling
from examples.flights.standby import StandbyDrivers
from examples.flights.state_processes import StateProcesses
from examples.flights.states import (
    AIRCRAFT,
    CARRIERS,
    STATES,
    compute_state,
    start_state_stream,
)
from examples.flights.termination import Termination
from examples.flights.timeline import Timeline
from examples.flights.totals import TotalsCore
from haservices import (
    Backend,
    Guarantee,
    HAConfig,
    HAServices,
    open_ha_services,
)
from queryablestate import QueryableStateClient
from sparkpipeline import close_ha_services, to_spark_settings


__all__ = ["KEPT_UP", "QUERY", "Demo", "DemoFailedError", "DemoSettings"]

_STREAM_TIMEOUT_SECONDS: Final = 300
_CHECK_SECONDS: Final = 1
_GO_ON: Final = (
    "\nTo ask by yourself: make demo KEEP=1, or docs/tutorial/ask-a-job.md part by part"
)


_COMMAND: Final = Path(sys.executable).with_name("lodestar")
QUERY: Final = (
    "SELECT carrier, flights, cancelled FROM carriers ORDER BY cancelled DESC LIMIT 3"
)
KEPT_UP: Final = """
Name service, proxy, nodes, gateway and SQL stay up until Ctrl-C.
Look at it in a browser: {gateway_url}/
Or ask from another terminal:
  export LODESTAR_URL={url}
  {command} states
  {command} get flights aircraft N14228
  {command} get flights routes EWR,ORD
  {command} export flights aircraft --format csv
  curl -s {gateway_url}/v1/jobs/flights/states/carriers/keys/UA
  psql -h {sql_host} -p {sql_port} -d flights -U me -c "{query}"
  {command} nodes"""


class DemoFailedError(Exception):
    """The demo did not show what it is there to show."""


@frozen(kw_only=True)
class DemoSettings:
    """
    What is shown.

    Attributes:
        backend: Which name service.
        flight_count_max: Replay no more flights than this; None replays all.
        file_count: In how many files they are replayed.
        files_per_batch: How many of them make one micro-batch.
        core_count: How many tasks Spark runs at a time.
        session_timeout_seconds: After how much silence a session ends.
        keeps_up: Whether there are a gateway and SQL, and all but Spark and the
            collectors stay up until a signal comes.
    """

    backend: Backend
    flight_count_max: int | None
    file_count: int
    files_per_batch: int
    core_count: int
    session_timeout_seconds: float
    keeps_up: bool

    @property
    def is_embedded(self) -> bool:
        """Return whether everything happens in the driver's process."""
        return self.backend is Backend.EMBEDDED

    @property
    def disrupted_batch_id(self) -> int:
        """Return the batch in the middle."""
        return self.file_count // self.files_per_batch // 2

    @property
    def rescaled_batch_id(self) -> int:
        """Return the batch before which a node joins: an early one."""
        return 1

    @property
    def proxy_killed_batch_id(self) -> int:
        """Return the batch before which the leading proxy is killed: a later one."""
        return self.disrupted_batch_id + 1


@final
class Demo:
    """
    One run of the demo.

    Args:
        settings: What is shown.
        termination: Asked between the steps.
        work_directory: Where files and logs go; stays the caller's.
    """

    def __init__(
        self, settings: DemoSettings, termination: Termination, work_directory: Path
    ) -> None:
        self._settings = settings
        self._termination = termination
        self._directory = work_directory
        self._replay_directory = work_directory / "replay"
        self._timeline = Timeline()

    def run(self) -> None:
        """
        Run it, and print what happens.

        Raises:
            DemoFailedError: If totals or states are not what they should be, no
                collector took over from a leader that was lost, or no node joined and
                left.
        """
        self._timeline.introduce()
        with contextlib.ExitStack() as up:
            with self._timeline.never_silent():
                urls, core = self._show(up)
            self._judge(core)
            if self._settings.keeps_up:
                print(KEPT_UP.format(command=_COMMAND, **urls), flush=True)
                self._termination.wait()
                return
        print(_GO_ON)

    def _show(self, up: contextlib.ExitStack) -> tuple[Mapping[str, str], TotalsCore]:
        """
        Start everything and stream; return where it can be asked, and the totals.

        Args:
            up: Ends the name service, proxies, nodes, gateway and SQL.
        """
        self._replay_directory.mkdir()
        flight_count = write_replay(
            self._replay_directory,
            file_count=self._settings.file_count,
            flight_count_max=self._settings.flight_count_max,
        )
        self._timeline.say(
            "data", f"{flight_count:,} flights in {self._settings.file_count} files"
        )
        url = up.enter_context(name_service(self._settings.backend, self._directory))
        config = HAConfig(
            url=url,
            session_timeout_seconds=self._settings.session_timeout_seconds,
        )
        ha = up.enter_context(open_ha_services(config))
        self._timeline.say("name service", f"{url}; {_notice(ha)}")
        state_processes = up.enter_context(self._state_processes(ha))
        urls = {"url": url}
        if self._settings.keeps_up and state_processes is not None:
            urls["gateway_url"] = state_processes.start_gateway()
            host, _, port = state_processes.start_sql().rpartition(":")
            urls |= {"sql_host": host, "sql_port": port, "query": QUERY}
        with self._collectors(ha) as disruption:
            self._stream(config, disruption, state_processes)
        # The collectors have ended: what they had to report has come.
        return urls, read_store(ha.get_leader_store(JOB_ID))

    @contextlib.contextmanager
    def _state_processes(self, ha: HAServices) -> Iterator[StateProcesses | None]:
        """Start the proxies and nodes, where processes can reach the name service."""
        if self._settings.is_embedded:
            self._timeline.say(
                "state",
                "is left out: its processes cannot reach an embedded name service",
            )
            yield None
            return
        with StateProcesses(ha, self._timeline, self._directory) as state_processes:
            yield state_processes

    @contextlib.contextmanager
    def _collectors(self, ha: HAServices) -> Iterator[Disruption]:
        """Start the collectors, and yield what will befall the one that leads."""
        timeline = self._timeline
        batch_id = self._settings.disrupted_batch_id
        disruption: Disruption
        retriever = ha.get_leader_retriever(JOB_ID)
        retriever.start(timeline)
        with retriever:
            if self._settings.is_embedded:
                disruption = LeaderExpired(
                    ha,
                    batch_id=batch_id,
                    leader_name=lambda: timeline.leader_name,
                    on_done=timeline.take_disruption,
                )
                with collector_threads(retriever, ha.config, timeline.take_report):
                    yield disruption
                return
            processes: dict[str, ChildProcess] = {}
            disruption = LeaderKilled(
                processes,
                batch_id=batch_id,
                leader_name=lambda: timeline.leader_name,
                on_done=timeline.take_disruption,
            )

            def take_report(report: Report) -> None:
                timeline.take_report(report)
                disruption.take_report(report)

            with collector_processes(
                processes,
                retriever,
                ha.config,
                take_report,
                rehearsed_batch_id=batch_id,
                log_directory=self._directory,
            ):
                yield disruption

    def _stream(
        self,
        config: HAConfig,
        disruption: Disruption,
        state_processes: StateProcesses | None,
    ) -> None:
        """Replay all the files, and return when each delivery is acknowledged."""
        settings = self._settings
        with contextlib.ExitStack() as stack:
            # From here on we call the JVM, which no signal may interrupt.
            stack.enter_context(self._termination.deferred())
            self._timeline.say("spark", "starts, which takes a while")
            # What `deliver_from_driver` finds the leader with.
            stack.callback(close_ha_services)
            spark = stack.enter_context(
                open_spark(
                    to_spark_settings(config),
                    core_count=settings.core_count,
                    log_file=self._directory / "spark.log",
                )
            )
            self._termination.install()
            self._timeline.say(
                "spark",
                "streams; the driver delivers: an embedded name service ends there"
                if settings.is_embedded
                else f"streams; tasks in {settings.core_count} Python workers deliver",
            )
            if state_processes is None:
                self._deliver(spark, stack, disruption.begin_batch)
                return
            asker = self._publish(spark, stack, config)
            rescaling = Rescaling(
                config,
                state_processes,
                self._timeline,
                batch_id=settings.rescaled_batch_id,
            )
            stack.callback(rescaling.close)

            def begin_batch(batch_id: int) -> None:
                disruption.begin_batch(batch_id)
                rescaling.begin_batch(batch_id)
                if batch_id == settings.proxy_killed_batch_id:
                    state_processes.kill_proxy_leader(f"before batch {batch_id}")

            self._deliver(spark, stack, begin_batch)
            for query in spark.streams.active:
                self._await(query)
            rescaling.close()
            asker.close()
            if not rescaling.is_done:
                why = rescaling.problem or "that did not end"
                message = f"no node has joined and left as it should: {why}"
                raise DemoFailedError(message)
            print(f"\n{rescaling.summary()}")
            drivers = stack.enter_context(self._standby_drivers(stack, config))
            carriers = self._judge_states(spark, config, asker)
            print(drivers.disrupt(carriers))

    def _standby_drivers(
        self, stack: contextlib.ExitStack, config: HAConfig
    ) -> StandbyDrivers:
        """Return two more drivers, which start meanwhile."""
        return StandbyDrivers(
            stack.enter_context(open_ha_services(config)),
            self._timeline,
            self._replay_directory,
            self._directory,
            files_per_batch=self._settings.files_per_batch,
            check=self._termination.check,
        )

    def _deliver(
        self,
        spark: SparkSession,
        stack: contextlib.ExitStack,
        on_begun: Callable[[int], None],
    ) -> None:
        """Deliver the carriers' totals; return when all are acknowledged."""
        settings = self._settings
        query = start_stream(
            spark,
            StreamSettings(
                stream_id=uuid.uuid4().hex,
                input_directory=self._replay_directory,
                checkpoint_directory=self._directory / "checkpoint",
                files_per_batch=settings.files_per_batch,
            ),
            deliver_batch=(
                deliver_from_driver if settings.is_embedded else deliver_from_executors
            ),
            on_begun=on_begun,
            on_delivered=self._timeline.take_batch,
        )
        stack.callback(query.stop)
        self._await(query)

    def _publish(
        self, spark: SparkSession, stack: contextlib.ExitStack, config: HAConfig
    ) -> Asker:
        """Publish all states; have somebody ask for them meanwhile."""
        for state in STATES:
            query = start_state_stream(
                read_replay(
                    spark,
                    self._replay_directory,
                    files_per_batch=self._settings.files_per_batch,
                ),
                state,
                config,
                self._directory / f"checkpoint-{state.name}",
            )
            stack.callback(query.stop)
        self._timeline.say("spark", "publishes states of aircraft, routes and carriers")
        tail_numbers = sorted(compute_state(spark, self._replay_directory, AIRCRAFT))
        self._timeline.say(
            "asker", f"asks for {len(tail_numbers):,} aircraft, knowing {config.url}"
        )
        asker = Asker(config.url, tail_numbers, self._timeline)
        stack.callback(asker.close)
        return asker

    def _await(self, query: StreamingQuery) -> None:
        """Return when *query* has read everything."""
        began = time.monotonic()
        while not query.awaitTermination(_CHECK_SECONDS):
            self._termination.check()
            if time.monotonic() - began > _STREAM_TIMEOUT_SECONDS:
                message = f"the stream did not end in {_STREAM_TIMEOUT_SECONDS} s"
                raise DemoFailedError(message)

    def _judge_states(
        self, spark: SparkSession, config: HAConfig, asker: Asker
    ) -> Mapping[Any, Mapping[str, Any]]:
        """Compare every key with a batch job; return what it says of the carriers."""
        print(asker.summary())
        computed: Mapping[Any, Mapping[str, Any]] = {}
        with QueryableStateClient(config.url, deadline_seconds=30.0) as client:
            for state in STATES:
                computed = compute_state(spark, self._replay_directory, state)
                found = differences(client, state, computed)
                if found:
                    message = f"{len(found)} answers differ, such as {found[0]}"
                    raise DemoFailedError(message)
                print(
                    f"Asked for all {len(computed):,} {state.name}: EQUAL to a batch "
                    "computation by Spark"
                )
        if asker.failure_count:
            message = f"{asker.failure_count} questions were not answered"
            raise DemoFailedError(message)
        assert STATES[-1] is CARRIERS
        return computed

    def _judge(self, core: TotalsCore) -> None:
        """Print what it came to, and compare the totals."""
        counted = count_flights(self._settings.flight_count_max)
        print(self._timeline.summary())
        print(comparison(core.totals, counted, carrier_names()))
        if core.totals != counted:
            message = "the totals differ from a plain count of the file"
            raise DemoFailedError(message)
        if self._timeline.successor is None:
            message = "no leader was lost and succeeded: nothing was shown"
            raise DemoFailedError(message)
        print("\nEQUAL: nothing lost, nothing counted twice.")


def _notice(ha: HAServices) -> str:
    """Return how soon this name service notices that a leader is dead."""
    if Guarantee.FAILOVER_WITHIN_LEASE in ha.guarantees:
        return f"notices a dead leader within its lease, {ha.config.lease_seconds:g} s"
    seconds = ha.config.session_timeout_seconds
    return f"notices a dead leader after the session timeout, {seconds:g} s"
