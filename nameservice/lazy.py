"""
Faces of packages that load only what is asked of them (PEP 562).

A public name is loaded from its module when it is asked for first.  A program that
needs one error type then loads no server, and a command starts with what it uses.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


__all__ = ["lazy_face"]


def lazy_face(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    Return ``__getattr__`` and ``__dir__`` of *package*.

    Type checkers and readers get the names from imports under ``TYPE_CHECKING`` beside
    it; a test holds the two lists equal.  No public name may be that of a module of the
    package: the import system would put the module in its place.

    Args:
        package: Its ``__name__``.
        homes: The public names that each module has.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[package])
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)  # the next time costs nothing
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return load, names
