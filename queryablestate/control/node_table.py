"""
The state nodes as the proxy leader knows them: who is there, and how far; pure.

A node is *known* once it has been recorded in the leader store, until its place there
is needed for another, and *present* while its registration holds: its connection is
open and it was heard from within the session timeout.  It is *expected* for a moment
after its connection has closed (`queryablestate.control.expected_nodes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice import ConfigurationError
from queryablestate.control.expected_nodes import ExpectedNodes
from queryablestate.control.kept_jobs import KeptJobs
from queryablestate.control.present_node import PresentNode


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.wire.node_messages import RegisterNode
    from queryablestate.wire.records import NodeRecord


__all__ = ["NodeTable"]

_NAMED_COUNT_MAX: Final = 20


@final
class NodeTable:
    """
    Known and present nodes.

    Attributes:
        kept: What they keep of other control planes.
        expected: Those that may be back in a moment.
    """

    def __init__(self, records: Iterable[NodeRecord], control_id: str = "") -> None:
        self._records = {record.node_id: record for record in records}
        self.kept = KeptJobs(self._records.values(), control_id)
        self.expected = ExpectedNodes()
        self._registration_ids: dict[str, str] = {}
        # Jobs whose rows nodes had lost that are away now: others may have copied them.
        self._lost_by_gone: dict[str, dict[str, frozenset[int] | None]] = {}
        self._present: dict[str, PresentNode] = {}
        # By name, which most of what happens asks for; None once others are there.
        self._known_ids: tuple[str, ...] | None = None
        self._by_name: tuple[PresentNode, ...] | None = None
        self._by_link: dict[LinkId, PresentNode] = {}
        self._known_first = set(self._records)
        self._awaited = set(self._records)

    def __iter__(self) -> Iterator[PresentNode]:
        """Iterate over the present nodes by name."""
        if self._by_name is None:
            self._by_name = tuple(self._present[name] for name in sorted(self._present))
        return iter(self._by_name)

    @property
    def known_ids(self) -> Sequence[str]:
        """Return the names of all known nodes, sorted."""
        if self._known_ids is None:
            self._known_ids = tuple(sorted(self._records))
        return self._known_ids

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

    def free_stores(self) -> Mapping[str, str]:
        """Return the data directories of the nodes that may be given key groups."""
        return {
            node.node_id: node.store_id
            for node in self
            if not self.is_draining(node.node_id)
        }

    @property
    def why_none_is_free(self) -> str:
        """Return why `free_stores` has none, if so, and what to do."""
        if not self._present:
            return "no state node is registered: start one with 'lodestar node'"
        return (
            "every state node that is registered is being drained: start another one, "
            "or have one stay with 'lodestar drain --undo'"
        )

    def present(self, node_id: str) -> PresentNode | None:
        """Return that node if it is present, or None."""
        return self._present.get(node_id)

    def last_known(self, node_id: str) -> PresentNode | None:
        """Return that node if it is present, or as it was if it is expected."""
        return self._present.get(node_id) or self.expected.node(node_id)

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
        self._known_ids = None
        self.kept.record(record)

    def forget(self, node_id: str) -> None:
        """Know nothing any more of a node that is away."""
        del self._records[node_id]
        self._known_ids = None
        self.expected.give_up(node_id)
        self.kept.forget(node_id)
        self._registration_ids.pop(node_id, None)
        self._lost_by_gone.pop(node_id, None)
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
            holdings={holding.job_id: holding for holding in message.holdings},
        )
        self._registration_ids[node.node_id] = node.registration_id
        self._lost_by_gone.pop(node.node_id, None)
        self._present[node.node_id] = node
        self._by_name = None
        self._by_link[link] = node
        self.expected.welcome(node)
        self._awaited.discard(node.node_id)
        return node

    def remove(self, node: PresentNode) -> None:
        """Take *node*, which is present, for away."""
        del self._present[node.node_id]
        self._by_name = None
        del self._by_link[node.link]
        if node.lost_jobs:
            self._lost_by_gone[node.node_id] = node.losses()

    def gone_losers(self, job_id: str) -> Mapping[str, Collection[int] | None]:
        """Return who had lost rows of a job before it went away: see `losses`."""
        return {
            node_id: jobs[job_id]
            for node_id, jobs in self._lost_by_gone.items()
            if job_id in jobs
        }

    def looked_at_gone(self, node_ids: Iterable[str], job_id: str) -> None:
        """Forget that these had lost their rows: the assignment heeds it by now."""
        for node_id in node_ids:
            jobs = self._lost_by_gone.get(node_id, {})
            jobs.pop(job_id, None)
            if not jobs:
                self._lost_by_gone.pop(node_id, None)

    def expect(
        self, node: PresentNode, *, now_ns: int, grace_ns: int, until_ns_max: int
    ) -> None:
        """Take *node*, which is present, for away, and expect it to be back."""
        self.remove(node)
        self.expected.add(
            node, now_ns=now_ns, grace_ns=grace_ns, until_ns_max=until_ns_max
        )

    def applied(self, node_id: str, job_id: str) -> int:
        """
        Return the last entry of a job that a node has applied, as far as is known.

        Returns:
            Its sequence; -1 if the node is away and not expected, or has not said so.
        """
        node = self.last_known(node_id)
        return -1 if node is None else node.sequences.get(job_id, -1)

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
