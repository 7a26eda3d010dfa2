"""
How nodes become part of it, are told what they answer for, and go; pure.

Theory of operation.  A node registers over a connection of its own and says how far it
is with each job.  Its registration waits for the write that is under way, since a new
name, or another data directory, is written down first; it waits for no change that has
not begun.  Then it is told, in this order:
that it is registered and what it answers for; what it has missed of each job; and what
it is to verify.  It is present as long as that connection lasts and it is heard from.

**A connection that breaks** may be all that is broken.  So its node is expected back
for a moment.  Others are asked at once, but its copies stay in sync: a commit waits
until the node is back and has verified and applied the batch, or until it is not
expected any more and its copies are taken out (rule S1).  A node that is back in time
is sent what it missed, where it would have to copy all of its rows otherwise; it is
asked again when it has applied that.

**What a node has a part in.**  Of a job it answers for some key groups, has in-sync
copies of others, and copies others still.  It is told all of that at once, with where
it can copy from; and again whenever the assignment has another version, though its own
part be the same, and whenever a node that it copies from has another address.

**Nodes that are gone.**  A name stays known, so that a new leader waits for it.  Names
that are drawn for each start would fill the table: once it is full, one that is away
and has nothing makes room for the next.

**A node that cannot go on.**  A node that reports a failure may lack rows that an entry
names: its disk was exchanged for an older one, or somebody removed what was staged.  It
says whether it does.  If so, to wait does not help, and its rows are lost (rule W7); if
not, it is the node's own matter, and it tries again by itself.  Meanwhile its copies
count for nothing where there are others (rule S1).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from election import Delete, Put
from nameservice.clock import NS_PER_MS, earliest
from queryablestate.control.announcements import tell_address
from queryablestate.control.chains import catch_up, declare_lost, lost_groups
from queryablestate.control.changes import Change, NodeCame, Turn, Write
from queryablestate.control.direct_readers import direct_lease_ns
from queryablestate.control.effects import ForgetNode, SendToNode
from queryablestate.control.forgetting import still_there, without
from queryablestate.control.job.leader_paths import encode_record, node_path
from queryablestate.control.kept_jobs import kept_by, serves_another
from queryablestate.control.node_parts import job_assignment
from queryablestate.control.present_node import CopyReport, JobFailure
from queryablestate.control.registering import RegisteringNodes
from queryablestate.control.state import has_node
from queryablestate.wire.node_messages import (
    HeartbeatAcknowledged,
    NodeRefused,
    NodeRegistered,
)
from queryablestate.wire.records import NodeRecord


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election import StoreOperation
    from nameservice import NameServiceError
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.job_assignment import JobAssignment
    from queryablestate.wire.node_messages import (
        EntriesApplied,
        KeyGroupsCopied,
        NodeHeartbeat,
        RegisterNode,
    )


__all__ = ["Membership", "return_grace_ns"]

_LATENESS_SHARE: Final = 5
"""Who looks later than by that part of the session timeout has not been running."""


def return_grace_ns(session_timeout_ns: int) -> int:
    """
    Return how long a node is expected back whose connection has closed.

    That is as long as the direct lease: where clients have tickets, a commit that a
    node misses is held back for about as long in any case (rule D5).
    """
    return direct_lease_ns(session_timeout_ns)


@final
class Membership:
    """
    Registers nodes, hears them, and takes them for away.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._registering = RegisteringNodes()
        self._due_ns: int | None = None

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        nodes = self._control.nodes
        heard_at_ns = nodes.oldest_heard_at_ns()
        silent_at_ns = None
        if heard_at_ns is not None:
            silent_at_ns = heard_at_ns + self._control.session_timeout_ns
        coming = self._registering.node_ids
        return earliest([silent_at_ns, nodes.expected.until_ns(coming)])

    @property
    def coming_version(self) -> int:
        """Return another number whenever other nodes may be coming (`is_coming`)."""
        return self._registering.version

    # -- what happens --------------------------------------------------------------

    def register(self, link: LinkId, message: RegisterNode) -> Change:
        """
        Return what takes a node in.

        It is urgent: a node that has no answer in time asks over another connection,
        and what it has cannot be read until it is taken in (rule S4).
        """
        self._registering.begin(link, message)
        prepare = partial(self._register, link, message)
        refuse = partial(self._refused, link)
        return Change(prepare=prepare, refuse=refuse, turn=Turn.NODE)

    def hear(
        self, link: LinkId, registration_id: str, *, now_ns: int
    ) -> PresentNode | None:
        """Return the node that spoke, which is there; None if it is not taken in."""
        node = self._control.nodes.at(link)
        if node is None or node.registration_id != registration_id:
            return None
        if node.is_doubted or now_ns - node.heard_at_ns > self._control.silence_ns:
            self._control.touch()  # copies may have been kept since it was silent
        node.heard_at_ns = now_ns
        node.is_doubted = False
        return node

    def refuse(self, link: LinkId) -> list[ControlEffect]:
        """Tell who spoke without being taken in to register first."""
        if link in self._registering:
            return []  # it will be told when that has had its turn
        refused = NodeRefused(reason="unknown", detail="register first")
        return [SendToNode(link=link, message=refused)]

    def acknowledge(
        self, node: PresentNode, message: NodeHeartbeat, *, now_ns: int
    ) -> ControlEffect:
        """Return the answer to a heartbeat."""
        acknowledged = HeartbeatAcknowledged(
            leader_epoch=self._control.leader_epoch,
            number=message.number,
            leader_ms=now_ns // NS_PER_MS if self._control.direct_lease_ns else 0,
        )
        return SendToNode(link=node.link, message=acknowledged)

    def links_closed(
        self, links: Sequence[LinkId], *, now_ns: int
    ) -> list[ControlEffect]:
        """Expect the nodes of these connections back."""
        nodes = []
        timeout_ns = self._control.session_timeout_ns
        for link in links:
            self._registering.end(link)
            node = self._control.nodes.at(link)
            if node is None:
                continue
            self._control.nodes.expect(
                node,
                now_ns=now_ns,
                grace_ns=return_grace_ns(timeout_ns),
                until_ns_max=node.heard_at_ns + timeout_ns,
            )
            nodes.append(node)
        return self._gone(nodes)

    def expire(self, *, now_ns: int) -> list[ControlEffect]:
        """
        Take those for away that have been silent for the session timeout.

        And expect no more who should be back by now.

        A leader that looks much too late may have been paused, and has what nodes have
        said meanwhile yet to hear: the pause costs no node its copies (rule S1).
        """
        timeout_ns = self._control.session_timeout_ns
        tolerated_ns = timeout_ns // _LATENESS_SHARE
        late_ns = 0 if self._due_ns is None else now_ns - self._due_ns
        if late_ns > tolerated_ns:
            for node in self._control.nodes:
                forgiven_ns = node.heard_at_ns + late_ns + tolerated_ns
                node.heard_at_ns = min(now_ns, forgiven_ns)
            until_ns_max = now_ns + return_grace_ns(timeout_ns)
            self._control.nodes.expected.forgive(
                late_ns + tolerated_ns, until_ns_max=until_ns_max
            )
        silent = self._control.nodes.silent_since(now_ns - timeout_ns)
        effects = self._forget(silent)
        coming = self._registering.node_ids
        if self._control.nodes.expected.give_up_late(coming, now_ns=now_ns):
            self._control.touch()
        self._due_ns = self.next_deadline_ns()
        return effects

    def is_coming(self, node_id: str) -> bool:
        """Return whether a node has asked to be taken in, and waits for its turn."""
        return node_id in self._registering.node_ids

    # -- registering ---------------------------------------------------------------

    def _register(
        self, link: LinkId, message: RegisterNode, now_ns: int
    ) -> Write | Sequence[Outcome]:
        """Take a node in; write down its name if that is new, or its disk is."""
        if self._registering.newest(link) is not message:
            return []  # the connection is closed, or the node has asked again
        earlier = self._control.nodes.present(message.node_id)
        if earlier is not None and earlier.store_id != message.store_id:
            # The same data directory could not be open twice; another one can.
            self._registering.end(link)
            refused = NodeRefused(
                reason="name-taken",
                detail=f"another node is called {message.node_id!r}: "
                "give this one another name",
            )
            return [SendToNode(link=link, message=refused)]
        known = self._control.nodes.record_of(message.node_id)
        given_up = None
        if known is None and self._is_full():
            given_up = self._idle_node()
            if given_up is None:
                self._registering.end(link)
                return [SendToNode(link=link, message=self._too_many())]
        is_draining = known is not None and known.draining_id == message.registration_id
        control_id = self._control.counters.control_id
        jobs = self._control.jobs
        forgotten = still_there(message, () if known is None else known.forgotten, jobs)
        record = NodeRecord(
            node_id=message.node_id,
            store_id=message.store_id,
            draining_id=message.registration_id if is_draining else None,
            kept=kept_by(without(message, forgotten), control_id, jobs),
            forgotten=forgotten,
        )
        operations: list[StoreOperation] = []
        if given_up is not None:
            operations.append(Delete(node_path(given_up)))
        if known != record:
            operations.append(Put(node_path(record.node_id), encode_record(record)))
        adopt = partial(self._registered, link, message, record, given_up)
        return Write(operations=operations, adopt=adopt)

    def _is_full(self) -> bool:
        """Return whether another node can only take the place of one that is known."""
        control = self._control
        return len(control.nodes.known_ids) >= control.limits.node_count_max

    def _idle_node(self) -> str | None:
        """
        Return a node that is not missed by any job, or None.

        One that is away, and has nothing: if it is back one day, it is a new one.  One
        that has yet to forget a job goes last: it would show rows of it as kept.
        """
        nodes = self._control.nodes
        idle = (
            node_id
            for node_id in nodes.known_ids
            if nodes.present(node_id) is None
            and not self._control.is_needed(node_id)
            and not nodes.kept.of_node(node_id)
        )
        return min(
            idle,
            key=lambda name: len(nodes.known_record_of(name).forgotten),
            default=None,
        )

    def _too_many(self) -> NodeRefused:
        limit = self._control.limits.node_count_max
        return NodeRefused(
            reason="limit",
            detail=f"this proxy takes {limit:,} nodes, and there are as many that are "
            "present or have a part in a job: raise its node_count_max, or start a "
            "node with the name and the data directory of one that is gone",
        )

    def _registered(
        self,
        link: LinkId,
        message: RegisterNode,
        record: NodeRecord,
        given_up: str | None,
        now_ns: int,
    ) -> list[Outcome]:
        control = self._control
        if given_up is not None:
            control.nodes.forget(given_up)
        kept = control.nodes.kept
        ahead = kept.ahead_of(record.node_id)
        control.nodes.record(record)
        for job_id in ahead ^ kept.ahead_of(record.node_id):
            if job_id in control.jobs:
                control.routes.locate(control.jobs[job_id])
        control.touch()
        if self._registering.newest(link) is not message:
            return []
        self._registering.end(link)
        is_foreign = serves_another(message, control.counters.control_id)
        effects: list[Outcome] = []
        earlier = control.nodes.last_known(message.node_id)
        for other in (control.nodes.present(message.node_id), control.nodes.at(link)):
            if other is None or control.nodes.present(other.node_id) is not other:
                continue
            is_same = (other.link, other.node_id) == (link, message.node_id)
            if is_foreign or not is_same:
                effects += self._forget([other])
        if is_foreign:
            control.nodes.expected.give_up(message.node_id)
            # It learns whose rows are wanted here, and comes again with those.
            return [*effects, self._taken(link, (), record)]
        heard = without(message, record.forgotten)
        node = control.nodes.register(heard, link=link, now_ns=now_ns)
        self._note_missed(node)
        if earlier is not None and earlier.store_id != node.store_id:
            earlier = None  # nothing of that is true of this one
        if earlier is not None and node.expected_until_ns is None:
            # It was here all the time, and has only asked once more.
            node.expected_until_ns = earlier.expected_until_ns
            node.registered_at_ns = earlier.registered_at_ns
        # What it has more of than is known here stays as it is.
        untouched = kept.ahead_of(node.node_id)
        jobs = [
            job
            for job in control.jobs_of(node.node_id)
            if job.record.job_id not in untouched
        ]
        parts = tuple(job_assignment(job, node.node_id, control.nodes) for job in jobs)
        effects.append(self._taken(link, parts, record))
        for job in jobs:
            missed = catch_up(control, job, node)
            effects += missed
            job_id = job.record.job_id
            if earlier is not None:
                node.recall(earlier, job_id, is_told=bool(missed))
            else:
                # A leader before may have told it so, and have written nothing yet.
                node.lose(job_id, lost_groups(job, node))
            if job_id not in node.sequences:
                # It is to begin anew.  What it says of copies until it has heard that
                # is of those from before: it begins them anew in another version.
                node.begun_jobs.add(job_id)
            effects += tell_address(control, job, node)
            control.routes.locate(job)
        return [*effects, NodeCame()]

    def _note_missed(self, node: PresentNode) -> None:
        """Note how far a node that is back in time has to go to be where others are."""
        if node.expected_until_ns is None:
            return
        for job in self._control.jobs_of(node.node_id):
            job_id, head = job.record.job_id, job.record.sequence
            if node.sequences.get(job_id, -1) < head:
                node.missed[job_id] = head

    def _taken(
        self, link: LinkId, jobs: tuple[JobAssignment, ...], record: NodeRecord
    ) -> ControlEffect:
        """Return what tells a node that it is registered, and what it answers for."""
        control = self._control
        registered = NodeRegistered(
            leader_epoch=control.leader_epoch,
            control_id=control.counters.control_id,
            session_timeout_ms=control.session_timeout_ns // NS_PER_MS,
            jobs=jobs,
            copy_secret=control.copy_secret,
            untouched=tuple(sorted(control.nodes.kept.ahead_of(record.node_id))),
            forgotten=tuple(sorted({one.job_id for one in record.forgotten})),
            direct_lease_ms=control.direct_lease_ns // NS_PER_MS,
        )
        return SendToNode(link=link, message=registered)

    def _refused(
        self, link: LinkId, error: NameServiceError
    ) -> Sequence[ControlEffect]:
        """Have a node ask again in a moment, rather than wait for an answer."""
        if not self._registering.end(link):
            return []  # the connection is closed
        refused = NodeRefused(reason="not-now", detail=str(error))
        return [SendToNode(link=link, message=refused)]

    # -- applying ------------------------------------------------------------------

    def applied(
        self, node: PresentNode, message: EntriesApplied, *, now_ns: int
    ) -> list[ControlEffect]:
        """Take note of how far a node is, and whether it can go on."""
        job = self._control.jobs.get(message.job_id)
        if job is None or message.sequence > job.record.sequence:
            return []  # it speaks of what it was told to throw away
        was_failing = message.job_id in node.failing
        is_failing = message.failure is not None
        if is_failing != was_failing or message.job_id not in node.sequences:
            self._control.touch(message.job_id)
        node.failing.pop(message.job_id, None)
        if message.failure is not None:
            failure = JobFailure(told_at_ns=now_ns, reason=message.failure)
            node.failing[message.job_id] = failure
        begins = node.resets.get(message.job_id)
        if begins is not None and (message.sequence < begins or message.failure):
            return []  # it has yet to begin anew, or could not
        node.resets.pop(message.job_id, None)
        missed = node.missed.get(message.job_id)
        if missed is not None and missed <= message.sequence:
            del node.missed[message.job_id]
            self._control.touch(message.job_id)
        node.sequences[message.job_id] = message.sequence
        node.lost[message.job_id] = message.lost_state_numbers
        if not message.lacks_rows or not has_node(job, node.node_id):
            return []
        self._control.touch(message.job_id)
        return declare_lost(self._control, job, node)

    # -- copying -------------------------------------------------------------------

    def copied(self, node: PresentNode, message: KeyGroupsCopied) -> None:
        """Take note of how far a node is with what it copies."""
        job = self._control.jobs.get(message.job_id)
        assignment = None if job is None else job.assignment
        if assignment is None or assignment.version != message.assignment_version:
            return  # it says so again, as soon as it knows of the present one
        earlier = node.copies.get(message.job_id)
        report = CopyReport(
            assignment_version=message.assignment_version,
            key_groups=frozenset(message.key_groups),
            row_count=message.row_count,
            size_bytes=message.size_bytes,
            failure=message.failure,
        )
        node.copies[message.job_id] = report
        is_other = earlier is None or (
            earlier.assignment_version != report.assignment_version
            or earlier.key_groups != report.key_groups
        )
        if is_other and report.key_groups:
            self._control.touch(message.job_id)

    # -- parts ---------------------------------------------------------------------

    def _forget(self, nodes: Sequence[PresentNode]) -> list[ControlEffect]:
        """Take nodes for away, and do not expect them."""
        for node in nodes:
            self._control.nodes.remove(node)
        return self._gone(nodes)

    def _gone(self, nodes: Sequence[PresentNode]) -> list[ControlEffect]:
        """
        Ask nodes no more that are not present any more.

        The routes of a job are made anew once, though it may lose many nodes at once.
        """
        if not nodes:
            return []
        control = self._control
        control.touch()
        for node in nodes:
            control.direct.left(node)
        for job in control.jobs_of_any({node.node_id for node in nodes}):
            control.routes.locate(job)
        return [ForgetNode(link=node.link, node_id=node.node_id) for node in nodes]
