"""
How operators have key groups moved, and wait until they are.

What each function promises, and raises, is said where it is public:
`queryablestate.operations.state_operations.StateOperations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from nameservice import ConfigurationError
from nameservice.fields import check_name
from nameservice.parameters import check_timeout_seconds
from queryablestate.errors import UnknownJobError
from queryablestate.operations.move_waiting import DrainWaiting, RescaleWaiting
from queryablestate.operations.rescaling_information import (
    DrainInformation,
    RescalingInformation,
    drain_information,
    rescaling_information,
)
from queryablestate.wire.operation_messages import (
    DrainNode,
    DrainStarted,
    ListRescalings,
    RescaleJob,
    RescaleStarted,
    RescalingsListed,
)


if TYPE_CHECKING:
    from queryablestate.operations.move_progress import MoveFigures
    from queryablestate.operations.proxy_calls import ProxyCalls


__all__ = [
    "begin_draining",
    "begin_rescaling",
    "listed_rescalings",
    "wait_until_drained",
    "wait_until_rescaled",
]

_NODE_COUNT_MAX: Final = 32_768
_REPLICA_COUNT_MAX: Final = 16


def begin_rescaling(
    calls: ProxyCalls,
    job_id: str,
    *,
    node_count: int | None,
    replica_count: int | None,
) -> RescalingInformation:
    """Have a job rescaled; return what is to be done."""
    for name, count, count_max in (
        ("node_count", node_count, _NODE_COUNT_MAX),
        ("replica_count", replica_count, _REPLICA_COUNT_MAX),
    ):
        if count is not None and not 1 <= count <= count_max:
            raise ConfigurationError(
                f"{name} must be 1 to {count_max:,}, not {count!r}"
            )

    def ask() -> RescaleStarted:
        return calls.change(
            RescaleStarted,
            lambda request_id, session: RescaleJob(
                request_id=request_id,
                session=session,
                job_id=job_id,
                node_count=node_count,
                replica_count=replica_count,
            ),
        )

    return rescaling_information(calls.until_settled(ask).rescaling)


def listed_rescalings(
    calls: ProxyCalls, job_id: str | None
) -> tuple[tuple[RescalingInformation, ...], bool]:
    """Return what there is, and whether the leader changes assignments already."""
    listed = calls.call(
        RescalingsListed,
        lambda request_id, session: ListRescalings(
            request_id=request_id, session=session, job_id=job_id
        ),
    )
    if job_id is not None and not listed.rescalings:
        raise UnknownJobError(job_id)
    found = tuple(rescaling_information(each) for each in listed.rescalings)
    return found, listed.is_settled


def begin_draining(calls: ProxyCalls, node_id: str, *, undo: bool) -> DrainInformation:
    """Have a node emptied, or take part again; return how far it is."""
    check_name(node_id, what="node_id")
    calls.change(
        DrainStarted,
        lambda request_id, session: DrainNode(
            request_id=request_id, session=session, node_id=node_id, is_undone=undo
        ),
    )
    return _drain_information(calls, node_id)


def wait_until_rescaled(
    calls: ProxyCalls,
    job_id: str | None,
    *,
    timeout_seconds: float | None,
    since: RescalingInformation | None,
    on_progress: Callable[[Sequence[RescalingInformation], MoveFigures], None] | None,
) -> Sequence[RescalingInformation]:
    """Wait until nothing is to be copied or given up any more; return how it ended."""
    timeout_seconds = check_timeout_seconds(timeout_seconds)
    waiting = RescaleWaiting(on_progress, since=since, now_ns=calls.clock.now_ns())

    def ask() -> Sequence[RescalingInformation] | None:
        found, is_settled = listed_rescalings(calls, job_id)
        return waiting.step(found, is_settled=is_settled, now_ns=calls.clock.now_ns())

    return calls.wait_for(ask, timeout_seconds=timeout_seconds, missing=waiting.missing)


def wait_until_drained(
    calls: ProxyCalls,
    node_id: str,
    *,
    timeout_seconds: float | None,
    on_progress: Callable[[DrainInformation, MoveFigures], None] | None,
) -> DrainInformation:
    """Wait until a node has no copy of a key group any more."""
    timeout_seconds = check_timeout_seconds(timeout_seconds)
    waiting = DrainWaiting(node_id, on_progress)

    def ask() -> DrainInformation | None:
        rescalings, is_settled = listed_rescalings(calls, None)
        nodes = {node.node_id: node for node in calls.listed_nodes().nodes}
        return waiting.step(
            drain_information(node_id, nodes.get(node_id)),
            rescalings,
            away_ids={one for one, node in nodes.items() if node.address is None},
            is_settled=is_settled,
            now_ns=calls.clock.now_ns(),
        )

    return calls.wait_for(ask, timeout_seconds=timeout_seconds, missing=waiting.missing)


def _drain_information(calls: ProxyCalls, node_id: str) -> DrainInformation:
    nodes = {node.node_id: node for node in calls.listed_nodes().nodes}
    return drain_information(node_id, nodes.get(node_id))
