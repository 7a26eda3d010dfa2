"""
How a driver that was granted leadership follows the one before it.

A driver that has lost its leadership stays among the contenders until its queries have
stopped.  Its successor, which knows it by the record in the leader store, waits for it
to go before it starts a query (`DriverSettings.hand_over_seconds` at the most): no
batch is then begun by one driver and repeated by the next.  A driver that was killed
has gone with its connection.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar, final

from haservices.config import Backend
from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    NameServiceError,
    UnreachableError,
    get_logger,
)
from sparkpipeline.standby.record import (
    DRIVER,
    DriverRecord,
    check_record,
    read_record,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import LeaderElection
    from haservices import HAServices
    from sparkpipeline.standby.leadership import StandbyLeadership
    from sparkpipeline.standby.settings import DriverSettings


__all__ = ["Takeover"]

T = TypeVar("T")

_POLL_SECONDS: Final = 0.05
# On ZooKeeper a contender whose leadership is over leaves the queue before it queues
# again.  One that is away for longer than this has gone.
_QUEUING_SECONDS: Final = 0.5


@final
class Takeover:
    """
    What one driver has to do with the others of its job.

    Args:
        ha: The name service.
        settings: Of the driver.
    """

    def __init__(self, ha: HAServices, settings: DriverSettings) -> None:
        self._settings = settings
        self._store = ha.get_leader_store(settings.job_id)
        self._queuing_seconds = (
            _QUEUING_SECONDS if ha.config.backend is Backend.ZOOKEEPER else 0.0
        )
        self._log = get_logger(component="standby", component_id=settings.job_id)

    def check_version(self) -> DriverRecord | None:
        """
        Return who led last, or None; see that we may follow.

        Raises:
            ConfigurationError: If it runs another application, or another version of
                ours that was not admitted.
        """
        record = read_record(self._store)
        check_record(
            record,
            job_id=self._settings.job_id,
            application=self._settings.application_name,
            version=self._settings.version,
            is_other_version_admitted=self._settings.is_other_version_admitted,
        )
        return record

    def complete(self, leadership: StandbyLeadership, election: LeaderElection) -> bool:
        """
        Wait for the driver before us, and record that we follow it.

        Returns:
            Whether we still lead then.

        Raises:
            ConfigurationError: As `check_version`.
        """
        try:
            record = _answer(self.check_version, leadership)
            contender_id = self._wait_for_predecessor(
                leadership, election, None if record is None else record.contender_id
            )
        except LeadershipLostError:
            return False
        if leadership.lost.is_set():
            return False
        mine = DriverRecord(
            application=self._settings.application_name,
            version=self._settings.version,
            contender_id=contender_id,
            epoch=leadership.epoch,
        )
        try:
            self._store.put(DRIVER, mine.to_bytes(), session=leadership.session)
        except NameServiceError as error:
            # Without it a successor does not wait for us, and repeats a batch at worst.
            self._log.warning("standby.unrecorded", error=str(error))
        return not leadership.lost.is_set()

    def _wait_for_predecessor(
        self,
        leadership: StandbyLeadership,
        election: LeaderElection,
        predecessor: str | None,
    ) -> str | None:
        """
        Return, as which we contend, when *predecessor* has gone.

        Earlier if the leadership is over, or if that has taken too long.
        """
        began_seconds = seen_seconds = time.monotonic()
        while True:
            contenders = _answer(election.contenders, leadership)
            own = next((one.contender_id for one in contenders if one.is_leader), None)
            now_seconds = time.monotonic()
            if predecessor is None or predecessor == own:
                break
            if any(one.contender_id == predecessor for one in contenders):
                seen_seconds = now_seconds
            elif now_seconds - seen_seconds >= self._queuing_seconds:
                break
            if now_seconds - began_seconds >= self._settings.hand_over_seconds:
                self._log.warning("standby.waited_in_vain", epoch=leadership.epoch)
                break
            if leadership.lost.wait(_POLL_SECONDS):
                break
        return own


def _answer(ask: Callable[[], T], leadership: StandbyLeadership) -> T:
    """
    Return what *ask* returns, once the name service answers.

    It may be out of reach for a moment while we lead, which is no failure of ours.

    Raises:
        LeadershipLostError: If the leadership is over before that.
    """
    while not leadership.lost.is_set():
        try:
            return ask()
        except (DidNotHappenError, MayHaveHappenedError, UnreachableError):
            leadership.lost.wait(_POLL_SECONDS)
    raise LeadershipLostError(leadership.job_id, leadership.epoch)
