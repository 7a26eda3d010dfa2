"""
Whether there is room for more states; pure (rule B3).

It is asked when a run is bound, so what is refused here was never staged.  Room for
jobs is made by `queryablestate.control.unused_jobs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.state import ControlState


__all__ = ["check_room_for_states"]


def check_room_for_states(
    control: ControlState, job: Job, change: JobChange, *, added_count: int
) -> None:
    """
    Return if there is room for the states of *change*.

    Args:
        control: What there is.
        job: Whose states they are.
        change: Names states that are new, or have new columns.
        added_count: How many of them are new.

    Raises:
        ConfigurationError: Which limit would be exceeded.
    """
    limits = control.limits
    if added_count and control.state_count + added_count > limits.state_count_max:
        raise ConfigurationError(
            f"this proxy keeps {control.state_count:,} states, and takes "
            f"{limits.state_count_max:,}: raise its state_count_max, or drop states "
            "that are not in use with 'lodestar drop-state'"
        )
    if not change.states:
        return
    states = {**job.states, **{one.state_number: one for one in change.states}}
    size_bytes = sum(len(state.schema) for state in states.values())
    if size_bytes > limits.schema_size_bytes_max:
        raise ConfigurationError(
            f"the schemas of the {len(states):,} states of job "
            f"{job.record.job_id!r} would take {size_bytes:,} bytes, at most "
            f"{limits.schema_size_bytes_max:,} are taken: keep some of its states in "
            "another job"
        )
