"""A reader that asks too often: what it is told, and what it costs the others (C2)."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pytest
from attrs import asdict

from haservices import HAConfig
from queryablestate import QueryableStateClient
from queryablestate.proxy.access import token_sha256
from tests.drills.greedy_reader import GreedySettings
from tests.drills.processes import Process, Server
from tests.drills.state_processes import Service
from tests.lodestar.publishing import Publisher
from tests.queryablestate.proxy_stage import JOB, SCHEMA, STATE


if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.drills.reporting import Report


Manner: TypeAlias = Literal["nothing", "waits", "at once"]
MANNERS: Final[dict[Manner, str]] = {
    "nothing": "busy processes that ask nothing",
    "waits": "greedy readers that wait as long as they are told to",
    "at once": "greedy readers that ask again at once",
}
GREEDY_COUNT: Final = 2
PAUSE_SECONDS: Final = 0.002


def configure(directory: Path, keys_per_second: int) -> tuple[Path, Path]:
    """Write the proxy's configuration, and the operator's token; return both files."""
    tables = [
        f'[callers.{name}]\ntoken_sha256 = "{token_sha256(name)}"\n{rights}\n'
        for name, rights in (
            ("operator", "admin = true"),
            ("good", 'read = ["*/*"]'),
            ("greedy", 'read = ["*/*"]'),
        )
    ]
    limit = (
        f'[[rate_limits]]\nscope = "caller"\ncaller = "greedy"\n'
        f"keys_per_second = {keys_per_second}\n"
    )
    config = directory / "proxy.toml"
    config.write_text("\n".join([*tables, limit]))
    token = directory / "operator.token"
    token.touch(mode=0o600)
    token.write_text("operator\n")
    return config, token


def measure(client: QueryableStateClient, seconds: float) -> list[float]:
    """Ask at a steady pace for so long; return how long each answer took."""
    pause = threading.Event()  # is never set: it waits
    durations = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        client.get(JOB, STATE, "a")
        durations.append(time.perf_counter() - began)
        pause.wait(PAUSE_SECONDS)
    return durations


def percentile(durations: Sequence[float], part: float) -> float:
    """Return what *part* of *durations* stay below."""
    return sorted(durations)[int(part * (len(durations) - 1))]


def be_greedy(
    directory: Path,
    report: Report,
    server: Server,
    *,
    seconds: float,
    rounds: int,
    keys_per_second: int,
) -> None:
    """Measure a good reader without greedy ones and beside them, by turns."""
    config_file, token_file = configure(directory, keys_per_second)
    config = HAConfig(url=server.url)
    common = ["--url", server.url]
    with contextlib.ExitStack() as resources:
        services = [
            Service(
                "proxy",
                "proxy",
                directory,
                [*common, "--allow-volatile", "--config-file", str(config_file)],
            ),
            Service(
                "node",
                "node",
                directory,
                [
                    *common,
                    *("--token-file", str(token_file)),
                    *("--data-dir", str(directory / "node.data")),
                ],
            ),
        ]
        for service in services:
            resources.callback(service.close)
            service.start()
        publisher = Publisher(config, JOB, {STATE: SCHEMA}, token="operator")
        publisher.write({STATE: [("a", 1)]})
        client = resources.enter_context(QueryableStateClient(config, "good"))
        greedy = {
            manner: [
                resources.enter_context(_greedy(config, directory, manner, number))
                for number in range(GREEDY_COUNT)
            ]
            for manner in MANNERS
        }
        measure(client, 0.5)
        for manner, how in MANNERS.items():
            quiet: list[list[float]] = []
            loud: list[list[float]] = []
            tallies: list[dict[str, int]] = []
            allowed_count = 0.0
            for _ in range(rounds):
                quiet.append(measure(client, seconds))
                counts = [len(process.lines) for process in greedy[manner]]
                began = time.monotonic()
                for process in greedy[manner]:
                    process.tell(str(seconds))
                loud.append(measure(client, seconds))
                tallies += [
                    json.loads(
                        process.wait_for_line(lambda lines, n=count: len(lines) > n)[-1]  # type: ignore[misc]  # bound at once
                    )
                    for process, count in zip(greedy[manner], counts, strict=True)
                ]
                # One burst, and then as much as comes in: all of them are one caller.
                allowed_count += keys_per_second * (time.monotonic() - began + 1) + 1
            _say_answered(
                report,
                f"{how}, at {keys_per_second} keys per second",
                tallies,
                allowed_count,
            )
            _say_durations(report, how, quiet=quiet, loud=loud)


def _greedy(config: HAConfig, directory: Path, manner: Manner, number: int) -> Process:
    settings = GreedySettings(
        services={"url": config.url},
        token="greedy",
        job_id=JOB,
        state_name=STATE,
        key="a",
        manner=manner,
    )
    process = Process(
        [
            *(sys.executable, "-m", "tests.drills.greedy_reader"),
            json.dumps(asdict(settings)),
        ],
        log_file=directory / f"greedy-{manner}-{number}.log",
    )
    process.wait_for_line(bool)
    return process


def _say_answered(
    report: Report,
    how: str,
    tallies: Sequence[dict[str, int]],
    allowed_count: float,
) -> None:
    """Report what one kind of greedy readers was told."""
    total = {name: sum(tally[name] for tally in tallies) for name in tallies[0]}
    assert total["failed"] == 0
    if not total["answered"]:
        return
    assert total["limited"] > 0
    assert total["answered"] <= allowed_count
    report.say(
        f"{GREEDY_COUNT} {how}: answered {total['answered']:,} of at most "
        f"{allowed_count:,.0f} times, told to wait {total['limited']:,} times, of "
        f"these {total['early']:,} having waited as told (the other of the same caller "
        "was faster)",
        **{f"{name} ({how})": count for name, count in total.items()},
    )


def _say_durations(
    report: Report,
    how: str,
    *,
    quiet: Sequence[Sequence[float]],
    loud: Sequence[Sequence[float]],
) -> None:
    """Report what one kind of greedy readers costs a good one."""
    figures: dict[str, Any] = {}
    for part, name in ((0.5, "median"), (0.99, "p99")):
        before = statistics.median(percentile(part_of, part) for part_of in quiet)
        beside = statistics.median(percentile(part_of, part) for part_of in loud)
        figures[f"{name}_change ({how})"] = round(beside / before - 1, 3)
        report.say(
            f"the {name} of a good reader: {before * 1e3:.2f} ms alone, "
            f"{beside * 1e3:.2f} ms beside {GREEDY_COUNT} {how} "
            f"({beside / before - 1:+.0%})",
            **figures,
        )


@pytest.mark.proves("C2")
@pytest.mark.shells
@pytest.mark.nightly
def test_a_greedy_reader_is_told_to_wait(
    tmp_path: Path, report: Report, server: Server
) -> None:
    """C2: it is answered as often as it may be, and the others go on."""
    be_greedy(tmp_path, report, server, seconds=1.0, rounds=1, keys_per_second=5)


@pytest.mark.proves("C2")
@pytest.mark.drill
def test_a_greedy_reader_costs_the_others_little(
    tmp_path: Path, report: Report, server: Server
) -> None:
    """C2: what the p99 of the others rises by, beside what a busy machine costs."""
    be_greedy(tmp_path, report, server, seconds=5.0, rounds=5, keys_per_second=100)
