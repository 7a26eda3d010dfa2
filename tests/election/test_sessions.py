from __future__ import annotations

import pytest

from election.sessions import ACKNOWLEDGEMENT_COUNT_MAX, Session, SessionTable


TIMEOUT_NS = 1_000
LEASE_NS = 100


def opened(
    table: SessionTable,
    session_id: str = "alice",
    *,
    lease_ns: int = LEASE_NS,
    now_ns: int = 0,
) -> Session:
    """Open a session and return it."""
    return table.open(
        session_id,
        client=f"client of {session_id}",
        session_timeout_ns=TIMEOUT_NS,
        lease_ns=lease_ns,
        now_ns=now_ns,
    )


class TestTable:
    def test_keeps_what_was_opened(self) -> None:
        """A session is found by its id until it is closed; closing returns it."""
        table = SessionTable()
        assert table.get("alice") is None
        alice = opened(table, now_ns=5)
        assert alice.client == "client of alice"
        assert (alice.opened_ns, alice.last_contact_ns) == (5, 5)
        assert table.get("alice") is alice
        assert table.close("alice") is alice
        assert table.get("alice") is None

    def test_lists_in_the_order_of_opening(self) -> None:
        """The oldest session comes first, and closing one while listing is safe."""
        table = SessionTable()
        for session_id in ("carol", "alice", "bob"):
            opened(table, session_id)
        assert len(table) == 3
        closed = [table.close(session.session_id).session_id for session in table]
        assert closed == ["carol", "alice", "bob"]
        assert len(table) == 0

    def test_id_is_never_used_twice(self) -> None:
        """The shell draws ids: one that is in use is a mistake of ours."""
        table = SessionTable()
        opened(table)
        with pytest.raises(AssertionError):
            opened(table)

    def test_knows_shortest_and_longest_lease(self) -> None:
        """E9: both follow what is opened and closed; 0 stands for nobody."""
        table = SessionTable()
        seen = [(table.lease_ns_min, table.lease_ns_max)]
        for session_id, lease_ns in (("a", 30), ("b", 10), ("c", 10), ("d", 20)):
            opened(table, session_id, lease_ns=lease_ns)
            seen.append((table.lease_ns_min, table.lease_ns_max))
        for session_id in ("b", "a", "c", "d"):
            table.close(session_id)
            seen.append((table.lease_ns_min, table.lease_ns_max))
        assert seen == [
            (0, 0),
            *((30, 30), (10, 30), (10, 30), (10, 30)),
            *((10, 30), (10, 20), (20, 20), (0, 0)),
        ]


class TestDeadline:
    def test_silence_ends_it_after_the_timeout(self) -> None:
        """E5: one session timeout after the last contact."""
        alice = opened(SessionTable(), now_ns=5)
        assert alice.deadline_ns() == 5 + TIMEOUT_NS

    @pytest.mark.parametrize(
        ("closed_ns", "deadline_ns"),
        [(50, 150), (899, 999), (900, 1_000), (901, 1_000)],
    )
    def test_closed_connection_ends_it_after_a_lease(
        self, closed_ns: int, deadline_ns: int
    ) -> None:
        """E5: one lease after the evidence, unless silence ends it before that."""
        alice = opened(SessionTable())
        alice.close_evidence_ns = closed_ns
        assert alice.deadline_ns() == deadline_ns

    def test_heard_until_the_lease_is_over(self) -> None:
        """E1: heard from within its lease: not at its end, nor after it."""
        alice = opened(SessionTable(), now_ns=5)
        heard = [alice.is_heard(now_ns) for now_ns in (5, 104, 105, 106)]
        assert heard == [True, True, False, False]
        assert [alice.may_be_granted(now_ns) for now_ns in (5, 104, 105)] == heard[:3]

    def test_closed_connection_forbids_a_grant(self) -> None:
        """E5: whoever may have died is not granted, however lately it was heard."""
        alice = opened(SessionTable())
        alice.close_evidence_ns = 0
        assert alice.is_heard(1)
        assert not alice.may_be_granted(1)


class TestHeartbeat:
    def test_newer_number_is_contact(self) -> None:
        """E5: it names the opening, or an answer since: it counts, with gaps too."""
        table = SessionTable()
        alice = opened(table)
        assert table.heartbeat(alice, number=1, acknowledged=0, now_ns=10)
        assert alice.last_contact_ns == 10
        assert table.heartbeat(alice, number=7, acknowledged=1, now_ns=20)
        assert alice.last_contact_ns == 20
        assert (alice.heartbeat_number, alice.acknowledged_number) == (7, 1)

    @pytest.mark.parametrize("number", [3, 4])
    def test_older_number_is_nothing(self, number: int) -> None:
        """E5: a number that is repeated or was overtaken is not even answered."""
        table = SessionTable()
        alice = opened(table)
        table.heartbeat(alice, number=4, acknowledged=0, now_ns=10)
        assert not table.heartbeat(alice, number=number, acknowledged=4, now_ns=20)
        assert alice.last_contact_ns == 10
        assert (alice.heartbeat_number, alice.acknowledged_number) == (4, 0)

    @pytest.mark.parametrize(
        ("now_ns", "is_contact"),
        [(10 + 999, True), (10 + 1_000, True), (10 + 1_001, False)],
    )
    def test_named_answer_must_be_recent(self, now_ns: int, is_contact: bool) -> None:
        """E5: an answer sent one session timeout ago counts; one before that, not."""
        table = SessionTable()
        alice = opened(table)
        table.heartbeat(alice, number=1, acknowledged=0, now_ns=10)
        table.heartbeat(alice, number=2, acknowledged=0, now_ns=900)
        assert table.heartbeat(alice, number=3, acknowledged=1, now_ns=now_ns)
        assert alice.last_contact_ns == (now_ns if is_contact else 900)

    def test_oldest_answer_counts_no_longer_though_it_is_remembered(self) -> None:
        """E5: the last answer of all is remembered, and ages like the others."""
        table = SessionTable()
        alice = opened(table)
        alice.session_timeout_ns = 10
        assert table.heartbeat(alice, number=1, acknowledged=0, now_ns=11)
        assert alice.last_contact_ns == 0

    def test_answer_that_was_never_sent_does_not_count(self) -> None:
        """E5: a peer that makes answers up is answered, and keeps nothing alive."""
        table = SessionTable()
        alice = opened(table)
        assert table.heartbeat(alice, number=1, acknowledged=9, now_ns=10)
        assert alice.last_contact_ns == 0
        assert alice.heartbeat_number == 1

    def test_flood_is_forgotten(self) -> None:
        """E5: only so many answers are remembered: the newest ones."""
        table = SessionTable()
        alice = opened(table)
        for number in range(1, ACKNOWLEDGEMENT_COUNT_MAX + 1):
            table.heartbeat(alice, number=number, acknowledged=number - 1, now_ns=1)
        assert len(alice.acknowledgements) == ACKNOWLEDGEMENT_COUNT_MAX
        number = ACKNOWLEDGEMENT_COUNT_MAX + 1
        table.heartbeat(alice, number=number, acknowledged=0, now_ns=2)
        assert alice.last_contact_ns == 1
        table.heartbeat(alice, number=number + 1, acknowledged=1, now_ns=3)
        assert alice.last_contact_ns == 1
        table.heartbeat(alice, number=number + 2, acknowledged=number, now_ns=4)
        assert alice.last_contact_ns == 4

    def test_contact_never_goes_back(self) -> None:
        """E9: after a stall contact may lie ahead; a heartbeat does not undo that."""
        table = SessionTable()
        alice = opened(table)
        table.shift(150, latest_ns=200)
        assert table.heartbeat(alice, number=1, acknowledged=0, now_ns=120)
        assert alice.last_contact_ns == 150


class TestCloseEvidence:
    def test_newer_heartbeat_refutes_it(self) -> None:
        """E5: heard over another connection, the session goes on."""
        table = SessionTable()
        alice = opened(table)
        alice.close_evidence_ns = 10
        table.heartbeat(alice, number=1, acknowledged=0, now_ns=20)
        assert alice.close_evidence_ns is None
        assert alice.deadline_ns() == 20 + TIMEOUT_NS

    def test_heartbeat_that_is_no_contact_refutes_nothing(self) -> None:
        """E5: neither an old one, nor one that names nothing recent."""
        table = SessionTable()
        alice = opened(table)
        alice.close_evidence_ns = 10
        assert table.heartbeat(alice, number=1, acknowledged=5, now_ns=20)
        assert not table.heartbeat(alice, number=1, acknowledged=0, now_ns=30)
        assert alice.close_evidence_ns == 10

    def test_heartbeat_of_the_closed_connection_refutes_nothing(self) -> None:
        """E5: sent before the end by a process that may have died since."""
        table = SessionTable()
        alice = opened(table)
        table.heartbeat(alice, number=1, acknowledged=0, now_ns=10)
        alice.close_evidence_ns = 10
        assert table.heartbeat(alice, number=2, acknowledged=1, now_ns=20, is_late=True)
        assert alice.close_evidence_ns == 10
        assert alice.last_contact_ns == 20

    def test_naming_an_answer_sent_after_the_end_refutes_it(self) -> None:
        """E5: whoever has read an answer of later is alive, over any connection."""
        table = SessionTable()
        alice = opened(table)
        alice.close_evidence_ns = 10
        table.heartbeat(alice, number=1, acknowledged=0, now_ns=11, is_late=True)
        assert alice.close_evidence_ns == 10
        table.heartbeat(alice, number=2, acknowledged=1, now_ns=12, is_late=True)
        assert alice.close_evidence_ns is None


class TestShift:
    def test_moves_everything_of_everybody(self) -> None:
        """E9: contact, evidence and the window of answers move together."""
        table = SessionTable()
        alice, bob = opened(table, "alice"), opened(table, "bob")
        table.heartbeat(alice, number=1, acknowledged=0, now_ns=40)
        bob.close_evidence_ns = 10
        table.shift(100, latest_ns=500)
        assert (alice.last_contact_ns, bob.last_contact_ns) == (140, 100)
        assert list(alice.acknowledgements) == [(0, 100), (1, 140)]
        assert alice.close_evidence_ns is None
        assert bob.close_evidence_ns == 110

    def test_moves_nothing_beyond_the_latest(self) -> None:
        """E9: stalls in a row do not add up for ever."""
        table = SessionTable()
        alice = opened(table)
        table.heartbeat(alice, number=1, acknowledged=0, now_ns=40)
        alice.close_evidence_ns = 45
        table.shift(100, latest_ns=120)
        assert alice.last_contact_ns == 120
        assert alice.close_evidence_ns == 120
        assert list(alice.acknowledgements) == [(0, 100), (1, 120)]

    def test_window_of_answers_stays_bounded(self) -> None:
        """E5, E9: a stall does not lift the limit of what is remembered."""
        table = SessionTable()
        alice = opened(table)
        table.shift(1, latest_ns=500)
        assert alice.acknowledgements.maxlen == ACKNOWLEDGEMENT_COUNT_MAX
