"""
Which nodes are being emptied, and when they may end; pure (rules S1 and O6).

Theory of operation.  A node that is to be emptied is written down, by the process that
it is now: the node gets no key groups any more, and those that it has go elsewhere like
in any other rescale (`queryablestate.control.assignment.reassignment`).  When it has no
part in any job, and no batch is under way that was begun when it had one
(`queryablestate.control.open_batches`), it is told that it may end; and so it is if
there is no node that could take anything over, and none is expected.  A new process of
that name has been started for a purpose: it is not emptied.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from msgspec.structs import replace

from election import Put
from nameservice import DidNotHappenError
from queryablestate.control.changes import Change, Write
from queryablestate.control.effects import AnswerWriter, SendToNode
from queryablestate.control.job.leader_paths import encode_record, node_path
from queryablestate.wire.node_messages import NodeEmptied
from queryablestate.wire.operation_messages import DrainStarted


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import NameServiceError
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.operation_messages import DrainNode
    from queryablestate.wire.records import NodeRecord


__all__ = ["EMPTY", "NOBODY", "Draining"]

EMPTY = "empty"
NOBODY = "nobody"

_AWAY = "away"
"""Stands for the process of a node of which none has been here; no process has it."""


@final
class Draining:
    """
    Writes down which nodes are to be emptied, and tells them when they are.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control

    def drain(self, link: LinkId, request: DrainNode, now_ns: int) -> Write:
        """
        Have a node emptied, or take part again.

        Raises:
            ConfigurationError: If there is no such node.
            DidNotHappenError: If it is only late: the caller tries again.
        """
        nodes = self._control.nodes
        record = nodes.known_record_of(request.node_id)
        draining_id = None
        if not request.is_undone:
            draining_id = nodes.registration_id_of(request.node_id)
            if draining_id is None and not self._control.is_settled(now_ns=now_ns):
                # Its process is not known yet, and would take part when it comes.
                raise DidNotHappenError(
                    f"this proxy leads since a moment ago, and {request.node_id!r} "
                    "may still be coming"
                )
            draining_id = draining_id or _AWAY
        record = replace(record, draining_id=draining_id)
        adopt = partial(self._drained, link, request, record)
        return self._write(record, adopt=adopt)

    def leave(self, node: PresentNode) -> Change:
        """Return what has a node emptied that wants to end."""
        return Change(prepare=partial(self._leave, node), refuse=_say_nothing)

    def emptied(self, *, now_ns: int) -> list[ControlEffect]:
        """Tell those that are being emptied when they may end."""
        control = self._control
        if not control.is_settled(now_ns=now_ns):
            return []  # a node that could take something over may still come
        nodes = control.nodes
        draining = [node for node in nodes if nodes.is_draining(node.node_id)]
        # One whose connection has just closed may take over in a moment.
        others = {*nodes.present_ids, *nodes.expected}
        are_others = not all(nodes.is_draining(node_id) for node_id in others)
        effects: list[ControlEffect] = []
        for node in draining:
            reason = None
            if not control.is_needed(node.node_id):
                reason = EMPTY
            elif not are_others:
                reason = NOBODY
            if reason is not None and reason != node.emptied_reason:
                message = NodeEmptied(leader_epoch=control.leader_epoch, reason=reason)
                effects.append(SendToNode(link=node.link, message=message))
            node.emptied_reason = reason
        return effects

    # -- parts ---------------------------------------------------------------------

    def _leave(self, node: PresentNode, now_ns: int) -> Write | Sequence[Outcome]:
        nodes = self._control.nodes
        record = nodes.record_of(node.node_id)
        if record is None or nodes.present(node.node_id) is not node:
            return []  # it will say so again when it is back
        node.emptied_reason = None  # it has not heard, or would not ask
        record = replace(record, draining_id=node.registration_id)
        return self._write(record, adopt=partial(self._left, record))

    def _write(
        self, record: NodeRecord, *, adopt: Callable[[int], Sequence[Outcome]]
    ) -> Write:
        is_new = self._control.nodes.record_of(record.node_id) != record
        put = Put(node_path(record.node_id), encode_record(record))
        return Write(operations=[put] if is_new else [], adopt=adopt)

    def _left(self, record: NodeRecord, now_ns: int) -> list[ControlEffect]:
        del now_ns
        nodes = self._control.nodes
        if record.draining_id is not None and nodes.record_of(record.node_id) != record:
            # One that is to take over may have been cut off a moment ago (rule S4).
            nodes.doubt()
        nodes.record(record)
        self._control.touch()
        return []

    def _drained(
        self, link: LinkId, request: DrainNode, record: NodeRecord, now_ns: int
    ) -> list[ControlEffect]:
        effects = self._left(record, now_ns)
        jobs = self._control.jobs_of(request.node_id)
        started = DrainStarted(
            request_id=request.request_id,
            node_id=request.node_id,
            job_ids=tuple(sorted(job.record.job_id for job in jobs)),
        )
        return [*effects, AnswerWriter(link=link, message=started)]


def _say_nothing(error: NameServiceError) -> Sequence[ControlEffect]:
    """Leave a node without an answer: it asks again by itself."""
    del error
    return []
