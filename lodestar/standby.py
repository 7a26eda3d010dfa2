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
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from haservices.config import ENVIRONMENT_PREFIX, STANDBY_CONTROL, STANDBY_JOB
from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    job_id,
    load_config,
    positive_count,
    positive_seconds,
)
from lodestar.driver_control import DriverControl, DriverWatch
from lodestar.exit_codes import ExitCode
from lodestar.guarded_command import (
    GuardedCommand,
    check_command,
    exit_code_of_command,
    reap_orphans,
)
from lodestar.metrics import add_metrics_option, metrics_of
from lodestar.output import say
from lodestar.signals import stop_signals
from nameservice.interruptible import InterruptibleQueue


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from lodestar.verbs import Verbs


__all__ = ["add_verbs"]

_GRACE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 1.0
_PAUSE_SECONDS_MAX: Final = 30.0
# A command that has run this long has not failed because of how it was started.
_SETTLED_SECONDS: Final = 60.0

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
    add_metrics_option(parser)
    add_name_service_options(parser, contends=True)
    add_log_option(parser, "warning")


def _standby(arguments: Namespace) -> int:
    command = arguments.command
    check_command(command)
    config = load_config(arguments)
    environment = {
        ENVIRONMENT_PREFIX + name.upper(): str(value)
        for name, value in config.to_settings().items()
    } | {STANDBY_JOB: arguments.job}
    if arguments.config is not None:
        # Else it would take from another file what this one leaves out.
        named = Path(arguments.config).absolute()
        environment[ENVIRONMENT_PREFIX + "CONFIG"] = str(named)
    left = math.inf if arguments.restarts is None else arguments.restarts
    pause_seconds = _PAUSE_SECONDS
    has_run = False
    happenings: InterruptibleQueue[_Happening] = InterruptibleQueue()
    watch = DriverWatch(arguments.job, _say)
    with stop_signals(happenings.put), metrics_of(arguments, watch):
        while True:
            _say(f"running {command[0]} for {arguments.job}")
            began_seconds = time.monotonic()
            try:
                return_code = _run(
                    command,
                    environment,
                    happenings,
                    watch,
                    grace_seconds=arguments.grace_seconds,
                )
            except OSError as error:
                if not has_run:
                    raise  # as things are here, it never would be
                # The disk or the memory is full, of which a driver may have died.
                watch.ended()
                return_code = ExitCode.FAILED
                ending = f"cannot be started ({error})"
            else:
                has_run = True
                ending = f"ended with {exit_code_of_command(return_code or 0)}"
            if return_code is None:
                _say(f"ended {command[0]}")
                return ExitCode.DONE
            if return_code == 0:
                return ExitCode.DONE
            if time.monotonic() - began_seconds >= _SETTLED_SECONDS:
                pause_seconds = _PAUSE_SECONDS
            if left <= 0:
                return exit_code_of_command(return_code)
            left -= 1
            _say(f"{command[0]} {ending}: starting it again in {pause_seconds:g} s")
            with contextlib.suppress(queue.Empty):
                happenings.get(timeout=pause_seconds)
                return ExitCode.DONE
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
            reap_orphans()


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    happenings: InterruptibleQueue[_Happening],
    watch: DriverWatch,
    *,
    grace_seconds: float,
) -> int | None:
    """Return how *command* has ended, or None if that was because of a signal to us."""
    with DriverControl(watch.told) as control:
        watch.started()
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
            watch.ended()


def _say(sentence: str) -> None:
    say("standby", sentence)
