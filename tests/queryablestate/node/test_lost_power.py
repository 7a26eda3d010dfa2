"""What a node has acknowledged is there when the power comes back (W2)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from queryablestate.wire.records import BatchDecided
from tests.faults.power import UnsyncedDisk
from tests.queryablestate import writing_directory, writing_store
from tests.queryablestate.killed import said_until_killed
from tests.queryablestate.store.test_store_crash import Model, scanned
from tests.queryablestate.store_batches import JOB
from tests.queryablestate.writing_store import DROPPED, LISTS, VALUES


LOSS_COUNT = 4


@pytest.mark.proves("W2", "W3", "W7")
@pytest.mark.shells
def test_lost_power_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    """W2: whatever the disk had in its cache only, in any part, is gone."""
    draw = random.Random(11)
    directory = tmp_path / "node"
    disk = UnsyncedDisk(directory, tmp_path / "journal")
    model = Model()
    write_count = 0
    for _ in range(LOSS_COUNT):
        said = said_until_killed(
            writing_directory,
            directory,
            line_count=draw.randint(3, 8),
            more_seconds=draw.uniform(0, 0.02),
            environment=disk.environment(),
        )
        write_count += disk.lose_power(draw)
        applied = max([int(n) for word, n in said if word == "applied"], default=0)
        staged = max([int(n) for word, n in said if word == "staged"], default=0)
        with writing_directory.opened(str(directory)) as store:
            position = store.positions().get(JOB, 0)
            assert position >= max(applied, model.sequence)
            model.advance(position)
            for number in (VALUES, LISTS, DROPPED):
                assert scanned(store, number) == model.scanned(number)
            entry = writing_store.entry_of(position + 1)
            if isinstance(entry, BatchDecided) and staged > position:
                assert store.missing_stages(JOB, 1, position + 1, entry.stages) == ()
    # The disk was looked at, or this would have shown nothing.
    assert write_count > LOSS_COUNT
