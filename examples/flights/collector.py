"""
A collector: contends for the job, and keeps the totals while it leads.

Run as a process of its own (``python -m examples.flights.collector --name a``) it
takes the name service from ``LODESTAR_*`` in its environment and reports what happens
to it on standard output, one JSON object to a line.

Theory of operation
-------------------
Granted leadership, a collector first reads the store, and only then confirms: no task
finds a leader that does not know what its predecessors counted.  While it leads, each
delivery becomes one commit under its leader session.  If the store says that the
leadership is over (`StaleEpochError`), the delivery is refused, and its sender
looks for the leader again.  If it is not known whether a commit took effect, the store
is read anew before anything else is counted.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from typing import final

import msgspec

from election import LeaderElection, LeaderSession, LeaderStore
from examples.flights.children import wait_until_told_to_end
from examples.flights.endpoint import Endpoint
from examples.flights.messages import (
    Accepted,
    Answer,
    Closed,
    Confirmed,
    Failed,
    Granted,
    Held,
    PartitionSummary,
    Refused,
    Report,
    Revoked,
    Serving,
)
from examples.flights.totals import Commit, TotalsCore, flight_count
from haservices import HAConfig, open_ha_services
from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    NameServiceError,
    StaleEpochError,
    SystemClock,
    UnreachableError,
    configure_logging,
)


__all__ = ["JOB_ID", "Collector", "read_store"]

JOB_ID = "flights"

_HOLD_SECONDS_MAX = 10.0


def read_store(store: LeaderStore) -> TotalsCore:
    """
    Return what *store* holds.

    Raises:
        UnreachableError: If the name service does not answer in time.
    """
    values = {path: store.get(path) for path in store.list()}
    return TotalsCore(
        {path: value for path, value in values.items() if value is not None}
    )


@final
class Collector:
    """
    One contender for the job, with an endpoint; serves until it is closed.

    Args:
        election: The contest for the job; not started yet, and closed with this.
        store: What the leaders of the job leave for each other.
        name: What people call it.
        report: Takes what happens to it; may be called from several threads.
        hold_batch_id: A rehearsal of the worst moment to die.  The first delivery of
            this batch is committed but not answered, for as long as it takes somebody
            to kill the process, up to ten seconds.  A leader that has counted nothing
            of an earlier batch has just taken over, and rehearses nothing.
    """

    def __init__(
        self,
        election: LeaderElection,
        store: LeaderStore,
        *,
        name: str,
        report: Callable[[Report], None],
        hold_batch_id: int | None = None,
    ) -> None:
        self._name = name
        self._report = report
        self._hold_batch_id = hold_batch_id
        self._has_counted_before = False
        self._clock = SystemClock()
        self._store = store
        self._election = election
        # Guards the two below, which the election's thread and the endpoint's share.
        self._lock = threading.Lock()
        self._session: LeaderSession | None = None
        self._core: TotalsCore | None = None
        self._is_closing = threading.Event()
        self._endpoint = Endpoint(self.deliver)
        self._report(
            Serving(
                name=name, at_ns=self._clock.now_ns(), address=self._endpoint.address
            )
        )
        self._election.start(self)

    def close(self) -> None:
        """Resign if leading, leave the election, and stop serving."""
        self._is_closing.set()
        self._election.close()
        self._endpoint.close()
        self._report(Closed(name=self._name, at_ns=self._clock.now_ns()))

    # -- the election's side -------------------------------------------------------

    def grant_leadership(self, session: LeaderSession) -> None:
        """Read what was counted before, then confirm."""
        core = read_store(self._store)
        with self._lock:
            self._session = session
            self._core = core
        self._report(
            Granted(
                name=self._name,
                at_ns=self._clock.now_ns(),
                epoch=session.epoch,
                flight_count=flight_count(core.totals),
            )
        )
        address = self._endpoint.address
        try:
            self._election.confirm_leadership(session.leader_session_id, address)
        except LeadershipLostError:
            return  # revoked meanwhile: the revocation is on its way to us
        except MayHaveHappenedError:
            # Confirming is safe to repeat, and nothing else tells whether it took.
            self._election.confirm_leadership(session.leader_session_id, address)
        self._report(
            Confirmed(
                name=self._name,
                at_ns=self._clock.now_ns(),
                epoch=session.epoch,
                address=address,
            )
        )

    def revoke_leadership(self) -> None:
        """Forget what was counted: from now on another may be counting."""
        with self._lock:
            session = self._session
            self._session = None
            self._core = None
        if session is not None:
            self._report(
                Revoked(
                    name=self._name,
                    at_ns=self._clock.now_ns(),
                    epoch=session.epoch,
                    is_resigned=self._is_closing.is_set(),
                )
            )

    def handle_error(self, error: Exception) -> None:
        """Report it; the election goes on."""
        self._report(
            Failed(name=self._name, at_ns=self._clock.now_ns(), error=str(error))
        )

    # -- the endpoint's side -------------------------------------------------------

    def deliver(self, summary: PartitionSummary) -> Answer:
        """Count *summary*, if we lead and it is not counted yet."""
        with self._lock:
            session = self._session
            if session is None or not self._election.has_leadership(
                session.leader_session_id
            ):
                return Refused(reason="not-leader", detail=f"{self._name} waits")
            if self._core is None:  # a commit went out, and its answer never came
                try:
                    self._core = read_store(self._store)
                except NameServiceError as error:
                    return Refused(reason="undecided", detail=str(error))
            plan = self._core.plan(summary, epoch=session.epoch)
            if not isinstance(plan, Commit):
                return plan
            refusal = self._commit(plan, session)
            if refusal is not None:
                return refusal
            answer = self._core.committed(plan)
        self._hold(summary, answer)
        return answer

    def _commit(self, commit: Commit, session: LeaderSession) -> Refused | None:
        """Commit, or say why not; forgets what may no longer be so."""
        try:
            self._store.commit(commit.operations, session=session)
        except StaleEpochError as error:
            self._core = None
            return Refused(reason="stale-epoch", detail=str(error))
        except (DidNotHappenError, UnreachableError) as error:
            self._core = None
            return Refused(reason="undecided", detail=str(error))
        except MayHaveHappenedError as error:
            self._core = None
            return Refused(reason="unknown-outcome", detail=str(error))
        return None

    def _hold(self, summary: PartitionSummary, answer: Accepted) -> None:
        """Keep back one answer, if the worst moment is to be rehearsed."""
        if summary.batch_id != self._hold_batch_id:
            self._has_counted_before = True
            return
        if not self._has_counted_before:
            return
        self._hold_batch_id = None
        self._report(
            Held(
                name=self._name,
                at_ns=self._clock.now_ns(),
                epoch=answer.epoch,
                batch_id=summary.batch_id,
                partition_id=summary.partition_id,
            )
        )
        self._is_closing.wait(_HOLD_SECONDS_MAX)


def main() -> None:
    """Collect until told to end."""
    parser = argparse.ArgumentParser(description="Collect totals while leading.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--hold-batch", type=int, help="rehearse the worst moment")
    arguments = parser.parse_args()
    configure_logging("warning")
    with open_ha_services(HAConfig.load()) as ha:
        collector = Collector(
            ha.get_leader_election(JOB_ID),
            ha.get_leader_store(JOB_ID),
            name=arguments.name,
            report=_print_report,
            hold_batch_id=arguments.hold_batch,
        )
        wait_until_told_to_end()
        collector.close()


def _print_report(report: Report) -> None:
    # One write per line: reports come from several threads.
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
