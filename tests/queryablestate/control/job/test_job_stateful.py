"""Any history of runs, batches, owners and drops against a naive model (W1, W4, W5)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nameservice import NameServiceError
from queryablestate.control.assignment.assignment import first_assignment
from queryablestate.control.job.batch_order import Repeated
from queryablestate.control.job.job import Job
from queryablestate.wire.records import BatchDecided, BatchState, JobRecord
from tests.queryablestate.control_plane import APP, LIST, bind, commit
from tests.tiers import machine_settings


QUERIES = st.sampled_from(["q", "r"])
STATES = st.sampled_from(["log", "other"])
MODES = st.sampled_from(["continue", "replace", "refuse"])
BACK = st.sampled_from([0, 1, 2])
AHEAD = st.sampled_from([1, 0, -1, 2])
STATE_SETS = st.sampled_from([["log"], ["log", "other"]])


class DecisionMachine(RuleBasedStateMachine):
    """
    Runs bind and commit in any order, zombies too.

    The model knows the order in which tickets were drawn, which batches each life of a
    state got from whom, and who wrote last; it knows no epoch, generation or owner.
    """

    @initialize()
    def start(self) -> None:
        """Begin with a job that has no state."""
        record = JobRecord(
            job_id=APP,
            job_number=1,
            max_parallelism=2,
            sequence=0,
            sequence_first=1,
            runs=(),
            progress=(),
        )
        self.job = Job(
            record=record,
            assignment=first_assignment(
                {"a": "disk"}, max_parallelism=2, version=1, sequence=0
            ),
        )
        self.ticket = 0
        self.state_number = 0
        self.run_count = 0
        # By query: its runs with their first tickets, in the order of the tickets.
        self.runs: dict[str, list[tuple[str, int]]] = {"q": [], "r": []}
        self.newest: dict[str, tuple[str, int]] = {}
        self.over: set[str] = set()
        self.batch_ids = {"q": 0, "r": 0}
        # By number of a state: the batches that it got, with their queries.
        self.written: dict[int, list[tuple[str, int]]] = {}

    @rule(query_id=QUERIES)
    def draw(self, query_id: str) -> None:
        """A new run draws its first ticket; it may be long until it shows it."""
        self.ticket += 1
        self.run_count += 1
        self.runs[query_id].append((f"run-{self.run_count}", self.ticket))

    @rule(query_id=QUERIES, mode=MODES, state_names=STATE_SETS)
    def start_run(self, query_id: str, mode: str, state_names: list[str]) -> None:
        """A new run draws a ticket and shows it at once, as most do."""
        self.draw(query_id)
        run_id, ticket = self.runs[query_id][-1]
        self.bind(query_id, run_id, ticket, state_names, mode)

    @rule(
        query_id=QUERIES,
        back=BACK,
        state_names=STATE_SETS,
        mode=MODES,
        is_fresh=st.booleans(),
    )
    def show(
        self,
        query_id: str,
        back: int,
        state_names: list[str],
        mode: str,
        is_fresh: bool,
    ) -> None:
        """Some run shows its first ticket, or one that it has drawn just now."""
        runs = self.runs[query_id]
        if back >= len(runs):
            return
        run_id, born = runs[-1 - back]
        ticket = born
        if is_fresh:
            self.ticket += 1
            ticket = self.ticket
        self.bind(query_id, run_id, ticket, state_names, mode, born=born)

    def bind(
        self,
        query_id: str,
        run_id: str,
        ticket: int,
        state_names: list[str],
        mode: str,
        *,
        born: int = 0,
    ) -> None:
        """Bind a run, and see that it may become the newest one."""
        newest = self.newest.get(query_id)
        request = bind(
            ticket,
            query_id=query_id,
            run_id=run_id,
            states=dict.fromkeys(state_names, LIST),
            on_new_query=mode,
            born_epoch=born,
        )
        try:
            change = self.job.bind(request, state_number_next=self.state_number + 1)
        except NameServiceError:
            return
        if newest is not None and newest[0] != run_id:
            assert (born or ticket) > newest[1], "an older run never becomes the newest"
            assert run_id not in self.over, "what is superseded stays so"
            self.over.add(newest[0])
        self.job.adopt(change)
        self.state_number = max(self.state_number, *self.job.states)
        run = self.job.run_of(query_id)
        assert run is not None
        assert run.run_id == run_id
        self.newest[query_id] = (run_id, run.writer_epoch)

    @rule(query_id=QUERIES, ahead=AHEAD, mode=MODES, is_all=st.booleans())
    def decide(self, query_id: str, ahead: int, mode: str, is_all: bool) -> None:
        """The newest run of a query wants a batch decided."""
        if query_id in self.newest:
            self.commit(query_id, *self.newest[query_id], ahead, mode, is_all=is_all)

    @rule(query_id=QUERIES, ahead=AHEAD, mode=MODES)
    def decide_next(self, query_id: str, ahead: int, mode: str) -> None:
        """The same once more: batches are what happens most."""
        self.decide(query_id, ahead, mode, True)

    @rule(query_id=QUERIES, back=BACK, ahead=AHEAD, mode=MODES)
    def decide_as_zombie(self, query_id: str, back: int, ahead: int, mode: str) -> None:
        """Some run does, by the first ticket that it has drawn."""
        runs = self.runs[query_id]
        if back < len(runs):
            self.commit(query_id, *runs[-1 - back], ahead, mode, is_all=True)

    def commit(
        self,
        query_id: str,
        run_id: str,
        ticket: int,
        ahead: int,
        mode: str,
        *,
        is_all: bool,
    ) -> None:
        """Decide a batch, and see that it may be, and for which states."""
        numbers = sorted(self.job.states)[: None if is_all else 1]
        if not numbers:
            return
        batch_id = max(0, self.batch_ids[query_id] + ahead)
        request = commit(
            ticket,
            batch_id,
            query_id=query_id,
            run_id=run_id,
            state_numbers=tuple(numbers),
            on_new_query=mode,
        )
        try:
            decided = self.job.decide(request, decided_at_us=0, pruned=())
        except NameServiceError:
            return
        newest = self.newest[query_id]
        assert newest[0] == run_id, "a run that is not the newest decides nothing"
        if isinstance(decided, Repeated):
            for number in numbers:
                assert (query_id, batch_id) in self.written.get(number, [])
            return
        assert isinstance(decided.entry, BatchDecided)
        assert decided.entry.states
        for state in decided.entry.states:
            self.check_written(state, query_id, batch_id, mode)
        for number in set(numbers) - {s.state_number for s in decided.entry.states}:
            assert (query_id, batch_id) in self.written[number]
        self.batch_ids[query_id] = max(self.batch_ids[query_id], batch_id)
        self.job.adopt(decided)

    def check_written(
        self, state: BatchState, query_id: str, batch_id: int, mode: str
    ) -> None:
        """See that a state may get a batch, and take note that it has it."""
        got = self.written.setdefault(state.state_number, [])
        mine = [batch for query, batch in got if query == query_id]
        assert batch_id > max(mine, default=-1), "no batch twice, and none back"
        if got and got[-1][0] != query_id:
            assert mode != "refuse", "another query's state is taken on demand"
            assert state.is_replaced == (mode == "replace")
        got.append((query_id, batch_id))
        owners = [query for query, _ in got]
        changes = sum(one != other for one, other in pairwise(owners))
        assert state.generation == 1 + changes

    @rule(state_name=STATES)
    def drop(self, state_name: str) -> None:
        """An operator forgets a state; its number is never used again."""
        if self.job.state_named(state_name) is not None:
            self.job.adopt(self.job.drop(state_name))

    @invariant()
    def what_is_stored_is_sound(self) -> None:
        """The job holds together, and says of each state what was written last."""
        if not hasattr(self, "job"):
            return
        self.job.check_invariants()
        for number in self.job.states:
            got = self.written.get(number, [])
            batch_id = self.job.progress_of(number).batch_id
            assert batch_id == (got[-1][1] if got else None)


TestDecisions = pytest.mark.proves("W1", "W4", "W5")(DecisionMachine.TestCase)
TestDecisions.settings = machine_settings()
