"""The databases of rows: given to states, emptied, and taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice import StorageError
from queryablestate.store.layout import SLOT_COUNT_MAX, StateMark
from queryablestate.store.marks import drop_state_mark, state_marks


if TYPE_CHECKING:
    from lmdb import Transaction

    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.layout import Runs


__all__ = ["drop_state", "new_mark", "open_slots"]


def open_slots(environment: StoreEnvironment, state_count: int) -> None:
    """
    See to it that this many states find a slot: the lowest ones are taken.

    Raises:
        StorageError: If these are more than a store may hold.
    """
    if state_count > SLOT_COUNT_MAX:
        raise StorageError(
            f"a node keeps at most {SLOT_COUNT_MAX:,} states, this would be "
            f"{state_count:,}: drop states that are not in use"
        )
    environment.open_slots(state_count)


def new_mark(
    transaction: Transaction[bytes],
    environment: StoreEnvironment,
    job_id: str,
    *,
    lost: Runs = (),
) -> StateMark:
    """Return the mark of a state that nothing was applied to, in a free slot."""
    marks = state_marks(transaction, environment.meta).values()
    taken = {mark.slot for mark in marks}
    return StateMark(
        job_id=job_id,
        slot=next(slot for slot in range(SLOT_COUNT_MAX) if slot not in taken),
        kind="",
        has_ttl=False,
        generation=0,
        batch_id=None,
        decided_at_us=0,
        lost=lost,
    )


def drop_state(
    transaction: Transaction[bytes], environment: StoreEnvironment, state_number: int
) -> None:
    """Forget a state and its rows, if there is one."""
    mark = drop_state_mark(transaction, environment.meta, state_number)
    if mark is not None:
        # Emptied, not deleted: see `queryablestate.store.layout`.
        transaction.drop(environment.slots[mark.slot], delete=False)
