"""While the flights stream a node joins, and another leaves; no reader notices."""

from __future__ import annotations

import threading
import time
from typing import Final, final

from examples.flights.collector import JOB_ID
from examples.flights.state_processes import (
    NODE_COUNT,
    StateProcesses,
    StateProcessFailedError,
)
from examples.flights.states import AIRCRAFT
from examples.flights.timeline import Timeline
from haservices import HAConfig
from nameservice import NameServiceError
from queryablestate import QueryableStateClient, StateOperations


__all__ = ["Rescaling"]

_TIMEOUT_SECONDS: Final = 120.0
_STEP_COUNT: Final = 2  # one node joins, another one leaves


@final
class Rescaling:
    """
    Gives the job one more node, and then empties its first one.

    Args:
        config: The name service.
        state_processes: Starts and ends nodes.
        timeline: Told of what happens.
        batch_id: Begins before this batch.

    Attributes:
        problem: What went wrong, or None.
        steps: What was done, in order.
    """

    def __init__(
        self,
        config: HAConfig,
        state_processes: StateProcesses,
        timeline: Timeline,
        *,
        batch_id: int,
    ) -> None:
        self._config = config
        self._state_processes = state_processes
        self._timeline = timeline
        self._batch_id = batch_id
        self._thread = threading.Thread(target=self._run, name="rescaling", daemon=True)
        self._has_begun = False
        self.problem: Exception | None = None
        self.steps: list[str] = []

    @property
    def is_done(self) -> bool:
        """Return whether all of it was done."""
        return len(self.steps) == _STEP_COUNT

    def summary(self) -> str:
        """Return what it came to."""
        return f"Meanwhile {' and '.join(self.steps)}"

    def begin_batch(self, batch_id: int) -> None:
        """Begin if this is the batch."""
        if batch_id >= self._batch_id and not self._has_begun:
            self._has_begun = True
            self._thread.start()

    def close(self) -> None:
        """Wait until it is over."""
        if self._has_begun:
            self._thread.join(_TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            self._rescale()
        except (NameServiceError, StateProcessFailedError) as error:
            self.problem = error
            self._timeline.say("RESCALING", f"failed: {error}")

    def _rescale(self) -> None:
        with (
            QueryableStateClient(self._config) as client,
            StateOperations(self._config) as operations,
        ):
            client.wait_for_state(JOB_ID, AIRCRAFT.name, _TIMEOUT_SECONDS)
            joiner = self._state_processes.start_node()
            began = time.monotonic()
            operations.rescale(JOB_ID, node_count=NODE_COUNT + 1)
            operations.wait_until_rescaled(JOB_ID, timeout_seconds=_TIMEOUT_SECONDS)
            self._say(operations, f"{joiner} joined", began)
            leaver = self._state_processes.node_names[0]
            began = time.monotonic()
            operations.drain(leaver)
            operations.wait_until_drained(leaver, timeout_seconds=_TIMEOUT_SECONDS)
            self._state_processes.end_node(leaver)
            self._say(operations, f"{leaver} was drained and ended", began)

    def _say(self, operations: StateOperations, what: str, began: float) -> None:
        step = f"{what} in {time.monotonic() - began:.2f} s"
        counts = ", ".join(
            f"{node.node_id} {count}"
            for node in operations.nodes()
            if (count := node.key_group_counts.get(JOB_ID, 0))
        )
        self._timeline.say("RESCALED", f"{step}; key groups: {counts}")
        self.steps.append(step)
