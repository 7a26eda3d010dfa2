"""
`ProxyFinder`: knows who is the proxy leader, as the name service tells it.

Theory of operation.  Opening a name service blocks, for as long as its connect timeout
if there is no answer.  A reader of state has a deadline of its own, so the finder opens
on a thread of its own and says, at any moment, what it knows: a leader, or a problem,
or neither yet.  A name service that is away is tried again until the finder is closed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, final

from attrs import evolve

from haservices import HAConfig, open_ha_services
from haservices.factory import as_name_service
from haservices.interface import forgets_at_restart
from nameservice import (
    QUERY_PROXY,
    ForkGuard,
    LocalProtocolError,
    NameServiceError,
    get_logger,
)
from nameservice.interruptible import InterruptibleEvent
from nameservice.uninterrupted import detached, uninterrupted


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices import HAServices
    from retrieval import LeaderInformation


__all__ = ["ProxyFinder"]

_REOPEN_PAUSE_SECONDS: Final = 0.5


@final
class ProxyFinder:
    """
    Finds the proxy leader, and keeps finding it.  Thread-safe.

    Args:
        services: The name service, or how to open it.  One that is given open stays
            its owner's; one that is opened here is closed by `close`.
        on_change: Is called, on a thread of the finder's, whenever `leader` or
            `problem` has changed.  Must not block.

    Raises:
        ConfigurationError: If *services* is a URL that names nothing.
    """

    def __init__(
        self, services: HAConfig | HAServices | str, *, on_change: Callable[[], None]
    ) -> None:
        self._config: HAConfig | None = None
        self._services: HAServices | None = None
        given = as_name_service(services)
        if isinstance(given, HAConfig):
            self._config = given
        else:
            self._services = given
        self._on_change = on_change
        self._guard = ForkGuard()
        self._log = get_logger(component="proxy-finder", component_id=QUERY_PROXY)
        self._lock = threading.Lock()  # guards what follows
        self._leader: LeaderInformation | None = None
        self._problem: NameServiceError | None = None
        self._has_heard = False
        self._is_volatile = False
        self._is_started = False
        self._closed = InterruptibleEvent()
        self._close_retriever: Callable[[], None] | None = None

    @property
    def config(self) -> HAConfig:
        """Return how the name service is, or will be, opened."""
        if self._config is not None:
            return self._config
        assert self._services is not None
        return self._services.config

    @property
    def is_volatile(self) -> bool:
        """Return whether the name service is known to forget when it is restarted."""
        return self._is_volatile

    @property
    def is_started(self) -> bool:
        """Return whether the name service has been asked."""
        return self._is_started

    @property
    def leader(self) -> LeaderInformation | None:
        """Return the leader that was told last; None if there is none, or none yet."""
        return self._leader

    @property
    def problem(self) -> NameServiceError | None:
        """Return why the name service could not be asked, or None."""
        return self._problem

    @property
    def has_heard(self) -> bool:
        """Return whether the name service has told who leads, be it that none does."""
        return self._has_heard

    def start(self) -> None:
        """
        Begin to look, if that is not so already; return without waiting.

        Raises:
            ForkedClientError: In a child of the process that made it.
            LocalProtocolError: If the services that were given are closed.
            RuntimeError: If the process may have no more threads.  After any of them
                it can be started again.
        """
        self._guard.check()
        uninterrupted(self._start)

    def _start(self) -> None:
        with self._lock:
            if self._is_started or self._closed.is_set():
                return
            self._is_started = True
        try:
            if self._services is not None:
                self._retrieve(self._services)
            else:
                threading.Thread(
                    target=self._open, name="proxy-finder", daemon=True
                ).start()
        except BaseException:
            self._is_started = False
            raise

    def close(self) -> None:
        """
        Stop looking.  Idempotent; silent in a forked child.

        Does not wait for a name service that is just being opened: its thread closes
        it as soon as it is open.
        """
        if not self._guard.is_inherited:
            detached(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed.set()
            close_retriever, self._close_retriever = self._close_retriever, None
        if close_retriever is not None:
            close_retriever()

    # -- as a LeaderRetrievalListener --------------------------------------------------

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Take note of who leads."""
        self._has_heard = True
        self._note(leader, None)

    def handle_error(self, error: Exception) -> None:
        """Take note of trouble with the name service; what was known stays."""
        self._log.warning("retrieval.failed", error=str(error))
        if isinstance(error, NameServiceError):
            self._note(self._leader, error)

    # -- on the finder's thread --------------------------------------------------------

    def _open(self) -> None:
        assert self._config is not None
        # The first attempt is shorter: a caller whose deadline is as long as the
        # connect timeout is to hear why there is no answer.
        config = evolve(
            self._config,
            connect_timeout_seconds=self._config.connect_timeout_seconds / 2,
        )
        is_first = True
        while not self._closed.is_set():
            try:
                services = open_ha_services(config)
            except NameServiceError as error:
                if is_first and not self._closed.is_set():
                    self._log.warning("retrieval.failed", error=str(error))
                is_first = False
                config = self._config
                self._note(None, error)
                self._closed.wait(_REOPEN_PAUSE_SECONDS)
                continue
            try:
                self._retrieve(services, is_owner=True)
            except LocalProtocolError:  # closed meanwhile
                services.close()
            else:
                self._on_change()  # it answers, even if no proxy leads
            return

    def _retrieve(self, services: HAServices, *, is_owner: bool = False) -> None:
        retriever = services.get_leader_retriever(QUERY_PROXY)
        self._is_volatile = forgets_at_restart(services)
        with self._lock:
            is_wanted = not self._closed.is_set()
            if is_wanted:
                self._problem = None
                self._close_retriever = services.close if is_owner else retriever.close
        if is_wanted:
            retriever.start(self)
        elif is_owner:
            services.close()
        else:
            retriever.close()

    def _note(
        self, leader: LeaderInformation | None, problem: NameServiceError | None
    ) -> None:
        with self._lock:
            self._leader = leader
            self._problem = problem
        if not self._closed.is_set():
            self._on_change()
