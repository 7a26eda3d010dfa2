"""
`Listener`: a server's socket, bound, and how its keys are replaced there.

Theory of operation.  libzmq copies the options of a socket when it binds, so other keys
hold for what is bound from then on (measured, libzmq 4.3.5).  Two listeners of one port
would take turns at random.  So the old one is closed, with the connections that it has
accepted, and one with the new keys takes its place.  It gets a duplicate of the same
listening descriptor: the port is never free for another process, and who connects
meanwhile waits in the kernel's queue for less than a millisecond (measured).

It accepts no more than about a thousand connections of which nothing was read
(`ConnectionMonitor`): without that, a loop that is slow has as many as come.

A ROUTER names its peers by counting up from what ``rand()`` of the C library returned
when it was made, and libzmq never seeds that: it is the same number in every process.
A client that calls itself as the next one will be called ends the process of the server
(an assertion of 4.3.5).  So ``rand()`` is seeded before; a guess is right for one name
of four billion then.

Not kept: connections made with the old keys.  libzmq ends them with their listener,
and a key that is replaced because somebody has stolen it should open nothing any more.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice import ConfigurationError, NameServiceError
from zmqtransport.connections import ConnectionMonitor
from zmqtransport.sockets import (
    ZAP_DOMAIN,
    bind_socket,
    open_socket,
    secure_server,
    translate_zmq_errors,
)


if TYPE_CHECKING:
    from zmqtransport.connections import ConnectionEvent
    from zmqtransport.curve import CurveKeyPair
    from zmqtransport.endpoints import Endpoint
    from zmqtransport.sockets import SocketLimits, ZMQContext


__all__ = ["Listener"]

# libzmq's I/O thread answers within a millisecond; a machine may be busy.
_WAIT_MS: Final = 10_000
_QUIET_MS: Final = 5


@final
class Listener:
    """
    A socket that is bound, with its monitor; belongs to the socket's thread.

    Args:
        context: Of the socket; its authenticator says who may connect.
        socket_type: ``ROUTER`` or ``XPUB``.
        endpoint: Where to bind.
        limits: Of the socket.
        key_pair: The server's keys, or None.
        domain_secured: What the authenticator hears with keys.

    Attributes:
        socket: The socket.
        monitor: Tells what happens to its connections.
        endpoint: Where it is bound: with the real port.

    Raises:
        ConfigurationError: If it cannot be bound; nothing stays open then.
    """

    def __init__(
        self,
        context: ZMQContext,
        socket_type: int,
        endpoint: Endpoint,
        limits: SocketLimits,
        key_pair: CurveKeyPair | None,
        *,
        domain_secured: str = ZAP_DOMAIN,
    ) -> None:
        self._spare: int | None = None
        self._resources = ExitStack()
        try:
            _seed_names()
            self.socket = open_socket(context, socket_type, limits)
            self._resources.callback(self.socket.close)
            self.monitor = ConnectionMonitor(self.socket, holds_back=True)
            self._resources.callback(self.monitor.close)
            secure_server(self.socket, key_pair, domain_secured=domain_secured)
            self.endpoint = bind_socket(self.socket, endpoint)
            self._address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
            # The first report is that it listens; those of connections stay unread.
            self._wait(is_listening=True)
        except BaseException:
            self._resources.close()
            raise
        self._descriptor = self.monitor.listening_descriptor

    def prepare(self) -> None:
        """
        Take all that `replace_keys` needs; on any thread, of one at a time.

        Raises:
            ConfigurationError: If the process has no file descriptor left.
        """
        if self._spare is None:
            assert self._descriptor is not None
            try:
                self._spare = os.dup(self._descriptor)
            except OSError as error:
                message = (
                    f"a new key for {self._address} needs a file descriptor: "
                    f"{error.strerror}; raise ulimit -n"
                )
                raise ConfigurationError(message) from error

    def replace_keys(self, key_pair: CurveKeyPair) -> list[ConnectionEvent]:
        """
        Serve who connects from now on with *key_pair*; end all connections.

        Call `prepare` before.  Waits for libzmq's I/O thread, some milliseconds.

        Returns:
            What the monitor has told meanwhile, the end of each connection included.

        Raises:
            NameServiceError: If libzmq does not do it: the port is lost then.
        """
        assert self._spare is not None
        with translate_zmq_errors(self.endpoint):
            self.socket.setsockopt(
                zmq.CURVE_PUBLICKEY, key_pair.public_key.encode("ascii")
            )
            self.socket.setsockopt(
                zmq.CURVE_SECRETKEY, key_pair.secret_key.encode("ascii")
            )
            self.socket.setsockopt(zmq.USE_FD, self._spare)
            self.socket.unbind(self._address)
            events = self._wait(is_listening=False)
            events += self._read_to_quiet()
            self.socket.bind(self._address)
            self._spare = None  # it is libzmq's now
            events += self._wait(is_listening=True)
        self._descriptor = self.monitor.listening_descriptor
        return events

    def _read_to_quiet(self) -> list[ConnectionEvent]:
        """
        Read reports until there are no more: who binds next writes one, and needs room.

        Connections of a listener that is gone end once this thread has libzmq see to
        it; of those that their peers close meanwhile it tells.
        """
        events: list[ConnectionEvent] = []
        deadline = time.monotonic() + _WAIT_MS / 1_000
        while time.monotonic() < deadline:
            self.socket.getsockopt(zmq.EVENTS)
            news = self.monitor.receive()
            events += news
            if not news and not self.monitor.socket.poll(_QUIET_MS):
                return events
        message = f"ZeroMQ goes on telling of connections to {self._address}"
        raise NameServiceError(message)

    def close(self) -> None:
        """Close it, and give back what was prepared and not used.  Idempotent."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        self._resources.close()

    def _wait(self, *, is_listening: bool) -> list[ConnectionEvent]:
        """Read reports until the listener is there, or gone; return the others."""
        events: list[ConnectionEvent] = []
        while (self.monitor.listening_descriptor is not None) != is_listening:
            if not self.monitor.socket.poll(_WAIT_MS):
                message = f"ZeroMQ does not say what became of {self._address}"
                raise NameServiceError(message)
            events += self.monitor.receive(event_count_max=1)
        return events


def _seed_names() -> None:
    """Have libzmq count from a random number; see the module docstring."""
    with suppress(AttributeError, OSError, TypeError):  # no C library by that name
        ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4)))
