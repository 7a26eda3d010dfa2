"""
States that are dropped; pure.

It is an entry of the job's chain: nodes drop the rows after the batches before it.  The
answer waits as long as a node may tell clients of the state without the proxy
(`queryablestate.control.direct_readers`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from queryablestate.control.chains import extend_chain
from queryablestate.control.changes import Write
from queryablestate.control.effects import AnswerWriter
from queryablestate.wire.clients import StateDropDone


if TYPE_CHECKING:
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.state import ControlState
    from queryablestate.wire.clients import DropState


__all__ = ["StateDrops"]


@final
class StateDrops:
    """
    Drops states.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control

    def drop(self, link: LinkId, request: DropState, now_ns: int) -> Write:
        """
        Forget a state.

        Raises:
            UnknownJobError: If there is no such job.
            UnknownStateError: If the job has no such state.
        """
        del now_ns
        job = self._control.job(request.job_id)
        change = job.drop(request.state_name)
        adopt = partial(self._dropped, link, request, change)
        return Write(operations=job.operations(change), adopt=adopt)

    def _dropped(
        self, link: LinkId, request: DropState, change: JobChange, now_ns: int
    ) -> list[ControlEffect]:
        job = self._control.job(request.job_id)
        dropped = job.state_named(request.state_name)
        assert dropped is not None
        effects = extend_chain(self._control, job, change)
        done = AnswerWriter(
            link=link, message=StateDropDone(request_id=request.request_id)
        )
        held = self._control.direct.hold_dropped(
            job, dropped.state_number, done, now_ns=now_ns
        )
        return [*effects, *held]
