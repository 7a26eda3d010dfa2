"""
`CopySource`: what is read for other nodes, and how far each of them is (rule S2).

Each copy is one read transaction of the store, and a place in a round in which
everybody has one page at a time.  It is read no further than it may be sent: a node
that takes no pages costs a snapshot, and not for long, since who says nothing is given
up.  A snapshot keeps LMDB from using pages again that were freed since, so it ends as
soon as it is not needed: when it was closed, when the connection is lost, after
silence.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias, final

from nameservice import NameServiceError, StorageError, get_logger
from queryablestate.errors import StagedDataMissingError
from queryablestate.wire.codec import encode, encode_payload
from queryablestate.wire.copy_messages import (
    AllowPages,
    CloseCopy,
    CopyContinues,
    CopyOpened,
    CopyPage,
    CopyRefused,
    OpenCopy,
    ReadStages,
    StagesPage,
    StagesRead,
    key_groups_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import msgspec

    from nameservice import Clock
    from queryablestate.node.copying.limits import CopyLimits
    from queryablestate.store.copy_reader import CopyReader
    from queryablestate.store.store import StateStore
    from queryablestate.wire.copy_messages import ToCopySource


__all__ = ["CopySource"]

_Key: TypeAlias = tuple[bytes, int]
_Message: TypeAlias = "tuple[msgspec.Struct, bytes | None]"
_Messages: TypeAlias = "Generator[_Message, None, None]"


class _Copy:
    """One copy, or one reading of stages: what is left to be sent, and who waits."""

    def __init__(
        self, request: OpenCopy | ReadStages, key_groups: tuple[int, ...], now_ns: int
    ) -> None:
        self.request = request
        self.key_groups = key_groups
        self.began_ns = self.heard_ns = self.said_ns = now_ns
        self.allowed_count = request.page_count
        self.messages: _Messages | None = None
        self.resources = ExitStack()


@final
class CopySource:
    """
    Reads what other nodes copy, turn by turn.  For one thread, and without waiting.

    Args:
        store: What is read.
        clock: What silence is measured by.
        send: Has a message sent to a peer.
        limits: How much of it there may be.

    Attributes:
        is_waiting: Whether somebody waits for an entry that is not applied yet.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        clock: Clock,
        send: Callable[[bytes, Sequence[bytes]], None],
        limits: CopyLimits,
    ) -> None:
        self._store = store
        self._clock = clock
        self._send = send
        self._limits = limits
        self._log = get_logger(component="state-node", thread="copier")
        self._copies: dict[_Key, _Copy] = {}
        self.is_waiting = False

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def can_send(self) -> bool:
        """Return whether `turn` would send a page."""
        return any(
            copy.messages is not None and copy.allowed_count
            for copy in self._copies.values()
        )

    def hear(self, peer: bytes, message: ToCopySource) -> None:
        """Take what a node says."""
        key = (peer, message.copy_id)
        copy = self._copies.get(key)
        match message:
            case OpenCopy() | ReadStages():
                self._begin(key, message)
            case CloseCopy():
                self._drop(key)
            case AllowPages(page_count=page_count):
                if copy is None:
                    self._refuse(key, "unknown", "it is not open here any more")
                else:
                    copy.allowed_count += page_count
                    copy.heard_ns = self._clock.now_ns()

    def lose(self, peer: bytes) -> None:
        """Send no more to *peer*: it is not there."""
        for key in [one for one in self._copies if one[0] == peer]:
            self._drop(key)

    def turn(self) -> None:
        """Send everybody a page who may have one, and take note of the time."""
        now_ns = self._clock.now_ns()
        for key, copy in tuple(self._copies.items()):
            try:
                if copy.messages is None:
                    self._try_to_open(key, copy, now_ns)
                if copy.messages is not None:
                    self._continue(key, copy, now_ns)
            except NameServiceError as error:
                self._refuse(key, _reason_of(error), str(error))
            except Exception as error:  # noqa: BLE001 (told to the node that waits)
                self._log.error("loop.failed", where="copier", exc_info=error)
                self._refuse(key, "storage", f"{type(error).__name__}: {error}")
            else:
                self._let_time_pass(key, copy, now_ns)
        self.is_waiting = any(one.messages is None for one in self._copies.values())

    def close(self) -> None:
        """Release what is open."""
        for key in tuple(self._copies):
            self._drop(key)

    # -- parts ---------------------------------------------------------------------

    def _begin(self, key: _Key, request: OpenCopy | ReadStages) -> None:
        key_groups = key_groups_of(request.key_groups)
        is_copy = isinstance(request, OpenCopy)
        count = sum(
            isinstance(one.request, OpenCopy) is is_copy
            for one in self._copies.values()
        )
        count_max = self._limits.copies_max if is_copy else self._limits.stages_max
        if key in self._copies:
            self._refuse(key, "malformed", "the copy_id was used before")
        elif key_groups is None:
            self._refuse(key, "malformed", "key groups are not sorted")
        elif count >= count_max:
            self._refuse(key, "busy", f"{count} are being read: ask again later")
        else:
            self._copies[key] = _Copy(request, key_groups, self._clock.now_ns())

    def _try_to_open(self, key: _Key, copy: _Copy, now_ns: int) -> None:
        """Look at what there is, if it is what was asked for."""
        request = copy.request
        if isinstance(request, ReadStages):
            copy.messages = _staged(self._store, request, copy.key_groups)
            copy.resources.callback(copy.messages.close)
            return
        with ExitStack() as resources:
            reader = resources.enter_context(
                self._store.copy_reader(request.job_id, copy.key_groups)
            )
            if not reader.is_told:
                # Its directory is new, as a rule: the asker means an earlier one.
                self._refuse(key, "not-held", "it has not been told what is held here")
                return
            if reader.sequence < request.sequence_min:
                if now_ns - copy.began_ns > self._limits.behind_ns:
                    self._refuse(
                        key,
                        "behind",
                        f"entry {reader.sequence} is applied, not "
                        f"{request.sequence_min}",
                    )
                return
            copy.resources = resources.pop_all()
        copy.messages = copied = _copied(reader, request)
        copy.resources.callback(copied.close)
        opened = CopyOpened(copy_id=request.copy_id, states=reader.states)
        self._say(key, copy, opened, None, now_ns)

    def _continue(self, key: _Key, copy: _Copy, now_ns: int) -> None:
        """Send the next page, if it may be sent."""
        assert copy.messages is not None
        if not copy.allowed_count:
            return
        copy.allowed_count -= 1
        message, payload = next(copy.messages)
        self._say(key, copy, message, payload, now_ns)
        if isinstance(message, StagesRead) or (
            isinstance(message, CopyPage) and message.is_last
        ):
            self._drop(key)

    def _let_time_pass(self, key: _Key, copy: _Copy, now_ns: int) -> None:
        if key not in self._copies:
            return
        if now_ns - copy.heard_ns > self._limits.silence_ns:
            self._refuse(key, "unknown", "nothing was heard of it for too long")
        elif now_ns - copy.said_ns > self._limits.alive_ns:
            # Also finds out that the other one is gone: it cannot be sent then.
            message = CopyContinues(copy_id=key[1])
            self._say(key, copy, message, None, now_ns)

    def _say(
        self,
        key: _Key,
        copy: _Copy,
        message: msgspec.Struct,
        payload: bytes | None,
        now_ns: int,
    ) -> None:
        copy.said_ns = now_ns
        envelope = encode(message)
        self._send(key[0], [envelope] if payload is None else [envelope, payload])

    def _refuse(self, key: _Key, reason: str, detail: str) -> None:
        self._drop(key)
        message = CopyRefused(copy_id=key[1], reason=reason, detail=detail)
        self._send(key[0], [encode(message)])

    def _drop(self, key: _Key) -> None:
        copy = self._copies.pop(key, None)
        if copy is not None:
            copy.resources.close()


def _reason_of(error: NameServiceError) -> str:
    return "storage" if isinstance(error, StorageError) else "not-held"


def _copied(reader: CopyReader, request: OpenCopy) -> _Messages:
    """Yield the pages of a copy; which one is the last, is known with the next."""
    copy_id, page_index = request.copy_id, 0
    pages = reader.pages(request.page_size_bytes)
    page = next(pages, None)
    while page is not None:
        following = next(pages, None)
        is_last = following is None
        message = CopyPage(copy_id=copy_id, page_index=page_index, is_last=is_last)
        yield message, encode_payload(page)
        page, page_index = following, page_index + 1


def _staged(
    store: StateStore, request: ReadStages, key_groups: tuple[int, ...]
) -> _Messages:
    """Yield what is staged, stage by stage, and at the end what is not."""
    copy_id, page_index = request.copy_id, 0
    missing: list[bytes] = []
    for stage_index, stage in enumerate(request.stages):
        payloads = store.staged_payloads(
            request.job_id, request.writer_epoch, request.batch_id, stage, key_groups
        )
        try:
            for payload in payloads:
                message = StagesPage(
                    copy_id=copy_id, page_index=page_index, stage_index=stage_index
                )
                yield message, payload
                page_index += 1
        except StagedDataMissingError:
            # At once, or after some: they went while they were read.
            missing.append(stage.stage_id)
    read = StagesRead(copy_id=copy_id, page_count=page_index, missing=tuple(missing))
    yield read, None
