from __future__ import annotations

from queryablestate.operations.adoption import (
    KeptInformation,
    is_back,
    keeper_ids,
    kept_information,
)
from queryablestate.wire.clients import NodesListed, NodeSummary
from queryablestate.wire.kept_rows import KeptJob, KeptRows


def rows(control_id: str, batch_id: int | None) -> KeptRows:
    """Return what a node keeps of one job."""
    job = KeptJob(
        job_id="flights",
        sequence=9,
        batch_id=batch_id,
        decided_at_us=0 if batch_id is None else batch_id * 1_000_000,
        key_groups=(),
    )
    return KeptRows(control_id=control_id, store_id="s", jobs=(job,))


def listed(control_id: str, **kept: tuple[KeptRows, ...]) -> NodesListed:
    """Return what a proxy lists; nodes that begin with ``z`` are away."""
    return NodesListed(
        request_id=1,
        control_id=control_id,
        nodes=tuple(
            NodeSummary(
                node_id=name,
                address=None if name.startswith("z") else "tcp://h:1",
                last_heard_ms=None,
                key_group_counts={},
                behind_counts={},
                kept=some,
            )
            for name, some in kept.items()
        ),
    )


def test_the_newest_batch_of_a_job_is_told() -> None:
    """Nodes need not be equally far; by control plane and job."""
    found = kept_information(
        listed(
            "now",
            a=(rows("old", 3),),
            b=(rows("old", 4), rows("now", None)),
            z=(rows("old", 2),),
        )
    )
    assert found == [
        KeptInformation(
            job_id="flights",
            control_id="now",
            is_ahead=True,
            node_ids=("b",),
            batch_id=None,
            decided_at_seconds=None,
        ),
        KeptInformation(
            job_id="flights",
            control_id="old",
            is_ahead=False,
            node_ids=("a", "b", "z"),
            batch_id=4,
            decided_at_seconds=4.0,
        ),
    ]


def test_nodes_are_back_with_what_they_kept() -> None:
    """When the control plane has that name, and they are ahead of it."""
    before = listed("now", a=(rows("old", 3),), b=(), z=(rows("old", 3),))
    assert keeper_ids(before, "old") == ["a"]
    assert not is_back(before, "old", ["a"])
    assert not is_back(listed("old", a=()), "old", ["a"])
    assert is_back(listed("old", a=(rows("old", None),)), "old", ["a"])
