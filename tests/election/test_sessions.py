from __future__ import annotations

import pytest

from election.patience import Moment
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
        now=Moment(now_ns),
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


class TestDeadline:
    @pytest.mark.proves("E5")
    def test_silence_ends_it_after_the_timeout(self) -> None:
        """E5: one session timeout after the last contact."""
        alice = opened(SessionTable(), now_ns=5)
        assert alice.deadline_ns(Moment(0)) == 5 + TIMEOUT_NS

    @pytest.mark.proves("E5")
    @pytest.mark.parametrize(
        ("closed_ns", "deadline_ns"),
        [(50, 150), (899, 999), (900, 1_000), (901, 1_000)],
    )
    def test_closed_connection_ends_it_after_a_lease(
        self, closed_ns: int, deadline_ns: int
    ) -> None:
        """E5: one lease after the evidence, unless silence ends it before that."""
        alice = opened(SessionTable())
        alice.close_evidence = Moment(closed_ns)
        assert alice.deadline_ns(Moment(0)) == deadline_ns

    @pytest.mark.proves("E1")
    def test_heard_until_the_lease_is_over(self) -> None:
        """E1: heard from within its lease: not at its end, nor after it."""
        alice = opened(SessionTable(), now_ns=5)
        heard = [alice.is_heard(Moment(now_ns)) for now_ns in (5, 104, 105, 106)]
        assert heard == [True, True, False, False]
        assert [
            alice.may_be_granted(Moment(now_ns)) for now_ns in (5, 104, 105)
        ] == heard[:3]

    @pytest.mark.proves("E5")
    def test_closed_connection_forbids_a_grant(self) -> None:
        """E5: one that may have died is not granted, however lately it was heard."""
        alice = opened(SessionTable())
        alice.close_evidence = Moment(0)
        assert alice.is_heard(Moment(1))
        assert not alice.may_be_granted(Moment(1))


@pytest.mark.proves("E5")
class TestHeartbeat:
    def test_newer_number_is_contact(self) -> None:
        """E5: it names the opening, or an answer since: it counts, with gaps too."""
        table = SessionTable()
        alice = opened(table)
        assert table.heartbeat(alice, number=1, acknowledged=0, now=Moment(10))
        assert alice.last_contact_ns == 10
        assert table.heartbeat(alice, number=7, acknowledged=1, now=Moment(20))
        assert alice.last_contact_ns == 20
        assert (alice.heartbeat_number, alice.acknowledged_number) == (7, 1)

    @pytest.mark.parametrize("number", [3, 4])
    def test_older_number_is_nothing(self, number: int) -> None:
        """E5: a number that is repeated or was overtaken is not even answered."""
        table = SessionTable()
        alice = opened(table)
        table.heartbeat(alice, number=4, acknowledged=0, now=Moment(10))
        assert not table.heartbeat(alice, number=number, acknowledged=4, now=Moment(20))
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
        table.heartbeat(alice, number=1, acknowledged=0, now=Moment(10))
        table.heartbeat(alice, number=2, acknowledged=0, now=Moment(900))
        assert table.heartbeat(alice, number=3, acknowledged=1, now=Moment(now_ns))
        assert alice.last_contact_ns == (now_ns if is_contact else 900)

    def test_oldest_answer_counts_no_longer_though_it_is_remembered(self) -> None:
        """E5: the last answer of all is remembered, and ages like the others."""
        table = SessionTable()
        alice = opened(table)
        alice.session_timeout_ns = 10
        assert table.heartbeat(alice, number=1, acknowledged=0, now=Moment(11))
        assert alice.last_contact_ns == 0

    def test_answer_that_was_never_sent_does_not_count(self) -> None:
        """E5: a peer that makes answers up is answered, and keeps nothing alive."""
        table = SessionTable()
        alice = opened(table)
        assert table.heartbeat(alice, number=1, acknowledged=9, now=Moment(10))
        assert alice.last_contact_ns == 0
        assert alice.heartbeat_number == 1

    def test_flood_is_forgotten(self) -> None:
        """E5: only some answers are remembered: the newest ones."""
        table = SessionTable()
        alice = opened(table)
        for number in range(1, ACKNOWLEDGEMENT_COUNT_MAX + 1):
            table.heartbeat(
                alice, number=number, acknowledged=number - 1, now=Moment(1)
            )
        assert len(alice.acknowledgements) == ACKNOWLEDGEMENT_COUNT_MAX
        number = ACKNOWLEDGEMENT_COUNT_MAX + 1
        table.heartbeat(alice, number=number, acknowledged=0, now=Moment(2))
        assert alice.last_contact_ns == 1
        table.heartbeat(alice, number=number + 1, acknowledged=1, now=Moment(3))
        assert alice.last_contact_ns == 1
        table.heartbeat(alice, number=number + 2, acknowledged=number, now=Moment(4))
        assert alice.last_contact_ns == 4


@pytest.mark.proves("E5")
class TestCloseEvidence:
    def test_newer_heartbeat_refutes_it(self) -> None:
        """E5: heard over another connection, the session goes on."""
        table = SessionTable()
        alice = opened(table)
        alice.close_evidence = Moment(10)
        table.heartbeat(alice, number=1, acknowledged=0, now=Moment(20))
        assert alice.close_evidence is None
        assert alice.deadline_ns(Moment(0)) == 20 + TIMEOUT_NS

    def test_heartbeat_that_is_no_contact_refutes_nothing(self) -> None:
        """E5: neither an old one, nor one that names nothing recent."""
        table = SessionTable()
        alice = opened(table)
        alice.close_evidence = Moment(10)
        assert table.heartbeat(alice, number=1, acknowledged=5, now=Moment(20))
        assert not table.heartbeat(alice, number=1, acknowledged=0, now=Moment(30))
        assert alice.close_evidence == Moment(10)

    def test_heartbeat_of_the_closed_connection_refutes_nothing(self) -> None:
        """E5: sent before the end by a process that may have died since."""
        table = SessionTable()
        alice = opened(table)
        table.heartbeat(alice, number=1, acknowledged=0, now=Moment(10))
        alice.close_evidence = Moment(10)
        assert table.heartbeat(
            alice, number=2, acknowledged=1, now=Moment(20), is_late=True
        )
        assert alice.close_evidence == Moment(10)
        assert alice.last_contact_ns == 20

    def test_naming_an_answer_sent_after_the_end_refutes_it(self) -> None:
        """E5: one that has read an answer of later is alive, over any connection."""
        table = SessionTable()
        alice = opened(table)
        alice.close_evidence = Moment(10)
        table.heartbeat(alice, number=1, acknowledged=0, now=Moment(11), is_late=True)
        assert alice.close_evidence == Moment(10)
        table.heartbeat(alice, number=2, acknowledged=1, now=Moment(12), is_late=True)
        assert alice.close_evidence is None


@pytest.mark.proves("E9")
class TestStall:
    @pytest.mark.parametrize("excused_ns", [0, 1, LEASE_NS, 10 * TIMEOUT_NS])
    def test_time_that_stood_still_is_nobodys_silence(self, excused_ns: int) -> None:
        """E9: a heartbeat after a pause names an answer of before, and counts."""
        table = SessionTable()
        alice = opened(table)
        after = Moment(900, excused_ns)
        assert table.heartbeat(alice, number=1, acknowledged=0, now=after)
        assert alice.last_contact == after
        assert alice.last_contact_ns == 900 + excused_ns

    @pytest.mark.parametrize(
        ("excused_ns", "grace_ns"), [(0, 0), (1, 1), (LEASE_NS, 100), (9_999, 100)]
    )
    def test_grace_is_as_much_again_up_to_its_own_lease(
        self, excused_ns: int, grace_ns: int
    ) -> None:
        """E9: for contact and evidence alike; what was sent is read a little later."""
        table = SessionTable()
        alice = opened(table)
        now = Moment(10, excused_ns)
        assert alice.deadline_ns(now) == TIMEOUT_NS + grace_ns
        assert alice.silent_ns(now) == LEASE_NS + grace_ns
        alice.close_evidence = Moment(10)
        assert alice.deadline_ns(now) == 10 + LEASE_NS + grace_ns

    def test_grace_does_not_come_back(self) -> None:
        """E9: a stall before the contact gives nothing after it."""
        table = SessionTable()
        alice = opened(table)
        table.heartbeat(alice, number=1, acknowledged=0, now=Moment(40, 500))
        assert alice.deadline_ns(Moment(40, 500)) == 40 + TIMEOUT_NS
