"""A publishing port that clients cannot reach: they hear all the same, and are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from haservices import HAConfig, campaign, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from tests.recording import RecordingListener, wait_until


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.shells

JOB = "flights"


def test_changes_are_asked_for_and_the_port_is_named(tmp_path: Path) -> None:
    """N1: without broadcasts retrievers hear by their heartbeats; the log says why."""
    with ReservedPort() as nobody, capture_logs() as logs:
        unreachable = f"tcp://127.0.0.1:{nobody.port}"
        config = ServerConfig(
            bind="tcp://127.0.0.1:0",
            publish_address=unreachable,
            data_dir=tmp_path,
            lease_seconds_max=0.2,
        )
        with LeaderServer(config) as server:
            services = HAConfig(
                url=server.url, lease_seconds=0.2, session_timeout_seconds=2.0
            )
            with (
                open_ha_services(services) as ha,
                open_ha_services(services) as other,
            ):
                listener = RecordingListener()
                ha.get_leader_retriever(JOB).start(listener)
                with campaign(other, JOB, "a:1"):
                    listener.wait_for_leader(
                        lambda leader: leader is not None and leader.address == "a:1"
                    )
                listener.record.wait_until(lambda _: listener.leaders[-1] is None)
                wait_until(lambda: ha.operations.status()["publisher_reached"] == 0)
    lines = [line for line in logs if line["event"] == "publisher.unreachable"]
    assert {line["endpoint"] for line in lines} == {unreachable}
    assert len(lines) <= 2  # one for each of the two clients
    assert lines


def test_a_port_that_is_reached_is_not_worth_a_line(tmp_path: Path) -> None:
    """N1: where broadcasts arrive, the figures say so and the log says nothing."""
    config = ServerConfig(bind="tcp://127.0.0.1:0", data_dir=tmp_path)
    with (
        LeaderServer(config) as server,
        capture_logs() as logs,
        open_ha_services(HAConfig(url=server.url)) as ha,
    ):
        assert ha.operations.status()["publisher_reached"] == 1
    assert not [line for line in logs if line["event"].startswith("publisher.")]
