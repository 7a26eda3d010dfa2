"""
`DirectReaders`: which nodes may still answer clients by what is over; pure (D2, D5).

Theory of operation.  A client that has a ticket asks a node itself, so the leader
cannot keep it from asking one that has lost its part meanwhile.  It can only wait:
until the node is known to know, or until its *direct lease* is over.  No reader waits
for that; what waits is what would make an answer of that node wrong: a batch that such
a node does not have is not acknowledged.

A node *knows* what it was told before a heartbeat was acknowledged to it, once it says
that it has that acknowledgement (`NodeHeartbeat.acknowledged`): messages come in order.
Its lease is over one lease after it was last heard, since it counts from the send of a
heartbeat that was acknowledged.

A client without a ticket asks the proxy.  So nothing waits where no ticket was given
that may still be worth something; but what an earlier leader may have given is not
known, and each node that is known then is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import define, frozen

from nameservice.clock import NS_PER_MS, earliest
from queryablestate.control.assignment.assignment import primary_indexes
from queryablestate.wire.address import parse_address
from queryablestate.wire.direct import DirectAccess, DirectTicket, seal_ticket


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.job.job import Job
    from queryablestate.control.node_table import NodeTable
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.wire.records import AssignmentRecord


__all__ = ["DirectReaders", "direct_lease_ns"]

_ANY_JOB: Final = ""
_LEASE_PARTS: Final = 5
_LEASE_NS_MIN: Final = 500 * NS_PER_MS


def direct_lease_ns(session_timeout_ns: int) -> int:
    """Return how long a node may answer clients after it was heard."""
    return min(
        session_timeout_ns, max(session_timeout_ns // _LEASE_PARTS, _LEASE_NS_MIN)
    )


@final
@define
class _Awaited:
    """
    A node that may not know yet.

    Attributes:
        until_ns: When its lease is over.
        number: The first heartbeat that was acknowledged to it since; None before.
    """

    until_ns: int
    number: int | None = None


@final
@frozen(eq=False)
class _Held:
    """
    What is not to be said before nodes have applied an entry, or time has passed.

    Attributes:
        until_ns: When the last ticket of ours is over; 0 if there was none.
    """

    job: Job
    sequence: int
    until_ns: int
    effect: ControlEffect


@final
class DirectReaders:
    """
    Tickets that were given, and nodes that are waited for.

    Args:
        nodes: Known and present ones.
        lease_ns: The direct lease.
        now_ns: When this leader begins.
    """

    def __init__(self, nodes: NodeTable, *, lease_ns: int, now_ns: int) -> None:
        self._nodes = nodes
        self._lease_ns = lease_ns
        self._left: dict[str, int] = {}
        self._tickets: dict[int, tuple[str, int]] = {}
        self._held: list[_Held] = []
        self._awaited: dict[str, dict[str, _Awaited]] = {}
        earlier = {node_id: _Awaited(now_ns + lease_ns) for node_id in nodes.known_ids}
        if earlier and lease_ns:
            self._awaited[_ANY_JOB] = earlier

    # -- tickets -------------------------------------------------------------------

    def access(
        self,
        location: KvStateLocation,
        *,
        caller: str,
        public_key: str | None,
        secret: bytes,
        leader_epoch: int,
        life_ns: int,
        now_ns: int,
        turn: int = 0,
    ) -> DirectAccess | None:
        """
        Return a ticket for one state, or None if no node could be asked by it.

        Args:
            location: The route to the state.
            caller: Who asks.
            public_key: The CURVE key of its connection, or None.
            secret: What nodes have been given.
            leader_epoch: Of this leadership.
            life_ns: How long the ticket is worth something.
            now_ns: The time.
            turn: Of several processes of a node, which is asked; the same number for
                the same client, and other ones for others.
        """
        if location.problem is not None or location.batch_id is None or not secret:
            return None
        addresses = tuple(
            None
            if link is None
            else self._address(node_id, turn, is_secure=bool(public_key))
            for node_id, link in zip(location.node_ids, location.links, strict=True)
        )
        if not any(addresses):
            return None
        until_ns = now_ns + life_ns
        self._tickets[location.state_number] = (location.job_id, until_ns)
        ticket = DirectTicket(
            caller=caller,
            public_key=public_key,
            job_id=location.job_id,
            state_number=location.state_number,
            leader_epoch=leader_epoch,
            assignment_version=location.assignment_version,
            expires_ms=until_ns // NS_PER_MS,
        )
        return DirectAccess(
            ticket=seal_ticket(secret, ticket),
            life_ms=max(1, life_ns // NS_PER_MS),
            addresses=addresses,
        )

    def _address(self, node_id: str, turn: int, *, is_secure: bool) -> str | None:
        """Return where a node is asked, if it is as secure there as at the proxy."""
        node = self._nodes.present(node_id)
        if node is None:
            return None
        readers = node.reader_addresses or (node.address,)
        address = readers[turn % len(readers)]
        has_key = parse_address(address).server_public_key is not None
        return address if has_key == is_secure else None

    # -- queries -------------------------------------------------------------------

    def awaited(self, job_id: str, *, now_ns: int) -> Sequence[str]:
        """Return the nodes that may answer by what is over of a job, sorted."""
        found = {
            node_id
            for name in (_ANY_JOB, job_id)
            for node_id, one in self._awaited.get(name, {}).items()
            if now_ns < one.until_ns
        }
        return sorted(found)

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        times = [self._over_ns(held) for held in self._held]
        for nodes in self._awaited.values():
            times += [one.until_ns for one in nodes.values()]
        return earliest(times)

    # -- what happens --------------------------------------------------------------

    def reassigned(self, job_id: str, former: AssignmentRecord, *, now_ns: int) -> None:
        """Wait for the nodes that have answered by *former*, which is over."""
        if not any(
            name == job_id and now_ns < until_ns
            for name, until_ns in self._tickets.values()
        ):
            return
        waiting = self._awaited.setdefault(job_id, {})
        for index in set(primary_indexes(former)):
            node_id = former.node_ids[index]
            until_ns = now_ns + self._lease_ns
            if self._nodes.present(node_id) is None:
                until_ns = self._left.get(node_id, 0)
            if now_ns < until_ns:
                waiting[node_id] = _Awaited(until_ns)

    def left(self, node: PresentNode) -> None:
        """Note that a node is away: it may answer until its lease is over."""
        until_ns = node.heard_at_ns + self._lease_ns
        self._left[node.node_id] = until_ns
        for nodes in self._awaited.values():
            if node.node_id in nodes:
                # What it says over another connection is about what it is told there.
                nodes[node.node_id] = _Awaited(until_ns)

    def acknowledged(self, node_id: str, number: int, echo: int) -> Sequence[str]:
        """
        Note that a heartbeat is acknowledged; return the jobs that wait for less.

        An empty name stands for all jobs.

        Args:
            node_id: Whose.
            number: Which.
            echo: The newest of which the node knows that it was acknowledged.
        """
        fewer = []
        for job_id, nodes in self._awaited.items():
            one = nodes.get(node_id)
            if one is None:
                continue
            if one.number is None:
                one.number = number
            elif echo >= one.number:
                del nodes[node_id]
                fewer.append(job_id)
        return self._concerned(fewer)

    def expire(self, *, now_ns: int) -> Sequence[str]:
        """Wait no more for whose lease is over; return as `acknowledged` does."""
        fewer = []
        for job_id, nodes in self._awaited.items():
            over = [name for name, one in nodes.items() if one.until_ns <= now_ns]
            for node_id in over:
                del nodes[node_id]
            if over:
                fewer.append(job_id)
        for number in [n for n, (_, at) in self._tickets.items() if at <= now_ns]:
            del self._tickets[number]
        for node_id in [name for name, at in self._left.items() if at <= now_ns]:
            del self._left[node_id]
        return self._concerned(fewer)

    def _concerned(self, fewer: Iterable[str]) -> Sequence[str]:
        """Forget what is empty; return the jobs by name, empty for all of them."""
        job_ids = sorted(set(fewer))
        self._awaited = {name: nodes for name, nodes in self._awaited.items() if nodes}
        return job_ids

    # -- what is said later ----------------------------------------------------------

    def hold_dropped(
        self, job: Job, state_number: int, effect: ControlEffect, *, now_ns: int
    ) -> Sequence[ControlEffect]:
        """
        Return *effect* now, or from `release` when no node answers for that state.

        That is when each node has applied the last entry of *job*, by which the state
        is gone, or when the last ticket for it is over: of ours, and of an earlier
        leader.
        """
        _, until_ns = self._tickets.get(state_number, ("", 0))
        held = _Held(job, job.record.sequence, until_ns, effect)
        if self._is_ready(held, now_ns):
            return [effect]
        self._held.append(held)
        return []

    def told_ns(self, job_id: str, *, now_ns: int) -> int:
        """
        Return from when on no node answers for *job_id* by a ticket given until now.

        That holds for nodes that are to begin anew now: one that hears of it has the
        secret of these tickets no more, and the lease of one that does not is over
        then.
        """
        given = [until for name, until in self._tickets.values() if name == job_id]
        earlier = [one.until_ns for one in self._awaited.get(_ANY_JOB, {}).values()]
        last_ns = max([now_ns, *given, *earlier])
        return min(last_ns, now_ns + self._lease_ns)

    def release(self, *, now_ns: int) -> Sequence[ControlEffect]:
        """Return what was held and may be said by now."""
        if not self._held:
            return ()
        ready = [held for held in self._held if self._is_ready(held, now_ns)]
        self._held = [held for held in self._held if held not in ready]
        return [held.effect for held in ready]

    def _is_ready(self, held: _Held, now_ns: int) -> bool:
        return now_ns >= self._over_ns(held) or not self._may_answer(held, now_ns)

    def _over_ns(self, held: _Held) -> int:
        """Return when no ticket for that state is worth anything any more."""
        earlier = [one.until_ns for one in self._awaited.get(_ANY_JOB, {}).values()]
        return max([held.until_ns, *earlier])

    def _may_answer(self, held: _Held, now_ns: int) -> bool:
        """Return whether a node may answer that has not applied an entry."""
        job = held.job
        if self.awaited(job.record.job_id, now_ns=now_ns):
            return True
        for node_id in job.holder_ids():
            node = self._nodes.present(node_id)
            if node is None:
                if now_ns < self._left.get(node_id, 0):
                    return True
            elif node.sequences.get(job.record.job_id, -1) < held.sequence:
                return True
        return False
