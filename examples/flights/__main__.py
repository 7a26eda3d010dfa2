"""
The demo: a year of flights through Spark, and a leader that dies midway.

``python -m examples.flights --backend leaderserver`` (or ``zookeeper``, ``embedded``).
The backends differ by one line, the URL; but embedded collectors are threads of the
driver, the driver delivers, and the leader's session is expired instead of killed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from attrs import frozen
from pyspark.errors import PySparkException

from examples.flights.children import ChildProcess
from examples.flights.cluster import collector_processes, collector_threads
from examples.flights.collector import JOB_ID, read_store
from examples.flights.comparison import comparison
from examples.flights.data import DataError, carrier_names, count_flights, write_replay
from examples.flights.disruption import Disruption, LeaderExpired, LeaderKilled
from examples.flights.job import (
    StreamSettings,
    deliver_from_driver,
    deliver_from_executors,
    open_spark,
    start_stream,
)
from examples.flights.messages import Report
from examples.flights.name_service import NameServiceFailedError, name_service
from examples.flights.timeline import Timeline
from examples.flights.totals import TotalsCore
from haservices import Backend, HAConfig, HAServices, open_ha_services
from nameservice import NameServiceError, configure_logging
from sparkpipeline import close_ha_services, to_spark_settings


_STREAM_TIMEOUT_SECONDS: Final = 300


@frozen(kw_only=True)
class Arguments:
    """
    What the demo is asked to do.

    Attributes:
        backend: Which name service.
        flight_count_max: Replay no more flights than this; None replays all.
        file_count: In how many files they are replayed.
        files_per_batch: How many of them make one micro-batch.
        core_count: How many tasks Spark runs at a time.
        session_timeout_seconds: After how much silence a session ends.
    """

    backend: Backend
    flight_count_max: int | None
    file_count: int
    files_per_batch: int
    core_count: int
    session_timeout_seconds: float

    @property
    def disrupted_batch_id(self) -> int:
        """Return the batch in the middle."""
        return self.file_count // self.files_per_batch // 2


class DemoFailedError(Exception):
    """The demo did not show what it is there to show."""


def main() -> int:
    """Run the demo; return 0 if what was to be shown was shown."""
    arguments = _parse_arguments()
    configure_logging("error")
    # Whatever ends us, the processes that we started end first.
    signal.signal(signal.SIGTERM, _terminate)
    work_directory = Path(tempfile.mkdtemp(prefix="lodestar-flights-"))
    try:
        _run(arguments, work_directory)
    except (
        DataError,
        DemoFailedError,
        NameServiceError,
        NameServiceFailedError,
        PySparkException,
    ) as error:
        print(f"\nFAILED: {error}\nlogs are in {work_directory}", file=sys.stderr)
        return 1
    except BaseException:
        print(f"\nlogs are in {work_directory}", file=sys.stderr)
        raise
    shutil.rmtree(work_directory)
    return 0


def _run(arguments: Arguments, work_directory: Path) -> None:
    timeline = Timeline()
    replay_directory = work_directory / "replay"
    replay_directory.mkdir()
    flight_count = write_replay(
        replay_directory,
        file_count=arguments.file_count,
        flight_count_max=arguments.flight_count_max,
    )
    timeline.say("data", f"{flight_count:,} flights in {arguments.file_count} files")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(name_service(arguments.backend, work_directory))
        timeline.say("name service", url)
        config = HAConfig(
            url=url, session_timeout_seconds=arguments.session_timeout_seconds
        )
        ha = stack.enter_context(open_ha_services(config))
        with _collectors(arguments, ha, timeline, work_directory) as disruption:
            _stream(arguments, config, timeline, disruption, work_directory)
        # The collectors have ended, and what they had to report has come.
        core = read_store(ha.get_leader_store(JOB_ID))
    _judge(arguments, timeline, core)


@contextlib.contextmanager
def _collectors(
    arguments: Arguments, ha: HAServices, timeline: Timeline, work_directory: Path
) -> Iterator[Disruption]:
    """Start the collectors, and yield what will befall the one that leads."""
    disruption: Disruption
    retriever = ha.get_leader_retriever(JOB_ID)
    retriever.start(timeline)
    with retriever:
        if arguments.backend is Backend.EMBEDDED:
            disruption = LeaderExpired(
                ha,
                batch_id=arguments.disrupted_batch_id,
                on_done=timeline.take_disruption,
            )
            with collector_threads(retriever, ha.config, timeline.take_report):
                yield disruption
            return
        processes: dict[str, ChildProcess] = {}
        disruption = LeaderKilled(
            processes,
            batch_id=arguments.disrupted_batch_id,
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
            rehearsed_batch_id=arguments.disrupted_batch_id,
            log_directory=work_directory,
        ):
            yield disruption


def _stream(
    arguments: Arguments,
    config: HAConfig,
    timeline: Timeline,
    disruption: Disruption,
    work_directory: Path,
) -> None:
    """Replay all the files, and return when each delivery is acknowledged."""
    is_embedded = arguments.backend is Backend.EMBEDDED
    settings = StreamSettings(
        stream_id=uuid.uuid4().hex,
        input_directory=work_directory / "replay",
        checkpoint_directory=work_directory / "checkpoint",
        files_per_batch=arguments.files_per_batch,
    )
    with (
        open_spark(
            to_spark_settings(config),
            core_count=arguments.core_count,
            log_file=work_directory / "spark.log",
        ) as spark,
        # What tasks found the leader with on the driver, if they ran there.
        contextlib.ExitStack() as stack,
    ):
        stack.callback(close_ha_services)
        timeline.say(
            "spark",
            "streams; "
            + (
                "the driver delivers, for an embedded name service ends at its process"
                if is_embedded
                else f"tasks on {arguments.core_count} Python workers deliver"
            ),
        )
        query = start_stream(
            spark,
            settings,
            deliver_batch=(
                deliver_from_driver if is_embedded else deliver_from_executors
            ),
            on_begun=disruption.begin_batch,
            on_delivered=timeline.take_batch,
        )
        stack.callback(query.stop)
        if not query.awaitTermination(_STREAM_TIMEOUT_SECONDS):
            message = f"the stream did not end within {_STREAM_TIMEOUT_SECONDS} s"
            raise DemoFailedError(message)


def _judge(arguments: Arguments, timeline: Timeline, core: TotalsCore) -> None:
    """
    Print what happened, and compare the totals.

    Raises:
        DemoFailedError: If they differ, or nobody took over from a disrupted leader.
    """
    counted = count_flights(arguments.flight_count_max)
    print(timeline.summary())
    print(comparison(core.totals, counted, carrier_names()))
    if core.totals != counted:
        message = "the totals differ from a plain count of the file"
        raise DemoFailedError(message)
    if timeline.successor is None:
        message = "no leader was lost and succeeded: nothing was shown"
        raise DemoFailedError(message)
    print("\nEQUAL: nothing lost, nothing counted twice.")


def _parse_arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="Count a year of flights under leaders that may die.",
    )
    parser.add_argument(
        "--backend",
        choices=[backend.value for backend in Backend],
        default=Backend.LEADERSERVER.value,
    )
    parser.add_argument(
        "--flights",
        type=_positive,
        metavar="N",
        help="replay the first N flights (default: all of them)",
    )
    parser.add_argument("--files", type=_positive, metavar="N", default=48)
    parser.add_argument("--files-per-batch", type=_positive, metavar="N", default=4)
    parser.add_argument("--cores", type=_positive, metavar="N", default=2)
    parser.add_argument("--session-timeout-seconds", type=float, default=4.0)
    parsed = parser.parse_args()
    if parsed.files < 3 * parsed.files_per_batch:
        parser.error("--files must be at least three times --files-per-batch")
    return Arguments(
        backend=Backend(parsed.backend),
        flight_count_max=parsed.flights,
        file_count=parsed.files,
        files_per_batch=parsed.files_per_batch,
        core_count=parsed.cores,
        session_timeout_seconds=parsed.session_timeout_seconds,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        message = "must be at least 1"
        raise argparse.ArgumentTypeError(message)
    return number


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
