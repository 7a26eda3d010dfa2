"""Copies of key groups between stores: held, fetched, caught up (S1, S2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queryablestate.store import StateStore
from tests.queryablestate.store_batches import JOB, NODE, key, write
from tests.queryablestate.store_copying import copied, joining, rows_by_group


@pytest.fixture
def source(tmp_path: Path) -> Iterator[StateStore]:
    """Yield an empty store."""
    with StateStore.open(tmp_path / "a", node_id=NODE, is_durable=False) as made:
        yield made


@pytest.fixture
def target(tmp_path: Path) -> Iterator[StateStore]:
    """Yield another empty store, of which the decisions say the same counts."""
    with StateStore.open(tmp_path / "b", node_id=NODE, is_durable=False) as made:
        yield made


class TestCopy:
    def test_a_key_group_is_copied(
        self, source: StateStore, target: StateStore
    ) -> None:
        """With its rows and the marks of the states; others stay there (S2)."""
        write(source, [(key(group), b"%d" % group) for group in range(4)])
        target.reset_job(JOB, 1, [])
        held = target.hold(JOB, [], joining({1: 1, 2: 1}))
        assert (held.copied, held.missing, held.sequence_min) == ((), (1, 2), 1)
        assert copied(source, target, [1, 2]) == (1, 2)
        assert target.state(1) == source.state(1)
        expected = rows_by_group(source, JOB, range(4))
        assert rows_by_group(target, JOB, range(4)) == {
            1: {group: expected[1][group] for group in (1, 2)}
        }
        held = target.hold(JOB, [], joining({1: 1, 2: 1}))
        assert (held.copied, held.missing) == ((1, 2), ())
        target.hold(JOB, [1, 2], [])
        write(source, [(key(group), b"new") for group in range(4)])
        write(target, [(key(group), b"new") for group in range(4)])
        assert rows_by_group(source, JOB, [1, 2]) == rows_by_group(
            target, JOB, range(4)
        )
