"""Contending on ZooKeeper, as the application's threads see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from election.holder import HolderCore
from haservices.zookeeper.contender import ZooKeeperContender
from haservices.zookeeper.entry import Confirm
from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    get_logger,
    seconds_to_ns,
)
from nameservice.answer import wait_for_any


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from election.contender import ContenderInformation, LeaderSession
    from election.holder import DeliverGrant, DeliverRevoke
    from haservices.zookeeper.entry import HolderRequest
    from haservices.zookeeper.operations import ZooKeeperOperations
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.session import ZooKeeperSession


__all__ = ["ZooKeeperElectionDriver", "ZooKeeperElections"]


@final
class ZooKeeperElections:
    """The contenders of one session, and what their holders are asked.  Thread-safe."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._contenders: dict[ZooKeeperContender, str] = {}

    def add(self, contender: ZooKeeperContender, component_id: str) -> None:
        """Take *contender* for one of ours; on the loop."""
        self._contenders[contender] = component_id

    def remove(self, contender: ZooKeeperContender) -> None:
        """Take it for one of ours no more; on the loop."""
        self._contenders.pop(contender, None)

    def holder_of(
        self, component_id: str, session: LeaderSession
    ) -> ZooKeeperContender | None:
        """Return which of our contenders leads *component_id* under *session*."""
        for contender, contended_id in self._contenders.copy().items():
            if contended_id == component_id and contender.told == session:
                return contender
        return None

    def ask(self, contender: ZooKeeperContender, request: HolderRequest) -> None:
        """
        Have *contender* do *request*, and wait until it has.

        Raises:
            DidNotHappenError: It was not sent in time, and will not be.
            MayHaveHappenedError: It was sent, and not answered in time.
            LocalProtocolError: The services are closed.
        """
        session = self._session
        if session.closed.done():
            message = "these services are closed: open new ones"
            raise LocalProtocolError(message)
        seconds = session.config.connect_timeout_seconds
        session.loop.call(lambda: contender.request(request))
        wait_for_any((request.answer, session.closed), seconds)
        is_given_up = session.closed.done()
        if not request.answer.done() and not is_given_up:
            given_up = session.loop.submit(lambda: contender.give_up(request))
            wait_for_any((given_up, session.closed), seconds)
            is_given_up = given_up.done() or session.closed.done()
        if request.answer.done():
            request.answer.result()
        elif request.is_sent or not is_given_up:
            message = f"{session.config.url} did not answer within {seconds:g} s"
            raise MayHaveHappenedError(message)
        else:
            message = f"{session.config.url} was not reachable for {seconds:g} s"
            raise DidNotHappenError(message)


@final
class ZooKeeperElectionDriver:
    """A `LeaderElectionDriver` over a `ZooKeeperSession`."""

    def __init__(
        self,
        session: ZooKeeperSession,
        paths: ComponentPaths,
        elections: ZooKeeperElections,
        operations: ZooKeeperOperations,
        *,
        client: str,
    ) -> None:
        self._session = session
        self._paths = paths
        self._elections = elections
        self._operations = operations
        self._client = client
        config = session.config
        self._confirm_timeout_ns = seconds_to_ns(
            config.effective_confirm_timeout_seconds
        )
        self._holder = HolderCore(clears_on_suspended=config.on_suspended == "clear")
        self._contender: ZooKeeperContender | None = None

    def open(
        self,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Register the contender; return without waiting for the answer."""
        contender = ZooKeeperContender(
            self._session,
            self._paths,
            self._holder,
            client=self._client,
            confirm_timeout_ns=self._confirm_timeout_ns,
            deliver=deliver,
            fail=fail,
        )
        self._contender = contender

        def start() -> None:
            contender.start()
            if not contender.closed.done():
                self._elections.add(contender, self._paths.component_id)

        self._session.loop.call(start)

    def believes(self, leader_session_id: UUID) -> bool:
        """Return whether that leadership is ours now: a local clock check (E4)."""
        return self._holder.believes(
            leader_session_id, now_ns=self._session.clock.now_ns()
        )

    def belief_left_ns(self, leader_session_id: UUID) -> int:
        """Return how long `believes` stays true if nothing else comes, or 0."""
        return self._holder.belief_left_ns(
            leader_session_id, now_ns=self._session.clock.now_ns()
        )

    def confirm(self, leader_session_id: UUID, address: str) -> None:
        """Publish *address* under that leadership; block until answered (E3)."""
        assert self._contender is not None
        self._elections.ask(
            self._contender,
            Confirm(leader_session_id=leader_session_id, address=address),
        )

    def revoke_delivered(self) -> None:
        """Record that the contender's revoke callback has returned."""
        contender = self._contender
        assert contender is not None
        self._session.loop.call(contender.revoke_delivered)

    def withdraw(self) -> None:
        """Leave the election; block until the name service knows, within bounds."""
        contender = self._contender
        if contender is None:
            return

        def close() -> None:
            contender.close()
            self._elections.remove(contender)

        session = self._session
        session.loop.call(close)
        seconds = session.seconds_to_wait()
        wait_for_any((contender.closed, session.cut_off, session.closed), seconds)
        if not (contender.closed.done() or session.closed.done()):
            # The contender goes on trying; otherwise its entry ends with the session.
            session.withdrawal_unanswered()
            get_logger(
                component="election", component_id=self._paths.component_id
            ).info("withdrawal.unanswered")

    def contenders(self) -> Sequence[ContenderInformation]:
        """Return all contenders of the component, in order, the leader first."""
        return self._operations.contenders_of(self._paths)
