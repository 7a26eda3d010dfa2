"""
A store that is interrupted within a transaction: by a kill, or by what the disk says.

The shipped store writes by the LMDB environment that it has opened.  Here something
lies between the two that counts its steps: each write, and the beginning and the end of
each commit.  At a step that was chosen before, the process ends, or LMDB fails.  What
is in the files then is what LMDB makes of a transaction that never came to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

import lmdb


if TYPE_CHECKING:
    from types import TracebackType

    from queryablestate.store.store import StateStore


__all__ = ["Interruption", "KilledError"]

_COUNTED: Final = frozenset(
    {"put", "putmulti", "replace", "pop", "delete", "drop", "open_db"}
)


class KilledError(BaseException):
    """The process ends here: there is nothing that catches it."""


@final
class Interruption:
    """
    When the thread that writes is to be interrupted.

    Attributes:
        commit_count: Transactions that were committed.
    """

    def __init__(self) -> None:
        self.commit_count = 0
        self._left: int | None = None
        self._error: BaseException = KilledError()

    def kill_at(self, step: int) -> None:
        """End the process at that step, if it comes to that."""
        self._left, self._error = step, KilledError()

    def fail_at(self, step: int) -> None:
        """Have LMDB fail at that step, if it comes to that."""
        self._left, self._error = step, lmdb.DiskError("No space left on device")

    def disarm(self) -> bool:
        """Have nothing happen any more; return whether something has."""
        left, self._left = self._left, None
        return left == 0

    def put_into(self, store: StateStore) -> None:
        """Lie between *store* and its files from now on."""
        environment = store._environment
        between = _Environment(environment.environment, self)
        environment.environment = cast("lmdb.Environment", between)

    def step(self, *, is_done: bool = False) -> None:
        """Take one step; *is_done* if nothing but a kill can interrupt it any more."""
        if not self._left or (is_done and not isinstance(self._error, KilledError)):
            return
        self._left -= 1
        if not self._left:
            raise self._error


@final
class _Environment:
    """An LMDB environment."""

    def __init__(self, inner: Any, interruption: Interruption) -> None:
        self._inner = inner
        self._interruption = interruption

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self, *arguments: Any, write: bool = False, **options: Any) -> Any:
        """See `lmdb.Environment.begin`."""
        inner = self._inner.begin(*arguments, write=write, **options)
        return _Transaction(inner, self._interruption) if write else inner

    def open_db(self, *arguments: Any, txn: _Transaction, **options: Any) -> Any:
        """See `lmdb.Environment.open_db`."""
        self._interruption.step()
        return self._inner.open_db(*arguments, txn=txn.inner, **options)


class _Steps:
    """Something of LMDB that writes."""

    def __init__(self, inner: Any, interruption: Interruption) -> None:
        self.inner = inner
        self._interruption = interruption

    def __getattr__(self, name: str) -> Any:
        if name in _COUNTED:
            self._interruption.step()
        return getattr(self.inner, name)


@final
class _Transaction(_Steps):
    """An LMDB transaction that writes."""

    def cursor(self, *arguments: Any, **options: Any) -> _Steps:
        """See `lmdb.Transaction.cursor`."""
        return _Steps(self.inner.cursor(*arguments, **options), self._interruption)

    def __enter__(self) -> _Transaction:
        self.inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if kind is None:
            try:
                self._interruption.step()
            except BaseException:
                self.inner.abort()
                raise
        self.inner.__exit__(kind, error, trace)
        if kind is None:
            self._interruption.commit_count += 1
            self._interruption.step(is_done=True)
        return False
