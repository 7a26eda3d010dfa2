"""`Answering`: what a `LeaderService` answers, and what it writes down of that."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast, final

from election.core import ElectionCore
from leaderserver.messages import (
    FailedReply,
    Failure,
    Reply,
    ReplyBody,
    ToClient,
    UncertainReply,
)
from leaderserver.server.core.audit import AuditedRequest, audit_fields
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.turn import Send, Turn
from nameservice import get_logger
from zmqtransport.log_budget import LogBudget


if TYPE_CHECKING:
    from leaderserver.messages import BatchedReply


__all__ = ["Answering"]


@final
class Answering:
    """
    Answers to requests, messages to sessions, and the log lines that come with them.

    Args:
        core: The election, to be read.
        clients: Where clients are reached.

    Attributes:
        counts: What has happened how often.
    """

    def __init__(self, core: ElectionCore, clients: ClientTable) -> None:
        self._core = core
        self._clients = clients
        self.counts: Counter[str] = Counter()
        self._log_budget = LogBudget()
        self._log = get_logger(component="leaderserver")

    def answer(self, body: ReplyBody, turn: Turn) -> None:
        """Answer the request that is being handled."""
        assert turn.answer_to is not None
        client, number = turn.answer_to
        self.count(body)
        if turn.audited is not None:
            self._audit(client, turn.audited, body, turn)
        if turn.batched is not None:
            turn.batched.append(cast("BatchedReply", body))
            return
        message = Reply(number=number, body=body)
        turn.outgoing.append(Send(peer=client.peer, message=message))

    def fail(self, reason: str, detail: str, turn: Turn) -> None:
        """Answer the request that is being handled: it failed."""
        self.answer(FailedReply(reason=reason, detail=detail), turn)

    def count(self, body: ReplyBody) -> None:
        """Count an answer that tells of a failure, by its reason."""
        if isinstance(body, FailedReply):
            self.counts["requests_failed"] += 1
            self.counts[f"errors_{body.reason.replace('-', '_')}"] += 1
        elif isinstance(body, UncertainReply):
            self.counts["errors_uncertain"] += 1

    def fail_not_admin(self, client: ServedClient, turn: Turn) -> None:
        """Answer that only an admin may ask this."""
        self.fail(Failure.NOT_ALLOWED, f"{client.principal.name} is not an admin", turn)

    def push(self, session_id: str, message: ToClient, turn: Turn) -> None:
        """Send *message* to a session, if there is such a one."""
        client = self._clients.get(session_id)
        if client is not None:
            turn.outgoing.append(Send(peer=client.peer, message=message))

    def may_log(self, event: str, turn: Turn) -> bool:
        """Return whether what a stranger causes may fill another line of the log."""
        return self._log_budget.admits(event, now_ns=turn.now_ns)

    def _audit(
        self,
        client: ServedClient,
        request: AuditedRequest,
        reply: ReplyBody,
        turn: Turn,
    ) -> None:
        """Write down what an operator did, or was refused."""
        fields = audit_fields(client, request, reply, self._core)
        if not isinstance(reply, FailedReply):
            self._log.info("operation.performed", **fields)
        elif self.may_log("operation.refused", turn):
            self._log.warning("operation.refused", **fields)
