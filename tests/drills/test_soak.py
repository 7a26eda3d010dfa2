"""
Twenty minutes of everything at once: three jobs, greedy callers, kills and stops.

``--soak-seconds N`` makes it shorter.  It has three parts.  At *rest* three jobs are
written, and read by two readers each, of which one asks nodes and the other the proxy;
nothing else happens.  Then greedy callers of every kind come, and stay; *rounds* kill
and stop each process in turn, drivers among them, with a quiet moment before each.  At
the *end* nothing is killed any more, and what processes hold must not grow.

Greedy callers need processors, too.  What that costs is seen by a *bystander*: a job of
another cluster on the same machine, which none of them asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, final

import pytest
from attrs import asdict, define, field

from nameservice import NS_PER_SECOND
from queryablestate import StateOperations
from queryablestate.proxy.access import token_sha256
from tests.drills.processes import Process, now_ns
from tests.drills.soak_peers import (
    BULK,
    BULK_KEY_COUNT,
    GREEDY,
    LARGE,
    READER,
    PeerSettings,
    bulk_schema,
)
from tests.drills.state_answers import Answer, Outage, judge
from tests.drills.state_processes import Driver, StateProcesses
from tests.drills.state_readers import check_contents
from tests.lodestar.publishing import Publisher


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from haservices import HAConfig
    from tests.drills.reporting import Report


REST_SHARE: Final = 0.12
END_SHARE: Final = 0.28
QUIET_SECONDS: Final = 5.0
STOPPED_SECONDS: Final = 5.0
SAMPLE_SECONDS: Final = 0.5
RECOVERY_SECONDS: Final = 120.0
# In which a greedy caller is answered what it has asked last, on a busy machine.
ANSWERED_SECONDS: Final = 60.0
DRIVER_PAUSE_SECONDS: Final = 0.25

# Times that at rest, or that of a bystander at the same time.
P99_FACTOR_MAX: Final = 3.0
# What a node may take above rest under any questions (rule B1), and what a leak of a
# page with each batch would be in a fraction of the time.
GROWTH_SIZE_BYTES_MAX: Final = 64 << 20
FILES_GROWTH_MAX: Final = 16

JOBS: Final = ("job-1", "job-2", "job-3")
BYSTANDER: Final = "bystander"
OPERATOR: Final = "operator"
GOOD: Final = "good"
GREEDY_CALLER: Final = "greedy"
# What shows that a greedy caller has asked what it is there to ask.
COMES_OF_IT: Final = {
    "asks for 10,000 keys at once": "answered",
    "counts": "answered",
    "scans": "answered",
    "waits for batches to come": "DeadlineExceededError",
    "writes and reads 10 MB values": "answered",
    "writes without rights": "AccessDeniedError",
}
ERRORS_ALLOWED: Final = (
    "DeadlineExceededError",
    "NoLeaderError",
    "ServerUnreachableError",
    "SessionExpiredError",
    "StateUnavailableError",
)


@final
@define
class Sampler:
    """
    Looks at the memory and the open files of processes; a thread of its own.

    Attributes:
        pids: Of which, by name; may change at any time.
        samples: When, and by name the anonymous memory in bytes and open files.
    """

    pids: Callable[[], Mapping[str, int]]
    samples: list[tuple[int, dict[str, tuple[int, int]]]] = field(factory=list)
    is_over: threading.Event = field(factory=threading.Event)

    def run(self) -> None:
        """Look again and again, until *is_over*."""
        while not self.is_over.wait(SAMPLE_SECONDS):
            found = {}
            for name, pid in self.pids().items():
                with contextlib.suppress(OSError):  # it has just been killed
                    held = _held_by(pid)
                    if held is not None:
                        found[name] = held
            self.samples.append((now_ns(), found))

    def growth(self, since_ns: int) -> dict[str, tuple[int, int]]:
        """Return by how much each grew from the first to the last third since then."""
        samples = [held for at_ns, held in self.samples if at_ns >= since_ns]
        third = len(samples) // 3
        grown = {}
        for name in samples[-1]:
            first, last = (
                [held[name] for held in part if name in held]
                for part in (samples[:third], samples[-third:])
            )
            grown[name] = (
                int(median(one[0] for one in last) - median(one[0] for one in first)),
                int(median(one[1] for one in last) - median(one[1] for one in first)),
            )
        return grown


def _held_by(pid: int) -> tuple[int, int] | None:
    """
    Return the memory of a process that no file stands behind, and its open files.

    None is a process that has ended, and whose parent has yet to notice.
    """
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    line = next((one for one in status.splitlines() if one.startswith("RssAnon:")), "")
    if not line:
        return None
    return int(line.split()[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (files vanish while they are listed)


def proxy_tables() -> str:
    """Return who may do what; the token of each is its name."""
    rights = {
        OPERATOR: "admin = true",
        GOOD: f"read = {json.dumps([f'{job}/*' for job in (*JOBS, BYSTANDER)])}",
        GREEDY_CALLER: f'read = ["*/*"]\nwrite = ["{LARGE}/*", "unasked/*"]',
    }
    return "".join(
        f'\n[callers.{name}]\ntoken_sha256 = "{token_sha256(name)}"\n{what}\n'
        for name, what in rights.items()
    )


def bystander(
    resources: contextlib.ExitStack, directory: Path, token_file: Path
) -> list[Process]:
    """Start another cluster with a job that is written; return its two readers."""
    directory.mkdir()
    processes = resources.enter_context(
        StateProcesses(
            directory,
            node_count=1,
            proxy_tables=proxy_tables(),
            node_options=("--token-file", str(token_file)),
        )
    )
    driver = resources.enter_context(
        Driver(
            processes.config,
            directory,
            job_id=BYSTANDER,
            token=OPERATOR,
            pause_seconds=DRIVER_PAUSE_SECONDS,
        )
    )
    driver.wait_for("acknowledged")
    return [
        resources.enter_context(
            peer(
                processes.config,
                directory,
                GOOD,
                READER,
                BYSTANDER,
                is_direct=is_direct,
            )
        )
        for is_direct in (True, False)
    ]


def peer(
    config: HAConfig,
    directory: Path,
    token: str,
    kind: str,
    job: str,
    *,
    is_direct: bool = True,
) -> Process:
    """Start one that asks."""
    settings = PeerSettings(
        services={
            "url": config.url,
            "session_timeout_seconds": config.session_timeout_seconds,
        },
        token=token,
        kind=kind,
        job_id=job,
        is_direct=is_direct,
    )
    name = f"{kind}-{settings.name}".replace(" ", "-").replace(",", "")
    command = ["-m", "tests.drills.soak_peers", json.dumps(asdict(settings))]
    return Process([sys.executable, *command], log_file=directory / f"{name}.log")


def answers_of(readers: Iterable[Process]) -> list[Answer]:
    """Return all that the readers were told so far."""
    answers = []
    for reader in readers:
        for line in reader.lines:
            told = json.loads(line)
            told["batch_ids"] = tuple(told["batch_ids"])
            answers.append(Answer(**told))
    return answers


def p99_seconds(answers: Sequence[Answer], spans: Sequence[tuple[int, int]]) -> float:
    """Return what 99 of 100 answers took no longer than, of those within *spans*."""
    took = sorted(
        one.seconds
        for one in answers
        if any(begin <= one.asked_ns <= end for begin, end in spans)
    )
    assert took, "nobody has asked"
    return took[int(0.99 * (len(took) - 1))]


@final
class Soak:
    """What runs, and what is done to it."""

    def __init__(
        self,
        processes: StateProcesses,
        drivers: Mapping[str, Driver],
        readers: Sequence[Process],
        operations: StateOperations,
    ) -> None:
        self._processes = processes
        self._drivers = drivers
        self._readers = readers
        self._operations = operations
        self._round = 0
        self.done: Counter[str] = Counter()
        self.outages: list[Outage] = []
        self.recovered_seconds: list[float] = []
        self._disturbances: Sequence[tuple[str, Callable[[], None]]] = (
            ("SIGKILL of a driver", self._kill_driver),
            ("SIGSTOP of a driver", self._stop_driver),
            ("SIGKILL of the waiting proxy", self._kill_waiting_proxy),
            ("SIGKILL of a node", self._kill_node),
            ("SIGSTOP of a node", self._stop_node),
            ("SIGKILL of the leading proxy", self._kill_proxy),
            ("SIGSTOP of the leading proxy", self._stop_proxy),
            ("SIGKILL of the LeaderServer", self._kill_server),
            ("SIGSTOP of the LeaderServer", self._stop_server),
        )

    def pids(self) -> dict[str, int]:
        """Return the processes that are looked at, by name."""
        return {
            "LeaderServer": self._processes.server.process.pid,
            **{one.name: one.process.pid for one in self._processes.proxies},
            **{one.name: one.process.pid for one in self._processes.nodes.values()},
        }

    def disturb(self) -> None:
        """Do the next thing to the next process, and wait until all is well again."""
        name, act = self._disturbances[self._round % len(self._disturbances)]
        from_ns = now_ns()
        act()
        self._wait_for_batches(now_ns())
        recovered_ns = now_ns()
        for reader in self._readers:
            reader.wait_for_line(
                lambda lines: _is_answered_since(lines, recovered_ns),
                RECOVERY_SECONDS,
            )
        # One copy of each key group must be left when the next node is killed.
        self._operations.wait_until_rescaled(timeout_seconds=RECOVERY_SECONDS)
        self.outages.append(
            Outage(node_id=None, from_ns=from_ns, until_ns=now_ns() + NS_PER_SECOND)
        )
        self.recovered_seconds.append((recovered_ns - from_ns) / NS_PER_SECOND)
        self.done[name] += 1
        self._round += 1

    def _wait_for_batches(self, since_ns: int) -> None:
        for driver in self._drivers.values():
            driver.wait_for("acknowledged", since_ns=since_ns)

    def _node_id(self) -> str:
        node_ids = sorted(self._processes.nodes)
        return node_ids[self._round // len(self._disturbances) % len(node_ids)]

    def _kill_node(self) -> None:
        node = self._processes.nodes[self._node_id()]
        killed_ns = node.kill()
        self._wait_for_batches(killed_ns)  # with the other copies
        node.start()

    def _stop_node(self) -> None:
        _stop(self._processes.nodes[self._node_id()].process)

    def _kill_proxy(self) -> None:
        leader = self._processes.leader()
        self._wait_for_batches(leader.kill())  # with the other one
        leader.start()

    def _stop_proxy(self) -> None:
        _stop(self._processes.leader().process)

    def _kill_server(self) -> None:
        self._processes.server.restart()

    def _stop_server(self) -> None:
        _stop(self._processes.server.process)

    def _driver(self) -> Driver:
        jobs = sorted(self._drivers)
        return self._drivers[jobs[self._round // len(self._disturbances) % len(jobs)]]

    def _kill_driver(self) -> None:
        driver = self._driver()
        driver.kill()
        driver.start()

    def _stop_driver(self) -> None:
        _stop(self._driver().process)

    def _kill_waiting_proxy(self) -> None:
        leader = self._processes.leader()
        (waiting,) = (one for one in self._processes.proxies if one is not leader)
        waiting.kill()
        waiting.start()


def _stop(process: Process) -> None:
    """Stop a process for a while."""
    process.pause()
    threading.Event().wait(STOPPED_SECONDS)
    process.resume()


def _is_answered_since(lines: Sequence[str], since_ns: int) -> bool:
    if not lines:
        return False
    last = json.loads(lines[-1])
    return bool(last["asked_ns"] >= since_ns and not last["error"])


@pytest.mark.proves("B1", "B2", "B4", "C1", "Q1", "Q3", "S4", "W1", "W3", "W4")
@pytest.mark.drill
@pytest.mark.skipif(sys.platform != "linux", reason="looks at what Linux tells")
def test_nothing_is_wrong_lost_or_growing(
    tmp_path: Path, report: Report, soak_seconds: float
) -> None:
    """No wrong answer, no lost batch, no leak: three jobs, greedy callers, kills."""
    token_file = tmp_path / "operator.token"
    token_file.touch(mode=0o600)
    token_file.write_text(f"{OPERATOR}\n", "utf-8")
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(
            StateProcesses(
                tmp_path,
                proxy_count=2,
                node_count=3,
                replica_count=2,
                proxy_tables=proxy_tables(),
                node_options=("--token-file", str(token_file)),
            )
        )
        config = processes.config
        bulk = Publisher(config, BULK, {BULK: bulk_schema()}, token=OPERATOR)
        bulk.write({BULK: [(key, key) for key in range(BULK_KEY_COUNT)]})
        drivers = {
            job: resources.enter_context(
                Driver(
                    config,
                    tmp_path,
                    job_id=job,
                    token=OPERATOR,
                    pause_seconds=DRIVER_PAUSE_SECONDS,
                )
            )
            for job in JOBS
        }
        for driver in drivers.values():
            driver.wait_for("acknowledged")
        readers = [
            resources.enter_context(
                peer(config, tmp_path, GOOD, READER, job, is_direct=is_direct)
            )
            for job in JOBS
            for is_direct in (True, False)
        ]
        bystanders = bystander(resources, tmp_path / BYSTANDER, token_file)
        operations = resources.enter_context(StateOperations(config, OPERATOR))
        soak = Soak(processes, drivers, readers, operations)
        sampler = Sampler(soak.pids)
        sampling = threading.Thread(target=sampler.run)
        resources.callback(sampling.join)
        resources.callback(sampler.is_over.set)
        sampling.start()

        pause = threading.Event()  # is never set: it waits
        began_ns = now_ns()
        until = time.monotonic() + (1 - END_SHARE) * soak_seconds
        pause.wait(REST_SHARE * soak_seconds)
        rest = (began_ns, now_ns())
        at_rest = dict(sampler.samples[-1][1])
        greedy = {
            kind: resources.enter_context(
                peer(config, tmp_path, GREEDY_CALLER, kind, JOBS[0])
            )
            for kind in GREEDY
        }
        pause.wait(QUIET_SECONDS)
        quiet = []
        while time.monotonic() < until:
            quiet_ns = now_ns()
            pause.wait(QUIET_SECONDS)
            quiet.append((quiet_ns, now_ns()))
            soak.disturb()
        # What was restarted last fills what it keeps.
        pause.wait(min(60.0, 0.2 * END_SHARE * soak_seconds))
        end_ns = now_ns()
        pause.wait(0.8 * END_SHARE * soak_seconds)
        quiet.append((end_ns, now_ns()))
        grown = sampler.growth(end_ns)

        tallies = {}
        for kind, process in greedy.items():
            process.end(ANSWERED_SECONDS)
            tallies[kind] = json.loads(process.lines[-1])
        for reader in (*readers, *bystanders):
            reader.end()
        for driver in drivers.values():
            driver.end()
        for job, driver in drivers.items():
            check_contents(
                config, driver.batch_id_last, job_id=job, token=OPERATOR
            )  # no batch is lost, and none was applied twice

    failed = Counter(
        event.error for driver in drivers.values() for event in driver.all("failed")
    )
    batch_count = sum(driver.batch_id_last + 1 for driver in drivers.values())
    report.say(
        f"{soak_seconds:.0f} s, load {load_before:.1f} before: {dict(soak.done)}; "
        f"{batch_count:,} batches of {len(JOBS)} jobs, none lost, none applied twice; "
        f"commits that were tried again: {dict(failed)}",
        batches=batch_count,
        disturbances=dict(soak.done),
        commits_failed=dict(failed),
    )
    for kind, tally in tallies.items():
        report.say(f"who {kind}: {tally}", **{f"greedy {kind}": tally})
    report.durations(
        "recovered_seconds",
        "from a kill or stop until each job had committed again",
        soak.recovered_seconds,
    )
    answers = answers_of(readers)
    elsewhere = answers_of(bystanders)
    factors = []
    for way in ("direct", "by proxy"):
        by_way = [one for one in answers if one.client.endswith(way)]
        rest_seconds = p99_seconds(by_way, [rest])
        quiet_seconds = p99_seconds(by_way, quiet)
        machine_seconds = p99_seconds(
            [one for one in elsewhere if one.client.endswith(way)], quiet
        )
        factors.append(quiet_seconds / max(rest_seconds, machine_seconds))
        report.say(
            f"p99 of well-behaved readers, {way}: {1e3 * rest_seconds:.1f} ms at rest, "
            f"{1e3 * quiet_seconds:.1f} ms beside greedy ones with nothing killed, "
            f"{1e3 * machine_seconds:.1f} ms of a bystander then: "
            f"{factors[-1]:.1f} times (bound: {P99_FACTOR_MAX:.0f})",
            **{
                f"p99_rest_seconds ({way})": rest_seconds,
                f"p99_greedy_seconds ({way})": quiet_seconds,
                f"p99_bystander_seconds ({way})": machine_seconds,
            },
        )
    last = sampler.samples[-1][1]
    report.say(
        "memory at rest, at the end, and growth from the first to the last third of "
        "the end: "
        + ", ".join(
            f"{name} {at_rest[name][0] >> 20} MiB, {last[name][0] >> 20} MiB, "
            f"{memory / (1 << 20):+.1f} MiB"
            for name, (memory, _) in grown.items()
        ),
        memory_growth_bytes={name: one[0] for name, one in grown.items()},
    )
    report.say(
        "open files at the end, and growth: "
        + ", ".join(
            f"{name} {last[name][1]} ({files:+d})" for name, (_, files) in grown.items()
        ),
        files_growth={name: one[1] for name, one in grown.items()},
    )
    for job_id, driver in drivers.items():
        own = [one for one in answers if one.client.startswith(f"{job_id} ")]
        report.check_answers(
            judge(
                own,
                driver.times({}),
                outages=soak.outages,
                errors_allowed=ERRORS_ALLOWED,
            )
        )
    assert "taken" not in tallies["writes without rights"]
    for kind, told in COMES_OF_IT.items():
        assert tallies[kind].get(told), (kind, tallies[kind])
    assert not tallies["writes and reads 10 MB values"].get("torn")
    assert max(memory for memory, _ in grown.values()) < GROWTH_SIZE_BYTES_MAX
    assert max(files for _, files in grown.values()) < FILES_GROWTH_MAX
    assert max(factors) <= P99_FACTOR_MAX
