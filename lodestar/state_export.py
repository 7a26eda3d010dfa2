"""The verb export: a whole state to a file, or to standard output."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from argparse import Namespace
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lodestar.arguments import job_id
from lodestar.exit_codes import ExitCode
from lodestar.output import write
from lodestar.state_access import (
    add_least_options,
    add_state_options,
    least_arguments,
    open_client,
)
from nameservice import ConfigurationError
from nameservice.durable_files import rename
from queryablestate.client.export import ExportFormat, export_state


if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from lodestar.verbs import Verbs


__all__ = ["add_verbs", "whole_file"]

_STANDARD_OUTPUT: Final = "-"


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "export",
        _export,
        operands="JOB STATE",
        description="Write what STATE of JOB holds, in the order of the keys, over all "
        "nodes. It is read page by page, each as of its own moment, and written as it "
        "comes. CSV and JSON have a row for each key, each map entry, each list item; "
        "Parquet needs pyarrow, and has lists as list columns. FILE is there when it "
        "is whole, and never before.",
        examples="lodestar export flights aircraft --format parquet --output a.pq\n"
        "lodestar export flights aircraft --format csv --output aircraft.csv\n"
        "lodestar export flights aircraft --format json | gzip >aircraft.jsonl.gz",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument("state", metavar="STATE", help="the state's name")
    parser.add_argument(
        "--format",
        metavar="F",
        required=True,
        choices=[one.value for one in ExportFormat],
        help="parquet, csv, or json (one object per line)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        default=_STANDARD_OUTPUT,
        help="where to; one that is there is replaced (default: -, standard output)",
    )
    add_least_options(parser)
    add_state_options(parser)


def _export(arguments: Namespace) -> ExitCode:
    export_format = ExportFormat(arguments.format)
    state = (arguments.job, arguments.state)
    least = least_arguments(arguments)
    if arguments.output == _STANDARD_OUTPUT:
        if export_format is ExportFormat.PARQUET and sys.stdout.isatty():
            message = "Parquet is not for a terminal: name a file with --output"
            raise ConfigurationError(message)
        with open_client(arguments) as client:
            export_state(client, *state, export_format, sys.stdout.buffer, **least)
        sys.stdout.buffer.flush()
        return ExitCode.DONE
    with whole_file(arguments.output) as file, open_client(arguments) as client:
        row_count = export_state(client, *state, export_format, file, **least)
    write(f"exported {row_count:,} rows of {'/'.join(state)} to {arguments.output}")
    return ExitCode.DONE


@contextmanager
def whole_file(name: str) -> Iterator[BinaryIO]:
    """
    Yield a file that is called *name* once it is written as a whole and on the disk.

    Until then it has another name in the same directory, and no name after an error.

    Raises:
        ConfigurationError: If *name* is there and is no file, which is not replaced, or
            no file can be made there.
        OSError: If it cannot be written as a whole.
    """
    target = Path(os.path.realpath(name))  # the file itself, not a link to it
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(target.stat().st_mode):
            raise ConfigurationError(
                f"{name} is no file: name one with --output, or leave it out to write "
                "to standard output"
            )
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        file = part.open("xb")
    except OSError as error:
        message = f"cannot write {name}: {error.strerror}"
        raise ConfigurationError(message) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
