"""
`QueryStateProxyServer`: the single entry point to queryable state.

It contends for ``QUERY_PROXY``.  The one that leads is found by everybody through the
name service; the others are warm standbys, which answer all who ask that they do not
lead.  It is the same class inside a Spark driver and as a process of its own.
"""

from __future__ import annotations

from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, Self, TypeVar, final

from haservices.interface import forgets_at_restart
from nameservice import (
    QUERY_PROXY,
    DidNotHappenError,
    ForkGuard,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    get_logger,
)
from nameservice.interruptible import InterruptibleEvent
from nameservice.observation import Observation
from nameservice.uninterrupted import detached
from queryablestate.proxy.config import ProxyConfig, check_reloadable
from queryablestate.proxy.loop import ProxyLoop


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from election import LeaderElection, LeaderSession
    from haservices import HAServices


__all__ = ["QueryStateProxyServer"]

T = TypeVar("T")

_CALL_TIMEOUT_SECONDS: Final = 30.0
_CONFIRM_COUNT_MAX: Final = 10
_CONFIRM_PAUSE_SECONDS: Final = 0.2


@final
class QueryStateProxyServer:
    """
    A proxy that contends to be the entry point.  Thread-safe; a context manager.

    After ``fork()`` a child's use raises `ForkedClientError`, and its `close` is silent
    (rule E10).

    Args:
        ha: The name service; stays its owner's, and open as long as the proxy is.
        config: Where it listens, whom it admits, its limits.
    """

    def __init__(self, ha: HAServices, config: ProxyConfig | None = None) -> None:
        self._ha = ha
        self._config = ProxyConfig() if config is None else config
        self._guard = ForkGuard()
        self._log = get_logger(component="query-proxy")
        self._lock = Lock()  # guards the two that follow
        self._is_started = False
        self._is_closed = False
        self._leads = InterruptibleEvent()
        self._running: ProxyLoop | None = None
        self._election: LeaderElection | None = None
        self._contender: _ProxyContender | None = None

    # -- life ----------------------------------------------------------------------

    def start(self) -> None:
        """
        Listen, and begin to contend.

        Raises:
            ConfigurationError: If a port or a key cannot be used; says what to change.
            LocalProtocolError: If it was started or closed before.
        """
        self._guard.check()
        detached(self._start, undo=lambda _: self.close())

    def _start(self) -> None:
        with self._lock:
            if self._is_started or self._is_closed:
                raise LocalProtocolError("a proxy is started once")
            self._is_started = True
            election = self._ha.get_leader_election(QUERY_PROXY)
            try:
                running = ProxyLoop(
                    self._config,
                    self._ha.get_leader_store(QUERY_PROXY),
                    election,
                    on_failure=self._resign,
                )
                try:
                    running.loop.start()
                except BaseException:
                    running.loop.stop()  # closes what was opened
                    raise
            except BaseException:
                election.close()
                raise
            self._running = running
            self._election = election
            self._contender = _ProxyContender(
                running,
                election,
                self._leads,
                confirm_timeout_seconds=(
                    self._ha.config.effective_confirm_timeout_seconds
                ),
            )
            election.start(self._contender)
        self._log.info("proxy.started", address=running.port.address)
        if forgets_at_restart(self._ha):
            self._log.warning(
                "name_service.volatile",
                url=self._ha.config.url,
                reason="state that is published is unavailable after a restart of the "
                "name service, until 'lodestar adopt': give the LeaderServer a data "
                "directory (--data-dir)",
            )

    def close(self) -> None:
        """Resign, answer no one any more, release everything.  Idempotent."""
        closed = None if self._guard.is_inherited else detached(self._close)
        if closed is not None:
            # Here: a signal handler may have interrupted a log that holds its lock.
            self._log.info("proxy.closed", address=closed.port.address)

    def _close(self) -> ProxyLoop | None:
        """Return what was running, the first time."""
        with self._lock:
            is_first = not self._is_closed
            self._is_closed = True
            running, election = self._running, self._election
        if election is not None:
            election.close()
        self._leads.set()  # who waits for it waits no more
        if running is not None:
            running.loop.stop()
            running.loop.join()
        return running if is_first else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- questions -----------------------------------------------------------------

    @property
    def address(self) -> str:
        """Return what it publishes while it leads, as `parse_address` takes it."""
        return self._started().port.address

    @property
    def is_leader(self) -> bool:
        """Return whether it has been granted and has confirmed its leadership."""
        return self._leads.is_set() and not self._is_over

    @property
    def failure(self) -> Exception | None:
        """Return why it serves no more though it was not closed, or None."""
        return None if self._running is None else self._running.loop.failure

    @property
    def config(self) -> ProxyConfig:
        """Return what it goes by now."""
        return self._config

    def join(self, timeout_seconds: float | None = None) -> bool:
        """
        Wait until it serves no more: it was closed, or has failed.

        Returns:
            Whether it is over; False after *timeout_seconds*.
        """
        loop = self._started().loop
        loop.join(timeout_seconds)
        return loop.is_over

    def wait_until_leader(self, timeout_seconds: float | None = None) -> None:
        """
        Wait until this proxy leads.

        Raises:
            NoLeaderError: If it does not within *timeout_seconds*.
            LocalProtocolError: If it is closed, or has failed, before it does.
        """
        self._started()
        if not self._leads.wait(timeout_seconds):
            raise NoLeaderError(QUERY_PROXY, timeout_seconds or 0.0)
        if self._is_over:
            raise LocalProtocolError("the proxy serves no more: it will not lead")

    def status(self) -> Mapping[str, str | int | float]:
        """
        Return the proxy's figures by name.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer.
        """
        return self._call(lambda running: running.figures())

    def observe(
        self, *, timeout_seconds: float = 30.0, state_count_max: int = 1_000
    ) -> Observation:
        """
        Return what metrics and health are made of.

        Args:
            timeout_seconds: How long to wait for its thread.
            state_count_max: How many states to tell of at most, in no order.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer in time.
        """
        running = self._started()
        return running.loop.call(
            lambda: running.observe(state_count_max),
            target=running.port.address,
            timeout_seconds=timeout_seconds,
        )

    def reconfigure(self, config: ProxyConfig) -> None:
        """
        Go by *config* from now on (rule C4).

        Raises:
            ConfigurationError: If it changes what only a restart can; nothing changes.
        """
        check_reloadable(self._config, config)
        self._call(lambda running: running.reconfigure(config))
        self._config = config
        self._log.info("proxy.reconfigured")

    # -- parts ---------------------------------------------------------------------

    def _resign(self, error: Exception) -> None:
        """Have another lead: the thread that answers is over; in that thread."""
        self._log.error("proxy.failed", error=str(error))
        election = self._election
        if election is not None:
            # It waits for callbacks that wait for the thread that we are in.
            Thread(target=self._leave, name="proxy-resigner", daemon=True).start()

    def _leave(self) -> None:
        assert self._election is not None
        self._election.close()
        self._leads.set()  # who waits for it waits no more

    @property
    def _is_over(self) -> bool:
        return self._is_closed or self.failure is not None

    def _call(self, action: Callable[[ProxyLoop], T]) -> T:
        """Return what *action* returns in the proxy's thread."""
        running = self._started()
        return running.loop.call(lambda: action(running), target=running.port.address)

    def _started(self) -> ProxyLoop:
        self._guard.check()
        if self._running is None:
            raise LocalProtocolError("the proxy is not started")
        return self._running


@final
class _ProxyContender:
    """
    Hands grants and revocations to the proxy's thread.

    Args:
        running: The proxy.
        election: What it contends in.
        leads: Set while it has been granted and has confirmed.
        confirm_timeout_seconds: How long the name service waits for it to confirm.
    """

    def __init__(
        self,
        running: ProxyLoop,
        election: LeaderElection,
        leads: InterruptibleEvent,
        *,
        confirm_timeout_seconds: float,
    ) -> None:
        self._running = running
        self._election = election
        self._leads = leads
        self._confirm_timeout_seconds = confirm_timeout_seconds
        self._log = get_logger(component="query-proxy")

    def grant_leadership(self, session: LeaderSession) -> None:
        """
        Load what the last leader left, then confirm: no client finds it before.

        A store that is read slowly must not cost the leadership: then it confirms
        while it reads, and answers ``not-leader`` until it has.  One that cannot be
        read is left to another contender: unconfirmed, this one is passed over.
        """
        running = self._running
        is_ready = InterruptibleEvent()
        running.loop.call_soon_threadsafe(lambda: running.lead(session, is_ready.set))
        if not is_ready.wait(self._confirm_timeout_seconds / 3):
            problem = running.control.problem
            if problem is not None and not is_ready.wait(
                self._confirm_timeout_seconds / 2
            ):
                self._log.error("leadership.declined", error=str(problem))
                return
        try:
            self._confirm(session)
        except LeadershipLostError:
            return
        self._leads.set()
        self._log.info(
            "leadership.confirmed", epoch=session.epoch, address=running.port.address
        )

    def _confirm(self, session: LeaderSession) -> None:
        """Confirm; what was not answered, or is not possible yet, is asked again."""
        pause = InterruptibleEvent()  # is never set: it waits
        for attempt in range(1, _CONFIRM_COUNT_MAX + 1):
            try:
                self._election.confirm_leadership(
                    session.leader_session_id, self._running.port.address
                )
            except (MayHaveHappenedError, DidNotHappenError):
                if attempt == _CONFIRM_COUNT_MAX:
                    raise
                pause.wait(_CONFIRM_PAUSE_SECONDS)
            else:
                return

    def revoke_leadership(self) -> None:
        """Stop answering before anybody else is granted."""
        self._leads.clear()
        stopped = InterruptibleEvent()

        def stop() -> None:
            self._running.stop_leading()
            stopped.set()

        try:
            self._running.loop.call_soon_threadsafe(stop)
        except LocalProtocolError:
            return  # the thread that answered is over
        stopped.wait(_CALL_TIMEOUT_SECONDS)
        self._log.info("leadership.revoked")

    def handle_error(self, error: Exception) -> None:
        """Say so: the election goes on by itself."""
        self._log.warning("election.failed", error=str(error))
