"""What operators see of an election: components, contenders and sessions as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leaderserver.codec import publication_to_record
from leaderserver.operator_messages import (
    ComponentRecord,
    ComponentsReply,
    ContenderRecord,
    ContendersReply,
    SessionRecord,
    SessionsReply,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from election.component import Component
    from election.core import ElectionCore
    from election.sessions import Session


__all__ = ["PAGE_SIZE", "inspect_components", "inspect_contenders", "inspect_sessions"]

PAGE_SIZE: Final = 1_000


def inspect_components(
    core: ElectionCore,
    *,
    prefix: str,
    after: str,
    may_see: Callable[[str], bool] = lambda _: True,
) -> ComponentsReply:
    """Return a page of the components that somebody contends for, sorted by id."""
    components = [
        component
        for component in core.components
        if component.component_id.startswith(prefix)
        and component.component_id > after
        and component.contenders
        and may_see(component.component_id)
    ]
    return ComponentsReply(
        components=[_component_record(c) for c in components[:PAGE_SIZE]],
        is_complete=len(components) <= PAGE_SIZE,
    )


def _component_record(component: Component) -> ComponentRecord:
    publication = component.publication
    return ComponentRecord(
        component_id=component.component_id,
        publication=None if publication is None else publication_to_record(publication),
        contender_count=len(component.contenders),
        epoch=component.epoch_max,
    )


def inspect_contenders(
    core: ElectionCore, component_id: str, *, now_ns: int
) -> ContendersReply:
    """Return the contenders of a component, in order, the leader first."""
    component = core.component(component_id)
    if component is None:
        return ContendersReply(contenders=[])
    leadership = component.leadership
    leader_id = None if leadership is None else leadership.contender_id
    in_order = sorted(component.in_order(), key=lambda c: c.contender_id != leader_id)
    records = []
    for contender in in_order:
        session = core.session(contender.session_id)
        assert session is not None
        is_leader = contender.contender_id == leader_id
        records.append(
            ContenderRecord(
                contender_id=contender.contender_id,
                session_id=contender.session_id,
                address=leadership.address if is_leader and leadership else None,
                is_leader=is_leader,
                session_age_ns=now_ns - session.opened_ns,
                last_heard_ns=max(0, now_ns - session.last_contact_ns),
            )
        )
    return ContendersReply(contenders=records)


def inspect_sessions(
    core: ElectionCore,
    *,
    after: str,
    now_ns: int,
    may_see: Callable[[str], bool] | None = None,
) -> SessionsReply:
    """
    Return a page of the sessions, sorted by id.

    Args:
        core: Whose sessions.
        after: The last that is known already.
        now_ns: When it is.
        may_see: Which components the asker may be told of; then only sessions that
            contend for one of those are told.  None: all.
    """
    records: list[SessionRecord] = []
    is_complete = True
    for session in sorted(core.sessions, key=lambda session: session.session_id):
        if session.session_id <= after:
            continue
        component_ids = sorted({name for name, _ in session.contenders})
        if may_see is not None:
            component_ids = [name for name in component_ids if may_see(name)]
            if not component_ids:
                continue
        if len(records) >= PAGE_SIZE:
            is_complete = False
            break
        records.append(_session_record(core, session, component_ids, now_ns))
    return SessionsReply(sessions=records, is_complete=is_complete)


def _session_record(
    core: ElectionCore, session: Session, component_ids: list[str], now_ns: int
) -> SessionRecord:
    leads = []
    for component_id in component_ids:
        component = core.component(component_id)
        leadership = None if component is None else component.leadership
        if leadership is not None and leadership.session_id == session.session_id:
            leads.append(component_id)
    return SessionRecord(
        session_id=session.session_id,
        client=session.client,
        component_ids=component_ids,
        leads_component_ids=leads,
        age_ns=now_ns - session.opened_ns,
        last_heard_ns=max(0, now_ns - session.last_contact_ns),
        timeout_ns=session.session_timeout_ns,
    )
