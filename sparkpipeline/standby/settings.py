"""What a driver of `run_with_standby` was given, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from attrs import frozen


__all__ = ["DriverSettings"]


@final
@frozen(kw_only=True)
class DriverSettings:
    """
    What `run_with_standby` was given, checked.

    Attributes:
        job_id: What the drivers contend for.
        address: Where this driver is found while it leads.
        application_name: Of the application; Spark's.
        version: Of its code.
        is_other_version_admitted: Whether it may follow a driver of another version.
        warm_up_seconds: How long warming up may take.
        stop_seconds: How long the queries may take to stop.
        hand_over_seconds: How long to wait for the driver before us.
        checked_locations: Checkpoint locations that were found to be good.
    """

    job_id: str
    address: str
    application_name: str
    version: str
    is_other_version_admitted: bool
    warm_up_seconds: float
    stop_seconds: float
    hand_over_seconds: float
    checked_locations: Sequence[str]
