"""Verbs for operators: sessions, status, revoke, expire."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from haservices import open_ha_services
from lodestar.arguments import (
    add_json_option,
    add_log_option,
    add_name_service_options,
    job_id,
    load_config,
    session_id,
)
from lodestar.exit_codes import ExitCode
from lodestar.observe import add_near_job
from lodestar.output import (
    ABSENT,
    ago_text,
    duration_text,
    json_text,
    pairs_text,
    printable,
    rounded_seconds,
    table_text,
    write,
    write_answer,
)
from nameservice import NoLeaderError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from haservices import SessionInformation
    from lodestar.verbs import Verbs


__all__ = ["add_verbs", "session_document", "sessions_text", "status_text"]


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "sessions",
        _sessions,
        description="List every session, that is, every client that is connected to "
        "the name service. On ZooKeeper: only those that contend for a job.",
        examples="lodestar sessions --config /etc/lodestar.toml",
    )
    add_json_option(parser, "one JSON array")
    add_name_service_options(parser)
    add_log_option(parser, "error")

    parser = verbs.add_verb(
        "status",
        _status,
        description="Print the figures of the name service, a name and a value per "
        "line: a LeaderServer's own, or what ZooKeeper's mntr (or srvr) says.",
        examples="lodestar status --url zookeeper://10.0.0.5:2181 --json",
    )
    add_json_option(parser, "one JSON object")
    add_name_service_options(parser)
    add_log_option(parser, "error")

    parser = verbs.add_verb(
        "revoke",
        _revoke,
        operands="JOB",
        description="End the present leadership of JOB: its holder queues last, the "
        "next contender leads. Exit code 3 if it has no leader.",
        examples="lodestar revoke flights",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    add_json_option(parser, "one JSON object")
    add_name_service_options(parser)
    add_log_option(parser, "error")

    parser = verbs.add_verb(
        "expire",
        _expire,
        operands="SESSION",
        description="End SESSION as if it had fallen silent: whatever it leads or "
        "contends for goes to the next. Exit code 3 if there is no such session.",
        examples="lodestar expire eacf7e589a8361b6",
    )
    parser.add_argument(
        "session",
        metavar="SESSION",
        type=session_id,
        help="the session's id, as 'sessions' prints it",
    )
    add_json_option(parser, "one JSON object")
    add_name_service_options(parser)
    add_log_option(parser, "error")


def _sessions(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        sessions = ha.operations.sessions()
    write_answer(
        [session_document(each) for each in sessions],
        sessions_text(sessions),
        is_json=arguments.json,
    )
    return ExitCode.DONE


def sessions_text(sessions: Sequence[SessionInformation]) -> str:
    """Return *sessions* as a table for people."""
    if not sessions:
        return "there are no sessions"
    return table_text(
        ("SESSION", "CLIENT", "LEADS", "CONTENDS FOR", "AGE", "LAST HEARD", "TIMEOUT"),
        [
            (
                each.session_id,
                each.client,
                _names_text(each.leads_component_ids),
                _names_text(each.component_ids),
                duration_text(each.age_seconds),
                ago_text(each.last_heard_seconds),
                duration_text(each.timeout_seconds),
            )
            for each in sessions
        ],
    )


def session_document(session: SessionInformation) -> dict[str, Any]:
    """Return *session* as it is written as JSON."""
    return {
        "session_id": session.session_id,
        "client": session.client,
        "jobs": list(session.component_ids),
        "leads_jobs": list(session.leads_component_ids),
        "age_seconds": rounded_seconds(session.age_seconds),
        "last_heard_seconds": rounded_seconds(session.last_heard_seconds),
        "timeout_seconds": rounded_seconds(session.timeout_seconds),
    }


def _status(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        figures = ha.operations.status()
    write(json_text(dict(figures)) if arguments.json else status_text(figures))
    return ExitCode.DONE


def status_text(figures: Mapping[str, str | int | float]) -> str:
    """Return *figures* as lines for people, sorted by name."""
    return pairs_text([(name, str(value)) for name, value in sorted(figures.items())])


def _revoke(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        try:
            session = ha.operations.revoke(arguments.job)
        except NoLeaderError as error:
            add_near_job(error, ha, arguments.job)
            raise
    write_answer(
        {
            "job": arguments.job,
            "epoch": session.epoch,
            "leader_session_id": str(session.leader_session_id),
        },
        f"ended the leadership of {arguments.job}: epoch {session.epoch}, "
        f"session {session.leader_session_id}",
        is_json=arguments.json,
    )
    return ExitCode.DONE


def _expire(arguments: Namespace) -> ExitCode:
    with open_ha_services(load_config(arguments)) as ha:
        ha.operations.expire(arguments.session)
    write_answer(
        {"session_id": arguments.session},
        f"ended session {printable(arguments.session)}",
        is_json=arguments.json,
    )
    return ExitCode.DONE


def _names_text(names: Sequence[str]) -> str:
    return " ".join(names) if names else ABSENT
