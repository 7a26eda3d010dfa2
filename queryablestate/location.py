"""`KvStateLocation`: which node serves which key groups of a named state; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import frozen


if TYPE_CHECKING:
    from queryablestate.control_events import Link


__all__ = ["KvStateLocation"]


@final
@frozen(kw_only=True)
class KvStateLocation:
    """
    The route to one state: a row of the proxy's route table.

    Attributes:
        job_id: The job.
        state_name: Its name within the job.
        state_number: What names it in questions.
        generation: The present ownership.
        batch_id: The last batch decided in it, or None before the first.
        assignment_version: The assignment that the links are of.
        node_ids: The nodes of that assignment, in its order.
        links: The connection to each of them, None while it is away.
        key_groups: For each node the key groups it is asked for.
    """

    job_id: str
    state_name: str
    state_number: int
    generation: int
    batch_id: int | None
    assignment_version: int
    node_ids: tuple[str, ...]
    links: tuple[Link | None, ...]
    key_groups: tuple[tuple[int, ...], ...]
