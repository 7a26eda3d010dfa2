from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retrieval.core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    NotifyLeader,
    PublicationReceived,
    RetrieverCore,
)
from retrieval.information import Publication
from tests.retrieval.fakes import leader


if TYPE_CHECKING:
    from retrieval.core import RetrieverEvent


def published(
    epoch: int, confirm_count: int = 1, address: str = "a:1"
) -> PublicationReceived:
    """Return news of a confirmed leader."""
    return PublicationReceived(
        publication=Publication(
            epoch=epoch, confirm_count=confirm_count, leader=leader(epoch, address)
        )
    )


def nobody(epoch: int, confirm_count: int = 1) -> PublicationReceived:
    """Return news that the leadership of *epoch* is over."""
    return PublicationReceived(
        publication=Publication(epoch=epoch, confirm_count=confirm_count, leader=None)
    )


def core_after(
    *events: RetrieverEvent, clears_on_suspended: bool = False
) -> RetrieverCore:
    """Return a core in contact that has taken *events*."""
    core = RetrieverCore(clears_on_suspended=clears_on_suspended)
    core.step(ContactRestored(publication=None))
    for event in events:
        core.step(event)
    return core


@pytest.mark.proves("R1")
class TestFirstNews:
    def test_knows_nobody_at_first(self) -> None:
        """R1: before any news there is no leader, and nothing to tell."""
        core = RetrieverCore(clears_on_suspended=False)
        assert core.told is None
        assert core.newest is None
        assert core.step(ContactRestored(publication=None)) == ()

    def test_confirmed_leader_is_told_at_once(self) -> None:
        """R1: the first answer names the confirmed leader."""
        core = RetrieverCore(clears_on_suspended=False)
        answer = published(3).publication
        assert core.step(ContactRestored(publication=answer)) == (
            NotifyLeader(leader=leader(3)),
        )
        assert core.told == leader(3)
        assert core.newest == answer

    def test_none_is_not_told_before_a_leader_was(self) -> None:
        """R1: a listener that was told of no leader is not told that there is none."""
        core = core_after()
        assert core.step(nobody(3)) == ()
        assert core.told is None
        assert core.newest == nobody(3).publication

    def test_news_before_contact_waits_for_contact(self) -> None:
        """R1: a broadcast that overtakes the first answer is not told alone."""
        core = RetrieverCore(clears_on_suspended=False)
        assert core.step(published(3)) == ()
        assert core.step(ContactRestored(publication=None)) == (
            NotifyLeader(leader=leader(3)),
        )


@pytest.mark.proves("R2")
class TestChanges:
    def test_end_of_a_leadership_is_told(self) -> None:
        """R2: None means that there is no leader now."""
        core = core_after(published(3))
        assert core.step(nobody(3)) == (NotifyLeader(leader=None),)
        assert core.told is None

    def test_successor_is_told(self) -> None:
        """R2: another leadership is another value."""
        core = core_after(published(3))
        assert core.step(published(4, address="b:1")) == (
            NotifyLeader(leader=leader(4, "b:1")),
        )

    def test_same_address_under_another_leadership_is_told(self) -> None:
        """R2: the leader session id alone makes a difference."""
        core = core_after(published(3))
        assert core.step(published(4)) == (NotifyLeader(leader=leader(4)),)

    def test_new_address_under_the_same_leadership_is_told(self) -> None:
        """R2: so does the address alone (confirmed again, E3)."""
        core = core_after(published(3))
        assert core.step(published(3, 2, address="b:1")) == (
            NotifyLeader(leader=leader(3, "b:1")),
        )

    def test_same_value_is_not_told_twice(self) -> None:
        """R2: confirmed again under the same address, there is nothing to tell."""
        core = core_after(published(3))
        assert core.step(published(3, 2)) == ()
        assert core.newest == published(3, 2).publication


@pytest.mark.proves("R3")
class TestOrder:
    @pytest.mark.parametrize(
        "late",
        [
            published(3),
            published(3, 9, address="b:1"),
            nobody(3, 9),
            published(4),
            published(4, 1, address="b:1"),
        ],
    )
    def test_nothing_older_follows_something_newer(
        self, late: PublicationReceived
    ) -> None:
        """R3: of an older epoch, or the same epoch and fewer confirms, is ignored."""
        core = core_after(published(4, 2))
        assert core.step(late) == ()
        assert core.told == leader(4)
        assert core.newest == published(4, 2).publication

    def test_nobody_outranks_the_rest_of_its_epoch(self) -> None:
        """R3: once an epoch is over, no confirm of it comes back."""
        core = core_after(published(4), nobody(4))
        assert core.step(published(4, 9)) == ()
        assert core.told is None
        assert core.step(published(5)) == (NotifyLeader(leader=leader(5)),)

    def test_repeated_news_changes_nothing(self) -> None:
        """R3: only a greater publication is taken."""
        core = core_after(published(4), nobody(4))
        assert core.step(nobody(4)) == ()

    def test_equal_rank_is_not_taken(self) -> None:
        """R3: what was said once is not said otherwise under the same number."""
        core = core_after(published(4, 2))
        assert core.step(published(4, 2, address="b:1")) == ()
        assert core.told == leader(4)

    def test_old_answer_after_reconnection_is_ignored(self) -> None:
        """R3: a snapshot that is older than the last broadcast is not taken."""
        core = core_after(published(4), ContactSuspended())
        old = published(3).publication
        assert core.step(ContactRestored(publication=old)) == ()
        assert core.told == leader(4)


class TestContact:
    @pytest.mark.proves("R4")
    def test_keep_tells_nothing_of_a_suspension(self) -> None:
        """R4: under "keep" the leader stays until the session is lost."""
        core = core_after(published(3))
        assert core.step(ContactSuspended()) == ()
        assert core.told == leader(3)
        assert core.step(ContactLost()) == (NotifyLeader(leader=None),)
        assert core.told is None

    @pytest.mark.proves("R4")
    def test_keep_takes_news_while_suspended(self) -> None:
        """R4: what arrives all the same is told."""
        core = core_after(published(3), ContactSuspended())
        assert core.step(nobody(3)) == (NotifyLeader(leader=None),)

    @pytest.mark.proves("R2", "R4")
    def test_keep_tells_nothing_when_contact_is_back_in_time(self) -> None:
        """R4, R2: the same leader after a suspension is no change."""
        core = core_after(published(3), ContactSuspended())
        answer = published(3).publication
        assert core.step(ContactRestored(publication=answer)) == ()

    @pytest.mark.proves("R4")
    def test_clear_tells_none_at_once_and_the_same_leader_again(self) -> None:
        """R4: under "clear" a suspension is told, and so is its end."""
        core = core_after(published(3), clears_on_suspended=True)
        assert core.step(ContactSuspended()) == (NotifyLeader(leader=None),)
        assert core.told is None
        answer = published(3).publication
        assert core.step(ContactRestored(publication=answer)) == (
            NotifyLeader(leader=leader(3)),
        )

    @pytest.mark.proves("R4")
    def test_clear_holds_back_news_until_contact_is_back(self) -> None:
        """R4: while suspended under "clear" there is no leader, whatever arrives."""
        core = core_after(published(3), ContactSuspended(), clears_on_suspended=True)
        assert core.step(published(4)) == ()
        assert core.step(ContactRestored(publication=None)) == (
            NotifyLeader(leader=leader(4)),
        )

    @pytest.mark.proves("R4")
    @pytest.mark.parametrize("clears_on_suspended", [False, True])
    def test_lost_contact_is_told_and_the_same_leader_again(
        self, clears_on_suspended: bool
    ) -> None:
        """R4: a lost session is told; if it survived, the leader is told again."""
        core = core_after(published(3), clears_on_suspended=clears_on_suspended)
        assert core.step(ContactLost()) == (NotifyLeader(leader=None),)
        assert core.step(published(4)) == ()
        assert core.step(ContactRestored(publication=None)) == (
            NotifyLeader(leader=leader(4)),
        )

    @pytest.mark.proves("R4")
    @pytest.mark.parametrize("clears_on_suspended", [False, True])
    def test_suspension_without_contact_is_no_contact(
        self, clears_on_suspended: bool
    ) -> None:
        """R4: a suspension reported after the loss does not bring the leader back."""
        core = core_after(
            published(3), ContactLost(), clears_on_suspended=clears_on_suspended
        )
        assert core.step(ContactSuspended()) == ()
        assert core.told is None

    @pytest.mark.proves("R2")
    def test_second_suspension_tells_nothing(self) -> None:
        """R2: what was told once is not told twice."""
        core = core_after(published(3), ContactSuspended(), clears_on_suspended=True)
        assert core.step(ContactSuspended()) == ()
        assert core.step(ContactLost()) == ()
