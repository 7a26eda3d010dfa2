"""What a LeaderServer starts with."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from leaderserver import ServerConfig
from leaderserver.server.core.store_sizes import StoreLimits
from leaderserver.server.service_start import start_service
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage import LeaderStorage, MemoryStorage
from nameservice import ConfigurationError, ManualClock
from nameservice.clock import NS_PER_MS


@pytest.mark.proves("E9")
def test_clients_have_the_time_to_come_back(tmp_path: Path) -> None:
    """E9: claims are waited for when leases are shorter than the way back."""
    config = ServerConfig(
        bind="tcp://127.0.0.1:0",
        data_dir=tmp_path,
        lease_seconds_max=0.05,
        lease_seconds_unrecorded_max=0.05,
    )
    limits = StoreLimits(
        bytes_max=config.store_bytes,
        bytes_per_component_max=config.store_bytes_per_component,
    )
    clock = ManualClock()
    with closing(SQLiteStorage(tmp_path, limits)) as storage:
        service = start_service(config, storage, clock=clock, publish_port=5171)
        began_ns = clock.now_ns()
        due_ns = began_ns
        while service.core.is_undecided:
            deadline_ns = service.next_deadline_ns()
            assert deadline_ns is not None
            due_ns = deadline_ns
            service.advance(now_ns=due_ns)
    assert due_ns - began_ns == 300 * NS_PER_MS


@pytest.mark.proves("E2")
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_clock_that_was_wrong_once_leaves_nothing_behind(
    is_durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    E2: no epoch fits a year such as 2099, where a clock without a battery may begin.

    The server did not start then, as is right, and never again with that directory:
    what does not fit was on record, and an incarnation is above every recorded one.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = ServerConfig(
        bind="tcp://127.0.0.1:0", data_dir=tmp_path / "data" if is_durable else None
    )

    def start() -> int:
        storage: LeaderStorage
        storage = SQLiteStorage(tmp_path / "data") if is_durable else MemoryStorage()
        with closing(storage):
            service = start_service(
                config, storage, clock=ManualClock(), publish_port=5171
            )
            return service.core.incarnation

    now_ns = time.time_ns()
    years_ns = 73 * 365 * 24 * 60 * 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + years_ns)
    with pytest.raises(ConfigurationError, match="set the clock"):
        start()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    assert start() == now_ns // 10**9 - 1_577_836_800
