"""`DirectReaders`: what waits for nodes that clients ask without the proxy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from queryablestate.control.core import ControlCore
from queryablestate.control.direct_readers import direct_lease_ns
from queryablestate.control.effects import AnswerWriter, SendToNode
from queryablestate.control.events import LinkId, LinksClosed, TimePassed
from queryablestate.control.stored_control import stored_control
from queryablestate.wire.clients import BatchCommitted, StateDropDone
from queryablestate.wire.direct import DirectAccess, open_ticket
from queryablestate.wire.node_messages import (
    HeartbeatAcknowledged,
    NodeHeartbeat,
    NodeRegistered,
)
from queryablestate.wire.records import CountersRecord
from tests.queryablestate.control.test_moves import assignment
from tests.queryablestate.control_plane import (
    APP,
    CONTROL_ID,
    EPOCH,
    LINK_A,
    LINK_B,
    SECOND,
    TIMEOUT_NS,
    Plane,
    applied,
    commit,
    drop,
    node_register,
)


SECRET = bytes(range(32))
LEASE_NS = direct_lease_ns(TIMEOUT_NS)
LIFE_NS = 10 * SECOND

pytestmark = pytest.mark.proves("D2", "D5")


def core_of(plane: Plane, *, epoch: int = EPOCH, is_on: bool = True) -> ControlCore:
    """Return the core of a leader that lets nodes answer clients."""
    stored = stored_control(plane.store, plane.limits)
    fresh = CountersRecord(
        control_id=CONTROL_ID, ticket_limit=1, state_number=0, job_number=0
    )
    return ControlCore(
        counters=stored.counters or fresh,
        jobs=stored.jobs,
        nodes=stored.nodes,
        leader_epoch=epoch,
        session_timeout_ns=TIMEOUT_NS,
        now_ns=plane.now_ns,
        copy_secret=SECRET,
        direct_reads=is_on,
        direct_lease_ns=LEASE_NS,
    )


@pytest.fixture
def plane() -> Plane:
    """Return a control plane with a batch of one state on two nodes."""
    plane = Plane()
    plane.core = core_of(plane)
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    for link, name in ((LINK_A, "a"), (LINK_B, "b")):
        plane.hear(link, applied(name, 1))
    return plane


def access(
    plane: Plane, *, turn: int = 0, **changed: str | None
) -> DirectAccess | None:
    """Return a ticket for the state."""
    (number,) = plane.core.locations
    settings = {"caller": "dashboard", "public_key": None, **changed}
    return plane.view.direct_access(
        number,
        life_ns=LIFE_NS,
        now_ns=plane.now_ns,
        caller=str(settings["caller"]),
        public_key=settings["public_key"],
        turn=turn,
    )


def beat(
    plane: Plane, link: LinkId, name: str, number: int, acknowledged: int = 0
) -> list[object]:
    """Let a node send a heartbeat; return what it, and writers, are told."""
    message = NodeHeartbeat(
        registration_id=f"process-{name}", number=number, acknowledged=acknowledged
    )
    return [getattr(one, "message", None) for one in plane.hear(link, message)]


def move_away(plane: Plane) -> None:
    """Let node ``b`` have all key groups: ``a`` is gone, and there are copies."""
    control = plane.core._control
    job = control.job(APP)
    former = job.assignment
    assert former is not None
    control.direct.reassigned(APP, former, now_ns=plane.now_ns)


def awaited(plane: Plane) -> list[str]:
    """Return who is waited for."""
    direct = plane.core._control.direct
    return list(direct.awaited(APP, now_ns=plane.now_ns))


class TestTickets:
    """Who gets one, and what it says."""

    def test_what_it_says(self, plane: Plane) -> None:
        """D1: caller, job, state, right, version, epoch and expiry."""
        found = access(plane)
        assert found is not None
        ticket = open_ticket(SECRET, found.ticket)
        assert ticket is not None
        (number,) = plane.core.locations
        assert (ticket.caller, ticket.job_id, ticket.state_number, ticket.right) == (
            "dashboard",
            APP,
            number,
            "read",
        )
        assert (
            ticket.assignment_version == plane.core.locations[number].assignment_version
        )
        assert ticket.leader_epoch == EPOCH
        assert ticket.expires_ms == (plane.now_ns + LIFE_NS) // 1_000_000
        assert found.life_ms == LIFE_NS // 1_000_000
        assert found.addresses == ("tcp://a:1", "tcp://b:1")

    def test_none_for_what_has_no_batch(self) -> None:
        """Q1: nodes know nothing of a state before its first batch."""
        plane = Plane()
        plane.core = core_of(plane)
        plane.start_job()
        assert access(plane) is None

    def test_none_while_it_is_switched_off(self, plane: Plane) -> None:
        """D2: neither tickets nor a lease."""
        plane.core = core_of(plane, is_on=False)
        (effect,) = [
            one
            for one in plane.hear(LINK_A, node_register("a", positions={APP: 1}))
            if isinstance(one, SendToNode) and isinstance(one.message, NodeRegistered)
        ]
        assert isinstance(effect.message, NodeRegistered)
        assert effect.message.direct_lease_ms == 0
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        assert access(plane) is None

    def test_none_before_the_leader_is_settled(self, plane: Plane) -> None:
        """W7: what nodes are ahead of is not known before they have come."""
        plane.core = core_of(plane, epoch=EPOCH + 1)
        plane.hear(LINK_A, node_register("a", positions={APP: 1}))
        assert access(plane) is None
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        assert access(plane) is not None

    def test_a_node_that_is_away_is_not_named(self, plane: Plane) -> None:
        """D3: its part is asked of the proxy."""
        plane.settle(LinksClosed(links=(LINK_A,)))
        found = access(plane)
        assert found is not None
        assert found.addresses == (None, "tcp://b:1")

    def test_several_processes_of_a_node_take_turns(self, plane: Plane) -> None:
        """D1: a client is sent to one of them, always the same, the next to another."""
        register = replace(
            node_register("a", positions={APP: 1}),
            reader_addresses=("tcp://a:2", "tcp://a:3"),
        )
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.hear(LINK_A, register)
        named = [access(plane, turn=turn) for turn in (0, 1, 2, 1)]
        assert [one and one.addresses for one in named] == [
            (f"tcp://a:{port}", "tcp://b:1") for port in (2, 3, 2, 3)
        ]

    def test_no_node_is_less_secure_than_the_proxy(self, plane: Plane) -> None:
        """D3: who came by CURVE is sent to no node without."""
        assert access(plane, public_key="k" * 40) is None

    def test_the_clock_of_tickets_is_told(self, plane: Plane) -> None:
        """D2: with each acknowledgement."""
        plane.now_ns += 3 * SECOND
        assert beat(plane, LINK_A, "a", 1) == [
            HeartbeatAcknowledged(
                leader_epoch=EPOCH, number=1, leader_ms=plane.now_ns // 1_000_000
            )
        ]


class TestWaiting:
    """Batches wait for nodes that may answer clients without them."""

    def test_without_a_ticket_nobody_is_waited_for(self, plane: Plane) -> None:
        """D5: clients ask the proxy, which asks by the present assignment."""
        move_away(plane)
        assert awaited(plane) == []

    def test_until_the_node_says_that_it_knows(self, plane: Plane) -> None:
        """S1: it has what was acknowledged after it was told."""
        access(plane)
        move_away(plane)
        assert awaited(plane) == ["a", "b"]
        beat(plane, LINK_A, "a", 5, acknowledged=4)  # it may not have heard yet
        assert awaited(plane) == ["a", "b"]
        beat(plane, LINK_A, "a", 6, acknowledged=4)
        assert awaited(plane) == ["a", "b"]
        beat(plane, LINK_A, "a", 7, acknowledged=5)
        assert awaited(plane) == ["b"]

    def test_until_its_lease_is_over(self, plane: Plane) -> None:
        """Q4: a node that is cut off answers no client after that."""
        access(plane)
        move_away(plane)
        plane.now_ns += LEASE_NS - 1
        assert awaited(plane) == ["a", "b"]
        plane.now_ns += 1
        assert awaited(plane) == []

    def test_who_has_left_was_heard_before(self, plane: Plane) -> None:
        """Q4: the lease of a node that has gone counts from when it was heard."""
        access(plane)
        plane.now_ns += LEASE_NS // 2
        beat(plane, LINK_B, "b", 1)
        plane.settle(LinksClosed(links=(LINK_A,)))
        move_away(plane)
        assert awaited(plane) == ["a", "b"]
        plane.now_ns += LEASE_NS - LEASE_NS // 2
        assert awaited(plane) == ["b"]

    def test_who_has_left_long_ago_is_not_waited_for(self, plane: Plane) -> None:
        """D5: nobody waits for what cannot be."""
        access(plane)
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.now_ns += LEASE_NS
        plane.settle(TimePassed())
        move_away(plane)
        assert awaited(plane) == ["b"]

    def test_a_batch_waits(self, plane: Plane) -> None:
        """D5: it is acknowledged when the last such node knows."""
        access(plane)
        move_away(plane)
        writer_epoch = 1
        assert plane.decide(commit(writer_epoch, 1)) == []
        plane.hear(LINK_A, applied("a", 2))
        assert committed(plane.hear(LINK_B, applied("b", 2))) == []
        for link, name in ((LINK_A, "a"), (LINK_B, "b")):
            beat(plane, link, name, 1)
        beat(plane, LINK_A, "a", 2, acknowledged=1)
        found = beat(plane, LINK_B, "b", 2, acknowledged=1)
        assert any(isinstance(one, BatchCommitted) for one in found)

    def test_or_until_the_lease_is_over(self, plane: Plane) -> None:
        """D5: nothing else has to happen."""
        access(plane)
        move_away(plane)
        plane.decide(commit(1, 1))
        plane.hear(LINK_A, applied("a", 2))
        plane.hear(LINK_B, applied("b", 2))
        deadline_ns = plane.core.next_deadline_ns()
        assert deadline_ns is not None
        assert deadline_ns <= plane.now_ns + LEASE_NS
        plane.now_ns += LEASE_NS
        assert committed(plane.settle(TimePassed())) != []

    def test_a_new_leader_waits_for_all_that_it_knows(self, plane: Plane) -> None:
        """D5: the one before may have given tickets to anybody."""
        plane.core = core_of(plane, epoch=EPOCH + 1)
        assert awaited(plane) == ["a", "b"]
        plane.hear(LINK_A, node_register("a", positions={APP: 1}))
        beat(plane, LINK_A, "a", 8)
        assert awaited(plane) == ["a", "b"]
        beat(plane, LINK_A, "a", 9, acknowledged=8)
        assert awaited(plane) == ["b"]
        plane.now_ns += LEASE_NS
        assert awaited(plane) == []


class TestDropping:
    """A state is gone for every reader when that is said."""

    def test_at_once_without_a_ticket(self, plane: Plane) -> None:
        """W5: the proxy answers for it no more."""
        assert dropped(plane.ask(drop()))

    def test_when_all_have_applied_it(self, plane: Plane) -> None:
        """D5: until then a node may answer clients by what was."""
        access(plane)
        assert not dropped(plane.ask(drop()))
        assert not dropped(plane.hear(LINK_A, applied("a", 2)))
        assert dropped(plane.hear(LINK_B, applied("b", 2)))

    def test_when_the_last_ticket_is_over(self, plane: Plane) -> None:
        """D5: a node that cannot apply it answers no client after that."""
        access(plane)
        assert not dropped(plane.ask(drop()))
        plane.now_ns += LIFE_NS - 1
        beat(plane, LINK_A, "a", 1)
        beat(plane, LINK_B, "b", 1)
        assert not dropped(plane.settle(TimePassed()))
        plane.now_ns += 1
        assert dropped(plane.settle(TimePassed()))

    def test_nodes_of_an_earlier_leader_are_waited_for(self, plane: Plane) -> None:
        """D5: what it gave is not known, be its epoch higher or the same."""
        plane.core = core_of(plane)
        assert not dropped(plane.ask(drop()))
        deadline_ns = plane.core.next_deadline_ns()
        assert deadline_ns is not None
        assert deadline_ns > plane.now_ns
        plane.now_ns += LEASE_NS - 1
        assert not dropped(plane.settle(TimePassed()))
        plane.now_ns += 1
        assert dropped(plane.settle(TimePassed()))

    def test_a_node_of_an_earlier_leader_may_say_that_it_knows(
        self, plane: Plane
    ) -> None:
        """D5: by the secret of the new one it refuses earlier tickets."""
        plane.core = core_of(plane)
        assert not dropped(plane.ask(drop()))
        for link, name in ((LINK_A, "a"), (LINK_B, "b")):
            told = [dropped(plane.hear(link, node_register(name, positions={APP: 1})))]
            plane.hear(link, NodeHeartbeat(registration_id=f"process-{name}", number=1))
            echo = NodeHeartbeat(
                registration_id=f"process-{name}", number=2, acknowledged=1
            )
            told += [dropped(plane.hear(link, echo))]
            assert told == [False, name == "b"]

    def test_former_owners_are_waited_for(self, plane: Plane) -> None:
        """D5: the last ticket of a job may be for a state that is being dropped."""
        access(plane)
        assert not dropped(plane.ask(drop()))
        move_away(plane)
        assert awaited(plane) == ["a", "b"]
        plane.now_ns += LEASE_NS
        assert awaited(plane) == []

    def test_former_owners_of_a_job_that_is_dealt_anew_are(self, plane: Plane) -> None:
        """D5: without its last state a job goes to the nodes that are there."""
        access(plane)
        plane.hear(LINK_A, NodeHeartbeat(registration_id="process-a", number=1))
        assert not dropped(plane.ask(drop()))
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.draw()
        assert assignment(plane).node_ids == ("b",)
        assert not dropped(plane.hear(LINK_B, applied("b", 2)))
        plane.now_ns += LEASE_NS - 1
        assert not dropped(plane.settle(TimePassed()))
        plane.now_ns += 1
        assert dropped(plane.settle(TimePassed()))


def committed(effects: Sequence[object]) -> list[object]:
    """Return the commits that are acknowledged."""
    return [
        one
        for one in effects
        if isinstance(one, AnswerWriter) and isinstance(one.message, BatchCommitted)
    ]


def dropped(effects: Sequence[object]) -> bool:
    """Return whether a writer is told that the state is gone."""
    return any(
        isinstance(one, AnswerWriter) and isinstance(one.message, StateDropDone)
        for one in effects
    )


@pytest.mark.parametrize(
    ("timeout_ns", "lease_ns"),
    [
        (10 * SECOND, 2 * SECOND),
        (SECOND, SECOND // 2),
        (SECOND // 10, SECOND // 10),
    ],
)
def test_the_lease(timeout_ns: int, lease_ns: int) -> None:
    """Q4: a fifth of the session timeout, and never longer than that."""
    assert direct_lease_ns(timeout_ns) == lease_ns
