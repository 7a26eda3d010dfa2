from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from attrs import evolve

from leaderserver.client.core.events import (
    DeliverToRetriever,
    JoinTopic,
    LeaveTopic,
    ReportToRetriever,
    RetrieverAdded,
)
from leaderserver.client.core.exchanges import Purpose
from leaderserver.client.core.outbox import ClientOutbox
from leaderserver.client.core.subscriptions import ClientSubscriptions
from leaderserver.codec import publication_to_record
from leaderserver.messages import (
    Published,
    SnapshotReply,
    SubscribeRequest,
    UnsubscribeRequest,
)
from nameservice import AuthenticationError, EpochAheadError
from retrieval import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    LeaderInformation,
    Publication,
    PublicationReceived,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from leaderserver.client.core.events import ClientEffect
    from retrieval import RetrieverEvent


JOB = "c/job"


def leads(epoch: int) -> Publication:
    """Return that somebody leads under *epoch*."""
    leader = LeaderInformation(
        address="a:1", leader_session_id=UUID(int=epoch), epoch=epoch
    )
    return Publication(epoch=epoch, confirm_count=1, leader=leader)


def nobody(epoch: int) -> Publication:
    """Return that there is no leader since *epoch* is over."""
    return Publication(epoch=epoch, confirm_count=0, leader=None)


def told(event: RetrieverEvent, *retriever_ids: int) -> list[ClientEffect]:
    """Return that retrievers are told of *event*."""
    return [DeliverToRetriever(retriever_id=i, event=event) for i in retriever_ids]


class Subscribed:
    """All retrievers of one client, and what they ask the server."""

    def __init__(self) -> None:
        self.outbox = ClientOutbox(now_ns=0, lease_ns=100, session_timeout_ns=1_000)
        self.all = ClientSubscriptions(self.outbox)
        self.has_contact = True
        self.outbox.has_session = True

    @property
    def asked(self) -> list[str]:
        """Return what waits to be asked, and asked no more hereby."""
        purposes = [e.key[0].value for e in self.outbox.exchanges]
        for exchange in self.outbox.exchanges:
            self.outbox.exchanges.end(exchange.key)
        return purposes

    def take(self) -> Sequence[ClientEffect]:
        """Return what is to be done; look after the invariants."""
        self.all.check_invariants(has_contact=self.has_contact)
        return self.outbox.take()

    def add(self, retriever_id: int = 1) -> Sequence[ClientEffect]:
        """Enter a retriever."""
        self.all.add(
            RetrieverAdded(retriever_id=retriever_id, component_id=JOB),
            has_contact=self.has_contact,
        )
        return self.take()

    def snapshot(
        self,
        revision: int,
        publication: Publication | None,
        *,
        is_undecided: bool = False,
    ) -> Sequence[ClientEffect]:
        """Answer a subscription."""
        reply = SnapshotReply(
            revision=revision,
            is_undecided=is_undecided,
            publication=None
            if publication is None
            else publication_to_record(publication),
        )
        self.all.take_snapshot(JOB, reply, has_contact=self.has_contact)
        return self.take()

    def publish(
        self, revision: int, publication: Publication, *, is_numbered: bool = True
    ) -> Sequence[ClientEffect]:
        """Broadcast a change."""
        self.all.take_broadcast(
            Published(
                component_id=JOB,
                revision=revision,
                publication=publication_to_record(publication),
            ),
            is_numbered=is_numbered,
        )
        return self.take()


@pytest.fixture
def subscribed() -> Subscribed:
    """Return a client in contact, without a retriever."""
    return Subscribed()


@pytest.fixture
def current(subscribed: Subscribed) -> Subscribed:
    """Return a client whose retriever 1 knows that epoch 7 leads, as of revision 3."""
    subscribed.add()
    subscribed.snapshot(3, leads(7))
    assert subscribed.asked == []
    return subscribed


class TestRetrievers:
    @pytest.mark.proves("N1")
    def test_the_first_one_subscribes(self, subscribed: Subscribed) -> None:
        """It listens before it asks, so that nothing falls in between (N1)."""
        assert subscribed.add() == [JoinTopic(component_id=JOB)]
        assert subscribed.asked == ["subscribe"]
        assert subscribed.all.subscribe_request(JOB) == SubscribeRequest(
            component_id=JOB, epoch_seen=0, is_ended_seen=False
        )

    def test_the_next_is_told_at_once(self, current: Subscribed) -> None:
        """What one of them knows, another need not wait for (R1)."""
        assert current.add(2) == told(ContactRestored(publication=leads(7)), 2)
        assert current.asked == []

    def test_the_next_waits_for_what_the_first_waits_for(
        self, subscribed: Subscribed
    ) -> None:
        """One subscription serves both."""
        subscribed.add(1)
        assert subscribed.add(2) == []
        restored = ContactRestored(publication=leads(7))
        assert subscribed.snapshot(3, leads(7)) == told(restored, 1, 2)

    @pytest.mark.proves("R4")
    def test_without_contact_it_waits_for_it(self, subscribed: Subscribed) -> None:
        """A suspended server is asked once it is back (R4)."""
        subscribed.has_contact = False
        assert subscribed.add() == [JoinTopic(component_id=JOB)]
        assert subscribed.asked == []
        subscribed.has_contact = True
        subscribed.all.contact_restored()
        assert subscribed.asked == ["subscribe"]

    @pytest.mark.proves("N1")
    def test_without_a_session_it_listens_later(self, subscribed: Subscribed) -> None:
        """There is no place to listen at before a session says where (N1)."""
        subscribed.has_contact = False
        subscribed.outbox.has_session = False
        assert subscribed.add() == []
        subscribed.outbox.has_session = True
        subscribed.all.session_begins()
        assert subscribed.take() == [JoinTopic(component_id=JOB)]

    def test_the_last_one_unsubscribes(self, current: Subscribed) -> None:
        """While one is left the server goes on telling (R5)."""
        current.add(2)
        current.all.remove(1)
        assert current.take() == []
        current.all.remove(2)
        assert current.take() == [LeaveTopic(component_id=JOB)]
        (exchange,) = current.outbox.exchanges
        assert exchange.key == (Purpose.UNSUBSCRIBE, JOB)
        assert exchange.body == UnsubscribeRequest(component_id=JOB)

    def test_without_a_session_there_is_nobody_to_tell(
        self, subscribed: Subscribed
    ) -> None:
        """The next session is told of those only that are there."""
        subscribed.has_contact = False
        subscribed.outbox.has_session = False
        subscribed.add()
        subscribed.all.remove(1)
        assert subscribed.take() == [LeaveTopic(component_id=JOB)]
        assert subscribed.asked == []

    def test_one_that_has_left_leaves_once(self, current: Subscribed) -> None:
        """Closing is idempotent."""
        current.all.remove(1)
        current.take()
        assert current.asked == ["unsubscribe"]
        current.all.remove(1)
        assert current.take() == []
        assert current.asked == []

    def test_coming_back_overtakes_the_leaving(self, current: Subscribed) -> None:
        """An unsubscription that still waits must not silence the newcomer."""
        current.all.remove(1)
        current.take()
        assert current.add(2) == [JoinTopic(component_id=JOB)]
        assert current.asked == ["subscribe"]

    def test_a_refusal_is_told_to_each(self, subscribed: Subscribed) -> None:
        """None waits in silence for what is not allowed (N4)."""
        subscribed.add(1)
        subscribed.add(2)
        error = AuthenticationError("h", "no")
        subscribed.all.subscribe_failed(JOB, error)
        assert subscribed.take() == [
            ReportToRetriever(retriever_id=1, error=error),
            ReportToRetriever(retriever_id=2, error=error),
        ]

    def test_after_a_refusal_the_next_one_asks_anew(
        self, subscribed: Subscribed
    ) -> None:
        """N4: it waits not in silence, and what was refused may be allowed by now."""
        error = AuthenticationError("h", "no")
        subscribed.add(1)
        subscribed.all.subscribe_failed(JOB, error)
        subscribed.take()
        assert subscribed.asked == ["subscribe"]
        assert subscribed.add(2) == []
        assert subscribed.asked == ["subscribe"]
        subscribed.all.subscribe_failed(JOB, error)
        assert [type(effect) for effect in subscribed.take()] == 2 * [ReportToRetriever]
        subscribed.add(3)
        assert subscribed.asked == ["subscribe"]
        restored = ContactRestored(publication=leads(7))
        assert subscribed.snapshot(3, leads(7)) == told(restored, 1, 2, 3)

    def test_after_a_refusal_that_was_taken_back_nobody_need_ask(
        self, subscribed: Subscribed
    ) -> None:
        """The server was asked again in the meantime, and has answered."""
        subscribed.add(1)
        subscribed.all.subscribe_failed(JOB, AuthenticationError("h", "no"))
        subscribed.snapshot(3, leads(7))
        assert subscribed.add(2) == told(ContactRestored(publication=leads(7)), 2)
        assert subscribed.asked == []

    def test_without_contact_a_refusal_is_asked_about_later(
        self, subscribed: Subscribed
    ) -> None:
        """R4: everything is asked anew then."""
        subscribed.add(1)
        subscribed.all.subscribe_failed(JOB, AuthenticationError("h", "no"))
        assert subscribed.asked == ["subscribe"]
        subscribed.has_contact = False
        subscribed.all.contact_suspended()
        subscribed.add(2)
        assert subscribed.asked == []


class TestSnapshots:
    def test_an_undecided_server_is_asked_again(self, subscribed: Subscribed) -> None:
        """It does not know yet who led before it: its answer says nothing (E9)."""
        subscribed.add()
        assert subscribed.snapshot(0, None, is_undecided=True) == []
        assert subscribed.asked == ["subscribe"]

    def test_nobody_ever_led(self, subscribed: Subscribed) -> None:
        """Retrieving what has no contender is no error (R5)."""
        subscribed.add()
        restored = ContactRestored(publication=None)
        assert subscribed.snapshot(0, None) == told(restored, 1)
        assert subscribed.snapshot(0, None) == []

    def test_what_was_seen_is_reported(self, current: Subscribed) -> None:
        """A new server hears from retrievers, too, which epochs there were (E9)."""
        assert current.all.subscribe_request(JOB) == SubscribeRequest(
            component_id=JOB, epoch_seen=7, is_ended_seen=False
        )
        current.publish(4, nobody(7))
        assert current.all.subscribe_request(JOB) == SubscribeRequest(
            component_id=JOB, epoch_seen=7, is_ended_seen=True
        )

    @pytest.mark.proves("R3")
    def test_leader_older_than_what_is_known_is_told(self, current: Subscribed) -> None:
        """R3, E8: it is never taken, so its retrievers hear why, once."""
        current.publish(4, leads(8))
        received = PublicationReceived(publication=leads(7))
        error = EpochAheadError("job", 8, 7)
        report, *others = current.snapshot(4, leads(7))
        assert isinstance(report, ReportToRetriever)
        assert str(report.error) == str(error)
        assert others == told(received, 1)
        assert current.snapshot(4, leads(7)) == told(received, 1)

    @pytest.mark.proves("R3")
    def test_older_leader_that_is_broadcast_is_told(self, current: Subscribed) -> None:
        """R3: its server had no leader when it was asked, so no answer tells of it."""
        current.publish(4, leads(8))
        current.has_contact = False
        current.all.contact_suspended()
        current.all.session_begins()
        current.take()
        current.has_contact = True
        current.all.contact_restored()
        current.snapshot(1, None)
        received = PublicationReceived(publication=leads(7))
        report, *others = current.publish(2, leads(7))
        assert isinstance(report, ReportToRetriever)
        assert str(report.error) == str(EpochAheadError("job", 8, 7))
        assert others == told(received, 1)
        assert current.snapshot(2, leads(7)) == told(received, 1)
        (_, also) = current.add(2)
        assert also == evolve(report, retriever_id=2)
        current.publish(3, leads(9))
        assert len(current.add(3)) == 1

    @pytest.mark.proves("R3")
    @pytest.mark.parametrize(("revision", "is_numbered"), [(9, False), (3, True)])
    def test_late_broadcast_of_an_older_leader_is_no_error(
        self, current: Subscribed, revision: int, is_numbered: bool
    ) -> None:
        """R3: a former server's, or one that an answer has overtaken."""
        current.publish(4, leads(8))
        received = PublicationReceived(publication=leads(7))
        published = current.publish(revision, leads(7), is_numbered=is_numbered)
        assert published == told(received, 1)

    @pytest.mark.proves("R3")
    def test_an_answer_that_was_overtaken_is_news_at_most(
        self, current: Subscribed
    ) -> None:
        """A snapshot older than a broadcast turns nothing back (R3)."""
        current.publish(4, leads(8))
        received = PublicationReceived(publication=leads(7))
        assert current.snapshot(3, leads(7)) == told(received, 1)
        assert current.all.subscribe_request(JOB).epoch_seen == 8
        assert current.publish(5, nobody(8)) == told(
            PublicationReceived(publication=nobody(8)), 1
        )
        assert current.asked == []

    def test_an_answer_without_contact_restores_none(
        self, subscribed: Subscribed
    ) -> None:
        """It answers what was sent too long ago; the news in it is news (E5)."""
        subscribed.add()
        subscribed.has_contact = False
        received = PublicationReceived(publication=leads(7))
        assert subscribed.snapshot(3, leads(7)) == told(received, 1)


class TestBroadcasts:
    @pytest.mark.proves("R3")
    def test_a_change_is_told(self, current: Subscribed) -> None:
        """Whatever comes is handed on: retrievers order it themselves (R3)."""
        received = PublicationReceived(publication=nobody(7))
        assert current.publish(4, nobody(7)) == told(received, 1)
        assert current.publish(4, nobody(7)) == told(received, 1)
        assert current.asked == []

    @pytest.mark.proves("N1")
    def test_a_gap_is_asked_about(self, current: Subscribed) -> None:
        """A revision too far on means that another was lost (N1)."""
        received = PublicationReceived(publication=leads(8))
        assert current.publish(5, leads(8)) == told(received, 1)
        assert current.asked == ["subscribe"]

    def test_before_the_first_snapshot_there_is_no_gap(
        self, subscribed: Subscribed
    ) -> None:
        """It is asked for anyhow."""
        subscribed.add()
        assert subscribed.asked == ["subscribe"]
        received = PublicationReceived(publication=leads(8))
        assert subscribed.publish(9, leads(8)) == told(received, 1)
        assert subscribed.asked == []

    def test_another_component_is_nobodys_business(self, current: Subscribed) -> None:
        """Topics match by prefix, and some are left late."""
        current.all.take_broadcast(
            Published(
                component_id="c/job2",
                revision=1,
                publication=publication_to_record(leads(1)),
            ),
            is_numbered=True,
        )
        assert current.take() == []

    @pytest.mark.proves("N1")
    @pytest.mark.parametrize(
        ("component_id", "revision", "asked"),
        [
            (JOB, 2, []),
            (JOB, 3, []),
            (JOB, 4, ["subscribe"]),
            ("c/other", 4, []),
        ],
    )
    def test_a_lost_last_broadcast_is_noticed(
        self, current: Subscribed, component_id: str, revision: int, asked: list[str]
    ) -> None:
        """Answers to heartbeats tell the revisions, the newest included (N1)."""
        current.all.take_revisions({component_id: revision})
        assert current.take() == []
        assert current.asked == asked

    @pytest.mark.proves("N1")
    def test_another_session_numbers_anew(self, current: Subscribed) -> None:
        """What the former server counted says nothing of this one's changes (N1)."""
        current.has_contact = False
        current.all.contact_suspended()
        current.all.session_begins()
        current.take()
        current.all.take_revisions({JOB: 2})
        assert current.asked == ["subscribe"]

    @pytest.mark.proves("N1")
    def test_a_late_broadcast_does_not_count_before_the_first_snapshot(
        self, subscribed: Subscribed
    ) -> None:
        """It may be the former server's, which numbered its own changes (N1)."""
        subscribed.add()
        assert subscribed.asked == ["subscribe"]
        subscribed.publish(4, nobody(7))
        subscribed.all.take_revisions({JOB: 2})
        assert subscribed.asked == ["subscribe"]

    @pytest.mark.proves("N1")
    def test_a_late_broadcast_of_a_former_server_hides_nothing(
        self, current: Subscribed
    ) -> None:
        """It is news, if it is; its number says nothing of this server (N1)."""
        current.publish(40, nobody(7), is_numbered=False)
        assert current.asked == []
        current.all.take_revisions({JOB: 39})
        assert current.asked == ["subscribe"]


@pytest.mark.proves("R4")
class TestContact:
    @pytest.mark.parametrize("event", [ContactSuspended(), ContactLost()])
    def test_everybody_hears_of_its_end(
        self, current: Subscribed, event: RetrieverEvent
    ) -> None:
        """What it means to a listener is its retriever's business (R4)."""
        current.add(2)
        current.has_contact = False
        if isinstance(event, ContactSuspended):
            current.all.contact_suspended()
        else:
            current.all.contact_lost()
        assert current.take() == told(event, 1, 2)

    def test_it_is_back_with_the_answer_to_a_new_question(
        self, current: Subscribed
    ) -> None:
        """None is told of contact with what was true before it was lost (R4)."""
        current.has_contact = False
        current.all.contact_suspended()
        current.take()
        current.has_contact = True
        current.all.contact_restored()
        assert current.take() == []
        assert current.asked == ["subscribe"]
        restored = ContactRestored(publication=leads(7))
        assert current.snapshot(1, leads(7)) == told(restored, 1)
        # A server that was started anew counts from the beginning: no gap here.
        received = PublicationReceived(publication=nobody(7))
        assert current.publish(2, nobody(7)) == told(received, 1)
        assert current.asked == []
