"""Nodes that wait to be taken in."""

from __future__ import annotations

from queryablestate.control.registering import RegisteringNodes
from tests.queryablestate.control_plane import LINK_A, LINK_B, node_register


def test_a_registration_waits_until_it_has_had_its_turn() -> None:
    """The newest over a connection is the one that counts."""
    registering = RegisteringNodes()
    first, second = node_register("a"), node_register("b")
    registering.begin(LINK_A, first)
    assert LINK_A in registering
    assert registering.newest(LINK_A) is first
    registering.begin(LINK_A, second)
    assert registering.newest(LINK_A) is second
    assert set(registering.node_ids) == {"b"}
    assert registering.end(LINK_A)
    assert not registering.end(LINK_A)
    assert LINK_A not in registering
    assert registering.newest(LINK_A) is None
    assert not registering.node_ids


def test_a_node_may_wait_over_two_connections() -> None:
    """It waits until neither of them brings it in."""
    registering = RegisteringNodes()
    for link in (LINK_A, LINK_B):
        registering.begin(link, node_register("a"))
    registering.end(LINK_A)
    assert set(registering.node_ids) == {"a"}
    registering.end(LINK_B)
    assert not registering.node_ids


def test_who_waits_has_a_version() -> None:
    """It is another one after each beginning and each end, and only then."""
    registering = RegisteringNodes()
    versions = [registering.version]
    registering.begin(LINK_A, node_register("a"))
    versions.append(registering.version)
    registering.end(LINK_B)
    assert registering.version == versions[-1]
    registering.end(LINK_A)
    versions.append(registering.version)
    assert len(set(versions)) == 3
