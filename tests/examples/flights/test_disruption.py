from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.flights.children import ChildProcess
from examples.flights.disruption import LeaderExpired, LeaderKilled
from examples.flights.messages import Held
from haservices import HAServices, campaign, open_ha_services


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 60.0


class Victim:
    """A process that can be killed, and whether it has ended."""

    def __init__(self, directory: Path) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.process = ChildProcess(
            "examples.flights.name_service",
            ["--backend", "leaderserver", "--data-dir", str(directory / "data")],
            environment={},
            log_file=directory / "log",
            on_line=self._lines.put,
        )
        assert self._lines.get(timeout=TIMEOUT_SECONDS) is not None

    def wait(self) -> None:
        """Return when it has ended."""
        assert self._lines.get(timeout=TIMEOUT_SECONDS) is None

    def close(self) -> None:
        """End it if need be."""
        self.process.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """Yield a process to be killed."""
    with closing(Victim(tmp_path)) as victim:
        yield victim


def held() -> Held:
    """Return the report of a collector at its worst moment."""
    return Held(name="a", at_ns=1, epoch=1, batch_id=5, partition_id=1)


class TestLeaderKilled:
    def test_whoever_holds_an_answer_is_killed_once(self, victim: Victim) -> None:
        """The moment is after a commit; a second one passes by."""
        done: list[str] = []
        disruption = LeaderKilled(
            {"a": victim.process},
            batch_id=5,
            leader_name=lambda: "a",
            on_done=lambda _, text: done.append(text),
        )
        for batch_id in range(6):
            disruption.begin_batch(batch_id)
        assert done == []
        disruption.take_report(held())
        victim.wait()
        disruption.take_report(held())
        disruption.begin_batch(6)
        (text,) = done
        assert "killed by SIGKILL after its commit of batch 5 partition 1" in text

    def test_a_moment_that_passed_is_made_up_for(self, victim: Victim) -> None:
        """If none held an answer, the leader is killed when the next batch begins."""
        done: list[str] = []
        names = iter([None, "a"])
        disruption = LeaderKilled(
            {"a": victim.process},
            batch_id=5,
            leader_name=lambda: next(names),
            on_done=lambda _, text: done.append(text),
        )
        disruption.begin_batch(6)  # none leads: none can be killed
        assert done == []
        disruption.begin_batch(7)
        victim.wait()
        (text,) = done
        assert "killed by SIGKILL before batch 7" in text


def test_an_embedded_leader_is_expired(ha_services: HAServices) -> None:
    """Its session ends before the batch in the middle begins, once."""
    done: list[str] = []
    disruption = LeaderExpired(
        ha_services,
        batch_id=5,
        leader_name=lambda: "a",
        on_done=lambda _, text: done.append(text),
    )
    disruption.take_report(held())
    with (
        open_ha_services(ha_services.config) as ha,
        campaign(ha, "flights", "a:1") as leadership,
    ):
        disruption.begin_batch(4)
        assert not leadership.lost.is_set()
        disruption.begin_batch(5)
        assert leadership.lost.wait(TIMEOUT_SECONDS)
        disruption.begin_batch(6)
    assert len(done) == 1
    assert done[0].startswith("the session of collector a is expired before batch 5")
