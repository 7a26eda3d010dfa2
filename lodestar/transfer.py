"""The verb transfer: hand the leadership of one job to a named contender (rule N6)."""

from __future__ import annotations

import contextlib
import queue
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Final, TypeAlias, final

from haservices import open_ha_services
from lodestar.arguments import (
    add_json_option,
    add_log_option,
    add_name_service_options,
    job_id,
    load_config,
    positive_seconds,
)
from lodestar.exit_codes import ExitCode
from lodestar.observe import add_near_job
from lodestar.output import printable, write_answer
from nameservice import MayHaveHappenedError, UnknownContenderError
from nameservice.interruptible import InterruptibleQueue


if TYPE_CHECKING:
    from election import LeaderSession
    from haservices import HAServices
    from lodestar.verbs import Verbs
    from retrieval import LeaderInformation


__all__ = ["add_verbs"]

_WAIT_SECONDS: Final = 30.0

_News: TypeAlias = "LeaderInformation | Exception | None"


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "transfer",
        _transfer,
        operands="JOB CONTENDER",
        description="End the present leadership of JOB, so that CONTENDER leads next, "
        "and wait until it does. The holder's revoke callback finishes first; the "
        "holder queues last. Exit code 3 if CONTENDER does not contend for JOB, "
        "1 if it does not lead in time, or another leads.",
        examples="lodestar transfer flights 4b2ff29ee5a844c58f9a8b8f8a0f4a11\n"
        "lodestar contenders flights  # tells the ids",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument(
        "contender",
        metavar="CONTENDER",
        help="the contender's id, as 'contenders' prints it",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=positive_seconds,
        default=_WAIT_SECONDS,
        help="how long CONTENDER may take to lead (default: %(default)g)",
    )
    add_json_option(parser, "one JSON object")
    add_name_service_options(parser)
    add_log_option(parser, "error")


def _transfer(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        try:
            ended = ha.operations.transfer(arguments.job, arguments.contender)
        except UnknownContenderError as error:
            add_near_job(error, ha, arguments.job)
            raise
        leader = _wait_for(
            ha, arguments.job, arguments.contender, ended, arguments.wait
        )
    write_answer(
        {
            "job": arguments.job,
            "contender_id": arguments.contender,
            "address": leader.address,
            "epoch": leader.epoch,
            "leader_session_id": str(leader.leader_session_id),
            "ended_epoch": None if ended is None else ended.epoch,
            "ended_leader_session_id": None
            if ended is None
            else str(ended.leader_session_id),
        },
        f"{printable(arguments.contender)} leads {arguments.job} at "
        f"{leader.address}: epoch {leader.epoch}, "
        f"session {leader.leader_session_id}",
        is_json=arguments.json,
    )
    return ExitCode.DONE


@final
class _Listener:
    """Puts what it is told into a queue."""

    def __init__(self) -> None:
        self.news: InterruptibleQueue[_News] = InterruptibleQueue()

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        self.news.put(leader)

    def handle_error(self, error: Exception) -> None:
        self.news.put(error)


def _wait_for(
    ha: HAServices,
    job: str,
    contender_id: str,
    ended: LeaderSession | None,
    wait_seconds: float,
) -> LeaderInformation:
    """
    Return the leadership of *contender_id* once it is confirmed.

    Raises:
        MayHaveHappenedError: If it is not within *wait_seconds*, or another leads.
    """
    deadline = time.monotonic() + wait_seconds
    listener = _Listener()
    with contextlib.closing(ha.get_leader_retriever(job)) as retriever:
        retriever.start(listener)
        while True:
            try:
                news = listener.news.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                message = (
                    f"{contender_id!r} does not lead {job} after {wait_seconds:g} s"
                )
                raise MayHaveHappenedError(message) from None
            if isinstance(news, Exception):
                raise news
            if news is None or (ended is not None and news.epoch <= ended.epoch):
                continue
            leader = ha.operations.contenders(job)[:1]
            if not leader or leader[0].address != news.address:
                continue  # it is over already: the next news tells
            if leader[0].contender_id == contender_id:
                return news
            message = (
                f"{contender_id!r} does not lead {job}: {news.address} does, with "
                f"epoch {news.epoch}"
            )
            raise MayHaveHappenedError(message)
