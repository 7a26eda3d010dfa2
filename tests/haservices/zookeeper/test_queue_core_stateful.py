"""`QueueCore`: three contenders in one queue, whose connections and sessions break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from haservices.zookeeper.records import decode_contender, encode_record
from tests.haservices.zookeeper.queue_world import TIMEOUT_NS, Client, Tree


if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

COUNT = 3
NUMBERS: SearchStrategy[int] = st.integers(min_value=0, max_value=COUNT - 1)


class QueueMachine(RuleBasedStateMachine):
    """
    ZooKeeper's side is a tree of nodes; each core is one contender.

    Whatever happened before: once all connections hold, and all callbacks have
    returned, everybody who was not closed has one node, and the first of them leads.
    """

    clients: tuple[Client, ...] = ()

    @initialize()
    def begin(self) -> None:
        """Begin with nobody in the queue."""
        self.tree = Tree()
        self.clients = tuple(Client(self.tree, number + 1) for number in range(COUNT))
        for client in self.clients:
            client.connect()

    @rule(number=NUMBERS, count=st.integers(min_value=1, max_value=4))
    def execute(self, number: int, count: int) -> None:
        """Let ZooKeeper do what it was asked for."""
        for _ in range(count):
            self.clients[number].execute()

    @rule(number=NUMBERS, count=st.integers(min_value=1, max_value=6))
    def exchange(self, number: int, count: int) -> None:
        """Let ZooKeeper do something, and answer."""
        for _ in range(count):
            self.clients[number].execute()
            self.clients[number].receive()

    @rule(number=NUMBERS)
    def receive(self, number: int) -> None:
        """Let what came back be taken."""
        self.clients[number].receive()

    @rule(number=NUMBERS, is_publication=st.booleans())
    def write(self, number: int, is_publication: bool) -> None:
        """Let the holder write its own node, and perhaps publish."""
        self.clients[number].write(is_publication=is_publication)

    @rule(number=NUMBERS, is_executed=st.booleans(), is_kept=st.booleans())
    def disconnect(self, number: int, is_executed: bool, is_kept: bool) -> None:
        """Break a connection."""
        self.clients[number].disconnect(is_executed=is_executed, is_kept=is_kept)

    @rule(number=NUMBERS, is_executed=st.booleans(), is_kept=st.booleans())
    def expire(self, number: int, is_executed: bool, is_kept: bool) -> None:
        """End a session."""
        client = self.clients[number]
        client.disconnect(is_executed=is_executed, is_kept=is_kept)
        client.is_session_over = True
        self.tree.end_session(client.session_id)

    @rule(number=NUMBERS)
    def connect(self, number: int) -> None:
        """Open a connection again."""
        if not self.clients[number].is_connected:
            self.clients[number].connect()

    @rule(number=NUMBERS)
    def close(self, number: int) -> None:
        """Let a contender leave the election."""
        self.clients[number].close()

    @rule(number=NUMBERS)
    def return_from_revoke(self, number: int) -> None:
        """Let a revoke callback return."""
        self.clients[number].return_from_revoke()

    @rule()
    def mark(self) -> None:
        """Let an operator end the leadership of the first in the queue."""
        for path in self.tree.queue[:1]:
            record = decode_contender(self.tree.nodes[path].value, path=path)
            ended = msgspec.structs.replace(record, is_ended=True)
            self.tree.set(path, encode_record(ended))

    @rule(place=st.integers(min_value=0, max_value=COUNT - 1))
    def delete(self, place: int) -> None:
        """Let an operator delete a node."""
        for path in self.tree.queue[place : place + 1]:
            self.tree.delete(path)

    @rule(passed_ns=st.integers(min_value=1, max_value=TIMEOUT_NS))
    def pass_time(self, passed_ns: int) -> None:
        """Let time pass."""
        for client in self.clients:
            client.pass_time(client.now_ns + passed_ns)

    @rule()
    def settle(self) -> None:
        """Let all connections hold until nothing more happens; look at the queue."""
        for client in self.clients:
            if not client.is_connected:
                client.connect()
        for _ in range(1_000):
            if not self.progress():
                break
        else:
            raise AssertionError("it never ends")
        self.check_quiet()

    def progress(self) -> bool:
        """Do all that can be done; return whether there was anything."""
        is_progress = False
        for client in self.clients:
            while client.execute() or client.receive() or client.return_from_revoke():
                is_progress = True
            if client.entry is not None and client.core.told is None:
                client.write(is_publication=False)
                is_progress = True
        if is_progress:
            return True
        deadlines = [
            due_ns
            for client in self.clients
            if (due_ns := client.core.next_deadline_ns()) is not None
        ]
        for client in self.clients if deadlines else ():
            client.pass_time(max(client.now_ns, *deadlines))
        return bool(deadlines)

    def check_quiet(self) -> None:
        """Check what must be true when nothing is under way."""
        queue = self.tree.queue
        for client in self.clients:
            if client.is_closed:
                assert client.is_finished
                assert client.nodes == []
                assert client.entry is None
            else:
                # E8: one entry, however often an answer was lost.
                assert len(client.nodes) == 1
                is_first = client.nodes[0] == queue[0]
                assert (client.entry is not None) == is_first
                assert (client.core.told is not None) == is_first
                if client.entry is not None:
                    assert client.entry.path == queue[0]
                    client.check_publication()
                else:
                    # It hears of the one before it, and of no other.
                    watched = [
                        path
                        for path, watcher, _ in self.tree.watches
                        if watcher is client and path != client.nodes[0]
                    ]
                    assert watched == [queue[queue.index(client.nodes[0]) - 1]]

    @invariant()
    def only_the_first_holds(self) -> None:
        """Whoever holds was the first when it looked; a node that is there still is."""
        queue = self.tree.queue if self.clients else []
        for client in self.clients:
            if client.entry is not None and client.entry.path in queue:
                assert queue[0] == client.entry.path

    def teardown(self) -> None:
        """Settle in the end."""
        if self.clients:
            self.settle()


TestQueue = QueueMachine.TestCase
