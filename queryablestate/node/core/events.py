"""What happened to a state node: the inputs of `NodeCore.step`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, Protocol, TypeAlias, final

from attrs import field, frozen

from queryablestate.wire.job_plan import JobHolding, JobOrigin
from queryablestate.wire.kept_rows import KeptRows
from queryablestate.wire.node_messages import ToNode
from queryablestate.wire.questions import Question
from queryablestate.wire.records import Entry
from queryablestate.wire.staging_messages import StageChunk


__all__ = [
    "ROWS_MISSING",
    "AskedQuestion",
    "ChunkFinished",
    "ChunkReceived",
    "ChunkRows",
    "CommandReceived",
    "CopyAdvanced",
    "CopyFinished",
    "EntryFinished",
    "KeptChanged",
    "KeyGroupsFetched",
    "KeyGroupsHeld",
    "LeaveAsked",
    "LeftJobsForgotten",
    "NodeEvent",
    "ProxyConnected",
    "ProxyDisconnected",
    "ProxyFound",
    "QuestionDeferred",
    "ResetFinished",
    "StoreOpened",
    "TimePassed",
    "Wait",
]


ROWS_MISSING: Final = "rows_missing"
"""Why an entry cannot be applied, in a word: rows that it names are not there."""


class ChunkRows(Protocol):
    """The second frame of a chunk: passed on unopened."""

    @property
    def buffer(self) -> memoryview:
        """Return what it holds, not copied."""

    def __len__(self) -> int:
        """Return how many bytes that is."""


@final
class Wait(Enum):
    """What a question waits for."""

    BATCH = "batch"
    """The batch that it names is not applied yet (rule Q2)."""

    CATCHING_UP = "catching-up"
    """The node has yet to apply what it missed while it was away (rule W3)."""

    UNKNOWN_STATE = "unknown-state"
    """The state may be in an entry that has arrived and is not applied yet."""


@final
@frozen(kw_only=True)
class AskedQuestion:
    """
    A question that is not answered at once.

    Attributes:
        question: As it came.
        keys: Its second frame, unopened.
        asked_at_ns: When it came.
    """

    question: Question
    keys: bytes
    asked_at_ns: int

    @property
    def deadline_ns(self) -> int:
        """Return when an answer is worth nothing any more."""
        return self.asked_at_ns + self.question.deadline_ms * 1_000_000


@frozen(kw_only=True)
class StoreOpened:
    """
    The data directory is open: at the start, and after each `SwitchStore`.

    Attributes:
        store_id: Drawn when it was made.
        control_id: The control plane whose rows it holds, or None if it holds none.
        positions: The last entry applied, for each job that it knows.
        fences: The least writer epoch that may stage, for each job and query.
        lost: The states whose rows are lost, for each job that has some (rule W7).
        kept: What other stores of the node hold, of other control planes.
        origins: What tells each job from others of its name; as *positions*.
        holdings: Which copies there can be, for each job that it was told to hold.
    """

    store_id: str
    control_id: str | None
    positions: Mapping[str, int]
    fences: Mapping[tuple[str, str], int]
    lost: Mapping[str, Sequence[int]]
    kept: tuple[KeptRows, ...] = ()
    origins: Mapping[str, JobOrigin] = field(factory=dict)
    holdings: Sequence[JobHolding] = ()


@frozen(kw_only=True)
class KeptChanged:
    """A `ForgetJobRows` is done: this is what other stores of the node still hold."""

    kept: tuple[KeptRows, ...]


@frozen(kw_only=True)
class LeftJobsForgotten:
    """A `ForgetLeftJobs` is done: nothing is left of these jobs."""

    job_ids: tuple[str, ...]


@frozen(kw_only=True)
class ProxyFound:
    """The name service names the proxy leader: where it is, and its epoch."""

    address: str
    epoch: int


@frozen(kw_only=True)
class ProxyConnected:
    """Messages can flow over the connection of the last `ConnectProxy`."""


@frozen(kw_only=True)
class ProxyDisconnected:
    """That connection is over, or came to nothing; ZeroMQ tries it again by itself."""


@frozen(kw_only=True)
class CommandReceived:
    """The proxy said something that is no question."""

    command: ToNode


@frozen(kw_only=True)
class QuestionDeferred:
    """A question cannot be answered yet, as `NodeCore.admit` or the store has said."""

    asked: AskedQuestion
    job_id: str | None
    wait: Wait


@frozen(kw_only=True)
class ChunkReceived:
    """
    A writer brought a chunk.

    Attributes:
        writer: Its routing id.
        chunk: The envelope.
        rows: Its second frame, not decoded yet.
    """

    writer: bytes
    chunk: StageChunk
    rows: ChunkRows

    @property
    def size_bytes(self) -> int:
        """Return how big the rows are."""
        return len(self.rows)


@frozen(kw_only=True)
class ChunkFinished:
    """A chunk that was to be staged is on disk, or has been refused."""

    writer: bytes
    size_bytes: int


@frozen(kw_only=True)
class EntryFinished:
    """
    An `ApplyEntry` is done.

    Attributes:
        job_id: Whose chain.
        entry: What was to be applied.
        failure: Why it was not, or None.
        digest: `queryablestate.wire.job_plan.entry_digest` of the entry, if it was.
        reason: The failure in a word, for metrics; `ROWS_MISSING` if rows that the
            entry names are not there.
        holding: What the store has, if the entry has mended losses.
    """

    job_id: str
    entry: Entry
    failure: str | None
    digest: bytes = b""
    reason: str = "failed"
    holding: JobHolding | None = None


@frozen(kw_only=True)
class ResetFinished:
    """
    A `ResetJobRows` is done.

    Attributes:
        job_id: Whose rows are gone.
        failure: Why they are not, or None.
        reason: As of `EntryFinished`.
        holding: What the store has.
    """

    job_id: str
    failure: str | None
    reason: str = "failed"
    holding: JobHolding | None = None


@frozen(kw_only=True)
class KeyGroupsHeld:
    """
    A `HoldKeyGroups` is done.

    Attributes:
        job_id: The job.
        assignment_version: The assignment that it was for.
        copied: Of the joining key groups those that are complete, sorted.
        missing: Those that are to be fetched, sorted.
        sequence_min: What is fetched must hold at least the entries up to this one.
        failure: Why it was not done, or None.
        holding: What the store has.
    """

    job_id: str
    assignment_version: int
    copied: tuple[int, ...]
    missing: tuple[int, ...]
    sequence_min: int
    failure: str | None = None
    holding: JobHolding | None = None


@frozen(kw_only=True)
class CopyAdvanced:
    """More rows have been fetched: how many since the node started, and their size."""

    job_id: str
    row_count: int
    size_bytes: int


@frozen(kw_only=True)
class KeyGroupsFetched:
    """
    A `FetchKeyGroups` is over, unless it was cancelled.

    Attributes:
        job_id: The job.
        fetch_id: Of the effect.
        sequence: All rows are here, as they were after this entry; 0 after a failure.
        failure: Why they are not, or None.
    """

    job_id: str
    fetch_id: int
    sequence: int
    failure: str | None = None


@frozen(kw_only=True)
class CopyFinished:
    """
    A `FinishCopy` is done: the copies are as far as the rest of the job.

    Attributes:
        job_id: The job.
        fetch_id: Of the effect.
        key_groups: Which are complete now, sorted; those that are not held any more are
            left out.
        failure: Why they are not, or None.
        holding: What the store has.
    """

    job_id: str
    fetch_id: int
    key_groups: tuple[int, ...]
    failure: str | None = None
    holding: JobHolding | None = None


@frozen(kw_only=True)
class LeaveAsked:
    """The process is to end: be emptied first, if others can take what is here."""


@frozen(kw_only=True)
class TimePassed:
    """Nothing but time."""


NodeEvent: TypeAlias = (
    StoreOpened
    | KeptChanged
    | LeftJobsForgotten
    | ProxyFound
    | ProxyConnected
    | ProxyDisconnected
    | CommandReceived
    | QuestionDeferred
    | ChunkReceived
    | ChunkFinished
    | EntryFinished
    | ResetFinished
    | KeyGroupsHeld
    | CopyAdvanced
    | KeyGroupsFetched
    | CopyFinished
    | LeaveAsked
    | TimePassed
)
