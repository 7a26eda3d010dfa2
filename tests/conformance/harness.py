"""What a test of the conformance suite is given: a cluster of its own, and faults."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, final

from tests.opening import open_patiently
from tests.recording import wait_until


if TYPE_CHECKING:
    from types import TracebackType

    from haservices import Guarantee, HAConfig, HAServices
    from tests.conformance.backends import Backend, Line
    from tests.conformance.candidates import Candidate


QUICK: Final[dict[str, Any]] = {"session_timeout_seconds": 1.0, "lease_seconds": 0.2}
"""For tests that wait until a session is over."""

PATIENT: Final[dict[str, Any]] = {"session_timeout_seconds": 60.0}
"""For tests in which no session may end by itself, however busy the machine is."""

SUSPENDING: Final[dict[str, Any]] = {
    "session_timeout_seconds": 6.0,
    "lease_seconds": 0.2,
}
"""
For tests in which contact is lost and comes back while the session goes on.

A session without contenders sends a heartbeat every third of its timeout, so it may
take two seconds until it is heard again.
"""


@final
class Harness:
    """
    One cluster of a name service under test; everything that it opened is closed.

    Args:
        backend: The name service.
        cluster_id: The cluster; no other test has used it.
    """

    def __init__(self, backend: Backend, cluster_id: str) -> None:
        self.backend = backend
        self.cluster_id = cluster_id
        self._resources = contextlib.ExitStack()
        self._lines: dict[HAServices, Line] = {}
        self._operator: HAServices | None = None

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Return what the backend declares."""
        return self.backend.guarantees

    def config(self, **settings: Any) -> HAConfig:
        """Return a configuration of a client of this cluster."""
        return self.backend.config(**self._settings(settings))

    def open(self, *, cuttable: bool = False, **settings: Any) -> HAServices:
        """
        Open another client of the name service, which has a session of its own.

        Args:
            cuttable: Whether `cut` and `heal` are to work on it.
            settings: Of its `HAConfig`.
        """
        if not cuttable:
            return self._keep(open_patiently(self.config(**settings)))
        ha, line = self.backend.open_cuttable(self._resources, self._settings(settings))
        self._lines[ha] = line
        return self._keep(ha)

    @property
    def operator(self) -> HAServices:
        """Return a service that may do what operators may, and contends for nothing."""
        if self._operator is None:
            self._operator = self.open(**self.backend.operator_settings())
        return self._operator

    def cut(self, ha: HAServices) -> None:
        """Pass nothing on between *ha* and the name service; neither side is told."""
        self._lines[ha].cut()

    def cut_replies(self, ha: HAServices) -> None:
        """Pass nothing on from the name service to *ha*."""
        self._lines[ha].cut_replies()

    def heal(self, ha: HAServices, *, deliver: bool = True) -> None:
        """Undo every cut; if not *deliver*, what was held back is lost."""
        self._lines[ha].heal(deliver=deliver)

    def reset(self, ha: HAServices) -> None:
        """Break the connections of *ha*; new ones may be made."""
        self._lines[ha].reset()

    def expire(self, session_id: str) -> None:
        """End a session as an operator would."""
        self.operator.operations.expire(session_id)

    def wait_until_silent(self, candidate: Candidate) -> None:
        """Return once the name service has not heard of *candidate* for its lease."""
        wait_until(
            lambda: self._last_heard_seconds(candidate) > self._lease_seconds(candidate)
        )

    def wait_until_heard(self, candidate: Candidate) -> None:
        """Return once the name service has heard of *candidate* again."""
        wait_until(
            lambda: (
                self._last_heard_seconds(candidate) < self._lease_seconds(candidate) / 2
            )
        )

    def close(self) -> None:
        """Heal every line, close what was opened, and release the lines."""
        for line in self._lines.values():
            line.heal()
        self._resources.close()

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        defaults = {
            "cluster_id": self.cluster_id,
            "session_timeout_seconds": 10.0,
            "lease_seconds": 0.5,
            "connect_timeout_seconds": 10.0,
        }
        return defaults | settings

    def _keep(self, ha: HAServices) -> HAServices:
        self._resources.callback(ha.close)
        return ha

    def _lease_seconds(self, candidate: Candidate) -> float:
        return candidate.ha.config.lease_seconds

    def _last_heard_seconds(self, candidate: Candidate) -> float:
        for item in self.operator.operations.contenders(candidate.job_id):
            if item.contender_id == candidate.contender_id:
                assert item.last_heard_seconds is not None
                return item.last_heard_seconds
        message = f"{candidate.address} is no contender any more"
        raise AssertionError(message)
