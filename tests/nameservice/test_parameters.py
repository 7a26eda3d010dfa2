from __future__ import annotations

import fractions
import math

import numpy as np
import pytest

from nameservice import ConfigurationError
from nameservice.parameters import (
    TIMEOUT_SECONDS_MAX,
    check_action,
    check_callbacks,
    check_timeout_seconds,
)


class Called:
    """Has one method."""

    def notify(self) -> None:
        """Do nothing."""


class Awaited:
    """Has one method that would have to be awaited."""

    async def notify(self) -> None:
        """Do nothing."""


class TestTimeoutSeconds:
    @pytest.mark.parametrize(
        "value",
        [0, 0.0, 1, 2.5, TIMEOUT_SECONDS_MAX, fractions.Fraction(1, 2), np.float32(2)],
    )
    def test_any_number_in_the_range(self, value: object) -> None:
        """0 does not wait; the largest is longer than anybody waits."""
        seconds = check_timeout_seconds(value)
        assert type(seconds) is float
        assert seconds == value

    def test_none_is_without_an_end(self) -> None:
        """As everywhere in Python."""
        assert check_timeout_seconds(None) is None

    @pytest.mark.parametrize(
        "value",
        [math.nan, math.inf, -math.inf, -1, -0.001, 1.01e9, True, "1", b"1", [], 1j],
    )
    def test_anything_else_is_refused(self, value: object) -> None:
        """NaN spins, infinity overflows, and a negative one is a mistake."""
        with pytest.raises(ConfigurationError, match="mine"):
            check_timeout_seconds(value, what="mine")


class TestCallbacks:
    def test_an_object_with_the_methods(self) -> None:
        """Nothing is said of its type."""
        check_callbacks(Called(), "notify", what="a listener")

    @pytest.mark.parametrize("value", [None, "x", Called, Awaited(), object(), 1])
    def test_anything_else_is_refused(self, value: object) -> None:
        """A class, an object without them, and what would have to be awaited."""
        with pytest.raises(ConfigurationError, match="a listener"):
            check_callbacks(value, "notify", what="a listener")


class TestAction:
    def test_what_can_be_called(self) -> None:
        """A function, a class, a bound method."""
        for action in (len, Called, Called().notify, lambda: None):
            check_action(action, what="the action")

    @pytest.mark.parametrize("value", [None, "x", Awaited().notify])
    def test_anything_else_is_refused(self, value: object) -> None:
        """A coroutine function would return what nothing awaits."""
        with pytest.raises(ConfigurationError, match="the action"):
            check_action(value, what="the action")
