"""
What nodes say of the rows of one batch before it is decided; pure (rules W3, S2).

Theory of operation.  Nodes are asked whether they hold every chunk of the winning
stages, and those that became copies of key groups meanwhile are told to collect what
others were sent (`queryablestate.control.commit_rows`).  Who is away is asked when it
is back, unless the present assignment does without it.

Everything follows from the stages, the present assignment, and what was said so far:
`proceed` works it out whenever one of them has changed, and asks what has not been
asked yet.  What a node has said holds for its process.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import Factory, define

from nameservice import StorageError
from nameservice.clock import NS_PER_MS
from queryablestate.control.commit_rows import BatchRows, CollectedRows, stages_at
from queryablestate.control.effects import SendToNode
from queryablestate.errors import StagedDataMissingError
from queryablestate.wire.node_messages import CollectStages, VerifyStages


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.clients import CommitBatch
    from queryablestate.wire.job_assignment import CopySource
    from queryablestate.wire.node_messages import StagesCollected, StagesVerified
    from queryablestate.wire.records import AssignmentRecord, BatchState, StageRecord


__all__ = ["Verification", "verify_id_of"]

_VERIFY_ID_SIZE_BYTES: Final = 7


def verify_id_of(
    job_id: str,
    writer_epoch: int,
    batch_id: int,
    stages: Sequence[StageRecord],
    *,
    assignment_version: int = 0,
    key_groups: Sequence[int] = (),
) -> int:
    """
    Return what names a verification, or a collection for *key_groups*, of these stages.

    It follows from what is verified, not from a count: an answer to another leader that
    comes late cannot be taken for an answer to something else.
    """
    digest = blake2b(digest_size=_VERIFY_ID_SIZE_BYTES)
    digest.update(f"{writer_epoch} {batch_id} {assignment_version} {job_id}".encode())
    for stage in stages:
        digest.update(stage.stage_id)
    digest.update(" ".join(map(str, key_groups)).encode())
    return int.from_bytes(digest.digest(), "big")


@define(kw_only=True)
class _Collecting:
    """
    What one node is to collect.

    Attributes:
        key_groups: Of which key groups.
        command: What it was told last, or None.
        link: Over which connection.
        until_ns: How long it tries.
    """

    key_groups: tuple[int, ...]
    command: CollectStages | None = None
    link: LinkId | None = None
    until_ns: int = 0

    def is_part_of(self, key_groups: tuple[int, ...]) -> bool:
        """
        Return whether it is of use where *key_groups* are to be collected.

        What was begun is ended first, if all of it is still wanted: else commits might
        never end while key groups go on moving.
        """
        return self.key_groups == key_groups or (
            self.command is not None and set(self.key_groups) <= set(key_groups)
        )


_Process: TypeAlias = tuple[str | None, str | None]
"""The data directory of a node, and its process."""


@final
@define(kw_only=True)
class Verification:
    """
    The rows of one batch, from when its commit is asked for to the decision.

    Attributes:
        control: What there is.
        request: The commit.
        batch_id: The batch that the rows are staged under.
        states: What the batch writes, as far as is known now.
        verify_id: Names the answers of nodes that verify.
        unverified: The nodes that have yet to answer.
    """

    control: ControlState
    request: CommitBatch
    batch_id: int
    states: tuple[BatchState, ...] = ()
    verify_id: int = 0
    unverified: set[str] = Factory(set)
    _rows: BatchRows | None = None
    _assignment: AssignmentRecord | None = None
    _asked: dict[str, LinkId] = Factory(dict)
    _verified: set[str] = Factory(set)
    _lacking: set[str] = Factory(set)
    _collected: dict[str, list[CollectedRows]] = Factory(dict)
    _collecting: dict[str, _Collecting] = Factory(dict)
    _processes: dict[str, _Process] = Factory(dict)

    @property
    def is_complete(self) -> bool:
        """Return whether all that the decision will name is there."""
        return not self.unverified and not self._collecting

    @property
    def is_collecting(self) -> bool:
        """Return whether `proceed` is to be called when anything has happened."""
        return bool(self._collecting)

    def waiting_for(self) -> Sequence[str]:
        """Return the nodes that are waited for, sorted."""
        node_ids = {*self.unverified, *self._collecting}
        for collecting in self._collecting.values():
            node_ids.update(
                source.node_id
                for source in self._sources(collecting)
                if source.address is None
            )
        return sorted(node_ids)

    def stages(self) -> tuple[StageRecord, ...]:
        """Return what the decision names; nothing is waited for any more."""
        assert self.is_complete
        assert self._rows is not None
        return self._rows.decided_stages()

    # -- what happens --------------------------------------------------------------

    def proceed(
        self, job: Job, *, now_ns: int, deadline_ns: int
    ) -> list[ControlEffect]:
        """
        Ask the nodes what is to be asked now, and was not.

        Args:
            job: The job, as it is now.
            now_ns: The time.
            deadline_ns: How long a node that collects is to try.

        Raises:
            StagedDataMissingError: If no node has some of the rows, or none can say
                where they were sent.
        """
        if self._rows is None or self._assignment is not job.assignment:
            self._compare(job)
        effects: list[ControlEffect] = []
        for node_id in sorted(self.unverified):
            node = self.control.nodes.present(node_id)
            if node is not None and self._asked.get(node_id) != node.link:
                self._asked[node_id] = node.link
                effects.append(self._question(node))
        for node_id, collecting in self._collecting.items():
            node = self.control.nodes.present(node_id)
            if node is not None and not self._is_under_way(collecting, node, now_ns):
                effects += self._command(collecting, node, now_ns, deadline_ns)
        return effects

    def verified(self, node: PresentNode, message: StagesVerified) -> bool:
        """
        Take note of what a node has of its own chunks, if it was asked for that.

        Returns:
            Whether `proceed` is to be called.

        Raises:
            StorageError: If the node could not apply the batch (rule W3).
        """
        if message.verify_id != self.verify_id or node.node_id not in self.unverified:
            return False
        if message.failure is not None:
            raise StorageError(
                f"batch {self.batch_id} is not decided, since node {node.node_id} "
                f"could not apply it: {message.failure}; then run the batch again"
            )
        self._hear(node)
        self.unverified.remove(node.node_id)
        if message.missing:
            self._lack(node.node_id)
        else:
            self._verified.add(node.node_id)
        return self._rows is None or self.is_complete

    def collected(self, node: PresentNode, message: StagesCollected) -> bool:
        """
        Take note of what a node has collected, if it was asked for that.

        Returns:
            Whether `proceed` is to be called.
        """
        collecting = self._collecting.get(node.node_id)
        command = None if collecting is None else collecting.command
        if (
            collecting is None
            or command is None
            or command.verify_id != message.verify_id
        ):
            return False
        if message.missing or len(message.chunk_counts) != len(command.stages):
            # It cannot say whose fault it is.  Who has said itself that it has
            # everything is believed first.
            collecting.command = None
            node_ids = {source.node_id for source in command.sources}
            for node_id in sorted(node_ids - self._verified or node_ids):
                self._lack(node_id)
            return True
        del self._collecting[node.node_id]
        self._hear(node)
        earlier = self._collected.get(node.node_id, [])
        stage_ids = [stage.stage_id for stage in command.stages]
        rows = CollectedRows(
            assignment_version=command.assignment_version,
            key_groups=frozenset(collecting.key_groups),
            chunk_counts=dict(zip(stage_ids, message.chunk_counts, strict=True)),
        )
        self._collected[node.node_id] = [*earlier, rows]
        self._rows = None
        return True

    def is_valid(self, job: Job) -> bool:
        """
        Return whether what was said holds for *job* as it is now; if not, `proceed`.

        It does not if the assignment is another one, or a node that will count is
        another process: its data directory may be another one, or an older state of it.
        """
        replaced = [
            node_id
            for node_id, process in self._processes.items()
            if self._process_of(node_id) != process
        ]
        for node_id in replaced:
            self._forget(node_id)
        return self._rows is not None and self._assignment is job.assignment

    # -- parts ---------------------------------------------------------------------

    def _hear(self, node: PresentNode) -> None:
        """Have nothing count that an earlier process of a node has said."""
        process = self._process_of(node.node_id)
        if self._processes.get(node.node_id, process) != process:
            self._forget(node.node_id)
        self._processes[node.node_id] = process

    def _process_of(self, node_id: str) -> _Process:
        nodes = self.control.nodes
        return nodes.store_id_of(node_id), nodes.registration_id_of(node_id)

    def _forget(self, node_id: str) -> None:
        """Have nothing count that a node has said."""
        self._verified.discard(node_id)
        self._collected.pop(node_id, None)
        self._processes.pop(node_id, None)
        self._rows = None

    def _lack(self, node_id: str) -> None:
        """Count on nothing of the batch at a node."""
        self._lacking.add(node_id)
        self._forget(node_id)

    def _compare(self, job: Job) -> None:
        """Work out what is to be asked under the present assignment."""
        request, present = self.request, job.assignment
        assert present is not None
        sent = job.assignment_of(request.assignment_version)
        if sent is None or len(sent.owners) != len(present.owners):
            # Not transient: what was staged elsewhere will not come here by itself.
            raise StagedDataMissingError(self.batch_id, present.node_ids)
        rows = BatchRows(
            request.stages,
            sent,
            present,
            lacking=self._lacking,
            collected=self._collected,
        )
        if rows.nobody:
            given_up = {one for stage in request.stages for one in stage.given_up}
            node_ids = sorted(self._lacking or given_up)
            raise StagedDataMissingError(self.batch_id, node_ids)
        verify_id = verify_id_of(
            request.job_id,
            request.writer_epoch,
            self.batch_id,
            request.stages,
            assignment_version=present.version,
        )
        if verify_id != self.verify_id:
            self.verify_id = verify_id
            self._asked.clear()
        self.unverified = set(rows.verifying - self._verified)
        under_way = self._collecting
        self._collecting = {}
        for node_id, key_groups in rows.collecting.items():
            earlier = under_way.get(node_id)
            if earlier is None or not earlier.is_part_of(key_groups):
                earlier = _Collecting(key_groups=key_groups)
            self._collecting[node_id] = earlier
        self._rows, self._assignment = rows, present

    def _question(self, node: PresentNode) -> ControlEffect:
        request = self.request
        message = VerifyStages(
            leader_epoch=self.control.leader_epoch,
            verify_id=self.verify_id,
            job_id=request.job_id,
            writer_epoch=request.writer_epoch,
            batch_id=self.batch_id,
            stages=stages_at(node.node_id, request.stages),
            query_id=request.query_id,
            states=self.states,
        )
        return SendToNode(link=node.link, message=message)

    def _is_under_way(
        self, collecting: _Collecting, node: PresentNode, now_ns: int
    ) -> bool:
        """Return whether a node was told to collect, and can."""
        command = collecting.command
        return (
            command is not None
            and collecting.link == node.link
            and now_ns < collecting.until_ns
            and all(
                self._address_of(source.node_id) == source.address
                for source in command.sources
            )
        )

    def _command(
        self,
        collecting: _Collecting,
        node: PresentNode,
        now_ns: int,
        deadline_ns: int,
    ) -> list[ControlEffect]:
        """Tell a node to collect, if all that it needs is within its reach."""
        sources = self._sources(collecting)
        if now_ns >= deadline_ns or any(source.address is None for source in sources):
            return []
        assert self._rows is not None
        assert self._assignment is not None
        request = self.request
        stages = self._rows.stages_of(collecting.key_groups)
        version = self._assignment.version
        collecting.command = CollectStages(
            leader_epoch=self.control.leader_epoch,
            verify_id=verify_id_of(
                request.job_id,
                request.writer_epoch,
                self.batch_id,
                request.stages,
                assignment_version=version,
                key_groups=collecting.key_groups,
            ),
            job_id=request.job_id,
            query_id=request.query_id,
            writer_epoch=request.writer_epoch,
            batch_id=self.batch_id,
            assignment_version=version,
            stages=stages,
            sources=sources,
            timeout_ms=max(1, (deadline_ns - now_ns) // NS_PER_MS),
        )
        collecting.link = node.link
        collecting.until_ns = deadline_ns
        return [SendToNode(link=node.link, message=collecting.command)]

    def _sources(self, collecting: _Collecting) -> tuple[CopySource, ...]:
        assert self._rows is not None
        return self._rows.sources(collecting.key_groups, self._address_of)

    def _address_of(self, node_id: str) -> str | None:
        node = self.control.nodes.present(node_id)
        return None if node is None else node.address
