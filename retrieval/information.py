"""What is known about a leader, and the order of what is published about it."""

from __future__ import annotations

from uuid import UUID

from attrs import frozen


__all__ = ["LeaderInformation", "Publication"]


@frozen(kw_only=True)
class LeaderInformation:
    """
    A confirmed leader.

    Attributes:
        address: Where it is reached, as the leader itself put it.
        leader_session_id: Identity of this leadership.
        epoch: Order of this leadership; the fencing token.
    """

    address: str
    leader_session_id: UUID
    epoch: int


@frozen(kw_only=True)
class Publication:
    """
    What the name service says of one component at one moment (rule R3).

    Attributes:
        epoch: The newest epoch of the component that was ever published.
        confirm_count: How often its holder has confirmed; 0 if it never did.
        leader: The confirmed leader, or None if there is none now.
    """

    epoch: int
    confirm_count: int
    leader: LeaderInformation | None

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Return its place in the order of publications: the end outranks all."""
        return (self.epoch, self.leader is None, self.confirm_count)
