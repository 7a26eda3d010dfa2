"""Two Spark drivers, of which the one that leads is killed while it streams."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from examples.flights.asking import differences
from examples.flights.children import ChildProcess
from examples.flights.driver import DRIVER_JOB_ID
from examples.flights.states import CARRIERS
from examples.flights.timeline import Timeline
from haservices import HAServices
from nameservice import SystemClock
from queryablestate import QueryableStateClient, QueryableStateError


__all__ = ["StandbyDrivers", "StandbyFailedError"]

_NAMES: Final = ("one", "two")
_TIMEOUT_SECONDS: Final = 200.0
_POLL_SECONDS: Final = 0.05


class StandbyFailedError(Exception):
    """A driver did not do its part."""


@final
class StandbyDrivers:
    """
    Two drivers that start with the first half of the replay.  A context manager.

    Args:
        ha: The name service.
        timeline: Told of what happens.
        replay_directory: All that is replayed.
        directory: Where input, checkpoint and logs go.
        files_per_batch: How many files make one micro-batch.
        check: Called while we wait; raises to give up.
    """

    def __init__(
        self,
        ha: HAServices,
        timeline: Timeline,
        replay_directory: Path,
        directory: Path,
        *,
        files_per_batch: int,
        check: Callable[[], None],
    ) -> None:
        self._ha = ha
        self._timeline = timeline
        self._files = sorted(replay_directory.glob("*.parquet"))
        self._input = directory / "standby-input"
        self._directory = directory
        self._files_per_batch = files_per_batch
        self._check = check
        self._clock = SystemClock()
        self._drivers: dict[str, ChildProcess] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> StandbyDrivers:
        """Start both, which takes a while; return at once."""
        self._input.mkdir()
        half = len(self._files) // 2
        self._half_batch_id = -(-half // self._files_per_batch) - 1
        self._feed(self._files[:half])
        self._timeline.say("drivers", "two more of Spark start: one leads, one is warm")
        with contextlib.ExitStack() as stack:
            for name in _NAMES:
                self._drivers[name] = stack.enter_context(
                    contextlib.closing(self._spawn(name))
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self._stack.close()

    def disrupt(self, computed: Mapping[Any, Mapping[str, Any]]) -> str:
        """
        Kill the driver that leads, in the middle of a batch; return what came of it.

        Args:
            computed: What each carrier has flown in the end.

        Raises:
            StandbyFailedError: If the totals do not become equal to that.
        """
        with (
            self._ha.get_leader_retriever(DRIVER_JOB_ID) as retriever,
            QueryableStateClient(self._ha.config.url, deadline_seconds=30.0) as client,
        ):
            self._wait(
                "both drivers are warm, and half of the flights are counted",
                lambda: (
                    len(self._ha.operations.contenders(DRIVER_JOB_ID)) == len(_NAMES)
                    and self._batch_id(client) >= self._half_batch_id
                ),
            )
            before = retriever.wait_for_leader(_TIMEOUT_SECONDS)
            self._feed(self._files[len(self._files) // 2 :])
            process = self._drivers[before.address]
            at_ns = self._clock.now_ns()
            process.kill()
            self._timeline.say(
                "DISRUPTION",
                f"Spark driver {before.address} (process {process.pid}, and its JVM) "
                f"killed by SIGKILL after batch {self._half_batch_id}",
                at_ns,
            )
            self._wait(
                "the other driver has answered",
                lambda: self._batch_id(client) > self._half_batch_id,
            )
            seconds = (self._clock.now_ns() - at_ns) / 1e9
            after = retriever.wait_for_leader(_TIMEOUT_SECONDS)
            self._timeline.say(
                "drivers",
                f"{after.address} leads: its first batch is committed and answered "
                f"{seconds:.1f} s after the kill",
            )
            found: Sequence[str] = ()

            def is_equal() -> bool:
                nonlocal found
                found = differences(client, CARRIERS, computed, job_id=DRIVER_JOB_ID)
                return not found

            self._wait("the totals are equal", is_equal, lambda: f": {found[0]}")
        return (
            f"Spark driver {before.address} was killed; {after.address}, which was "
            f"warm, answered {seconds:.1f} s later.  Asked for all {len(computed)} "
            "carriers: EQUAL to a batch computation by Spark"
        )

    def _spawn(self, name: str) -> ChildProcess:
        return ChildProcess(
            "examples.flights.driver",
            [
                *("--name", name, "--input", str(self._input)),
                *("--checkpoint", str(self._directory / "standby-checkpoint")),
                *("--files-per-batch", str(self._files_per_batch)),
            ],
            environment={
                f"LODESTAR_{setting.upper()}": str(value)
                for setting, value in self._ha.config.to_settings().items()
            },
            log_file=self._directory / f"driver-{name}.log",
            on_line=lambda _line: None,
        )

    def _feed(self, files: Sequence[Path]) -> None:
        for file in files:
            part = self._input / f".{file.name}"
            shutil.copyfile(file, part)
            part.rename(self._input / file.name)

    def _batch_id(self, client: QueryableStateClient) -> int:
        """Return after which batch we are answered."""
        try:
            batch_id = client.describe(DRIVER_JOB_ID, CARRIERS.name).batch_id
        except QueryableStateError:
            return -1  # nothing was published yet
        return -1 if batch_id is None else batch_id

    def _wait(
        self,
        what: str,
        holds: Callable[[], bool],
        why: Callable[[], str] = lambda: "",
    ) -> None:
        """Return when *holds* does; nothing tells of it."""
        give_up_seconds = time.monotonic() + _TIMEOUT_SECONDS
        while not holds():
            self._check()
            if time.monotonic() > give_up_seconds:
                raise StandbyFailedError(f"it never was so that {what}{why()}")
            time.sleep(_POLL_SECONDS)  # noqa: TID251 - nothing tells of it
