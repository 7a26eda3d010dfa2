"""`StoreTasks`: what the core is told of what its store has come to."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from queue import Queue

import pytest

from nameservice.clock import SystemClock
from queryablestate.node.config import NodeConfig
from queryablestate.node.copying.limits import CopyLimits
from queryablestate.node.core.effects import HoldKeyGroups
from queryablestate.node.core.events import KeyGroupsHeld, NodeEvent
from queryablestate.node.core.read_schedule import ReadLimits
from queryablestate.node.directory import NodeDirectory
from queryablestate.node.open_store import OpenStore
from queryablestate.node.snapshots import NodeSnapshots
from queryablestate.node.store_tasks import StoreTasks
from queryablestate.store import holdings as store_holdings
from queryablestate.store.store import StateStore
from queryablestate.wire.job_assignment import JoiningGroup
from queryablestate.wire.job_plan import JobHolding
from tests.queryablestate.store_batches import JOB, NODE, key, write


_PATIENCE_SECONDS = 10.0


def holding(version: int, held: tuple[int, ...], *joining: int) -> HoldKeyGroups:
    """Return what a node is told to hold."""
    return HoldKeyGroups(
        job_id=JOB,
        assignment_version=version,
        key_groups=held,
        joining=tuple(JoiningGroup(key_group=one, since=1) for one in joining),
    )


@pytest.mark.proves("W7")
def test_what_is_held_is_told_as_it_is_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7: rows are removed in many turns, and more may be held in between."""
    monkeypatch.setattr(store_holdings, "_REMOVED_COUNT_MAX", 1)
    store = StateStore.open(
        tmp_path / "store", node_id=NODE, size_bytes_max=16 << 20, is_durable=False
    )
    write(store, [(key(1, text), b"1") for text in "abc"])
    told: Queue[NodeEvent] = Queue()
    opened = OpenStore(
        store,
        on_staged=lambda _opened, _staged: None,
        read_limits=ReadLimits(),
        clock=SystemClock(),
        send_page=lambda _opened, _peer, _frames: None,
        copy_limits=CopyLimits(),
        staged_bytes_per_job_max=1 << 20,
    )
    tasks = StoreTasks(
        opened,
        directory=NodeDirectory(NodeConfig(data_dir=tmp_path / "others")),
        snapshots=NodeSnapshots(lambda action: action(), clock=SystemClock()),
        stage_retention_us=1,
        on_event=told.put,
        on_kept_forgotten=lambda: None,
    )
    may_begin = threading.Event()
    try:
        opened.writer.run(partial(may_begin.wait, _PATIENCE_SECONDS))
        opened.writer.run(partial(tasks.hold, holding(2, (0,), 2)), job_id=JOB)
        opened.writer.run(partial(tasks.hold, holding(3, (0, 2))), job_id=JOB)
        may_begin.set()
        events = [told.get(timeout=_PATIENCE_SECONDS) for _ in range(2)]
    finally:
        may_begin.set()
        opened.close()
    versions = []
    for event in events:
        assert isinstance(event, KeyGroupsHeld)
        assert event.failure is None
        versions.append(event.assignment_version)
        assert event.holding == JobHolding(job_id=JOB, version=3, lost=((2, 2),))
    assert sorted(versions) == [2, 3]
