"""
`ProxyConnection`: one question, one answer, to the proxy that leads.

For control requests of writers and operators: drawing tickets, binding runs, committing
batches, dropping states.  Each may be done twice, so whatever goes wrong on the way
(the leader changes, the connection closes, the session is unknown) has one answer: ask
again, until the caller's deadline.  What is told of something that was to go may then
be that it is not there (`ProxyCalls.change`).  `QueryCore` does that for them as for
every other request; a call that waits a minute for its answer delays no other.

The name service is opened only if it is needed.  Tasks of Spark are told by the driver
where the proxy is (`first_address`), and most of them never open it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self, TypeAlias, final

from haservices import HAConfig
from haservices.factory import as_name_service
from nameservice import ForkGuard, LocalProtocolError, SystemClock, seconds_to_ns
from queryablestate.client.requests import Call
from queryablestate.client.threads import QueryShell
from queryablestate.connect.credentials import as_credentials
from queryablestate.wire.address import parse_address


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices import HAServices
    from queryablestate.connect.credentials import Credentials
    from queryablestate.wire.clients import ClientRequest, ToClient


__all__ = ["ProxyConnection"]

Build: TypeAlias = "Callable[[int, bytes], ClientRequest]"


@final
class ProxyConnection:
    """
    Asks the proxy that leads, and waits for the answer.  Thread-safe.

    Opens nothing until the first `call`.  In a child process after ``fork()`` every
    call raises `ForkedClientError`, and `close` is silent: make one there anew.

    Args:
        config: The name service, or how to open it (a URL will do).  One that is given
            open stays its owner's.
        credentials: A token or `Credentials`.  Without CURVE keys of their own, those
            that *config* has for the name service are used with a proxy that uses
            CURVE.
        first_address: Where to ask before the name service is opened, e.g.
            `leader_address` of another connection.

    Raises:
        ConfigurationError: If *config* or *first_address* is malformed.
    """

    def __init__(
        self,
        config: HAConfig | HAServices | str,
        credentials: str | Credentials | None = None,
        *,
        first_address: str | None = None,
    ) -> None:
        self._guard = ForkGuard()
        self._clock = SystemClock()
        self._services = as_name_service(config)
        self._credentials = as_credentials(credentials)
        if first_address is not None:
            parse_address(first_address)
        self._first_address = first_address
        self._leader_address = first_address
        # Guards what follows; reentrant: a signal handler may close it amid a call.
        self._lock = threading.RLock()
        self._shell: QueryShell | None = None
        self._is_closed = False

    @property
    def name_service(self) -> str:
        """Return which name service the leader is found by: what jobs are unique in."""
        services = self._services
        config = services if isinstance(services, HAConfig) else services.config
        return f"{config.url} {config.cluster_id}"

    @property
    def is_volatile(self) -> bool:
        """Return whether the name service is known to forget when it is restarted."""
        shell = self._shell
        return shell is not None and shell.is_volatile

    @property
    def frame_size_bytes_max(self) -> int | None:
        """Return how large a request the proxy takes; None before the first answer."""
        shell = self._shell
        return None if shell is None else shell.frame_size_bytes_max

    @property
    def leader_address(self) -> str | None:
        """Return where the last answer came from, or *first_address*, or None."""
        return self._leader_address

    def call(self, build: Build, *, timeout_seconds: float) -> ToClient:
        """
        Ask the proxy leader; return its answer, which is no `Refusal`.

        Args:
            build: Makes the request from a number and the secret of the session; may be
                called several times, for the request may be sent several times.
            timeout_seconds: How long to try.

        Raises:
            QueryableStateError: What the proxy refused the request with.
            NameServiceError: Likewise, where the refusal is not about state.
            NoLeaderError: If there was no leader within *timeout_seconds*.
            UnreachableError: If the name service did not answer by then.
            DeadlineExceededError: If a leader was there, and gave no answer by then.
            AuthenticationError: If the proxy or the name service did not admit us.
            LocalProtocolError: If the connection is closed.
            ForkedClientError: In a child of the process that made it.
        """
        self._guard.check()
        shell = self._opened()
        now_ns = self._clock.now_ns()
        deadline_ns = now_ns + seconds_to_ns(timeout_seconds)
        call = Call(None, build, now_ns, deadline_ns)
        shell.run(call)
        if call.error is not None:
            if call.problem is not None and self._clock.now_ns() >= deadline_ns:
                raise call.problem  # it says more than that time is over
            raise call.error
        assert call.reply is not None
        self._leader_address = shell.address or self._leader_address
        return call.reply

    def close(self) -> None:
        """
        Close the connection.  Idempotent; silent in a forked child.

        Calls that wait in other threads end with `LocalProtocolError`.
        """
        if self._guard.is_inherited:
            return
        with self._lock:
            self._is_closed = True
            shell = self._shell
        if shell is not None:
            shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> QueryShell:
        with self._lock:
            if self._shell is None and not self._is_closed:
                self._shell = QueryShell(
                    self._services,
                    self._credentials,
                    first_address=self._first_address,
                )
            shell, is_closed = self._shell, self._is_closed
        if shell is None or is_closed:
            if shell is not None:  # made while a signal handler closed us, it may be
                shell.close()
            raise LocalProtocolError("this connection is closed: make a new one")
        return shell
