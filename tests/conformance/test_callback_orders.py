"""E4, E6, E7: whatever order things come in, what one contender sees holds together."""

from __future__ import annotations

import contextlib
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, final

import pytest

from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    UnreachableError,
)
from tests.conformance.candidates import JOB
from tests.conformance.harness import PATIENT
from tests.recording import WAIT_SECONDS, wait_until


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from election import LeaderElection, LeaderSession
    from haservices import HAServices
    from tests.conformance.harness import Harness


SEEDS: Final = range(12)
_REFUSALS: Final = (
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    UnreachableError,
)


@final
class Diarist:
    """
    A contender that writes down what it sees, and what it should never see.

    Attributes:
        problems: What broke a rule, in words.
        past: Every leadership that it was granted.
        close_returned: Set by the closer, once close had returned.
    """

    def __init__(
        self,
        ha: HAServices,
        election: LeaderElection,
        believers: dict[Diarist, None],
        *,
        closes_itself: bool,
    ) -> None:
        self.ha = ha
        self.election = election
        self.problems: list[str] = []
        self.past: list[LeaderSession] = []
        self.close_returned = threading.Event()
        self.actions: list[Future[None]] = []
        self._believers = believers
        self._closes_itself = closes_itself
        self._held: LeaderSession | None = None
        self._inside = threading.Lock()

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if not self._inside.acquire(blocking=False):
            self.problems.append(f"{what} ran beside another callback")
            yield
            return
        try:
            if self.close_returned.is_set():
                self.problems.append(f"{what} began after close had returned")
            yield
        finally:
            self._inside.release()

    def grant_leadership(self, session: LeaderSession) -> None:
        """Confirm, and ask for an action."""
        with self._alone("a grant"):
            if self._held is not None:
                self.problems.append("a grant followed a grant")
            if self.past and session.epoch < self.past[-1].epoch:
                self.problems.append("an epoch fell")
            self._held = session
            self.past.append(session)
            with contextlib.suppress(*_REFUSALS):
                self.election.confirm_leadership(session.leader_session_id, "a:1")
            with contextlib.suppress(*_REFUSALS):
                self.actions.append(
                    self.election.run_if_leader(
                        session.leader_session_id, lambda: self._act(session)
                    )
                )
            if self._closes_itself:
                self.election.close()

    def revoke_leadership(self) -> None:
        """Look whether belief is over."""
        with self._alone("a revocation"):
            if self._held is None:
                self.problems.append("a revocation followed no grant")
            elif self.election.has_leadership(self._held.leader_session_id):
                self.problems.append("it believed while it was revoked")
            self._held = None

    def handle_error(self, error: Exception) -> None:
        """Take what the network may do to us."""
        if not isinstance(error, _REFUSALS):
            self.problems.append(f"an error came: {error!r}")

    def _act(self, session: LeaderSession) -> None:
        with self._alone("an action"):
            if self._held != session:
                self.problems.append("an action ran under another leadership")
            self._believers[self] = None
            if len(self._believers) > 1:
                self.problems.append("actions of two leaders ran at once")
            # Round trips: time enough for one that does not wait for the action.
            with contextlib.suppress(*_REFUSALS):
                for _ in range(2):
                    self.election.contenders()
            del self._believers[self]


class TestWhateverTheOrder:
    @pytest.mark.proves("E4", "E6", "E7")
    @pytest.mark.parametrize("seed", SEEDS)
    def test_callbacks_hold_together(self, harness: Harness, seed: int) -> None:
        """
        E4, E6, E7: closes, revocations, transfers and grants from many threads at once.

        Grant and revoke alternate, one callback or action runs at a time, none after
        close has returned, no two leaders act at once, and none is left behind.
        """
        rng = random.Random(seed)
        believers: dict[Diarist, None] = {}
        diarists: list[Diarist] = []
        shared = harness.open(**PATIENT)
        for number in range(5):
            ha = shared if number < 2 else harness.open(**PATIENT)
            election = ha.get_leader_election(JOB)
            diarist = Diarist(
                ha, election, believers, closes_itself=rng.random() < 0.15
            )
            diarists.append(diarist)
            election.start(diarist)
        operations = harness.operator.operations

        def close_election(diarist: Diarist) -> None:
            diarist.election.close()
            diarist.close_returned.set()

        def close_services(diarist: Diarist) -> None:
            diarist.ha.close()
            diarist.close_returned.set()

        def revoke(_: Diarist) -> None:
            operations.revoke(JOB)

        def transfer(_: Diarist) -> None:
            queue = operations.contenders(JOB)
            if queue:
                operations.transfer(JOB, queue[-1].contender_id)

        def expire(_: Diarist) -> None:
            queue = operations.contenders(JOB)
            if queue:
                operations.expire(queue[0].session_id)

        acts: list[Callable[[Diarist], None]] = [
            *(revoke, revoke, revoke, transfer, transfer, transfer, expire),
            *(close_election, close_services),
        ]
        plans = [
            [(rng.choice(acts), rng.choice(diarists)) for _ in range(7)]
            for _ in range(3)
        ]

        def carry_out(
            plan: list[tuple[Callable[[Diarist], None], Diarist]],
        ) -> None:
            for act, diarist in plan:
                with contextlib.suppress(*_REFUSALS):
                    act(diarist)

        with ThreadPoolExecutor(len(plans)) as pool:
            list(pool.map(carry_out, plans, timeout=WAIT_SECONDS))
        for diarist in diarists:
            close_election(diarist)
        wait_until(lambda: not operations.contenders(JOB))
        assert [diarist.problems for diarist in diarists] == [[]] * len(diarists)
        for diarist in diarists:
            for action in diarist.actions:
                # Done, or refused: nothing waits for an election that is over.
                assert action.exception(WAIT_SECONDS) is None or isinstance(
                    action.exception(), (LeadershipLostError, LocalProtocolError)
                )
            assert not any(
                diarist.election.has_leadership(session.leader_session_id)
                for session in diarist.past
            )
