"""
The verb standby: keep a driver of `sparkpipeline.run_with_standby` running.

The command contends for leadership itself, and runs while it does not lead, too.  We
tell it the name service and the job by its environment, start it again when it fails,
and ask it to end by closing a connection (`DriverControl`): a signal to
``spark-submit`` would end its JVM in the middle of a batch.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias, final

from haservices.config import ENVIRONMENT_PREFIX, STANDBY_CONTROL, STANDBY_JOB
from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    job_id,
    load_config,
    positive_count,
    positive_seconds,
)
from lodestar.exit_codes import ExitCode
from lodestar.guarded_command import GuardedCommand
from lodestar.output import printable
from lodestar.signals import stop_signals
from nameservice import ConfigurationError


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from lodestar.verbs import Verbs


__all__ = ["DriverControl", "add_verbs"]

_GRACE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 1.0
_PAUSE_SECONDS_MAX: Final = 30.0
# A command that has run this long has not failed because of how it was started.
_SETTLED_SECONDS: Final = 60.0
_SIGNAL_EXIT_CODE_BASE: Final = 128

_Happening: TypeAlias = "signal.Signals | int"
"""A signal to us; or the command's return code, negative for a signal."""


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "standby",
        _standby,
        operands="JOB -- COMMAND [ARGUMENT]...",
        description="Run COMMAND, a driver that calls sparkpipeline.run_with_standby, "
        "as one of those that contend for JOB, and start it again when it fails. It "
        "finds JOB and the name service in its environment. After SIGTERM or SIGINT "
        "it finishes its batch and ends, and the next driver leads; a second signal "
        "kills it. The exit code is 0 then, or when COMMAND ends with 0.",
        examples="lodestar standby flights -- spark-submit flights.py\n"
        "lodestar standby flights --restarts 3 -- python flights.py",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument(
        "--restarts",
        metavar="N",
        type=positive_count,
        help="end with the exit code of COMMAND after starting it again this often "
        "(default: start it again for ever)",
    )
    parser.add_argument(
        "--grace-seconds",
        metavar="SECONDS",
        type=positive_seconds,
        default=_GRACE_SECONDS,
        help="how long COMMAND may take to end before it is killed "
        "(default: %(default)g)",
    )
    add_name_service_options(parser, contends=True)
    add_log_option(parser, "warning")


@final
class DriverControl:
    """
    Where a driver connects, to be told to end.  A context manager.

    Attributes:
        path: Of the socket.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="lodestar-standby-")
        self.path = str(Path(self._directory.name) / "control")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        # A driver is connected as soon as it is in this queue: nothing is to be said
        # to it before `stop`.
        self._listener.listen()
        self._listener.setblocking(False)  # noqa: FBT003 (a name would be refused)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._directory.cleanup()

    def stop(self) -> bool:
        """Tell the driver to end; return whether there is one that hears of it."""
        is_heard = False
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.close()
                is_heard = True
        return is_heard


def _standby(arguments: Namespace) -> int:
    command = arguments.command
    if not command:
        message = "there is no command to run: write it last, after '--'"
        raise ConfigurationError(message)
    if shutil.which(command[0]) is None:
        message = f"there is no command {command[0]!r}"
        raise ConfigurationError(message)
    config = load_config(arguments)
    environment = {
        ENVIRONMENT_PREFIX + name.upper(): str(value)
        for name, value in config.to_settings().items()
    } | {STANDBY_JOB: arguments.job}
    left = math.inf if arguments.restarts is None else arguments.restarts
    pause_seconds = _PAUSE_SECONDS
    happenings: queue.SimpleQueue[_Happening] = queue.SimpleQueue()
    with stop_signals(happenings.put):
        while True:
            _say(f"running {command[0]} for {arguments.job}")
            began_seconds = time.monotonic()
            return_code = _run(
                command, environment, happenings, grace_seconds=arguments.grace_seconds
            )
            if return_code is None:
                _say(f"ended {command[0]}")
                return ExitCode.DONE
            if return_code == 0:
                return ExitCode.DONE
            if time.monotonic() - began_seconds >= _SETTLED_SECONDS:
                pause_seconds = _PAUSE_SECONDS
            if left <= 0:
                return _exit_code(return_code)
            left -= 1
            _say(
                f"{command[0]} ended with {_exit_code(return_code)}: starting it again "
                f"in {pause_seconds:g} s"
            )
            with contextlib.suppress(queue.Empty):
                happenings.get(timeout=pause_seconds)
                return ExitCode.DONE
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    happenings: queue.SimpleQueue[_Happening],
    *,
    grace_seconds: float,
) -> int | None:
    """Return how *command* has ended, or None if that was because of a signal to us."""
    with DriverControl() as control:
        running = GuardedCommand(
            command,
            environment=os.environ | environment | {STANDBY_CONTROL: control.path},
            on_over=happenings.put,
        )
        try:
            happening = happenings.get()
            if not isinstance(happening, signal.Signals):
                return happening
            if not control.stop():
                running.signal(signal.SIGTERM)  # it does not listen yet, or never will
            with contextlib.suppress(queue.Empty):
                happening = happenings.get(timeout=grace_seconds)
                if not isinstance(happening, signal.Signals):
                    return None
            running.signal(signal.SIGKILL)
            while isinstance(happenings.get(), signal.Signals):
                pass
            return None
        finally:
            running.close()


def _exit_code(return_code: int) -> int:
    if return_code < 0:
        return _SIGNAL_EXIT_CODE_BASE - return_code
    return return_code


def _say(sentence: str) -> None:
    print(f"lodestar standby: {printable(sentence)}", file=sys.stderr, flush=True)
