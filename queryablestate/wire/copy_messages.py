"""
What nodes say to each other: how rows travel from node to node (rule S2).

One conversation, over the port that writers use.  The node that is to have rows opens a
connection and asks (`OpenCopy`, `ReadStages`); the other one answers with pages, never
more of them than it was allowed (`AllowPages`).  Several of them share a connection:
*copy_id* says which.  Both sides say something about once a second while there is
nothing else to say; who hears nothing for long gives up.

Pages carry keys and values as they lie on disk: nothing is looked at on the way.

A writer that brings rows may not read them for that: who asks shows a secret, which the
proxy leader draws and gives to the nodes that it takes in (`NodeRegistered`).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from queryablestate.wire.records import CopySecret, StageId, StageRecord
from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "AllowPages",
    "CloseCopy",
    "CopiedRows",
    "CopiedState",
    "CopiedStates",
    "CopyContinues",
    "CopyOpened",
    "CopyPage",
    "CopyRefused",
    "FromCopySource",
    "KeyGroupRun",
    "OpenCopy",
    "ReadStages",
    "StagesPage",
    "StagesRead",
    "ToCopySource",
    "key_groups_of",
    "runs_of",
]

_KEY_GROUP_COUNT_MAX: Final = 1 << 15
_PAGE_COUNT_MAX: Final = 1 << 10

KeyGroupRun: TypeAlias = tuple[int, int]
"""Key groups side by side: the first and the last one."""

CopyId: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 62)]
PageCount: TypeAlias = Annotated[int, Meta(ge=0, le=_PAGE_COUNT_MAX)]
Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 62)]
KeyGroupRuns: TypeAlias = Annotated[
    tuple[KeyGroupRun, ...], Meta(min_length=1, max_length=_KEY_GROUP_COUNT_MAX)
]


class CopiedState(Struct, frozen=True, array_like=True):
    """
    What belongs to a state besides its rows.

    Attributes:
        state_number: Which state.
        kind: ``value``, ``list`` or ``map``; empty before the first batch.
        has_ttl: Whether stored values begin with their expiry.
        generation: Of the last batch applied, 0 before.
        batch_id: The last batch applied, or None before.
        decided_at_us: When that was decided, 0 before.
        lost: Key groups whose rows were lost and not replaced yet: the first and the
            last one of each run, sorted (rule W7).
    """

    state_number: int
    kind: str
    has_ttl: bool
    generation: int
    batch_id: int | None
    decided_at_us: int
    lost: tuple[KeyGroupRun, ...] = ()


class CopiedStates(Struct, frozen=True, array_like=True):
    """
    The states of a job, as they were after one entry of its chain.

    Attributes:
        sequence: The last entry that was applied.
        states: All states of the job, by rising number, also those without rows.
        key_groups: Whose rows are copied: the first and the last one of each run,
            sorted.  What was there of them before is not part of the copy.
    """

    sequence: Sequence
    states: tuple[CopiedState, ...]
    key_groups: tuple[KeyGroupRun, ...] = ()


class CopiedRows(Struct, frozen=True, array_like=True):
    """
    Rows of one state; an array on the wire, for there are many.

    Attributes:
        state_number: Which state; one of `CopiedStates.states`.
        keys: Row keys, which begin with their key group; sorted.
        values: One for each key, as stored.
    """

    state_number: int
    keys: list[bytes]
    values: list[bytes]


class OpenCopy(WireStruct, frozen=True, kw_only=True, tag="open-copy"):
    """
    Send all rows of these key groups, as they were at one moment.

    `CopyOpened` follows, then pages; or `CopyRefused`.

    Attributes:
        copy_id: Names it on this connection; used once.
        job_id: The job.
        key_groups: Runs of them, sorted.
        sequence_min: Not before this entry is applied there; it waits until it is.
        page_count: How many pages may be sent.
        page_size_bytes: About how big a page is.
        secret: What the proxy leader gives to nodes only.
    """

    copy_id: CopyId
    job_id: str
    key_groups: KeyGroupRuns
    sequence_min: Sequence
    page_count: PageCount
    page_size_bytes: Annotated[int, Meta(ge=1 << 10, le=1 << 24)]
    secret: CopySecret = b""


class ReadStages(WireStruct, frozen=True, kw_only=True, tag="read-stages"):
    """
    Send what is staged of these key groups.

    `StagesPage` follow, and at the end `StagesRead`; or `CopyRefused`.

    Attributes:
        copy_id: Names it on this connection; used once.
        job_id: The job.
        writer_epoch: Under which the rows are staged.
        batch_id: Under which the rows are staged.
        stages: Of which stages; of each, only the count of the node that is asked is
            looked at.
        key_groups: Runs of them, sorted.
        page_count: How many pages may be sent.
        secret: As in `OpenCopy`.
    """

    copy_id: CopyId
    job_id: str
    writer_epoch: int
    batch_id: int
    stages: tuple[StageRecord, ...]
    key_groups: KeyGroupRuns
    page_count: PageCount
    secret: CopySecret = b""


class AllowPages(WireStruct, frozen=True, kw_only=True, tag="allow-pages"):
    """That many more pages may be sent; none: I am still here."""

    copy_id: CopyId
    page_count: PageCount


class CloseCopy(WireStruct, frozen=True, kw_only=True, tag="close-copy"):
    """Send no more of it.  There is no answer."""

    copy_id: CopyId


class CopyOpened(WireStruct, frozen=True, kw_only=True, tag="copy-opened"):
    """The moment is chosen, and these are the states; pages follow."""

    copy_id: int
    states: CopiedStates


class CopyPage(WireStruct, frozen=True, kw_only=True, tag="copy-page"):
    """
    Rows; `CopiedRows` is the second frame.

    Attributes:
        copy_id: Of which copy.
        page_index: From 0, without gaps.
        is_last: Whether these are the last ones; there may be none in it then.
    """

    copy_id: int
    page_index: int
    is_last: bool


class StagesPage(WireStruct, frozen=True, kw_only=True, tag="stages-page"):
    """
    Rows of one chunk; `StagedRows` is the second frame.

    Attributes:
        copy_id: Of which `ReadStages`.
        page_index: From 0, without gaps.
        stage_index: Which of its stages.
    """

    copy_id: int
    page_index: int
    stage_index: int


class StagesRead(WireStruct, frozen=True, kw_only=True, tag="stages-read"):
    """
    That was all.

    Attributes:
        copy_id: Of which `ReadStages`.
        page_count: How many pages there were.
        missing: Stages of which chunks are not here.
    """

    copy_id: int
    page_count: int
    missing: tuple[StageId, ...]


class CopyContinues(WireStruct, frozen=True, kw_only=True, tag="copy-continues"):
    """Nothing new, and still here: the entry is awaited, or pages are not allowed."""

    copy_id: int


class CopyRefused(WireStruct, frozen=True, kw_only=True, tag="copy-refused"):
    """
    There is no copy, or no more of it.

    Attributes:
        copy_id: Of which.
        reason: ``not-allowed`` (the secret is another one, or there is none yet),
            ``not-held`` (not all of the key groups are here), ``behind`` (the entry
            was not applied in time), ``busy`` (as many copies as are allowed are being
            made), ``unknown`` (it was not opened, or has been given up), ``storage`` or
            ``malformed``.
        detail: Why, for a person.
    """

    copy_id: int
    reason: str
    detail: str


ToCopySource: TypeAlias = OpenCopy | ReadStages | AllowPages | CloseCopy
FromCopySource: TypeAlias = (
    CopyOpened | CopyPage | StagesPage | StagesRead | CopyContinues | CopyRefused
)


def runs_of(key_groups: tuple[int, ...]) -> tuple[KeyGroupRun, ...]:
    """Return *key_groups*, which are sorted, as runs."""
    runs: list[KeyGroupRun] = []
    for key_group in key_groups:
        if runs and key_group <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], key_group)
        else:
            runs.append((key_group, key_group))
    return tuple(runs)


def key_groups_of(runs: tuple[KeyGroupRun, ...]) -> tuple[int, ...] | None:
    """Return the key groups in *runs*, or None if these are not sorted and apart."""
    key_groups: list[int] = []
    after = 0
    for first, last in runs:
        if not after <= first <= last < _KEY_GROUP_COUNT_MAX:
            return None
        key_groups += range(first, last + 1)
        after = last + 1
    return tuple(key_groups)
