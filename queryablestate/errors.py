"""
What reading and writing queryable state can answer with: one branch of the tree.

::

    NameServiceError
    └── QueryableStateError
        ├── UnknownJobError             no state of such a job
        ├── UnknownStateError           the job has no such state
        ├── UnknownKeyError             the state holds nothing under this key
        ├── WrongKeyTypeError (also TypeError)    the key does not fit the key columns
        ├── KeyTooLargeError            an encoded key is too long to be stored
        ├── StateUnavailableError       key groups that no node can answer for now
        ├── RateLimitedError            asked too often; carries when to ask again
        ├── AccessDeniedError           says nothing about what exists
        ├── DeadlineExceededError       no answer within the caller's deadline
        ├── TableTooLargeError          more rows than a table may have
        ├── StaleWriterError            a newer run of the same query writes
        ├── StateOwnedError             another query owns the state
        ├── SchemaMismatchError         not the schema the state was registered with
        ├── CheckpointRewoundError      a batch below the last one decided
        ├── StagedDataMissingError      rows of a batch are not on their nodes
        ├── StagingQuotaError           too much of a job is staged and not decided
        └── CommitTimeoutError          decided or not, not applied everywhere in time

Readers meet the first ten, writers all but `TableTooLargeError`.  `UnreachableError`,
`NoLeaderError` and `AuthenticationError` are what they are elsewhere.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from nameservice.errors import NameServiceError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = [
    "AccessDeniedError",
    "CheckpointRewoundError",
    "CommitTimeoutError",
    "DeadlineExceededError",
    "KeyTooLargeError",
    "QueryableStateError",
    "RateLimitedError",
    "SchemaMismatchError",
    "StagedDataMissingError",
    "StagingQuotaError",
    "StaleWriterError",
    "StateOwnedError",
    "StateUnavailableError",
    "TableTooLargeError",
    "UnknownJobError",
    "UnknownKeyError",
    "UnknownStateError",
    "WrongKeyTypeError",
]


class QueryableStateError(NameServiceError):
    """The root of what readers and writers of queryable state are told."""


class UnknownJobError(QueryableStateError):
    """
    There is no state of this job.

    Attributes:
        job_id: The job that was named.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"there is no state of a job {self.job_id!r}"


class UnknownStateError(QueryableStateError):
    """
    The job has no state of this name.

    Attributes:
        job_id: The job that was named.
        state_name: The state that was named.
    """

    def __init__(self, job_id: str, state_name: str) -> None:
        super().__init__(job_id, state_name)
        self.job_id = job_id
        self.state_name = state_name

    def __str__(self) -> str:
        kind, _, name = self.state_name.rpartition(":")
        if kind == "operator-state":  # what the names of published copies begin with
            return f"job {self.job_id!r} has published no operator state {name!r}"
        return f"job {self.job_id!r} has no state {self.state_name!r}"


class UnknownKeyError(QueryableStateError, KeyError):
    """
    The state holds nothing under this key.

    Attributes:
        job_id: The job that was asked.
        state_name: The state that was asked.
        key: The key as the caller gave it.
    """

    def __init__(self, job_id: str, state_name: str, key: object) -> None:
        super().__init__(job_id, state_name, key)
        self.job_id = job_id
        self.state_name = state_name
        self.key = key

    def __str__(self) -> str:
        return f"{self.job_id}/{self.state_name} holds nothing under {self.key!r}"


class WrongKeyTypeError(QueryableStateError, TypeError):
    """
    A key does not fit the key columns that the state was registered with.

    Attributes:
        expected: The key columns and their types, e.g. ``tailnum string``.
        key: What was given.
        detail: What does not fit.
    """

    def __init__(self, expected: str, key: object, detail: str) -> None:
        super().__init__(expected, key, detail)
        self.expected = expected
        self.key = key
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.key!r} is no key of ({self.expected}): {self.detail}"


class KeyTooLargeError(QueryableStateError):
    """
    An encoded key is longer than can be stored.

    Attributes:
        size_bytes: How long it is, encoded.
        size_bytes_max: How long it may be.
    """

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(size_bytes, size_bytes_max)
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max

    def __str__(self) -> str:
        return (
            f"a key takes {self.size_bytes} bytes, at most {self.size_bytes_max} can "
            "be stored: shorten it, or use a hash of it as key"
        )


class StateUnavailableError(QueryableStateError):
    """
    No node can answer for some key groups now.

    Attributes:
        job_id: The job that was asked.
        state_name: The state that was asked, or None if it is about the whole job.
        key_groups: The key groups concerned, sorted; empty if not known.
        retry_after_seconds: When asking again is worth it.
        detail: Why, for a person.
    """

    def __init__(
        self,
        job_id: str,
        state_name: str | None,
        key_groups: Sequence[int],
        retry_after_seconds: float,
        detail: str = "",
    ) -> None:
        super().__init__(
            job_id, state_name, tuple(key_groups), retry_after_seconds, detail
        )
        self.job_id = job_id
        self.state_name = state_name
        self.key_groups = tuple(key_groups)
        self.retry_after_seconds = retry_after_seconds
        self.detail = detail

    def __str__(self) -> str:
        what = self.job_id
        if self.state_name is not None:
            what = f"{self.job_id}/{self.state_name}"
        if self.key_groups:
            shown = ", ".join(str(group) for group in self.key_groups[:8])
            more = len(self.key_groups) - 8
            what += f" (key groups {shown}{f' and {more} more' if more > 0 else ''})"
        reason = f": {self.detail}" if self.detail else ""
        return (
            f"{what} is unavailable{reason}; "
            f"ask again in {self.retry_after_seconds:.3g} s"
        )


class RateLimitedError(QueryableStateError):
    """
    The caller, or everybody together, asks more often than is allowed.

    Attributes:
        retry_after_seconds: When the same request will be admitted.
        limit: Which limit it was, e.g. ``caller`` or ``state``.
    """

    def __init__(self, retry_after_seconds: float, limit: str) -> None:
        super().__init__(retry_after_seconds, limit)
        self.retry_after_seconds = retry_after_seconds
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the rate limit of the {self.limit} is reached; "
            f"ask again in {self.retry_after_seconds:.3g} s"
        )


class AccessDeniedError(QueryableStateError):
    """
    The caller may not do this; what exists is not told.

    Attributes:
        action: What was asked for, e.g. ``read flights/aircraft``.
    """

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return f"you are not allowed to {self.action}"


class DeadlineExceededError(QueryableStateError):
    """
    No answer came within the caller's deadline.

    Attributes:
        waited_seconds: How long it was waited for.
        detail: What was missing, or an empty string.
    """

    def __init__(self, waited_seconds: float, detail: str = "") -> None:
        super().__init__(waited_seconds, detail)
        self.waited_seconds = waited_seconds
        self.detail = detail

    def __str__(self) -> str:
        sentence = f"no answer within {self.waited_seconds:.3g} s"
        return f"{sentence}: {self.detail}" if self.detail else sentence


class TableTooLargeError(QueryableStateError):
    """
    A state has more rows than the caller wants in one table.

    Attributes:
        job_id: The job.
        state_name: The state.
        row_limit: How many rows it may have.
    """

    def __init__(self, job_id: str, state_name: str, row_limit: int) -> None:
        super().__init__(job_id, state_name, row_limit)
        self.job_id = job_id
        self.state_name = state_name
        self.row_limit = row_limit

    def __str__(self) -> str:
        return (
            f"{self.job_id}/{self.state_name} has more than {self.row_limit} rows: "
            "raise row_limit if they fit in memory, read it part by part with "
            "batches(), or write it to a file with 'lodestar export'"
        )


class StaleWriterError(QueryableStateError):
    """
    A newer run of the same query writes: this one is over (rule W1).

    Attributes:
        query_id: The streaming query.
        writer_epoch: The epoch of the run that was refused; 0 if it has none yet.
        writer_epoch_max: The newest epoch known; 0 if none is.
    """

    def __init__(self, query_id: str, writer_epoch: int, writer_epoch_max: int) -> None:
        super().__init__(query_id, writer_epoch, writer_epoch_max)
        self.query_id = query_id
        self.writer_epoch = writer_epoch
        self.writer_epoch_max = writer_epoch_max

    def __str__(self) -> str:
        return (
            f"a newer run of query {self.query_id} writes (writer epoch "
            f"{self.writer_epoch_max}; this run has {self.writer_epoch}): "
            "stop this driver, nothing of it is taken any more"
        )


class StateOwnedError(QueryableStateError):
    """
    Another streaming query owns the state (rule W5).

    Attributes:
        job_id: The job.
        state_name: The state.
        owner: The query that owns it.
        query_id: The query that was refused.
    """

    def __init__(self, job_id: str, state_name: str, owner: str, query_id: str) -> None:
        super().__init__(job_id, state_name, owner, query_id)
        self.job_id = job_id
        self.state_name = state_name
        self.owner = owner
        self.query_id = query_id

    def __str__(self) -> str:
        return (
            f"{self.job_id}/{self.state_name} belongs to query {self.owner}, not to "
            f"{self.query_id}. A query that starts without a checkpointLocation, or "
            "with a new one, is another query: give it the checkpointLocation of the "
            "run that wrote last. If another query is meant to write, say "
            'on_new_query="replace" to begin anew, "continue" to go on with what is '
            "there, or drop the state"
        )


class SchemaMismatchError(QueryableStateError):
    """
    A state was registered with another key schema, kind or max parallelism (rule W5).

    Or with a value column of another name or type: they are added, and left out, at the
    end only.

    Attributes:
        job_id: The job.
        state_name: The state.
        detail: What differs.
    """

    def __init__(self, job_id: str, state_name: str, detail: str) -> None:
        super().__init__(job_id, state_name, detail)
        self.job_id = job_id
        self.state_name = state_name
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"{self.job_id}/{self.state_name} was registered otherwise: {self.detail}; "
            "use another state_name, or drop the state first"
        )


class CheckpointRewoundError(QueryableStateError):
    """
    A query comes with a batch that was decided, with other rows, or below it (W4).

    Attributes:
        query_id: The streaming query.
        batch_id: The batch it came with.
        batch_id_last: The last one decided; the same one if it had other rows.
    """

    def __init__(self, query_id: str, batch_id: int, batch_id_last: int) -> None:
        super().__init__(query_id, batch_id, batch_id_last)
        self.query_id = query_id
        self.batch_id = batch_id
        self.batch_id_last = batch_id_last

    def __str__(self) -> str:
        if self.batch_id == self.batch_id_last:
            return (
                f"query {self.query_id} came with batch {self.batch_id}, which is "
                "decided with other rows: its checkpoint is an older copy, or its rows "
                "differ when a batch is run again (rand(), uuid()); go on from the "
                "newest checkpoint, or begin with a new one and "
                "on_new_query='replace' or 'continue'"
            )
        return (
            f"query {self.query_id} came with batch {self.batch_id}, but batch "
            f"{self.batch_id_last} is decided: its checkpoint is an older copy; "
            "go on from the newest one, or drop the state and begin anew"
        )


class StagedDataMissingError(QueryableStateError):
    """
    Rows of a batch that is to be decided are not on their nodes (rule W4).

    Attributes:
        batch_id: The batch.
        node_ids: The nodes that lack rows.
    """

    def __init__(self, batch_id: int, node_ids: Sequence[str]) -> None:
        super().__init__(batch_id, tuple(node_ids))
        self.batch_id = batch_id
        self.node_ids = tuple(node_ids)

    def __str__(self) -> str:
        return (
            f"staged rows of batch {self.batch_id} are missing on "
            f"{', '.join(self.node_ids)}: nothing was decided, run the batch again"
        )


class StagingQuotaError(QueryableStateError):
    """
    More of a job would be staged on a node, and not decided, than it may (rule B4).

    Attributes:
        node_id: The node.
        job_id: The job.
        size_bytes: How much that would be, with the chunk that was refused.
        size_bytes_max: How much it may be: the node's ``staged_bytes_per_job_max``.
    """

    def __init__(
        self, node_id: str, job_id: str, size_bytes: int, size_bytes_max: int
    ) -> None:
        super().__init__(node_id, job_id, size_bytes, size_bytes_max)
        self.node_id = node_id
        self.job_id = job_id
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max

    def __str__(self) -> str:
        return (
            f"job {self.job_id!r} would have {self.size_bytes:,} bytes staged on node "
            f"{self.node_id}, at most {self.size_bytes_max:,} are taken: write smaller "
            "batches (maxFilesPerTrigger, maxOffsetsPerTrigger), or start the node "
            "with a greater staged_bytes_per_job_max; batches of runs that have failed "
            "count until the next one is applied or stage_retention_seconds are over"
        )


class CommitTimeoutError(QueryableStateError):
    """
    A batch was not applied by every owner in time.

    Attributes:
        batch_id: The batch.
        waited_seconds: How long.
        node_ids: The nodes that were waited for.
        is_decided: Whether the batch is decided; then it will be applied when they are
            back, and running it again changes nothing.
        failures: Why those of them that are there cannot apply it, by node.
    """

    def __init__(
        self,
        batch_id: int,
        waited_seconds: float,
        node_ids: Sequence[str],
        *,
        is_decided: bool,
        failures: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            batch_id, waited_seconds, tuple(node_ids), is_decided, dict(failures)
        )
        self.batch_id = batch_id
        self.waited_seconds = waited_seconds
        self.node_ids = tuple(node_ids)
        self.is_decided = is_decided
        self.failures = dict(failures)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by way of the keyword that the constructor wants."""
        rebuild = partial(
            CommitTimeoutError, is_decided=self.is_decided, failures=self.failures
        )
        return (rebuild, (self.batch_id, self.waited_seconds, self.node_ids))

    def __str__(self) -> str:
        what = "is decided, but not applied" if self.is_decided else "is not decided"
        nodes = ", ".join(self.node_ids) or "the proxy leader"
        away = [one for one in self.node_ids if one not in self.failures]
        advice = [
            f"node {node_id} is there, but cannot go on: {reason}"
            for node_id, reason in sorted(self.failures.items())
        ]
        if away or not self.node_ids:
            advice.append(f"start {', '.join(away) or 'it'}")
        return (
            f"batch {self.batch_id} {what} after {self.waited_seconds:.3g} s: "
            f"waited for {nodes}; nothing is lost; {'; '.join(advice)}; then run the "
            "batch again"
        )
