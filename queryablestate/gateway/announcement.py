"""
`Announcement`: a gateway is found as everything else is, by the name service.

Each gateway contends for ``REST_ENDPOINT`` under its URL.  The one that leads is the
address that retrievers are told; the others stand by, and all of them answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice import (
    REST_ENDPOINT,
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    UnreachableError,
    get_logger,
)
from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from election import LeaderSession
    from haservices import HAServices


__all__ = ["Announcement"]

_PAUSE_SECONDS: Final = 1.0


@final
class Announcement:
    """
    Contends from the moment it is made until `close`.

    Args:
        services: The name service; stays its owner's.
        url: How the gateway is reached.
    """

    def __init__(self, services: HAServices, url: str) -> None:
        self._url = url
        self._log = get_logger(component="gateway", component_id=REST_ENDPOINT)
        self._closing = InterruptibleEvent()
        self._election = services.get_leader_election(REST_ENDPOINT)
        self._election.when_closing(self._closing.set)
        self._election.start(self)

    def close(self) -> None:
        """Withdraw it; another gateway is found from then on."""
        self._closing.set()
        self._election.close()

    # -- as a LeaderContender ----------------------------------------------------------

    def grant_leadership(self, session: LeaderSession) -> None:
        """Publish the URL, until it is certain that it is."""
        while not self._closing.is_set():
            try:
                self._election.confirm_leadership(session.leader_session_id, self._url)
            except LeadershipLostError:
                return  # our turn comes again
            except (DidNotHappenError, MayHaveHappenedError, UnreachableError) as error:
                self._log.warning("announcement.unconfirmed", error=str(error))
                self._closing.wait(_PAUSE_SECONDS)
            else:
                self._log.info("announcement.published", url=self._url)
                return

    def revoke_leadership(self) -> None:
        """Do nothing: the gateway answers under any leader."""

    def handle_error(self, error: Exception) -> None:
        """Go on without being found: those who know the URL are answered."""
        self._log.warning("announcement.failed", error=str(error))
