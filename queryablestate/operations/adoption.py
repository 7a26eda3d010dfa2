"""
What nodes have that the control plane does not know, and how it is taken over; pure.

See `queryablestate.wire.adoption_messages` for the two steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.adoption_messages import JobAdopted
    from queryablestate.wire.clients import NodesListed


__all__ = [
    "AdoptionInformation",
    "KeptInformation",
    "adoption_information",
    "is_back",
    "keeper_ids",
    "kept_information",
]

_US_PER_SECOND: Final = 1_000_000


@final
@frozen(kw_only=True)
class KeptInformation:
    """
    A job of which nodes have rows that the control plane does not know of.

    Attributes:
        job_id: The job.
        control_id: The control plane that the rows are of.
        is_ahead: Whether that is the present one: the name service holds an older copy
            of what was stored.
        node_ids: The nodes that have such rows, sorted.
        batch_id: The last batch; None while that is not known.
        decided_at_seconds: When that was decided, seconds since 1970 UTC, or None.
    """

    job_id: str
    control_id: str
    is_ahead: bool
    node_ids: Sequence[str]
    batch_id: int | None
    decided_at_seconds: float | None


@final
@frozen(kw_only=True)
class AdoptionInformation:
    """
    What is taken over of a job, or would be.

    Attributes:
        job_id: The job.
        known_sequence: The last entry of its chain that the name service knew of; 0 if
            it did not know the job.
        sequence: The last entry that nodes have.
        batch_ids: The last batch of each state; None of one that was never written.
        node_ids: The nodes that have it, sorted.
        away_ids: Those of them that are away, sorted.
        lost_ids: Those that lack entries that no node has any more, sorted: what only
            they have is unavailable until a batch replaces it.
    """

    job_id: str
    known_sequence: int
    sequence: int
    batch_ids: Mapping[str, int | None]
    node_ids: Sequence[str]
    away_ids: Sequence[str]
    lost_ids: Sequence[str]


def kept_information(listed: NodesListed) -> list[KeptInformation]:
    """Return what the nodes of *listed* keep, by control plane and job."""
    found: dict[tuple[str, str], list[tuple[str, int, int | None]]] = {}
    for node in listed.nodes:
        for rows in node.kept:
            for job in rows.jobs:
                found.setdefault((rows.control_id, job.job_id), []).append(
                    (node.node_id, job.decided_at_us, job.batch_id)
                )
    kept = []
    for (control_id, job_id), keepers in sorted(found.items()):
        _, decided_at_us, batch_id = max(keepers, key=lambda one: one[1])
        kept.append(
            KeptInformation(
                job_id=job_id,
                control_id=control_id,
                is_ahead=control_id == listed.control_id,
                node_ids=tuple(sorted({node_id for node_id, _, _ in keepers})),
                batch_id=batch_id,
                decided_at_seconds=(
                    decided_at_us / _US_PER_SECOND if decided_at_us else None
                ),
            )
        )
    return kept


def keeper_ids(listed: NodesListed, control_id: str) -> list[str]:
    """Return the nodes that are there and keep rows of *control_id*."""
    return [
        node.node_id
        for node in listed.nodes
        if node.address is not None
        and any(rows.control_id == control_id for rows in node.kept)
    ]


def is_back(listed: NodesListed, control_id: str, node_ids: Sequence[str]) -> bool:
    """Return whether these nodes serve the rows of *control_id* that they kept."""
    if listed.control_id != control_id:
        return False
    return set(keeper_ids(listed, control_id)) >= set(node_ids)


def adoption_information(adopted: JobAdopted) -> AdoptionInformation:
    """Return what the proxy says of a job that is taken over, as operators see it."""
    return AdoptionInformation(
        job_id=adopted.job_id,
        known_sequence=adopted.known_sequence,
        sequence=adopted.sequence,
        batch_ids={state.state_name: state.batch_id for state in adopted.states},
        node_ids=adopted.node_ids,
        away_ids=adopted.away_ids,
        lost_ids=adopted.lost_ids,
    )
