"""
Drills: real processes and real faults, each with a report of what it found.

The reports are printed after the tests; ``--report FILE`` also writes them as JSON.
``--soak-seconds N`` makes the soak shorter.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from haservices.testing import ZooKeeperServer
from tests.drills.processes import Server
from tests.drills.reporting import Report, machine


if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


SOAK_SECONDS: Final = 1200.0

_reports = pytest.StashKey[list[Report]]()
_numbers = itertools.count(1)
_before = pytest.StashKey[dict[str, object]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer what drills take, wherever this directory is on the command line."""
    parser.addoption("--report", metavar="FILE", help="write the drills' figures here")
    parser.addoption(
        "--soak-seconds",
        metavar="N",
        type=float,
        default=SOAK_SECONDS,
        help="how long the soak takes (default: %(default)s)",
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Give the soak as much time as it takes, and as much again for what is killed."""
    seconds = config.getoption("--soak-seconds", default=SOAK_SECONDS)
    for item in items:
        if "soak_seconds" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(2 * seconds + 900))


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """The report of this drill."""
    purpose = " ".join((request.function.__doc__ or "").split())
    made = Report(request.node.name.removeprefix("test_"), purpose)
    stash = request.config.stash
    stash.setdefault(_before, machine())
    stash.setdefault(_reports, []).append(made)
    request.node.stash[_reports] = [made]
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in its report how a drill ended."""
    result = yield
    for made in item.stash.get(_reports, []):
        if result.when == "call" or result.failed:
            made.outcome = result.outcome
    return result


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the reports, and write them if asked to."""
    reports = config.stash.get(_reports, [])
    if not reports:
        return
    before, after = config.stash[_before], machine()
    terminalreporter.section("drills")
    terminalreporter.write_line(
        f"commit {after['commit']}, {after['cores']} cores, Python {after['python']}, "
        f"load {before['load']} before, {after['load']} after"
    )
    for made in reports:
        terminalreporter.write_line("")
        terminalreporter.write_line(f"{made.drill}: {made.outcome}", bold=True)
        terminalreporter.write_line(f"  {made.purpose}")
        for line in made.lines:
            terminalreporter.write_line(f"  - {line}")
    path = config.getoption("--report", default=None)
    if path is not None:
        summary = {
            "machine": after | {"load_before": before["load"]},
            "drills": [made.to_json() for made in reports],
        }
        Path(path).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """How long the soak takes."""
    return float(request.config.getoption("--soak-seconds", default=SOAK_SECONDS))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A LeaderServer of this drill's own, with a data directory."""
    with Server(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all drills that do it no harm."""
    with ZooKeeperServer() as started:
        yield started


@pytest.fixture(params=["embedded", "leaderserver", "zookeeper"])
def any_url(request: pytest.FixtureRequest) -> str:
    """The URL of one name service after the other."""
    match request.param:
        case "leaderserver":
            server = request.getfixturevalue("server")
            assert isinstance(server, Server)
            return server.url
        case "zookeeper":
            ensemble = request.getfixturevalue("zookeeper")
            assert isinstance(ensemble, ZooKeeperServer)
            return f"{ensemble.url}/drills"
        case _:
            return f"embedded:drill-{next(_numbers)}"
