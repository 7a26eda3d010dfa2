"""
What is to be done: the outputs of `NodeCore.step`, performed in the order returned.

What concerns the store goes to one thread, in that order, and is done in that order: a
reset before the entries that follow it, a fence before the chunks that come after it.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from queryablestate.node_events import AskedQuestion
from queryablestate.node_messages import (
    ChunkRefused,
    FromNode,
    StageChunk,
    VerifyStages,
    WriterFence,
)
from queryablestate.questions import Refusal
from queryablestate.records import Entry


__all__ = [
    "ApplyEntry",
    "AskAgain",
    "BindStore",
    "CheckStages",
    "ConnectProxy",
    "DropOldStages",
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
    """Stage the chunk that was just received; `ChunkFinished` follows."""

    writer: bytes
    chunk: StageChunk


@frozen(kw_only=True)
class ApplyEntry:
    """Apply the next entry of a job; `EntryFinished` follows."""

    job_id: str
    entry: Entry


@frozen(kw_only=True)
class ResetJobRows:
    """Let a job begin at *sequence* with nothing (W7); `ResetFinished` follows."""

    job_id: str
    sequence: int
    state_numbers: tuple[int, ...]


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
class AskAgain:
    """Look at a question that has waited, as if it had just come."""

    asked: AskedQuestion


@frozen(kw_only=True)
class DropOldStages:
    """Drop what was staged longer ago than the retention (rule W2)."""


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
    | RaiseFences
    | CheckStages
    | BindStore
    | SwitchStore
    | AskAgain
    | DropOldStages
    | ReportRegistered
    | ReportRefused
    | ReportBehind
    | ReportStale
)
