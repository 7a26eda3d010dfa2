"""What goes wrong midway, on purpose, and never more than once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol, final

from examples.flights.children import ChildProcess
from examples.flights.collector import JOB_ID
from examples.flights.messages import Held, Report
from haservices import HAServices
from nameservice import SystemClock


__all__ = ["Disruption", "LeaderExpired", "LeaderKilled"]


class Disruption(Protocol):
    """Ends the leadership of the leader, somewhere in the middle of the stream."""

    def take_report(self, report: Report) -> None:
        """Take note of what happens to the collectors."""

    def begin_batch(self, batch_id: int) -> None:
        """Take note that a batch begins, before its first delivery."""


@final
class LeaderKilled:
    """
    Kills the leader's process at the worst moment: after a commit, before its answer.

    The collectors rehearse that moment (``hold_batch_id``).  Should it pass because
    another had just come to lead, the leader is killed when the next batch begins.
    """

    def __init__(
        self,
        processes: Mapping[str, ChildProcess],
        *,
        batch_id: int,
        leader_name: Callable[[], str | None],
        on_done: Callable[[int, str], None],
    ) -> None:
        self._processes = processes
        self._batch_id = batch_id
        self._leader_name = leader_name
        self._on_done = on_done
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._is_done = False

    def take_report(self, report: Report) -> None:
        """Kill the collector that has committed a delivery and not answered it yet."""
        if isinstance(report, Held):
            self._kill(
                report.name,
                f"after its commit of batch {report.batch_id} partition "
                f"{report.partition_id}, before its answer",
            )

    def begin_batch(self, batch_id: int) -> None:
        """Kill the leader if the moment has passed without it."""
        name = self._leader_name() if batch_id > self._batch_id else None
        if name is not None:
            self._kill(name, f"before batch {batch_id}")

    def _kill(self, name: str, when: str) -> None:
        with self._lock:
            if self._is_done:
                return
            self._is_done = True
        process = self._processes[name]
        at_ns = self._clock.now_ns()
        process.kill()
        self._on_done(
            at_ns, f"collector {name} (process {process.pid}) killed by SIGKILL {when}"
        )


@final
class LeaderExpired:
    """Expires the session of the leader, where it is a thread and cannot be killed."""

    def __init__(
        self,
        ha: HAServices,
        *,
        batch_id: int,
        leader_name: Callable[[], str | None],
        on_done: Callable[[int, str], None],
    ) -> None:
        self._operations = ha.operations
        self._batch_id = batch_id
        self._leader_name = leader_name
        self._on_done = on_done
        self._clock = SystemClock()
        self._is_done = False

    def take_report(self, report: Report) -> None:
        """Do nothing: the moment is a batch's beginning."""

    def begin_batch(self, batch_id: int) -> None:
        """Expire the leader's session if its moment has come."""
        if self._is_done or batch_id < self._batch_id:
            return
        leader = self._operations.contenders(JOB_ID)[0]
        if not leader.is_leader:
            return  # none to be expired: the next batch will find one
        self._is_done = True
        # Told first: the revocation follows at once, from another thread.
        self._on_done(
            self._clock.now_ns(),
            f"the session of collector {self._leader_name()} is expired before batch "
            f"{batch_id} (a thread of the driver cannot be killed)",
        )
        self._operations.expire(leader.session_id)
