"""What a LeaderServer starts with."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from leaderserver import ServerConfig
from leaderserver.server.core.store_sizes import StoreLimits
from leaderserver.server.service_start import start_service
from leaderserver.server.sqlite_storage import SQLiteStorage
from nameservice import ManualClock
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
