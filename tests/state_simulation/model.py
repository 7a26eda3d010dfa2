"""
What must be true: the chain of each job, and what each state holds after each batch.

The model is told what the leader store took, and trusts nothing else.  What a batch
writes it knows from `content`, not from what anybody staged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import Factory, define, evolve, frozen

from queryablestate.wire.records import BatchDecided, SnapshotRestored, StateDropped
from tests.state_simulation.content import after_batch, rows_of


if TYPE_CHECKING:
    from queryablestate.wire.records import Entry
    from tests.state_simulation.content import Contents
    from tests.state_simulation.scenario import StatePlan


__all__ = ["JobModel", "StateModel", "Version"]


@frozen(kw_only=True)
class Version:
    """
    What a state holds once one batch is applied.

    Attributes:
        generation: The ownership.
        batch_id: The batch.
        query_id: Whose.
        sequence: Its place in the chain.
        decided_at_us: When it was decided.
        contents: All rows.
        is_replaced: Whether the batch replaced what was there.
    """

    generation: int
    batch_id: int
    query_id: str
    sequence: int
    decided_at_us: int
    contents: Contents
    is_replaced: bool


@final
@define(kw_only=True, eq=False)
class StateModel:
    """
    One state.

    Attributes:
        plan: What it is.
        number: What names it.
        versions: As of each batch, in the order of the chain.
        acknowledged: How many of them a writer was told are applied everywhere.
        dropped_at: The entry that dropped it, or None.
        is_drop_acknowledged: Whether an operator was told that it is gone.
    """

    plan: StatePlan
    number: int
    versions: list[Version] = Factory(list)
    acknowledged: int = 0
    dropped_at: int | None = None
    is_drop_acknowledged: bool = False

    def has_rows_at(self, sequence: int) -> bool:
        """Return whether it is there, and written, once *sequence* is applied."""
        if self.dropped_at is not None and self.dropped_at <= sequence:
            return False
        return bool(self.versions) and self.versions[0].sequence <= sequence

    def index_of(self, generation: int, batch_id: int) -> int | None:
        """Return which version that is, or None if there is none such."""
        for index in range(len(self.versions) - 1, -1, -1):
            version = self.versions[index]
            if (version.generation, version.batch_id) == (generation, batch_id):
                return index
        return None


@final
class JobModel:
    """
    One job.

    Args:
        seed: Of the run: what batches hold depends on it.

    Attributes:
        chain: The entries that were decided, from the first.
        states: By number, dropped ones too.
        restored: What each state holds to begin with, by name, if it is restored.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sequence_before = 0
        self.restored: dict[str, Version] = {}
        self.chain: list[Entry] = []
        self.states: dict[int, StateModel] = {}

    @property
    def sequence_first(self) -> int:
        """Return the first entry."""
        return self._sequence_before + 1

    @property
    def sequence(self) -> int:
        """Return the last entry."""
        return self._sequence_before + len(self.chain)

    def registered(self, number: int, plan: StatePlan) -> None:
        """Take note of a state."""
        if number not in self.states:
            self.states[number] = StateModel(plan=plan, number=number)

    def decided(self, entry: Entry) -> None:
        """Take note of a new last entry."""
        if not self.chain:
            self._sequence_before = entry.sequence - 1
        self.chain.append(entry)
        match entry:
            case SnapshotRestored(state_numbers=numbers):
                for number in numbers:
                    state = self.states[number]
                    version = self.restored[state.plan.state_name]
                    state.versions.append(evolve(version, sequence=entry.sequence))
            case StateDropped(state_number=number):
                self.states[number].dropped_at = entry.sequence
            case BatchDecided():
                for written in entry.states:
                    state = self.states[written.state_number]
                    before = state.versions[-1].contents if state.versions else {}
                    rows = rows_of(
                        self._seed, entry.query_id, entry.batch_id, state.plan
                    )
                    version = Version(
                        generation=written.generation,
                        batch_id=entry.batch_id,
                        query_id=entry.query_id,
                        sequence=entry.sequence,
                        decided_at_us=entry.decided_at_us,
                        contents=after_batch(
                            before, rows, state.plan, is_replaced=written.is_replaced
                        ),
                        is_replaced=written.is_replaced,
                    )
                    state.versions.append(version)
