"""`DecisionNews`: tells who asked too early that the server is decided (E9)."""

from __future__ import annotations

from itertools import islice
from typing import Final, final

from election.core import ElectionCore
from leaderserver.messages import AcknowledgedHeartbeat, Reply
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.turn import Send, Turn


__all__ = ["DecisionNews"]

# Between two parts the server looks at what has arrived: heartbeats must not wait.
_COUNT_PER_TURN: Final = 100


@final
class DecisionNews:
    """
    Sessions that wait until it is settled who leads (E9).

    After a restart every listener comes back within a moment, and all of them ask who
    leads.  If they asked again and again until somebody knows, thousands would keep
    the server from deciding in time.  So each is told once: its newest heartbeat is
    answered a second time, with nothing but that the server is decided, and it asks
    then.  Sessions with contenders are left out.  They send five heartbeats in a
    lease, and an answer that affirms nothing could end what they hold.

    Args:
        core: The election, to be read.
        clients: Where clients are reached.
    """

    def __init__(self, core: ElectionCore, clients: ClientTable) -> None:
        self._core = core
        self._clients = clients
        self._waiting: dict[str, int] = {}

    @property
    def due_ns(self) -> int | None:
        """Return since when somebody could be told, or None."""
        if not self._waiting or self._core.is_undecided:
            return None
        return next(iter(self._waiting.values()))

    def wait(self, client: ServedClient, turn: Turn) -> None:
        """Tell *client* as soon as the server is decided."""
        self._waiting.setdefault(client.session_id, turn.now_ns)

    def tell_some(self, turn: Turn) -> None:
        """Tell those who have waited longest, if it is time."""
        if self.due_ns is None:
            return
        for session_id in tuple(islice(self._waiting, _COUNT_PER_TURN)):
            del self._waiting[session_id]
            session = self._core.session(session_id)
            client = self._clients.get(session_id)
            if session is None or client is None or session.contenders:
                continue
            # No revisions: their bookkeeping takes one answer for each heartbeat.
            body = AcknowledgedHeartbeat(
                affirmations=[], is_undecided=False, revisions={}
            )
            reply = Reply(number=session.heartbeat_number, body=body)
            turn.outgoing.append(Send(peer=client.peer, message=reply))
