"""How much a control plane takes on."""

from __future__ import annotations

import pytest

from queryablestate.control.limits import ControlLimits


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("limit", "max_parallelism", "count"),
    [(16, 1, 16), (16, 1_024, 16), (16, 1_025, 17), (1, 128, 2), (16, 32_768, 512)],
)
def test_a_job_moves_in_so_many_waves(
    limit: int, max_parallelism: int, count: int
) -> None:
    """S2: at most 64 from each node to the next, whose versions are all kept."""
    limits = ControlLimits(joining_key_groups_max=limit)
    assert limits.joining_count_max(max_parallelism) == count


@pytest.mark.parametrize(
    "name",
    [
        "job_count_max",
        "state_count_max",
        "node_count_max",
        "replica_count",
        "joining_key_groups_max",
        "key_group_count_max",
        "schema_size_bytes_max",
    ],
)
def test_nothing_is_limited_to_nothing(name: str) -> None:
    """A proxy that takes no job, or copies nothing, is none."""
    assert ControlLimits(**{name: 1}) != ControlLimits(**{name: 2})
    with pytest.raises(ValueError, match=name):
        ControlLimits(**{name: 0})
