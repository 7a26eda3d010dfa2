"""
What runs with every change, and what only at night (`make nightly`).

What goes to the night repeats what other cases prove (more histories, more seeds, other
backends, other shapes of the same), or it takes seconds of a processor to see what
seldom breaks by itself.  No rule is proven at night alone (tests/test_rules.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings


T = TypeVar("T")

# By profile (tests/conftest.py), at the most.  Others run as many as are asked for.
_EXAMPLES_MAX: Final = {"fast": 20, "test": 40}


def machine_settings(*, examples: int | None = None, steps: int = 50) -> settings:
    """
    Return the settings of a state machine.

    Args:
        examples: How many histories it takes to find what it is there to find; by
            default as many as the profile says.
        steps: How long each is, at the most.
    """
    count = settings().max_examples if examples is None else examples
    limit = _EXAMPLES_MAX.get(settings.get_current_profile_name(), count)
    return settings(max_examples=min(count, limit), stateful_step_count=steps)


def nightly_after(count: int, values: Iterable[object]) -> list[Any]:
    """Return *values* to parametrize with, all but the first *count* at night."""
    return [
        value if index < count else pytest.param(value, marks=pytest.mark.nightly)
        for index, value in enumerate(values)
    ]


def nightly_repeats(values: Iterable[T], key: Callable[[T], object]) -> list[Any]:
    """Return *values* to parametrize with, all but the first of each *key* at night."""
    seen: set[object] = set()
    chosen: list[Any] = []
    for value in values:
        is_repeated = key(value) in seen
        seen.add(key(value))
        chosen.append(
            pytest.param(value, marks=pytest.mark.nightly) if is_repeated else value
        )
    return chosen
