from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from election.deadlines import Deadlines


A, B, C = ("session", "a"), ("session", "b"), ("component", "c")


class TestDeadlines:
    def test_nothing_is_due_where_nothing_is_set(self) -> None:
        """Without a deadline there is neither an earliest one nor one that is due."""
        deadlines = Deadlines()
        assert len(deadlines) == 0
        assert deadlines.earliest_ns() is None
        assert deadlines.pop_due(10**18) is None

    def test_due_at_the_very_deadline(self) -> None:
        """A deadline is reached at its time: not one before; after it still once."""
        deadlines = Deadlines()
        deadlines.set(A, 10)
        assert deadlines.earliest_ns() == 10
        assert deadlines.pop_due(9) is None
        assert deadlines.pop_due(10) == A
        assert deadlines.pop_due(11) is None
        assert len(deadlines) == 0

    def test_earliest_first_and_equals_by_key(self) -> None:
        """What is due comes in the order of time, then of keys: the same every time."""
        deadlines = Deadlines()
        deadlines.set(B, 10)
        deadlines.set(A, 10)
        deadlines.set(C, 9)
        assert [deadlines.pop_due(11) for _ in range(4)] == [C, A, B, None]

    def test_moving_later_forgets_the_earlier(self) -> None:
        """A deadline that was moved later is not due before, and is due once."""
        deadlines = Deadlines()
        deadlines.set(A, 10)
        deadlines.set(A, 20)
        assert deadlines.pop_due(19) is None
        assert deadlines.earliest_ns() == 20
        assert [deadlines.pop_due(20), deadlines.pop_due(99)] == [A, None]

    def test_moving_earlier_forgets_the_later(self) -> None:
        """A deadline that was moved earlier is due then, and never again."""
        deadlines = Deadlines()
        deadlines.set(A, 20)
        deadlines.set(A, 10)
        assert [deadlines.pop_due(10), deadlines.pop_due(99)] == [A, None]
        assert deadlines.earliest_ns() is None

    def test_moved_to_and_fro_is_due_once(self) -> None:
        """Entries that have been replaced leave nothing behind."""
        deadlines = Deadlines()
        for deadline_ns in (20, 10, 30, 15, 40):
            deadlines.set(A, deadline_ns)
        assert deadlines.earliest_ns() == 40
        assert [deadlines.pop_due(99), deadlines.pop_due(99)] == [A, None]

    def test_taken_away_is_never_due(self) -> None:
        """None takes a deadline away, and taking away nothing is no error."""
        deadlines = Deadlines()
        deadlines.set(A, 10)
        deadlines.set(A, None)
        deadlines.set(B, None)
        assert len(deadlines) == 0
        assert deadlines.earliest_ns() is None
        assert deadlines.pop_due(99) is None

    def test_set_again_after_it_was_taken_away(self) -> None:
        """What stood before it was taken away has no part in what is set again."""
        deadlines = Deadlines()
        deadlines.set(A, 10)
        deadlines.set(A, None)
        deadlines.set(A, 20)
        assert deadlines.pop_due(19) is None
        assert deadlines.pop_due(20) == A

    def test_heartbeats_do_not_make_it_grow(self) -> None:
        """Moving later is no more than a store: the heap keeps one entry per key."""
        deadlines = Deadlines()
        for deadline_ns in range(1_000):
            deadlines.set(A, deadline_ns)
            deadlines.set(B, deadline_ns)
        assert len(deadlines._heap) == 2
        assert deadlines.earliest_ns() == 999


class DeadlinesMachine(RuleBasedStateMachine):
    """The model is a dict that is searched for its smallest value."""

    keys = st.sampled_from([A, B, C])

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.model: dict[tuple[str, str], int] = {}

    def earliest(self) -> tuple[int, tuple[str, str]] | None:
        """Return what is due first in the model."""
        return min(((at_ns, key) for key, at_ns in self.model.items()), default=None)

    @rule(key=keys, deadline_ns=st.integers(0, 20))
    def set(self, key: tuple[str, str], deadline_ns: int) -> None:
        """A deadline is set, earlier or later than before."""
        self.deadlines.set(key, deadline_ns)
        self.model[key] = deadline_ns

    @rule(key=keys)
    def take_away(self, key: tuple[str, str]) -> None:
        """A deadline is taken away, if there is one."""
        self.deadlines.set(key, None)
        self.model.pop(key, None)

    @precondition(lambda self: bool(self.model))
    @rule(late_ns=st.integers(-1, 1))
    def pop_around_the_deadline(self, late_ns: int) -> None:
        """Time passes to the earliest deadline: one before, to the point, one after."""
        earliest = self.earliest()
        assert earliest is not None
        earliest_ns, key = earliest
        due = self.deadlines.pop_due(earliest_ns + late_ns)
        assert due == (key if late_ns >= 0 else None)
        if due is not None:
            del self.model[due]

    @rule(now_ns=st.integers(0, 20))
    def pop_all(self, now_ns: int) -> None:
        """Everything that is due comes, in the order of time and then of keys."""
        popped = []
        while (key := self.deadlines.pop_due(now_ns)) is not None:
            popped.append(key)
        due = sorted((at_ns, key) for key, at_ns in self.model.items())
        assert popped == [key for at_ns, key in due if at_ns <= now_ns]
        for key in popped:
            del self.model[key]

    @invariant()
    def counts_what_is_set(self) -> None:
        """Only what is set counts, whatever the heap still holds."""
        assert len(self.deadlines) == len(self.model)

    @precondition(lambda self: len(self.model) != 1)  # now and then: asking tidies up
    @invariant()
    def earliest_is_the_smallest(self) -> None:
        """The earliest deadline is the smallest value of the dict."""
        earliest = self.earliest()
        assert self.deadlines.earliest_ns() == (
            None if earliest is None else earliest[0]
        )


TestDeadlinesMachine = DeadlinesMachine.TestCase
