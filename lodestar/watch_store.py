"""The verb watch-store: what the leaders of a job have stored, and each change."""

from __future__ import annotations

import base64
import queue
import threading
from argparse import Namespace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from haservices import open_ha_services
from lodestar.arguments import (
    add_json_option,
    add_log_option,
    add_name_service_options,
    job_id,
    load_config,
    store_prefix,
)
from lodestar.exit_codes import ExitCode
from lodestar.output import json_line, printable, size_text, timestamp_text, write
from lodestar.signals import stop_signals


if TYPE_CHECKING:
    from signal import Signals

    from election import StoreChange, StoreWatch
    from lodestar.verbs import Verbs


__all__ = ["add_verbs", "store_change_document", "store_change_text"]


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "watch-store",
        _watch_store,
        operands="JOB [PREFIX]",
        description="Tell what leaders of JOB have put into its leader store, under "
        "paths that begin with PREFIX, and each change from then on, until SIGTERM or "
        "SIGINT; the exit code is 0 then.",
        examples="lodestar watch-store flights\n"
        "lodestar watch-store flights totals/ --json | jq -r .value_base64",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument(
        "prefix",
        metavar="PREFIX",
        type=store_prefix,
        nargs="?",
        default="",
        help="what the paths begin with (default: all paths)",
    )
    add_json_option(parser, "one JSON object per line")
    add_name_service_options(parser, stays=True)
    add_log_option(parser, "warning")


def _watch_store(arguments: Namespace) -> ExitCode:
    config = load_config(arguments)
    ended: queue.SimpleQueue[Signals | Exception] = queue.SimpleQueue()
    with stop_signals(ended.put), open_ha_services(config) as ha:
        if not arguments.json:
            write(f"watching the store of {arguments.job} at {config.url}")
        store = ha.get_leader_store(arguments.job)
        with store.watch_prefix(arguments.prefix) as watch:
            writer = threading.Thread(
                target=_write_changes, args=(watch, arguments, ended), daemon=True
            )
            writer.start()
            end = ended.get()
    writer.join()
    if isinstance(end, Exception):
        raise end
    return ExitCode.DONE


def _write_changes(
    watch: StoreWatch,
    arguments: Namespace,
    ended: queue.SimpleQueue[Signals | Exception],
) -> None:
    to_text = store_change_line if arguments.json else store_change_text
    try:
        for change in watch:
            write(to_text(arguments.job, change, datetime.now(UTC)))
    except Exception as error:  # noqa: BLE001 - raised again where the verb waits
        ended.put(error)


def store_change_text(job: str, change: StoreChange, moment: datetime) -> str:
    """Return one change of the store of *job* as a line for people."""
    when = timestamp_text(moment, is_for_people=True)
    path = printable(change.path)
    if change.value is None:
        return f"{when}  {job}: {path} is deleted"
    size = size_text(len(change.value.value))
    return f"{when}  {job}: {path} is at version {change.value.version}, {size}"


def store_change_line(job: str, change: StoreChange, moment: datetime) -> str:
    """Return one change as a line for programs."""
    return json_line(store_change_document(job, change, moment))


def store_change_document(
    job: str, change: StoreChange, moment: datetime
) -> dict[str, Any]:
    """Return one change as it is written as JSON; version 0: nothing is there."""
    value = change.value
    return {
        "time": timestamp_text(moment, is_for_people=False),
        "job": job,
        "path": change.path,
        "version": 0 if value is None else value.version,
        "value_base64": None
        if value is None
        else base64.b64encode(value.value).decode("ascii"),
    }
