"""Tests for the verbs snapshot and restore, against a cluster in this process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservices import HAConfig, open_ha_services
from queryablestate.local_cluster import LocalStateCluster
from tests.lodestar.publishing import Publisher
from tests.lodestar.running import Ask, Result, call
from tests.queryablestate.schemas import NUMBERS


pytestmark = pytest.mark.shells


@pytest.fixture(scope="module")
def at(leader_server_url: str) -> Iterator[tuple[str, ...]]:
    """Return the options that name a name service with a proxy, nodes and state."""
    cluster_id = f"snapshots-{uuid.uuid4()}"
    config = HAConfig(url=leader_server_url, cluster_id=cluster_id, lease_seconds=3.0)
    with open_ha_services(config) as ha, LocalStateCluster(ha, nodes=2):
        publisher = Publisher(config, "flights", {"aircraft": NUMBERS})
        publisher.write({"aircraft": [(number, number) for number in range(50)]})
        yield ("--url", leader_server_url, "--cluster-id", cluster_id)


@pytest.fixture
def ask(at: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return what runs a verb, and says how it ended."""

    def run_verb(verb: str, *arguments: str) -> Result:
        return call(capsys, verb, *at, *arguments)

    return run_verb


class TestSnapshot:
    """``lodestar snapshot`` and ``lodestar restore`` (W4)."""

    def test_a_job_is_restored_from_its_snapshot(
        self, ask: Ask, tmp_path: Path
    ) -> None:
        """JSON says what is in it, and what came of it."""
        taken = ask("snapshot", "--json", "flights", str(tmp_path))
        assert (taken.exit_code, taken.err) == (0, "")
        document = json.loads(taken.out)
        assert document["job"] == "flights"
        assert document["states"] == ["aircraft"]
        assert document["row_count"] == 50
        assert list(document["batch_ids"].values()) == [0]
        assert document["uri"] == str(tmp_path)
        restored = ask("restore", "--json", "copy", str(tmp_path))
        assert (restored.exit_code, restored.err) == (0, "")
        assert json.loads(restored.out) == {
            "job": "copy",
            "node_ids": ["node-1", "node-2"],
            "snapshot": document,
        }
        found = ask("get", "copy", "aircraft", "7", "--json")
        assert json.loads(found.out)["value"] == {"v": 7}

    def test_people_are_told_in_a_few_lines(
        self, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A relative path is one of this machine."""
        monkeypatch.chdir(tmp_path)
        taken = ask("snapshot", "flights", "monday")
        assert taken.exit_code == 0
        assert f"the nodes write flights to {tmp_path / 'monday'}" in taken.err
        assert "states    aircraft" in taken.out
        assert "rows      50" in taken.out
        restored = ask("restore", "people", "monday")
        assert restored.exit_code == 0
        assert "restored people on node-1, node-2" in restored.out

    def test_a_proxy_that_is_away_is_not_awaited_for_an_hour(
        self, ask: Ask, tmp_path: Path
    ) -> None:
        """N5: exit code 5 within the deadline, however long the snapshot may take."""
        whole = tmp_path / "whole"
        assert ask("snapshot", "flights", str(whole)).exit_code == 0
        elsewhere = ("--cluster-id", f"nobody-{uuid.uuid4()}", "--deadline", "0.5")
        for verb, place in (("snapshot", tmp_path / "other"), ("restore", whole)):
            result = ask(verb, "flights", str(place), *elsewhere)
            assert (result.exit_code, result.out) == (5, "")
            assert "no proxy serves queryable state" in result.err

    def test_what_cannot_be_has_its_exit_code(self, ask: Ask, tmp_path: Path) -> None:
        """No such job, a directory that is taken, no snapshot, a job that is there."""
        assert ask("snapshot", "nothing", str(tmp_path / "a")).exit_code == 3
        assert ask("restore", "flights", str(tmp_path / "b")).exit_code == 1
        assert ask("snapshot", "flights", str(tmp_path / "c")).exit_code == 0
        again = ask("snapshot", "flights", str(tmp_path / "c"))
        assert (again.exit_code, again.out) == (2, "")
        assert "already" in again.err
        there = ask("restore", "flights", str(tmp_path / "c"))
        assert there.exit_code == 2
        assert "has state already" in there.err
        assert ask("snapshot", "flights", "nonsense://place").exit_code == 2
