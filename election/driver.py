"""What a backend must provide so that a `LeaderElection` can work over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from election.contender import ContenderInformation
    from election.holder import DeliverGrant, DeliverRevoke


__all__ = ["LeaderElectionDriver"]


class LeaderElectionDriver(Protocol):
    """
    One contender's place in one component's election.

    A driver keeps a `HolderCore` (election/holder.py), feeds it what the name service
    says, and hands its grants and revocations on.  All its methods are thread-safe.
    """

    def open(
        self,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """
        Register the contender; return without waiting for the answer.

        From now on the driver keeps it registered: when the name service has ended
        the session, it registers again by itself, at the end of the queue (E8).

        Args:
            deliver: Takes grants and revocations, strictly alternating, from a thread
                of the driver.  Returns at once; may be called under the driver's lock.
            fail: Takes what the contender should hear of.  Returns at once likewise.
        """

    def believes(self, leader_session_id: UUID) -> bool:
        """Return whether that leadership is ours now: a local clock check (E4)."""

    def belief_left_ns(self, leader_session_id: UUID) -> int:
        """Return how long `believes` stays true if nothing else comes, or 0."""

    def confirm(self, leader_session_id: UUID, address: str) -> None:
        """
        Publish *address* under that leadership; block until answered (E3).

        Raises:
            LeadershipLostError: The leadership is over; nothing changed for anybody.
            MayHaveHappenedError: It was sent, and not answered in time.
            DidNotHappenError: It was not sent, or refused unchanged.
        """

    def revoke_delivered(self) -> None:
        """Record that the contender's revoke callback has returned."""

    def withdraw(self) -> None:
        """
        Leave the election; block until the name service knows, within bounds.

        Where it cannot be told in time, the entry ends with the session.  Idempotent;
        may come before `open`, or amid it, and comes again after that then.
        *deliver* is not called once this has begun.
        """

    def contenders(self) -> Sequence[ContenderInformation]:
        """
        Return all contenders of the component, in order, the leader first.

        Raises:
            UnreachableError: If the name service does not answer in time.
        """
