"""Where the rows of a batch are, and where they must be (S2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.control.assignment.assignment import destinations
from queryablestate.control.commit_rows import BatchRows, CollectedRows
from queryablestate.wire.job_assignment import CopySource
from queryablestate.wire.records import StageRecord, collected_stage_id
from tests.queryablestate.control_plane import stage
from tests.queryablestate.moving_plane import assignment


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.records import AssignmentRecord

SENT = assignment(1, "ab", "a a b b")
NODE_IDS = "abcd"


def rows(
    present: AssignmentRecord,
    *stages: StageRecord,
    sent: AssignmentRecord = SENT,
    lacking: str = "",
    collected: Mapping[str, Sequence[CollectedRows]] | None = None,
) -> BatchRows:
    """Return the rows of a batch."""
    return BatchRows(
        stages, sent, present, lacking=set(lacking), collected=collected or {}
    )


def fetched(version: int, *key_groups: int, **chunk_counts: int) -> CollectedRows:
    """Return what a node has collected; the stages are called ``s1``, ``s2``."""
    counts = {
        int(name[1:]).to_bytes(16, "big"): count for name, count in chunk_counts.items()
    }
    return CollectedRows(
        assignment_version=version,
        key_groups=frozenset(key_groups),
        chunk_counts=counts,
    )


def given_up(one: StageRecord, *node_ids: str) -> StageRecord:
    """Return that stage, without these nodes."""
    return StageRecord(
        stage_id=one.stage_id,
        chunk_counts=one.chunk_counts,
        row_count=one.row_count,
        given_up=node_ids,
    )


class TestNeeds:
    """Who verifies, who collects, and what cannot be had."""

    @pytest.mark.proves("W3")
    def test_without_a_change_all_who_were_sent_rows_verify(self) -> None:
        """W3: nothing is collected; what is decided is what was sent, as it is."""
        stages = (stage(1, a=2, b=0), stage(2, a=1))
        found = rows(SENT, *stages)
        assert found.verifying == {"a"}
        assert found.collecting == {}
        assert found.decided_stages() is found.decided_stages() == stages

    @pytest.mark.proves("S2")
    def test_a_new_copy_collects_what_others_were_sent(self) -> None:
        """S2: a joining copy is brought the rows of each batch that is decided."""
        present = assignment(2, "abc", "a a b b", joining="- c c -")
        found = rows(present, stage(1, a=1, b=1))
        assert found.verifying == {"a", "b"}
        assert found.collecting == {"c": (1, 2)}

    @pytest.mark.proves("S2")
    def test_a_former_owner_is_not_waited_for(self) -> None:
        """S2: rows that will not be applied there need not be there."""
        found = rows(assignment(2, "bc", "c c b b"), stage(1, a=1, b=1))
        assert found.verifying == {"b"}
        assert found.collecting == {"c": (0, 1)}

    def test_a_node_keeps_what_it_was_sent_and_collects_the_rest(self) -> None:
        """Nothing travels twice."""
        found = rows(assignment(2, "ab", "a a a b"), stage(1, a=1, b=1))
        assert found.verifying == {"a", "b"}
        assert found.collecting == {"a": (2,)}

    def test_a_node_with_other_key_groups_than_before_verifies_nothing(self) -> None:
        """Its chunks hold nothing of what it has now."""
        found = rows(assignment(2, "ab", "b b a a"), stage(1, a=1, b=1))
        assert found.verifying == frozenset()
        assert found.collecting == {"a": (2, 3), "b": (0, 1)}

    def test_of_key_groups_without_rows_nothing_is_collected(self) -> None:
        """A holder that has no chunk at all was sent no rows."""
        found = rows(assignment(2, "ab", "b b a a"), stage(1, a=1, b=0))
        assert found.collecting == {"b": (0, 1)}
        assert rows(assignment(2, "ab", "b b a a")).collecting == {}

    @pytest.mark.proves("S2")
    def test_a_joining_copy_that_was_sent_rows_has_them(self) -> None:
        """S2: a writer brings rows to those that join, too."""
        sent = assignment(1, "ab", "a a a a", joining="b b - -")
        found = rows(assignment(2, "ab", "b b a a"), stage(1, a=1, b=1), sent=sent)
        assert found.collecting == {}
        assert found.verifying == {"a", "b"}

    @pytest.mark.proves("S4")
    def test_a_node_that_was_given_up_has_nothing(self) -> None:
        """S4: part of its rows may be there, and count for nothing."""
        sent = assignment(1, "ab", "ab ab ab ab")
        one = given_up(stage(1, a=1, b=2), "b")
        found = rows(sent, one, stage(2, a=1, b=1), sent=sent)
        assert found.verifying == {"a"}
        assert found.collecting == {"b": (0, 1, 2, 3)}
        found = rows(assignment(2, "a", "a a a a"), one, stage(2, a=1, b=1), sent=sent)
        assert found.collecting == {}
        assert [one.chunk_counts for one in found.decided_stages()] == [
            {"a": 1},
            {"a": 1},
        ]
        assert [one.given_up for one in found.decided_stages()] == [(), ()]

    @pytest.mark.proves("W4")
    def test_rows_that_nobody_has(self) -> None:
        """W4: every node that was sent them lacks them."""
        found = rows(assignment(2, "bc", "c c b b"), stage(1, a=1, b=1), lacking="a")
        assert found.nobody == (0, 1)

    def test_rows_that_were_fetched_in_time(self) -> None:
        """What has become of those who had them matters no more."""
        found = rows(
            assignment(2, "bc", "c c b b"),
            stage(1, a=1, b=1),
            lacking="a",
            collected={"c": [fetched(2, 0, 1, s1=1)]},
        )
        assert found.nobody == ()
        assert found.collecting == {}

    @pytest.mark.proves("S2")
    def test_what_was_fetched_for_an_earlier_assignment_is_kept(self) -> None:
        """S2: commits come to an end while key groups go on moving."""
        present = assignment(3, "abc", "a a b b", joining="- c c -")
        collected = {"c": [fetched(2, 1, s1=1)]}
        found = rows(present, stage(1, a=1, b=1), collected=collected)
        assert found.collecting == {"c": (2,)}


class TestSources:
    """Where rows are had from."""

    def test_those_that_are_there_and_in_sync_come_first(self) -> None:
        """A node that is away is named only where no other has the rows."""
        sent = assignment(1, "abc", "ab ba c a", joining="c - - b")
        present = assignment(2, "d", "d d d d")
        found = rows(present, stage(1, a=1, b=1, c=1), sent=sent)
        addresses = {"b": "tcp://b:1", "c": "tcp://c:1"}

        def address_of(node_id: str) -> str | None:
            return addresses.get(node_id)

        assert found.sources((0, 1, 2, 3), address_of) == (
            CopySource(node_id="b", address="tcp://b:1", key_groups=(0, 1, 3)),
            CopySource(node_id="c", address="tcp://c:1", key_groups=(2,)),
        )
        assert found.sources((0, 2), _nowhere) == (
            CopySource(node_id="a", address=None, key_groups=(0,)),
            CopySource(node_id="c", address=None, key_groups=(2,)),
        )

    def test_stages_of_which_they_have_nothing_are_left_out(self) -> None:
        """No node is asked for chunks that there are none of."""
        one, two = stage(1, a=1, b=0), stage(2, a=0, b=1)
        found = rows(assignment(2, "c", "c c c c"), one, two)
        assert found.stages_of((0,)) == (one,)
        assert found.stages_of((0, 2)) == (one, two)

    def test_stages_are_the_same_whoever_lacks_rows(self) -> None:
        """What a node is told of other sources is told of the same stages."""
        sent = assignment(1, "ab", "ab ab a b")
        one, two = stage(1, a=1, b=1), stage(2, a=1, b=0)
        found = rows(assignment(2, "c", "c c c c"), one, two, sent=sent, lacking="a")
        assert found.stages_of((0,)) == (one, two)


class TestDecided:
    """What a decision names."""

    def test_what_was_collected_follows_its_stage(self) -> None:
        """Rows of one key group are applied in the order in which they were brought."""
        present = assignment(3, "bc", "c c b b", joining="b - - c")
        one, two = stage(1, a=1, b=1), stage(2, a=2, b=0)
        found = rows(
            present,
            one,
            two,
            collected={
                "c": [fetched(2, 0, 1, s1=1, s2=3), fetched(3, 3, s1=1, s2=0)],
                "b": [fetched(3, 0, s1=1, s2=1)],
            },
        )
        assert found.collecting == {}
        decided = found.decided_stages()
        assert [(each.stage_id, each.chunk_counts) for each in decided] == [
            (one.stage_id, {"b": 1}),
            (collected_stage_id(one.stage_id, 2, (0, 1)), {"c": 1}),
            (collected_stage_id(one.stage_id, 3, (0,)), {"b": 1}),
            (collected_stage_id(one.stage_id, 3, (3,)), {"c": 1}),
            (two.stage_id, {"b": 0}),
            (collected_stage_id(two.stage_id, 2, (0, 1)), {"c": 3}),
            (collected_stage_id(two.stage_id, 3, (0,)), {"b": 1}),
        ]

    def test_what_was_collected_in_vain_is_left_out(self) -> None:
        """The node has nothing of these key groups any more."""
        found = rows(
            assignment(3, "ab", "b a b b"),
            stage(1, a=1, b=1),
            collected={"a": [fetched(2, 2, s1=1)], "b": [fetched(3, 0, s1=1)]},
        )
        assert [one.chunk_counts for one in found.decided_stages()] == [
            {"a": 1, "b": 1},
            {"b": 1},
        ]


def _nowhere(node_id: str) -> str | None:
    """Return that a node is away."""
    del node_id
    return None


@st.composite
def assignments(draw: st.DrawFn, version: int) -> AssignmentRecord:
    """Return an assignment of six key groups, some of which have joining copies."""
    words = st.lists(st.sampled_from(NODE_IDS), min_size=1, max_size=3, unique=True)
    copies = [draw(words) for _ in range(6)]
    split = [draw(st.integers(1, len(word))) for word in copies]
    return assignment(
        version,
        NODE_IDS,
        " ".join("".join(w[:n]) for w, n in zip(copies, split, strict=True)),
        joining=" ".join(
            "".join(w[n:]) or "-" for w, n in zip(copies, split, strict=True)
        ),
    )


@pytest.mark.proves("S2")
@given(data=st.data())
def test_every_copy_gets_the_rows_of_its_key_groups_once(data: st.DataObject) -> None:
    """S2: whatever moves, and whichever is given up, none twice, none never."""
    sent = data.draw(assignments(1))
    had = {
        node_id: {
            group
            for group, indexes in enumerate(destinations(sent))
            if NODE_IDS.index(node_id) in indexes
        }
        for node_id in NODE_IDS
    }
    lost = data.draw(st.sets(st.sampled_from(NODE_IDS), max_size=2))
    stages = (given_up(stage(1, **{n: 1 for n in NODE_IDS if had[n]}), *sorted(lost)),)
    collected: dict[str, list[CollectedRows]] = {}
    present = sent
    for version in range(1, data.draw(st.integers(1, 4)) + 1):
        if version > 1:
            present = data.draw(assignments(version))
        found = rows(present, *stages, sent=sent, collected=collected)
        if found.nobody:
            holders = [NODE_IDS[i] for i in destinations(sent)[found.nobody[0]]]
            assert lost.issuperset(holders)
            return
        wanted = data.draw(st.booleans())  # else the next change comes before
        for node_id, key_groups in found.collecting.items():
            if wanted:
                own = collected.setdefault(node_id, [])
                own.append(fetched(version, *key_groups, s1=1))
    found = rows(present, *stages, sent=sent, collected=collected)
    for node_id, key_groups in found.collecting.items():
        own = collected.setdefault(node_id, [])
        own.append(fetched(present.version, *key_groups, s1=1))
    found = rows(present, *stages, sent=sent, collected=collected)
    assert found.collecting == {}
    content = {stages[0].stage_id: had}
    for node_id, fetches in collected.items():
        for one in fetches:
            name = collected_stage_id(
                stages[0].stage_id, one.assignment_version, one.key_groups
            )
            content.setdefault(name, {})[node_id] = set(one.key_groups)
    for group, indexes in enumerate(destinations(present)):
        for node_id in (NODE_IDS[index] for index in indexes):
            times = [
                each.stage_id
                for each in found.decided_stages()
                if each.chunk_counts.get(node_id, 0)
                and group in content[each.stage_id].get(node_id, ())
            ]
            assert len(times) == 1
