"""`CommitTurns`: commits of this process that share a path go one after another."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, final

from nameservice import DidNotHappenError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


__all__ = ["CommitTurns"]


@final
class CommitTurns:
    """
    Who commits to which nodes now, and who waits for that.  Thread-safe.

    A commit guesses which of its nodes are there (store_core.py).  Another commit of
    the same process to one of them would prove that wrong, again and again.  Commits
    that share no node do not wait for each other.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        # The nodes of those that commit, or wait, in the order in which they came.
        self._claims: dict[int, frozenset[str]] = {}

    @contextlib.contextmanager
    def turn(self, nodes: Iterable[str], *, timeout_seconds: float) -> Iterator[None]:
        """
        Run the block when no commit that came earlier has one of *nodes*.

        Raises:
            DidNotHappenError: If that takes longer than *timeout_seconds*.
        """
        claimed = frozenset(nodes)
        with self._changed:
            number = next(self._numbers)
            self._claims[number] = claimed
        try:
            with self._changed:
                if not self._changed.wait_for(
                    lambda: self._is_first(number, claimed), timeout_seconds
                ):
                    message = (
                        "other commits of this process to the same paths were under "
                        f"way for {timeout_seconds:g} s"
                    )
                    raise DidNotHappenError(message)
            yield
        finally:
            with self._changed:
                del self._claims[number]
                self._changed.notify_all()

    def _is_first(self, number: int, claimed: frozenset[str]) -> bool:
        return all(
            claimed.isdisjoint(earlier)
            for earlier_number, earlier in self._claims.items()
            if earlier_number < number
        )
