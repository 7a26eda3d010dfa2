"""`NoPandas`: has a process be without pandas, though it may be installed."""

from __future__ import annotations

from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


__all__ = ["NoPandas"]


@final
class NoPandas(MetaPathFinder):
    """
    Has an import of pandas fail; to be first in `sys.meta_path`.

    Arrow asks of every list whether it is one of pandas' own, and loads it to find out:
    a third of the time that a worker takes to start, and 30 MB that nothing uses.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise `ModuleNotFoundError` for pandas; leave all else to others."""
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)
