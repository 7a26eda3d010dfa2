"""The examples are run as a reader would run them, and do what they say."""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.flights.demo import KEPT_UP, QUERY
from haservices import campaign, open_ha_services
from haservices.testing import LeaderServer, ServerConfig, ZooKeeperServer
from queryablestate import QueryableStateClient
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.proxy.server import QueryStateProxyServer
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.tiers import nightly_after


pytestmark = pytest.mark.shells

ROOT = Path(__file__).parent.parent
TIMEOUT_SECONDS = 280.0


def run(
    *command: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the Python of these tests with *command*, from the project's directory."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def assert_psql_answers(arguments: list[str]) -> None:
    """See that a query of the demo's output has rows, if there is a psql."""
    if shutil.which("psql") is None:
        return  # Debian has it in 'postgresql-client'; tests of SQL say so, too
    asked = subprocess.run(
        ["psql", "-At", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    counts = [int(line.split("|")[-1]) for line in asked.stdout.splitlines()]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)


def run_kept_up(*command: str) -> subprocess.CompletedProcess[str]:
    """Run the demo until it waits, ask it all that it says one can, and end it."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        told: list[str] = []
        to_ask: list[str] = []
        for line in demo.stdout:
            told.append(line)
            if to_ask or "until Ctrl-C" in line:
                to_ask.append(line)
            if to_ask and line.endswith(" nodes\n"):
                break
        environment = {}
        for line in to_ask[3:]:
            program, *arguments = shlex.split(line)
            if program == "export":
                name, _, value = arguments[0].partition("=")
                environment[name] = value
                continue
            if program == "curl":
                page = arguments[-1].split("/v1/")[0] + "/"
                for url in (arguments[-1], page):
                    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as found:
                        assert found.status == 200
                continue
            if program == "psql":
                assert_psql_answers(arguments)
                continue
            assert program.endswith("/lodestar")
            asked = run("-m", "lodestar", *arguments, environment=environment)
            assert (asked.returncode, asked.stderr) == (0, ""), line
        demo.send_signal(signal.SIGINT)
        told.append(demo.stdout.read())
        return subprocess.CompletedProcess(
            demo.args, demo.wait(TIMEOUT_SECONDS), "".join(told), demo.stderr.read()
        )


def has_ended(process_descriptor: int) -> bool:
    """Return whether that process has ended, or does so in time."""
    poll = select.poll()
    poll.register(process_descriptor, select.POLLIN)
    return bool(poll.poll(TIMEOUT_SECONDS * 1000))


@pytest.mark.spark
class TestFlights:
    """The demo, on a part of its data."""

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize(
        "backend", nightly_after(1, ["leaderserver", "zookeeper", "embedded"])
    )
    def test_the_totals_survive_the_leader(self, backend: str) -> None:
        """A leader is lost midway, another takes over, and the totals are equal."""
        command = (
            *("-m", "examples.flights", "--backend", backend),
            *("--flights", "9000", "--files", "18", "--files-per-batch", "3"),
        )
        if backend == "embedded":
            done = run(*command)
        else:
            done = run_kept_up(*command, "--keep")
            assert "until Ctrl-C" in done.stdout
        assert done.returncode == 0, done.stdout + done.stderr
        assert "EQUAL: nothing lost, nothing counted twice." in done.stdout
        assert done.stderr == ""
        epochs = [
            int(epoch)
            for epoch in re.findall(
                r"^  epoch (\d+): collector", done.stdout, re.MULTILINE
            )
        ]
        assert len(epochs) >= 2
        assert epochs == sorted(set(epochs))
        assert re.search(r"\d\.\d{3} s later: collector [ab] had read", done.stdout)
        if backend == "embedded":
            assert "is expired before batch 3" in done.stdout
            assert "state         is left out" in done.stdout
        else:
            assert "killed by SIGKILL after its commit of batch 3" in done.stdout
            assert "1 found counted already" in done.stdout
            assert "connection closed before an answer" in done.stdout
            # Read committed (W3, Q1, Q3): no reader noticed but for a pause.
            assert "killed by SIGKILL before batch 4" in done.stdout
            assert " answers, 0 failures" in done.stdout
            # A node joins and another one leaves while the flights stream (S1, O6).
            shown = re.findall(
                r"^ +[\d.]+ s  RESCALED +(node-\d \S+) .*key groups: (.*)$",
                done.stdout,
                re.MULTILINE,
            )
            assert shown == [
                ("node-3 joined", "node-1 43, node-2 43, node-3 42"),
                ("node-1 was", "node-2 64, node-3 64"),
            ]
            assert re.search(
                r"^Meanwhile node-3 joined in [\d.]+ s"
                r" and node-1 was drained and ended in [\d.]+ s$",
                done.stdout,
                re.MULTILINE,
            )
            for state in ("aircraft", "routes", "carriers"):
                assert re.search(rf"all [\d,]+ {state}: EQUAL", done.stdout)
            # The Spark driver is killed, and the one that was warm goes on (H1, H3).
            assert re.search(
                r"^Spark driver (one|two) was killed; (?!\1)(one|two), which was warm, "
                r"answered [\d.]+ s later\. .* carriers: EQUAL",
                done.stdout,
                re.MULTILINE,
            )

    def test_the_readme_asks_as_it_says(self) -> None:
        """What the demo tells its user to type stands in the README, word for word."""
        told = KEPT_UP.format(
            url="leaderserver://127.0.0.1:5170",
            command="lodestar",
            gateway_url="http://127.0.0.1:8080",
            sql_host="127.0.0.1",
            sql_port="5433",
            query=QUERY,
        )
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        asked = re.findall(r"^  ((?:curl|psql) .*)$", told, re.MULTILINE)
        assert [line.split()[0] for line in asked] == ["curl", "psql"]
        for line in asked:
            assert f"\n$ {line}\n" in readme
        assert "<http://127.0.0.1:8080/>" in readme

    @pytest.mark.nightly
    @pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
    def test_its_processes_end_with_it(self) -> None:
        """Terminated in the middle, it leaves none of its processes behind."""
        with subprocess.Popen(
            [sys.executable, "-m", "examples.flights", "--flights", "9000"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as demo:
            assert demo.stdout is not None
            for line in demo.stdout:
                if "flights in 2 deliveries" in line:
                    break
            children = children_of(demo.pid)
            assert len(children) >= 4  # name service, two collectors, the JVM
            descriptors = [os.pidfd_open(child) for child in children]
            demo.send_signal(signal.SIGTERM)
            rest = demo.stdout.read()
            assert demo.wait(TIMEOUT_SECONDS) == 128 + signal.SIGTERM, rest
        try:
            # The JVM ends by itself once it is alone, which takes a moment.
            assert all(has_ended(descriptor) for descriptor in descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def children_of(pid: int) -> list[int]:
    """Return the processes that *pid* has started and that still run."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]


class TestFrames:
    """States as data frames, without Spark."""

    def test_a_state_becomes_a_picture(self, tmp_path: Path) -> None:
        """F7: its title says how many rows there are, and as of which batch."""
        schema = StateSchema(
            kind=StateKind.VALUE,
            key=(Field("carrier", AtomicType.STRING),),
            value=(
                Field("arrived", AtomicType.BIGINT),
                Field("arrival_delay", AtomicType.BIGINT),
            ),
        )
        picture = tmp_path / "delays.svg"
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            LocalStateCluster(ha, nodes=2),
        ):
            publisher = Publisher(ha, "flights", {"carriers": schema})
            publisher.write(
                {"carriers": [("UA", 10, 25), ("AS", 5, -50), ("OO", 0, None)]}
            )
            # Text stays text in the file.
            settings = tmp_path / "matplotlibrc"
            settings.write_text("svg.fonttype: none\n")
            done = run(
                *("examples/plot_delays.py", server.url, str(picture)),
                environment={"MATPLOTLIBRC": str(settings)},
            )
        assert done.returncode == 0, done.stdout + done.stderr
        text = picture.read_text(encoding="utf-8")
        assert "15 flights of 2 carriers, as of batch 0 or later" in text
        assert text.index(">AS<") < text.index(">UA<")

    def test_a_state_becomes_a_data_frame(self) -> None:
        """It sums up, and says as of what."""
        schema = StateSchema(
            kind=StateKind.VALUE,
            key=(Field("tailnum", AtomicType.STRING),),
            value=(
                Field("flights", AtomicType.BIGINT),
                Field("last_dest", AtomicType.STRING),
            ),
        )
        rows = [("N1", 3, "CLE"), ("N2", 40, "BOS"), ("N3", 4, "CLE")]
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            LocalStateCluster(ha, nodes=2),
        ):
            publisher = Publisher(ha, "flights", {"aircraft": schema})
            publisher.write({"aircraft": rows})
            done = run("examples/frame_flights.py", server.url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [line.split() for line in done.stdout.splitlines()] == [
            ["last_dest"],
            ["BOS", "40"],
            ["CLE", "7"],
            ["of", "3", "aircraft,", "as", "of", "batch", "0", "or", "later"],
        ]


@pytest.mark.nightly
@pytest.mark.spark
class TestState:
    """Publishing state, asking it, and keeping it beside executors."""

    def test_what_a_job_knows_can_be_asked(self) -> None:
        """A year of flights is published; a reader finds the whole of it."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            LocalStateCluster(ha, nodes=2),
        ):
            done = run("-m", "examples.publish_flights", server.url, "3")
            assert done.returncode == 0, done.stdout + done.stderr
            asked = run("examples/ask_flights.py", server.url, "N14228")
            missing = run("examples/ask_flights.py", server.url, "N0")
        assert asked.returncode == 0, asked.stderr
        lines = asked.stdout.splitlines()
        assert lines[0].startswith(
            "N14228: 111 flights, 171713 miles, last seen in CLE (batch 2, "
        )
        assert lines[1] == "2 of 3 aircraft have flown"
        assert lines[2] == "N10156 has flown 145 times"
        assert len(lines) == 5
        assert missing.stdout.splitlines()[0] == "N0 has not flown"

    def test_a_complete_application_publishes(self, tmp_path: Path) -> None:
        """It needs the URL and a checkpoint; a reader finds what it publishes."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            LocalStateCluster(ha, nodes=1),
            QueryableStateClient(server.url) as client,
            subprocess.Popen(
                [sys.executable, "examples/sensor_app.py", server.url, str(tmp_path)],
                cwd=ROOT,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            ) as process,
        ):
            try:
                client.wait_for_state("weather", "sensors", TIMEOUT_SECONDS)
                for _, row in client.scan("weather", "sensors", limit=1):
                    assert set(row) == {"reading"}
            finally:
                process.kill()

    def test_nodes_run_beside_executors(self, tmp_path: Path) -> None:
        """One call starts them; Spark writes a state to them, and reads it back."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            QueryStateProxyServer(ha),
        ):
            done = run("examples/nodes_on_executors.py", server.url, str(tmp_path))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "serving: node-" in done.stdout
        assert "|  2|     4|" in done.stdout


class TestReadme:
    """The three examples of ten lines."""

    def test_a_test_suite_on_the_embedded_backend(self) -> None:
        """The fixture comes with the installed plugin; nothing else is needed."""
        done = run(
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "examples/embedded_test_suite.py",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout

    def test_a_cluster_switches_by_configuration(self) -> None:
        """The same program leads on three backends; one variable decides."""
        embedded = run("examples/switch_backend.py")
        assert embedded.returncode == 0, embedded.stderr
        assert "embedded:laptop: 10.0.0.7:8000 leads" in embedded.stdout
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            ZooKeeperServer() as ensemble,
        ):
            for url in (server.url, ensemble.url):
                served = run(
                    "examples/switch_backend.py", environment={"LODESTAR_URL": url}
                )
                assert served.returncode == 0, served.stderr
                assert f"{url}: 10.0.0.7:8000 leads" in served.stdout

    @pytest.mark.spark
    def test_a_spark_app_finds_the_leader(self) -> None:
        """Its tasks are told of the leader, by one line of configuration."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            campaign(ha, "flights", "10.0.0.7:8000") as leadership,
        ):
            done = run("examples/spark_app.py", server.url)
            leadership.check()
        assert done.returncode == 0, done.stderr
        assert f"go to 10.0.0.7:8000, epoch {leadership.epoch}" in done.stdout


class TestLeadAsync:
    """An asyncio application that leads."""

    def test_it_leads_again_after_a_revocation(self) -> None:
        """It works while it leads, stops when it is revoked, and ends on SIGINT."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            subprocess.Popen(
                [sys.executable, "-m", "examples.lead_async", server.url, "h:1"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            try:
                lines = read_lines(process, 2)
                first = int(lines[0].removeprefix("leading under epoch "))
                assert lines[1] == f"saved under epoch {first}"
                ha.operations.revoke("flights")
                lines = read_until(process, "leading under epoch ")
                assert lines[-2] == "leading no more"
                assert int(lines[-1].removeprefix("leading under epoch ")) > first
                process.send_signal(signal.SIGINT)
                assert process.wait(TIMEOUT_SECONDS) == 0
                assert list(ha.operations.contenders("flights")) == []
            finally:
                process.kill()


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next *count* lines that *process* prints."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def read_until(process: subprocess.Popen[str], beginning: str) -> list[str]:
    """Return what *process* prints up to a line with that beginning."""
    lines = read_lines(process, 1)
    while not lines[-1].startswith(beginning):
        assert lines[-1], "it has ended"
        lines += read_lines(process, 1)
    return lines
