"""
What an operator did, as one line of the log says it: who, what, and how it went.

Pure: it reads the election and returns fields; the service writes the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never

from leaderserver.messages import FailedReply
from leaderserver.operator_messages import (
    ExpireRequest,
    RevokedReply,
    RevokeRequest,
    TransferredReply,
    TransferRequest,
)
from leaderserver.store_messages import CleanupRequest


if TYPE_CHECKING:
    from election.core import ElectionCore
    from leaderserver.messages import ReplyBody
    from leaderserver.server.core.client_table import ServedClient


__all__ = ["AuditedRequest", "audit_fields"]

AuditedRequest: TypeAlias = (
    RevokeRequest | TransferRequest | ExpireRequest | CleanupRequest
)

_OPERATIONS = {
    RevokeRequest: "revoke",
    TransferRequest: "transfer",
    ExpireRequest: "expire",
    CleanupRequest: "cleanup",
}


def audit_fields(
    client: ServedClient,
    request: AuditedRequest,
    reply: ReplyBody,
    core: ElectionCore,
) -> dict[str, object]:
    """
    Return the fields of the line that says that *request* is answered with *reply*.

    Args:
        client: Who asked.
        request: What for.
        reply: How it is answered; nothing of what follows from it has happened yet.
        core: The election as it is at that moment.
    """
    session = core.session(client.session_id)
    fields: dict[str, object] = {
        "operation": _OPERATIONS[type(request)],
        # Without CURVE all who reach the port may do everything.
        "by": client.principal.name if client.principal.public_key else "anyone",
        "client": "" if session is None else session.client,
        "session_id": client.session_id,
    }
    match request:
        case RevokeRequest(component_id=component_id):
            fields["component_id"] = component_id
        case TransferRequest(component_id=component_id, contender_id=contender_id):
            fields["component_id"] = component_id
            fields["contender_id"] = contender_id
        case CleanupRequest(component_id=component_id):
            fields["component_id"] = component_id
        case ExpireRequest(session_id=session_id):
            fields["expired_session_id"] = session_id
            if not isinstance(reply, FailedReply):
                fields["epochs"] = _epochs_of(session_id, core)
        case _:
            assert_never(request)
    match reply:
        case FailedReply(reason=reason):
            fields["reason"] = reason
        case RevokedReply(epoch=epoch) | TransferredReply(epoch=epoch):
            fields["epoch"] = epoch or None
        case _:
            pass
    return fields


def _epochs_of(session_id: str, core: ElectionCore) -> dict[str, int]:
    """Return the epoch of each component that the session leads."""
    session = core.session(session_id)
    epochs: dict[str, int] = {}
    for component_id, _ in () if session is None else session.contenders:
        component = core.component(component_id)
        leadership = None if component is None else component.leadership
        if leadership is not None and leadership.session_id == session_id:
            epochs[component_id] = leadership.epoch
    return dict(sorted(epochs.items()))
