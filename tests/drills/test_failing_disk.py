"""Servers whose disk fails and that are killed: what was said of each write is true."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING, Final, final

import pytest

from haservices import HAConfig, campaign, open_ha_services
from nameservice import DidNotHappenError, MayHaveHappenedError, StaleEpochError
from tests.faults.disk import FaultyDisk
from tests.faults.server import ServerOnFaultyDisk


if TYPE_CHECKING:
    from pathlib import Path

    from election import LeaderStore
    from haservices import Leadership
    from tests.drills.reporting import Report


pytestmark = pytest.mark.drill

JOB: Final = "job"
ROUND_COUNT: Final = 30
WRITE_COUNT_MAX: Final = 40
TIMEOUT_SECONDS: Final = 60.0


@final
class Books:
    """
    What may be stored, by all that was said of the writes so far.

    Attributes:
        epoch_max: The highest epoch that was granted.
        acknowledged_count: Writes that were.
        refused_count: Writes that did not happen.
        uncertain_count: Writes that may have happened.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._number = 0
        self._possible: dict[str, set[bytes | None]] = {
            f"p{index}": {None} for index in range(5)
        }
        self.epoch_max = 0
        self.acknowledged_count = 0
        self.refused_count = 0
        self.uncertain_count = 0

    def check(self, store: LeaderStore, leadership: Leadership) -> None:
        """E2, L4: epochs rise; acknowledged is there, refused is not."""
        assert leadership.epoch > self.epoch_max
        self.epoch_max = leadership.epoch
        for path, possible in self._possible.items():
            found = store.get(path)
            value = None if found is None else found.value
            assert value in possible, (path, value and value[:20])
            self._possible[path] = {value}

    def write(self, store: LeaderStore, leadership: Leadership) -> None:
        """Write and delete until nothing is certain any more, or for long enough."""
        for _ in range(WRITE_COUNT_MAX):
            path = self._rng.choice(list(self._possible))
            self._number += 1
            value: bytes | None = None
            try:
                if self._rng.random() < 0.2:
                    store.delete(path, session=leadership.session)
                else:
                    padding = bytes(self._rng.choice([0, 5_000, 300_000]))
                    value = b"%d|%s" % (self._number, padding)
                    store.put(path, value, session=leadership.session)
            except MayHaveHappenedError:
                self.uncertain_count += 1
                self._possible[path].add(value)
                return
            except (DidNotHappenError, StaleEpochError):
                self.refused_count += 1
            else:
                self.acknowledged_count += 1
                self._possible[path] = {value}


@pytest.mark.proves("E2", "L4")
def test_what_is_said_of_writes_is_true(tmp_path: Path, report: Report) -> None:
    """E2, L4: whatever fails, no acknowledged write is lost, no refused one present."""
    rng = Random(9)
    disk = FaultyDisk(tmp_path / "data", tmp_path / "faults")
    books = Books(rng)
    for _ in range(ROUND_COUNT):
        disk.heal()
        with ServerOnFaultyDisk(disk, lease_seconds_max=0.4) as server:
            config = HAConfig(
                url=server.url, lease_seconds=0.4, session_timeout_seconds=2.0
            )
            with (
                open_ha_services(config) as ha,
                campaign(ha, JOB, "h:1", timeout_seconds=TIMEOUT_SECONDS) as leadership,
            ):
                store = ha.get_leader_store(JOB)
                books.check(store, leadership)
                disk.fail(
                    rng.choice(["sync", "write", "size"]),
                    after=rng.randrange(40),
                    count=rng.choice([1, 5, 1_000_000]),
                    code=rng.choice([errno.EIO, errno.ENOSPC]),
                )
                books.write(store, leadership)
                server.kill()
    report.lines.append(
        f"{ROUND_COUNT} servers were killed with a failing disk: "
        f"{books.acknowledged_count} writes were acknowledged, "
        f"{books.refused_count} refused, {books.uncertain_count} uncertain"
    )
    assert books.acknowledged_count
    assert books.refused_count
    assert books.uncertain_count
