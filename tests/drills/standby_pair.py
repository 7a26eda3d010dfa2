"""A leading driver and a warm one, and a name service that they can be cut from."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any, Final, Self, final

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing import TCPProxy, ZooKeeperEnsemble
from queryablestate import QueryableStateClient
from queryablestate.local_cluster import LocalStateCluster
from tests.drills.processes import Server
from tests.sparkpipeline.standby_drivers import StandbyDriver
from tests.sparkpipeline.standby_totals import (
    check_database,
    check_files,
    expected_totals,
    hold_path,
    make_database,
    sink_calls,
)


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.sparkpipeline.standby_totals import HoldPoint


__all__ = ["BATCH_SECONDS", "JOB", "NameService", "StandbyPair"]

JOB: Final = "standby-app"
# A driver whose Python does not run for half of it ends its JVM, as it should: on a
# machine that is busy with other things, that is soon.
SESSION_TIMEOUT_SECONDS: Final = 6.0
BATCH_SECONDS: Final = 0.5


@final
class NameService:
    """
    A LeaderServer, or a ZooKeeper ensemble of three.

    Args:
        served: Which.
    """

    def __init__(self, served: Server | ZooKeeperEnsemble) -> None:
        self._served = served
        self._numbers = itertools.count(2)

    @property
    def config(self) -> HAConfig:
        """Return how a program reaches it."""
        url = self._served.url
        if isinstance(self._served, ZooKeeperEnsemble):
            url += "/drills"
        return _config(url)

    def cuttable(
        self, resources: contextlib.ExitStack
    ) -> tuple[HAConfig, Sequence[TCPProxy]]:
        """Return how a program reaches it over connections that can be cut."""
        if isinstance(self._served, ZooKeeperEnsemble):
            proxies = [
                resources.enter_context(TCPProxy(member.port))
                for member in self._served.members
            ]
            addresses = ",".join(proxy.address for proxy in proxies)
            return _config(f"zookeeper://{addresses}/drills"), proxies
        # The server tells its clients the port that it publishes on, and not the host.
        host = f"127.0.78.{next(self._numbers)}"
        proxies = [
            resources.enter_context(TCPProxy(port, host=host, port=port))
            for port in (self._served.port, self._served.publish_port)
        ]
        return _config(f"leaderserver://{host}:{self._served.port}"), proxies


def _config(url: str) -> HAConfig:
    return HAConfig(
        url=url,
        session_timeout_seconds=SESSION_TIMEOUT_SECONDS,
        connect_timeout_seconds=30.0,
    )


@final
class StandbyPair:
    """
    A driver that leads and a warm one, with three queries each: a context manager.

    They write SQLite through a guard, Lodestar's state, and files.

    Args:
        name_service: What they contend in.
        directory: Of all of it.
        is_cuttable: Whether they can be cut from the name service.
    """

    def __init__(
        self, name_service: NameService, directory: Path, *, is_cuttable: bool = False
    ) -> None:
        self._name_service = name_service
        self._directory = directory
        self._is_cuttable = is_cuttable
        self._resources = contextlib.ExitStack()
        self._names = (f"driver-{number}" for number in itertools.count())
        self._proxies: dict[str, Sequence[TCPProxy]] = {}
        self.drivers: list[StandbyDriver] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as resources:
            make_database(self._directory)
            self.ha: HAServices = resources.enter_context(
                open_ha_services(self._name_service.config)
            )
            resources.enter_context(LocalStateCluster(self.ha, nodes=2))
            self._client = resources.enter_context(
                QueryableStateClient(self.ha, deadline_seconds=30.0)
            )
            resources.callback(self._end)
            self._resources = resources
            self.start()
            self.leader = self.drivers[0]
            self.leader.wait_for("sink.written", 2)
            self.start()
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _end(self) -> None:
        for driver in self.drivers:
            driver.kill()

    @property
    def standby(self) -> StandbyDriver:
        """Return the one that does not lead."""
        (standby,) = (one for one in self.drivers if one is not self.leader)
        return standby

    def start(self) -> None:
        """Start another driver, and wait until it is warm."""
        name = next(self._names)
        config = self._name_service.config
        if self._is_cuttable:
            config, self._proxies[name] = self._name_service.cuttable(self._resources)
        driver = StandbyDriver(
            config,
            self._directory,
            name,
            job_id=JOB,
            sinks=["sqlite", "lodestar", "file"],
            batch_seconds=BATCH_SECONDS,
        )
        self.drivers.append(driver)
        driver.wait_for("standby.warm")

    def remove(self, driver: StandbyDriver) -> None:
        """Have no more to do with a driver, which has ended or ends now."""
        driver.kill()
        self.drivers.remove(driver)

    @contextlib.contextmanager
    def held(self, point: HoldPoint) -> Any:
        """Have the leader wait at *point* of a batch, until the block is left."""
        path = hold_path(self._directory, self.leader.name, point)
        path.touch()
        try:
            self.leader.wait_for("sink.held", self.leader.count("sink.held") + 1)
            yield
        finally:
            path.unlink()

    @contextlib.contextmanager
    def cut(self, driver: StandbyDriver) -> Any:
        """Cut *driver* from the name service for the length of the block."""
        for proxy in self._proxies[driver.name]:
            proxy.cut()
        try:
            yield
        finally:
            for proxy in self._proxies[driver.name]:
                proxy.heal(deliver=False)

    def wait_for_successor(self, since_seconds: float) -> float:
        """Return when the standby has written, in seconds from *since_seconds*."""
        standby = self.standby
        standby.wait_for("sink.written", standby.count("sink.written") + 1)
        self.leader = standby
        return time.monotonic() - since_seconds

    def wait_for_batches(self, count: int) -> None:
        """Return when the leader has written *count* more."""
        self.leader.wait_for("sink.written", self.leader.count("sink.written") + count)

    def check(self) -> None:
        """Compare what was written batch by batch with what is computed at once."""
        check_database(self._directory)

    def finish(self) -> int:
        """End all drivers, and check every sink; return the number of batches."""
        self.remove(self.standby)
        self.leader.leave()
        self.drivers.remove(self.leader)
        published = dict(self._client.scan(JOB, "totals"))
        batch_id = self._client.describe(JOB, "totals").batch_id
        assert batch_id is not None
        assert {key: row["total"] for key, row in published.items()} == (
            expected_totals(batch_id + 1)
        )
        check_files(self._directory)
        return check_database(self._directory)

    def repeated_count(self) -> int:
        """Return how often the guarded sink was called for a batch again."""
        calls = [batch_id for batch_id, _ in sink_calls(self._directory)]
        return len(calls) - len(set(calls))
