"""
How operators have taken over what nodes kept.

What each function promises, and raises, is said where it is public:
`queryablestate.operations.state_operations.StateOperations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nameservice import DidNotHappenError
from queryablestate.operations.adoption import (
    AdoptionInformation,
    adoption_information,
    is_back,
    keeper_ids,
)
from queryablestate.wire.adoption_messages import (
    AdoptJob,
    ControlTaken,
    JobAdopted,
    TakeControl,
)


if TYPE_CHECKING:
    from queryablestate.operations.proxy_calls import ProxyCalls


__all__ = ["ADOPTION_TIMEOUT_SECONDS", "adopt_job", "take_control"]

ADOPTION_TIMEOUT_SECONDS: Final = 60.0


def take_control(calls: ProxyCalls, control_id: str, timeout_seconds: float) -> None:
    """Be that control plane, and wait until the nodes are back with its rows."""
    node_ids = keeper_ids(calls.listed_nodes(), control_id)

    def take() -> ControlTaken:
        return calls.change(
            ControlTaken,
            lambda request_id, session: TakeControl(
                request_id=request_id, session=session, control_id=control_id
            ),
        )

    def check() -> None:
        if not is_back(calls.listed_nodes(), control_id, node_ids):
            raise DidNotHappenError(
                "nodes are not back yet with the rows that they kept"
            )

    calls.until_it_happens(take, timeout_seconds)
    calls.until_it_happens(check, timeout_seconds)


def adopt_job(
    calls: ProxyCalls,
    job_id: str,
    *,
    is_preview: bool = False,
    is_forced: bool = False,
    timeout_seconds: float,
) -> AdoptionInformation:
    """Take over what nodes are ahead with of one job, or say what that would be."""
    # A preview changes nothing.
    asked = calls.call if is_preview else calls.change
    # While nodes are late the same request is sent again and again.
    patience_seconds = ADOPTION_TIMEOUT_SECONDS if is_preview else timeout_seconds

    def ask() -> JobAdopted:
        return asked(
            JobAdopted,
            lambda request_id, session: AdoptJob(
                request_id=request_id,
                session=session,
                job_id=job_id,
                is_preview=is_preview,
                is_forced=is_forced,
            ),
            timeout_seconds=max(patience_seconds, calls.deadline_seconds),
        )

    return adoption_information(calls.until_it_happens(ask, timeout_seconds))
