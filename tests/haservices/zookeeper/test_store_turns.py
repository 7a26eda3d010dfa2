"""What waits for what among the commits of one process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from haservices.zookeeper.store_turns import CommitTurns
from nameservice import DidNotHappenError
from tests.recording import WAIT_SECONDS


def test_commits_that_share_no_node_go_at_the_same_time() -> None:
    """Nothing is waited for where nothing is shared."""
    turns = CommitTurns()
    with turns.turn("ab", timeout_seconds=0), turns.turn("cd", timeout_seconds=0):
        pass


@pytest.mark.proves("L4")
def test_a_commit_that_waits_too_long_did_not_happen() -> None:
    """L4: it was never sent, and those behind it do not wait for it."""
    turns = CommitTurns()
    with turns.turn("ab", timeout_seconds=0):
        with (
            pytest.raises(DidNotHappenError, match="same paths"),
            turns.turn("bc", timeout_seconds=0),
        ):
            pytest.fail("it was not its turn")
        with turns.turn("c", timeout_seconds=0):
            pass
    with turns.turn("b", timeout_seconds=0):
        pass


def test_a_commit_that_fails_is_waited_for_no_more() -> None:
    """The next one goes on."""
    turns = CommitTurns()
    with pytest.raises(ZeroDivisionError), turns.turn("a", timeout_seconds=0):
        raise ZeroDivisionError
    with turns.turn("a", timeout_seconds=0):
        pass


@pytest.mark.proves("L1")
def test_commits_to_one_node_go_one_at_a_time() -> None:
    """L1: also of many threads, whose other nodes differ."""
    turns = CommitTurns()
    committing = threading.Lock()

    def commit(name: str) -> None:
        for _ in range(100):
            with turns.turn(("common", name), timeout_seconds=WAIT_SECONDS):
                assert committing.acquire(blocking=False)
                time.sleep(0)  # noqa: TID251 (others may run)
                committing.release()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(commit, "abcd"))
