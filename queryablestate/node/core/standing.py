"""`Standing`: what decides whether a node may answer clients; pure (rules D2, Q4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.node.core.job import ServedJob


__all__ = ["Standing"]


@final
@frozen(kw_only=True, eq=False)
class Standing:
    """
    The node's part at one moment, as `NodeCore.admit` and `NodeCore.is_current` see it.

    Attributes:
        leader_epoch: The leadership that has taken the node; 0 for none.
        secret: What its leader has given it last, by which tickets are told.  A proxy
            that begins anew has the same epoch, and another secret.
        lease_until_ns: Until when the node may answer.
        direct_until_ns: Until when it may answer clients without the proxy.
        leader_ms: The leader's clock, as it was told.
        leader_ms_at_ns: When that was, at the earliest.
        jobs: What it answers for, and whether the store has what was missed of it.
            After each assignment of a job it is another object.
    """

    leader_epoch: int
    secret: bytes
    lease_until_ns: int
    direct_until_ns: int
    leader_ms: int
    leader_ms_at_ns: int
    jobs: Sequence[tuple[ServedJob, bool]]
