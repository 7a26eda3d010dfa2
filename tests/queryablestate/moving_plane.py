"""Commits while assignments change by hand: no planner, and no node registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, final

from nameservice import NameServiceError
from queryablestate.control.changes import (
    AssignmentChanged,
    Change,
    JobRemoved,
    NodeCame,
    Write,
)
from queryablestate.control.commits import Commits
from queryablestate.control.effects import RefuseWriter
from queryablestate.control.events import LinkId
from queryablestate.wire.node_messages import StagesCollected
from queryablestate.wire.records import (
    AssignmentRecord,
    BatchDecided,
    JoiningCopy,
    NodeRecord,
)
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    WALL_US,
    Plane,
    commit,
    node_register,
    sent,
    verified,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from msgspec import Struct

    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.wire.node_messages import CollectStages, ToNode, VerifyStages
    from queryablestate.wire.records import StageRecord


__all__ = ["MovingPlane", "assignment"]

T = TypeVar("T")


def assignment(
    version: int,
    node_ids: str,
    owners: str,
    *,
    joining: str = "",
    since: int = 0,
    sequence: int = 0,
    copied: Sequence[int] = (),
) -> AssignmentRecord:
    """
    Return an assignment.

    Args:
        version: Its version.
        node_ids: The nodes, a letter each.
        owners: For each key group, a word each, who has an in-sync copy, the primary
            first.
        joining: For each key group who is making a copy; ``-`` for none.
        since: The entry after which these are brought rows.
        sequence: The entry after which it holds.
        copied: By which version each node began a copy that is in sync last.
    """
    return AssignmentRecord(
        version=version,
        node_ids=tuple(node_ids),
        store_ids=tuple(f"disk-of-{node_id}" for node_id in node_ids),
        since_sequences=(since,) * len(node_ids),
        owners=tuple(tuple(map(node_ids.index, word)) for word in owners.split()),
        sequence=sequence,
        joining=tuple(
            tuple(JoiningCopy(node_ids.index(name), since) for name in word.strip("-"))
            for word in joining.split()
        ),
        copied_versions=tuple(copied),
    )


@final
class MovingPlane:
    """
    The commits of a job on ``a`` and ``b``, and what is decided.

    Attributes:
        plane: What they are made in.
        control: What there is.
        commits: The commits.
        now_ns: The time.
        decided: The entries that were decided.
    """

    def __init__(self) -> None:
        self.plane = Plane()
        self.plane.start_job()
        self.control = self.plane.core._control
        self.commits = Commits(self.control)
        self.now_ns = 0
        self.decided: list[BatchDecided] = []
        self._link = LinkId(100)

    def told(self, kind: type[T], effects: Iterable[ControlEffect], node_id: str) -> T:
        """Return the one thing that a node is told, which is of that type."""
        (message,) = self.sent(effects, node_id)
        assert isinstance(message, kind)
        return message

    def sent(
        self, effects: Iterable[ControlEffect], node_id: str
    ) -> Sequence[ToNode | Struct]:
        """Return what a node, which is present, is told."""
        node = self.control.nodes.present(node_id)
        assert node is not None
        return sent(effects, node.link)

    def assign(self, record: AssignmentRecord) -> list[ControlEffect]:
        """Give the job another assignment; return what follows."""
        job = self.control.job(APP)
        change = job.assign(record, job.record.max_parallelism)
        job.adopt(change)
        self.control.routes.locate(job)
        return self.perform(self.commits.assignment_changed(job))

    def ask(
        self,
        *stages: StageRecord,
        version: int = 1,
        link: LinkId = DRIVER,
        batch_id: int = 0,
    ) -> list[ControlEffect]:
        """Ask for a commit."""
        request = commit(1, batch_id, *stages, assignment_version=version)
        try:
            outcomes = self.commits.ask(link, request, WALL_US, now_ns=self.now_ns)
        except NameServiceError as error:
            return [RefuseWriter(link=link, request_id=3, error=error)]
        return self.perform(outcomes)

    def verified(
        self, question: VerifyStages, node_id: str, *missing: StageRecord
    ) -> list[ControlEffect]:
        """Have a node say what it has."""
        node = self.control.nodes.present(node_id)
        assert node is not None
        message = verified(node_id, question.verify_id, *missing)
        return self.perform(self.commits.verified(node, message))

    def collected(
        self,
        command: CollectStages,
        node_id: str,
        *chunk_counts: int,
        missing: StageRecord | None = None,
    ) -> list[ControlEffect]:
        """Have a node say that it has collected, in how many chunks of each stage."""
        node = self.control.nodes.present(node_id)
        assert node is not None
        message = StagesCollected(
            registration_id=node.registration_id,
            verify_id=command.verify_id,
            chunk_counts=chunk_counts,
            missing=() if missing is None else (missing.stage_id,),
        )
        return self.perform(self.commits.collected(node, message))

    def applied(self, node_id: str, sequence: int) -> list[ControlEffect]:
        """Have a node apply the chain up to there."""
        node = self.control.nodes.present(node_id)
        assert node is not None
        node.sequences[APP] = sequence
        return self.perform(self.commits.node_moved(APP, now_ns=self.now_ns))

    def come(self, node_id: str, *, store_id: str | None = None) -> list[ControlEffect]:
        """Have a node register; return what it, and others, are asked then."""
        message = node_register(node_id, store_id=store_id)
        self._link = link = LinkId(self._link + 1)  # none is used twice
        node = self.control.nodes.register(message, link=link, now_ns=self.now_ns)
        self.control.nodes.record(NodeRecord(node_id=node_id, store_id=node.store_id))
        return self.perform(self.commits.node_came())

    def leave(self, node_id: str) -> list[ControlEffect]:
        """Have a node be away."""
        node = self.control.nodes.present(node_id)
        assert node is not None
        self.control.nodes.remove(node)
        return self.perform([])

    def perform(self, outcomes: Sequence[Outcome]) -> list[ControlEffect]:
        """Write what is to be written at once; return what is to be done."""
        effects: list[ControlEffect] = []
        waiting = [*outcomes, *self.commits.expire(now_ns=self.now_ns)]
        while waiting:
            outcome = waiting.pop(0)
            # No notices: they are for commits, and are given to them by name here.
            assert not isinstance(outcome, NodeCame | AssignmentChanged | JobRemoved)
            if not isinstance(outcome, Change):
                effects.append(outcome)
                continue
            try:
                planned = outcome.prepare(self.now_ns)
            except NameServiceError as error:
                waiting += outcome.refuse(error)
                continue
            if isinstance(planned, Write):
                waiting += planned.adopt(self.now_ns)
                job = self.control.job(APP)
                entry = job.entries[job.record.sequence]
                assert isinstance(entry, BatchDecided)
                self.decided.append(entry)
            else:
                waiting += planned
        return effects
