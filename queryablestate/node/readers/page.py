"""
The page by which a node binds its reader processes: written by one, read by many; pure.

Theory of operation.  The page lies in memory that processes share.  The node writes it
before it tells anybody what has changed.  A reader process looks at it before it reads
rows and after, so it needs no answer of anybody::

    0   number    8 bytes, even; odd while the node writes
    8   size      8 bytes: how much follows the digest
    16  digest    8 bytes, of number, size and content
    24  content   a `PageContent`, as MessagePack

**Torn reads.**  Nothing is assumed of the order in which another processor sees these
writes.  The digest covers the number, so content that is not all of that number is seen
as such, and looked at again.  What was read whole is kept by its number, and as long as
the number is the same nothing else is looked at: 8 bytes that are aligned.

**Stale reads.**  A node tells of a change by a system call, after it has written the
page.  A question that is asked because of it is received by another system call.  These
order memory, so the question meets the new page.  `PageReader.look` is fenced on both
sides, since a look must come before the snapshot that is begun after it, and after the
rows that were read before it.  On x86 these are no-ops; on ARM they are not.

**Changes.**  A job's part has the number of the change that made it what it is.  If
that is the same before and after a read, the part was the same all the while: rows of a
job that was begun anew meanwhile are not taken for what is there now.

A node that was killed while it wrote leaves an odd number: no client is answered then.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from typing import TYPE_CHECKING, Final, final

import msgspec
import xxhash

from queryablestate.wire.wire_struct import WireStruct


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryablestate.node.core.job import ServedJob
    from queryablestate.node.core.standing import Standing


__all__ = [
    "PAGE_SIZE_BYTES",
    "PageContent",
    "PageJob",
    "PageReader",
    "PageWriter",
    "key_groups_in",
    "secret_digest_of",
]

PAGE_SIZE_BYTES: Final = 1 << 20
"""Room for some thousand jobs; clients ask the proxy about those that do not fit."""

_HEADER_SIZE_BYTES: Final = 24
_WORD: Final = struct.Struct("<Q")
_TRIES: Final = 20


class PageJob(WireStruct, frozen=True, array_like=True):
    """
    What the node answers for of one job.

    Attributes:
        job_id: The job.
        assignment_version: The assignment that says so.
        key_groups: One bit for each, the lowest first.
        is_caught_up: Whether the store has what was missed.
        change: The number of the change by which all that came about.
    """

    job_id: str
    assignment_version: int
    key_groups: bytes
    is_caught_up: bool
    change: int


class PageContent(WireStruct, frozen=True, kw_only=True):
    """
    What a page says.

    Attributes:
        run: The process that writes; drawn for it.
        store: The sub-directory with the rows.
        leader_epoch: See `Standing`, for this and those that follow.
        secret_digest: Of `Standing.secret`; see `secret_digest_of`.
        lease_until_ns: See `Standing`.
        direct_until_ns: See `Standing`.
        leader_ms: See `Standing`.
        leader_ms_at_ns: See `Standing`.
        jobs: The jobs, by name.
    """

    run: str
    store: str
    leader_epoch: int = 0
    secret_digest: bytes = b""
    lease_until_ns: int = 0
    direct_until_ns: int = 0
    leader_ms: int = 0
    leader_ms_at_ns: int = 0
    jobs: tuple[PageJob, ...] = ()


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(PageContent)


@final
class PageWriter:
    """
    Writes one page.  For one thread, and one process at a time.

    What a process before has left there is over once this is made.

    Args:
        memory: The page, writable, its start aligned to 8 bytes.
        run: The process.

    Attributes:
        count: How often it has written.
        left_out_count: Jobs that did not fit when it wrote last.
    """

    def __init__(self, memory: memoryview, run: str) -> None:
        self._memory = memory
        self._words = memory[:8].cast("Q")
        self._run = run
        self._number = (self._words[0] | 1) - 1
        self._change = 0
        self._parts: dict[str, tuple[ServedJob, bool, PageJob]] = {}
        self._last: PageContent | None = None
        self.count = 0
        self.left_out_count = 0
        self._write(PageContent(run=run, store=""))

    def publish(self, standing: Standing, *, store: str) -> None:
        """Bind those who read by *standing*, and the rows in *store*, from now on."""
        content = PageContent(
            run=self._run,
            store=store,
            leader_epoch=standing.leader_epoch,
            secret_digest=secret_digest_of(standing.secret),
            lease_until_ns=standing.lease_until_ns,
            direct_until_ns=standing.direct_until_ns,
            leader_ms=standing.leader_ms,
            leader_ms_at_ns=standing.leader_ms_at_ns,
            jobs=self._jobs_of(standing),
        )
        if content != self._last:
            self._write(content)

    def withdraw(self) -> None:
        """Have no reader process answer any more."""
        self._write(PageContent(run="", store=""))

    def _jobs_of(self, standing: Standing) -> tuple[PageJob, ...]:
        """Return the parts of all jobs; one that was changed has another number."""
        parts = {}
        for served, is_caught_up in standing.jobs:
            known = self._parts.get(served.job_id)
            if known is None or known[0] is not served or known[1] is not is_caught_up:
                self._change += 1
                job = PageJob(
                    served.job_id,
                    served.assignment_version,
                    _bits(served.key_groups),
                    is_caught_up,
                    self._change,
                )
                known = (served, is_caught_up, job)
            parts[served.job_id] = known
        self._parts = parts
        return tuple(job for _, _, job in parts.values())

    def _write(self, content: PageContent) -> None:
        self._last = content
        encoded = _ENCODER.encode(content)
        room = len(self._memory) - _HEADER_SIZE_BYTES
        jobs = content.jobs
        while len(encoded) > room:
            jobs = jobs[: len(jobs) // 2]
            encoded = _ENCODER.encode(msgspec.structs.replace(content, jobs=jobs))
        self.left_out_count = len(content.jobs) - len(jobs)
        self._words[0] = self._number + 1
        self._number += 2
        end = _HEADER_SIZE_BYTES + len(encoded)
        size = _WORD.pack(len(encoded))
        self._memory[8:16] = size
        self._memory[16:24] = _digest(self._number, size, encoded)
        self._memory[_HEADER_SIZE_BYTES:end] = encoded
        self._words[0] = self._number
        self.count += 1


@final
class PageReader:
    """
    Reads one page.  For one thread.

    Args:
        memory: The page.
        fence: Keeps the processor from moving reads of memory over it.
    """

    def __init__(self, memory: memoryview, fence: Callable[[], None]) -> None:
        self._memory = memory
        self._words = memory[:8].cast("Q")
        self._fence = fence
        self._number = -1
        self._content: PageContent | None = None

    def look(self) -> PageContent | None:
        """
        Return what the page says now; None if it is being written.

        As long as it says the same, it is the same object.
        """
        self._fence()
        try:
            for _ in range(_TRIES):
                number = self._words[0]
                if number == self._number:
                    return self._content
                content = None if number % 2 else self._read(number)
                if content is not None:
                    self._number, self._content = number, content
                    return content
            return None
        finally:
            self._fence()

    def _read(self, number: int) -> PageContent | None:
        """Return what was written under *number*, if all of it is there."""
        header = bytes(self._memory[8:_HEADER_SIZE_BYTES])
        size, digest = header[:8], header[8:]
        end = _HEADER_SIZE_BYTES + _WORD.unpack(size)[0]
        if end > len(self._memory):
            return None
        encoded = bytes(self._memory[_HEADER_SIZE_BYTES:end])
        if _digest(number, size, encoded) != digest or self._words[0] != number:
            return None
        return _DECODER.decode(encoded)


@functools.lru_cache(maxsize=4)
def secret_digest_of(secret: bytes) -> bytes:
    """Return what tells one secret from another; no ticket can be made of it."""
    return hashlib.blake2b(secret, digest_size=16, person=b"reader page").digest()


def key_groups_in(bits: bytes) -> tuple[int, ...]:
    """Return the key groups that have a bit in *bits*, sorted."""
    return tuple(
        8 * index + bit
        for index, byte in enumerate(bits)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    )


def _bits(key_groups: Sequence[int]) -> bytes:
    if not key_groups:
        return b""
    bits = bytearray(max(key_groups) // 8 + 1)
    for group in key_groups:
        bits[group // 8] |= 1 << group % 8
    return bytes(bits)


def _digest(number: int, size: bytes, encoded: bytes) -> bytes:
    digest = xxhash.xxh3_64(_WORD.pack(number))
    digest.update(size)
    digest.update(encoded)
    return _WORD.pack(digest.intdigest())
