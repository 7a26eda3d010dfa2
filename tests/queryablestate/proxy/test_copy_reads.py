"""What other nodes are asked in place of a primary, and what becomes of it (D4, D5)."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from nameservice import RemoteProtocolError
from queryablestate.control.events import LinkId
from queryablestate.control.routes import KvStateLocation
from queryablestate.proxy.copy_reads import CopyPart, behind, divide, is_by_key, unite
from queryablestate.schema.key_groups import group_start
from queryablestate.wire.questions import (
    Answer,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Operation,
    Reading,
    ScanRows,
    WalkRows,
)


B: Final = LinkId(11)
C: Final = LinkId(12)
encode: Final = msgspec.msgpack.encode
decode: Final = msgspec.msgpack.decode


def location(
    *, copy_links: tuple[LinkId | None, ...] = (None, B, C)
) -> KvStateLocation:
    """Return a route: node 0 has groups 0 to 3, with copies on 1, 2, 1 and 2."""
    return KvStateLocation(
        job_id="job",
        state_name="state",
        state_number=5,
        generation=1,
        batch_id=3,
        assignment_version=1,
        node_ids=("a", "b", "c"),
        links=(LinkId(10), B, C),
        key_groups=((0, 1, 2, 3), (4,), ()),
        sole_key_groups=((), (), ()),
        owners=((0, 1), (0, 2), (0, 1), (0, 2), (1, 0)),
        copy_links=copy_links,
    )


def key(group: int, name: str = "") -> bytes:
    """Return a storage key."""
    return group_start(group) + name.encode()


def parts(
    operation: Operation, keys: bytes = b"", **route: Any
) -> tuple[CopyPart, ...]:
    """Return what others are asked in place of node 0."""
    return divide(location(**route), 0, operation, keys, is_unfit=lambda _: False)


def answer(batch_id: int | None = 3, generation: int = 1, **fields: Any) -> Answer:
    """Return the first frame of an answer."""
    reading = Reading(
        generation=generation, batch_id=batch_id, age_ms=fields.pop("age_ms", 5)
    )
    return Answer(question_id=1, reading=reading, **{"has_missing": False, **fields})


@pytest.mark.proves("D4")
class TestDivision:
    """Who is asked for what."""

    def test_one_key_goes_to_its_copy_as_it_is(self) -> None:
        """The second frame is not made anew."""
        keys = encode([key(1, "x")])
        (part,) = parts(GetValues(), keys)
        assert part == CopyPart(C, ((1, 1),), GetValues(), keys)
        assert part.keys is keys

    @pytest.mark.parametrize(
        "operation", [GetValues(), HasRows(), GetItems(start=-2), GetEntries()]
    )
    def test_keys_are_dealt_by_their_copies(self, operation: Operation) -> None:
        """Each part knows which of the keys it has."""
        keys = [key(0, "a"), key(3, "b"), key(2, "c"), key(0, "d")]
        assert parts(operation, encode(keys)) == (
            CopyPart(
                B,
                ((0, 0), (2, 2)),
                operation,
                encode([keys[0], keys[2], keys[3]]),
                (0, 2, 3),
            ),
            CopyPart(C, ((3, 3),), operation, encode([keys[1]]), (1,)),
        )
        assert is_by_key(operation)

    @pytest.mark.parametrize(
        "operation", [CountKeys(), ScanRows(start=b"", stop=None, limit=10)]
    )
    def test_what_goes_over_a_node_is_asked_for_its_key_groups(
        self, operation: Operation
    ) -> None:
        """The copies of exactly those of the primary."""
        assert parts(operation) == (
            CopyPart(B, ((0, 0), (2, 2)), operation, b""),
            CopyPart(C, ((1, 1), (3, 3)), operation, b""),
        )
        assert not is_by_key(operation)

    def test_a_walk_goes_as_far_as_one_node_does(self) -> None:
        """It says where it goes on: at the first key group of another."""
        walk = WalkRows(key_groups=((0, 0), (2, 3)), start=b"", limit=10)
        (part,) = parts(walk)
        cut = WalkRows(key_groups=((0, 0), (2, 2)), start=b"", limit=10)
        assert part == CopyPart(
            B, ((0, 0), (2, 2)), cut, b"", next_start=group_start(3)
        )
        rest = WalkRows(key_groups=((0, 0), (2, 3)), start=key(3, "k"), limit=10)
        (part,) = parts(rest)
        cut = WalkRows(key_groups=((3, 3),), start=key(3, "k"), limit=10)
        assert part == CopyPart(C, ((3, 3),), cut, b"")

    @pytest.mark.parametrize(
        ("operation", "keys"),
        [
            (GetValues(), encode([key(0), key(1)])),
            (CountKeys(), b""),
            (WalkRows(key_groups=((1, 2),), start=b"", limit=1), b""),
        ],
    )
    def test_nothing_is_asked_if_a_copy_is_not_here(
        self, operation: Operation, keys: bytes
    ) -> None:
        """Half an answer is none."""
        assert parts(operation, keys, copy_links=(None, B, None)) == ()

    def test_a_node_that_is_unfit_is_asked_last(self) -> None:
        """One that does not answer is asked only if there is no other."""
        keys = encode([key(1)])
        route = evolve(location(), owners=((0, 1), (0, 1, 2)))
        for unfit, asked in (({B}, C), ({C}, B), ({B, C}, B)):
            (part,) = divide(route, 0, GetValues(), keys, is_unfit=unfit.__contains__)
            assert part.node == asked

    @pytest.mark.parametrize(
        "keys",
        [encode([key(4)]), encode([key(99)]), encode(["text"]), b"\xc1", b""],
    )
    def test_what_is_not_the_primarys_is_left_to_it(self, keys: bytes) -> None:
        """Keys of another node, of no node, and what are no keys."""
        assert parts(GetValues(), keys) == ()


@pytest.mark.proves("D5", "Q1")
class TestUnion:
    """What the client gets is what one node would have said at one moment."""

    @given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3)), max_size=20))
    def test_values_stand_where_their_keys_do(
        self, rows: list[tuple[int, bytes]]
    ) -> None:
        """D5: whatever the keys are, and wherever they lie."""
        keys = [key(group, "k") + rest for group, rest in rows]
        held = {one: None if len(one) % 2 else b"v" + one for one in keys}
        divided = parts(GetValues(), encode(keys))
        assert bool(divided) is bool(keys)
        if not divided:
            return
        payloads = [
            encode([held[one] for one in decode(part.keys)]) for part in divided
        ]
        answers = [answer() for _ in divided]
        _, united = unite(GetValues(), divided, answers, payloads)
        assert decode(united) == [held[one] for one in keys]

    def test_figures_are_those_of_all_parts(self) -> None:
        """The oldest age, the first expiry, all rows that were read."""
        divided = parts(HasRows(), encode([key(0), key(1)]))
        first = answer(age_ms=7, valid_ms=50, row_count=2)
        second = answer(age_ms=9, has_missing=True, valid_ms=40, row_count=3)
        payloads = [encode([True]), encode([False])]
        told, values = unite(HasRows(), divided, [first, second], payloads)
        assert told == answer(age_ms=9, has_missing=True, valid_ms=40, row_count=5)
        assert decode(values) == [True, False]

    def test_counts_are_added(self) -> None:
        """A key is in one key group, and a key group in one part."""
        divided = parts(CountKeys())
        _, values = unite(
            CountKeys(), divided, [answer(), answer()], [encode(3), encode(4)]
        )
        assert decode(values) == 7

    @given(
        rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), unique=True),
        limit=st.integers(1, 6),
    )
    def test_pages_are_merged_in_order(
        self, rows: list[tuple[int, int]], limit: int
    ) -> None:
        """D5: page by page come all rows, in order, none twice."""
        encoded = sorted((b"%02d-%d" % (name, group), group) for group, name in rows)
        start: bytes | None = b""
        seen: list[bytes] = []
        while start is not None:
            scan = ScanRows(start=start, stop=None, limit=limit)
            answers, payloads = [], []
            for part in parts(scan):
                groups = {group for first, last in part.runs for group in (first, last)}
                mine = [
                    name for name, group in encoded if group in groups and name >= start
                ]
                following = mine[limit] if len(mine) > limit else None
                answers.append(answer(next_start=following))
                payloads.append(
                    encode([cell for name in mine[:limit] for cell in (name, b"v")])
                )
            told, page = unite(scan, parts(scan), answers, payloads)
            names = decode(page)[::2]
            assert len(names) <= limit
            seen += names
            assert told.next_start is None or told.next_start > start
            start = told.next_start
        assert seen == [name for name, _ in encoded]

    def test_a_page_is_no_larger_than_one_of_a_node(self) -> None:
        """What a client takes in one frame is limited; the rest is the next page."""
        scan = ScanRows(start=b"", stop=None, limit=100)
        pages = [
            [cell for name in (b"a", b"c") for cell in (name, bytes(700_000))],
            [cell for name in (b"b", b"d") for cell in (name, bytes(700_000))],
        ]
        payloads = [encode(page) for page in pages]
        told, page = unite(scan, parts(scan), [answer(), answer()], payloads)
        assert len(page) <= max(map(len, payloads))
        assert decode(page)[::2] == [b"a"]
        assert told.next_start == b"b"

    def test_a_small_page_is_not_cut(self) -> None:
        """A scan takes no more pages than it would of the primary."""
        scan = ScanRows(start=b"", stop=None, limit=100)
        payloads = [encode([b"a", b"1"]), encode([b"b", b"2"])]
        told, page = unite(scan, parts(scan), [answer(), answer()], payloads)
        assert decode(page) == [b"a", b"1", b"b", b"2"]
        assert told.next_start is None

    def test_a_walk_goes_on_behind_its_part(self) -> None:
        """Unless the node has not got as far as that."""
        walk = WalkRows(key_groups=((0, 3),), start=b"", limit=10)
        divided = parts(walk)
        told, _ = unite(walk, divided, [answer()], [encode([])])
        assert told.next_start == group_start(1)
        told, _ = unite(walk, divided, [answer(next_start=key(0, "x"))], [encode([])])
        assert told.next_start == key(0, "x")

    @pytest.mark.parametrize(
        ("operation", "keys", "payload"),
        [
            (GetValues(), encode([key(0), key(1)]), encode([b"1", b"2"])),
            (GetValues(), encode([key(0), key(1)]), b"\xc1"),
            (CountKeys(), b"", encode("many")),
            (ScanRows(start=b"", stop=None, limit=1), b"", encode([b"odd"])),
        ],
    )
    def test_nonsense_is_no_answer(
        self, operation: Operation, keys: bytes, payload: bytes
    ) -> None:
        """A node that answers something else is not passed on."""
        divided = parts(operation, keys)
        with pytest.raises(RemoteProtocolError):
            unite(operation, divided, [answer(), answer()], [payload, payload])

    def test_parts_of_two_batches_are_no_answer(self) -> None:
        """Q1: those that are behind are named, with what they are to wait for."""
        assert behind([answer(3), answer(3)]) == ([], answer(3))
        assert behind([answer(3), answer(4)]) == ([0], answer(4))
        newer = answer(None, generation=2)
        assert behind([answer(9), newer, answer(9)]) == ([0, 2], newer)
