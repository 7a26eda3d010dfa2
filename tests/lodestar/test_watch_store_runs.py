"""N6: what leaders have stored, told by a real process."""

from __future__ import annotations

import base64
import json
import signal

import pytest

from haservices import HAConfig, campaign, open_ha_services
from tests.lodestar.running import Running


pytestmark = pytest.mark.shells


class TestWatchStore:
    def test_what_is_there_comes_first_then_each_change(
        self, url: str, cluster_id: str
    ) -> None:
        """N6, L5: a line each, for people and for programs; signals end it with 0."""
        at = ("--url", url, "--cluster-id", cluster_id)
        with (
            open_ha_services(HAConfig(url=url, cluster_id=cluster_id)) as ha,
            campaign(ha, "flights", "a:1", timeout_seconds=30) as leadership,
        ):
            store, session = ha.get_leader_store("flights"), leadership.session
            store.put("totals/AA", b"\xff12", session=session)
            store.put("other", b"", session=session)
            with (
                Running("watch-store", "flights", "totals/", *at) as people,
                Running("watch-store", "flights", "--json", *at) as programs,
            ):
                assert people.out.next() == f"watching the store of flights at {url}"
                line = people.out.next()
                assert line.endswith("  flights: totals/AA is at version 1, 3 B")
                first, second = (json.loads(programs.out.next()) for _ in range(2))
                assert (first["path"], second["path"]) == ("other", "totals/AA")
                assert base64.b64decode(second["value_base64"]) == b"\xff12"
                store.delete("totals/AA", session=session)
                line = people.out.next()
                assert line.endswith("  flights: totals/AA is deleted")
                deleted = json.loads(programs.out.next())
                assert (deleted["version"], deleted["value_base64"]) == (0, None)
                ends = [people.end(), programs.end(signal.SIGINT)]
        assert [(end.exit_code, end.out) for end in ends] == [(0, "")] * 2
        assert all("Traceback" not in end.err for end in ends)
