from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.gateway.console.charts import (
    Bar,
    bars_of,
    histogram_of,
    is_numeric,
    number_of,
    number_text,
)
from queryablestate.schema.schema import AtomicType, DecimalType


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


class TestNumbers:
    def test_what_is_no_number_is_left_out(self) -> None:
        """Null, truth, text, and what is not finite."""
        given = [None, True, "1", math.nan, math.inf, 10**400]
        assert [number_of(value) for value in given] == [None] * 6
        assert number_of(Decimal("1.5")) == 1.5

    def test_columns_of_numbers(self) -> None:
        """Whole ones, doubles and decimals; truth and dates are none."""
        assert is_numeric(AtomicType.BIGINT)
        assert is_numeric(DecimalType(9, 2))
        assert not is_numeric(AtomicType.BOOLEAN)
        assert not is_numeric(AtomicType.DATE)

    @pytest.mark.parametrize(
        ("number", "text"),
        [(1234.0, "1,234"), (0.1 + 0.2, "0.3"), (-1e20, "-1e+20"), (2.5, "2.5")],
    )
    def test_they_are_written_for_people(self, number: float, text: str) -> None:
        """Six digits that matter."""
        assert number_text(number) == text


class TestBars:
    def test_the_largest_come_first(self) -> None:
        """Lengths are to the scale of the largest."""
        assert bars_of([("a", 5.0), ("b", 20.0), ("c", 10.0)], 2) == [
            Bar("b", "20", 0.0, 100.0),
            Bar("c", "10", 0.0, 50.0),
        ]

    def test_they_begin_at_zero(self) -> None:
        """What is below zero goes to the other side."""
        assert bars_of([("a", 30.0), ("b", -10.0)], 5) == [
            Bar("a", "30", 25.0, 75.0),
            Bar("b", "-10", 0.0, 25.0),
        ]

    @given(st.lists(NUMBERS, max_size=30))
    def test_they_stay_within_their_place(self, numbers: list[float]) -> None:
        """Whatever the numbers are."""
        for bar in bars_of([("x", number) for number in numbers], 10):
            assert 0 <= bar.start <= 100
            assert 0 <= bar.length <= 100.001


class TestHistogram:
    def test_ranges_have_round_borders(self) -> None:
        """Each number is in one range; a range without any has a place, too."""
        found = histogram_of([0.0, 1.0, 1.5, 9.0, 39.0], 4)
        assert [(bar.label, bar.text) for bar in found] == [
            ("0 to below 10", "4"),
            ("10 to below 20", "0"),
            ("20 to below 30", "0"),
            ("30 to below 40", "1"),
        ]

    def test_equal_numbers_are_one_range(self) -> None:
        """There is nothing to divide."""
        assert histogram_of([7.0, 7.0], 10) == [Bar("7", "2", 0.0, 100.0)]
        assert histogram_of([], 10) == []

    @given(st.lists(NUMBERS, min_size=1, max_size=50))
    def test_every_number_is_counted_once(self, numbers: list[float]) -> None:
        """Also the very large and the very small, in a bounded number of ranges."""
        found = histogram_of(numbers, 20)
        counts = [int(bar.text.replace(",", "")) for bar in found]
        assert sum(counts) == len(numbers)
        assert len(found) <= 22
