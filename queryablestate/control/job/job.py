"""
Writer epochs, owners and the chain of decided batches of one job; pure.

Theory of operation.  A `Job` is what the leader store holds of one job.  Its methods
check what a writer asks and return a `JobChange`: what must be written, in one commit,
for it to be true.  Nothing has changed until the change is written and `adopt`-ed.

Three numbers put writers in order, and each guards against another mistake.

*   The **writer epoch** is about runs of one query: the first ticket that a run has
    shown.  Whatever comes from a run that is not the newest is refused (rule W1); see
    `queryablestate.control.job.writer_runs`.
*   The **generation** is about owners of one state: another query begins a new one with
    its first batch, and only if its run is younger than the one that wrote last (W5).
*   The **batch id** is about one query and one state: equal to the last one decided, it
    is a repetition; below, the checkpoint is an older copy (rule W4).

**Repetitions are told by state**, since the states of a query need not be equally far:
one may have been added, or dropped and begun anew, before a batch came again.  Then the
batch is decided for those states that lack it, and the rows of the others, which have
it, are passed over.  What a query has written is remembered as long as the state lives,
also while another query owns it.  Within one run a batch comes once, with all of its
states: that is what makes it safe for a node to drop the rows that a run staged for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import define, field
from msgspec.structs import replace

from queryablestate.control.assignment.assignment import primary_indexes
from queryablestate.control.job.batch_order import (
    check_commit,
    check_gapless,
    check_not_rewritten,
    check_rising,
    query_progress,
    remembered_queries,
    repetition_of,
)
from queryablestate.control.job.declarations import (
    check_declarations,
    has_more_columns,
    parsed_schema,
)
from queryablestate.control.job.job_changes import JobChange
from queryablestate.control.job.takeover import (
    CONTINUE,
    REPLACE,
    check_may_go_on,
    check_on_new_query,
    check_takeover,
)
from queryablestate.control.job.writer_runs import (
    bound_run,
    committing_run,
    runs_with,
)
from queryablestate.errors import (
    AccessDeniedError,
    UnknownStateError,
)
from queryablestate.wire.records import (
    AssignmentRecord,
    BatchDecided,
    BatchState,
    Entry,
    JobRecord,
    QueryProgress,
    RunRecord,
    StageRecord,
    StateDropped,
    StateProgress,
    StateRecord,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from election import StoreOperation
    from queryablestate.control.job.batch_order import Repeated
    from queryablestate.wire.clients import BindRun, CommitBatch


__all__ = [
    "ASSIGNMENT_KEPT_COUNT",
    "ENTRY_KEPT_COUNT",
    "Job",
]

ENTRY_KEPT_COUNT: Final = 100
"""Entries of a chain that are kept though everybody has applied them (rule W3)."""

ASSIGNMENT_KEPT_COUNT: Final = 100
"""Earlier assignments that are kept, besides those of batches that are known to be
open; a batch that was begun before them fails."""


@final
@define(kw_only=True)
class Job:
    """
    One job as the leader store has it; see the module docstring.

    Attributes:
        record: Head of the chain, runs, owners.
        assignment: Which nodes hold which key groups, or None before the first.
        assignments: The versions of it that are kept, this one included: batches are
            pinned to the one by which their rows were sent (rule W3).
        states: The registered states by number.
        entries: The entries that are kept, by sequence.
        is_in_one_record: Whether the store has *record* as earlier versions wrote it.
    """

    record: JobRecord
    assignment: AssignmentRecord | None = None
    assignments: dict[int, AssignmentRecord] = field(factory=dict)
    states: dict[int, StateRecord] = field(factory=dict)
    entries: dict[int, Entry] = field(factory=dict)
    is_in_one_record: bool = False
    # Who holds in-sync copies, and by which assignment: asked for with each entry that
    # a node has applied.
    _holders: tuple[AssignmentRecord | None, tuple[str, ...]] = field(
        init=False, eq=False, repr=False, default=(None, ())
    )
    # The route of the states: asked for with each description.
    _primaries: tuple[AssignmentRecord | None, tuple[int, ...]] = field(
        init=False, eq=False, repr=False, default=(None, ())
    )

    # -- questions -----------------------------------------------------------------

    def state_named(self, state_name: str) -> StateRecord | None:
        """Return the state of that name, or None."""
        for state in self.states.values():
            if state.state_name == state_name:
                return state
        return None

    def assignment_of(self, version: int) -> AssignmentRecord | None:
        """Return that version of the assignment, or None if it is not kept."""
        if self.assignment is not None and self.assignment.version == version:
            return self.assignment
        return self.assignments.get(version)

    def holder_ids(self) -> Sequence[str]:
        """Return the nodes with an in-sync copy of a key group, in their order."""
        known, node_ids = self._holders
        assignment = self.assignment
        if known is not assignment or assignment is None:
            assert assignment is not None
            indexes = {index for owners in assignment.owners for index in owners}
            node_ids = tuple(assignment.node_ids[index] for index in sorted(indexes))
            self._holders = (assignment, node_ids)
        return node_ids

    def primary_indexes(self) -> tuple[int, ...]:
        """Return for each key group the index of its primary; one tuple for all."""
        known, indexes = self._primaries
        assignment = self.assignment
        if known is not assignment or assignment is None:
            assert assignment is not None
            indexes = primary_indexes(assignment)
            self._primaries = (assignment, indexes)
        return indexes

    def progress_of(self, state_number: int) -> StateProgress:
        """Return who owns that state, which is registered, and how far it is."""
        (progress,) = (
            one for one in self.record.progress if one.state_number == state_number
        )
        return progress

    def run_of(self, query_id: str) -> RunRecord | None:
        """Return the newest run of that query, or None."""
        for run in self.record.runs:
            if run.query_id == query_id:
                return run
        return None

    def run_to_bind(self, request: BindRun) -> RunRecord:
        """Return the run that shows a ticket; `StaleWriterError` if it is over."""
        return bound_run(
            self.run_of(request.query_id), request, fence=self.record.fence
        )

    def check_may_write(self, query_id: str, writable: frozenset[str] | None) -> None:
        """
        Return if a caller that may write *writable* may act as that query (rule C1).

        Every reader is told the id of the query that owns a state.  So an id is no
        right: who may not write all that the query writes cannot end its runs.

        Args:
            query_id: The query.
            writable: Names of states; None is every state.

        Raises:
            AccessDeniedError: If not.
        """
        if writable is None:
            return
        run = self.run_of(query_id)
        numbers = set(() if run is None else run.state_numbers)
        numbers.update(
            progress.state_number
            for progress in self.record.progress
            if progress.query_id == query_id
            or query_progress(progress, query_id) is not None
        )
        for number in sorted(numbers & self.states.keys()):
            if self.states[number].state_name not in writable:
                raise AccessDeniedError(
                    f"write as query {query_id} of {self.record.job_id}"
                )

    def batch_id_of(self, query_id: str, state_numbers: Sequence[int]) -> int | None:
        """
        Return the last batch that was decided for a query and all of these states.

        None is before the first: rows of every batch are to be staged.
        """
        batch_ids = [
            -1 if done is None else done.batch_id
            for done in (
                query_progress(self.progress_of(number), query_id)
                for number in state_numbers
            )
        ]
        batch_id = min(batch_ids, default=-1)
        return None if batch_id < 0 else batch_id

    def staged_batch_id(self, request: CommitBatch) -> int:
        """Return the batch id that the rows of *request* are staged under."""
        if request.batch_id is not None:
            return request.batch_id
        numbers = [number for number in request.state_numbers if number in self.states]
        last = self.batch_id_of(request.query_id, numbers)
        return 0 if last is None else last + 1

    def state_numbers_with_rows(self) -> tuple[int, ...]:
        """Return the states in which a batch was decided."""
        return tuple(
            progress.state_number
            for progress in self.record.progress
            if progress.batch_id is not None
        )

    def entries_after(self, sequence: int) -> Sequence[Entry] | None:
        """Return the chain after *sequence*, or None if it is not all kept."""
        if sequence + 1 < self.record.sequence_first:
            return None
        wanted = range(sequence + 1, self.record.sequence + 1)
        return [self.entries[number] for number in wanted]

    # -- changes -------------------------------------------------------------------

    def bind(self, request: BindRun, *, state_number_next: int) -> JobChange:
        """
        Return what makes the run of *request* the newest, and its states known.

        Args:
            request: A run shows a ticket.
            state_number_next: New states are numbered from here.

        Raises:
            StaleWriterError: A newer run of the query is known (rule W1).
            StateOwnedError: Another query owns a state, and *request* refuses that.
            SchemaMismatchError: A state is registered otherwise.
            DeclarationWantedError: A schema is not known by its digest.
            ConfigurationError: The request is malformed.
        """
        check_on_new_query(request.on_new_query)
        check_declarations(
            self.record, self.states, request.states, self.record.max_parallelism
        )
        run, newest = self.run_to_bind(request), self.run_of(request.query_id)
        is_for_now = request.born_epoch is None and (
            newest is None or newest.run_id != run.run_id
        )
        job_id = self.record.job_id
        progress = {entry.state_number: entry for entry in self.record.progress}
        states: list[StateRecord] = []
        bound = set(run.state_numbers) & self.states.keys()
        for declaration in request.states:
            state = self.state_named(declaration.state_name)
            schema = declaration.schema
            if state is None:
                assert schema is not None  # that is checked
                state = StateRecord(
                    state_name=declaration.state_name,
                    state_number=state_number_next,
                    schema=schema,
                )
                state_number_next += 1
                states.append(state)
            elif schema is not None and has_more_columns(schema, state.schema):
                state = replace(state, schema=schema)
                states.append(state)
            bound.add(state.state_number)
            owned = progress.get(state.state_number)
            if owned is None or (
                not is_for_now
                and owned.batch_id is None
                and owned.owner_epoch <= run.writer_epoch
            ):
                # No query has written it yet: the last to come may.
                progress[state.state_number] = StateProgress(
                    state_number=state.state_number,
                    query_id=request.query_id,
                    owner_epoch=run.writer_epoch,
                    generation=1,
                    batch_id=None,
                    decided_at_us=0,
                )
            elif owned.query_id != request.query_id:
                check_takeover(job_id, owned, state, run, request.on_new_query)
                if (
                    request.on_new_query == CONTINUE
                    and query_progress(owned, request.query_id) is None
                ):
                    check_may_go_on(owned, request.query_id)
        run = replace(run, state_numbers=tuple(sorted(bound)))
        record = replace(self.record, progress=tuple(progress.values()))
        if not is_for_now:
            record = _with_run(record, run)
        return JobChange(record=record, states=tuple(states))

    def decide(
        self,
        request: CommitBatch,
        *,
        decided_at_us: int,
        pruned: Sequence[int],
        stages: tuple[StageRecord, ...] | None = None,
    ) -> JobChange | Repeated:
        """
        Return what commits the batch of *request* (rules W3 and W4).

        Args:
            request: What a driver wants to be decided.
            decided_at_us: The wall clock.
            pruned: Entries, the oldest that are kept, that may go.
            stages: Where its rows are under the present assignment; None if that is
                as *request* says.

        Returns:
            The change, or that the batch is decided already.

        Raises:
            StaleWriterError: A newer run of the query is known.
            StateOwnedError: Another query owns a state.
            CheckpointRewoundError: A later batch is decided already, or another one of
                that number.
            UnknownStateError: A state was dropped meanwhile.
            LocalProtocolError: The run has not been bound, or has written other states
                with this batch.
            ConfigurationError: The request is malformed.
        """
        check_on_new_query(request.on_new_query)
        check_commit(request)
        run = committing_run(
            self.run_of(request.query_id), request, fence=self.record.fence
        )
        job_id, done = self.record.job_id, self._query_progress_of(request)
        progress = {entry.state_number: entry for entry in self.record.progress}
        check_not_rewritten(request, progress)
        repeated = repetition_of(run, request, done)
        if repeated is not None:
            return repeated
        batch_id = self.staged_batch_id(request)
        check_rising(run, batch_id, done, is_batch_job=request.batch_id is None)
        if request.batch_id is not None and not request.is_complete:
            check_gapless(run, batch_id, done)
        digests = dict(zip(request.state_numbers, request.digests, strict=False))
        sequence = self.record.sequence + 1
        written: list[BatchState] = []
        for state_number, last in done.items():
            if last is not None and last.batch_id == batch_id:
                continue  # has it; the rows for it are passed over
            state = self.states[state_number]
            owned = progress[state_number]
            is_taken_over = owned.query_id != run.query_id
            if is_taken_over:
                check_takeover(job_id, owned, state, run, request.on_new_query)
                was_written = owned.batch_id is not None
                owned = replace(
                    owned,
                    query_id=run.query_id,
                    generation=owned.generation + was_written,
                )
            is_replaced = request.is_complete or (
                is_taken_over and request.on_new_query == REPLACE
            )
            replaced_sequence = sequence if is_replaced else owned.replaced_sequence
            others = [one for one in owned.queries if one.query_id != request.query_id]
            mine = QueryProgress(
                query_id=request.query_id,
                batch_id=batch_id,
                writer_epoch=run.writer_epoch,
                sequence=sequence,
            )
            progress[state_number] = replace(
                owned,
                owner_epoch=run.writer_epoch,
                batch_id=batch_id,
                decided_at_us=decided_at_us,
                queries=remembered_queries((*others, mine), replaced_sequence),
                replaced_sequence=replaced_sequence,
                digest=digests.get(state_number, b""),
            )
            schema = parsed_schema(state.schema)
            written.append(
                BatchState(
                    state_number=state_number,
                    kind=schema.kind.value,
                    has_ttl=schema.has_ttl,
                    generation=owned.generation,
                    is_replaced=is_replaced,
                    digest=digests.get(state_number, b""),
                )
            )
        entry = BatchDecided(
            sequence=sequence,
            query_id=run.query_id,
            writer_epoch=run.writer_epoch,
            batch_id=batch_id,
            assignment_version=(
                request.assignment_version
                if self.assignment is None
                else self.assignment.version
            ),
            decided_at_us=decided_at_us,
            states=tuple(written),
            stages=request.stages if stages is None else stages,
        )
        bound = {*run.state_numbers, *request.state_numbers} & self.states.keys()
        run = replace(run, batch_id=batch_id, state_numbers=tuple(sorted(bound)))
        record = replace(
            self.record,
            sequence=sequence,
            sequence_first=self.record.sequence_first + len(pruned),
            progress=tuple(progress.values()),
        )
        record = _with_run(record, run)
        return JobChange(record=record, entry=entry, pruned=tuple(pruned))

    def drop(self, state_name: str) -> JobChange:
        """
        Return what forgets the state of that name, and what was written to it.

        A query may begin it anew from any checkpoint.

        Raises:
            UnknownStateError: If there is none.
        """
        state = self.state_named(state_name)
        if state is None:
            raise UnknownStateError(self.record.job_id, state_name)
        number = state.state_number
        sequence = self.record.sequence + 1
        record = replace(
            self.record,
            sequence=sequence,
            progress=tuple(
                entry for entry in self.record.progress if entry.state_number != number
            ),
        )
        return JobChange(
            record=record,
            dropped=(number,),
            entry=StateDropped(sequence=sequence, state_number=number),
        )

    def assign(
        self,
        assignment: AssignmentRecord,
        max_parallelism: int,
        *,
        needed: Collection[int] = (),
    ) -> JobChange:
        """
        Return what gives the job another assignment.

        Args:
            assignment: That one.
            max_parallelism: The number of its key groups.
            needed: Versions that are kept however old they are.
        """
        record = replace(self.record, max_parallelism=max_parallelism)
        oldest = assignment.version - ASSIGNMENT_KEPT_COUNT
        forgotten = tuple(
            version
            for version in sorted(self.assignments)
            if version < oldest and version not in needed
        )
        return JobChange(record=record, assignment=assignment, forgotten=forgotten)

    def keep_assignment(self, assignment: AssignmentRecord) -> None:
        """Take a version of the assignment for true; the newest one is the present."""
        self.assignments[assignment.version] = assignment
        if self.assignment is None or assignment.version > self.assignment.version:
            self.assignment = assignment

    def operations(self, change: JobChange) -> list[StoreOperation]:
        """Return what is to be written for *change* to be true."""
        stored = None if self.is_in_one_record else self.record
        return change.operations(stored, self.entries)

    def adopt(self, change: JobChange) -> None:
        """Take *change*, which has been written, for true."""
        assert change.record.sequence >= self.record.sequence
        self.record = change.record
        self.is_in_one_record = False
        for state in change.states:
            self.states[state.state_number] = state
        for number in change.dropped:
            del self.states[number]
        if change.entry is not None:
            self.entries[change.entry.sequence] = change.entry
        if change.assignment is not None:
            self.keep_assignment(change.assignment)
        for version in change.forgotten:
            del self.assignments[version]
        for sequence in change.pruned:
            del self.entries[sequence]
        self.check_invariants()

    def check_invariants(self) -> None:
        """Check what holds between any two changes."""
        record = self.record
        kept = range(record.sequence_first, record.sequence + 1)
        assert sorted(self.entries) == list(kept)
        numbers = [entry.state_number for entry in record.progress]
        assert len(numbers) == len(set(numbers))
        assert set(numbers) == set(self.states)
        names = {state.state_name for state in self.states.values()}
        assert len(names) == len(self.states)
        query_ids = [run.query_id for run in record.runs]
        assert len(query_ids) == len(set(query_ids))

    # -- parts ---------------------------------------------------------------------

    def _query_progress_of(
        self, request: CommitBatch
    ) -> dict[int, QueryProgress | None]:
        """Return how far the query of *request* is, by state."""
        for state_number in request.state_numbers:
            if state_number not in self.states:
                raise UnknownStateError(self.record.job_id, f"number {state_number}")
        return {
            state_number: query_progress(
                self.progress_of(state_number), request.query_id
            )
            for state_number in request.state_numbers
        }


def _with_run(record: JobRecord, run: RunRecord) -> JobRecord:
    """Return *record* with *run* as the one that was active last."""
    newest = record.runs[-1] if record.runs else run
    is_newest = newest.query_id == run.query_id
    run = replace(run, activity=newest.activity + (not is_newest))
    runs, fence = runs_with(record.runs, run, record.progress, fence=record.fence)
    return replace(record, runs=runs, fence=fence)
