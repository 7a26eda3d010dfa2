"""
What is to be done: the outputs of `NodeCore.step`, performed in the order returned.

What concerns the store goes to one thread, in that order, and is done in that order: a
reset before the entries that follow it, a fence before the chunks that come after it.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen

from queryablestate.node.core.events import AskedQuestion, ChunkRows
from queryablestate.wire.job_assignment import CopySource, JoiningGroup, WriterFence
from queryablestate.wire.job_plan import JobPlan
from queryablestate.wire.node_messages import CollectStages, FromNode, VerifyStages
from queryablestate.wire.questions import Refusal
from queryablestate.wire.records import Entry
from queryablestate.wire.snapshot_messages import SnapshotCommand
from queryablestate.wire.staging_messages import ChunkRefused, StageChunk


__all__ = [
    "ApplyEntry",
    "AskAgain",
    "BindStore",
    "CancelFetch",
    "CancelReads",
    "CheckStages",
    "CollectRows",
    "ConnectProxy",
    "DropFences",
    "DropOldStages",
    "EndProcess",
    "FetchKeyGroups",
    "FinishCopy",
    "ForgetJobRows",
    "ForgetLeftJobs",
    "HandleSnapshot",
    "HoldKeyGroups",
    "KeepCopySecret",
    "KeepJobPlan",
    "NodeEffect",
    "RaiseFences",
    "ReportBehind",
    "ReportRefused",
    "ReportRegistered",
    "ReportStale",
    "ResetJobRows",
    "SendToProxy",
    "SendToWriter",
    "StageRows",
    "SwitchStore",
    "TellJobPlan",
]


@frozen(kw_only=True)
class ConnectProxy:
    """
    Close the connection to a proxy, if there is one, and open one to *address*.

    What was asked over the old one is not answered any more.
    """

    address: str


@frozen(kw_only=True)
class SendToProxy:
    """Send *message* over the present connection, now or not at all."""

    message: FromNode | Refusal


@frozen(kw_only=True)
class SendToWriter:
    """Tell a writer why its chunk is not taken."""

    writer: bytes
    message: ChunkRefused


@frozen(kw_only=True)
class StageRows:
    """Stage a chunk that was received; `ChunkFinished` follows."""

    writer: bytes
    chunk: StageChunk
    rows: ChunkRows


@frozen(kw_only=True)
class ApplyEntry:
    """Apply the next entry of a job; `EntryFinished` follows."""

    job_id: str
    entry: Entry


@frozen(kw_only=True)
class ForgetLeftJobs:
    """
    Forget what is left of jobs that the node has left; `LeftJobsForgotten` follows.

    Attributes:
        kept: Those that it has a part in, or that are not to be touched, sorted.  All
            others go, but for those of which rows are staged: a batch that was begun
            before may need these.
    """

    kept: tuple[str, ...]


@frozen(kw_only=True)
class DropFences:
    """Remember these fences no more: the proxy leader has forgotten their queries."""

    job_id: str
    query_ids: tuple[str, ...]


@frozen(kw_only=True)
class KeepCopySecret:
    """Show *secret* to other nodes from now on, and send rows to who shows it."""

    secret: bytes = field(repr=False)


@frozen(kw_only=True)
class ResetJobRows:
    """
    Have a job begin at *sequence* with nothing (W7); `ResetFinished` follows.

    From then on these key groups are held, as by a `HoldKeyGroups`.
    """

    job_id: str
    sequence: int
    state_numbers: tuple[int, ...]
    restore_id: str | None
    assignment_version: int
    key_groups: tuple[int, ...]
    joining: tuple[JoiningGroup, ...]


@frozen(kw_only=True)
class HoldKeyGroups:
    """
    Hold these key groups of a job, and no others; `KeyGroupsHeld` follows.

    Rows of key groups that are named in neither are dropped, and passed over in entries
    that are applied later.  What is joining is kept from now on, and not shown; a copy
    that was begun under another name (`JoiningCopy`) is begun anew.

    Attributes:
        job_id: The job.
        assignment_version: The assignment that says so.
        key_groups: In-sync copies, sorted.
        joining: Those that are to be copied, sorted.
        copied_version: See `queryablestate.wire.job_assignment.JobAssignment`.
    """

    job_id: str
    assignment_version: int
    key_groups: tuple[int, ...]
    joining: tuple[JoiningGroup, ...]
    copied_version: int = 0


@frozen(kw_only=True)
class FetchKeyGroups:
    """
    Fetch rows from another node, into copies that no reader sees yet.

    `CopyAdvanced` follows now and then, `KeyGroupsFetched` at the end.

    Attributes:
        job_id: The job.
        fetch_id: Names it; rises.
        source: Where from, and which key groups.
        sequence_min: The source must have applied this entry: it waits until it has.
    """

    job_id: str
    fetch_id: int
    source: CopySource
    sequence_min: int


@frozen(kw_only=True)
class CancelFetch:
    """
    Fetch no more for this job.

    What has arrived is written before whatever is asked of the store after this; and
    nothing else of it is.
    """

    job_id: str


@frozen(kw_only=True)
class FinishCopy:
    """
    Bring what was fetched up to the position of the job; `CopyFinished` follows.

    The store has applied *sequence*; the entries after it, which were kept for that,
    are applied to these key groups now.
    """

    job_id: str
    fetch_id: int
    key_groups: tuple[int, ...]
    sequence: int


@frozen(kw_only=True)
class CollectRows:
    """Fetch staged rows from others, keep them, and tell the proxy (rule S2)."""

    command: CollectStages


@frozen(kw_only=True)
class HandleSnapshot:
    """Write, load or drop rows of a snapshot, and tell the proxy what came of it."""

    command: SnapshotCommand


@frozen(kw_only=True)
class EndProcess:
    """For those who wait: the node may end now; *reason* is as in `NodeEmptied`."""

    reason: str


@frozen(kw_only=True)
class RaiseFences:
    """Make fences durable; chunks below them are refused already."""

    fences: tuple[WriterFence, ...]


@frozen(kw_only=True)
class CheckStages:
    """Tell the proxy which of these stages are not complete here."""

    command: VerifyStages


@frozen(kw_only=True)
class BindStore:
    """Note in the store, before anything else is, whose rows it will hold."""

    control_id: str


@frozen(kw_only=True)
class SwitchStore:
    """
    Set the present rows aside and open those of another control plane.

    `StoreOpened` follows; until then nothing else of the store is asked for.
    """

    control_id: str


@frozen(kw_only=True)
class CancelReads:
    """Read no more of what these questions ask; those that are answered are none."""

    question_ids: tuple[int, ...]


@frozen(kw_only=True)
class KeepJobPlan:
    """Keep what the leader store holds of a job, once its entry is applied."""

    plan: JobPlan


@frozen(kw_only=True)
class ForgetJobRows:
    """Remove all that there is of a job, here and aside; `KeptChanged` follows."""

    job_id: str


@frozen(kw_only=True)
class TellJobPlan:
    """Tell the proxy what is kept of a job."""

    job_id: str


@frozen(kw_only=True)
class AskAgain:
    """Look at a question that has waited, as if it had just come."""

    asked: AskedQuestion


@frozen(kw_only=True)
class DropOldStages:
    """
    Drop what was staged longer ago than the retention (rule W2).

    Attributes:
        spared: Jobs of which something may be decided and is not applied yet, sorted:
            their rows stay, however old.
    """

    spared: tuple[str, ...] = ()


@frozen(kw_only=True)
class ReportRegistered:
    """For the log and for those who wait: the node is registered."""

    leader_epoch: int


@frozen(kw_only=True)
class ReportRefused:
    """For the log and for those who wait: the proxy does not take the node."""

    reason: str
    detail: str


@frozen(kw_only=True)
class ReportBehind:
    """For the log: the node cannot go on with a job."""

    job_id: str
    sequence: int
    failure: str


@frozen(kw_only=True)
class ReportStale:
    """For the log: a proxy that leads no more gave a command (rule S2)."""

    leader_epoch: int
    leader_epoch_max: int


NodeEffect: TypeAlias = (
    ConnectProxy
    | SendToProxy
    | SendToWriter
    | StageRows
    | ApplyEntry
    | ResetJobRows
    | HoldKeyGroups
    | FetchKeyGroups
    | CancelFetch
    | CancelReads
    | FinishCopy
    | CollectRows
    | KeepCopySecret
    | HandleSnapshot
    | EndProcess
    | RaiseFences
    | CheckStages
    | BindStore
    | SwitchStore
    | ForgetJobRows
    | ForgetLeftJobs
    | DropFences
    | KeepJobPlan
    | TellJobPlan
    | AskAgain
    | DropOldStages
    | ReportRegistered
    | ReportRefused
    | ReportBehind
    | ReportStale
)
