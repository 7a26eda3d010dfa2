"""How moves of key groups are written: sentences and tables for people, and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lodestar.output import (
    ABSENT,
    duration_text,
    printable,
    rounded_seconds,
    size_text,
    table_text,
)
from lodestar.progress import bar_text


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.operations.move_progress import MoveFigures
    from queryablestate.operations.node_information import NodeInformation
    from queryablestate.operations.rescaling_information import (
        DrainInformation,
        RescalingInformation,
    )


__all__ = [
    "drain_document",
    "drain_sentence",
    "figures_document",
    "rescaling_document",
    "rescaling_sentence",
    "rescalings_text",
    "shortage_sentences",
    "standstill_sentence",
]

_BAR_WIDTH = 22


def rescaling_document(rescaling: RescalingInformation) -> dict[str, Any]:
    """Return *rescaling* as it is written as JSON."""
    fields = msgspec.to_builtins(rescaling)
    return {
        "job": fields.pop("job_id"),
        "is_done": rescaling.is_done,
        **fields,
        "elapsed_seconds": rounded_seconds(rescaling.elapsed_seconds),
        "seconds_left": rounded_seconds(rescaling.seconds_left),
    }


def drain_document(drain: DrainInformation) -> dict[str, Any]:
    """Return *drain* as it is written as JSON."""
    return {
        **msgspec.to_builtins(drain),
        "is_empty": drain.is_empty,
        "left_count": drain.left_count,
    }


def figures_document(figures: MoveFigures) -> dict[str, Any]:
    """Return what is known only to who watches, as it is written as JSON."""
    document: dict[str, Any] = msgspec.to_builtins(figures)
    del document["elapsed_seconds"]  # of who watches; the move's stands beside it
    pace = figures.size_bytes_per_second
    document["size_bytes_per_second"] = None if pace is None else round(pace)
    document["seconds_left"] = rounded_seconds(figures.seconds_left)
    return document


def rescaling_sentence(rescaling: RescalingInformation) -> str:
    """Return in one line where the key groups of a job are, or will be."""
    job = printable(rescaling.job_id)
    if rescaling.left_count:
        copies = _counted(rescaling.left_count, "copy", "copies")
        return f"{job}: {copies} of key groups to be made"
    where = _copies_text(rescaling.copy_counts)
    if rescaling.surplus_count:
        copies = _counted(rescaling.surplus_count, "copy", "copies")
        return f"{job}: {copies} of key groups to be given up, {where}"
    return f"{job}: {where}"


def shortage_sentences(rescaling: RescalingInformation) -> list[str]:
    """Return what is not as wanted though nothing can be done about it now."""
    if not rescaling.is_done:
        return []
    job = printable(rescaling.job_id)
    sentences: list[str] = []
    count = sum(1 for each in rescaling.copy_counts.values() if each)
    if count < rescaling.node_count:
        sentences.append(
            f"{job} has {count} of {rescaling.node_count} nodes: further ones take "
            "part as soon as they are started"
        )
    if rescaling.missing_count:
        groups = _counted(rescaling.missing_count, "key group", "key groups")
        sentences.append(
            f"{job}: {groups} with fewer than {rescaling.replica_count} copies"
        )
    return sentences


def standstill_sentence(
    rescalings: Sequence[RescalingInformation], nodes: Sequence[NodeInformation]
) -> str | None:
    """
    Return who is missed while nothing moves, or None if all are there.

    Args:
        rescalings: Of the jobs that are waited for.
        nodes: All that the control plane knows.
    """
    for each in rescalings:
        away = [
            node.node_id
            for node in nodes
            if node.address is None and node.copy_counts.get(each.job_id)
        ]
        if away and not each.is_done:
            are_away = "is away, and has" if len(away) == 1 else "are away, and have"
            return printable(
                f"{each.job_id}: nothing moves; {', '.join(away)} {are_away} copies of "
                "its key groups"
            )
    return None


def drain_sentence(drain: DrainInformation) -> str:
    """Return in one line how far a node is from being empty."""
    node = printable(drain.node_id)
    if not drain.is_draining:
        what = _jobs_text(drain.copy_counts) or "no key groups yet"
        return f"{node} takes part, with {what}"
    if drain.is_empty:
        return f"{node} is empty"
    if not drain.left_count:
        return f"{node} has no key groups, and waits for batches that were begun before"
    return f"{node} is being emptied: {_jobs_text(drain.copy_counts)}"


def rescalings_text(
    rescalings: Sequence[RescalingInformation], *, has_bars: bool
) -> str:
    """
    Return *rescalings* as a table for people, with one of what is being copied.

    Args:
        rescalings: Of one job, or of all.
        has_bars: Whether to draw how far each is.
    """
    if not rescalings:
        return "there are no jobs"
    text = table_text(
        ("JOB", "NODES", "REPLICAS", "KEY GROUPS", "MOVED", "TIME LEFT"),
        [
            (
                each.job_id,
                str(each.node_count),
                str(each.replica_count),
                _copies_text(each.copy_counts),
                _moved_text(each, has_bar=has_bars),
                ABSENT if each.is_done else duration_text(each.seconds_left),
            )
            for each in rescalings
        ],
    )
    moves = [
        (
            each.job_id,
            moves.node_id,
            " ".join(moves.source_ids) or ABSENT,
            str(moves.copying_count),
            str(moves.waiting_count),
            f"{moves.row_count:,}",
            size_text(moves.size_bytes),
            moves.failure or ABSENT,
        )
        for each in rescalings
        for moves in each.moves
    ]
    if moves:
        headings = (
            *("JOB", "NODE", "COPIES FROM", "COPYING", "WAITING"),
            *("ROWS", "SIZE", "FAILURE"),
        )
        text += "\n\n" + table_text(headings, moves)
    return text


def _moved_text(rescaling: RescalingInformation, *, has_bar: bool) -> str:
    if rescaling.is_done:
        return ABSENT
    planned_count = max(rescaling.planned_count, rescaling.left_count)
    done_count = planned_count - rescaling.left_count
    text = f"{done_count} of {planned_count}"
    if has_bar:
        bar = bar_text(done_count, planned_count, width=_BAR_WIDTH)
        text = f"{bar} {text}"
    return text


def _copies_text(copy_counts: Mapping[str, int]) -> str:
    """Return how many copies each node has: ``node-1 64, node-2 64``."""
    shown = [f"{node} {count}" for node, count in sorted(copy_counts.items())]
    return printable(", ".join(shown)) if shown else ABSENT


def _jobs_text(copy_counts: Mapping[str, int]) -> str:
    """Return how many key groups of which jobs: ``64 key groups of flights``."""
    return ", ".join(
        f"{_counted(count, 'key group', 'key groups')} of {printable(job)}"
        for job, count in sorted(copy_counts.items())
    )


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
