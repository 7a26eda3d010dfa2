"""Operator state on its way to rows and back, without I/O (O5)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nameservice import ConfigurationError, RemoteProtocolError
from queryablestate import StateUnavailableError
from queryablestate.client.operator_states import OperatorStateRead
from queryablestate.client.requests import KeysRead
from queryablestate.client.routes import ROWS
from queryablestate.proxy.access import AccessList, CallerEntry, Right, token_sha256
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.operator_states import (
    OPERATOR_STATE_SCHEMA,
    PART_SIZE_BYTES_MAX,
    published_name,
)
from queryablestate.schema.values import ValueCodec
from queryablestate.wire.questions import Reading
from queryablestate.writer.operator_states import (
    PublishedState,
    published_rows,
    published_states,
)
from rescaling import OperatorStateError, RedistributionMode
from rescaling.operator_state import encode_snapshot


SPLIT = RedistributionMode.SPLIT_DISTRIBUTE
UNION = RedistributionMode.UNION
BROADCAST = RedistributionMode.BROADCAST
VALUES = ValueCodec(OPERATOR_STATE_SCHEMA.value)
Row = dict[str, Any]


def rows_of(
    state: PublishedState, *, batch_id: int = 3, writer_epoch: int = 7
) -> list[Row]:
    """Return the published rows by part, as a client decodes them."""
    rows = published_rows(
        state, writer_epoch=writer_epoch, batch_id=batch_id, max_parallelism=16
    )
    codec = KeyCodec(OPERATOR_STATE_SCHEMA.key, max_parallelism=16)
    by_key = dict(zip(rows.keys, rows.values, strict=True))
    found = []
    for key in codec.storage_keys(range(len(by_key))):
        value = by_key[key]
        assert value is not None
        found.append(VALUES.decode_row(value))
    return found


def state_of(*snapshots: dict[str, Any], name: str = "offsets") -> PublishedState:
    """Return one state of subtasks that left *snapshots*."""
    (found,) = (
        one
        for one in published_states([encode_snapshot(each) for each in snapshots])
        if one.name == name
    )
    return found


def large_state(filler: bytes, part_count: int) -> PublishedState:
    """Return a state that needs that many parts."""
    item = filler * (PART_SIZE_BYTES_MAX * (part_count - 1) // len(filler))
    state = state_of({"offsets": (SPLIT, [item])})
    assert len(rows_of(state)) == part_count
    return state


def answered(
    reading: OperatorStateRead,
    rows: list[Row],
    *,
    age_ms: int = 250,
    is_cached: bool = False,
) -> KeysRead:
    """Return the answer to what *reading* wants, from *rows* by part."""
    parts = reading.wanted()
    read = KeysRead(None, ("job", reading.state_name), ROWS, parts, 0, 0)
    read.rows = [rows[part] if part < len(rows) else None for part in parts]
    read.reading = Reading(generation=2, batch_id=3, age_ms=age_ms, is_cached=is_cached)
    return read


class TestNames:
    """What published states are called."""

    @pytest.mark.proves("O5")
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("offsets", "operator-state:offsets"),
            ("my rules", "operator-state:my rules"),
            ("größe", "operator-state:größe"),
            ("a/b", "operator-state:a%2fb"),
            ("50%", "operator-state:50%25"),
            ("a\nb", "operator-state:a%0ab"),
        ],
    )
    def test_what_no_state_may_have_in_its_name_is_written_in_digits(
        self, name: str, expected: str
    ) -> None:
        """O5: every name of an operator can be asked for, and no two are one."""
        assert published_name(name) == expected

    def test_a_name_has_a_length(self) -> None:
        """The published name has at most 255 characters, of any kind of name."""
        assert len(published_name("x" * 240)) == 255
        for name in ("x" * 241, "", "/" * 81):
            with pytest.raises(ConfigurationError, match="1 "):
                published_name(name)


class TestAccess:
    """Who may read and publish operator state."""

    @pytest.mark.proves("O5")
    def test_a_glob_gives_the_right_to_one_name(self) -> None:
        """C1, O5: access goes by what the published state is called."""
        access = AccessList(
            callers=[
                CallerEntry(
                    name="reader",
                    token_sha256=token_sha256("reads"),
                    read=["flights/operator-state:off*"],
                )
            ]
        )
        caller = access.authenticate(token="reads")
        assert caller is not None
        for name, expected in (("offsets", True), ("rules", False)):
            state_name = published_name(name)
            assert access.may(caller, Right.READ, "flights", state_name) is expected
        assert not access.may(caller, Right.READ, "trains", published_name("offsets"))
        assert not access.may(caller, Right.READ, "flights", "offsets")


class TestStates:
    """From snapshots to states."""

    @pytest.mark.proves("O5")
    def test_they_are_sorted_by_name_and_know_who_has_none(self) -> None:
        """O5: a subtask that has no such state is told from one that has no items."""
        first = encode_snapshot({"b": (UNION, [1]), "a": (SPLIT, [])})
        second = encode_snapshot({"b": (UNION, [2])})
        found = published_states([first, second])
        assert [(one.name, one.mode) for one in found] == [("a", SPLIT), ("b", UNION)]
        assert found[0].subtasks[0] is not None
        assert found[0].subtasks[1] is None
        assert published_states([encode_snapshot({})]) == []

    def test_one_name_has_one_mode(self) -> None:
        """O2: as for redistribution."""
        snapshots = [
            encode_snapshot({"a": (SPLIT, [])}),
            encode_snapshot({"a": (UNION, [])}),
        ]
        with pytest.raises(ConfigurationError, match="'a' is split-distribute in one"):
            published_states(snapshots)
        with pytest.raises(OperatorStateError, match="no snapshot"):
            published_states([b"\xc1"])


class TestReading:
    """From rows to what a user is given."""

    @pytest.mark.proves("O5")
    def test_items_come_back_as_they_were(self) -> None:
        """O5: with their types, by subtask; tuples, bytes and dicts of any keys."""
        items = [
            ("a.jsonl", 2**63),
            [None, True, -1, 0.5, "text", b"\x00\xff"],
            {1: ("x",), None: {"y": [()]}},
        ]
        state = state_of({"offsets": (SPLIT, items)}, {}, {"offsets": (SPLIT, [])})
        reading = OperatorStateRead("job", "offsets")
        reading.take(answered(reading, rows_of(state), is_cached=True))
        view = reading.view
        assert view is not None
        assert view.subtasks == (tuple(items), (), ())
        assert [type(item) for item in view.subtasks[0]] == [tuple, list, dict]
        assert view.items == tuple((0, item) for item in items)
        assert (view.job_id, view.name, view.mode) == ("job", "offsets", SPLIT)
        assert (view.parallelism, view.batch_id, view.generation) == (3, 3, 2)
        assert (view.age_seconds, view.cached) == (0.25, True)

    @pytest.mark.proves("O5")
    def test_broadcast_state_is_pairs(self) -> None:
        """O5: of each subtask, in the order of its table."""
        pairs = [("k", 1), ("j", [2])]
        state = state_of({"c": (BROADCAST, pairs)}, {"c": (BROADCAST, pairs)}, name="c")
        reading = OperatorStateRead("job", "c")
        reading.take(answered(reading, rows_of(state)))
        assert reading.view is not None
        assert reading.view.mode is BROADCAST
        assert reading.view.subtasks == (tuple(pairs), tuple(pairs))

    @pytest.mark.proves("O5")
    @pytest.mark.parametrize("part_count", [2, 9, 10, 20])
    def test_a_large_state_is_read_in_parts(self, part_count: int) -> None:
        """O5: a few at once; as old as the oldest of them."""
        state = large_state(b"abc", part_count)
        rows = rows_of(state)
        assert all(len(row["content"]) <= PART_SIZE_BYTES_MAX for row in rows)
        reading = OperatorStateRead("job", "offsets")
        asked: list[int] = []
        while reading.view is None:
            asked += reading.wanted()
            assert 0 < len(reading.wanted()) <= 8
            reading.take(answered(reading, rows, age_ms=100 + len(asked)))
        assert asked == list(range(part_count))
        assert reading.view.subtasks[0][0][:6] == b"abcabc"
        assert reading.view.age_seconds == (100 + part_count) / 1000

    @pytest.mark.proves("O5")
    def test_parts_of_two_batches_never_make_a_state(self) -> None:
        """
        O5: whatever is committed between two questions, the answer is of one batch.

        Batches of any size, and runs that write the same batch id, come in between at
        random; what is read is one of them, to the last byte.
        """
        random_source = random.Random(5)
        begun_again = 0
        for _ in range(60):
            reading = OperatorStateRead("job", "offsets")
            versions: dict[tuple[int, int], PublishedState] = {}
            rows: list[Row] = []
            asked: list[tuple[int, ...]] = []
            while reading.view is None:
                if not rows or (len(asked) < 12 and random_source.random() < 0.4):
                    number = len(versions)
                    epoch, batch_id = 1 + number // 2, number % 2
                    state = large_state(
                        b"%3d" % number, random_source.choice([1, 2, 12])
                    )
                    versions[epoch, batch_id] = state
                    rows = rows_of(state, batch_id=batch_id, writer_epoch=epoch)
                asked.append(reading.wanted())
                reading.take(answered(reading, rows))
            view = reading.view
            (encoded,) = [
                state for state in versions.values() if view.subtasks == _decoded(state)
            ]
            assert view.batch_id == [*versions.values()].index(encoded) % 2
            begun_again += asked.count((0,)) > 1
        assert begun_again > 5

    @pytest.mark.proves("Q3")
    def test_nothing_is_published_yet(self) -> None:
        """Q3: registered, and no batch decided: to be asked again, with a time."""
        reading = OperatorStateRead("job", "offsets")
        with pytest.raises(StateUnavailableError, match="no batch of it") as raised:
            reading.take(answered(reading, []))
        assert raised.value.state_name == "operator-state:offsets"
        assert raised.value.retry_after_seconds > 0

    @pytest.mark.parametrize(
        "changes",
        [
            {"mode": "scattered"},
            {"content": b"\xc1"},
            {"content": b"\x91\xc4\x01\xc1"},
            {"parallelism": 2},
        ],
    )
    def test_what_is_no_operator_state_is_an_error(self, changes: Row) -> None:
        """A damaged row is never half a state."""
        (row,) = rows_of(state_of({"offsets": (SPLIT, [1])}))
        reading = OperatorStateRead("job", "offsets")
        with pytest.raises(RemoteProtocolError):
            reading.take(answered(reading, [row | changes]))
        assert reading.view is None


def _decoded(state: PublishedState) -> tuple[tuple[Any, ...], ...]:
    """Return the items of *state*, read while nothing is written."""
    reading = OperatorStateRead("job", "offsets")
    while reading.view is None:
        reading.take(answered(reading, rows_of(state)))
    return reading.view.subtasks
