"""Drivers as processes: one is killed, one is paused; no batch is lost or doubled."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from tests.recording import wait_until
from tests.sparkpipeline.standby_drivers import StandbyDriver
from tests.sparkpipeline.standby_totals import (
    check_database,
    hold_path,
    make_database,
    sink_calls,
)


pytestmark = [pytest.mark.spark, pytest.mark.shells]

JOB: Final = "standby-app"

# On a machine that is busy with other tests a batch takes as long as it takes.
PATIENT: Final[dict[str, Any]] = {"stop_seconds": 60.0, "hand_over_seconds": 60.0}


@pytest.fixture
def config() -> Iterator[HAConfig]:
    """Yield a name service that ends a silent session after three seconds."""
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        yield HAConfig(url=server.url, session_timeout_seconds=3.0)


class TestTakeover:
    @pytest.mark.proves("H1", "H2", "H3", "H5")
    def test_a_standby_goes_on_where_a_leader_handed_over_was_killed_or_paused(
        self, config: HAConfig, tmp_path: Path
    ) -> None:
        """
        H3: after SIGKILL the standby writes the next batch; a paused one nothing more.

        H1: one leads, the other one is warm.  H2: a hand-over repeats no batch.
        H5: the address moves with it.
        """
        make_database(tmp_path)
        with (
            open_ha_services(config) as ha,
            ha.get_leader_retriever(JOB) as retriever,
            StandbyDriver(config, tmp_path, "one", job_id=JOB, **PATIENT) as one,
            StandbyDriver(config, tmp_path, "two", job_id=JOB, **PATIENT) as two,
        ):
            leader = retriever.wait_for_leader(150.0)
            first, second = (one, two) if leader.address == "one" else (two, one)
            first.wait_for("sink.written", 2)
            second.wait_for("standby.warm")
            assert second.count("standby.leading") == 0
            wait_until(lambda: len(ha.operations.contenders(JOB)) == 2)
            ha.operations.revoke(JOB)
            second.wait_for("sink.written", 2)
            assert retriever.wait_for_leader(30.0).address == second.name
            called = [batch_id for batch_id, _ in sink_calls(tmp_path)]
            assert called == list(range(len(called)))

            first, second = second, first
            second.wait_for("standby.warm", 2)
            first.kill()
            second.wait_for("sink.written", second.count("sink.written") + 2)
            assert retriever.wait_for_leader(30.0).address == second.name
            check_database(tmp_path)

            with StandbyDriver(
                config, tmp_path, "three", job_id=JOB, **PATIENT
            ) as third:
                third.wait_for("standby.warm")
                # Not in a transaction: the successor would wait for its lock.
                written = hold_path(tmp_path, second.name, "written")
                written.touch()
                second.wait_for("sink.held")
                second.pause()
                written.unlink()
                third.wait_for("sink.written", 2)
                called_count = second.count("sink.called")
                second.resume()
                assert second.wait_until_ended() != 0
                third.wait_for("sink.written", third.count("sink.written") + 2)
                assert second.count("sink.called") == called_count
                assert retriever.wait_for_leader(30.0).address == "three"
                third.leave()
        check_database(tmp_path)
        epochs = [epoch for _, epoch in sink_calls(tmp_path)]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) == 4

    @pytest.mark.proves("H3")
    @pytest.mark.nightly
    def test_a_driver_that_meets_another_contends_again_and_fails_the_third_time(
        self, config: HAConfig, tmp_path: Path
    ) -> None:
        """H3: a driver that still stops ends no other; shared checkpoints are told."""
        make_database(tmp_path)
        with StandbyDriver(config, tmp_path, "one", job_id=JOB, **PATIENT) as driver:
            for count in range(1, 4):
                driver.wait_for("sink.written", driver.count("sink.written") + 2)
                _meet_another(driver, tmp_path)
                if count < 3:
                    driver.wait_for("standby.leading", count + 1)
            assert driver.wait_until_ended() != 0
            assert driver.count("standby.collided") == 3
        assert "CONCURRENT_STREAM_LOG_UPDATE" in driver.log_file.read_text()
        check_database(tmp_path)

    @pytest.mark.proves("H3")
    def test_a_jvm_ends_when_its_python_is_stopped(
        self, config: HAConfig, tmp_path: Path
    ) -> None:
        """
        H3: queries that need no Python do not go on without its word.

        When Python is woken, it ends, too, and says what has happened.
        """
        with StandbyDriver(
            config, tmp_path, "one", job_id=JOB, sinks=["file"]
        ) as driver:
            driver.wait_for("standby.started")
            (jvm,) = (
                int(path.parent.name)
                for path in Path("/proc").glob("[0-9]*/cmdline")
                if _parent(path.parent) == driver.pid
                and b"org.apache.spark" in path.read_bytes()
            )
            watch = os.pidfd_open(jvm)
            os.kill(driver.pid, signal.SIGSTOP)
            assert _has_ended(watch)
            os.close(watch)
            os.kill(driver.pid, signal.SIGCONT)
            assert driver.wait_until_ended() != 0
        assert "1.5 s, half of the session timeout" in driver.log_file.read_text()


def _meet_another(driver: StandbyDriver, directory: Path) -> None:
    """Commit the batch that *driver* is in before it does, as another one would."""
    written = hold_path(directory, driver.name, "written")
    written.touch()
    driver.wait_for("sink.held", driver.count("sink.held") + 1)
    batch_id = sink_calls(directory)[-1][0]
    commits = directory / "sqlite" / "commits"
    (commits / str(batch_id)).write_bytes((commits / str(batch_id - 1)).read_bytes())
    written.unlink()


def _parent(process: Path) -> int | None:
    try:
        return int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _has_ended(watch: int) -> bool:
    """Return whether a process ends, within half a minute; its parent is stopped."""
    return bool(select.select([watch], [], [], 30.0)[0])
