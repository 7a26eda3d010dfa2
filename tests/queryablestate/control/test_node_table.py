"""Who is known, and who is there."""

from __future__ import annotations

import pytest

from queryablestate.control.events import LinkId
from queryablestate.control.node_table import NodeTable
from queryablestate.control.present_node import JobFailure, PresentNode
from queryablestate.wire.records import NodeRecord
from tests.queryablestate.control_plane import APP, LINK_A, LINK_B, node_register


def test_known_is_not_present() -> None:
    """A node that was written down may be away."""
    table = NodeTable([NodeRecord(node_id="b", store_id="disk")])
    table.record(NodeRecord(node_id="a", store_id="disk"))
    assert list(table.known_ids) == ["a", "b"]
    assert table.store_id_of("b") == "disk"
    assert table.store_id_of("c") is None
    assert table.present("a") is None
    assert table.oldest_heard_at_ns() is None
    assert list(table) == []


def test_a_registration_replaces_an_earlier_one() -> None:
    """One name, one node: the earlier connection is no node's."""
    table = NodeTable([])
    table.register(node_register("a", positions={APP: 3}), link=LINK_A, now_ns=5)
    node = table.register(
        node_register("a", registration_id="later", holding=None),
        link=LINK_B,
        now_ns=6,
    )
    assert node == PresentNode(
        node_id="a",
        store_id="disk-of-a",
        registration_id="later",
        link=LINK_B,
        address="tcp://a:1",
        heard_at_ns=6,
        registered_at_ns=6,
    )
    assert table.at(LINK_A) is None
    assert table.at(LINK_B) is node
    assert table.present("a") is node
    table.remove(node)
    assert table.at(LINK_B) is None
    assert table.present("a") is None


def test_the_silent_are_found() -> None:
    """At the moment itself, and in the order of their names."""
    table = NodeTable([])
    b = table.register(node_register("b"), link=LINK_B, now_ns=5)
    a = table.register(node_register("a"), link=LINK_A, now_ns=6)
    assert list(table) == [a, b]
    assert table.oldest_heard_at_ns() == 5
    assert table.silent_since(4) == []
    assert table.silent_since(5) == [b]
    assert table.silent_since(6) == [a, b]


@pytest.mark.proves("S1")
def test_who_is_expected_back() -> None:
    """S1: until then, with the jobs that it could go on with, or until it is back."""
    table = NodeTable([])
    for node_id in "abc":
        link = LinkId(ord(node_id))
        table.register(node_register(node_id), link=link, now_ns=0)
    a, b, c = table
    a.failing[APP] = JobFailure(told_at_ns=0, reason="no room")
    a.lost_jobs.add("lost")
    b.sequences[APP] = 7
    for node, until_ns in ((a, 7), (b, 5), (c, 5)):
        table.expect(node, now_ns=0, grace_ns=until_ns, until_ns_max=100)
    assert list(table) == []
    assert "a" in table.expected
    assert table.expected.have("b", APP)
    assert [table.expected.have("a", job) for job in (APP, "lost", "other")] == [
        False,
        False,
        True,
    ]
    assert "d" not in table.expected
    assert not table.expected.have("d", APP)
    # What they have applied they have.
    assert [table.applied(node_id, APP) for node_id in "abd"] == [-1, 7, -1]
    assert table.expected.until_ns(()) == 5
    assert table.expected.until_ns({"b", "c"}) == 7
    table.expected.forgive(10, until_ns_max=15)
    assert table.expected.until_ns(()) == 15
    table.expected.forgive(10, until_ns_max=14)
    assert table.expected.until_ns(()) == 15
    assert not table.expected.give_up_late((), now_ns=14)
    table.register(node_register("c"), link=LINK_A, now_ns=14)
    assert "c" not in table.expected
    assert table.expected.give_up_late({"a"}, now_ns=15)
    assert "b" not in table.expected
    assert table.applied("b", APP) == -1
    assert "a" in table.expected
    table.expected.give_up("a")
    assert table.expected.until_ns(()) is None


def test_who_comes_and_goes_is_not_expected_for_longer() -> None:
    """It is, once it has applied what it had missed, and was here for as long."""
    table = NodeTable([])
    for came_ns, left_ns, missed, until_ns in (
        (0, 10, {}, 15),
        (12, 13, {}, 15),
        (14, 20, {APP: 3}, 15),
        (21, 25, {}, 15),
        (21, 26, {}, 31),
        (30, 99, {}, 100),
    ):
        node = table.register(node_register("a"), link=LINK_A, now_ns=came_ns)
        node.missed = dict(missed)
        table.expect(node, now_ns=left_ns, grace_ns=5, until_ns_max=100)
        assert table.expected.until_ns(()) == until_ns
    other = node_register("a", store_id="another")
    node = table.register(other, link=LINK_A, now_ns=0)
    assert node.expected_until_ns is None


@pytest.mark.proves("O6")
def test_who_is_being_emptied() -> None:
    """O6: the process that is named, or a node that is away; no new process."""
    record = NodeRecord(node_id="a", store_id="disk", draining_id="process-a")
    table = NodeTable([record])
    assert table.record_of("a") is record
    assert table.is_draining("a")
    assert table.registration_id_of("a") is None
    node = table.register(node_register("a"), link=LINK_A, now_ns=0)
    assert table.is_draining("a")
    assert set(table.present_ids) == {"a"}
    table.remove(node)
    assert table.is_draining("a")
    assert table.registration_id_of("a") == "process-a"
    table.register(node_register("a", registration_id="later"), link=LINK_B, now_ns=1)
    assert not table.is_draining("a")
    assert not table.is_draining("b")
    assert table.record_of("b") is None
