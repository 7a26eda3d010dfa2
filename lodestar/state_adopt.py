"""The verb adopt: take over rows that nodes have kept and the proxy does not know."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from lodestar.arguments import add_json_option
from lodestar.exit_codes import ExitCode
from lodestar.output import ABSENT, json_text, printable, table_text, write
from lodestar.state_access import add_state_options, open_operations
from nameservice import ConfigurationError
from queryablestate import UnknownJobError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from lodestar.verbs import Verbs
    from queryablestate.operations.adoption import (
        AdoptionInformation,
        KeptInformation,
    )


__all__ = ["add_verbs", "adopted_text", "chosen_control", "kept_text", "preview_text"]


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "adopt",
        _adopt,
        description="Take over what nodes have kept of jobs that the name service has "
        "lost, or of which it holds an older copy: a LeaderServer without a data "
        "directory was restarted, or a backup was restored. Shows what there is, and "
        "asks on a terminal; elsewhere it wants --yes. All nodes of a job should be "
        "there: what one that is away has applied is not known. Repeat it after an "
        "error. Exit code 0 also if there is nothing to take over.",
        examples="lodestar adopt\nlodestar adopt --control 2f1c --yes",
    )
    parser.add_argument(
        "--control",
        metavar="ID",
        help="of which control plane the rows are, or how its id begins; needed if "
        "nodes keep rows of several",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="do it though nodes of a job are away, and may have more",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json_option(parser, "one JSON array of the jobs that were taken over")
    add_state_options(parser)


def _adopt(arguments: Namespace) -> ExitCode:
    with open_operations(arguments) as operations:
        kept = operations.kept()
        control_id = chosen_control(kept, arguments.control)
        chosen = [one for one in kept if one.is_ahead or one.control_id == control_id]
        if not chosen:
            print("lodestar adopt: nodes keep nothing else", file=sys.stderr)
        else:
            print(kept_text(chosen), file=sys.stderr)
            for one in chosen:
                if one.is_ahead:
                    # Another operator may have taken it over since we asked.
                    with contextlib.suppress(UnknownJobError):
                        preview = operations.preview_adoption(one.job_id)
                        print(preview_text(preview), file=sys.stderr)
            if not (arguments.yes or _is_confirmed()):
                print("lodestar adopt: nothing was changed", file=sys.stderr)
                return ExitCode.FAILED
        adopted = operations.adopt(control_id, force=arguments.force) if chosen else ()
    if arguments.json:
        write(json_text([_document(each) for each in adopted]))
    elif adopted:
        write(adopted_text(adopted))
    elif chosen:
        print("lodestar adopt: it was all taken over meanwhile", file=sys.stderr)
    return ExitCode.DONE


def chosen_control(kept: Sequence[KeptInformation], asked: str | None) -> str | None:
    """
    Return of which control plane rows are to be used again, or None if of none.

    Args:
        kept: What nodes keep.
        asked: How its id begins, as far as that was said.

    Raises:
        ConfigurationError: If there are several that could be meant, or there is none.
    """
    control_ids = sorted({one.control_id for one in kept if not one.is_ahead})
    if asked is not None:
        found = [one for one in control_ids if one.startswith(asked)]
        if len(found) != 1:
            raise ConfigurationError(
                f"--control {asked} begins {'no' if not found else 'more than one'} "
                "name of a control plane that nodes keep rows of: "
                + (", ".join(control_ids) or "there is none")
            )
        return found[0]
    if any(one.is_ahead for one in kept):
        return None  # first what the present one lacks
    if len(control_ids) > 1:
        raise ConfigurationError(
            "nodes keep rows of several control planes; say which with --control:\n"
            + kept_text(kept)
        )
    return control_ids[0] if control_ids else None


def kept_text(kept: Sequence[KeptInformation]) -> str:
    """Return what nodes keep, as a table for people."""
    return table_text(
        ("JOB", "CONTROL PLANE", "LAST BATCH", "DECIDED", "ROWS ON"),
        [
            (
                one.job_id,
                "the present one" if one.is_ahead else one.control_id,
                ABSENT if one.batch_id is None else str(one.batch_id),
                _time_text(one.decided_at_seconds),
                ", ".join(one.node_ids),
            )
            for one in kept
        ],
    )


def preview_text(one: AdoptionInformation) -> str:
    """Return what would be taken over of a job, in one line."""
    return printable(
        f"{one.job_id}: the name service knows entry {one.known_sequence:,}, nodes "
        f"have entry {one.sequence:,}: {_content_text(one)}"
    )


def adopted_text(adopted: Sequence[AdoptionInformation]) -> str:
    """Return what was taken over, a line for each job."""
    return "\n".join(
        printable(f"took over {one.job_id}: {_content_text(one)}") for one in adopted
    )


def _content_text(one: AdoptionInformation) -> str:
    text = ", ".join(
        f"{state} batch {ABSENT if batch is None else batch}"
        for state, batch in sorted(one.batch_ids.items())
    )
    if one.away_ids:
        text += f"; away: {', '.join(one.away_ids)}"
    if one.lost_ids:
        text += f"; rows are lost on {', '.join(one.lost_ids)}"
    return text or "no state"


def _time_text(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    time = dt.datetime.fromtimestamp(seconds, tz=dt.UTC)
    return time.isoformat(sep=" ", timespec="seconds")


def _document(one: AdoptionInformation) -> dict[str, Any]:
    return {
        "job": one.job_id,
        "known_sequence": one.known_sequence,
        "sequence": one.sequence,
        "batch_ids": dict(one.batch_ids),
        "node_ids": list(one.node_ids),
        "away_ids": list(one.away_ids),
        "lost_ids": list(one.lost_ids),
    }


def _is_confirmed() -> bool:
    """
    Return whether the person at the terminal says yes.

    Raises:
        ConfigurationError: If standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        message = "say --yes to take these rows over: standard input is not a terminal"
        raise ConfigurationError(message)
    print("Type yes to take them over: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "yes"
