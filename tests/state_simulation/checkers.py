"""
What must hold, whatever happens: each check names its rule.

The checkers see what no process can see, and trust nothing that a core says of itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import frozen

from queryablestate.client.floors import PRESENT
from queryablestate.schema.key_groups import GROUP_SIZE_BYTES, group_of
from queryablestate.wire.records import BatchDecided, SnapshotRestored
from tests.simulation.checkers import ViolationError
from tests.state_simulation.content import (
    count_of,
    live_at,
    moments,
    rows_of,
    winners,
)
from tests.state_simulation.model import JobModel
from tests.state_simulation.move_checks import MoveChecker


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queryablestate.wire.clients import StateDescription
    from queryablestate.wire.questions import Reading
    from queryablestate.wire.records import Entry
    from queryablestate.writer.batches import WriteOrigin
    from tests.state_simulation.content import Contents, Row
    from tests.state_simulation.disk import Disk
    from tests.state_simulation.model import StateModel
    from tests.state_simulation.scenario import StatePlan


__all__ = [
    "Asked",
    "Checker",
    "Found",
    "Page",
    "RunBooks",
    "StageBooks",
    "ViolationError",
]

_US_PER_MS: Final = 1_000
_CACHED_SLACK_US: Final = 1_000 * _US_PER_MS
"""An answer that is kept is told as older by as long as it took, never as younger."""

Found: TypeAlias = "dict[bytes | tuple[bytes, ...], tuple[bytes, ...] | bool | None]"
"""What is told of a storage key (with map key), or whether any of several is there."""


@frozen
class Page:
    """
    What is told of all rows of some key groups.

    Attributes:
        rows: Encoded keys and rows, in their order.
        start: The first encoded key that was asked for.
        end: Where the page ends, or None for the end of all rows.
    """

    rows: list[tuple[bytes, bytes]]
    start: bytes
    end: bytes | None

    def part_of(self, whole: Contents) -> list[tuple[bytes, bytes]]:
        """Return the rows that a page of *whole* has there."""
        rows = [
            (key[GROUP_SIZE_BYTES:], value)
            for key, values in whole.items()
            for value in values
        ]
        return sorted(
            (key, value)
            for key, value in rows
            if self.start <= key and (self.end is None or key < self.end)
        )


@frozen
class _Told:
    """What an answer says: of keys and lists, of all rows, or of their number."""

    found: Found | None
    items_from: int
    page: Page | None
    count: int | None

    def is_of(self, whole: Contents, kind: str) -> bool:
        """Return whether it says what *whole* is."""
        return (
            (self.found is None or self._is_found_in(self.found, whole))
            and (self.page is None or self.page.rows == self.page.part_of(whole))
            and (self.count is None or self.count == count_of(whole, kind))
        )

    def _is_found_in(self, found: Found, whole: Contents) -> bool:
        for key, values in found.items():
            expected: tuple[bytes, ...] | bool | None
            if isinstance(key, tuple):
                expected = not whole.keys().isdisjoint(key)
            else:
                expected = whole.get(key)
                expected = None if expected is None else expected[self.items_from :]
            if values != expected:
                return False
        return True


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
    is_for_now: bool


@frozen(kw_only=True)
class Asked:
    """
    What is known when a reader asks.

    Attributes:
        job_id: Of which job.
        state_name: Of which state.
        floors: The least version of each state of that name that it may be told.
        dropped: Those states of that name that are known to be gone.
        newest: The number of the present one, or None.
        least: Of which generation and batch of that one the answer is to be at least.
        has_rows: Whether a batch of that one is decided.
    """

    job_id: str
    state_name: str
    floors: Mapping[int, int]
    dropped: frozenset[int]
    newest: int | None
    least: tuple[int, int] | None
    has_rows: bool

    @property
    def is_acknowledged(self) -> bool:
        """Return whether a writer was told that a batch of it is there."""
        return self.newest is not None and self.floors[self.newest] >= 0


@final
class Checker:
    """
    Books over one run.

    Args:
        seed: Of the run.
        is_in_use: Returns whether a data directory is the one that its node has now.
        has_come_back: Returns whether the control plane has heard of the present
            process of a node.
        now_us: Returns what the wall clocks show.

    Attributes:
        counts: How often each rule was checked.
        jobs: What must be true of each job.
        stages: By stage id.
        runs: By query and writer epoch.
        disks: Every data directory that there ever was, by store id.
        moves: Books over assignments and copies.
    """

    def __init__(
        self,
        seed: int,
        is_in_use: Callable[[str], bool],
        has_come_back: Callable[[str], bool],
        now_us: Callable[[], int],
    ) -> None:
        self._seed = seed
        self.counts: Counter[str] = Counter()
        self.jobs: dict[str, JobModel] = {}
        self.stages: dict[bytes, StageBooks] = {}
        self.runs: dict[tuple[str, int], RunBooks] = {}
        self.disks: dict[str, Disk] = {}
        self.moves = MoveChecker(self, is_in_use, has_come_back, now_us)
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
        self,
        job_id: str,
        entry: Entry,
        registered: dict[str, str],
        *,
        began_us: int,
    ) -> None:
        """
        Take note of a new entry of a chain.

        Args:
            job_id: Of which job.
            entry: What was decided.
            registered: The data directory of each node as the control plane has it.
            began_us: When the leader began to write it.
        """
        job = self.job(job_id)
        self.require(
            "W3 a chain has no gaps",
            entry.sequence == job.sequence + 1
            or (isinstance(entry, SnapshotRestored) and not job.chain),
            entry,
        )
        if isinstance(entry, BatchDecided):
            self._check_run(job_id, entry)
            self.require(
                "Q2 a decision says when it was made",
                abs(entry.decided_at_us - began_us) <= 1,
                entry,
                "though it was made at",
                began_us,
            )
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
            brought = {
                number: winners(rows, job.states[number].plan)
                for number, rows in expected.items()
            }
            self.moves.decided(job_id, entry, brought, registered)
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
        books = self.runs.get((entry.query_id, entry.writer_epoch))
        if books is not None:  # one that bound for now is the newest from here on
            self._newest_run(job_id, entry.query_id, entry.writer_epoch, books)

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
            == (run.is_complete or (is_taken_over and run.on_new_query == "replace"))
            # Nothing is replaced of a state that another query has only declared.
            or (last is None and run.on_new_query == "replace"),
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
        self.runs[query_id, writer_epoch] = books
        if not books.is_for_now:
            self._newest_run(job_id, query_id, writer_epoch, books)

    def _newest_run(
        self, job_id: str, query_id: str, writer_epoch: int, books: RunBooks
    ) -> None:
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

    def has_decided_after(self, job_id: str, query_id: str, batch_id: int) -> bool:
        """Return whether a later batch of the query was decided for some state."""
        return any(
            self._written.get((number, query_id), -1) > batch_id
            for number in self.job(job_id).states
        )

    def is_newest(self, job_id: str, origin: WriteOrigin, batch_id: int) -> bool:
        """Return whether one of the states was written last by that batch."""
        states = self.job(job_id).states
        newest = [
            states[number].versions[-1]
            for number in origin.state_numbers
            if states[number].versions
        ]
        return any(
            (one.query_id, one.batch_id) == (origin.query_id, batch_id)
            for one in newest
        )

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
            for node_id, disk in owners.items():
                # Who became one after the decision answers only when it has applied it.
                self.require(
                    "W3 what is acknowledged is applied by every owner",
                    (disk is not None and disk.position(job_id) >= sequence)
                    or self.moves.had_applied(node_id, disk, job_id, sequence)
                    or record.sequence >= sequence,
                    query_id,
                    batch_id,
                    "entry",
                    sequence,
                    disk,
                )
            state.acknowledged = max(state.acknowledged, found[0] + 1)

    def drop_acknowledged(self, job_id: str, state_name: str, asked_at: int) -> None:
        """
        Expect no more answers from a state: an operator was told that it is gone.

        Args:
            job_id: Of which job.
            state_name: Its name, which another one may have had since.
            asked_at: The newest entry when the operator asked.
        """
        states = [
            state
            for state in self.job(job_id).states.values()
            if state.plan.state_name == state_name and state.dropped_at is not None
        ]
        self.require("W5 what is said to be dropped is", bool(states), state_name)
        since = [one for one in states if (one.dropped_at or 0) > asked_at]
        (since or states[-1:])[0].is_drop_acknowledged = True

    # -- what readers are told ---------------------------------------------------------

    def newest_state(self, job_id: str, state_name: str) -> StateModel | None:
        """Return the state that is called so now, or None."""
        for state in reversed(self.job(job_id).states.values()):
            if state.plan.state_name == state_name:
                return None if state.dropped_at is not None else state
        return None

    def asks(
        self, job_id: str, state_name: str, least: tuple[int, int] | None
    ) -> Asked:
        """Take note of a question, at the moment that it is asked."""
        states = self.job(job_id).states.values()
        named = [state for state in states if state.plan.state_name == state_name]
        newest = self.newest_state(job_id, state_name)
        if least is not None and least[0] == PRESENT:
            # The leader says which one is the present one: it may know more than this.
            assert newest is not None
            known = newest.versions[: newest.acknowledged]
            least = (known[-1].generation, least[1]) if known else None
        return Asked(
            job_id=job_id,
            state_name=state_name,
            floors={state.number: state.acknowledged - 1 for state in named},
            dropped=frozenset(s.number for s in named if s.is_drop_acknowledged),
            newest=None if newest is None else newest.number,
            least=least,
            has_rows=newest is not None and bool(newest.versions),
        )

    def told(
        self,
        reader: str,
        asked: Asked,
        state_number: int,
        reading: Reading,
        *,
        sent_us: int,
        now_us: int,
        groups: tuple[int, ...],
        found: Found | None = None,
        items_from: int = 0,
        page: Page | None = None,
        count: int | None = None,
    ) -> None:
        """
        Take note of an answer.

        Args:
            reader: Who is told.
            asked: What was known when it asked.
            state_number: Of which state.
            reading: As of what.
            sent_us: When it was asked.
            now_us: The time.
            groups: The key groups that were asked for, sorted.
            found: What it is told of keys.
            items_from: Where the items of lists begin, as a slice means it.
            page: What it is told of all rows.
            count: How many keys there are.
        """
        state = self.job(asked.job_id).states[state_number]
        name = (reader, state.plan.state_name, state_number)
        generation, batch_id = reading.generation, reading.batch_id
        self.require(
            "Q1 what is gone is not answered", state_number not in asked.dropped, name
        )
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
        floor = asked.floors.get(state_number, -1)
        self.require(
            "Q1 an answer is not older than what was acknowledged before",
            index >= floor,
            name,
            version,
            "though",
            floor,
        )
        self.require(
            "Q2 an answer is as new as was asked for",
            asked.least is None
            or state_number != asked.newest
            or (generation, batch_id) >= asked.least,
            name,
            (generation, batch_id),
            "instead of",
            asked.least,
        )
        age_us = reading.age_ms * _US_PER_MS
        slack_us = _CACHED_SLACK_US if reading.is_cached else 0
        rounded_us = (1 + reading.is_cached) * _US_PER_MS  # down, by each who tells it
        self.require(
            "Q2 an age is that of the batch when it was read",
            sent_us - rounded_us <= version.decided_at_us + age_us <= now_us + slack_us,
            name,
            reading,
            version.decided_at_us,
            "asked at",
            sent_us,
            "told at",
            now_us,
        )
        whole = {
            key: values
            for key, values in version.contents.items()
            if group_of(key) in groups
        }
        told = _Told(found, items_from, page, count)
        # It was read at one moment: no row that had expired by then is in it, and every
        # other one is.
        possible = [
            live_at(whole, state.plan, at_us)
            for at_us in moments(whole, state.plan, sent_us, now_us)
        ]
        self.require(
            "Q1 an answer holds what its batch left, whole and once",
            any(told.is_of(live, state.plan.kind) for live in possible),
            name,
            told,
            "instead of",
            possible,
        )
        self.counts["W6 what has expired is absent, and nothing else"] += (
            state.plan.has_ttl
        )
        for key_group in groups:
            seen = (reader, state_number, key_group)
            self.require(
                "Q1 no client goes back within a key group",
                index >= self._seen.get(seen, -1),
                name,
                version,
                "after",
                self._seen.get(seen),
            )
            self._seen[seen] = index

    def read(
        self, job_id: str, state_number: int, reading: Reading, *, now_us: int
    ) -> None:
        """Take note of how old a node says that its batch is."""
        self._check_age(
            "Q2 a node tells the age of its batch",
            self.job(job_id).states[state_number],
            (reading.generation, reading.batch_id, reading.age_ms),
            now_us,
        )

    def described(self, described: StateDescription, *, now_us: int) -> None:
        """Take note of how old the control plane says that the last batch is."""
        self._check_age(
            "Q2 a description tells the age of the last batch",
            self.job(described.job_id).states[described.state_number],
            (described.generation, described.batch_id, described.age_ms),
            now_us,
        )

    def _check_age(
        self,
        rule: str,
        state: StateModel,
        told: tuple[int, int | None, int | None],
        now_us: int,
    ) -> None:
        generation, batch_id, age_ms = told
        if batch_id is None:
            return
        index = state.index_of(generation, batch_id)
        decided_at_us = -1 if index is None else state.versions[index].decided_at_us
        self.require(
            rule,
            age_ms == max(0, now_us - decided_at_us) // _US_PER_MS,
            state.plan.state_name,
            told,
            "at",
            now_us,
            "of a batch of",
            decided_at_us,
        )
