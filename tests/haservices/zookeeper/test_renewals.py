from __future__ import annotations

import pytest

from haservices.zookeeper.renewals import (
    ConnectionClosed,
    ConnectionOpened,
    RenewalEvent,
    Renewals,
    SyncAnswered,
    WriteCommitted,
)


TIMEOUT_NS = 1_000
SESSION = 0x1234


class History:
    """Exchanges that are answered two nanoseconds after they were sent."""

    def __init__(self) -> None:
        self.core = Renewals()

    def step(self, event: RenewalEvent, now_ns: int) -> None:
        """Tell the core."""
        self.core.step(event, now_ns=now_ns)

    def open(self, sent_ns: int, session_id: int = SESSION) -> None:
        """Answer a handshake."""
        self.step(
            ConnectionOpened(
                session_id=session_id, session_timeout_ns=TIMEOUT_NS, sent_ns=sent_ns
            ),
            sent_ns + 2,
        )

    def sync(self, sent_ns: int) -> None:
        """Have the leader answer a sync."""
        self.step(SyncAnswered(sent_ns=sent_ns), sent_ns + 2)

    def write(self, sent_ns: int, *, answered_ns: int | None = None) -> None:
        """Have a write commit."""
        self.step(
            WriteCommitted(sent_ns=sent_ns),
            sent_ns + 2 if answered_ns is None else answered_ns,
        )


@pytest.fixture
def history() -> History:
    """Return a session that was just opened, with nothing proven."""
    history = History()
    history.open(1_000)
    return history


@pytest.mark.proves("E4")
def test_a_handshake_alone_proves_nothing(history: History) -> None:
    """E4: a leader that was deposed also answers handshakes."""
    assert history.core.renewed_ns is None
    assert history.core.belief_ends_ns(1_002) == 0


@pytest.mark.proves("E4")
def test_a_write_after_a_handshake_proves_the_handshake(history: History) -> None:
    """E4: the leader renews the session before a handshake is answered."""
    history.write(1_100)
    assert history.core.renewed_ns == 1_000
    assert history.core.belief_ends_ns(1_100) == 1_100 + TIMEOUT_NS * 2 // 3


@pytest.mark.proves("E4")
def test_belief_never_outlasts_what_is_proven(history: History) -> None:
    """E4: nine tenths of the timeout after the newest proven renewal, not longer."""
    history.write(1_600)
    assert history.core.belief_ends_ns(1_600) == 1_000 + 900


@pytest.mark.proves("E4")
def test_belief_counts_from_the_send_of_the_write(history: History) -> None:
    """E4: an answer that comes late prolongs nothing."""
    history.write(1_100, answered_ns=1_500)
    assert history.core.belief_ends_ns(1_100) == 1_100 + TIMEOUT_NS * 2 // 3


@pytest.mark.proves("E4")
def test_a_write_after_a_pause_is_no_ground_for_belief(history: History) -> None:
    """E4: it commits through a follower that has not told the leader of us yet."""
    for sent_ns in range(1_000, 2_000, 100):
        history.write(sent_ns)
    history.write(2_700)
    assert history.core.belief_ends_ns(2_700) <= 1_900 + 900


@pytest.mark.proves("E4")
def test_a_ping_between_two_exchanges_renews(history: History) -> None:
    """E4: the third write proves what the follower told before it passed it on."""
    history.write(1_010)
    history.write(1_400)
    assert history.core.renewed_ns == 1_000
    history.write(1_402)
    assert history.core.renewed_ns == 1_010


@pytest.mark.proves("E4")
def test_a_write_under_way_with_its_witness_proves_nothing(history: History) -> None:
    """E4: it may have overtaken the follower's answer to the ping."""
    history.write(1_010)
    history.sync(1_400)
    history.write(1_401, answered_ns=1_410)
    assert history.core.renewed_ns == 1_000


@pytest.mark.proves("E4")
def test_exchanges_too_close_for_a_ping_prove_nothing(history: History) -> None:
    """E4: between them the leader need not have pinged the follower."""
    history.write(1_010)
    history.write(1_012 + 279)
    history.write(1_400)
    assert history.core.renewed_ns == 1_000
    history.write(1_500)
    assert history.core.renewed_ns == 1_010


@pytest.mark.proves("E4")
def test_syncs_alone_prove_nothing(history: History) -> None:
    """E4: a leader that was deposed also answers them; a write must commit."""
    history.write(1_010)
    for sent_ns in range(1_100, 2_000, 100):
        history.sync(sent_ns)
    assert history.core.renewed_ns == 1_000
    history.write(2_000)
    # The newest witness that was answered is of 1,900, and the first of 1,600.
    assert history.core.renewed_ns == 1_600


@pytest.mark.proves("E4")
def test_what_was_seen_on_an_old_connection_proves_nothing_on_a_new_one(
    history: History,
) -> None:
    """E4: the servers differ, and nothing orders them."""
    history.write(1_010)
    history.write(1_400)
    history.step(ConnectionClosed(), 1_410)
    history.write(1_412)
    history.sync(1_413)
    history.open(1_420)
    assert history.core.renewed_ns == 1_000
    history.write(1_430)
    assert history.core.renewed_ns == 1_420


@pytest.mark.proves("E4")
def test_another_session_begins_with_nothing(history: History) -> None:
    """E4: what is proven of one session says nothing of the next."""
    history.write(1_010)
    history.step(ConnectionClosed(), 1_410)
    history.open(1_420, session_id=SESSION + 1)
    assert history.core.renewed_ns is None


@pytest.mark.proves("E5")
def test_the_same_session_keeps_what_is_proven(history: History) -> None:
    """E5: belief goes on while another server is looked for."""
    history.write(1_010)
    history.step(ConnectionClosed(), 1_410)
    history.open(1_420)
    assert history.core.renewed_ns == 1_000


@pytest.mark.proves("E4")
def test_steady_writes_leave_half_of_the_timeout(history: History) -> None:
    """E4: a sync and a write every tenth of the timeout keep belief well ahead."""
    for sent_ns in range(1_100, 5_000, 100):
        history.sync(sent_ns)
        history.write(sent_ns + 2)
        if sent_ns > 2_000:
            assert history.core.belief_ends_ns(sent_ns + 2) >= sent_ns + 590
