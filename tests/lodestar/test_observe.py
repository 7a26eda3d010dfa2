from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

from election import ContenderInformation
from haservices import ComponentInformation
from lodestar.observe import (
    change_document,
    change_text,
    component_document,
    contender_document,
    contenders_text,
    leader_document,
    leader_text,
    leaders_text,
)
from retrieval import LeaderInformation


EPOCH = 946_684_800 << 32 | 7
SESSION = UUID("2f1c0e9a-7c1f-4d53-9f0e-6f1d4a3b2c1d")
LEADER = LeaderInformation(
    address="tcp://10.0.0.7:8000", leader_session_id=SESSION, epoch=EPOCH
)
LEADER_DOCUMENT = {
    "address": "tcp://10.0.0.7:8000",
    "epoch": EPOCH,
    "leader_session_id": str(SESSION),
}
MOMENT = datetime(2026, 3, 1, 4, 5, 6, 789_000, tzinfo=UTC)


class TestLeaders:
    COMPONENTS = (
        ComponentInformation(
            component_id="flights", leader=LEADER, contender_count=2, epoch=EPOCH
        ),
        ComponentInformation(
            component_id="orders", leader=None, contender_count=1, epoch=None
        ),
    )

    def test_a_line_for_each_job(self) -> None:
        """N6: who leads what, in columns; "none" where there is no leader."""
        assert leaders_text(self.COMPONENTS).splitlines() == [
            "JOB      LEADER               EPOCH                CONTENDERS",
            "flights  tcp://10.0.0.7:8000  4065980255620300807  2",
            "orders   none                 -                    1",
        ]

    def test_an_empty_name_service_says_so(self) -> None:
        """N6: a person is told that there is nothing, not shown a bare heading."""
        assert leaders_text(()) == "there are no contenders"

    def test_the_document(self) -> None:
        """N6: --json has the same, null where there is nothing."""
        documents = [component_document(each) for each in self.COMPONENTS]
        assert json.loads(json.dumps(documents)) == [
            {
                "job": "flights",
                "leader": LEADER_DOCUMENT,
                "epoch": EPOCH,
                "contender_count": 2,
            },
            {"job": "orders", "leader": None, "epoch": None, "contender_count": 1},
        ]


class TestLeader:
    def test_a_line_for_each_thing(self) -> None:
        """N6: address, epoch and leader session id."""
        assert leader_text("flights", LEADER).splitlines() == [
            "job      flights",
            "address  tcp://10.0.0.7:8000",
            "epoch    4065980255620300807",
            f"session  {SESSION}",
        ]

    def test_the_document(self) -> None:
        """N6: an epoch is a number, exact; an id is text."""
        assert json.loads(json.dumps(leader_document(LEADER))) == LEADER_DOCUMENT


class TestWatch:
    def test_a_change_to_a_leader(self) -> None:
        """N6: when, who, and which leadership."""
        when = f"{MOMENT.astimezone():%Y-%m-%d %H:%M:%S}.789"
        assert change_text("flights", LEADER, MOMENT) == (
            f"{when}  tcp://10.0.0.7:8000 leads flights"
            f"  epoch {EPOCH}  session {SESSION}"
        )

    def test_a_change_to_nobody(self) -> None:
        """N6: that there is no leader is a change like any other."""
        assert change_text("flights", None, MOMENT).endswith("  flights has no leader")

    def test_an_address_stays_on_its_line(self) -> None:
        """N6: one change is one line, whatever the leader calls itself."""
        leader = LeaderInformation(address="a\nb", leader_session_id=SESSION, epoch=1)
        assert len(change_text("flights", leader, MOMENT).splitlines()) == 1

    def test_the_documents(self) -> None:
        """N6: each line of --json is complete in itself."""
        assert change_document("flights", LEADER, MOMENT) == {
            "time": "2026-03-01T04:05:06.789Z",
            "job": "flights",
            "leader": LEADER_DOCUMENT,
        }
        assert change_document("flights", None, MOMENT)["leader"] is None


class TestContenders:
    CONTENDERS = (
        ContenderInformation(
            contender_id="c-1",
            session_id="s-1",
            address="tcp://10.0.0.7:8000",
            is_leader=True,
            session_age_seconds=130.0,
            last_heard_seconds=0.05,
        ),
        ContenderInformation(
            contender_id="c-2",
            session_id="s-2",
            address=None,
            is_leader=False,
            session_age_seconds=1.0,
            last_heard_seconds=None,
        ),
    )

    def test_they_stand_in_order_with_relative_times(self) -> None:
        """N6: the leader first, then who is next; ages a person can read."""
        text = contenders_text("flights", self.CONTENDERS)
        assert text.splitlines() == [
            "TURN   CONTENDER  ADDRESS              SESSION  SESSION AGE  LAST HEARD",
            "leads  c-1        tcp://10.0.0.7:8000  s-1      2 min 10 s   0.05 s ago",
            "2      c-2        -                    s-2      1.00 s       -",
        ]

    def test_nobody(self) -> None:
        """N6: no contenders are told in words."""
        assert contenders_text("flights", ()) == "flights has no contenders"

    def test_the_document(self) -> None:
        """N6: --json has numbers of seconds."""
        assert contender_document(self.CONTENDERS[1]) == {
            "contender_id": "c-2",
            "session_id": "s-2",
            "address": None,
            "is_leader": False,
            "session_age_seconds": 1.0,
            "last_heard_seconds": None,
        }
