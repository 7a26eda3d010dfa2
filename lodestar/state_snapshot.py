"""Verbs that keep a job in files, and make a job of them: snapshot, restore."""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from lodestar.arguments import add_json_option, job_id, positive_seconds
from lodestar.exit_codes import ExitCode
from lodestar.output import (
    json_text,
    pairs_text,
    printable,
    size_text,
    timestamp_text,
    write,
    write_answer,
)
from lodestar.state_access import add_state_options, open_operations
from queryablestate.operations.snapshots import location_of


if TYPE_CHECKING:
    import argparse

    from lodestar.verbs import Verbs
    from queryablestate.operations.snapshots import SnapshotInformation


__all__ = ["add_verbs", "snapshot_document"]

_TIMEOUT_SECONDS: Final = 3_600.0


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "snapshot",
        _snapshot,
        operands="JOB DIR",
        description="Have the nodes write every key group of JOB, and its operator "
        "state, to DIR: a directory that they and you share, or a URI such as "
        "s3://bucket/path. It is of one moment: one batch of each query. Queries go on "
        "meanwhile. DIR must hold no snapshot. "
        "Needs pyarrow.",
        examples="lodestar snapshot flights /mnt/snapshots/flights-monday\n"
        "lodestar snapshot flights s3://snapshots/flights --timeout 600 --json",
    )
    _add_arguments(parser, "the job id")

    parser = verbs.add_verb(
        "restore",
        _restore,
        operands="JOB DIR",
        description="Make JOB from the snapshot in DIR, on all nodes that are there "
        "now; their number need not be that of the snapshot. JOB must have no state. "
        "If it fails, there is no job. A query that is started again with its "
        "checkpoint goes on exactly once: batches that the snapshot has are not "
        "applied again. Needs pyarrow.",
        examples="lodestar restore flights /mnt/snapshots/flights-monday",
    )
    _add_arguments(parser, "how the job is to be called")


def _add_arguments(parser: argparse.ArgumentParser, job_help: str) -> None:
    parser.add_argument("job", metavar="JOB", type=job_id, help=job_help)
    parser.add_argument(
        "directory", metavar="DIR", help="a shared directory, or a URI of pyarrow's"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_seconds,
        default=_TIMEOUT_SECONDS,
        help="how long it may take (default: %(default)g)",
    )
    add_json_option(parser, "one JSON object")
    add_state_options(parser)


def _snapshot(arguments: Namespace) -> ExitCode:
    uri = location_of(arguments.directory)
    _say(arguments, f"the nodes write {printable(arguments.job)} to {printable(uri)}")
    with open_operations(arguments) as operations:
        taken = operations.snapshot(
            arguments.job, uri, timeout_seconds=arguments.timeout
        )
    write_answer(
        snapshot_document(taken),
        _snapshot_text(taken),
        is_json=arguments.json,
    )
    return ExitCode.DONE


def _restore(arguments: Namespace) -> ExitCode:
    uri = location_of(arguments.directory)
    _say(arguments, f"the nodes load {printable(arguments.job)} from {printable(uri)}")
    with open_operations(arguments) as operations:
        restored = operations.restore(
            arguments.job, uri, timeout_seconds=arguments.timeout
        )
    if arguments.json:
        document = {
            "job": restored.job_id,
            "node_ids": list(restored.node_ids),
            "snapshot": snapshot_document(restored.snapshot),
        }
        write(json_text(document))
    else:
        nodes = ", ".join(printable(node_id) for node_id in restored.node_ids)
        write(f"restored {printable(restored.job_id)} on {nodes}")
        write(_snapshot_text(restored.snapshot))
    return ExitCode.DONE


def snapshot_document(snapshot: SnapshotInformation) -> dict[str, Any]:
    """Return *snapshot* as it is written as JSON."""
    taken_at = _taken_at(snapshot)
    return {
        "job": snapshot.job_id,
        "snapshot_id": snapshot.snapshot_id,
        "uri": snapshot.uri,
        "taken_at": timestamp_text(taken_at, is_for_people=False),
        "sequence": snapshot.sequence,
        "states": list(snapshot.state_names),
        "batch_ids": dict(snapshot.batch_ids),
        "max_parallelism": snapshot.max_parallelism,
        "file_count": snapshot.file_count,
        "row_count": snapshot.row_count,
        "size_bytes": snapshot.size_bytes,
    }


def _snapshot_text(snapshot: SnapshotInformation) -> str:
    batches = [
        f"{query_id} {batch_id}" for query_id, batch_id in snapshot.batch_ids.items()
    ]
    return pairs_text(
        [
            ("snapshot", snapshot.uri),
            ("of", snapshot.job_id),
            ("taken", timestamp_text(_taken_at(snapshot), is_for_people=True)),
            ("states", ", ".join(snapshot.state_names)),
            ("batches", ", ".join(batches)),
            ("rows", f"{snapshot.row_count:,}"),
            ("files", f"{snapshot.file_count:,}, {size_text(snapshot.size_bytes)}"),
        ]
    )


def _taken_at(snapshot: SnapshotInformation) -> datetime:
    return datetime.fromtimestamp(snapshot.taken_at_seconds, tz=UTC)


def _say(arguments: Namespace, sentence: str) -> None:
    """Say what is being done, to people alone: it may take a while."""
    if not arguments.json:
        print(f"lodestar {arguments.verb}: {sentence}", file=sys.stderr)
