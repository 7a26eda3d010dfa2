"""
The demo: a year of flights through Spark, asked as it goes; leaders die midway.

``python -m examples.flights --backend leaderserver`` (or ``zookeeper``, ``embedded``).
The backends differ by one line, the URL; but embedded collectors are threads of the
driver, the driver delivers, the leader's session is expired instead of killed, and the
states, whose proxies and nodes are processes, are left out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.errors import PySparkException

from examples.flights.data import DataError
from examples.flights.demo import Demo, DemoFailedError, DemoSettings
from examples.flights.name_service import NameServiceFailedError
from examples.flights.standby import StandbyFailedError
from examples.flights.state_processes import StateProcessFailedError
from examples.flights.termination import Termination
from haservices import Backend
from nameservice import NameServiceError, configure_logging


def main() -> int:
    """Run the demo; return 0 if what was to be shown was shown."""
    settings = _parse_arguments()
    configure_logging("error")
    # Whatever ends us, the processes that we started end first.
    termination = Termination()
    work_directory = Path(tempfile.mkdtemp(prefix="lodestar-flights-"))
    try:
        Demo(settings, termination, work_directory).run()
    except SystemExit:
        shutil.rmtree(work_directory)
        raise
    except (
        DataError,
        DemoFailedError,
        NameServiceError,
        NameServiceFailedError,
        StateProcessFailedError,
        PySparkException,
        StandbyFailedError,
    ) as error:
        print(f"\nFAILED: {error}\nLogs are in {work_directory}.", file=sys.stderr)
        return 1
    except BaseException:
        print(f"\nLogs are in {work_directory}.", file=sys.stderr)
        raise
    shutil.rmtree(work_directory)
    return 0


def _parse_arguments() -> DemoSettings:
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
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep name service, proxy, nodes, a gateway and SQL up until Ctrl-C",
    )
    arguments = parser.parse_args()
    if arguments.keep and arguments.backend == Backend.EMBEDDED.value:
        parser.error("--keep: no other program can ask an embedded name service")
    if arguments.files < 3 * arguments.files_per_batch:
        parser.error("--files must be at least three times --files-per-batch")
    return DemoSettings(
        backend=Backend(arguments.backend),
        flight_count_max=arguments.flights,
        file_count=arguments.files,
        files_per_batch=arguments.files_per_batch,
        core_count=arguments.cores,
        session_timeout_seconds=arguments.session_timeout_seconds,
        keeps_up=arguments.keep,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        message = "must be at least 1"
        raise argparse.ArgumentTypeError(message)
    return number


if __name__ == "__main__":
    sys.exit(main())
