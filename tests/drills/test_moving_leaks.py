"""Two hundred moves of key groups to and fro leave nothing behind in any process."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import lmdb
import pytest

from nameservice import NS_PER_SECOND
from queryablestate import QueryableStateClient, StateOperations
from tests.drills.processes import now_ns
from tests.drills.state_processes import StateProcesses
from tests.drills.state_writing import JOB, ROWS, DrillQuery
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.drills.reporting import Report


KEY_COUNT: Final = 100_000
WARM_UP_COUNT: Final = 40
MOVE_COUNT: Final = 200
SAMPLE_COUNT: Final = 50
RESCALE_SECONDS: Final = 60.0

# What a move leaves must be less than one of its thousands of pages: a page of memory
# for each would be 800 KiB, and a copied page 200 MiB.
GROWTH_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024


@pytest.mark.proves("S1", "S2")
@pytest.mark.drill
@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux tells")
def test_two_hundred_moves_leave_nothing_behind(tmp_path: Path, report: Report) -> None:
    """No descriptor, reader of LMDB or memory is left in nodes and proxy (S1, S2)."""
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(StateProcesses(tmp_path))
        operations = resources.enter_context(StateOperations(processes.config))
        keys = [f"key-{number:06d}" for number in range(KEY_COUNT)]
        with DrillQuery(processes.config, query_id="query", keys=keys) as query:
            query.write(0)
        services = {**processes.nodes, "proxy": processes.leader()}
        pids = {name: service.process.pid for name, service in services.items()}

        def move(count: int) -> dict[str, list[int]]:
            """Move half of the keys so often; return the memory after each."""
            sizes: dict[str, list[int]] = {name: [] for name in pids}
            for number in range(count):
                operations.rescale(JOB, node_count=1 + number % 2)
                operations.wait_until_rescaled(JOB, timeout_seconds=RESCALE_SECONDS)
                for name, pid in pids.items():
                    sizes[name].append(_anonymous_size_bytes(pid))
            return sizes

        def counts() -> Mapping[str, int]:
            """Return how many descriptors there are, and readers of each node."""
            descriptors = {
                f"descriptors of {name}": len(list(Path(f"/proc/{pid}/fd").iterdir()))
                for name, pid in pids.items()
            }
            readers = {
                f"readers of {node_id}": _reader_count(
                    processes.data_directory(node_id), pids[node_id]
                )
                for node_id in processes.nodes
            }
            return {**descriptors, **readers}

        move(WARM_UP_COUNT)
        counted = counts()
        assert all(counted.values())  # it is known how to count
        began_ns = now_ns()
        sizes = move(MOVE_COUNT)
        seconds = (now_ns() - began_ns) / NS_PER_SECOND
        # Connections end a little after the move that they were for.
        with contextlib.suppress(AssertionError):  # the next line says what is left
            wait_until(lambda: counts() == counted)
        assert counts() == counted
        growth_sizes_bytes = {
            name: int(median(found[-SAMPLE_COUNT:]) - median(found[:SAMPLE_COUNT]))
            for name, found in sizes.items()
        }
        with QueryableStateClient(processes.config) as client:
            assert client.count(JOB, ROWS) == KEY_COUNT
    report.say(
        f"{MOVE_COUNT} moves of half of {KEY_COUNT:,} keys in {seconds:.1f} s; memory "
        "grew by "
        + ", ".join(
            f"{size_bytes / 1024:.0f} KiB ({name})"
            for name, size_bytes in growth_sizes_bytes.items()
        ),
        growth_sizes_bytes=growth_sizes_bytes,
        counts=counted,
    )
    assert max(growth_sizes_bytes.values()) < GROWTH_SIZE_BYTES_MAX


def _anonymous_size_bytes(pid: int) -> int:
    """Return the memory of a process that no file stands behind: not LMDB's map."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} tells no RssAnon")


def _reader_count(directory: Path, pid: int) -> int:
    """Return how many places of readers a process takes in its environments."""
    count = 0
    for path in directory.glob("*/data.mdb"):
        with lmdb.open(str(path.parent), readonly=True) as environment:
            lines = environment.readers().splitlines()
        count += sum(line.split()[:1] == [str(pid)] for line in lines)
    return count
