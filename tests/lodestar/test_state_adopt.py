"""What ``lodestar adopt`` shows, and which control plane it means (W7, N6)."""

from __future__ import annotations

import pytest

from lodestar.state_adopt import (
    adopted_text,
    chosen_control,
    kept_text,
    preview_text,
)
from nameservice import ConfigurationError
from queryablestate.operations.adoption import AdoptionInformation, KeptInformation


def kept(control_id: str, *, is_ahead: bool = False) -> KeptInformation:
    """Return what nodes keep of a job."""
    return KeptInformation(
        job_id="flights",
        control_id=control_id,
        is_ahead=is_ahead,
        node_ids=("n-1", "n-2"),
        batch_id=None if is_ahead else 7,
        decided_at_seconds=None if is_ahead else 1_700_000_000.0,
    )


ADOPTED = AdoptionInformation(
    job_id="flights",
    known_sequence=5,
    sequence=1_007,
    batch_ids={"routes": None, "aircraft": 6},
    node_ids=("n-1", "n-2", "n-3"),
    away_ids=("n-2",),
    lost_ids=("n-3",),
)


class TestChoice:
    def test_the_only_one_is_meant(self) -> None:
        """An operator need not copy a name that there is no choice of."""
        assert chosen_control([], None) is None
        assert chosen_control([kept("2f1c"), kept("2f1c")], None) == "2f1c"

    def test_of_several_one_is_named(self) -> None:
        """By how it begins; and the error shows them."""
        both = [kept("2f1c"), kept("2f2d")]
        assert chosen_control(both, "2f2") == "2f2d"
        with pytest.raises(ConfigurationError, match="2f1c"):
            chosen_control(both, None)
        for wrong in ("2f", "3"):
            with pytest.raises(ConfigurationError, match=r"2f1c, 2f2d"):
                chosen_control(both, wrong)

    def test_the_present_one_comes_first(self) -> None:
        """What nodes are ahead with is not given up for what is older."""
        assert chosen_control([kept("2f1c"), kept("now", is_ahead=True)], None) is None


class TestText:
    def test_what_is_kept(self) -> None:
        """N6: job, batch and nodes; words where something is not known."""
        shown = kept_text([kept("2f1c"), kept("now", is_ahead=True)]).splitlines()
        assert shown[0].split() == (
            ["JOB", "CONTROL", "PLANE", "LAST", "BATCH", "DECIDED", "ROWS", "ON"]
        )
        assert "2023-11-14 22:13:20+00:00" in shown[1]
        assert shown[1].endswith("n-1, n-2")
        assert "the present one" in shown[2]

    def test_what_would_be_and_what_was_taken_over(self) -> None:
        """N6: batches by state, and what will be missing."""
        content = "aircraft batch 6, routes batch -; away: n-2; rows are lost on n-3"
        assert adopted_text([ADOPTED]) == f"took over flights: {content}"
        assert preview_text(ADOPTED) == (
            "flights: the name service knows entry 5, nodes have entry 1,007: "
            + content
        )
