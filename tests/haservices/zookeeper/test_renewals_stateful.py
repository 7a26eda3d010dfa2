"""`Renewals` against a model that looks through everything that ever happened."""

from __future__ import annotations

import pytest
from attrs import frozen
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from haservices.zookeeper.renewals import (
    ConnectionClosed,
    ConnectionOpened,
    RenewalEvent,
    Renewals,
    SyncAnswered,
    WriteCommitted,
)
from tests.tiers import machine_settings


TIMEOUT_NS = 1_000
PING_NS = 280
SPACING_NS = 10
BELIEF_NS = 900


@frozen
class Exchange:
    """What the leader answered, on which connection; *order* is that of the answers."""

    connection: int
    sent_ns: int
    answered_ns: int
    is_write: bool


class RenewalsMachine(RuleBasedStateMachine):
    """Connections come and go; on each, requests are under way and are answered."""

    @initialize()
    def begin(self) -> None:
        """Begin with no connection."""
        self.core = Renewals()
        self.now_ns = 10_000
        self.connection = 0
        self.is_open = False
        self.session_id = 0
        self.handshakes: dict[int, tuple[int, int]] = {}
        self.exchanges: list[Exchange] = []
        self.written_ns = 0
        self.ended_ns = 0

    def step(self, event: RenewalEvent) -> None:
        """Tell the core."""
        self.core.step(event, now_ns=self.now_ns)

    @rule(passed_ns=st.integers(min_value=1, max_value=400))
    def pass_time(self, passed_ns: int) -> None:
        """Nothing happens for a while."""
        self.now_ns += passed_ns

    @rule(ago_ns=st.integers(min_value=0, max_value=200), is_new=st.booleans())
    def connect(self, ago_ns: int, is_new: bool) -> None:
        """Answer a handshake, of this session or another one."""
        if is_new or self.session_id == 0:
            self.session_id += 1
        self.connection += 1
        self.is_open = True
        sent_ns = self.now_ns - ago_ns
        self.handshakes[self.connection] = (self.session_id, sent_ns)
        self.step(
            ConnectionOpened(
                session_id=self.session_id,
                session_timeout_ns=TIMEOUT_NS,
                sent_ns=sent_ns,
            )
        )

    @rule()
    def disconnect(self) -> None:
        """Break the connection."""
        self.is_open = False
        self.step(ConnectionClosed())

    @rule(ago_ns=st.integers(min_value=0, max_value=500), is_write=st.booleans())
    def answer(self, ago_ns: int, is_write: bool) -> None:
        """Have the leader answer something that was sent a while ago."""
        sent_ns = self.now_ns - ago_ns
        if self.is_open:
            self.exchanges.append(
                Exchange(self.connection, sent_ns, self.now_ns, is_write)
            )
        if is_write:
            self.written_ns = sent_ns
            self.step(WriteCommitted(sent_ns=sent_ns))
        else:
            self.step(SyncAnswered(sent_ns=sent_ns))

    @rule(count=st.integers(min_value=1, max_value=15), is_chained=st.booleans())
    def beat(self, count: int, is_chained: bool) -> None:
        """Have a holder write every tenth of the timeout, after a sync or without."""
        for _ in range(count):
            self.now_ns += 98
            if is_chained:
                self.answer(ago_ns=2, is_write=False)
            self.now_ns += 2
            self.answer(ago_ns=2, is_write=True)

    def proven_ns(self, *, is_generous: bool) -> int | None:
        """
        Return the newest proven renewal of the session: every triple is tried.

        Args:
            is_generous: Whether an exchange may be the first of a proof however soon
                it came after another one.
        """
        found: list[int] = []
        for connection, (session_id, sent_ns) in self.handshakes.items():
            if session_id != self.session_id:
                continue
            exchanges = [one for one in self.exchanges if one.connection == connection]
            writes = [one for one in exchanges if one.is_write]
            if writes:
                found.append(sent_ns)
            for index, first in enumerate(exchanges):
                witnesses = [
                    one
                    for one in exchanges[index + 1 :]
                    if one.sent_ns >= first.answered_ns + PING_NS
                ]
                if any(
                    write.sent_ns >= witness.answered_ns
                    for witness in witnesses
                    for write in writes
                ):
                    late_ns = 0 if is_generous else SPACING_NS + 500
                    found.append(first.sent_ns - late_ns)
        return max(found, default=None)

    @invariant()
    def proves_no_more_than_happened(self) -> None:
        """E4: what the core takes for a renewal is one."""
        if not hasattr(self, "core"):
            return
        most_ns = self.proven_ns(is_generous=True)
        if most_ns is None:
            assert self.core.renewed_ns is None
        else:
            assert self.core.renewed_ns is None or self.core.renewed_ns <= most_ns

    @invariant()
    def proves_what_holders_need(self) -> None:
        """E4: what is proven is not forgotten while it could be a ground for belief."""
        if not hasattr(self, "core"):
            return
        least_ns = self.proven_ns(is_generous=False)
        if least_ns is not None and least_ns + BELIEF_NS > self.now_ns:
            assert self.core.renewed_ns is not None
            assert self.core.renewed_ns >= least_ns

    @invariant()
    def belief_is_bounded(self) -> None:
        """E4: two thirds after the write, nine tenths after the renewal."""
        if not hasattr(self, "core"):
            return
        ends_ns = self.core.belief_ends_ns(self.written_ns)
        if self.core.renewed_ns is None:
            assert ends_ns == 0
        else:
            assert ends_ns <= self.core.renewed_ns + BELIEF_NS
            assert ends_ns <= self.written_ns + TIMEOUT_NS * 2 // 3


TestRenewals = pytest.mark.proves("E4")(RenewalsMachine.TestCase)
TestRenewals.settings = machine_settings()
