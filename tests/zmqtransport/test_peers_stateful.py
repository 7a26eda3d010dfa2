"""Who lives and who has gone, however late it is read what they have said (E5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.tiers import machine_settings
from zmqtransport import (
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionId,
    Peer,
    PeerTable,
)


NUMBERS = [ConnectionId(7), ConnectionId(8)]
BURST_COUNT_MAX = 3


@attrs.define(eq=False)
class Connection:
    """
    One connection, as the model knows it.

    Attributes:
        number: Its descriptor.
        routing_id: As ZeroMQ has drawn it.
        waiting_count: How many of its words the server has not read.
        is_open: Whether it is there still.
        is_named: Whether it has named itself, as none of ours does.
        has_been_heard: Whether a word of it was read.
        has_ended_heard: Whether one was before the report of its end.
    """

    number: ConnectionId
    routing_id: bytes
    waiting_count: int = 0
    is_open: bool = True
    is_named: bool = False
    has_been_heard: bool = False
    has_ended_heard: bool = False


class PeerMachine(RuleBasedStateMachine):
    """
    Connections come, speak and go; a server reads reports and words when it likes.

    Words of one connection are read in order, those of several in any order, and
    always behind the report that it was accepted.
    """

    @initialize(drawn=st.sampled_from([5, 2**32 - 3]))
    def begin(self, drawn: int) -> None:
        """Start with no connection; *drawn* is the first number of ZeroMQ's."""
        self.drawn = drawn
        self.peers = PeerTable()
        self.connections: list[Connection] = []
        self.reports: deque[ConnectionEvent] = deque()
        self.alive: dict[Peer, Connection] = {}

    def open_ones(self) -> list[Connection]:
        """Return the connections that are there."""
        return [each for each in self.connections if each.is_open]

    def spoken(self) -> list[Connection]:
        """Return the connections of which a word waits."""
        return [each for each in self.connections if each.waiting_count]

    @rule(number=st.sampled_from(NUMBERS), is_named=st.booleans())
    def accept(self, number: ConnectionId, is_named: bool) -> None:
        """A client connects, if that number is free."""
        if number in {each.number for each in self.open_ones()}:
            return
        self.drawn = (self.drawn + 1) % 2**32
        routing_id = (b"n" if is_named else b"\0") + self.drawn.to_bytes(4)
        self.connections.append(Connection(number, routing_id, is_named=is_named))
        self.reports.append(ConnectionAccepted(connection_id=number))

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), count=st.integers(1, 2 * BURST_COUNT_MAX))
    def speak(self, data: st.DataObject, count: int) -> None:
        """A client says something."""
        data.draw(st.sampled_from(self.open_ones())).waiting_count += count

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """A client goes; what it has said stays."""
        gone = data.draw(st.sampled_from(self.open_ones()))
        gone.is_open = False
        self.reports.append(ConnectionClosed(connection_id=gone.number))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Take a burst of words, as `Port` does."""
        for _ in range(BURST_COUNT_MAX):
            if not self.spoken():
                return
            self.hear(data.draw(st.sampled_from(self.spoken())))

    def hear(self, each: Connection) -> None:
        """Take one word."""
        each.waiting_count -= 1
        each.has_been_heard = True
        peer = self.peers.find(each.number, each.routing_id)
        if peer is None:
            self.take_reports()
            peer = self.peers.add(each.number, each.routing_id)
        assert self.alive.setdefault(peer, each) is each

    def take_reports(self) -> None:
        """Take all reports that wait."""
        while self.reports:
            match self.reports.popleft():
                case ConnectionAccepted(connection_id=number):
                    self.peers.accepted(number)
                case ConnectionClosed(connection_id=number):
                    for peer, each in self.alive.items():
                        if peer.connection == number:
                            each.has_ended_heard = True
                    self.peers.closed(number)
                case report:
                    raise AssertionError(report)

    @rule(data=st.data(), accepted=st.none() | st.sampled_from(NUMBERS))
    def watch(self, data: st.DataObject, accepted: ConnectionId | None) -> None:
        """Read all reports, then a burst, then who is over; see `Port.watch`."""
        self.take_reports()
        over = self.peers.over()
        if accepted is not None:
            self.accept(accepted, is_named=False)
            for each in self.open_ones():
                each.waiting_count += 1
        self.read(data)
        self.end(over)

    def end(self, over: Iterable[Peer]) -> None:
        """Tell who is over."""
        for peer in self.peers.remove(over):
            assert not self.alive.pop(peer).is_open, "one that lives is told as over"

    @invariant()
    def only_who_has_gone_is_over(self) -> None:
        """Whose connection is there and has been heard is in the table."""
        heard = {each.routing_id for each in self.open_ones() if each.has_been_heard}
        assert heard <= {peer.routing_id for peer in self.alive}

    def teardown(self) -> None:
        """
        Once all is read, who was heard before its end is gone.

        Of the others those stay whose number is in use by one that is silent, or that
        is not comparable: one of the two has named itself.
        """
        self.read_all()
        assert not any(
            each.has_ended_heard and not each.is_named for each in self.dead()
        )
        for each in self.open_ones():
            each.waiting_count += 1
        self.read_all()
        holders = {each.number: each for each in self.open_ones()}
        for each in self.dead():
            assert each.is_named or holders[each.number].is_named
        assert set(self.alive.values()) >= set(self.open_ones())
        assert len(self.peers) == len(self.alive)

    def dead(self) -> list[Connection]:
        """Return those that are not told as over, and have gone."""
        return [each for each in self.alive.values() if not each.is_open]

    def read_all(self) -> None:
        """Take all words and all reports."""
        for each in self.connections:
            while each.waiting_count:
                self.hear(each)
        self.take_reports()
        self.end(self.peers.over())


TestPeerMachine = pytest.mark.proves("E5")(PeerMachine.TestCase)
TestPeerMachine.settings = machine_settings(examples=100, steps=30)
