from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.store.groups import (
    ALL_GROUPS,
    difference,
    groups_in,
    intersection,
    is_in,
    row_ranges,
    runs_from,
    selected_rows,
    spans,
    union,
)
from queryablestate.store.layout import Runs
from queryablestate.wire.staging_messages import StagedRows


GROUPS = [*range(12), *range(2**16 - 4, 2**16)]
SETS = st.sets(st.sampled_from(GROUPS))
KEYS = st.lists(
    st.tuples(st.sampled_from(GROUPS), st.binary(max_size=2)), max_size=20
).map(lambda keys: sorted(group.to_bytes(2, "big") + rest for group, rest in keys))


def members(runs: Runs) -> set[int]:
    """Return the key groups in *runs*, which are sorted and do not touch."""
    for (_, last), (first, _) in pairwise(runs):
        assert last + 1 < first
    return {group for first, last in runs for group in range(first, last + 1)}


@pytest.mark.proves("S1")
@given(some=SETS, others=SETS)
def test_runs_are_sets_of_key_groups(some: set[int], others: set[int]) -> None:
    """Whatever is done to them, and also at both ends (S1)."""
    runs, other_runs = runs_from(some), runs_from(others)
    assert members(runs) == some
    assert members(union(runs, other_runs)) == some | others
    assert members(intersection(runs, other_runs)) == some & others
    assert members(difference(runs, other_runs)) == some - others
    assert difference(ALL_GROUPS, difference(ALL_GROUPS, runs)) == runs
    assert groups_in(runs, GROUPS) == tuple(one for one in GROUPS if one in some)
    assert [is_in(runs, one) for one in GROUPS] == [one in some for one in GROUPS]


@pytest.mark.proves("S2")
@given(keys=KEYS, groups=SETS)
def test_rows_of_key_groups_are_found(keys: list[bytes], groups: set[int]) -> None:
    """All of them, none twice, in their order; neighbours in one piece (S2)."""
    found = spans(keys, row_ranges(runs_from(groups)))
    wanted = [one for one in keys if int.from_bytes(one[:2], "big") in groups]
    assert [one for i, j in found for one in keys[i:j]] == wanted
    for (_, end), (begin, _) in pairwise(found):
        assert end < begin


@pytest.mark.proves("S2")
@given(keys=KEYS, groups=SETS, has_orders=st.booleans())
def test_a_chunk_is_cut_to_key_groups(
    keys: list[bytes], groups: set[int], has_orders: bool
) -> None:
    """Values and orders stay with their keys; what is whole is not copied (S2)."""
    rows = StagedRows(
        state_number=7,
        keys=keys,
        values=[b"v" + one for one in keys],
        orders=[b"o" + one for one in keys] if has_orders else None,
    )
    some = selected_rows(rows, row_ranges(runs_from(groups)))
    wanted = [one for one in keys if int.from_bytes(one[:2], "big") in groups]
    if not wanted:
        assert some is None
        return
    assert some is not None
    assert (some is rows) == (wanted == keys)
    assert (some.state_number, some.keys) == (7, wanted)
    assert some.values == [b"v" + one for one in wanted]
    assert some.orders == ([b"o" + one for one in wanted] if has_orders else None)
