"""
What those who write a batch hand to each other: its plan, its run, what is staged.

All of it is picklable: a batch is planned in one process and staged in others.
"""

from __future__ import annotations

from typing import final

import msgspec
from attrs import field, frozen

from nameservice import RemoteProtocolError
from queryablestate.wire.clients import NodeAddress, StateDeclaration
from queryablestate.wire.records import StageRecord


__all__ = ["StageMessage", "WriteOrigin", "WritePlan", "WriteRun"]


@final
@frozen(kw_only=True)
class WritePlan:
    """
    A batch before anybody has begun to write it; picklable.

    Attributes:
        job_id: The job.
        states: The states that it writes.
        max_parallelism: The number of key groups.
        on_new_query: ``refuse``, ``replace`` or ``continue`` (rule W5).
        ticket: Drawn for it (rule W1).
        assignment_version: The assignment that it is pinned to.
        nodes: The nodes of that assignment, in its order.
        owners: For each key group the indexes of the nodes that are to get its rows.
        proxy_address: Where the ticket was drawn: where to ask first.
    """

    job_id: str
    states: tuple[StateDeclaration, ...]
    max_parallelism: int
    on_new_query: str
    ticket: int
    assignment_version: int
    nodes: tuple[NodeAddress, ...]
    owners: tuple[tuple[int, ...], ...]
    proxy_address: str | None

    @property
    def schemas(self) -> tuple[str, ...]:
        """Return the schemas of the states; a plan has all of them."""
        schemas = tuple(state.schema for state in self.states if state.schema)
        assert len(schemas) == len(self.states)
        return schemas

    def key_groups_of(self, node_index: int) -> tuple[int, ...]:
        """Return the key groups whose rows go to a node, sorted."""
        return tuple(
            group for group, holders in enumerate(self.owners) if node_index in holders
        )


@final
class WriteOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """
    Whose batch it is; picklable.  What `StateWriter.commit` must know.

    Attributes:
        job_id: The job.
        query_id: The streaming query.
        run_id: Its run.
        writer_epoch: The run's first ticket.
        assignment_version: By which its rows are sent.
        state_numbers: The numbers of the states that it writes, in the plan's order.
        on_new_query: ``refuse``, ``replace`` or ``continue`` (rule W5).
    """

    job_id: str
    query_id: str
    run_id: str
    writer_epoch: int
    assignment_version: int
    state_numbers: tuple[int, ...]
    on_new_query: str


@final
@frozen(kw_only=True)
class WriteRun:
    """
    A run of a query that may write a planned batch; picklable.

    Attributes:
        plan: The plan.
        origin: Whose batch it is.
        batch_id_last: The last batch that was decided for the query, or None.
        grant: What nodes are shown that rows are brought to.
    """

    plan: WritePlan
    origin: WriteOrigin
    batch_id_last: int | None
    grant: bytes = field(default=b"", repr=False)

    def is_decided(self, batch_id: int) -> bool:
        """Return whether nothing of that batch need be staged (rule W4)."""
        return self.batch_id_last is not None and batch_id <= self.batch_id_last

    @property
    def batch_id_next(self) -> int:
        """Return the number of the one batch that a batch job writes."""
        return 0 if self.batch_id_last is None else self.batch_id_last + 1


@final
class StageMessage(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one task has staged; picklable.

    Attributes:
        origin: Whose batch it is.
        batch_id: The batch under which the rows are staged.
        stage: What is staged; no rows if the batch is decided already.
        digests: Of the rows that the task was given, for each state of *origin*; none
            where it is not known.
    """

    origin: WriteOrigin
    batch_id: int
    stage: StageRecord
    digests: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the message as `from_bytes` reads it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> StageMessage:
        """
        Return what `to_bytes` wrote.

        Raises:
            RemoteProtocolError: If it did not.
        """
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise RemoteProtocolError("malformed", str(error)) from error
