from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from haservices.testing.reserved_port import ReservedPort
from tests.lodestar.running import (
    WAIT_SECONDS,
    Ask,
    Running,
    contenders_of,
    environment,
    on_both,
    run,
)


pytestmark = pytest.mark.shells

LEAD = ("--", "sh", "-c", "echo epoch $LODESTAR_EPOCH; exec sleep 600")


@pytest.fixture
def at(url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", url, "--cluster-id", cluster_id)


class TestNobody:
    """Where there is no leader, that is an answer (N6)."""

    @pytest.mark.proves("N6")
    def test_asking_creates_nothing(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N6, R6: after every question there is still no job and no contender."""
        assert ask("leader", "flights", *at).exit_code == 3
        assert run("contenders", "flights", *at).exit_code == 3
        assert ask("sessions", *at).exit_code == 0
        assert ask("status", *at).exit_code == 0
        with Running("watch", "flights", *at) as watch:
            watch.out.until("flights has no leader")
            watch.end()
        result = ask("leaders", *at)
        assert (result.exit_code, result.err) == (0, "")
        assert result.out == "there are no contenders\n"
        assert json.loads(ask("leaders", "--json", *at).out) == []

    @pytest.mark.proves("N5")
    def test_no_leader_is_not_found(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N5: exit code 3, nothing on standard output, one line that says it."""
        for options in ((), ("--json",), ("--wait", "0.2")):
            result = ask("leader", "flights", *options, *at)
            assert result.exit_code == 3
            assert result.out == ""
            assert len(result.err.splitlines()) == 1
            assert "'flights' has no leader" in result.err

    @pytest.mark.proves("N5")
    def test_no_contender_is_not_found(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N5: an empty list is an answer to programs too."""
        result = ask("contenders", "flights", *at)
        assert (result.exit_code, result.out) == (3, "flights has no contenders\n")
        result = ask("contenders", "flights", "--json", *at)
        assert (result.exit_code, result.out) == (3, "[]\n")


class TestLeader:
    """Somebody leads, and everybody can see it (N6)."""

    @pytest.mark.proves("N6")
    @on_both
    def test_it_is_told_in_every_form(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N6: the same leader as text, as JSON, as one field, and in the list."""
        with Running("elect", "flights", "10.0.0.7:8000", *at, *LEAD) as elected:
            epoch = int(elected.out.next().split()[1])

            result = ask("leader", "flights", *at)
            assert (result.exit_code, result.err) == (0, "")
            lines = dict(line.split() for line in result.out.splitlines())
            assert lines["job"] == "flights"
            assert lines["address"] == "10.0.0.7:8000"
            assert int(lines["epoch"]) == epoch

            document = json.loads(ask("leader", "flights", "--json", *at).out)
            assert document == {
                "job": "flights",
                "address": "10.0.0.7:8000",
                "epoch": epoch,
                "leader_session_id": lines["session"],
            }
            result = ask("leader", "flights", "--field", "epoch", *at)
            assert result.out == f"{epoch}\n"
            result = ask("leader", "flights", "--wait", "30", "--json", *at)
            assert json.loads(result.out) == document

            (listed,) = json.loads(ask("leaders", "--json", *at).out)
            assert listed["job"] == document.pop("job")
            assert listed["leader"] == document
            assert listed["contender_count"] == 1
            heading, row = ask("leaders", *at).out.splitlines()
            assert heading.split() == ["JOB", "LEADER", "EPOCH", "CONTENDERS"]
            assert row.split()[:2] == ["flights", "10.0.0.7:8000"]
            elected.end()

    @pytest.mark.proves("N6")
    def test_waiting_ends_when_somebody_leads(self, at: tuple[str, ...]) -> None:
        """N6: --wait is answered as soon as there is a leader."""
        with (
            Running("leader", "flights", "--wait", "60", "--json", *at) as waiting,
            Running("elect", "flights", "a:1", *at, *LEAD) as elected,
        ):
            result = waiting.result()
            elected.end()
        assert result.exit_code == 0
        document = json.loads(result.out)
        assert document["address"] == "a:1"

    @pytest.mark.proves("N5")
    def test_clusters_do_not_see_each_other(
        self, ask: Ask, at: tuple[str, ...]
    ) -> None:
        """N5: --cluster-id keeps deployments apart."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as elected:
            elected.out.next()
            elsewhere = (*at[:-1], f"{at[-1]}-other")
            assert ask("leader", "flights", *elsewhere).exit_code == 3
            elected.end()

    @pytest.mark.proves("N6")
    def test_contenders_stand_in_order(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N6, E1: the leader first, the next after it."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as first:
            first.out.next()
            with Running("elect", "flights", "b:1", *at, *LEAD) as second:
                document = contenders_of("flights", at, count=2)
                assert [each["is_leader"] for each in document] == [True, False]
                assert [each["address"] for each in document] == ["a:1", None]
                text = ask("contenders", "flights", *at).out.splitlines()
                assert text[1].split()[0] == "leads"
                assert text[2].split()[0] == "2"
                first.end()
                assert second.out.next().startswith("epoch ")
                second.end()


class TestWatch:
    @pytest.mark.proves("N6")
    def test_each_change_is_a_line(self, at: tuple[str, ...]) -> None:
        """N6: who leads now, then every change, as it comes; SIGTERM ends it with 0."""
        with Running("watch", "flights", *at) as watch:
            assert watch.out.next() == f"watching flights at {at[1]}"
            assert watch.out.next().endswith("  flights has no leader")
            with Running("elect", "flights", "a:1", *at, *LEAD) as elected:
                epoch = elected.out.next().split()[1]
                assert f"  a:1 leads flights  epoch {epoch}  " in watch.out.next()
                elected.end()
            assert watch.out.next().endswith("  flights has no leader")
            result = watch.end()
        assert (result.exit_code, result.out) == (0, "")
        assert "Traceback" not in result.err

    @pytest.mark.proves("N6")
    def test_programs_get_a_document_per_line(self, at: tuple[str, ...]) -> None:
        """N6: --json is one document per line, each complete, and SIGINT ends it."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as elected:
            epoch = int(elected.out.next().split()[1])
            with Running("watch", "flights", "--json", *at) as watch:
                first = json.loads(watch.out.next())
                assert first["leader"]["epoch"] == epoch
                assert first["job"] == "flights"
                elected.end()
                assert json.loads(watch.out.next())["leader"] is None
                result = watch.end(signal.SIGINT)
        assert (result.exit_code, result.out) == (0, "")

    @pytest.mark.proves("N5")
    def test_a_reader_that_goes_away_ends_it_quietly(self, at: tuple[str, ...]) -> None:
        """N5: `lodestar watch … | head` leaves no traceback."""
        reader, writer = os.pipe()
        with subprocess.Popen(
            [sys.executable, "-m", "lodestar", "watch", "flights", *at],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as watch:
            os.close(writer)
            poll = select.poll()
            poll.register(reader, select.POLLIN)
            seen = b""
            while b"has no leader" not in seen:
                assert poll.poll(WAIT_SECONDS * 1000)
                part = os.read(reader, 1000)
                assert part, "the verb ended"
                seen += part
            os.close(reader)
            with Running("elect", "flights", "a:1", *at, *LEAD) as elected:
                _, error = watch.communicate(timeout=WAIT_SECONDS)
                elected.end()
        assert watch.returncode == 0
        assert error == ""


@pytest.mark.proves("N5")
class TestUnreachable:
    @pytest.mark.parametrize("scheme", ["leaderserver", "zookeeper"])
    def test_it_is_told_within_the_connect_timeout(self, ask: Ask, scheme: str) -> None:
        """N5: exit code 5 and one line, though no server is there at all."""
        with ReservedPort() as reserved:
            free_port = reserved.port
            began = time.monotonic()
            result = ask(
                *("leaders", "--url", f"{scheme}://127.0.0.1:{free_port}"),
                *("--connect-timeout-seconds", "1"),
            )
            assert time.monotonic() - began < WAIT_SECONDS / 2
        assert (result.exit_code, result.out) == (5, "")
        assert len(result.err.splitlines()) == 1, result.err
        assert f"127.0.0.1:{free_port}" in result.err

    def test_the_environment_is_heeded(self, leader_server_url: str) -> None:
        """N5: LODESTAR_URL stands in for --url."""
        assert run("leaders", LODESTAR_URL=leader_server_url).exit_code == 0

    def test_the_file_is_heeded(
        self, ask: Ask, leader_server_url: str, tmp_path: Path
    ) -> None:
        """N5: --config FILE stands in for --url."""
        file = tmp_path / "prod.toml"
        file.write_text(f'[lodestar]\nurl = "{leader_server_url}"\n')
        assert ask("leaders", "--config", str(file)).exit_code == 0
