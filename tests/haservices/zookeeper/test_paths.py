from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservices.zookeeper.paths import (
    ZooKeeperPaths,
    ancestors_of,
    decode_name,
    encode_name,
    in_order,
)


PRINTABLE = st.text(min_size=1, max_size=255).filter(str.isprintable)
ID = "0123456789abcdef0123456789abcdef"


def name(sequence: int) -> str:
    """Return the name of a contender with *sequence*, as ZooKeeper formats it."""
    return f"{ID}-{sequence:010d}"


class TestNames:
    """Component ids and store paths as names of nodes."""

    @given(PRINTABLE)
    def test_every_printable_text_has_a_name_and_comes_back(self, text: str) -> None:
        """L1: what is encoded is ASCII without a slash, no dots alone, and unique."""
        encoded = encode_name(text)
        assert encoded.isascii()
        assert "/" not in encoded
        assert encoded not in ("", ".", "..")
        assert decode_name(encoded) == text

    @pytest.mark.parametrize(
        ("text", "encoded"),
        [
            ("flights", "flights"),
            ("a/b", "a%2Fb"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            ("a b%", "a%20b%25"),
            ("é", "%C3%A9"),
            ("zookeeper", "zookeeper"),
        ],
    )
    def test_the_encoding_does_not_change(self, text: str, encoded: str) -> None:
        """What is stored under a name must be found by the next release too."""
        assert encode_name(text) == encoded


class TestLayout:
    """Where everything is."""

    def test_everything_of_a_cluster_is_below_its_own_node(self) -> None:
        """Clusters and chroots are told apart by their paths alone."""
        paths = ZooKeeperPaths("/a/b", "prod/1").component("flights/jfk")
        top = "/a/b/lodestar/prod%2F1"
        assert paths.node == f"{top}/components/flights%2Fjfk"
        assert paths.leader == f"{paths.node}/leader"
        assert paths.contenders == f"{paths.node}/contenders"
        assert paths.contender_prefix(ID) == f"{paths.contenders}/{ID}-"
        assert paths.contender(name(7)) == f"{paths.contenders}/{name(7)}"
        assert paths.stored("x/y") == f"{top}/store/flights%2Fjfk/x%2Fy"
        assert paths.bundles == f"{top}/bundles/flights%2Fjfk"

    def test_ancestors_are_in_the_order_of_creation(self) -> None:
        """A node is created after the one above it."""
        assert ancestors_of("/a/b/c") == ["/a", "/a/b", "/a/b/c"]
        assert ancestors_of("/a") == ["/a"]


class TestOrder:
    """Who registered before whom (E1)."""

    def test_contenders_are_ordered_by_sequence_not_by_id(self) -> None:
        """E1: the random id in front of the sequence plays no part."""
        first = f"{'f' * 32}-0000000009"
        second = f"{'0' * 32}-0000000010"
        assert in_order([second, first]) == [first, second]

    def test_what_is_no_contender_is_left_out(self) -> None:
        """A node that somebody else has put there leads nothing."""
        assert in_order(["lock-0000000001", name(3), f"{ID}-12", "x"]) == [name(3)]
        assert in_order([]) == []

    def test_negative_sequences_are_formatted_in_ten_characters(self) -> None:
        """Java counts the sign: -1 has nine digits, the lowest of all has ten."""
        lowest, minus_one = f"{ID}--2147483648", f"{ID}--000000001"
        highest, zero = f"{ID}-2147483647", f"{ID}-0000000000"
        assert in_order([lowest, highest]) == [highest, lowest]
        assert in_order([zero, minus_one]) == [minus_one, zero]

    @given(
        st.integers(0, 2**32 - 1),
        st.lists(st.integers(0, 100_000), unique=True, min_size=1),
        st.randoms(),
    )
    def test_the_counter_may_wrap_around(
        self, start: int, offsets: list[int], shuffle: random.Random
    ) -> None:
        """E1: ZooKeeper's 32-bit counter turns negative, and positive again."""

        def wrapped(offset: int) -> str:
            sequence = (start + offset) % 2**32
            return name(sequence - 2**32 if sequence >= 2**31 else sequence)

        names = [wrapped(offset) for offset in sorted(offsets)]
        mixed = list(names)
        shuffle.shuffle(mixed)
        assert in_order(mixed) == names
