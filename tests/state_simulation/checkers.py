"""
What must hold, whatever happens: each check names its rule.

The checkers see what no process can see, and trust nothing that a core says of itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from attrs import frozen

from queryablestate.wire.records import BatchDecided
from tests.simulation.checkers import ViolationError
from tests.state_simulation.content import rows_of
from tests.state_simulation.model import JobModel
from tests.state_simulation.move_checks import MoveChecker


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queryablestate.wire.records import Entry
    from tests.state_simulation.content import Row
    from tests.state_simulation.disk import Disk
    from tests.state_simulation.model import StateModel
    from tests.state_simulation.scenario import StatePlan


__all__ = ["Asked", "Checker", "RunBooks", "StageBooks", "ViolationError"]


@frozen(kw_only=True)
class StageBooks:
    """
    What one execution of a task has staged, when it was done.

    Attributes:
        query_id: The query.
        writer_epoch: The run.
        batch_id: The batch.
        rows: By state number.
        chunk_counts: By node.
    """

    query_id: str
    writer_epoch: int
    batch_id: int
    rows: dict[int, list[Row]]
    chunk_counts: dict[str, int]


@frozen(kw_only=True)
class RunBooks:
    """What a run that was bound may do."""

    run_id: str
    on_new_query: str
    is_complete: bool


@frozen(kw_only=True)
class Asked:
    """
    What a reader asked.

    Attributes:
        state: Of which state.
        floor: The least version that it may be told, by index.
        was_dropped: Whether the state was known to be gone.
        groups: The key groups that were asked for, sorted.
        least: Of which generation and batch the answer is to be at least, or None.
    """

    state: StateModel
    floor: int
    was_dropped: bool
    groups: tuple[int, ...]
    least: tuple[int, int] | None


@final
class Checker:
    """
    Books over one run.

    Args:
        seed: Of the run.
        is_in_use: Returns whether a data directory is the one that its node has now.

    Attributes:
        counts: How often each rule was checked.
        jobs: What must be true of each job.
        stages: By stage id.
        runs: By query and writer epoch.
        disks: Every data directory that there ever was, by store id.
        moves: Books over assignments and copies.
    """

    def __init__(self, seed: int, is_in_use: Callable[[str], bool]) -> None:
        self._seed = seed
        self.counts: Counter[str] = Counter()
        self.jobs: dict[str, JobModel] = {}
        self.stages: dict[bytes, StageBooks] = {}
        self.runs: dict[tuple[str, int], RunBooks] = {}
        self.disks: dict[str, Disk] = {}
        self.moves = MoveChecker(self, is_in_use)
        self._bound_max: dict[tuple[str, str], int] = {}
        self._runs_of: dict[tuple[str, str], list[str]] = {}
        self._seen: dict[tuple[str, int, int], int] = {}
        self._written: dict[tuple[int, str], int] = {}

    def require(self, rule: str, holds: bool, *what: object) -> None:
        """Raise unless *holds*; only then *what* is made into text."""
        self.counts[rule] += 1
        if not holds:
            text = " ".join(str(part) for part in what)
            raise ViolationError(f"{rule}: {text}")

    def job(self, job_id: str) -> JobModel:
        """Return the books of a job."""
        return self.jobs.setdefault(job_id, JobModel(self._seed))

    # -- what the leader store takes -------------------------------------------------

    def state_registered(self, job_id: str, number: int, plan: StatePlan) -> None:
        """Take note of a state."""
        self.job(job_id).registered(number, plan)

    def entry_decided(
        self, job_id: str, entry: Entry, registered: dict[str, str]
    ) -> None:
        """
        Take note of a new entry of a chain.

        Args:
            job_id: Of which job.
            entry: What was decided.
            registered: The data directory of each node as the control plane has it.
        """
        job = self.job(job_id)
        self.require(
            "W3 a chain has no gaps", entry.sequence == job.sequence + 1, entry
        )
        if isinstance(entry, BatchDecided):
            self._check_run(job_id, entry)
            for written in entry.states:
                self._check_state(job.states[written.state_number], entry)
            expected = {
                written.state_number: rows_of(
                    self._seed,
                    entry.query_id,
                    entry.batch_id,
                    job.states[written.state_number].plan,
                )
                for written in entry.states
            }
            self._check_stages(job, entry, expected)
            self.moves.decided(job_id, entry, expected, registered)
        job.decided(entry)

    def _check_run(self, job_id: str, entry: BatchDecided) -> None:
        bound_max = self._bound_max.get((job_id, entry.query_id), 0)
        self.require(
            "W1 a run that is superseded decides nothing",
            entry.writer_epoch >= bound_max,
            entry,
            "though epoch is bound:",
            bound_max,
        )

    def _check_state(self, state: StateModel, entry: BatchDecided) -> None:
        (written,) = (s for s in entry.states if s.state_number == state.number)
        key = (state.number, entry.query_id)
        self.require(
            "W4 batches of a query rise, and none is decided twice",
            entry.batch_id > self._written.get(key, -1),
            state.plan.state_name,
            entry,
            "after",
            self._written.get(key),
        )
        self._written[key] = entry.batch_id
        self.require(
            "W5 what is dropped is not written", state.dropped_at is None, entry
        )
        run = self.runs.get((entry.query_id, entry.writer_epoch))
        self.require("W1 a run binds before it writes", run is not None, entry)
        assert run is not None
        last = state.versions[-1] if state.versions else None
        is_taken_over = last is not None and last.query_id != entry.query_id
        if is_taken_over:
            self.require(
                "W5 a state is taken over on demand only",
                run.on_new_query in {"replace", "continue"},
                entry,
            )
        generation = (0 if last is None else last.generation) + (
            is_taken_over or last is None
        )
        self.require(
            "W5 a generation is one ownership",
            written.generation == generation,
            entry,
            "where this was due:",
            generation,
        )
        self.require(
            "W6 a state is replaced when that is asked for",
            written.is_replaced
            == (run.is_complete or (is_taken_over and run.on_new_query == "replace")),
            entry,
        )

    def _check_stages(
        self, job: JobModel, entry: BatchDecided, expected: dict[int, Sequence[Row]]
    ) -> None:
        staged: dict[int, list[Row]] = {}
        named: set[bytes] = set()
        for stage in entry.stages:
            original_id = self.moves.collected.get(stage.stage_id)
            if original_id is not None:
                self.require(
                    "S2 what was collected comes after what it was collected of",
                    original_id in named,
                    entry,
                )
                continue
            named.add(stage.stage_id)
            books = self.stages.get(stage.stage_id)
            self.require(
                "W2 what wins was staged for that batch by that run",
                books is not None
                and (books.query_id, books.writer_epoch, books.batch_id)
                == (entry.query_id, entry.writer_epoch, entry.batch_id),
                entry,
                books,
            )
            assert books is not None
            for number, rows in books.rows.items():
                staged.setdefault(number, []).extend(rows)
        for number, rows_due in expected.items():
            got = staged.get(number, [])
            self.require(
                "W3 a decision holds each row of its batch once",
                sorted(got, key=repr) == sorted(rows_due, key=repr),
                job.states[number].plan.state_name,
                entry,
                got,
                "instead of",
                rows_due,
            )

    # -- what writers are told ---------------------------------------------------------

    def run_bound(
        self, job_id: str, query_id: str, writer_epoch: int, books: RunBooks
    ) -> None:
        """Take note that a run was told that it may write."""
        key = (job_id, query_id)
        known = self._runs_of.setdefault(key, [])
        self.require(
            "W1 a run that is superseded stays so",
            books.run_id not in known[:-1],
            books,
            known,
        )
        if books.run_id not in known:
            known.append(books.run_id)
        self.require(
            "W1 no run is bound after a newer one",
            writer_epoch >= self._bound_max.get(key, 0),
            query_id,
            writer_epoch,
            "after",
            self._bound_max.get(key),
        )
        self._bound_max[key] = writer_epoch
        self.runs[query_id, writer_epoch] = books

    def is_superseded(self, job_id: str, query_id: str, run_id: str) -> bool:
        """Return whether another run of the query was bound after that one."""
        return run_id in self._runs_of.get((job_id, query_id), [])[:-1]

    def batch_acknowledged(
        self,
        job_id: str,
        query_id: str,
        batch_id: int,
        state_numbers: tuple[int, ...],
        owners: Mapping[str, Disk | None],
    ) -> None:
        """
        Take note that a writer is told that every owner has applied a batch.

        Args:
            job_id: The job.
            query_id: The query.
            batch_id: The batch.
            state_numbers: What it writes.
            owners: The data directory of each node with an in-sync copy.
        """
        states = self.job(job_id).states
        for number in state_numbers:
            state = states[number]
            found = [
                index
                for index, version in enumerate(state.versions)
                if (version.query_id, version.batch_id) == (query_id, batch_id)
            ]
            self.require(
                "W3 what is acknowledged is decided",
                len(found) == 1,
                query_id,
                batch_id,
                state.plan.state_name,
                found,
            )
            sequence = state.versions[found[0]].sequence
            record = self.moves.present[job_id]
            for disk in owners.values():
                # Who became one after the decision answers only when it has applied it.
                self.require(
                    "W3 what is acknowledged is applied by every owner",
                    (disk is not None and disk.position(job_id) >= sequence)
                    or record.sequence >= sequence,
                    query_id,
                    batch_id,
                    "entry",
                    sequence,
                    disk,
                )
            state.acknowledged = max(state.acknowledged, found[0] + 1)

    def drop_acknowledged(self, job_id: str, state_name: str) -> None:
        """Take note that an operator is told that a state is gone."""
        states = [
            state
            for state in self.job(job_id).states.values()
            if state.plan.state_name == state_name and state.dropped_at is not None
        ]
        self.require("W5 what is said to be dropped is", bool(states), state_name)
        states[-1].is_drop_acknowledged = True

    # -- what readers are told ---------------------------------------------------------

    def asks(
        self,
        state: StateModel,
        *,
        groups: tuple[int, ...],
        least: tuple[int, int] | None,
    ) -> Asked:
        """Take note of a question, at the moment that it is asked."""
        return Asked(
            state=state,
            floor=state.acknowledged - 1,
            was_dropped=state.is_drop_acknowledged,
            groups=groups,
            least=least,
        )

    def told(
        self,
        reader: str,
        asked: Asked,
        *,
        generation: int,
        batch_id: int | None,
        found: dict[bytes, tuple[bytes, ...] | None],
        count: int | None,
    ) -> None:
        """
        Take note of an answer.

        Args:
            reader: Who is told.
            asked: What it asked.
            generation: As of which ownership.
            batch_id: As of which batch.
            found: What it is told, by storage key (with map key).
            count: If that is all that the node's key groups hold: how many rows (of
                lists, how many lists); else None.
        """
        state = asked.state
        name = (reader, state.plan.state_name, state.number)
        self.require("Q1 what is gone is not answered", not asked.was_dropped, name)
        index = None if batch_id is None else state.index_of(generation, batch_id)
        self.require(
            "Q1 an answer is as of a decided batch",
            index is not None,
            name,
            generation,
            batch_id,
        )
        assert index is not None
        assert batch_id is not None
        version = state.versions[index]
        self.require(
            "Q1 an answer is not older than what was acknowledged before",
            index >= asked.floor,
            name,
            version,
            "though",
            state.versions[asked.floor],
        )
        self.require(
            "Q2 an answer is as new as was asked for",
            asked.least is None or (generation, batch_id) >= asked.least,
            name,
            (generation, batch_id),
            "instead of",
            asked.least,
        )
        for key, values in found.items():
            expected = version.contents.get(key)
            self.require(
                "Q1 an answer holds what its batch left, whole and once",
                values == expected,
                name,
                key,
                values,
                "as of",
                version,
            )
        if count is not None:
            whole = {
                key: values
                for key, values in version.contents.items()
                if int.from_bytes(key[:2], "big") in asked.groups
            }
            self.require(
                "Q1 a scan misses nothing",
                count == len(whole),
                name,
                found,
                "instead of",
                whole,
            )
        for key_group in asked.groups:
            seen = (reader, state.number, key_group)
            self.require(
                "Q1 no reader goes back within a key group",
                index >= self._seen.get(seen, -1),
                name,
                version,
                "after",
                self._seen.get(seen),
            )
            self._seen[seen] = index
