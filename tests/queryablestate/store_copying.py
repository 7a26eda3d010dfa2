"""Copies from one store to another, as nodes make them, and what is in them then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from queryablestate.store.holdings import Held
from queryablestate.store.layout import (
    batch_prefix,
    decode_staged_batch,
    kept_prefix,
)
from queryablestate.store.marks import job_states, records
from queryablestate.store.store import StateStore
from queryablestate.wire.job_assignment import JoiningGroup
from tests.queryablestate.store_batches import JOB


Rows = list[tuple[bytes, bytes]]


def joining(groups: Mapping[int, int]) -> list[JoiningGroup]:
    """Return key groups that are to be copied, and since when."""
    return [
        JoiningGroup(key_group=group, since=since) for group, since in groups.items()
    ]


def hold(
    store: StateStore,
    key_groups: Iterable[int],
    told: Sequence[JoiningGroup],
    *,
    job_id: str = JOB,
) -> Held:
    """Hold these key groups, and remove what is not held any more."""
    held = store.hold(job_id, key_groups, told)
    while not store.remove_unheld(job_id):
        pass
    return held


def fetched(
    source: StateStore,
    target: StateStore,
    key_groups: Iterable[int],
    *,
    job_id: str = JOB,
    size_bytes: int = 1 << 20,
) -> int:
    """Put all rows of these key groups, and return the entry that they are at."""
    with source.copy_reader(job_id, key_groups) as reader:
        for page in reader.pages(size_bytes):
            target.put_copied(job_id, reader.states, page)
        return reader.sequence


def finished(
    target: StateStore, key_groups: Sequence[int], sequence: int, *, job_id: str = JOB
) -> tuple[int, ...]:
    """Apply all that was kept, and return which copies are complete."""
    while (done := target.finish_copy(job_id, key_groups, sequence)) is None:
        pass
    return done


def copied(
    source: StateStore,
    target: StateStore,
    key_groups: Sequence[int],
    *,
    job_id: str = JOB,
) -> tuple[int, ...]:
    """Fetch and finish, and return which copies are complete."""
    sequence = fetched(source, target, key_groups, job_id=job_id)
    return finished(target, key_groups, sequence, job_id=job_id)


def kept_sequences(store: StateStore, job_id: str = JOB) -> list[int]:
    """Return which entries are kept, and for which staged batches are."""
    environment = store._environment
    prefix = kept_prefix(job_id)
    with environment.reading() as transaction:
        kept = [
            int.from_bytes(row_key[len(prefix) :], "big")
            for row_key, _ in records(transaction, environment.meta, prefix)
        ]
        staged = []
        cursor = transaction.cursor(environment.staged)
        for row_key, stored in cursor.iternext():
            if len(row_key) == len(batch_prefix(job_id, 0, 0)):
                staged.append(decode_staged_batch(stored).kept_sequence)
    return sorted({*kept, *staged} - {0})


def state_numbers(store: StateStore, job_id: str = JOB) -> list[int]:
    """Return the states that there is a mark of, also those that are not shown."""
    environment = store._environment
    with environment.reading() as transaction:
        return list(job_states(transaction, environment.meta, job_id))


def rows_by_group(
    store: StateStore, job_id: str, key_groups: Iterable[int]
) -> dict[int, dict[int, Rows]]:
    """Return the rows as they lie on disk, by state and key group; none if empty."""
    environment = store._environment
    found: dict[int, dict[int, Rows]] = {}
    wanted = set(key_groups)
    with environment.reading() as transaction:
        for number, mark in job_states(transaction, environment.meta, job_id).items():
            for row_key, value in transaction.cursor(environment.slots[mark.slot]):
                group = int.from_bytes(row_key[:2], "big")
                if group in wanted:
                    groups = found.setdefault(number, {})
                    groups.setdefault(group, []).append((row_key, value))
    return found
