"""``lodestar node --readers`` as a process that is killed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.lodestar.running import Running, run
from tests.queryablestate.reader_children import is_alive, readers_of
from tests.recording import wait_until


pytestmark = [
    pytest.mark.shells,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


@pytest.mark.proves("E10", "Q4")
def test_readers_end_with_a_node_that_is_killed(
    leader_server_url: str, cluster_id: str, tmp_path: Path
) -> None:
    """Q4: whatever they do; none answers after its node, and none is left."""
    at = ("--url", leader_server_url, "--cluster-id", cluster_id)
    node = ("node", "--data-dir", str(tmp_path / "d"), "--readers", "2", *at)
    with Running(*node) as serving:
        serving.err.until("node.started")
        readers = readers_of(serving.process.pid)
        assert len(readers) == 2
        serving.process.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, readers)))
    with Running(*node) as serving:  # on the page that the first one has left
        serving.err.until("node.started")
        assert serving.end(signal.SIGINT).exit_code == 0


@pytest.mark.proves("N5")
@pytest.mark.parametrize("count", ["-1", "65", "1.5", "two"])
def test_a_number_that_cannot_be(count: str, tmp_path: Path) -> None:
    """N5: it is refused before anything is opened."""
    result = run(
        *("node", "--data-dir", str(tmp_path / "d"), "--readers", count),
        *("--url", "leaderserver://127.0.0.1:1"),
    )
    assert result.exit_code == 2
    assert "readers" in result.err
    assert not (tmp_path / "d").exists()
