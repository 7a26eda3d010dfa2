"""`KeptStatements`: what was found out about statements, up to a size; pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar, final


__all__ = ["KeptStatements"]

_SIZE_MAX: Final = 4 * 1024 * 1024

_Known = TypeVar("_Known")


@final
class KeptStatements(Generic[_Known]):
    """
    What is known of the statements that were asked last.

    Their number says little: what is known of one takes some kilobytes, or megabytes.
    The last one is kept, however large it is: it is about to be asked again.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[_Known, int]] = OrderedDict()
        self._size = 0

    def get(self, text: str) -> _Known | None:
        """Return what is known of *text*, or None."""
        found = self._known.get(text)
        if found is None:
            return None
        self._known.move_to_end(text)
        return found[0]

    def put(self, text: str, known: _Known, tree_size: int) -> None:
        """
        Keep what was not known.

        Args:
            text: The statement.
            known: What is kept of it.
            tree_size: Characters of the tree that the parser made of it.
        """
        size = len(text) + tree_size
        self._known[text] = (known, size)
        self._size += size
        while self._size > _SIZE_MAX and len(self._known) > 1:
            _, (_, freed) = self._known.popitem(last=False)
            self._size -= freed
