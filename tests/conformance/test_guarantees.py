"""What a backend declares is what its services say, and what decides its tests."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from haservices import Guarantee, HAConfig, campaign
from nameservice import ConfigurationError, LeadershipLostError, NoLeaderError
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.selection import requires, without


if TYPE_CHECKING:
    from tests.conformance.harness import Harness


class TestGuarantees:
    def test_services_say_what_is_declared(self, harness: Harness) -> None:
        """The tests that a backend takes part in are those of what it promises."""
        assert harness.open().guarantees == harness.guarantees

    def test_config_is_the_one_it_was_opened_with(self, harness: Harness) -> None:
        """What is open can say how it was opened."""
        config = harness.config(lease_seconds=0.3)
        assert harness.open(lease_seconds=0.3).config == config

    @requires(Guarantee.ACROSS_PROCESSES)
    def test_configuration_travels(self, harness: Harness) -> None:
        """ACROSS_PROCESSES: a configuration is picklable, secrets stay in files."""
        config = harness.config()
        assert pickle.loads(pickle.dumps(config)) == config

    @without(Guarantee.ACROSS_PROCESSES)
    def test_configuration_does_not_leave_the_process(self, harness: Harness) -> None:
        """An embedded configuration says that a LeaderServer is needed instead."""
        with pytest.raises(ConfigurationError, match="LeaderServer"):
            pickle.dumps(harness.config())

    @requires(Guarantee.ENCRYPTED)
    def test_keys_are_asked_for(self, harness: Harness) -> None:
        """ENCRYPTED: the configuration says so too."""
        assert harness.config().is_encrypted
        assert not HAConfig(url=harness.config().url).is_encrypted


class TestCampaign:
    @pytest.mark.proves("E3", "E7")
    def test_leads_for_the_length_of_its_block(self, harness: Harness) -> None:
        """E3, E7: confirmed when it begins, withdrawn when it has ended."""
        ha = harness.open()
        with campaign(ha, JOB, "a:1", timeout_seconds=30.0) as leadership:
            with harness.open().get_leader_retriever(JOB) as retriever:
                leader = retriever.wait_for_leader(30.0)
            assert leader.address == "a:1"
            assert leader.epoch == leadership.epoch
            ha.get_leader_store(JOB).put("a", b"1", session=leadership.session)
        assert list(harness.operator.operations.contenders(JOB)) == []
        with pytest.raises(LeadershipLostError):
            leadership.check()

    @pytest.mark.proves("E1")
    def test_gives_up_when_its_turn_does_not_come(self, harness: Harness) -> None:
        """E1: the leader goes on; nothing of the campaign stays behind."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        with (
            pytest.raises(NoLeaderError),
            campaign(harness.open(), JOB, "b:1", timeout_seconds=0.1),
        ):
            pass
        assert len(leader.election.contenders()) == 1

    @pytest.mark.proves("E6")
    def test_is_told_when_it_is_lost(self, harness: Harness) -> None:
        """E6: `lost` is set, and the next one is granted without delay."""
        with campaign(harness.open(), JOB, "a:1", timeout_seconds=30.0) as leadership:
            follower = Candidate(harness.open(), "b:1")
            harness.operator.operations.revoke(JOB)
            assert leadership.lost.wait(30.0)
            follower.wait_for_confirm()
            with pytest.raises(LeadershipLostError):
                leadership.check()
