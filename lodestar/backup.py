"""The verbs backup and restore-backup: a LeaderServer's data directory as a file."""

from __future__ import annotations

import datetime as dt
from argparse import Namespace
from typing import TYPE_CHECKING

from leaderserver.server.backup import back_up, restore_backup
from lodestar.arguments import add_json_option, add_log_option
from lodestar.exit_codes import ExitCode
from lodestar.output import write_answer


if TYPE_CHECKING:
    from leaderserver.server.backup import BackupInformation
    from lodestar.verbs import Verbs


__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "backup",
        _backup,
        description="Write what the data directory of a LeaderServer holds, as of one "
        "moment, to a new file, and check it. The server may be running, and is not "
        "disturbed. Run it on the server's machine, as the server's user.",
        examples="lodestar backup --data-dir /var/lib/lodestar --to monday.backup",
    )
    parser.add_argument(
        "--data-dir", metavar="DIRECTORY", required=True, help="the data directory"
    )
    parser.add_argument(
        "--to", metavar="FILE", required=True, help="the file to write; must not exist"
    )
    add_json_option(parser, "one JSON object")
    add_log_option(parser, "error")

    parser = verbs.add_verb(
        "restore-backup",
        _restore,
        operands="FILE",
        description="Make the data directory of a LeaderServer of what 'backup' has "
        "written to FILE. What was committed after the backup is lost; epochs go on "
        "above all that were granted, and every leader begins anew. Stop the former "
        "server first.",
        examples="lodestar restore-backup monday.backup --data-dir /var/lib/lodestar",
    )
    parser.add_argument("file", metavar="FILE", help="the backup")
    parser.add_argument(
        "--data-dir",
        metavar="DIRECTORY",
        required=True,
        help="the data directory to make; must not exist, or be empty",
    )
    add_json_option(parser, "one JSON object")
    add_log_option(parser, "error")


def _backup(arguments: Namespace) -> ExitCode:
    information = back_up(arguments.data_dir, arguments.to)
    _tell(arguments, f"backed up {arguments.data_dir} to {arguments.to}", information)
    return ExitCode.DONE


def _restore(arguments: Namespace) -> ExitCode:
    information = restore_backup(arguments.file, arguments.data_dir)
    _tell(arguments, f"restored {arguments.file} to {arguments.data_dir}", information)
    return ExitCode.DONE


def _tell(arguments: Namespace, what: str, information: BackupInformation) -> None:
    taken = dt.datetime.fromtimestamp(information.taken_seconds, tz=dt.UTC).isoformat()
    write_answer(
        {
            "taken": taken,
            "jobs": information.component_count,
            "values": information.value_count,
            "value_size_bytes": information.value_size_bytes,
        },
        f"{what}: as of {taken}, {information.value_count:,} values of "
        f"{information.component_count:,} jobs, "
        f"{information.value_size_bytes:,} bytes",
        is_json=arguments.json,
    )
