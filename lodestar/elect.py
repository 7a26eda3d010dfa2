"""
The verb elect: run a command only while we lead (rule N7).

One election after the other is a `Candidacy` (candidacy.py).  With ``--health`` a
thread of its own runs the health check (health_checker.py).  While it fails there is no
election of ours: the command is ended, the election closed, and another begun when the
check passes.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from haservices import open_ha_services
from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    job_id,
    load_config,
    positive_count,
    positive_seconds,
)
from lodestar.candidacy import (
    Candidacy,
    Happenings,
    HealthChanged,
    Signalled,
    next_until,
    say,
)
from lodestar.exit_codes import ExitCode
from lodestar.guarded_command import check_command
from lodestar.health import HealthConfig
from lodestar.health_checker import HealthChecker
from lodestar.signals import stop_signals
from nameservice import ConfigurationError, seconds_to_ns
from nameservice.fields import check_address
from nameservice.interruptible import InterruptibleQueue


if TYPE_CHECKING:
    from lodestar.verbs import Verbs


__all__ = ["add_verbs"]

_GRACE_SECONDS: Final = 10.0
_HEALTH_INTERVAL_SECONDS: Final = 5.0
_HEALTH_TIMEOUT_SECONDS: Final = 5.0
_HEALTH_FAILURE_COUNT: Final = 3


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "elect",
        _elect,
        operands="JOB ADDRESS -- COMMAND [ARGUMENT]...",
        description="Contend for JOB; while we lead it, publish ADDRESS and run "
        "COMMAND with LODESTAR_EPOCH and LODESTAR_LEADER_SESSION_ID in its "
        "environment. COMMAND, and all that it started in its process group, is ended "
        "before leadership is: TERM, then KILL. The exit code is the command's own "
        "when it ends by itself (128 + N if by signal N), 0 after SIGTERM or SIGINT, "
        "1 when leadership was lost.",
        examples="lodestar elect flights 10.0.0.7:8000 -- python3 -m http.server 8000\n"
        "lodestar elect flights 10.0.0.7:8000 --repeat -- ./collector\n"
        "lodestar elect flights 10.0.0.7:8000 --health 'test -w /data' -- ./collector",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        type=_address,
        help="where others reach us while we lead",
    )
    parser.add_argument(
        "--repeat",
        action="store_true",
        help="when leadership is lost, contend again instead of ending",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=positive_seconds,
        help="fail if we do not lead within this (default: wait as long as it takes)",
    )
    parser.add_argument(
        "--grace-seconds",
        metavar="SECONDS",
        type=positive_seconds,
        default=_GRACE_SECONDS,
        help="how long COMMAND may take to end after TERM, as far as leadership "
        "lasts (default: %(default)g)",
    )
    parser.add_argument(
        "--health",
        metavar="CHECK",
        help="a command for the shell; while it fails (ends with anything but 0, or "
        "not in time) we do not contend, and resign if we lead",
    )
    parser.add_argument(
        "--health-interval-seconds",
        metavar="SECONDS",
        type=positive_seconds,
        help="from the end of one check to the start of the next "
        f"(default: {_HEALTH_INTERVAL_SECONDS:g})",
    )
    parser.add_argument(
        "--health-timeout-seconds",
        metavar="SECONDS",
        type=positive_seconds,
        help="how long one check may take before it is killed, and has failed "
        f"(default: {_HEALTH_TIMEOUT_SECONDS:g})",
    )
    parser.add_argument(
        "--health-failures",
        metavar="N",
        type=positive_count,
        help="resign after this many failures in a row "
        f"(default: {_HEALTH_FAILURE_COUNT})",
    )
    add_name_service_options(parser, contends=True)
    add_log_option(parser, "warning")


def _address(text: str) -> str:
    """Return *text* as an address, or tell argparse why it is none."""
    try:
        return check_address(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _elect(arguments: Namespace) -> int:
    command = arguments.command
    check_command(command)
    health_config = _health_config(arguments)
    config = load_config(arguments)
    happenings: Happenings = InterruptibleQueue()
    with contextlib.ExitStack() as resources:
        resources.enter_context(
            stop_signals(lambda number: happenings.put(Signalled(signal=number)))
        )
        health: HealthChecker | None = None
        if health_config is not None:
            health = resources.enter_context(
                HealthChecker(
                    arguments.health,
                    health_config,
                    tell=lambda change: happenings.put(HealthChanged(change=change)),
                )
            )
        ha = resources.enter_context(open_ha_services(config))
        give_up_seconds = _give_up_seconds(arguments.wait)
        while True:
            if health is not None and not _wait_for_health(
                health, arguments.job, happenings, give_up_seconds
            ):
                return ExitCode.DONE
            candidacy = Candidacy(
                ha=ha,
                job=arguments.job,
                address=arguments.address,
                command=command,
                grace_ns=seconds_to_ns(arguments.grace_seconds),
                happenings=happenings,
                health=health,
            )
            exit_code = candidacy.run(give_up_seconds=give_up_seconds)
            if candidacy.has_lost_health:
                say(f"the health check fails: resigned from {arguments.job}")
                if candidacy.has_run:
                    give_up_seconds = _give_up_seconds(arguments.wait)
            elif candidacy.has_run:
                if not (arguments.repeat and candidacy.has_lost_leadership):
                    return exit_code
                give_up_seconds = _give_up_seconds(arguments.wait)
            elif not candidacy.has_lost_leadership:
                return exit_code


def _health_config(arguments: Namespace) -> HealthConfig | None:
    """Return how the health check is run, or None if there is none."""
    given = (
        arguments.health_interval_seconds,
        arguments.health_timeout_seconds,
        arguments.health_failures,
    )
    if arguments.health is None:
        if any(value is not None for value in given):
            message = "there is no health check to run: name it with --health"
            raise ConfigurationError(message)
        return None
    interval_seconds, timeout_seconds, failure_count = given
    return HealthConfig(
        interval_ns=seconds_to_ns(interval_seconds or _HEALTH_INTERVAL_SECONDS),
        timeout_ns=seconds_to_ns(timeout_seconds or _HEALTH_TIMEOUT_SECONDS),
        failure_count_max=failure_count or _HEALTH_FAILURE_COUNT,
    )


def _wait_for_health(
    health: HealthChecker, job: str, happenings: Happenings, give_up_seconds: float
) -> bool:
    """Return once the health check passes; False if we are to end."""
    if not health.is_passing:
        say(f"not contending for {job} until the health check passes")
    while not health.is_passing:
        happening = next_until(give_up_seconds, happenings, job)
        if isinstance(happening, Signalled):
            return False
    return True


def _give_up_seconds(wait_seconds: float | None) -> float:
    """Return until when, by ``time.monotonic``, we wait for our turn."""
    return math.inf if wait_seconds is None else time.monotonic() + wait_seconds
