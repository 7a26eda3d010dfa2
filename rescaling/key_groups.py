"""
Key groups: the unit in which keyed state is assigned, asked and moved.

Source: Flink, ``KeyGroupRangeAssignment``, whose formulas these are.  Which key group a
key belongs to is decided where the key is hashed, not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

from nameservice.errors import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = [
    "MAX_PARALLELISM_MAX",
    "KeyGroupRange",
    "default_max_parallelism",
    "key_group_ranges",
    "operator_index",
]

MAX_PARALLELISM_MAX: Final = 32_768
_DEFAULT_MIN: Final = 128


@frozen(kw_only=True)
class KeyGroupRange:
    """
    Consecutive key groups, both ends inclusive.

    Attributes:
        first: The lowest key group, at least 0.
        last: The highest one, at least *first*.

    Raises:
        ConfigurationError: If the ends are the wrong way round, or below 0.
    """

    first: int
    last: int

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            message = (
                f"a key-group range needs 0 <= first <= last, not first={self.first}, "
                f"last={self.last}"
            )
            raise ConfigurationError(message)

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.first <= key_group <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1


def operator_index(key_group: int, *, max_parallelism: int, parallelism: int) -> int:
    """
    Return the operator instance that owns *key_group*.

    Args:
        key_group: ``0 <= key_group < max_parallelism``.
        max_parallelism: Number of key groups, 1 to 32,768.
        parallelism: Number of running instances, 1 to *max_parallelism*.

    Returns:
        An index in ``range(parallelism)``; it never falls as *key_group* rises.

    Raises:
        ConfigurationError: If one of them is out of its range.

    Source: Flink, ``KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup``.
    """
    _check(max_parallelism=max_parallelism, parallelism=parallelism)
    if not 0 <= key_group < max_parallelism:
        message = f"key_group must be 0 to {max_parallelism - 1}, not {key_group}"
        raise ConfigurationError(message)
    return key_group * parallelism // max_parallelism


def key_group_ranges(
    max_parallelism: int, *, parallelism: int
) -> tuple[KeyGroupRange, ...]:
    """
    Return the key groups of each operator instance, by its index.

    They differ in length by one at the most, and cover every key group once.

    Args:
        max_parallelism: Number of key groups, 1 to 32,768.
        parallelism: Number of running instances, 1 to *max_parallelism*.

    Raises:
        ConfigurationError: If one of them is out of its range.

    Source: Flink, ``KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex``.
    """
    _check(max_parallelism=max_parallelism, parallelism=parallelism)
    return tuple(
        KeyGroupRange(
            first=(index * max_parallelism + parallelism - 1) // parallelism,
            last=((index + 1) * max_parallelism - 1) // parallelism,
        )
        for index in range(parallelism)
    )


def default_max_parallelism(parallelism: int) -> int:
    """
    Return a max parallelism that leaves room to grow from *parallelism*.

    Args:
        parallelism: 1 to 32,768.

    Returns:
        The next power of two of one and a half times *parallelism*, rounded down, in
        128 to 32,768.

    Raises:
        ConfigurationError: If *parallelism* is out of its range.

    Source: Flink, ``KeyGroupRangeAssignment.computeDefaultMaxParallelism``.
    """
    _check(max_parallelism=MAX_PARALLELISM_MAX, parallelism=parallelism)
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length()
    return min(max(power, _DEFAULT_MIN), MAX_PARALLELISM_MAX)


def _check(*, max_parallelism: int, parallelism: int) -> None:
    if not 1 <= max_parallelism <= MAX_PARALLELISM_MAX:
        message = (
            f"max_parallelism must be 1 to {MAX_PARALLELISM_MAX}, not {max_parallelism}"
        )
        raise ConfigurationError(message)
    if not 1 <= parallelism <= max_parallelism:
        message = (
            f"parallelism must be 1 to max_parallelism ({max_parallelism}), "
            f"not {parallelism}"
        )
        raise ConfigurationError(message)
