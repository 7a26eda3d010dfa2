"""How an assignment changes, one write after the other (S1, S2, S4)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, final

import pytest
from attrs import define, evolve
from msgspec.structs import replace

from queryablestate.control.assignment.assignment import (
    check_assignment,
    first_assignment,
    held_by,
)
from queryablestate.control.assignment.node_standing import NodeStanding
from queryablestate.control.assignment.placement import copy_count
from queryablestate.control.assignment.reassignment import next_assignment
from queryablestate.wire.records import AssignmentRecord, JoiningCopy
from tests.tiers import nightly_after


if TYPE_CHECKING:
    from collections.abc import Iterable


def standing(node_id: str, **facts: object) -> NodeStanding:
    """Return a node of which everything is well, but for *facts*."""
    return NodeStanding(**{"store_id": f"disk-of-{node_id}", **facts})  # type: ignore[arg-type]  # any facts


def ready(node_ids: Iterable[str]) -> dict[str, NodeStanding]:
    """Return nodes that are there."""
    return {node_id: standing(node_id) for node_id in node_ids}


def first(
    node_ids: Iterable[str], *, groups: int = 4, replica_count: int = 1
) -> AssignmentRecord:
    """Return the first assignment to these nodes."""
    return first_assignment(
        {node_id: f"disk-of-{node_id}" for node_id in node_ids},
        max_parallelism=groups,
        version=1,
        sequence=0,
        replica_count=replica_count,
    )


@final
@define
class Cluster:
    """
    An assignment, who is there, and what is copied.

    Attributes:
        record: The assignment.
        nodes: By node id.
        joining_count_max: How many key groups a node copies at once.
        made_count: Copies that were made.
        sequence: The head of the chain.
    """

    record: AssignmentRecord
    nodes: dict[str, NodeStanding]
    joining_count_max: int = 16
    made_count: int = 0
    sequence: int = 0

    def step(
        self, *, node_count: int | None = None, replica_count: int | None = None
    ) -> bool:
        """Take the next step, with everything copied; return whether there was one."""
        copied: dict[str, set[int]] = {}
        for key_group, joining in enumerate(self.record.joining):
            for copy in joining:
                node_id = self.record.node_ids[copy.node_index]
                sources = [
                    self.nodes.get(self.record.node_ids[index])
                    for index in self.record.owners[key_group]
                ]
                if any(source and source.is_present for source in sources):
                    copied.setdefault(node_id, set()).add(key_group)
        seen = {
            node_id: evolve(node, copied=copied.get(node_id, frozenset()))
            if node.is_present
            else node
            for node_id, node in self.nodes.items()
        }
        self.sequence += 1
        changed = next_assignment(
            self.record,
            seen,
            sequence=self.sequence,
            joining_count_max=self.joining_count_max,
            node_count=node_count,
            replica_count=replica_count,
        )
        if changed is None:
            return False
        assert changed.version == self.record.version + 1
        assert changed.sequence == self.sequence
        check_assignment(changed)
        self._check_step(changed, copied)
        self.record = changed
        return True

    def _check_step(
        self, changed: AssignmentRecord, copied: dict[str, set[int]]
    ) -> None:
        """None is in sync that was not, or has not copied; none is forgotten."""
        for key_group, owners in enumerate(changed.owners):
            before = {
                self.record.node_ids[index] for index in self.record.owners[key_group]
            }
            now = {changed.node_ids[index] for index in owners}
            for node_id in now - before:
                assert key_group in copied[node_id]
            self.made_count += len(now - before)
            assert now & before or all(key_group in copied[node_id] for node_id in now)

    def settle(self) -> int:
        """Take steps until there are no more; return how many there were."""
        count = 0
        while self.step():
            count += 1
            assert count < 10_000
        return count

    def check_done(self) -> None:
        """Check that copies and primaries are even over the nodes that have the job."""
        record = self.record
        assert not record.wanted
        assert not record.joining
        ready_count = sum(
            node.is_present and not node.is_draining for node in self.nodes.values()
        )
        useful_count = max(len(record.owners), record.replica_count)
        node_count = min(record.node_count, ready_count, useful_count)
        assert len(record.node_ids) == node_count
        copies = min(record.replica_count, node_count)
        assert all(len(owners) == copies for owners in record.owners)
        held = Counter(index for owners in record.owners for index in owners)
        asked = Counter(owners[0] for owners in record.owners)
        for counts in (held, asked):
            assert max(counts.values()) - min(counts[n] for n in range(node_count)) <= 1


class TestRescale:
    """Another number of nodes (S1, O6)."""

    def test_a_second_node(self) -> None:
        """It copies half; then it is asked for that, and the first gives it up."""
        record = first(["a"])
        nodes = ready(["a", "b"])
        step = next_assignment(
            record, nodes, sequence=7, joining_count_max=16, node_count=2
        )
        assert step == AssignmentRecord(
            version=2,
            sequence=7,
            node_ids=("a", "b"),
            store_ids=("disk-of-a", "disk-of-b"),
            since_sequences=(0, 7),
            owners=((0,), (0,), (0,), (0,)),
            joining=((), (), (JoiningCopy(1, 7, 2),), (JoiningCopy(1, 7, 2),)),
            wanted=((0,), (0,), (1,), (1,)),
            node_count=2,
            planned_count=2,
        )
        assert next_assignment(step, nodes, sequence=8, joining_count_max=16) is None
        nodes["b"] = standing("b", copied={2})
        step = next_assignment(step, nodes, sequence=8, joining_count_max=16)
        assert step is not None
        assert step.owners == ((0,), (0,), (1,), (0,))
        assert step.joining == ((), (), (), (JoiningCopy(1, 7, 2),))
        nodes["b"] = standing("b", copied={2, 3})
        step = next_assignment(step, nodes, sequence=9, joining_count_max=16)
        assert step is not None
        assert (step.owners, step.joining, step.wanted) == (
            ((0,), (0,), (1,), (1,)),
            (),
            (),
        )

    def test_so_many_key_groups_at_once(self) -> None:
        """The next ones begin when the first are done, in the same write."""
        cluster = Cluster(first(["a"], groups=8), ready("ab"), joining_count_max=3)
        assert cluster.step(node_count=2)
        assert [len(joining) for joining in cluster.record.joining].count(1) == 3
        assert cluster.step()
        assert [len(joining) for joining in cluster.record.joining].count(1) == 1
        assert held_by(cluster.record, "b") == (4, 5, 6)
        assert cluster.settle() == 1
        cluster.check_done()

    @pytest.mark.proves("O6")
    def test_a_node_that_is_not_asked_for_takes_no_part(self) -> None:
        """O6: new nodes take part when an operator says so."""
        cluster = Cluster(first(["b"]), ready("abc"))
        assert not cluster.step()
        assert cluster.step(node_count=2)
        assert cluster.record.node_ids == ("b", "a")

    def test_fewer_nodes(self) -> None:
        """Those with the most copies stay; who has nothing left is left out."""
        cluster = Cluster(first("abc", groups=7), ready("abc"))
        assert cluster.step(node_count=1)
        cluster.settle()
        assert cluster.record.node_ids == ("a",)
        assert cluster.made_count == cluster.record.planned_count == 4
        assert (
            next_assignment(
                cluster.record,
                cluster.nodes,
                sequence=9,
                joining_count_max=1,
                node_count=1,
            )
            is None
        )

    def test_another_plan_while_one_is_carried_out(self) -> None:
        """What is copied for the one is not thrown away if the other has it too."""
        cluster = Cluster(first("a", groups=12), ready("abc"), joining_count_max=2)
        cluster.step(node_count=2)
        cluster.step()
        assert held_by(cluster.record, "b") == (6, 7)
        cluster.step(node_count=3)
        cluster.settle()
        cluster.check_done()
        assert {6, 7} & set(held_by(cluster.record, "b"))
        cluster.step(node_count=1)
        cluster.settle()
        assert cluster.record.node_ids == ("a",)

    def test_a_plan_that_is_taken_back(self) -> None:
        """Copies that were begun are given up at once."""
        cluster = Cluster(first("a"), ready("ab"))
        cluster.step(node_count=2)
        assert cluster.record.joining
        changed = next_assignment(
            cluster.record,
            cluster.nodes,
            sequence=9,
            joining_count_max=16,
            node_count=1,
        )
        assert changed is not None
        assert (changed.joining, changed.wanted, changed.node_ids) == ((), (), ("a",))
        assert changed.planned_count == 0

    def test_more_nodes_than_key_groups(self) -> None:
        """None takes part without a key group."""
        cluster = Cluster(first("a", groups=2), ready("abc"))
        cluster.step(node_count=3)
        cluster.settle()
        assert cluster.record.node_ids == ("a", "b")


class TestReplicas:
    """More than one copy of each key group (S4)."""

    @pytest.mark.proves("S4")
    def test_more_copies_than_key_groups(self) -> None:
        """S4: nodes without a key group of their own have copies of another's."""
        cluster = Cluster(first("a", groups=1), ready("abc"))
        cluster.step(node_count=2, replica_count=2)
        cluster.settle()
        assert cluster.record.node_ids == ("a", "b")
        assert sorted(cluster.record.owners[0]) == [0, 1]
        cluster.step(node_count=1, replica_count=1)
        cluster.settle()
        assert list(cluster.record.node_ids) == ["a"]

    @pytest.mark.proves("S4")
    def test_the_death_of_a_node(self) -> None:
        """S4: the other copy is asked at once, and a third node makes up for it."""
        cluster = Cluster(first("ab", replica_count=2), ready("abc"))
        cluster.nodes["a"] = standing("a", is_present=False)
        assert cluster.step()
        record = cluster.record
        assert all(record.node_ids[owners[0]] == "b" for owners in record.owners)
        assert record.node_ids == ("b", "c")
        cluster.settle()
        cluster.check_done()
        # The first is back, and is not needed.
        cluster.nodes["a"] = standing("a")
        assert not cluster.step()

    @pytest.mark.proves("S4")
    def test_a_node_that_comes_back(self) -> None:
        """S4: it makes up for itself, if there is no other one."""
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        cluster.nodes["a"] = standing("a", is_present=False)
        cluster.settle()
        assert list(cluster.record.node_ids) == ["b"]
        cluster.nodes["a"] = standing("a")
        cluster.settle()
        assert cluster.record.node_ids == ("b", "a")
        assert cluster.record.since_sequences[1] > 0
        cluster.check_done()

    def test_those_with_the_fewest_copies_come_first(self) -> None:
        """Safety comes before balance."""
        record = AssignmentRecord(
            version=1,
            node_ids=("a", "b", "c"),
            store_ids=("disk-of-a", "disk-of-b", "disk-of-c"),
            since_sequences=(0, 0, 0),
            owners=((0, 1), (0,)),
            wanted=((0, 2), (0, 2)),
            node_count=2,
            replica_count=2,
        )
        changed = next_assignment(record, ready("abc"), sequence=1, joining_count_max=1)
        assert changed is not None
        assert changed.joining == (
            (),
            (JoiningCopy(changed.node_ids.index("c"), 1, 2),),
        )

    @pytest.mark.proves("S4")
    def test_fewer_copies(self) -> None:
        """S4: they are given up in one write, and nothing is copied."""
        cluster = Cluster(first("ab", groups=6, replica_count=2), ready("ab"))
        assert cluster.step(replica_count=1)
        assert not cluster.step()
        cluster.check_done()
        assert cluster.made_count == 0

    @pytest.mark.proves("S1")
    def test_the_last_two_die(self) -> None:
        """S1: both may have it all; the one that is back first goes on alone."""
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        away = {n: standing(n, is_present=False) for n in "ab"}
        cluster.nodes.update(away)
        assert not cluster.step()
        cluster.nodes["b"] = standing("b")
        cluster.settle()
        assert cluster.record.node_ids == ("b",)

    @pytest.mark.proves("W7", "S4")
    @pytest.mark.parametrize("fact", ["is_lost", "store_id"])
    @pytest.mark.parametrize("other", ["is_present", "is_failing"])
    def test_the_last_two_die_and_one_disk_with_them(
        self, fact: str, other: str
    ) -> None:
        """
        S4, W7: who is back first, and has lost everything, goes on without a copy.

        The other one has it all: it is waited for, and copied from when it is back.
        """
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        facts: dict[str, object] = (
            {"is_lost": True} if fact == "is_lost" else {"store_id": "another"}
        )
        cluster.nodes["a"] = standing("a", **facts)
        cluster.nodes["b"] = standing("b", **{other: other == "is_failing"})
        assert cluster.step()
        names = cluster.record.node_ids
        assert {names[i] for owned in cluster.record.owners for i in owned} == {"b"}
        cluster.nodes["a"] = standing("a", store_id=cluster.nodes["a"].store_id)
        if other == "is_present":
            cluster.settle()
            names = cluster.record.node_ids
            assert {names[i] for owned in cluster.record.owners for i in owned} == {"b"}
        cluster.nodes["b"] = standing("b")
        cluster.settle()
        cluster.check_done()
        assert cluster.record.node_ids == ("a", "b")


def expected(node_id: str, **facts: object) -> NodeStanding:
    """Return a node whose connection has just closed."""
    return standing(
        node_id, is_present=False, is_expected=True, is_silent=True, **facts
    )


class TestExpected:
    """A node that is away, and may be back in a moment (S1, S4)."""

    @pytest.mark.proves("S1", "S4")
    def test_its_copies_stay_in_sync(self) -> None:
        """S4: others are asked; S1: it has what it had when it is back."""
        record = replace(first("ab", replica_count=2), planned_count=3)
        cluster = Cluster(record, ready("abc"))
        cluster.nodes["a"] = expected("a")
        assert cluster.step()
        assert cluster.record.owners == ((1, 0),) * 4
        assert cluster.record.wanted == record.owners
        assert (cluster.record.joining, cluster.record.planned_count) == ((), 0)
        assert not cluster.step()
        cluster.nodes["a"] = standing("a")
        cluster.settle()
        assert (cluster.record.owners, cluster.record.wanted) == (record.owners, ())
        assert cluster.made_count == 0

    @pytest.mark.proves("S1")
    def test_they_go_when_it_is_not_expected_any_more(self) -> None:
        """S1: or when it is back without them, or cannot go on."""
        for back in (
            standing("a", is_present=False),
            standing("a", store_id="another", has_begun=False),
            standing("a", is_failing=True),
            standing("a", is_lost=True),
            expected("a", store_id="another"),
        ):
            cluster = Cluster(first("ab", replica_count=2), ready("ab"))
            cluster.nodes["a"] = expected("a")
            cluster.settle()
            cluster.nodes["a"] = back
            assert cluster.step(), back
            assert held_by(cluster.record, "a") == (), back
            assert held_by(cluster.record, "b") == (0, 1, 2, 3)

    @pytest.mark.proves("S1")
    def test_it_has_what_another_one_has_lost(self) -> None:
        """S1: it is the only one that has it."""
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        cluster.nodes["a"] = standing("a", is_lost=True)
        cluster.nodes["b"] = expected("b")
        assert cluster.step()
        assert held_by(cluster.record, "b") == (0, 1, 2, 3)
        assert held_by(cluster.record, "a") == ()

    def test_what_it_copies_it_goes_on_to_copy(self) -> None:
        """Its place in the plan is kept though it has nothing yet."""
        cluster = Cluster(first("a"), ready("abc"))
        cluster.step(node_count=2)
        begun = cluster.record
        assert begun.node_ids == ("a", "b")
        cluster.nodes["b"] = expected("b")
        assert not cluster.step()
        cluster.nodes["b"] = standing("b")
        cluster.settle()
        assert cluster.record.node_ids == ("a", "b")
        assert cluster.made_count == begun.planned_count

    @pytest.mark.proves("S4")
    def test_nothing_is_given_up_for_it(self) -> None:
        """S4: it may not be back."""
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        cluster.nodes = {
            "a": expected("a"),
            "b": standing("b", is_draining=True),
        }
        cluster.settle()
        assert held_by(cluster.record, "b") == (0, 1, 2, 3)
        assert cluster.record.owners[0] == (1, 0)

    @pytest.mark.proves("S4", "O6")
    def test_old_copies_stay_until_all_new_ones_are_here(self) -> None:
        """S4, O6: one that is expected is in sync, and may not be back."""
        record = AssignmentRecord(
            version=1,
            node_ids=("a", "b", "c", "d"),
            store_ids=tuple(f"disk-of-{node_id}" for node_id in "abcd"),
            since_sequences=(0,) * 4,
            owners=((3, 0, 1, 2), (3, 0, 1, 2)),
            wanted=((2, 3), (3, 2)),
            node_count=2,
            replica_count=2,
        )
        cluster = Cluster(record, ready("abcd"))
        for node_id in "ab":
            cluster.nodes[node_id] = standing(node_id, is_draining=True)
        cluster.nodes["c"] = expected("c")
        cluster.settle()
        assert held_by(cluster.record, "a") == held_by(cluster.record, "b") == (0, 1)
        cluster.nodes["c"] = standing("c")
        cluster.settle()
        assert cluster.record.node_ids == ("c", "d")

    @pytest.mark.proves("S4")
    def test_who_is_behind_is_not_asked(self) -> None:
        """S4: unless the others are not here."""
        record = first("ab", replica_count=2)
        cluster = Cluster(record, ready("ab"))
        cluster.nodes["a"] = standing("a", is_behind=True)
        assert cluster.settle() == 1
        assert cluster.record.owners == ((1, 0),) * 4
        cluster.nodes["b"] = expected("b")
        cluster.settle()
        assert cluster.record.owners == ((0, 1),) * 4
        cluster.nodes = ready("ab")
        cluster.settle()
        assert cluster.record.owners == record.owners

    def test_the_most_key_groups(self) -> None:
        """32,768 key groups have another primary in one write, and quickly."""
        record = first("ab", groups=32_768, replica_count=2)
        cluster = Cluster(record, ready("ab"))
        cluster.nodes["a"] = expected("a")
        assert cluster.settle() == 1
        assert {owners[0] for owners in cluster.record.owners} == {1}


class TestOnlyCopies:
    """What is nowhere else (S1, W7)."""

    def test_who_has_the_only_copy_keeps_it(self) -> None:
        """A node that restarts is waited for, though there be others."""
        cluster = Cluster(first("ab"), ready("abc"))
        for change in (
            {"is_present": False},
            {"is_failing": True},
            {"is_lost": True},
            {"store_id": "another", "has_begun": False},
        ):
            cluster.nodes["a"] = standing("a", **change)
            assert not cluster.step(), change

    @pytest.mark.proves("W7")
    def test_another_directory_is_its_own_once_it_has_begun(self) -> None:
        """W7: it knows what it has lost, and may be given more."""
        cluster = Cluster(first("ab"), ready("ab"))
        cluster.nodes["a"] = standing("a", store_id="another")
        assert cluster.step()
        assert cluster.record.store_ids == ("another", "disk-of-b")
        assert cluster.record.since_sequences == (0, 0)
        assert not cluster.step()

    @pytest.mark.proves("S1")
    @pytest.mark.parametrize("fact", ["is_lost", "store_id"])
    def test_who_has_lost_what_others_have_begins_anew(self, fact: str) -> None:
        """S1: its copies count for nothing, and it makes new ones."""
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        facts: dict[str, object] = (
            {"is_lost": True} if fact == "is_lost" else {"store_id": "another"}
        )
        cluster.nodes["a"] = standing("a", **facts)
        assert cluster.step()
        record = cluster.record
        assert held_by(record, "a") == ()
        assert record.since_sequences[record.node_ids.index("a")] == 1
        assert record.planned_count == 4
        cluster.nodes["a"] = standing("a", store_id=cluster.nodes["a"].store_id)
        cluster.settle()
        cluster.check_done()
        assert cluster.made_count == 4

    @pytest.mark.proves("S1", "W7")
    def test_who_begins_anew_has_lost_nothing(self) -> None:
        """S1, W7: what it has in sync counts; what it was copying it copies anew."""
        cluster = Cluster(first("ab", replica_count=2), ready("abc"))
        cluster.step(node_count=3)
        begun = cluster.record
        assert any(begun.joining)
        cluster.nodes["a"] = standing("a", is_lost=True)
        cluster.nodes["b"] = standing("b", is_anew=True)
        cluster.nodes["c"] = standing("c", is_anew=True)
        assert cluster.step()
        assert held_by(cluster.record, "a") == held_by(cluster.record, "c") == ()
        assert held_by(cluster.record, "b") == (0, 1, 2, 3)
        assert cluster.record.joining == ()
        cluster.nodes = ready("abc")
        cluster.settle()
        cluster.check_done()

    @pytest.mark.proves("S1")
    @pytest.mark.parametrize(
        "facts",
        [
            {"is_lost": True},
            {"store_id": "another"},
            {"store_id": "another", "is_present": False, "is_silent": True},
        ],
        ids=lambda facts: "-".join(sorted(facts)),
    )
    def test_who_may_have_copied_what_was_lost_copies_anew(
        self, facts: dict[str, object]
    ) -> None:
        """
        S1: copies that were under way are given up, and begun in another write.

        Also where the node that has lost its rows has gone since.  Who does not hear of
        the first write is told by the second that its copy is another one.
        """
        cluster = Cluster(first("ab", replica_count=2), ready("abc"))
        cluster.step(node_count=3)
        begun = cluster.record
        assert begun.joining
        nodes = {**cluster.nodes, "a": standing("a", **facts)}
        nodes["c"] = standing("c", copied=range(4))
        changed = next_assignment(begun, nodes, sequence=2, joining_count_max=16)
        assert changed is not None
        assert held_by(changed, "c") == ()
        assert changed.joining == ()
        nodes = ready("abc")
        changed = next_assignment(changed, nodes, sequence=2, joining_count_max=16)
        assert changed is not None
        assert {copy.version for copies in changed.joining for copy in copies} == {
            changed.version
        }

    def test_a_copy_waits_for_its_source(self) -> None:
        """Copies without a source are not begun, and keep none from others."""
        cluster = Cluster(first("ab", groups=8), ready("abc"), joining_count_max=1)
        cluster.nodes["a"] = standing("a", is_present=False, is_draining=True)
        assert cluster.step()
        assert cluster.record.node_ids == ("a", "b", "c")
        cluster.settle()
        # What the other one has, has moved; what only it has, waits for it.
        assert held_by(cluster.record, "a") == (0, 1, 2, 3)
        assert all(owners for owners in cluster.record.owners)
        cluster.nodes["a"] = standing("a")
        cluster.settle()
        cluster.check_done()

    @pytest.mark.proves("S1")
    def test_a_copy_goes_with_the_node_that_makes_it(self) -> None:
        """S1: it is not known how far it was."""
        cluster = Cluster(first("a"), ready("ab"))
        cluster.step(node_count=2)
        for change in ({"is_present": False}, {"is_failing": True}):
            nodes = {**cluster.nodes, "b": standing("b", **change)}
            changed = next_assignment(
                cluster.record, nodes, sequence=9, joining_count_max=16
            )
            assert changed is not None
            assert (changed.joining, changed.node_ids) == ((), ("a",))


class TestDraining:
    """Nodes that are being emptied (O6)."""

    def test_its_key_groups_go_elsewhere(self) -> None:
        """It answers until the others have them."""
        cluster = Cluster(first("ab"), ready("ab"))
        cluster.nodes["b"] = standing("b", is_draining=True)
        assert cluster.step()
        assert held_by(cluster.record, "b") == (2, 3)
        cluster.settle()
        cluster.check_done()
        assert list(cluster.record.node_ids) == ["a"]
        assert cluster.record.node_count == 2
        # It is made up for when there is another one.
        cluster.nodes["c"] = standing("c")
        cluster.settle()
        assert cluster.record.node_ids == ("a", "c")

    @pytest.mark.proves("S4", "S1")
    def test_a_copy_is_not_given_up_for_silent_ones(self) -> None:
        """S4: they may be gone, and that is not known yet."""
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        cluster.settle()
        cluster.nodes = {
            "a": standing("a", is_silent=True),
            "b": standing("b", is_draining=True),
        }
        cluster.settle()
        assert held_by(cluster.record, "b") == (0, 1, 2, 3)
        gone = {**cluster.nodes, "a": standing("a", is_present=False)}
        changed = next_assignment(
            cluster.record, gone, sequence=9, joining_count_max=16
        )
        assert changed is not None
        assert changed.node_ids == ("b",)
        cluster.nodes["a"] = standing("a")
        cluster.settle()
        assert cluster.record.node_ids == ("a",)

    @pytest.mark.proves("S4")
    def test_a_copy_is_not_given_up_for_one_that_is_doubted(self) -> None:
        """S4: but what another one had that is gone is."""
        cluster = Cluster(first("ab", replica_count=2), ready("ab"))
        cluster.settle()
        cluster.nodes = {
            "a": standing("a", is_doubted=True),
            "b": standing("b", is_draining=True),
        }
        cluster.settle()
        assert held_by(cluster.record, "b") == (0, 1, 2, 3)
        cluster.nodes["b"] = standing("b", is_present=False)
        cluster.settle()
        assert cluster.record.node_ids == ("a",)

    def test_nobody_could_take_them(self) -> None:
        """It keeps what it has, and what was planned is planned no more."""
        cluster = Cluster(first("ab"), ready("ab"))
        cluster.nodes["b"] = standing("b", is_draining=True)
        cluster.step()
        cluster.nodes["a"] = standing("a", is_draining=True)
        # What was copied before counts.
        cluster.step()
        assert not cluster.step()
        assert (cluster.record.joining, cluster.record.wanted) == ((), ())

    @pytest.mark.proves("S1")
    def test_nobody_could_take_the_rest(self) -> None:
        """S1: what was left uneven is made even when somebody is there again."""
        cluster = Cluster(first("ab", groups=8), ready("ab"), joining_count_max=1)
        cluster.nodes["b"] = standing("b", is_draining=True)
        for _ in range(3):
            cluster.step()
        cluster.nodes = {
            "a": standing("a", is_draining=True),
            "b": standing("b", is_draining=True, is_present=False),
        }
        cluster.settle()
        assert held_by(cluster.record, "a") == (0, 1, 2, 3, 4, 5)
        assert (cluster.record.joining, cluster.record.wanted) == ((), ())
        cluster.nodes = ready("ab")
        cluster.settle()
        cluster.check_done()
        assert cluster.made_count == 4


class TestAwayWhileDraining:
    """A node that is away while another one is emptied (S1, O6)."""

    @pytest.mark.proves("O6", "S1")
    @pytest.mark.parametrize("fact", ["is_present", "is_failing"])
    def test_it_is_given_nothing_that_another_can_take(self, fact: str) -> None:
        """
        O6: a node that is emptied does not wait for one that may never be back.

        Half of what it had was planned for that one: it could only be stopped with
        rows that no other node had.
        """
        cluster = Cluster(first("abc", groups=128), ready("abc"))
        kept = held_by(cluster.record, "c")
        cluster.nodes["c"] = standing("c", **{fact: fact == "is_failing"})
        assert not cluster.step()
        cluster.nodes["a"] = standing("a", is_draining=True)
        cluster.settle()
        assert cluster.record.node_ids == ("b", "c")
        assert held_by(cluster.record, "c") == kept
        assert (cluster.made_count, cluster.record.wanted) == (43, ())
        # It is used again when it is back, and not before.
        assert not cluster.step()
        cluster.nodes["c"] = standing("c")
        cluster.settle()
        cluster.check_done()
        assert cluster.made_count == 43 + 64 - len(kept)

    @pytest.mark.proves("S1")
    def test_those_that_are_here_share(self) -> None:
        """S1: evenly, and with as few copies as that takes."""
        cluster = Cluster(first("abcd", groups=64), ready("abcd"))
        cluster.nodes["d"] = standing("d", is_present=False)
        cluster.nodes["a"] = standing("a", is_draining=True)
        cluster.settle()
        assert [len(held_by(cluster.record, one)) for one in "abcd"] == [0, 24, 24, 16]
        assert cluster.made_count == cluster.record.planned_count == 16

    @pytest.mark.proves("S1")
    def test_a_moment_changes_nothing(self) -> None:
        """S1: it keeps its part of the plan while it is expected."""
        cluster = Cluster(first("abc", groups=12), ready("abc"))
        cluster.nodes["a"] = standing("a", is_draining=True)
        cluster.nodes["c"] = expected("c")
        cluster.settle()
        assert len(held_by(cluster.record, "a")) == 2
        cluster.nodes["c"] = standing("c")
        cluster.settle()
        cluster.check_done()
        assert cluster.made_count == 4

    @pytest.mark.proves("S1")
    def test_what_no_node_must_give_up_waits_for_it(self) -> None:
        """S1: a rescaling that it was to have a part in is not planned anew."""
        cluster = Cluster(first("ab", groups=12), ready("abc"), joining_count_max=1)
        cluster.step(node_count=3)
        cluster.step()
        wanted = cluster.record.wanted
        for _ in range(3):
            cluster.nodes["c"] = standing("c", is_present=False)
            cluster.settle()
            assert len(held_by(cluster.record, "c")) == 1
            assert cluster.record.wanted == wanted
            cluster.nodes["c"] = standing("c")
        cluster.settle()
        cluster.check_done()
        assert cluster.made_count == 4

    @pytest.mark.proves("S1")
    def test_without_another_one_it_is_waited_for(self) -> None:
        """S1: the plan names it, and is carried out when it is back."""
        cluster = Cluster(first("ab"), ready("ab"))
        cluster.nodes = {
            "a": standing("a", is_draining=True),
            "b": standing("b", is_present=False),
        }
        assert cluster.step()
        assert not cluster.step()
        assert held_by(cluster.record, "a") == (0, 1)
        # Another one that comes takes what was to wait.
        waiting = cluster.record
        cluster.nodes["c"] = standing("c")
        cluster.settle()
        assert held_by(cluster.record, "c") == (0, 1)
        cluster.record = waiting
        cluster.nodes = {**ready("b"), "a": standing("a", is_draining=True)}
        cluster.settle()
        assert held_by(cluster.record, "b") == (0, 1, 2, 3)

    @pytest.mark.proves("S4")
    def test_second_copies_of_what_it_has_are_still_missing(self) -> None:
        """S4: what it has is not copied, and not taken for done."""
        cluster = Cluster(first("abc", groups=6), ready("abc"))
        cluster.nodes["c"] = standing("c", is_present=False)
        cluster.step(replica_count=2)
        cluster.settle()
        record = cluster.record
        assert copy_count(record.owners, record.wanted) == 2
        assert [len(held_by(record, one)) for one in "abc"] == [4, 4, 2]
        cluster.nodes["c"] = standing("c")
        cluster.settle()
        cluster.check_done()

    @pytest.mark.proves("S1")
    def test_more_nodes_than_key_groups_that_could_be_moved(self) -> None:
        """S1: who is left without one is not planned for again and again."""
        cluster = Cluster(first("ab", groups=3), ready("abcd"))
        cluster.step(node_count=3)
        cluster.settle()
        for node_id in "bc":
            cluster.nodes[node_id] = standing(node_id, is_present=False)
        cluster.nodes["a"] = standing("a", is_draining=True)
        cluster.settle()
        assert held_by(cluster.record, "a") == ()
        assert len(held_by(cluster.record, "d")) == 1

    @pytest.mark.proves("O6")
    def test_a_spare_node_stands_in_where_all_others_are_away(self) -> None:
        """O6: with a limit of nodes too: one of those away gives up its place."""
        cluster = Cluster(first("abc", groups=6), ready("abcde"))
        cluster.step(node_count=3)
        cluster.settle()
        for node_id in "bc":
            cluster.nodes[node_id] = standing(node_id, is_present=False)
        cluster.nodes["a"] = standing("a", is_draining=True)
        cluster.step(node_count=2)
        cluster.settle()
        assert held_by(cluster.record, "a") == ()
        assert len(held_by(cluster.record, "d")) == 2
        assert len(held_by(cluster.record, "b")) == 2
        assert held_by(cluster.record, "e") == ()
        cluster.nodes = ready("abcde")
        cluster.settle()
        cluster.check_done()

    @pytest.mark.proves("O6")
    def test_one_that_may_be_back_in_a_moment_keeps_its_place(self) -> None:
        """O6: a spare node is not drawn in for a moment."""
        cluster = Cluster(first("ab"), ready("abc"))
        cluster.step(node_count=2)
        cluster.settle()
        cluster.nodes["b"] = expected("b")
        cluster.nodes["a"] = standing("a", is_draining=True)
        cluster.step(node_count=1)
        cluster.settle()
        assert held_by(cluster.record, "c") == ()

    @pytest.mark.proves("O6", "S4")
    def test_as_many_spare_nodes_stand_in_as_there_are_copies(self) -> None:
        """S4: a node that is emptied and stopped leaves no key group with one copy."""
        node_ids = "abcd"
        cluster = Cluster(first(node_ids, groups=8, replica_count=2), ready("abcdef"))
        cluster.step(node_count=4)
        cluster.settle()
        for node_id in "cd":
            cluster.nodes[node_id] = standing(node_id, is_present=False)
        cluster.settle()
        for node_id in "ab":
            cluster.nodes[node_id] = standing(node_id, is_draining=True)
        cluster.step(node_count=2)
        cluster.settle()
        for owners in cluster.record.owners:
            names = {cluster.record.node_ids[index] for index in owners}
            assert names in ({"e", "f"}, {"c", "d"})

    @pytest.mark.proves("S1")
    def test_one_with_the_only_copies_goes_before_one_that_may_be_back(self) -> None:
        """S1: what a node has is not copied off it for one that has nothing."""
        cluster = Cluster(first("ab", groups=12), ready("ab"))
        cluster.nodes["b"] = standing("b", is_present=False)
        cluster.nodes["c"] = standing("c")
        cluster.step(node_count=3)
        cluster.nodes["c"] = expected("c")
        cluster.step(node_count=2)
        cluster.settle()
        cluster.nodes = ready("abc")
        cluster.settle()
        assert len(held_by(cluster.record, "b")) == 6
        assert held_by(cluster.record, "c") == ()

    @pytest.mark.proves("O6", "S4")
    def test_one_that_fails_as_well_does_not_wait_for_a_surplus_copy(self) -> None:
        """O6: what only it and one that is away have goes to one that is here."""
        cluster = Cluster(first("ab", groups=4, replica_count=2), ready("abc"))
        cluster.nodes["b"] = standing("b", is_present=False, is_silent=True)
        cluster.nodes["a"] = standing("a", is_draining=True, is_failing=True)
        cluster.step(replica_count=1)
        cluster.settle()
        assert held_by(cluster.record, "a") == ()

    @pytest.mark.proves("O6", "S1")
    @pytest.mark.parametrize("seed", nightly_after(4, range(16)))
    def test_any_draining_ends(self, seed: int) -> None:
        """O6: be others away: one node that is here and can take it all is enough."""
        random = Random(seed)
        for _ in range(200):
            node_ids = [f"{n:02}" for n in range(random.randint(2, 6))]
            begun = node_ids[: random.randint(1, len(node_ids))]
            cluster = Cluster(
                first(begun, groups=random.randint(1, 24)),
                ready(node_ids),
                joining_count_max=random.randint(1, 8),
            )
            cluster.step(node_count=random.randint(1, len(node_ids)))
            for _ in range(random.randint(1, 8)):
                node_id = random.choice(node_ids)
                cluster.nodes[node_id] = random.choice(
                    [
                        standing(node_id),
                        standing(node_id, is_present=False),
                        standing(node_id, is_draining=True),
                        standing(node_id, is_draining=True, is_present=False),
                        expected(node_id),
                    ]
                )
                for _ in range(random.randint(0, 3)):
                    cluster.step()
            for node_id in node_ids:
                if cluster.nodes[node_id].is_expected:
                    cluster.nodes[node_id] = standing(node_id, is_present=False)
            cluster.settle()
            is_able = any(
                one.is_present and not one.is_draining for one in cluster.nodes.values()
            )
            for node_id, one in cluster.nodes.items():
                if is_able and one.is_draining and one.is_present:
                    assert held_by(cluster.record, node_id) == ()
            cluster.nodes = ready(node_ids)
            cluster.settle()
            cluster.check_done()


def random_event(random: Random, cluster: Cluster, node_ids: list[str]) -> None:
    """Have something happen to the nodes, or have an operator ask for something."""
    node_id = random.choice(node_ids)
    kind = random.randrange(9)
    if kind == 0:
        cluster.nodes[node_id] = standing(node_id)
    elif kind == 1:
        cluster.nodes[node_id] = standing(node_id, is_present=False)
    elif kind == 2:
        cluster.nodes[node_id] = standing(node_id, is_draining=True)
    elif kind == 3:
        cluster.nodes[node_id] = standing(
            node_id, is_failing=random.random() < 0.5, is_lost=random.random() < 0.5
        )
    elif kind == 4:
        cluster.nodes[node_id] = expected(
            node_id, store_id=cluster.nodes[node_id].store_id
        )
    elif kind == 5:
        cluster.nodes[node_id] = standing(
            node_id, is_behind=True, store_id=cluster.nodes[node_id].store_id
        )
    elif kind == 6:
        number = random.randrange(3)
        cluster.nodes[node_id] = standing(node_id, store_id=f"{node_id}-{number}")
    else:
        cluster.step(
            node_count=random.randint(1, len(node_ids)),
            replica_count=random.randint(1, 3),
        )


@pytest.mark.parametrize("seed", nightly_after(4, range(16)))
def test_any_history_converges(seed: int) -> None:
    """
    S1 to S4, 10,000 times at night: whatever happens, every key group is somebody's.

    `Cluster.step` checks each: every key group has an owner, and only one primary; who
    is in sync was so before, or has copied.  When nothing happens any more, everything
    is as it is wanted, even, and on as many nodes as there should be.
    """
    random = Random(seed)
    for _ in range(640):
        many = random.random() < 0.03
        node_ids = [f"{n:02}" for n in range(random.randint(1, 64 if many else 6))]
        group_count = random.randint(1, 256 if many else 12)
        begun = node_ids[: random.randint(1, len(node_ids))]
        record = first(begun, groups=group_count, replica_count=random.randint(1, 3))
        cluster = Cluster(
            record, ready(node_ids), joining_count_max=random.randint(1, 32)
        )
        for _ in range(random.randint(0, 3 if many else 6)):
            random_event(random, cluster, node_ids)
            for _ in range(random.randint(0, 2)):
                cluster.step()
        for node_id in node_ids:
            store_id = cluster.nodes[node_id].store_id
            cluster.nodes[node_id] = standing(node_id, store_id=store_id)
        cluster.settle()
        cluster.check_done()
        made = cluster.made_count
        cluster.step(
            node_count=random.randint(1, len(node_ids)),
            replica_count=random.randint(1, 3),
        )
        planned = copy_count(
            cluster.record.owners, cluster.record.wanted or cluster.record.owners
        )
        cluster.settle()
        cluster.check_done()
        assert cluster.made_count - made == planned
        assert planned in {0, cluster.record.planned_count}


def test_a_step_of_the_most_key_groups_is_one_write() -> None:
    """32,768 key groups: the same steps as with few."""
    record = first("a", groups=32_768)
    cluster = Cluster(record, ready("ab"), joining_count_max=8_192)
    cluster.step(node_count=2)
    assert cluster.settle() == 2
    cluster.check_done()


def test_nothing_happens_without_a_reason() -> None:
    """What is as it should be stays, and so does the version."""
    record = replace(first("ab", replica_count=2), planned_count=3)
    assert (
        next_assignment(record, ready("ab"), sequence=99, joining_count_max=16) is None
    )
