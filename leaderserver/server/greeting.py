"""`Greeting`: which client gets a session, and what it is told of it (rule N4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from election.core import ElectionCore
from election.events import SessionRequested
from leaderserver.messages import Failure, Hello, RefusedHello, Welcome
from leaderserver.server.answering import Answering
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.memory_plan import SESSION_COST_BYTES, name_cost_bytes
from leaderserver.server.core.state_budget import StateBudget
from leaderserver.server.core.state_cost import NO_ROOM
from leaderserver.server.core.turn import Send, Turn
from leaderserver.server.service_config import ServiceConfig


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from zmqtransport import Principal


__all__ = ["Greeting"]


@final
class Greeting:
    """
    Whether a client that says hello gets a session, and what it is told.

    Args:
        config: Limits.
        core: The election, to be read.
        clients: Where clients are reached.
        budget: What sessions may cost.
        answering: What counts.
        is_durable: Whether epochs and stores outlive this process.
        draw_secret: Returns that many bytes that cannot be guessed.
        now_ns: When the service starts.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        core: ElectionCore,
        clients: ClientTable,
        budget: StateBudget,
        answering: Answering,
        is_durable: bool,
        draw_secret: Callable[[int], bytes],
        now_ns: int,
    ) -> None:
        self._config = config
        self._core = core
        self._clients = clients
        self._budget = budget
        self._counts = answering.counts
        self._is_durable = is_durable
        self._draw_secret = draw_secret
        self._incarnation = core.incarnation
        self._started_ns = now_ns

    def admit(
        self,
        message: Hello,
        peer: Hashable,
        connection: Hashable,
        principal: Principal,
        turn: Turn,
    ) -> SessionRequested | None:
        """Return the session that *message* asks for, or None if it is answered."""
        known = self._clients.by_nonce(peer, message.nonce)
        if known is not None:
            if known.principal == principal:
                self.welcome(known, turn)
            return None
        if not principal.may_observe:
            self._refuse(
                message,
                peer,
                Failure.NOT_ALLOWED,
                f"{principal.name} may do nothing",
                turn,
            )
            return None
        config = self._config
        if (
            self._clients.count_over(connection)
            >= config.session_count_per_connection_max
        ):
            self._refuse(
                message,
                peer,
                Failure.LIMIT_REACHED,
                "this connection has as many sessions as it may have",
                turn,
            )
            return None
        if not self._budget.admits(_cost_bytes(message), now_ns=turn.now_ns):
            self._refuse(message, peer, Failure.LIMIT_REACHED, NO_ROOM, turn)
            return None
        session_timeout_ns = min(
            max(message.session_timeout_ns, config.session_timeout_ns_min),
            config.session_timeout_ns_max,
        )
        lease_ns = min(
            max(message.lease_ns, config.lease_ns_min),
            config.lease_ns_max,
            session_timeout_ns // 2,
        )
        client = ServedClient(
            session_id=self._draw_secret(8).hex(),
            secret=self._draw_secret(32),
            nonce=message.nonce,
            principal=principal,
            opened_by=peer,
            peer=peer,
        )
        shown = message.client if message.client.isprintable() else repr(message.client)
        name = f"{principal.name}, {shown}" if principal.public_key else shown
        event = SessionRequested(
            session_id=client.session_id,
            session_timeout_ns=session_timeout_ns,
            lease_ns=lease_ns,
            client=name,
        )
        self._clients.add(client)
        self._clients.move(client, peer, connection)
        return event

    def refused(self, message: Hello) -> None:
        """Give back what the session of *message* was to cost: it was refused."""
        self._budget.give_back(_cost_bytes(message))

    def welcome(self, client: ServedClient, turn: Turn) -> None:
        """Tell a client which session it has."""
        session = self._core.session(client.session_id)
        assert session is not None
        may_hear = client.principal.observes_all
        welcome = Welcome(
            nonce=client.nonce,
            secret=client.secret,
            session_id=client.session_id,
            session_timeout_ns=session.session_timeout_ns,
            lease_ns=session.lease_ns,
            incarnation=self._incarnation,
            publish_port=self._config.publish_port if may_hear else 0,
            publish_address=self._config.publish_address if may_hear else None,
            is_durable=self._is_durable,
            server_id=self._config.server_id,
            uptime_ns=max(0, session.opened_ns - self._started_ns),
        )
        turn.outgoing.append(Send(peer=client.peer, message=welcome))

    def _refuse(
        self, message: Hello, peer: Hashable, reason: str, detail: str, turn: Turn
    ) -> None:
        self._counts["sessions_refused"] += 1
        refused = RefusedHello(nonce=message.nonce, reason=reason, detail=detail)
        turn.outgoing.append(Send(peer=peer, message=refused))


def _cost_bytes(message: Hello) -> int:
    """Return what the session that *message* asks for costs."""
    return SESSION_COST_BYTES + name_cost_bytes(message.client)
