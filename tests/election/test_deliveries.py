"""`Deliveries`: what a contender is told, in order, and what it need not hear."""

from __future__ import annotations

from concurrent.futures import Future
from uuid import UUID

from election.contender import LeaderSession
from election.deliveries import Deliveries, Fail, Run, Taken
from election.holder import DeliverGrant, DeliverRevoke


_SESSION = LeaderSession(leader_session_id=UUID(int=1), epoch=1)
_LATER = LeaderSession(leader_session_id=UUID(int=2), epoch=2)
_GRANT = DeliverGrant(session=_SESSION)
_REVOKE = DeliverRevoke(session=_SESSION)
_RUN = Run(leader_session_id=UUID(int=1), action=lambda: None, future=Future())


def test_all_is_taken_in_the_order_in_which_it_was_put() -> None:
    """First in, first out, errors and actions too."""
    deliveries = Deliveries()
    given = (_GRANT, _RUN, Fail(error=OSError("gone")))
    assert all(deliveries.put(delivery) for delivery in given)
    taken = [deliveries.take() for _ in given]
    assert [one and one.delivery for one in taken] == list(given)
    assert [one and one.has_more for one in taken] == [True, True, False]
    nothing = Taken(delivery=None, collapsed_count=0, has_more=False)
    assert deliveries.take() == nothing


def test_a_grant_that_was_not_delivered_goes_with_its_revocation() -> None:
    """The contender hears of neither."""
    deliveries = Deliveries()
    for delivery in (_GRANT, _RUN, _REVOKE, DeliverGrant(session=_LATER)):
        assert deliveries.put(delivery)
    assert deliveries.take() == Taken(delivery=_RUN, collapsed_count=1, has_more=True)
    later = deliveries.take()
    assert later is not None
    assert later.delivery == DeliverGrant(session=_LATER)
    assert later.collapsed_count == 0


def test_a_revocation_of_what_was_delivered_stays() -> None:
    """Only a grant of the same leadership goes with it."""
    deliveries = Deliveries()
    deliveries.put(_GRANT)
    deliveries.take()
    deliveries.put(DeliverGrant(session=_LATER))
    deliveries.put(_REVOKE)
    left = deliveries.take_all()
    assert tuple(left) == (DeliverGrant(session=_LATER), _REVOKE)


def test_once_it_closes_only_what_is_left_is_handed_out() -> None:
    """Who closes refuses what is left."""
    deliveries = Deliveries()
    deliveries.put(_RUN)
    deliveries.is_closing = True
    assert not deliveries.put(_GRANT)
    assert deliveries.take() is None
    assert tuple(deliveries.take_all()) == (_RUN,)
    assert not deliveries.take_all()
