from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from nameservice import StaleEpochError
from tests.lodestar.running import Running, run
from tests.recording import (
    ConfirmingContender,
    RecordingListener,
    wait_until,
)


pytestmark = pytest.mark.shells

LEASE_SECONDS = 0.5


def serve(port: int, data_dir: Path) -> Running:
    """Start a server on *port*, and return it once it serves."""
    server = Running(
        *("server", "--bind", f"tcp://127.0.0.1:{port}", "--data-dir", str(data_dir)),
        *("--lease-seconds-max", str(LEASE_SECONDS)),
    )
    server.out.until("serving")
    return server


class TestBackup:
    def test_a_server_goes_on_from_a_backup_on_another_disk(
        self, tmp_path: Path
    ) -> None:
        """
        E2, L2, N6: back up a running server, lose it, restore, and go on.

        The leader that lived on is revoked and granted anew under a higher epoch, since
        its latest commit is not there any more.  Nothing is written under the old one.
        """
        backup = tmp_path / "backup"
        with ReservedPort() as reserved:
            port = reserved.port
            with serve(port, tmp_path / "data") as server:
                config = HAConfig(
                    url=f"leaderserver://127.0.0.1:{port}",
                    lease_seconds=LEASE_SECONDS,
                    session_timeout_seconds=60.0,
                )
                with open_ha_services(config) as ha:
                    election = ha.get_leader_election("flights")
                    contender = ConfirmingContender(election, "a:1")
                    election.start(contender)
                    first = contender.wait_for_confirm()
                    store = ha.get_leader_store("flights")
                    store.put("offset", b"1", session=first)
                    result = run(
                        *("backup", "--data-dir", str(tmp_path / "data")),
                        *("--to", str(backup), "--json"),
                    )
                    assert (result.exit_code, result.err) == (0, "")
                    document = json.loads(result.out)
                    assert (document["jobs"], document["values"]) == (1, 1)
                    ha.operations.revoke("flights")
                    second = contender.wait_for_confirm(2)
                    assert second.epoch > first.epoch
                    store.put("offset", b"2", session=second)
                    listener = RecordingListener()
                    retriever = ha.get_leader_retriever("flights")
                    retriever.start(listener)
                    listener.wait_for_leader(lambda leader: leader is not None)

                    server.process.send_signal(signal.SIGKILL)
                    server.process.wait()
                    restored = tmp_path / "restored"
                    result = run(
                        *("restore-backup", str(backup), "--data-dir", str(restored))
                    )
                    assert (result.exit_code, result.err) == (0, "")
                    assert "1 values of 1 jobs, 1 bytes" in result.out
                    with serve(port, restored) as again:
                        third = contender.wait_for_confirm(3)
                        assert third.epoch > second.epoch
                        assert contender.revoked_count == 2
                        found = store.get("offset")
                        assert found is not None
                        assert found.value == b"1"
                        for ended in (first, second):
                            with pytest.raises(StaleEpochError):
                                store.put("offset", b"3", session=ended)
                        store.put("offset", b"3", session=third, version=found.version)
                        listener.wait_for_latest(
                            lambda leader: (
                                leader is not None and leader.epoch == third.epoch
                            )
                        )
                        epochs = [each.epoch for each in listener.leaders if each]
                        assert epochs == sorted(epochs)
                        wait_until(
                            lambda: election.has_leadership(third.leader_session_id)
                        )
                        ha.close()
                        assert again.end().exit_code == 0

    def test_what_is_wrong_is_told(self, tmp_path: Path) -> None:
        """N5: exit codes 1 and 2, and one line."""
        (tmp_path / "damaged").write_bytes(b"x" * 8192)
        for arguments, exit_code in (
            (("backup", "--data-dir", "nowhere", "--to", "file"), 2),
            (("restore-backup", "nothing", "--data-dir", "new"), 2),
            (("restore-backup", "damaged", "--data-dir", "new"), 1),
        ):
            paths = [
                str(tmp_path / each) if index and not each.startswith("--") else each
                for index, each in enumerate(arguments)
            ]
            result = run(*paths)
            assert (result.exit_code, result.out) == (exit_code, ""), result
            assert len(result.err.splitlines()) == 1
