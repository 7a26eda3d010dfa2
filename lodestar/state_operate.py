"""Verbs of operators: nodes, drop-state, forget-job, forget-node."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from lodestar.arguments import add_json_option, job_id
from lodestar.exit_codes import ExitCode
from lodestar.output import (
    ABSENT,
    address_text,
    ago_text,
    printable,
    rounded_seconds,
    table_text,
    write_answer,
)
from lodestar.state_access import add_state_options, open_operations
from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lodestar.verbs import Verbs
    from queryablestate.operations.node_information import NodeInformation


__all__ = ["add_verbs", "node_document", "nodes_text"]


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "nodes",
        _nodes,
        description="List every state node that the proxy leader knows: where it is, "
        "when it was heard from, how many key groups of which job it is asked for, how "
        "many copies it has, and how many decided batches it has yet to apply.",
        examples="lodestar nodes --token-file operator.token",
    )
    add_json_option(parser, "one JSON array")
    add_state_options(parser)

    parser = verbs.add_verb(
        "drop-state",
        _drop_state,
        operands="JOB STATE",
        description="Forget STATE of JOB and everything in it, on every node. It "
        "cannot be taken back. Asks on a terminal; elsewhere it wants --yes. Exit code "
        "3 if there is no such state.",
        examples="lodestar drop-state flights aircraft --yes",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument("state", metavar="STATE", help="the state's name")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json_option(parser, "one JSON object")
    add_state_options(parser)
    _add_forget_job(verbs)
    _add_forget_node(verbs)


def _add_forget_job(verbs: Verbs) -> None:
    parser = verbs.add_verb(
        "forget-job",
        _forget_job,
        operands="JOB",
        description="Forget JOB and everything in it, on every node, also what nodes "
        "keep aside since the name service has lost its store. It cannot be taken "
        "back. Asks on a terminal; elsewhere it wants --yes. Exit code 3 if there is "
        "no such job.",
        examples="lodestar forget-job flights --yes",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json_option(parser, "one JSON object")
    add_state_options(parser)


def _add_forget_node(verbs: Verbs) -> None:
    parser = verbs.add_verb(
        "forget-node",
        _forget_node,
        operands="NODE",
        description="Forget the name of NODE, which is away for good: 'lodestar nodes' "
        "lists it no more, and a proxy that begins to lead does not wait for it. "
        "Refused while NODE is registered, has key groups of a job, or keeps rows; the "
        "refusal says what to do first. A node that is started under the name later "
        "is a new one.",
        examples="lodestar forget-node node-3",
    )
    parser.add_argument("node", metavar="NODE", help="the node's name")
    add_json_option(parser, "one JSON object")
    add_state_options(parser)


def _forget_node(arguments: Namespace) -> ExitCode:
    with open_operations(arguments) as operations:
        operations.forget_node(arguments.node)
    write_answer(
        {"node_id": arguments.node},
        f"forgot node {printable(arguments.node)}",
        is_json=arguments.json,
    )
    return ExitCode.DONE


def _forget_job(arguments: Namespace) -> ExitCode:
    name = arguments.job
    if not (arguments.yes or _is_confirmed(name)):
        print(f"lodestar forget-job: {printable(name)} stays", file=sys.stderr)
        return ExitCode.FAILED
    with open_operations(arguments) as operations:
        node_ids = operations.forget_job(name)
    write_answer(
        {"job": name, "node_ids": list(node_ids)},
        f"forgot {printable(name)}",
        is_json=arguments.json,
    )
    return ExitCode.DONE


def _nodes(arguments: Namespace) -> ExitCode:
    with open_operations(arguments) as operations:
        nodes = operations.nodes()
        is_volatile = operations.is_volatile
    write_answer(
        [node_document(each) for each in nodes],
        nodes_text(nodes),
        is_json=arguments.json,
    )
    if is_volatile:
        print(
            "lodestar nodes: the name service forgets what is stored when it is "
            "restarted; give it a data directory ('lodestar server --data-dir')",
            file=sys.stderr,
        )
    return ExitCode.DONE


def nodes_text(nodes: Sequence[NodeInformation]) -> str:
    """Return *nodes* as a table for people."""
    if not nodes:
        return "there are no nodes"
    table = table_text(
        ("NODE", "ADDRESS", "LAST HEARD", "KEY GROUPS", "COPIES", "BEHIND"),
        [
            (
                each.node_id + (" (draining)" if each.is_draining else ""),
                "away" if each.address is None else address_text(each.address),
                ago_text(each.last_heard_seconds),
                _counts_text(each.key_group_counts),
                _counts_text(each.copy_counts),
                _counts_text(each.behind_counts),
            )
            for each in nodes
        ],
    )
    kept = _kept_text(nodes)
    return f"{table}\n\n{kept}" if kept else table


def _kept_text(nodes: Sequence[NodeInformation]) -> str:
    """Return which jobs nodes keep rows of, and do not use; empty if there are none."""
    batches: dict[str, dict[str, int | None]] = {}
    for each in nodes:
        for job, batch in each.kept_batches.items():
            batches.setdefault(job, {})[each.node_id] = batch
    if not batches:
        return ""
    rows = [
        (
            job,
            ", ".join(
                node_id if batch is None else f"{node_id} (batch {batch})"
                for node_id, batch in sorted(by_node.items())
            ),
        )
        for job, by_node in sorted(batches.items())
    ]
    return (
        "The name service has lost what was stored of these jobs, and nodes keep their "
        "rows aside;\n'lodestar adopt' takes them over:\n"
        + table_text(("JOB", "ROWS ON"), rows)
    )


def node_document(node: NodeInformation) -> dict[str, Any]:
    """Return *node* as it is written as JSON."""
    return {
        "node_id": node.node_id,
        "address": node.address,
        "last_heard_seconds": rounded_seconds(node.last_heard_seconds),
        "key_group_counts": dict(node.key_group_counts),
        "copy_counts": dict(node.copy_counts),
        "behind_counts": dict(node.behind_counts),
        "is_draining": node.is_draining,
        "kept_batches": dict(node.kept_batches),
    }


def _drop_state(arguments: Namespace) -> ExitCode:
    name = f"{arguments.job}/{arguments.state}"
    if not (arguments.yes or _is_confirmed(name)):
        print(f"lodestar drop-state: {printable(name)} stays", file=sys.stderr)
        return ExitCode.FAILED
    with open_operations(arguments) as operations:
        operations.drop_state(arguments.job, arguments.state)
    write_answer(
        {"job": arguments.job, "state": arguments.state},
        f"dropped {printable(name)}",
        is_json=arguments.json,
    )
    return ExitCode.DONE


def _is_confirmed(name: str) -> bool:
    """
    Return whether the person at the terminal says yes.

    Raises:
        ConfigurationError: If standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        message = f"say --yes to drop {name}: standard input is not a terminal"
        raise ConfigurationError(message)
    print(
        f"This forgets all that {printable(name)} holds, for ever. Type yes to go on: ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip() == "yes"


def _counts_text(counts: Mapping[str, int]) -> str:
    """Return counts by job; those that are 0 are left out."""
    shown = [f"{job} {count}" for job, count in sorted(counts.items()) if count]
    return ", ".join(shown) if shown else ABSENT
