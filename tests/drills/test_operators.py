"""Operators who hand leaderships over, revoke and expire, while all else fails."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any, Final, final

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing import TCPProxy
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    NoLeaderError,
    UnreachableError,
)
from tests.drills.processes import Contender, now_ns
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from haservices.testing import ZooKeeperServer
    from tests.drills.beliefs import Span
    from tests.drills.processes import Server
    from tests.drills.reporting import Report


JOB: Final = "flights"
CLIENT_HOST: Final = "127.0.78.{}"
CONTENDER_COUNT: Final = 4
SECONDS: Final = 40.0
SEED: Final = 9


@final
class Chaos:
    """
    Contenders, some behind lines that can be cut, and what is done to them.

    Args:
        directory: Where journals and logs go.
        seed: Of everything random.
        operator: Does what operators do.
        session_timeout_seconds: Of the contenders.
        open_line: Returns where a contender finds the name service, and what stands
            between.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        operator: HAServices,
        session_timeout_seconds: float,
        open_line: Callable[[int], tuple[str, Sequence[TCPProxy]]],
    ) -> None:
        self.done: dict[str, int] = {}
        self._rng = random.Random(seed)
        self._directory = directory
        self._operator = operator
        self._timeout_seconds = session_timeout_seconds
        self._open_line = open_line
        self._resources = contextlib.ExitStack()
        self._lines: dict[Contender, Sequence[TCPProxy]] = {}
        # What is to be undone, and when.
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._paused: set[Contender] = set()
        for _ in range(CONTENDER_COUNT):
            self._add()

    def _add(self) -> None:
        number = len(self._lines)
        url, proxies = self._open_line(number)
        for proxy in proxies:
            self._resources.enter_context(proxy)
        contender = self._resources.enter_context(
            Contender(
                f"contender-{number}",
                self._directory,
                url=url,
                job_ids=[JOB],
                lease_seconds=0.4,
                session_timeout_seconds=self._timeout_seconds,
                connect_timeout_seconds=30.0,
            )
        )
        contender.wait_for("ready")
        self._lines[contender] = proxies

    # -- what happens ------------------------------------------------------------------

    def run(self, seconds: float, faults: Sequence[Callable[[], None]]) -> None:
        """Have *faults* happen at random for *seconds*, then undo all that lasts."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            fault = self._rng.choice(faults)
            with contextlib.suppress(
                DidNotHappenError, MayHaveHappenedError, NoLeaderError, UnreachableError
            ):
                fault()
                name = fault.__name__
                self.done[name] = self.done.get(name, 0) + 1
            time.sleep(self._rng.expovariate(5.0))  # noqa: TID251 - faults take time
            self._undo_until(time.monotonic())
        self._undo_until(float("inf"))

    def _undo_until(self, due: float) -> None:
        for each in [each for each in self._undo if each[0] <= due]:
            self._undo.remove(each)
            each[1]()

    def _later(self, leases_max: float, action: Callable[[], object]) -> None:
        seconds = self._rng.uniform(0.0, leases_max) * self._timeout_seconds
        self._undo.append((time.monotonic() + seconds, action))

    def transfer(self) -> None:
        """Hand leadership to somebody in the queue."""
        queue = self._operator.operations.contenders(JOB)
        if queue:
            chosen = self._rng.choice(queue)
            self._operator.operations.transfer(JOB, chosen.contender_id)

    def revoke(self) -> None:
        """End the present leadership."""
        self._operator.operations.revoke(JOB)

    def expire(self) -> None:
        """End the session of somebody in the queue."""
        queue = self._operator.operations.contenders(JOB)
        if queue:
            self._operator.operations.expire(self._rng.choice(queue).session_id)

    def stop(self) -> None:
        """Stop a contender for up to one and a half session timeouts."""
        contender = self._rng.choice(list(self._lines))
        if contender in self._paused:
            return
        self._paused.add(contender)
        contender.pause()

        def go_on() -> None:
            self._paused.discard(contender)
            contender.resume()

        self._later(1.5, go_on)

    def cut(self) -> None:
        """Pass nothing on between a contender and the name service for a while."""
        proxies = self._rng.choice(list(self._lines.values()))
        for proxy in proxies:
            proxy.cut()
        self._later(1.5, lambda: _heal(proxies, deliver=self._rng.random() < 0.5))

    def cut_replies(self) -> None:
        """Pass on only what a contender says."""
        proxies = self._rng.choice(list(self._lines.values()))
        for proxy in proxies:
            proxy.cut_replies()
        self._later(1.0, lambda: _heal(proxies, deliver=True))

    def reset(self) -> None:
        """Break a contender's connections."""
        for proxy in self._rng.choice(list(self._lines.values())):
            proxy.reset()

    # -- afterwards --------------------------------------------------------------------

    def wait_until_one_leads(self) -> None:
        """Return once all are in the queue, and the first has confirmed."""

        def is_calm() -> bool:
            try:
                queue = self._operator.operations.contenders(JOB)
            except UnreachableError:
                return False
            return (
                len(queue) == CONTENDER_COUNT
                and queue[0].is_leader
                and (queue[0].address is not None)
            )

        wait_until(is_calm, timeout_seconds=60.0)

    def end(self) -> list[Span]:
        """Kill everybody; return what they believed."""
        spans = []
        for contender in self._lines:
            contender.kill()
            spans += list(contender.spans())
        self._resources.close()
        return spans


def _heal(proxies: Sequence[TCPProxy], *, deliver: bool) -> None:
    for proxy in proxies:
        proxy.heal(deliver=deliver)


def drill(chaos: Chaos, report: Report, faults: Sequence[Callable[[], None]]) -> None:
    """Have *faults* happen, and check what everybody believed meanwhile."""
    began_ns = now_ns()
    try:
        chaos.run(SECONDS, faults)
        calm_ns = now_ns()
        chaos.wait_until_one_leads()
        report.say(
            f"{sum(chaos.done.values())} faults in {(calm_ns - began_ns) / 1e9:.0f} s: "
            + ", ".join(
                f"{name} {count}" for name, count in sorted(chaos.done.items())
            ),
            faults=chaos.done,
        )
        report.say(
            f"one led, and all others queued, {(now_ns() - calm_ns) / 1e9:.3f} s after "
            "the last fault",
            calm_seconds=(now_ns() - calm_ns) / 1e9,
        )
    finally:
        spans = chaos.end()
    report.check_beliefs(spans)


@pytest.mark.proves("E1", "E4", "E8", "N6")
@pytest.mark.drill
def test_operators_amid_faults(server: Server, tmp_path: Path, report: Report) -> None:
    """E1, E4, E8, N6: transfers, revocations, expiries amid stops, cuts, restarts."""

    def open_line(number: int) -> tuple[str, Sequence[TCPProxy]]:
        host = CLIENT_HOST.format(number + 2)
        proxies = [
            TCPProxy(port, host=host, port=port)
            for port in (server.port, server.publish_port)
        ]
        return f"leaderserver://{host}:{server.port}", proxies

    def restart_server() -> None:
        server.restart()

    def stop_server() -> None:
        server.process.pause()
        time.sleep(rng.uniform(0.0, 0.8))  # noqa: TID251 - the stop takes time
        server.process.resume()

    rng = random.Random(SEED)
    settings: dict[str, Any] = {"url": server.url, "connect_timeout_seconds": 2.0}
    with open_ha_services(HAConfig(**settings)) as operator:
        chaos = Chaos(
            tmp_path,
            seed=SEED,
            operator=operator,
            session_timeout_seconds=1.5,
            open_line=open_line,
        )
        drill(
            chaos,
            report,
            [
                *(chaos.transfer, chaos.transfer, chaos.transfer, chaos.revoke),
                *(chaos.expire, chaos.stop, chaos.stop, chaos.cut),
                *(chaos.cut_replies, chaos.reset, restart_server, stop_server),
            ],
        )


@pytest.mark.proves("E1", "E4", "E8", "N6")
@pytest.mark.drill
def test_operators_amid_faults_on_zookeeper(
    zookeeper: ZooKeeperServer, tmp_path: Path, report: Report
) -> None:
    """E1, E4, E8, N6: transfers, revocations and expiries amid stops and cuts."""
    path = "drills/operators"

    def open_line(number: int) -> tuple[str, Sequence[TCPProxy]]:
        proxy = TCPProxy(zookeeper.port)
        return f"zookeeper://{proxy.address}/{path}", [proxy]

    settings: dict[str, Any] = {
        "url": f"{zookeeper.url}/{path}",
        "connect_timeout_seconds": 5.0,
    }
    with open_ha_services(HAConfig(**settings)) as operator:
        chaos = Chaos(
            tmp_path,
            seed=SEED,
            operator=operator,
            session_timeout_seconds=3.0,
            open_line=open_line,
        )
        drill(
            chaos,
            report,
            [
                *(chaos.transfer, chaos.transfer, chaos.transfer, chaos.revoke),
                *(chaos.expire, chaos.stop, chaos.stop, chaos.cut),
                *(chaos.cut_replies, chaos.reset),
            ],
        )
