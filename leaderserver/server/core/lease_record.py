"""
Which leases of earlier servers may still run (rule E9).

A data directory keeps, for each start of a server, the longest lease that it admits.  A
server that has recorded an epoch had waited for all leases of the servers before it:
what those admitted is forgotten then.  Until one is known to have done so, there may
have been others that left no record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["LeaseRecord"]


@frozen(kw_only=True)
class LeaseRecord:
    """
    What is on record of earlier servers.

    Attributes:
        leases_ns: The longest lease of each start, by its incarnation.
        granted_incarnation: The highest incarnation of an epoch on record, or 0.
    """

    leases_ns: Mapping[int, int]
    granted_incarnation: int

    @property
    def decided_incarnation(self) -> int | None:
        """Return the latest start that is known to have granted something."""
        return max(
            (start for start in self.leases_ns if start <= self.granted_incarnation),
            default=None,
        )

    def needed(self) -> Mapping[int, int]:
        """Return the part of *leases_ns* that is still to be waited for."""
        decided = self.decided_incarnation or 0
        return {
            start: lease_ns
            for start, lease_ns in self.leases_ns.items()
            if start >= decided
        }

    def longest_ns(self, *, lease_ns: int, unrecorded_ns: int) -> int:
        """
        Return the longest lease that may run.

        Args:
            lease_ns: The longest that the present server admits.
            unrecorded_ns: The longest that a server without a record may have admitted.
        """
        longest_ns = max((lease_ns, *self.needed().values()))
        if self.decided_incarnation is None:
            return max(longest_ns, unrecorded_ns)
        return longest_ns
