"""
`JobChange`: what a request changes in one job, and how that is written; pure.

All of it is one write: the next leader finds all of it or nothing, whether it takes one
commit of the leader store or several (`queryablestate.control.large_writes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from election import Delete, Put
from queryablestate.control.job.entry_parts import entry_parts
from queryablestate.control.job.job_records import changed_records
from queryablestate.control.job.leader_paths import (
    assignment_path,
    encode_record,
    state_path,
)


if TYPE_CHECKING:
    from collections.abc import Mapping

    from election import StoreOperation
    from queryablestate.wire.records import (
        AssignmentRecord,
        Entry,
        JobRecord,
        StateRecord,
    )


__all__ = ["JobChange"]


@frozen(kw_only=True)
class JobChange:
    """
    What a request changes in one job; all of it is written at once, or nothing.

    Attributes:
        record: The job's record from then on.
        states: States that are new, or have new columns.
        dropped: Numbers of states that are gone.
        entry: The new last entry of the chain, if there is one.
        assignment: The new assignment, if there is one.
        forgotten: Earlier versions of the assignment that are needed no more.
        pruned: Entries that are needed no more, by sequence.
    """

    record: JobRecord
    states: tuple[StateRecord, ...] = ()
    dropped: tuple[int, ...] = ()
    entry: Entry | None = None
    assignment: AssignmentRecord | None = None
    forgotten: tuple[int, ...] = ()
    pruned: tuple[int, ...] = ()

    def operations(
        self, stored: JobRecord | None, entries: Mapping[int, Entry]
    ) -> list[StoreOperation]:
        """
        Return what is to be written.

        Args:
            stored: The record that the store holds; None if it holds it otherwise.
            entries: Those that it holds, by sequence.
        """
        number = self.record.job_number
        operations = [*changed_records(stored, self.record)]
        for state in self.states:
            path = state_path(number, state.state_number)
            operations.append(Put(path, encode_record(state)))
        operations += [Delete(state_path(number, dropped)) for dropped in self.dropped]
        if self.entry is not None:
            puts = entry_parts(number, self.entry)
            operations += [Put(path, part) for path, part in puts.items()]
        if self.assignment is not None:
            path = assignment_path(number, self.assignment.version)
            operations.append(Put(path, encode_record(self.assignment)))
        operations += [
            Delete(assignment_path(number, version)) for version in self.forgotten
        ]
        for sequence in self.pruned:
            parts = entry_parts(number, entries[sequence])
            operations += [Delete(path) for path in parts]
        return operations
