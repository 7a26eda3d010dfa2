"""E5: a leader whose process dies, without a word."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from haservices import Guarantee
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.harness import PATIENT, QUICK
from tests.conformance.selection import requires
from tests.recording import RecordingListener


if TYPE_CHECKING:
    from tests.conformance.harness import Harness


PROGRAM = """
import json, sys
from haservices import HAConfig, campaign, open_ha_services
settings = json.loads(sys.argv[1])
with open_ha_services(HAConfig(**settings)) as ha:
    with campaign(ha, sys.argv[2], "child:1", timeout_seconds=60.0) as leadership:
        print(leadership.epoch, flush=True)
        sys.stdin.read()
"""


@requires(Guarantee.ACROSS_PROCESSES)
class TestE5Death:
    @pytest.mark.proves("E5")
    def test_killed_leader_is_succeeded(self, harness: Harness) -> None:
        """
        E5: SIGKILL, and the next one is granted under a higher epoch.

        FAILOVER_WITHIN_LEASE: where death closes the connection that is the evidence,
        and the session timeout (a minute here) is not waited for.
        """
        settings: dict[str, Any] = QUICK
        if Guarantee.FAILOVER_WITHIN_LEASE in harness.guarantees:
            settings = PATIENT
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                json.dumps(harness.config(**settings).to_settings()),
                JOB,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            epoch = int(child.stdout.readline())
            listener = RecordingListener()
            harness.open().get_leader_retriever(JOB).start(listener)
            listener.wait_for_leader(
                lambda leader: leader is not None and leader.address == "child:1"
            )
            follower = Candidate(harness.open(), "follower:1")
            child.kill()
        session = follower.wait_for_confirm()
        assert session.epoch > epoch
        listener.wait_for_latest(follower.is_leader)
        assert len(follower.election.contenders()) == 1
