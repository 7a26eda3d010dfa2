from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from attrs.exceptions import FrozenInstanceError

from retrieval.information import LeaderInformation, Publication


LEADER = LeaderInformation(address="a:1", leader_session_id=UUID(int=1), epoch=7)


class TestLeaderInformation:
    def test_is_a_value(self) -> None:
        """Equal by content, hashable, and frozen."""
        same = LeaderInformation(address="a:1", leader_session_id=UUID(int=1), epoch=7)
        assert same == LEADER
        assert hash(same) == hash(LEADER)
        with pytest.raises(FrozenInstanceError):
            LEADER.epoch = 8  # type: ignore[misc]


class TestPublication:
    @pytest.mark.proves("R3")
    def test_rank_orders_as_rule_r3_says(self) -> None:
        """R3: by epoch, then by confirms; "no leader" outranks its epoch's others."""
        rising = [
            Publication(epoch=7, confirm_count=1, leader=LEADER),
            Publication(epoch=7, confirm_count=2, leader=LEADER),
            Publication(epoch=7, confirm_count=0, leader=None),
            Publication(epoch=7, confirm_count=1, leader=None),
            Publication(epoch=8, confirm_count=1, leader=LEADER),
        ]
        for lower, higher in itertools.pairwise(rising):
            assert lower.rank < higher.rank
