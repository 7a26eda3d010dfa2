from __future__ import annotations

import json

from haservices import SessionInformation
from lodestar.operate import session_document, sessions_text, status_text


class TestSessions:
    SESSIONS = (
        SessionInformation(
            session_id="s-1",
            client="collector-1",
            component_ids=("flights", "orders"),
            leads_component_ids=("flights",),
            age_seconds=7_260.0,
            last_heard_seconds=0.1,
            timeout_seconds=10.0,
        ),
        SessionInformation(
            session_id="0x100a",
            client="10.0.0.9:40122",
            component_ids=(),
            leads_component_ids=(),
            age_seconds=None,
            last_heard_seconds=None,
            timeout_seconds=None,
        ),
    )

    def test_a_line_for_each_session(self) -> None:
        """N6: who it is, what it leads, and when it was heard from."""
        lines = sessions_text(self.SESSIONS).splitlines()
        # The later columns stand apart, so that each line of this test fits.
        assert [line[:50].rstrip() for line in lines] == [
            "SESSION  CLIENT          LEADS    CONTENDS FOR",
            "s-1      collector-1     flights  flights orders",
            "0x100a   10.0.0.9:40122  -        -",
        ]
        assert [line[50:] for line in lines] == [
            "AGE        LAST HEARD  TIMEOUT",
            "2 h 1 min  0.10 s ago  10 s",
            "-          -           -",
        ]

    def test_none(self) -> None:
        """N6: no sessions are told in words."""
        assert sessions_text(()) == "there are no sessions"

    def test_the_document(self) -> None:
        """N6: --json has lists and numbers, null where nothing is told."""
        documents = [session_document(each) for each in self.SESSIONS]
        assert json.loads(json.dumps(documents)) == [
            {
                "session_id": "s-1",
                "client": "collector-1",
                "jobs": ["flights", "orders"],
                "leads_jobs": ["flights"],
                "age_seconds": 7260.0,
                "last_heard_seconds": 0.1,
                "timeout_seconds": 10.0,
            },
            {
                "session_id": "0x100a",
                "client": "10.0.0.9:40122",
                "jobs": [],
                "leads_jobs": [],
                "age_seconds": None,
                "last_heard_seconds": None,
                "timeout_seconds": None,
            },
        ]


class TestStatus:
    def test_figures_stand_by_name(self) -> None:
        """N6: a name and a value per line, sorted, as mntr has them."""
        figures: dict[str, str | int | float] = {
            "zk_version": "3.9.5",
            "zk_avg_latency": 0.5,
            "zk_watch_count": 3,
        }
        assert status_text(figures).splitlines() == [
            "zk_avg_latency  0.5",
            "zk_version      3.9.5",
            "zk_watch_count  3",
        ]
