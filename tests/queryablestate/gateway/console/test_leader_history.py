from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from haservices import ComponentInformation
from queryablestate.gateway.console.leader_history import LeaderHistory, SeenLeadership
from retrieval import LeaderInformation


BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: int) -> datetime:
    """Return that long after the first look."""
    return BEGAN + timedelta(seconds=seconds)


def led(component_id: str, address: str | None, epoch: int = 1) -> ComponentInformation:
    """Return a component, and its leader if it has an address."""
    leader = None
    if address is not None:
        leader = LeaderInformation(
            address=address, leader_session_id=UUID(int=epoch), epoch=epoch
        )
    return ComponentInformation(
        component_id=component_id, leader=leader, contender_count=1, epoch=epoch
    )


class TestHistory:
    def test_what_was_there_at_first_is_older(self) -> None:
        """Nobody can tell since when; what comes later is as old as it was seen."""
        history = LeaderHistory()
        history.observe([led("a", "tcp://1")], at(0))
        history.observe([led("a", "tcp://1"), led("b", "tcp://2")], at(1))
        assert history.of("a") == (SeenLeadership("tcp://1", 1, at(0), None, True),)
        assert history.of("b") == (SeenLeadership("tcp://2", 1, at(1), None, False),)
        assert history.began == at(0)

    def test_each_epoch_is_a_leadership(self) -> None:
        """Also of the same address; between two there may be a while without one."""
        history = LeaderHistory()
        for second, component in enumerate(
            [led("a", "x", 1), led("a", None), led("a", "x", 2), led("a", "y", 3)]
        ):
            history.observe([component], at(second))
        assert [(one.epoch, one.since, one.until) for one in history.of("a")] == [
            (1, at(0), at(1)),
            (2, at(2), at(3)),
            (3, at(3), None),
        ]

    def test_a_new_address_is_no_new_leadership(self) -> None:
        """A leader may confirm again."""
        history = LeaderHistory()
        history.observe([led("a", "x")], at(0))
        history.observe([led("a", "y")], at(1))
        assert [one.address for one in history.of("a")] == ["y"]

    def test_what_is_gone_stays_known(self) -> None:
        """A component that nobody contends for any more has a history, too."""
        history = LeaderHistory()
        history.observe([led("a", "x")], at(0))
        history.observe([], at(1))
        assert history.component_ids() == ["a"]
        assert history.of("a")[-1].until == at(1)

    def test_it_is_bounded(self) -> None:
        """In leaderships of a component, and in components."""
        history = LeaderHistory(component_count_max=2, leadership_count_max=3)
        for epoch in range(1, 9):
            history.observe([led("a", "x", epoch)], at(epoch))
        assert [one.epoch for one in history.of("a")] == [6, 7, 8]
        history.observe([led("b", "x"), led("c", "x")], at(9))
        assert history.component_ids() == ["b", "c"]
