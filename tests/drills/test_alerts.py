"""Every alert of deploy/prometheus is made to fire, by a real Prometheus."""

from __future__ import annotations

import contextlib
import errno
import itertools
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from haservices import HAConfig, open_ha_services
from haservices.metrics import serve_metrics
from haservices.testing import LeaderServer, ServerConfig
from haservices.testing.reserved_port import ReservedPort
from nameservice import NameServiceError
from queryablestate import QueryableStateClient
from queryablestate.errors import AccessDeniedError, DeadlineExceededError
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from tests.drills.processes import WAIT_SECONDS, Server
from tests.drills.prometheus import ALERTS, Prometheus
from tests.drills.state_processes import StateProcesses
from tests.drills.state_writing import JOB, KEYS, ROWS, DrillQuery
from tests.faults.disk import FaultyDisk
from tests.faults.server import ServerOnFaultyDisk
from tests.recording import ConfirmingContender, wait_until


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.drills.reporting import Report


pytestmark = [pytest.mark.drill, pytest.mark.proves("F1")]

OF_THE_NAME_SERVICE: Final = (
    "LodestarDefect",
    "LodestarNoLeader",
    "LodestarReadersRefused",
    "LodestarServerStalls",
    "LodestarServerUndecided",
    "LodestarStorageFails",
)
OF_STATE: Final = (
    "LodestarCopiesTakeLong",
    "LodestarCopyMissing",
    "LodestarDown",
    "LodestarJobStopped",
    "LodestarKeyGroupsUnavailable",
    "LodestarNoProxyLeads",
    "LodestarNodeAway",
    "LodestarNodeNotRegistered",
    "LodestarNodeStorageFails",
    "LodestarQuestionsRefused",
    "LodestarReadsSlow",
    "LodestarStateOld",
    "LodestarStoreNearlyFull",
)

ASKED_COUNT: Final = 20
STORE_SIZE_BYTES: Final = 12 << 20
FILE_SIZE_BYTES: Final = 256 << 10
"""Above what a log of the drill takes, and far below a store."""


def test_no_alert_is_left_out() -> None:
    """The drills below make all of them fire."""
    assert {*OF_THE_NAME_SERVICE, *OF_STATE} == ALERTS


@contextlib.contextmanager
def a_defect(server: LeaderServer) -> Iterator[None]:
    """Have something raise in the loop of a server, again and again."""
    running = server._started()
    is_over = threading.Event()

    def fail() -> None:
        raise RuntimeError("of the drill")

    def go_on() -> None:
        while not is_over.wait(0.5):
            running.loop.call_soon_threadsafe(fail)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(WAIT_SECONDS)


def test_alerts_of_the_name_service_fire(tmp_path: Path, report: Report) -> None:
    """F1: a full disk, no leader, a restart, stalls, a defect, and strangers."""
    disk = FaultyDisk(tmp_path / "disk", tmp_path / "faults")
    entry = CallerEntry(name="job", token_sha256=token_sha256("job"), write=("a/*",))
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        ports = [enter(ReservedPort()).port for _ in range(2)]
        full, restarted = (f"127.0.0.1:{port}" for port in ports)
        on_disk = enter(ServerOnFaultyDisk(disk, options=("--metrics", full)))
        durable = Server(
            tmp_path, lease_seconds_max=10.0, options=("--metrics", restarted)
        )
        enter(durable)
        inside = enter(LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")))
        ha = enter(open_ha_services(inside.url))
        config = ProxyConfig(access=AccessList(callers=(entry,)))
        proxy = enter(QueryStateProxyServer(ha, config))
        targets = {
            "disk": full,
            "restarted": restarted,
            "inside": enter(serve_metrics(inside, "0")).url.removeprefix("http://"),
            "proxy": enter(serve_metrics(proxy, "0")).url.removeprefix("http://"),
        }
        prometheus = enter(Prometheus(tmp_path, targets))
        wait_until(lambda: proxy.is_leader, timeout_seconds=WAIT_SECONDS)

        # Its epoch cannot be written, so that nobody may be granted.
        disk.fail("write", code=errno.ENOSPC)
        waiting = enter(open_ha_services(on_disk.url))
        election = enter(waiting.get_leader_election("job"))
        contender = ConfirmingContender(election, "h:1")
        election.start(contender)
        prometheus.wait_for("LodestarStorageFails", instance="disk")
        prometheus.wait_for("LodestarNoLeader", instance="disk")
        disk.heal()
        prometheus.wait_for_end_of("LodestarNoLeader")

        durable.restart()
        prometheus.wait_for("LodestarServerUndecided", instance="restarted")
        prometheus.wait_for_end_of("LodestarServerUndecided")

        with a_defect(inside):
            prometheus.wait_for("LodestarDefect", instance="inside")

        inside.pause()
        threading.Event().wait(2.0)  # that is the fault
        inside.resume()
        prometheus.wait_for("LodestarServerStalls", instance="inside")

        wait_until(lambda: proxy.is_leader, timeout_seconds=WAIT_SECONDS)
        with QueryableStateClient(ha, "job") as client:
            with pytest.raises(AccessDeniedError):
                client.describe("b", "secret")
            prometheus.wait_for("LodestarReadersRefused", instance="proxy")
    report.say(f"made to fire: {', '.join(OF_THE_NAME_SERVICE)}")


def ask_too_early(
    client: QueryableStateClient, query: DrillQuery, prometheus: Prometheus
) -> int:
    """Ask for batches that are not there, some in vain; return the next batch."""
    batch_id = 0
    with ThreadPoolExecutor(2 * ASKED_COUNT) as threads:
        while not (
            prometheus.fires("LodestarReadsSlow")
            and prometheus.fires("LodestarQuestionsRefused")
        ):
            batch_id += 1
            early = [
                threads.submit(client.lookup, JOB, ROWS, key, min_batch_id=batch_id)
                for key in KEYS[:ASKED_COUNT]
            ]
            never = [
                threads.submit(
                    client.lookup,
                    JOB,
                    ROWS,
                    key,
                    min_batch_id=1_000_000,
                    deadline_seconds=0.3,
                )
                for key in KEYS[:ASKED_COUNT]
            ]
            for one in never:
                assert isinstance(one.exception(), DeadlineExceededError)
            query.write(batch_id)
            for one in early:
                assert (one.result().batch_id or 0) >= batch_id
    return batch_id + 1


def stop_a_job(
    processes: StateProcesses, query: DrillQuery, prometheus: Prometheus, batch_id: int
) -> None:
    """Have the disks of all nodes refuse a batch that is decided, for a while."""
    pids = [node.process.pid for node in processes.nodes.values()]

    def limit(size_bytes: int) -> None:
        for pid in pids:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))

    keys = [*KEYS, *(f"more-{number:05}" for number in range(20_000))]
    run = query.begin()
    messages = query.stage(run, batch_id, keys=keys)
    with ThreadPoolExecutor(1) as threads:
        limit(FILE_SIZE_BYTES)
        commit = threads.submit(query.commit, run, batch_id, messages)
        try:
            prometheus.wait_for("LodestarJobStopped", job_id=JOB, reason="storage")
        finally:
            limit(resource.RLIM_INFINITY)
        commit.result(WAIT_SECONDS)
    prometheus.wait_for_end_of("LodestarJobStopped")


def fill_a_store(config: HAConfig, prometheus: Prometheus) -> None:
    """Bring rows that no commit names until it is said that there are too many."""
    with DrillQuery(config, query_id="filler", job_id="filler") as query:
        numbers = itertools.count()
        while not prometheus.fires("LodestarStoreNearlyFull"):
            keys = [f"filler-{next(numbers):07}" for _ in range(10_000)]
            with contextlib.suppress(NameServiceError):  # there is no room any more
                query.stage(query.begin(), 0, keys=keys)
    prometheus.wait_for("LodestarNodeStorageFails")


def test_alerts_of_state_fire(tmp_path: Path, report: Report) -> None:
    """F1: late, refused, old, full, stopped, away, without a copy, without a leader."""
    options = ("--size-bytes-max", str(STORE_SIZE_BYTES))
    with (
        StateProcesses(
            tmp_path, replica_count=2, node_options=options, has_metrics=True
        ) as processes,
        Prometheus(tmp_path, processes.metrics) as prometheus,
        QueryableStateClient(processes.config, deadline_seconds=30.0) as client,
        DrillQuery(processes.config, query_id="drill") as query,
    ):
        query.write(0)
        batch_id = ask_too_early(client, query, prometheus)
        prometheus.wait_for("LodestarStateOld", job_id=JOB)
        query.write(batch_id)
        prometheus.wait_for_end_of("LodestarStateOld", job_id=JOB, state=ROWS)

        stop_a_job(processes, query, prometheus, batch_id + 1)
        fill_a_store(processes.config, prometheus)

        one, two = processes.nodes["node-1"], processes.nodes["node-2"]
        two.kill()
        prometheus.wait_for("LodestarDown", instance="node-2")
        prometheus.wait_for("LodestarNodeAway")
        prometheus.wait_for("LodestarCopyMissing", job_id=JOB)
        assert not prometheus.fires("LodestarKeyGroupsUnavailable")
        assert client.get(JOB, ROWS, KEYS[0]) == {"batch": batch_id + 1}

        # What it had is gone, and who has it still does not send it.
        processes.lose_disk("node-2")
        one.process.pause()
        two.launch()
        prometheus.wait_for("LodestarCopiesTakeLong", instance="node-2")
        prometheus.wait_for("LodestarKeyGroupsUnavailable", job_id=JOB)
        one.process.resume()
        assert two.address
        for name in ("KeyGroupsUnavailable", "CopyMissing", "NodeAway", "Down"):
            prometheus.wait_for_end_of(f"Lodestar{name}")

        processes.proxies[0].kill()
        prometheus.wait_for("LodestarNoProxyLeads")
        prometheus.wait_for("LodestarNodeNotRegistered", instance="node-1")
    report.say(f"made to fire: {', '.join(OF_STATE)}")
