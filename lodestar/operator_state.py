"""Verb that reads operator state: operator-state."""

from __future__ import annotations

import base64
import json
import math
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lodestar.arguments import add_json_option, job_id, positive_count
from lodestar.exit_codes import ExitCode
from lodestar.output import (
    ago_text,
    json_text,
    pairs_text,
    printable,
    rounded_seconds,
    table_text,
    write,
)
from lodestar.state_access import (
    add_least_options,
    add_state_options,
    least_arguments,
    open_client,
)
from rescaling import RedistributionMode


if TYPE_CHECKING:
    from lodestar.verbs import Verbs
    from queryablestate import OperatorStateView


__all__ = ["add_verbs", "operator_state_document", "operator_state_text"]

_ITEM_LIMIT: Final = 100
"""Items that are shown to people who do not say how many."""


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "operator-state",
        _operator_state,
        operands="JOB NAME",
        description="Tell what each subtask of an operator of JOB holds in its state "
        "NAME, as it was after the last batch that is published. Exit code 3 if no "
        "operator of JOB has published such a state.",
        examples="lodestar operator-state flights offsets\n"
        "lodestar operator-state flights offsets --json | jq '.subtasks[0]'",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument("name", metavar="NAME", help="the name of the operator state")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=positive_count,
        help=f"at most this many items (default: {_ITEM_LIMIT}; with --json all, "
        "always)",
    )
    add_least_options(parser)
    add_json_option(parser, "one JSON object")
    add_state_options(parser)


def _operator_state(arguments: Namespace) -> ExitCode:
    with open_client(arguments) as client:
        view = client.operator_state(
            arguments.job, arguments.name, **least_arguments(arguments)
        )
    if arguments.json:
        write(json_text(operator_state_document(view)))
        return ExitCode.DONE
    limit = _ITEM_LIMIT if arguments.limit is None else arguments.limit
    write(operator_state_text(view, limit=limit))
    if arguments.limit is None and len(view.items) > limit:
        print(
            f"lodestar operator-state: these are the first {limit} items of "
            f"{len(view.items)}: say how many with --limit",
            file=sys.stderr,
        )
    return ExitCode.DONE


def operator_state_text(view: OperatorStateView, *, limit: int) -> str:
    """
    Return *view* for people: what it is, and a row for each item.

    Args:
        view: What was read.
        limit: How many items at most.
    """
    head = pairs_text(
        [
            ("mode", view.mode.value),
            ("parallelism", str(view.parallelism)),
            ("items", str(len(view.items))),
            ("batch", f"{view.batch_id}, {ago_text(view.age_seconds)}"),
        ]
    )
    shown = view.items[:limit]
    if not shown:
        return head
    headings: tuple[str, ...] = ("SUBTASK", "ITEM")
    rows: list[tuple[str, ...]] = [(str(index), _text(item)) for index, item in shown]
    if view.mode is RedistributionMode.BROADCAST:
        headings = ("SUBTASK", "KEY", "VALUE")
        rows = [(str(index), _text(key), _text(held)) for index, (key, held) in shown]
    return f"{head}\n\n{table_text(headings, rows)}"


def operator_state_document(view: OperatorStateView) -> dict[str, Any]:
    """Return *view* as it is written as JSON."""
    return {
        "job": view.job_id,
        "name": view.name,
        "mode": view.mode.value,
        "parallelism": view.parallelism,
        "subtasks": [[_to_json(item) for item in items] for items in view.subtasks],
        "generation": view.generation,
        "batch_id": view.batch_id,
        "age_seconds": rounded_seconds(view.age_seconds),
        "cached": view.cached,
    }


def _text(item: Any) -> str:
    return printable(json.dumps(_to_json(item), ensure_ascii=False))


def _to_json(item: Any) -> Any:
    """
    Return an item in the forms of `queryablestate.schema.json_values`.

    A tuple is an array, as a list is.
    """
    match item:
        case float() if not math.isfinite(item):
            return "NaN" if math.isnan(item) else f"{'-' if item < 0 else ''}Infinity"
        case bytes():
            return base64.b64encode(item).decode("ascii")
        case list() | tuple():
            return [_to_json(one) for one in item]
        case Mapping() if all(isinstance(key, str) for key in item):
            return {key: _to_json(held) for key, held in item.items()}
        case Mapping():
            return [[_to_json(key), _to_json(held)] for key, held in item.items()]
        case _:
            return item
