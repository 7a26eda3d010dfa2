"""
`CopyWriting`: rows from another node on their way to the writer's thread (rule S2).

What arrives gathers while the disk takes what came before, and goes to it together.
Each round is one task among the others of the thread: what writers bring, and entries,
come in between.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

from nameservice import NameServiceError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryablestate.store.threads import StoreWriter


__all__ = ["CopyWriting"]

_ROUND_SIZE_BYTES_MAX: Final = 8 << 20

T = TypeVar("T")


@final
class CopyWriting(Generic[T]):
    """
    Hands over what arrives, in that order.  Thread-safe.

    Args:
        writer: Whose thread writes.
        job_id: The job whose rows they are.
        write: Writes what has gathered, on that thread.
        on_written: Is told, there, what was written.
        on_failed: Is told, there, that they were not; nothing more is written then.
    """

    def __init__(
        self,
        writer: StoreWriter,
        job_id: str,
        write: Callable[[Sequence[T]], None],
        *,
        on_written: Callable[[Sequence[T]], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._writer = writer
        self._job_id = job_id
        self._write = write
        self._on_written = on_written
        self._on_failed = on_failed
        self._log = get_logger(component="state-node", thread="writer")
        self._lock = Lock()  # guards what follows
        self._items: deque[tuple[T, int]] = deque()
        self._is_asked = False
        self._is_over = False

    def add(self, item: T, size_bytes: int) -> None:
        """Have *item* written, unless it is over."""
        with self._lock:
            if not self._is_over:
                self._items.append((item, size_bytes))
                self._ask()

    def cancel(self) -> None:
        """
        Write no more than is being written now.

        What the writer's thread is asked for the job after this, comes after that.
        """
        with self._lock:
            self._is_over = True
            self._items.clear()

    def _ask(self) -> None:
        """Ask for a round, if there is something to write; under the lock."""
        if self._items and not self._is_asked:
            self._is_asked = True
            self._writer.run(self._run, job_id=self._job_id)

    def _take(self) -> Sequence[T]:
        """Return what is written in this round; under the lock."""
        items: list[T] = []
        size_bytes = 0
        while self._items and size_bytes < _ROUND_SIZE_BYTES_MAX:
            item, item_size_bytes = self._items.popleft()
            items.append(item)
            size_bytes += item_size_bytes
        return items

    def _run(self) -> None:
        with self._lock:
            items = self._take()
        if not items:
            return
        try:
            self._write(items)
        except NameServiceError as error:
            self._fail(str(error))
            return
        except Exception as error:  # noqa: BLE001 (told to the core, not lost)
            self._log.error("loop.failed", where="writer", exc_info=error)
            self._fail(f"{type(error).__name__}: {error}")
            return
        with self._lock:
            self._is_asked = False
            self._ask()
        self._on_written(items)

    def _fail(self, reason: str) -> None:
        self.cancel()
        self._on_failed(reason)
