"""
How long a streaming application is without a driver: until the next one is *answered*.

Workload: ``local[2]``, a streaming aggregation with RocksDB and changelog checkpoints,
published by ``publish_state`` into two nodes that are processes of their own; a batch
every 0.2 s.  By turns: a leader is killed (SIGKILL) and a driver started then, without
a warm-up; a leader is killed beside a warm standby; a leadership is handed over
(``lodestar revoke``).  Unit: milliseconds until ``lookup`` answers from a batch that
the next driver has committed, and the parts of it.  Bad: more than the lease (0.5 s) +
4 s after a kill, more than 3 s for a hand-over, medians (rule H2).
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, final

from benchmarks._harness import figure, report, sized
from benchmarks._state_cluster import StateCluster
from haservices import HAConfig, HAServices, open_ha_services
from queryablestate import QueryableStateClient
from tests.recording import wait_until
from tests.sparkpipeline.standby_drivers import StandbyDriver


_ROUND_COUNT: Final = sized(3, tiny=1)
_JOB: Final = "standby-app"
_POLL_SECONDS: Final = 0.01
_DEADLINE_SECONDS: Final = 120.0

_Way = Literal["cold", "warm", "hand-over"]

# Tiny runs do with one way: each starts another driver, which is a JVM.
_WAYS: Final[tuple[_Way, ...]] = sized(
    ("cold", "warm", "hand-over"), tiny=("hand-over",)
)


def run() -> None:
    """Measure and report."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with (
        ExitStack() as drivers,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        StateCluster(node_count=2) as cluster,
        open_ha_services(cluster.url) as ha,
        QueryableStateClient(ha, deadline_seconds=30.0) as client,
    ):
        measuring = _Measuring(ha, client, Path(directory), drivers)
        measuring.begin()
        for _ in range(_ROUND_COUNT):
            for way in _WAYS:
                measuring.measure(way)
        drivers.close()
        report(
            "standby",
            [figure(name, "ms", values) for name, values in measuring.ms.items()],
        )


@final
class _Measuring:
    def __init__(
        self,
        ha: HAServices,
        client: QueryableStateClient,
        directory: Path,
        drivers: ExitStack,
    ) -> None:
        self._ha = ha
        self._client = client
        self._directory = directory
        self._drivers = drivers
        self._names = (f"driver-{number}" for number in itertools.count())
        self.ms: dict[str, list[float]] = defaultdict(list)

    def begin(self) -> None:
        """Have a driver lead that answers."""
        self._leader = self._start(is_cold=False)
        self._leader.wait_for("query.progressed")
        self._wait_for_batch(after=1)

    def measure(self, way: _Way) -> None:
        """Replace the leader once."""
        self._wait_for_batch(after=self._batch_id() + 3)
        before = self._leader
        if way == "cold":
            began_seconds = time.time()
            before.kill()
            successor = self._start(is_cold=True)
        else:
            successor = self._start(is_cold=False)
            successor.wait_for("standby.warm")
            # Warm, it contends; of one alone nothing could be taken over.
            wait_until(lambda: len(self._ha.operations.contenders(_JOB)) == 2)
            began_seconds = time.time()
            if way == "warm":
                before.kill()
            else:
                self._ha.operations.revoke(_JOB)
        (granted,) = successor.wait_for("standby.leading", 1, _DEADLINE_SECONDS)
        # All that was decided before is applied by the time that another leads; after a
        # revocation the leader still finishes a batch, before its successor starts.
        batch_id = self._batch_id()
        (started,) = successor.wait_for("standby.started", 1, _DEADLINE_SECONDS)
        if way == "hand-over":
            batch_id = self._batch_id()
        answered_seconds = self._wait_for_batch(after=batch_id)
        before.kill()
        self._leader = successor
        for name, seconds in (
            ("answered", answered_seconds - began_seconds),
            ("until it leads", granted["timestamp"] - began_seconds),
            ("until its query runs", started["timestamp"] - granted["timestamp"]),
            ("until its batch is answered", answered_seconds - started["timestamp"]),
        ):
            self.ms[f"{way}: {name}"].append(seconds * 1_000)
        (progress,) = successor.wait_for("query.progressed", 1, _DEADLINE_SECONDS)
        for part, milliseconds in progress["duration_ms"].items():
            self.ms[f"{way}: first batch, {part}"].append(milliseconds)

    def _start(self, *, is_cold: bool) -> StandbyDriver:
        driver = StandbyDriver(
            HAConfig(url=self._ha.config.url),
            self._directory,
            next(self._names),
            job_id=_JOB,
            sinks=["lodestar"],
            batch_seconds=0.2,
            warm_up_seconds=0.001 if is_cold else 60.0,
            tells_progress=True,
        )
        return self._drivers.enter_context(driver)

    def _batch_id(self) -> int:
        batch_id = self._client.lookup(_JOB, "totals", "k1").batch_id
        assert batch_id is not None
        return batch_id

    def _wait_for_batch(self, *, after: int) -> float:
        """Return when, by the wall clock, a batch above *after* is answered."""
        deadline_seconds = time.time() + _DEADLINE_SECONDS
        while self._batch_id() <= after:
            assert time.time() < deadline_seconds
            threading.Event().wait(_POLL_SECONDS)
        return time.time()
