from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaderserver.server.core.subscriptions import Subscriptions


class TestSubscribing:
    @pytest.mark.proves("N1")
    def test_a_first_subscription_begins_at_revision_0(self) -> None:
        """Revisions count from when somebody subscribed (N1)."""
        subscriptions = Subscriptions(count_max=2)
        assert subscriptions.publish("c/job") is None
        assert subscriptions.subscribe("alice", "c/job") == 0
        assert len(subscriptions) == 1
        assert subscriptions.publish("c/job") == 1
        assert subscriptions.publish("c/job") == 2

    def test_a_later_subscriber_begins_where_the_component_is(self) -> None:
        """Its snapshot is of the present revision: it has missed nothing."""
        subscriptions = Subscriptions(count_max=2)
        subscriptions.subscribe("alice", "c/job")
        subscriptions.publish("c/job")
        assert subscriptions.subscribe("bob", "c/job") == 1
        assert subscriptions.changed("bob", number=1, acknowledged=0) == {}

    def test_repeating_is_safe(self) -> None:
        """A repeated request makes no second entry, but asks again."""
        subscriptions = Subscriptions(count_max=1)
        assert subscriptions.subscribe("alice", "c/job") == 0
        assert subscriptions.subscribe("alice", "c/job") == 0
        subscriptions.publish("c/job")
        assert subscriptions.subscribe("alice", "c/job") == 1
        assert len(subscriptions) == 1

    @pytest.mark.proves("N1")
    def test_a_topic_that_comes_again_goes_on(self) -> None:
        """A late broadcast of its former life names no change that is to come (N1)."""
        subscriptions = Subscriptions(count_max=2)
        subscriptions.subscribe("alice", "c/job")
        subscriptions.publish("c/job")
        assert subscriptions.publish("c/job") == 2
        subscriptions.unsubscribe("alice", "c/job")
        assert subscriptions.subscribe("alice", "c/job") == 2
        assert subscriptions.publish("c/job") == 3

    def test_a_session_has_so_many_and_no_more(self) -> None:
        """The limit counts components of one session (N3)."""
        subscriptions = Subscriptions(count_max=1)
        assert subscriptions.subscribe("alice", "c/one") == 0
        assert subscriptions.subscribe("alice", "c/two") is None
        assert subscriptions.subscribe("bob", "c/two") == 0
        subscriptions.unsubscribe("alice", "c/one")
        assert subscriptions.subscribe("alice", "c/two") == 0

    def test_nothing_is_left_behind(self) -> None:
        """Whatever ended is forgotten, and ending it twice is safe."""
        subscriptions = Subscriptions(count_max=9)
        for session_id in ("alice", "bob"):
            for component_id in ("c/one", "c/two"):
                subscriptions.subscribe(session_id, component_id)
        subscriptions.publish("c/one")
        subscriptions.unsubscribe("alice", "c/one")
        subscriptions.unsubscribe("alice", "c/one")
        subscriptions.unsubscribe("alice", "c/other")
        subscriptions.unsubscribe("carol", "c/one")
        assert len(subscriptions) == 3
        assert subscriptions.publish("c/one") == 2
        subscriptions.drop("bob")
        subscriptions.drop("bob")
        assert len(subscriptions) == 1
        assert subscriptions.publish("c/one") is None
        subscriptions.unsubscribe("alice", "c/two")
        assert len(subscriptions) == 0
        assert subscriptions.publish("c/two") is None


class TestChanged:
    def test_strangers_and_idle_sessions_hear_nothing(self) -> None:
        """Without a change an acknowledgement carries no revision."""
        subscriptions = Subscriptions(count_max=9)
        assert subscriptions.changed("alice", number=1, acknowledged=0) == {}
        subscriptions.subscribe("alice", "c/job")
        assert subscriptions.changed("alice", number=2, acknowledged=1) == {}

    @pytest.mark.proves("N1")
    def test_a_revision_is_told_until_it_is_known(self) -> None:
        """Each answer repeats it until the session names one that told it (N1)."""
        subscriptions = Subscriptions(count_max=9)
        subscriptions.subscribe("alice", "c/job")
        subscriptions.publish("c/job")
        assert subscriptions.changed("alice", number=4, acknowledged=3) == {"c/job": 1}
        assert subscriptions.changed("alice", number=5, acknowledged=3) == {"c/job": 1}
        assert subscriptions.changed("alice", number=6, acknowledged=4) == {}
        assert subscriptions.changed("alice", number=7, acknowledged=4) == {}

    def test_a_newer_revision_is_told_under_a_newer_number(self) -> None:
        """To know revision 1 is not to know revision 2."""
        subscriptions = Subscriptions(count_max=9)
        subscriptions.subscribe("alice", "c/job")
        subscriptions.publish("c/job")
        assert subscriptions.changed("alice", number=4, acknowledged=3) == {"c/job": 1}
        subscriptions.publish("c/job")
        assert subscriptions.changed("alice", number=5, acknowledged=3) == {"c/job": 2}
        assert subscriptions.changed("alice", number=6, acknowledged=4) == {"c/job": 2}
        subscriptions.publish("c/job")
        assert subscriptions.changed("alice", number=7, acknowledged=5) == {"c/job": 3}
        assert subscriptions.changed("alice", number=8, acknowledged=7) == {}

    def test_one_component_says_nothing_of_another(self) -> None:
        """Only what changed is told."""
        subscriptions = Subscriptions(count_max=9)
        subscriptions.subscribe("alice", "c/one")
        subscriptions.subscribe("alice", "c/two")
        subscriptions.publish("c/two")
        assert subscriptions.changed("alice", number=1, acknowledged=0) == {"c/two": 1}

    def test_asking_again_does_not_settle_anything(self) -> None:
        """The snapshot may be lost like a broadcast, so the revision is told again."""
        subscriptions = Subscriptions(count_max=9)
        subscriptions.subscribe("alice", "c/job")
        subscriptions.publish("c/job")
        subscriptions.subscribe("alice", "c/job")
        assert subscriptions.changed("alice", number=1, acknowledged=0) == {"c/job": 1}


# What may happen next: a change of either component, or a heartbeat whose answer
# arrives, or is lost.
_HAPPENINGS = st.lists(
    st.sampled_from(["publish one", "publish two", "ask", "answered", "lost"]),
    max_size=60,
)


@pytest.mark.proves("N1")
@given(happenings=_HAPPENINGS)
@settings(max_examples=300)
def test_every_last_revision_is_learned(happenings: list[str]) -> None:
    """
    Whatever answers are lost, who goes on heartbeating learns every last revision (N1).

    And once it has, it is not told again, however long it goes on.
    """
    subscriptions = Subscriptions(count_max=9)
    revisions = {"c/one": 0, "c/two": 0}
    learned = {
        name: subscriptions.subscribe("alice", name) or 0 for name in sorted(revisions)
    }
    number = acknowledged = 0

    def heartbeat(*, arrives: bool) -> int:
        nonlocal number, acknowledged
        number += 1
        told = subscriptions.changed("alice", number=number, acknowledged=acknowledged)
        for name, revision in told.items():
            assert revision == revisions[name]
        if arrives:
            acknowledged = number
            learned.update(told)
        return len(told)

    for happening in happenings:
        match happening:
            case "publish one" | "publish two":
                name = f"c/{happening.removeprefix('publish ')}"
                revisions[name] += 1
                assert subscriptions.publish(name) == revisions[name]
            case "ask":
                assert subscriptions.subscribe("alice", "c/one") == revisions["c/one"]
            case "answered":
                heartbeat(arrives=True)
            case _:
                heartbeat(arrives=False)
    heartbeat(arrives=True)
    assert learned == revisions
    assert heartbeat(arrives=True) == 0
