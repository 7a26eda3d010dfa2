"""Contending on ZooKeeper: what is closed while it is being entered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from haservices import HAConfig
from haservices.zookeeper.election import ZooKeeperElectionDriver, ZooKeeperElections
from haservices.zookeeper.operations import ZooKeeperOperations
from haservices.zookeeper.paths import ZooKeeperPaths
from haservices.zookeeper.session import ZooKeeperSession
from nameservice import ForkGuard, SystemClock


@pytest.mark.proves("E7")
def test_a_contender_that_is_withdrawn_while_it_is_entered_contends_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E7: it stayed among those for whose sake the session is renewed more often."""
    config = HAConfig(url="zookeeper://127.0.0.1:1/x", connect_timeout_seconds=1)
    session = ZooKeeperSession(config, SystemClock())
    session.loop.start()
    try:
        paths = ZooKeeperPaths(config.chroot, config.cluster_id)
        driver = ZooKeeperElectionDriver(
            session,
            paths.component("job"),
            ZooKeeperElections(session),
            ZooKeeperOperations(session, paths, ForkGuard()),
            client="me",
        )
        hand_over = session.loop.call
        withdrawals = [driver.withdraw]

        def withdraw_first(action: Callable[[], object]) -> None:
            if withdrawals:
                withdrawals.pop()()
            hand_over(action)

        monkeypatch.setattr(session.loop, "call", withdraw_first)
        driver.open(lambda _: None, lambda _: None)
        driver.withdraw()
        left = session.loop.submit(lambda: (session._listeners, session._contenders))
        assert left.result(30) == ({}, set())
    finally:
        session.loop.stop()
