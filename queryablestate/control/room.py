"""
Whether there is room for more states, and for their key groups; pure (rule B3).

It is asked when a run is bound, a ticket drawn for a job without state, or a restore
begun, so what is refused here was never staged.  Room for
jobs is made by `queryablestate.control.unused_jobs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Collection

    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.state import ControlState
    from queryablestate.wire.records import StateRecord


__all__ = ["check_room_for_key_groups", "check_room_for_states", "check_schemas"]


def check_room_for_key_groups(
    control: ControlState, job_id: str, max_parallelism: int
) -> None:
    """
    Return if there is room for the key groups of a job that has no state.

    Args:
        control: What there is.
        job_id: The job; what it has by now counts for nothing.
        max_parallelism: How many key groups it is to have.

    Raises:
        ConfigurationError: If there would be too many.
    """
    limits = control.limits
    others = [
        len(job.assignment.owners)
        for job in control.jobs.values()
        if job.assignment is not None and job.record.job_id != job_id
    ]
    count = sum(map(limits.told_count, [*others, max_parallelism]))
    if count > limits.key_group_count_max:
        raise ConfigurationError(
            f"the key groups of {len(others) + 1:,} jobs, {max_parallelism:,} of "
            f"{job_id!r} among them, would take {count:,} places in what a node is "
            f"told, at most {limits.key_group_count_max:,} are taken: give jobs a "
            "smaller max_parallelism, or forget jobs that are not in use with "
            "'lodestar forget-job'"
        )


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
    check_schemas(control, job.record.job_id, states.values())


def check_schemas(
    control: ControlState, job_id: str, states: Collection[StateRecord]
) -> None:
    """
    Return if a job may have all of these states: nodes are told their schemas at once.

    Raises:
        ConfigurationError: If the schemas would be too long.
    """
    limits = control.limits
    size_bytes = sum(len(state.schema) for state in states)
    if size_bytes > limits.schema_size_bytes_max:
        raise ConfigurationError(
            f"the schemas of the {len(states):,} states of job "
            f"{job_id!r} would take {size_bytes:,} bytes, at most "
            f"{limits.schema_size_bytes_max:,} are taken: keep some of its states in "
            "another job"
        )
