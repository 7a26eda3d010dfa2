"""Real name services for the command line to talk to."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest

from haservices.testing.zookeeper_server import ZooKeeperServer
from tests.lodestar.running import LONG_LEASES, Ask, Running, call
from tests.tiers import nightly_after


@pytest.fixture(scope="session")
def leader_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a ``lodestar server`` that serves all tests."""
    options = (
        *("--bind", "tcp://127.0.0.1:0", *LONG_LEASES),
        *("--data-dir", str(tmp_path_factory.mktemp("server") / "data")),
    )
    with Running("server", *options) as server:
        yield server.out.next().removeprefix("serving ")
        server.end()


@pytest.fixture(scope="session")
def zookeeper_url() -> Iterator[str]:
    """Return the URL of a ZooKeeper that serves all tests."""
    with ZooKeeperServer() as server:
        yield server.url


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return what runs a verb in this process, without settings of the user's own."""
    for name in os.environ:
        if name.startswith("LODESTAR_"):
            monkeypatch.delenv(name)
    return functools.partial(call, capsys)


@pytest.fixture(params=nightly_after(1, ["leaderserver", "zookeeper"]))
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of one name service after the other: see `on_both`."""
    name = {"leaderserver": "leader_server_url", "zookeeper": "zookeeper_url"}
    value = request.getfixturevalue(name[request.param])
    assert isinstance(value, str)
    return value


@pytest.fixture
def cluster_id(request: pytest.FixtureRequest) -> str:
    """Return a cluster of the test's own, so that tests do not see each other."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[
        :200
    ]
