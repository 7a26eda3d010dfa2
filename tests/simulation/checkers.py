"""
What must hold, whatever happens: each check names its rule.

The checkers see everything that no node can see: real time, all clocks, all beliefs.
They keep books of their own and trust nothing that a core says of itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final
from uuid import UUID

from attrs import define, frozen

from election.core import ElectionCore
from leaderserver.messages import Granted, Published
from leaderserver.server.core.turn import Outgoing
from retrieval import LeaderInformation
from tests.simulation.store_books import StoreBooks


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from election.contender import LeaderSession


__all__ = ["Checker", "ViolationError"]


class ViolationError(AssertionError):
    """A rule does not hold."""


@frozen
class _Grant:
    """A leadership that some server granted: its order, identity and server."""

    epoch: int
    leader_session_id: UUID
    server: int


@define
class _Told:
    """What one retriever was told last."""

    leader: LeaderInformation | None = None
    epoch_max: int = 0


@final
class Checker:
    """
    Books over one run.

    Attributes:
        counts: How often each rule was checked.
        store: The books of the leader stores.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._beliefs: dict[str, dict[str, tuple[int, UUID]]] = {}
        self._grants: dict[str, dict[UUID, _Grant]] = {}
        self._newest: dict[str, _Grant] = {}
        self._registered: dict[str, str] = {}
        self._asked: dict[tuple[UUID, str], str] = {}
        self._told: dict[str, _Told] = {}
        self._ranks: dict[str, tuple[int, bool, int]] = {}
        self._callbacks: dict[str, LeaderSession | None] = {}
        self._recorded_epochs: dict[str, int] = {}
        self.store = StoreBooks(self.require)

    def require(self, rule: str, holds: bool, what: str = "") -> None:
        """Raise unless *holds*."""
        self.counts[rule] += 1
        if not holds:
            raise ViolationError(f"{rule}: {what}")

    # -- E4: belief ----------------------------------------------------------------

    def believes(
        self,
        component_id: str,
        contender: str,
        leader_session_id: UUID,
        *,
        now_ns: int,
        until_ns: int,
    ) -> None:
        """
        Take note that *contender* believes from now until a real moment.

        A belief changes only in a step of its holder, and between two steps it can
        only end.  So another that believes longer than now overlaps, and only then.
        """
        others = self._beliefs.setdefault(component_id, {})
        if until_ns > now_ns:
            for other, (other_until_ns, other_id) in tuple(others.items()):
                if other_until_ns <= now_ns:
                    del others[other]
                self.require(
                    "E4 no two holders believe at once",
                    other == contender or other_until_ns <= now_ns,
                    f"{contender} believes {leader_session_id} of {component_id} from "
                    f"{now_ns} to {until_ns}, {other} believes {other_id} until "
                    f"{other_until_ns}",
                )
        others[contender] = (until_ns, leader_session_id)

    def disbelieves(self, component_id: str, contender: str) -> None:
        """Take note that *contender* believes nothing from now on."""
        self._beliefs.setdefault(component_id, {}).pop(contender, None)

    # -- E1, E2, E3: what the server does ------------------------------------------

    def registers(self, component_id: str, contender_id: str) -> None:
        """Take note that an application wants *contender_id* to contend."""
        self._registered[contender_id] = component_id

    def asks_to_confirm(
        self, component_id: str, leader_session_id: UUID, address: str
    ) -> None:
        """Take note that an application confirms a leadership."""
        self._asked[leader_session_id, address] = component_id

    def server_did(
        self, server: int, core: ElectionCore, outgoing: Sequence[Outgoing]
    ) -> int:
        """
        Look at what a server does in one step.

        Returns:
            How many new leaderships it granted.
        """
        core.check_invariants()
        self.counts["invariants of ElectionCore"] += 1
        new_count = 0
        published: dict[str, Published] = {}
        for item in outgoing:
            message = item.message
            if isinstance(message, Granted):
                record = message.affirmation
                grant = _Grant(record.epoch, record.leader_session_id, server)
                new_count += self._server_grants(record.component_id, grant, core)
            elif isinstance(message, Published):
                published[message.component_id] = message
        for message in published.values():
            if message.publication.address is not None:
                self._server_publishes(message, core)
        return new_count

    def _server_grants(
        self, component_id: str, grant: _Grant, core: ElectionCore
    ) -> int:
        self.require(
            "E9 nothing is granted while undecided", not core.is_undecided, str(grant)
        )
        known = self._grants.setdefault(component_id, {})
        newest = self._newest.get(component_id)
        before = known.get(grant.leader_session_id)
        if before is not None:
            self.require(
                "E9 a leadership is reinstated under its own epoch",
                before.epoch == grant.epoch and before.server < grant.server,
                f"{component_id}: {before} came again as {grant}",
            )
            recorded = self._recorded_epochs.get(component_id, 0)
            self.require(
                "E9 no claim is reinstated against the record",
                grant.epoch >= recorded,
                f"{component_id}: {grant} came again, epoch {recorded} is on record",
            )
            known[grant.leader_session_id] = grant
            return 0
        self.require(
            "E2 epochs rise",
            newest is None or grant.epoch > newest.epoch,
            f"{component_id}: {grant} after {newest}",
        )
        known[grant.leader_session_id] = grant
        self._newest[component_id] = grant
        self._recorded_epochs[component_id] = grant.epoch
        return 1

    def _server_publishes(self, message: Published, core: ElectionCore) -> None:
        record = message.publication
        component = core.component(message.component_id)
        leadership = None if component is None else component.leadership
        self.require(
            "E3 only a present leadership is published",
            component is not None
            and leadership is not None
            and leadership.epoch == record.epoch
            and leadership.contender_id in component.contenders
            and core.session(leadership.session_id) is not None,
            str(record),
        )
        assert leadership is not None
        self.require(
            "E1 who leads has asked to contend",
            self._registered.get(leadership.contender_id) == message.component_id,
            leadership.contender_id,
        )
        self._check_confirmed(record.leader_session_id, record.address)

    def _check_confirmed(
        self, leader_session_id: UUID | None, address: str | None
    ) -> None:
        asked = (
            leader_session_id is not None
            and address is not None
            and (leader_session_id, address) in self._asked
        )
        self.require(
            "E3 what is published was confirmed",
            asked,
            f"{leader_session_id} at {address}",
        )

    # -- L2: the store -------------------------------------------------------------

    def store_lost(self) -> None:
        """Take note that everything stored is gone."""
        self.store.lost()
        self._recorded_epochs.clear()

    def epochs_begin_anew(self) -> None:
        """Take note that no server knows any more which epochs there were."""
        self._newest.clear()

    # -- R2, R3: retrievers --------------------------------------------------------

    def retriever_took(self, retriever: str, rank: tuple[int, bool, int]) -> None:
        """Take note of the newest publication that a retriever knows."""
        before = self._ranks.get(retriever)
        self.require(
            "R3 no retriever goes back",
            before is None or rank >= before,
            f"{retriever}: {rank} after {before}",
        )
        self._ranks[retriever] = rank

    def retriever_told(self, retriever: str, leader: LeaderInformation | None) -> None:
        """Take note of what a listener is told."""
        told = self._told.setdefault(retriever, _Told())
        self.require(
            "R2 a listener is told of differences only",
            _identity(told.leader) != _identity(leader),
            f"{retriever}: {leader} twice",
        )
        told.leader = leader
        if leader is None:
            return
        self.require(
            "R3 no listener goes back",
            leader.epoch >= told.epoch_max,
            f"{retriever}: {leader} after epoch {told.epoch_max}",
        )
        told.epoch_max = leader.epoch
        self._check_confirmed(leader.leader_session_id, leader.address)

    # -- E6: callbacks -------------------------------------------------------------

    def granted(self, contender: str, session: LeaderSession) -> None:
        """Take note that a grant callback begins."""
        held = self._callbacks.get(contender)
        self.require(
            "E6 grant and revoke alternate", held is None, f"{contender}: {session}"
        )
        self._callbacks[contender] = session

    def revoked(self, contender: str) -> None:
        """Take note that a revoke callback begins."""
        held = self._callbacks.get(contender)
        self.require("E6 grant and revoke alternate", held is not None, contender)
        self._callbacks[contender] = None

    @property
    def leaderships(self) -> Iterable[tuple[str, _Grant]]:
        """Return every leadership that was ever granted, with its component."""
        for component_id, grants in self._grants.items():
            for grant in grants.values():
                yield component_id, grant


def _identity(leader: LeaderInformation | None) -> tuple[str, UUID] | None:
    return None if leader is None else (leader.address, leader.leader_session_id)
