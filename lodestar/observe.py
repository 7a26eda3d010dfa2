"""Verbs that anybody may use who may look: leaders, leader, watch, contenders."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from argparse import Namespace
from datetime import UTC, datetime
from signal import Signals
from typing import TYPE_CHECKING, Any, Final, final

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
from lodestar.output import (
    ABSENT,
    address_text,
    ago_text,
    duration_text,
    json_line,
    json_text,
    pairs_text,
    printable,
    rounded_seconds,
    table_text,
    timestamp_text,
    write,
    write_answer,
)
from lodestar.signals import stop_signals
from lodestar.verbs import near_name
from nameservice import AuthenticationError, NoLeaderError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import ContenderInformation
    from haservices import ComponentInformation, HAServices
    from lodestar.verbs import Verbs
    from nameservice import NameServiceError
    from retrieval import LeaderInformation


__all__ = [
    "add_near_job",
    "add_verbs",
    "change_document",
    "change_text",
    "component_document",
    "contender_document",
    "contenders_text",
    "leader_document",
    "leader_text",
    "leaders_text",
]

_NO_LEADER: Final = "none"

# What `leader --field` prints, and how it is found in the JSON document.
_FIELDS: Final = {
    "address": "address",
    "epoch": "epoch",
    "session": "leader_session_id",
}


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "leaders",
        _leaders,
        description="List every job that has a contender or a leader.",
        examples="lodestar leaders --url leaderserver://10.0.0.5:5170",
    )
    add_json_option(parser, "one JSON array")
    add_name_service_options(parser)
    add_log_option(parser, "error")

    parser = verbs.add_verb(
        "leader",
        _leader,
        operands="JOB",
        description="Tell who leads JOB: address, epoch and leader session id. "
        "Exit code 3 if it has no leader.",
        examples="lodestar leader flights --wait 30\n"
        "curl http://$(lodestar leader flights --field address)/totals",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=positive_seconds,
        help="wait this long for a leader (default: tell at once)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--field", choices=tuple(_FIELDS), help="print this alone, for scripts"
    )
    add_json_option(form, "one JSON object")
    add_name_service_options(parser)
    add_log_option(parser, "error")

    parser = verbs.add_verb(
        "watch",
        _watch,
        operands="JOB",
        description="Tell who leads JOB now, and each change from then on, until "
        "SIGTERM or SIGINT; the exit code is 0 then.",
        examples="lodestar watch flights\nlodestar watch flights --json | jq .leader",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    add_json_option(parser, "one JSON object per line")
    add_name_service_options(parser, stays=True)
    add_log_option(parser, "warning")

    parser = verbs.add_verb(
        "contenders",
        _contenders,
        operands="JOB",
        description="List the contenders for JOB in the order in which they will "
        "lead, the leader first. Exit code 3 if there is none.",
        examples="lodestar contenders flights --json",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    add_json_option(parser, "one JSON array")
    add_name_service_options(parser)
    add_log_option(parser, "error")


# -- leaders ---------------------------------------------------------------------------


def _leaders(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        components = ha.operations.leaders()
    write_answer(
        [component_document(each) for each in components],
        leaders_text(components),
        is_json=arguments.json,
    )
    return ExitCode.DONE


def leaders_text(components: Sequence[ComponentInformation]) -> str:
    """Return *components* as a table for people."""
    if not components:
        return "there are no contenders"
    return table_text(
        ("JOB", "LEADER", "EPOCH", "CONTENDERS"),
        [
            (
                each.component_id,
                _NO_LEADER
                if each.leader is None
                else address_text(each.leader.address),
                _number_text(each.epoch),
                str(each.contender_count),
            )
            for each in components
        ],
    )


def component_document(component: ComponentInformation) -> dict[str, Any]:
    """Return *component* as it is written as JSON."""
    return {
        "job": component.component_id,
        "leader": _leader_or_null(component.leader),
        "epoch": component.epoch,
        "contender_count": component.contender_count,
    }


# -- leader ----------------------------------------------------------------------------


def _leader(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        if arguments.wait is None:
            leader = _find_leader(ha, arguments.job)
        else:
            with ha.get_leader_retriever(arguments.job) as retriever:
                leader = retriever.wait_for_leader(arguments.wait)
    if arguments.json:
        write(json_text({"job": arguments.job} | leader_document(leader)))
    elif arguments.field is not None:
        write(printable(str(leader_document(leader)[_FIELDS[arguments.field]])))
    else:
        write(leader_text(arguments.job, leader))
    return ExitCode.DONE


def _find_leader(ha: HAServices, job: str) -> LeaderInformation:
    # Not a retriever: one that hears nothing cannot know whether it soon will.
    components = ha.operations.leaders()
    for component in components:
        if component.component_id == job and component.leader is not None:
            return component.leader
    error = NoLeaderError(job, 0.0)
    near = _near_job(job, components)
    if near is not None:
        error.add_note(f"did you mean {near!r}?")
    raise error


def add_near_job(error: NameServiceError, ha: HAServices, job: str) -> None:
    """Say in *error*, which says that *job* has not what is wanted, what is meant."""
    near = _near_job(job, ha.operations.leaders())
    if near is not None:
        error.add_note(f"did you mean {near!r}?")


def _near_job(job: str, components: Sequence[ComponentInformation]) -> str | None:
    """Return the job that may be meant, or None; also if there is one of that name."""
    known = [component.component_id for component in components]
    return None if job in known else near_name(job, known)


def leader_text(job: str, leader: LeaderInformation) -> str:
    """Return *leader* as lines for people."""
    return pairs_text(
        [
            ("job", job),
            ("address", leader.address),
            ("epoch", str(leader.epoch)),
            ("session", str(leader.leader_session_id)),
        ]
    )


def leader_document(leader: LeaderInformation) -> dict[str, Any]:
    """Return *leader* as it is written as JSON."""
    return {
        "address": leader.address,
        "epoch": leader.epoch,
        "leader_session_id": str(leader.leader_session_id),
    }


# -- watch -----------------------------------------------------------------------------


@final
class _Watcher:
    """Writes each change; tells *notify* of what must end the verb."""

    def __init__(
        self, job: str, *, is_json: bool, notify: Callable[[Exception], None]
    ) -> None:
        self._job = job
        self._is_json = is_json
        self._notify = notify
        self._log = get_logger(component="watch", component_id=job)
        self._lock = threading.Lock()
        self._has_written = False

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        with self._lock:
            self._write(leader)

    def handle_error(self, error: Exception) -> None:
        if isinstance(error, AuthenticationError | OSError):
            self._notify(error)
        else:
            self._log.warning("retrieval.failed", error=str(error))

    def nobody_leads(self) -> None:
        """Say so, if nothing has been said so far."""
        with self._lock:
            if not self._has_written:
                self._write(None)

    def _write(self, leader: LeaderInformation | None) -> None:
        self._has_written = True
        now = datetime.now(UTC)
        if self._is_json:
            write(json_line(change_document(self._job, leader, now)))
        else:
            write(change_text(self._job, leader, now))


def _watch(arguments: Namespace) -> ExitCode:
    config = load_config(arguments)
    ended: queue.SimpleQueue[Signals | Exception] = queue.SimpleQueue()
    with stop_signals(ended.put), open_ha_services(config) as ha:
        if not arguments.json:
            write(f"watching {arguments.job} at {config.url}")
        watcher = _Watcher(arguments.job, is_json=arguments.json, notify=ended.put)
        with contextlib.closing(ha.get_leader_retriever(arguments.job)) as retriever:
            retriever.start(watcher)
            # A retriever says nothing until somebody leads (R1); who watches wants to
            # know how things stand.
            try:
                _find_leader(ha, arguments.job)
            except NoLeaderError:
                watcher.nobody_leads()
            end = ended.get()
    if isinstance(end, Exception):
        raise end
    return ExitCode.DONE


def change_text(job: str, leader: LeaderInformation | None, moment: datetime) -> str:
    """Return one change as a line for people."""
    when = timestamp_text(moment, is_for_people=True)
    if leader is None:
        return f"{when}  {job} has no leader"
    return (
        f"{when}  {printable(leader.address)} leads {job}"
        f"  epoch {leader.epoch}  session {leader.leader_session_id}"
    )


def change_document(
    job: str, leader: LeaderInformation | None, moment: datetime
) -> dict[str, Any]:
    """Return one change as it is written as JSON."""
    return {
        "time": timestamp_text(moment, is_for_people=False),
        "job": job,
        "leader": _leader_or_null(leader),
    }


# -- contenders ------------------------------------------------------------------------


def _contenders(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        contenders = ha.operations.contenders(arguments.job)
        near = None if contenders else _near_job(arguments.job, ha.operations.leaders())
    write_answer(
        [contender_document(each) for each in contenders],
        contenders_text(arguments.job, contenders),
        is_json=arguments.json,
    )
    if near is not None:
        print(f"lodestar contenders: did you mean {near!r}?", file=sys.stderr)
    return ExitCode.DONE if contenders else ExitCode.NOT_FOUND


def contenders_text(job: str, contenders: Sequence[ContenderInformation]) -> str:
    """Return *contenders* as a table for people."""
    if not contenders:
        return f"{job} has no contenders"
    return table_text(
        ("TURN", "CONTENDER", "ADDRESS", "SESSION", "SESSION AGE", "LAST HEARD"),
        [
            (
                "leads" if each.is_leader else str(place),
                each.contender_id,
                ABSENT if each.address is None else address_text(each.address),
                each.session_id,
                duration_text(each.session_age_seconds),
                ago_text(each.last_heard_seconds),
            )
            for place, each in enumerate(contenders, start=1)
        ],
    )


def contender_document(contender: ContenderInformation) -> dict[str, Any]:
    """Return *contender* as it is written as JSON."""
    return {
        "contender_id": contender.contender_id,
        "session_id": contender.session_id,
        "address": contender.address,
        "is_leader": contender.is_leader,
        "session_age_seconds": rounded_seconds(contender.session_age_seconds),
        "last_heard_seconds": rounded_seconds(contender.last_heard_seconds),
    }


# -- what they share -------------------------------------------------------------------


def _leader_or_null(leader: LeaderInformation | None) -> dict[str, Any] | None:
    return None if leader is None else leader_document(leader)


def _number_text(number: int | None) -> str:
    return ABSENT if number is None else str(number)
