"""`LeadershipControl`: decide who leads and what goes wrong, embedded."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, final

from election.events import (
    ContenderPreferred,
    RevokeRequested,
    SessionExpireRequested,
)
from haservices.client_services import ClientHAServices
from haservices.config import Backend
from haservices.embedded import link_of
from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    NoLeaderError,
    UnknownContenderError,
    check_component_id,
)
from nameservice.fields import check_identifier


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices.embedded_hub import EmbeddedHub, EmbeddedLink
    from haservices.interface import HAServices


__all__ = ["LeadershipControl"]

_TIMEOUT_SECONDS = 10.0


@final
class LeadershipControl:
    """
    Leadership under a test's control, for services of an ``embedded:`` URL.

    Every method returns when the name service has taken note; what follows from it
    reaches contenders and listeners on their own threads, soon after.

    Args:
        ha: Any services of the name service to be controlled.

    Raises:
        ConfigurationError: If *ha* is not on the embedded backend: there, use
            ``ha.operations`` and a `TCPProxy` instead.
        LocalProtocolError: If *ha* is closed; later, too, if all services are.
    """

    def __init__(self, ha: HAServices) -> None:
        self._hub: EmbeddedHub = _link(ha).hub
        self._cluster_id = ha.config.cluster_id

    def grant(self, job_id: str, contender_id: str) -> None:
        """
        Make *contender_id* lead *job_id* next; the present leader is revoked.

        Args:
            job_id: What to lead.
            contender_id: One of ``ha.operations.contenders(job_id)``.

        Raises:
            UnknownContenderError: If it does not contend for *job_id*.
        """
        component_id = self._component_id(job_id)
        contender_id = check_identifier(contender_id, what="a contender id")

        def grant() -> None:
            component = self._hub.component(component_id)
            if component is None or contender_id not in component.contenders:
                raise UnknownContenderError(job_id, contender_id)
            self._hub.inject(
                ContenderPreferred(component_id=component_id, contender_id=contender_id)
            )

        self._do(grant)

    def revoke(self, job_id: str) -> None:
        """
        Revoke the present leader of *job_id*; it queues last.

        Raises:
            NoLeaderError: If none has been granted it; the job id may be misspelt.
        """
        component_id = self._component_id(job_id)

        def revoke() -> None:
            component = self._hub.component(component_id)
            if component is None or component.leadership is None:
                raise NoLeaderError(job_id, 0.0)
            self._hub.inject(RevokeRequested(component_id=component_id))

        self._do(revoke)

    def expire(self, ha: HAServices) -> None:
        """
        End the session of *ha*, as if it had been silent for its timeout.

        Raises:
            LocalProtocolError: If *ha* has no session at the moment.
        """
        session_id = _services(ha).session_id
        if session_id is None:
            message = "these services have no session at the moment"
            raise LocalProtocolError(message)
        self._do(
            lambda: self._hub.inject(SessionExpireRequested(session_id=session_id))
        )

    def cut(self, ha: HAServices) -> None:
        """Lose everything that *ha* and the name service send each other."""
        self._do(_link(ha).cut)

    def heal(self, ha: HAServices) -> None:
        """Undo `cut`."""
        self._do(_link(ha).heal)

    def pause(self, ha: HAServices) -> None:
        """
        Stop *ha* as SIGSTOP would stop its process; belief runs out all the same.

        Closing *ha* resumes it first: it leaves as a process does that is continued.
        """
        self._do(_link(ha).pause)

    def resume(self, ha: HAServices) -> None:
        """Undo `pause`."""
        self._do(_link(ha).resume)

    def _component_id(self, job_id: str) -> str:
        return f"{self._cluster_id}/{check_component_id(job_id, what='a job id')}"

    def _do(self, action: Callable[[], None]) -> None:
        """Run *action* on the hub's thread, and wait for it."""
        if not self._hub.is_running:
            message = "all services of this name are closed: there is no contender"
            raise LocalProtocolError(message)
        done: Future[None] = Future()

        def act() -> None:
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                done.set_exception(error)
            else:
                done.set_result(None)

        self._hub.post(act)
        done.result(_TIMEOUT_SECONDS)


def _services(ha: HAServices) -> ClientHAServices:
    if ha.config.backend is not Backend.EMBEDDED or not isinstance(
        ha, ClientHAServices
    ):
        message = (
            f"leadership control needs an 'embedded:' URL, not {ha.config.url!r}: use "
            "ha.operations there, and a TCPProxy for connections"
        )
        raise ConfigurationError(message)
    return ha


def _link(ha: HAServices) -> EmbeddedLink:
    return link_of(_services(ha))
