"""
Which session hears of which component, and what it may have missed (rule N1).

Changes of a component are numbered by *revisions* and broadcast once for everybody.
A broadcast may be lost, the last one without a successor to betray the gap.  So every
acknowledgement of a heartbeat carries the revisions that its session is not known to
have: those of which no acknowledgement has arrived yet, as far as the session says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import Factory, define


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


__all__ = ["Subscriptions"]


@define(kw_only=True)
class _Subscription:
    """
    What one session knows of one component.

    Attributes:
        revision_known: What it had when it was last known to have something.
        revision_told: What the acknowledgement *told_number* told it.
        told_number: The heartbeat that was, or 0.
    """

    revision_known: int
    revision_told: int = 0
    told_number: int = 0


@define(kw_only=True)
class _Topic:
    """One component with at least one subscriber."""

    revision: int = 0
    session_ids: dict[str, None] = Factory(dict)


@define(kw_only=True)
class _Subscriber:
    """One session with at least one subscription."""

    subscriptions: dict[str, _Subscription] = Factory(dict)
    behind: dict[str, None] = Factory(dict)


@final
class Subscriptions:
    """
    The subscriptions of all sessions.

    Args:
        count_max: How many one session may have.
    """

    def __init__(self, *, count_max: int) -> None:
        self.count_max = count_max
        self._topics: dict[str, _Topic] = {}
        # A topic that comes again goes on above this: a late broadcast of its former
        # life must not pass for a change that is still to come.
        self._revision_max = 0
        self._subscribers: dict[str, _Subscriber] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def subscribe(self, session_id: str, component_id: str) -> int | None:
        """
        Enter a subscription; repeating it is safe.

        Returns:
            The present revision, which the caller sends along with what is published
            now; None if the session has as many subscriptions as it may have.
        """
        subscriber = self._subscribers.setdefault(session_id, _Subscriber())
        subscription = subscriber.subscriptions.get(component_id)
        if subscription is None:
            if len(subscriber.subscriptions) >= self.count_max:
                return None
            topic = self._topics.setdefault(
                component_id, _Topic(revision=self._revision_max)
            )
            topic.session_ids[session_id] = None
            subscription = _Subscription(revision_known=topic.revision)
            subscriber.subscriptions[component_id] = subscription
            self._count += 1
        revision = self._topics[component_id].revision
        if revision > subscription.revision_known:
            # The snapshot may be lost like anything else: only an acknowledgement
            # that the session has seen settles what it knows.
            subscriber.behind[component_id] = None
        return revision

    def unsubscribe(self, session_id: str, component_id: str) -> None:
        """Drop a subscription, if there is one."""
        subscriber = self._subscribers.get(session_id)
        if subscriber is None or component_id not in subscriber.subscriptions:
            return
        del subscriber.subscriptions[component_id]
        subscriber.behind.pop(component_id, None)
        if not subscriber.subscriptions:
            del self._subscribers[session_id]
        topic = self._topics[component_id]
        del topic.session_ids[session_id]
        if not topic.session_ids:
            self._revision_max = max(self._revision_max, topic.revision)
            del self._topics[component_id]
        self._count -= 1

    def drop(self, session_id: str) -> None:
        """Drop everything of a session that is over."""
        subscriber = self._subscribers.get(session_id)
        if subscriber is not None:
            for component_id in tuple(subscriber.subscriptions):
                self.unsubscribe(session_id, component_id)

    def has(self, session_id: str, component_id: str) -> bool:
        """Return whether a session hears of *component_id*."""
        topic = self._topics.get(component_id)
        return topic is not None and session_id in topic.session_ids

    def is_full(self, session_id: str) -> bool:
        """Return whether a session has as many subscriptions as it may have."""
        subscriber = self._subscribers.get(session_id)
        count = 0 if subscriber is None else len(subscriber.subscriptions)
        return count >= self.count_max

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield of each component that somebody hears of how many do."""
        for component_id, topic in self._topics.items():
            yield component_id, len(topic.session_ids)

    def subscribers(self, component_id: str) -> Sequence[str]:
        """Return the sessions that hear of *component_id*."""
        topic = self._topics.get(component_id)
        return () if topic is None else tuple(topic.session_ids)

    def publish(self, component_id: str) -> int | None:
        """
        Give a change of *component_id* its number.

        Returns:
            Its revision, or None if no session has subscribed and nothing need be sent.
        """
        topic = self._topics.get(component_id)
        if topic is None:
            return None
        topic.revision += 1
        for session_id in topic.session_ids:
            self._subscribers[session_id].behind[component_id] = None
        return topic.revision

    def changed(
        self, session_id: str, *, number: int, acknowledged: int
    ) -> Mapping[str, int]:
        """
        Return the revisions to send with the answer to a heartbeat.

        Args:
            session_id: Whose heartbeat it is.
            number: The heartbeat to be answered.
            acknowledged: The newest heartbeat whose answer the session has.
        """
        subscriber = self._subscribers.get(session_id)
        if subscriber is None or not subscriber.behind:
            return {}
        revisions = {}
        for component_id in tuple(subscriber.behind):
            subscription = subscriber.subscriptions[component_id]
            if 0 < subscription.told_number <= acknowledged:
                subscription.revision_known = subscription.revision_told
                subscription.told_number = 0
            revision = self._topics[component_id].revision
            if subscription.revision_known == revision:
                del subscriber.behind[component_id]
                continue
            if subscription.told_number == 0 or subscription.revision_told != revision:
                subscription.revision_told = revision
                subscription.told_number = number
            revisions[component_id] = revision
        return revisions
