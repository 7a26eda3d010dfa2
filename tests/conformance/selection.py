"""Which tests a backend takes part in: what it promises decides, and is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices import Guarantee


_REQUIRED = "_conformance_requires"
_ABSENT = "_conformance_without"

F = TypeVar("F", bound="Callable[..., object]")


def requires(*guarantees: Guarantee) -> Callable[[F], F]:
    """Run a test on the backends that promise all of *guarantees*."""

    def mark(test: F) -> F:
        setattr(test, _REQUIRED, frozenset(guarantees))
        return test

    return mark


def without(*guarantees: Guarantee) -> Callable[[F], F]:
    """Run a test on the backends that promise none of *guarantees*."""

    def mark(test: F) -> F:
        setattr(test, _ABSENT, frozenset(guarantees))
        return test

    return mark


def takes_part(
    guarantees: frozenset[Guarantee], test: object, test_class: object
) -> bool:
    """Return whether a backend that promises *guarantees* runs *test*."""
    for marked in (test, test_class):
        required: frozenset[Guarantee] = getattr(marked, _REQUIRED, frozenset())
        absent: frozenset[Guarantee] = getattr(marked, _ABSENT, frozenset())
        if not required <= guarantees or absent & guarantees:
            return False
    return True
