"""
The state nodes as the proxy leader knows them: who is there, and how far; pure.

A node is *known* once it has been recorded in the leader store, until its place there
is needed for another, and *present* while its registration holds: its connection is
open and it was heard from within the session timeout.  It is *expected* for a moment
after its connection has closed: what broke may be the connection alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import define, evolve, field, frozen

from nameservice import ConfigurationError
from queryablestate.control.kept_jobs import KeptJobs


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.wire.node_messages import RegisterNode
    from queryablestate.wire.records import NodeRecord


__all__ = ["CopyReport", "JobFailure", "NodeTable", "PresentNode"]

_NAMED_COUNT_MAX: Final = 20


@final
@frozen(kw_only=True)
class CopyReport:
    """
    How far a node is with the key groups that it copies for one job.

    Attributes:
        assignment_version: The assignment that it copies for.
        key_groups: Those that it has complete.
        row_count: Rows that it has fetched since it started.
        size_bytes: Their size.
        failure: Why its last attempt came to nothing, or None.
    """

    assignment_version: int
    key_groups: frozenset[int]
    row_count: int
    size_bytes: int
    failure: str | None


@final
@frozen(kw_only=True)
class JobFailure:
    """
    That a node cannot go on with a job.

    Attributes:
        told_at_ns: When it said so last.
        reason: Why.
    """

    told_at_ns: int
    reason: str


@final
@define(kw_only=True)
class PresentNode:
    """
    A node that is registered now.

    Attributes:
        node_id: Its name.
        store_id: Its data directory.
        registration_id: The process.
        link: Its connection.
        address: Where writers reach it.
        heard_at_ns: When it was last heard from.
        chunk_size_bytes_max: How large a chunk of rows it takes, or None if it has not
            said so.
        reader_addresses: Where clients ask it without the proxy, each at one of these;
            none: at *address*.
        sequences: How far it is, for each job that it has said so of.
        lost: The states whose rows it has lost, likewise.
        versions: By which assignment of a job it kept its rows last, when it came.
        probes: Entries of which it was asked whether it lacks rows: job and sequence,
            by the number of the question.
        failing: Jobs that it cannot go on with.
        lost_jobs: Jobs whose rows it has lost since it was assigned: its copies count
            for nothing where there are others.
        begun_jobs: Jobs that it begins anew, with nothing lost, since it was assigned:
            what it says of copies that it makes may be of those from before.
        copies: What it says of its copying, by job.
        emptied_reason: Why it was told last that it may end, or None.
        missed: By job the last entry that it had missed when it was back in time, as
            long as it has not applied that.
        expected_until_ns: How long it was expected then, or None if it was not.
        registered_at_ns: When it was taken in.
        is_doubted: Whether it has said nothing since copies were to be given up last.
    """

    node_id: str
    store_id: str
    registration_id: str
    link: LinkId
    address: str
    heard_at_ns: int
    chunk_size_bytes_max: int | None = None
    reader_addresses: tuple[str, ...] = ()
    sequences: dict[str, int] = field(factory=dict)
    lost: dict[str, tuple[int, ...]] = field(factory=dict)
    versions: dict[str, int] = field(factory=dict)
    probes: dict[int, tuple[str, int]] = field(factory=dict)
    failing: dict[str, JobFailure] = field(factory=dict)
    lost_jobs: set[str] = field(factory=set)
    begun_jobs: set[str] = field(factory=set)
    copies: dict[str, CopyReport] = field(factory=dict)
    emptied_reason: str | None = None
    missed: dict[str, int] = field(factory=dict)
    expected_until_ns: int | None = None
    registered_at_ns: int = 0
    is_doubted: bool = False

    def forget_job(self, job_id: str) -> None:
        """Know nothing any more of what it says of a job."""
        every = (self.sequences, self.lost, self.failing, self.copies, self.missed)
        for known in every:
            known.pop(job_id, None)
        self.looked_at(job_id)

    def looked_at(self, job_id: str) -> None:
        """Forget that a job was lost or begun anew: the assignment heeds it by now."""
        self.lost_jobs.discard(job_id)
        self.begun_jobs.discard(job_id)


@final
@frozen
class _Expected:
    """
    A node that may be back in a moment.

    Attributes:
        node: As it was when its connection closed.
        until_ns: How long it is expected.
    """

    node: PresentNode
    until_ns: int


@final
class NodeTable:
    """
    Known and present nodes.

    Attributes:
        kept: What they keep of other control planes.
    """

    def __init__(self, records: Iterable[NodeRecord], control_id: str = "") -> None:
        self._records = {record.node_id: record for record in records}
        self.kept = KeptJobs(self._records.values(), control_id)
        self._registration_ids: dict[str, str] = {}
        self._present: dict[str, PresentNode] = {}
        self._by_link: dict[LinkId, PresentNode] = {}
        self._expected: dict[str, _Expected] = {}
        self._known_first = set(self._records)
        self._awaited = set(self._records)

    def __iter__(self) -> Iterator[PresentNode]:
        """Iterate over the present nodes by name."""
        return iter([self._present[name] for name in sorted(self._present)])

    @property
    def known_ids(self) -> Sequence[str]:
        """Return the names of all known nodes, sorted."""
        return sorted(self._records)

    @property
    def present_ids(self) -> Collection[str]:
        """Return the names of the present nodes, in no order."""
        return self._present.keys()

    @property
    def is_anybody_awaited(self) -> bool:
        """Return whether a node that was known from the start has yet to register."""
        return bool(self._awaited)

    @property
    def is_anybody_late(self) -> bool:
        """Return whether a node that was known from the start is not present."""
        return not self._known_first <= self._present.keys()

    def record_of(self, node_id: str) -> NodeRecord | None:
        """Return what is recorded of a known node, or None."""
        return self._records.get(node_id)

    def known_record_of(self, node_id: str) -> NodeRecord:
        """
        Return what is recorded of a node that an operator names.

        Raises:
            ConfigurationError: If no node is called that; says which there are.
        """
        record = self._records.get(node_id)
        if record is None:
            known = ", ".join(self.known_ids[:_NAMED_COUNT_MAX]) or "none"
            raise ConfigurationError(
                f"no node is called {node_id!r}; known are: {known}"
            )
        return record

    def store_id_of(self, node_id: str) -> str | None:
        """Return the recorded data directory of a known node, or None."""
        record = self._records.get(node_id)
        return None if record is None else record.store_id

    def registration_id_of(self, node_id: str) -> str | None:
        """Return the process that registered under that name last, or None."""
        return self._registration_ids.get(node_id)

    def is_draining(self, node_id: str) -> bool:
        """Return whether a node is to be emptied; a new process of it is not."""
        record = self._records.get(node_id)
        if record is None or record.draining_id is None:
            return False
        node = self._present.get(node_id)
        return node is None or node.registration_id == record.draining_id

    def present(self, node_id: str) -> PresentNode | None:
        """Return that node if it is present, or None."""
        return self._present.get(node_id)

    def at(self, link: LinkId) -> PresentNode | None:
        """Return the node that is registered over *link*, or None."""
        return self._by_link.get(link)

    def is_at(self, node_id: str, link: LinkId) -> bool:
        """Return whether a node is registered over the connection that it had."""
        node = self._present.get(node_id)
        return node is not None and node.link == link

    def record(self, record: NodeRecord) -> None:
        """Take note of what is recorded of a node."""
        self._records[record.node_id] = record
        self.kept.record(record)

    def forget(self, node_id: str) -> None:
        """Know nothing any more of a node that is away."""
        del self._records[node_id]
        self._expected.pop(node_id, None)
        self.kept.forget(node_id)
        self._registration_ids.pop(node_id, None)
        self._known_first.discard(node_id)
        self._awaited.discard(node_id)

    def register(
        self, message: RegisterNode, *, link: LinkId, now_ns: int
    ) -> PresentNode:
        """Take a node for present; an earlier registration of it is over."""
        earlier = self._present.pop(message.node_id, None)
        if earlier is not None:
            del self._by_link[earlier.link]
        node = PresentNode(
            node_id=message.node_id,
            store_id=message.store_id,
            registration_id=message.registration_id,
            link=link,
            address=message.address,
            heard_at_ns=now_ns,
            registered_at_ns=now_ns,
            chunk_size_bytes_max=message.chunk_size_bytes_max,
            reader_addresses=message.reader_addresses,
            sequences={
                position.job_id: position.sequence for position in message.positions
            },
            lost={
                position.job_id: position.lost_state_numbers
                for position in message.positions
            },
            versions={
                position.job_id: position.origin.assignment_version
                for position in message.positions
            },
        )
        self._registration_ids[node.node_id] = node.registration_id
        self._present[node.node_id] = node
        self._by_link[link] = node
        expected = self._expected.pop(node.node_id, None)
        if expected is not None and expected.node.store_id == node.store_id:
            node.expected_until_ns = expected.until_ns
        self._awaited.discard(node.node_id)
        return node

    def remove(self, node: PresentNode) -> None:
        """Take *node*, which is present, for away."""
        del self._present[node.node_id]
        del self._by_link[node.link]

    def expect(
        self, node: PresentNode, *, now_ns: int, grace_ns: int, until_ns_max: int
    ) -> None:
        """
        Take *node*, which is present, for away, and expect it to be back.

        One that was away before is expected no longer than it was then, unless it has
        caught up and has been here for long since: it may come and go, and commits wait
        for it.

        Args:
            node: Which.
            now_ns: The time.
            grace_ns: How long it is expected, and how long it must have been here.
            until_ns_max: Until when at the most.
        """
        self.remove(node)
        until_ns = min(now_ns + grace_ns, until_ns_max)
        is_back = not node.missed and now_ns - node.registered_at_ns >= grace_ns
        if node.expected_until_ns is not None and not is_back:
            until_ns = min(until_ns, node.expected_until_ns)
        self._expected[node.node_id] = _Expected(node, until_ns)

    def is_expected(self, node_id: str) -> bool:
        """Return whether a node is away, and may be back in a moment."""
        return node_id in self._expected

    def is_expected_with(self, node_id: str, job_id: str) -> bool:
        """
        Return whether a node is expected with what it had of a job.

        One that could not go on with the job, or had lost its rows, had nothing.
        """
        expected = self._expected.get(node_id)
        return (
            expected is not None
            and job_id not in expected.node.failing
            and job_id not in expected.node.lost_jobs
        )

    def applied(self, node_id: str, job_id: str) -> int:
        """
        Return the last entry of a job that a node has applied, as far as is known.

        Returns:
            Its sequence; -1 if the node is away and not expected, or has not said so.
        """
        node = self._present.get(node_id)
        if node is None and node_id in self._expected:
            node = self._expected[node_id].node
        return -1 if node is None else node.sequences.get(job_id, -1)

    def expected_until_ns(self, coming: Collection[str]) -> int | None:
        """
        Return when the first of those that are expected is not any more, or None.

        Args:
            coming: Nodes that are about to be taken in: they are in time.
        """
        expected = self._expected.items()
        times = [one.until_ns for node_id, one in expected if node_id not in coming]
        return min(times, default=None)

    def give_up_expected(self, coming: Collection[str], *, now_ns: int) -> bool:
        """Expect no more who should be back by now; return whether there is one."""
        late = [
            node_id
            for node_id, one in self._expected.items()
            if one.until_ns <= now_ns and node_id not in coming
        ]
        for node_id in late:
            del self._expected[node_id]
        return bool(late)

    def forgive_expected(self, late_ns: int, *, until_ns_max: int) -> None:
        """Expect nodes for that much longer, but not for longer than until then."""
        for node_id, one in self._expected.items():
            until_ns = max(one.until_ns, min(one.until_ns + late_ns, until_ns_max))
            self._expected[node_id] = evolve(one, until_ns=until_ns)

    def give_up(self, node_id: str) -> None:
        """Do not expect that node any more."""
        self._expected.pop(node_id, None)

    def failing(self) -> Sequence[PresentNode]:
        """Return the present nodes that cannot go on with some job, by name."""
        nodes = self._present.values()
        found = [node for node in nodes if node.failing]
        return sorted(found, key=lambda node: node.node_id)

    def doubt(self) -> None:
        """Count on no present node before it has spoken again: see `is_doubted`."""
        for node in self._present.values():
            node.is_doubted = True

    def silent_since(self, heard_at_ns_max: int) -> Sequence[PresentNode]:
        """Return the present nodes that were last heard from at that time or before."""
        return [node for node in self if node.heard_at_ns <= heard_at_ns_max]

    def oldest_heard_at_ns(self) -> int | None:
        """Return when the most silent of the present nodes was heard, or None."""
        return min((node.heard_at_ns for node in self._present.values()), default=None)
