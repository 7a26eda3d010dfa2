"""The tests of the pure cores of the ZooKeeper backend find what is broken in them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.haservices.zookeeper.mutations import CORE_MUTATIONS, ROOT
from tests.simulation.mutations import Mutation
from tests.tiers import nightly_after


@pytest.mark.parametrize(
    "mutation", nightly_after(2, CORE_MUTATIONS), ids=lambda mutation: mutation.name
)
def test_what_is_broken_on_purpose_is_found(mutation: Mutation) -> None:
    """A test that cannot fail proves nothing: these find each of the faults."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.haservices.zookeeper.mutations"),
            *("--mutation", mutation.name),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
