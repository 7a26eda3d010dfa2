"""
Who is admitted: the ZAP handler of a server, answering from its allow-list alone.

Theory of operation.  For every connection libzmq asks ``inproc://zeromq.zap.01`` in
the server's own context whether the peer may come in (ZeroMQ RFC 27).  An
`Authenticator` is that handler: its socket is served by the server's own poll loop,
between requests.  With an allow-list it admits those who have *proved* to hold a key
on it, and refuses everything else: other keys, NULL, PLAIN, malformed requests.  A peer
that is admitted has its public key as ``User-Id`` on every frame that it sends, which
is how the server knows who asks; roles are looked up per request, so a new allow-list
holds for connections that are already open, too.

With *admits_unlisted* it admits every key that is proved to be held: the connection is
then encrypted, and says nothing about who is at its other end.  That is for a server
that asks for something else besides, such as a token, which must not travel in clear.
`principal_of` still tells who is listed, and `public_key_of` which key was proved.

Without an allow-list, for servers that do not use CURVE, it admits everybody who can
shake hands, as `ANONYMOUS`.  It is asked nevertheless, because libzmq then turns away
strangers; see `zmqtransport.connections`.

Rejected: pyzmq's ``ThreadAuthenticator``.  It brings a thread and a control socket of
its own, admits NULL unless told otherwise, turns ``location="*"`` into a global
"admit everybody", only logs a failure to load keys, and a swapped list would race with
the server's use of the old one.  What is needed of RFC 27 here is one request and one
reply.

A CURVE server without a handler admits *every* key (encryption without
authentication), unless ``ZAP_ENFORCE_DOMAIN`` is set, as `secure_server` does: then a
missing handler admits no peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import attrs
import zmq
from zmq.utils import z85

from nameservice import ConfigurationError, get_logger
from zmqtransport.access import ANONYMOUS, AllowList, Principal
from zmqtransport.sockets import (
    ZAP_DOMAIN,
    ZAP_DOMAIN_OPEN,
    ZAP_DOMAIN_PUBLISHING,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    open_socket,
    receive_now,
    send_now,
)


__all__ = ["Authenticator"]

_ADDRESS: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_REQUEST_FRAME_COUNT_MAX: Final = 16
_KEY_SIZE_BYTES: Final = 32
_CURVE: Final = ZAP_DOMAIN.encode("ascii")
_PUBLISHING: Final = ZAP_DOMAIN_PUBLISHING.encode("ascii")
_OPEN: Final = ZAP_DOMAIN_OPEN.encode("ascii")


@final
@attrs.frozen
class _Verdict:
    """What a request is answered: ``200`` with the key as user id, or ``400``."""

    status: bytes
    text: bytes
    user_id: bytes = b""


@final
class Authenticator:
    """
    Admits clients to the sockets of one context, after ``secure_server``.

    There can be one per context; bind the server's sockets after making it, and close
    them before closing it.  Not thread-safe: `handle` runs in the loop of the server,
    and *allow_list* is replaced there too.

    Attributes:
        socket: To be served: call `handle` whenever it is readable.
        allow_list: Who is admitted to CURVE sockets; may be replaced at any time.
            Connections of a client that is taken off stay open: ask `principal_of` for
            every request.  None: there are no CURVE sockets, everybody is admitted;
            with *admits_unlisted*, no key is listed.
        admits_unlisted: Whether a key that is not listed is admitted to CURVE sockets,
            without being anybody; may be replaced at any time.
        admitted_count: How many connections were admitted.
        refused_count: How many were not, malformed requests included.

    Raises:
        ConfigurationError: If the context has such a handler already.
    """

    def __init__(
        self,
        context: ZMQContext,
        allow_list: AllowList | None,
        *,
        admits_unlisted: bool = False,
        may_log: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Start to be asked; no peer is answered before `handle` is called.

        Args:
            context: The context of the sockets.
            allow_list: See above.
            admits_unlisted: See above.
            may_log: Is asked before each line about a refusal: every peer that connects
                can cause them without end.
        """
        self.allow_list = allow_list
        self.admits_unlisted = admits_unlisted
        self._may_log = may_log
        self.admitted_count = 0
        self.refused_count = 0
        self._log = get_logger(component="authenticator")
        self.socket: ZMQSocket = open_socket(context, zmq.ROUTER, SocketLimits())
        try:
            self.socket.bind(_ADDRESS)
        except zmq.ZMQError as exc:
            self.socket.close()
            raise ConfigurationError(
                "this ZeroMQ context has an authenticator already: "
                "give each server a context of its own"
            ) from exc

    def principal_of(self, frame: zmq.Frame) -> Principal | None:
        """
        Return who sent *frame*, or None if the allow-list does not have that key.

        It may have been taken off, or never have been there (*admits_unlisted*).
        """
        if self.allow_list is None:
            return None if self.admits_unlisted else ANONYMOUS
        public_key = self.public_key_of(frame)
        return None if public_key is None else self.allow_list.get(public_key)

    def public_key_of(self, frame: zmq.Frame) -> str | None:
        """Return the key, in Z85, that the sender of *frame* has proved to hold."""
        try:
            public_key = frame.get("User-Id")
        except zmq.ZMQError:  # it came over a socket that is not secured
            return None
        return str(public_key) or None

    def handle(self, request_count_max: int = 100) -> None:
        """Answer the requests that wait, *request_count_max* of them at most."""
        for _ in range(request_count_max):
            try:
                frames = receive_now(
                    self.socket, frame_count_max=_REQUEST_FRAME_COUNT_MAX
                )
            except zmq.Again:
                return
            self._answer([frame.bytes for frame in frames])

    def close(self) -> None:
        """Stop answering; from then on no peer is admitted."""
        self.socket.close()

    def _answer(self, frames: list[bytes]) -> None:
        """Answer one request: routing id, delimiter, then RFC 27's frames."""
        if len(frames) < 4 or frames[1] != b"" or frames[2] != _VERSION:
            # There is no request id to answer to; libzmq never sends this.
            self.refused_count += 1
            if self._may_log():
                self._log.warning("authentication.malformed", frame_count=len(frames))
            return
        routing_id, _, _, request_id, *fields = frames
        verdict = self._judge(fields)
        reply = (
            routing_id,
            b"",
            _VERSION,
            request_id,
            verdict.status,
            verdict.text,
            verdict.user_id,
            b"",
        )
        send_now(self.socket, reply)  # a peer that is gone meanwhile needs no answer

    def _judge(self, fields: list[bytes]) -> _Verdict:
        """Return the verdict on domain, address, identity, mechanism, credentials."""
        if len(fields) < 4:
            return self._refuse(b"malformed request", address="", public_key="")
        domain, address_bytes, _, mechanism, *credentials = fields
        address = address_bytes.decode("utf-8", "replace")
        if self.allow_list is None and not self.admits_unlisted:
            if (domain, mechanism, credentials) != (_OPEN, b"NULL", []):
                return self._refuse(
                    b"CURVE is not used", address=address, public_key=""
                )
            self.admitted_count += 1
            return _Verdict(b"200", b"OK")
        if domain not in {_CURVE, _PUBLISHING}:
            return self._refuse(b"unknown domain", address=address, public_key="")
        if mechanism != b"CURVE":
            return self._refuse(b"CURVE is required", address=address, public_key="")
        if len(credentials) != 1 or len(credentials[0]) != _KEY_SIZE_BYTES:
            return self._refuse(b"malformed key", address=address, public_key="")
        key = z85.encode(credentials[0])
        public_key = key.decode("ascii")
        principal = None if self.allow_list is None else self.allow_list.get(public_key)
        if principal is None and not self.admits_unlisted:
            return self._refuse(b"unknown key", address=address, public_key=public_key)
        if domain == _PUBLISHING and not (principal and principal.observes_all):
            # Who hears one topic there can hear all: rights are for requests.
            return self._refuse(
                b"may not observe all", address=address, public_key=public_key
            )
        self.admitted_count += 1
        name = None if principal is None else principal.name
        self._log.debug("connection.admitted", name=name, address=address)
        return _Verdict(b"200", b"OK", key)

    def _refuse(self, text: bytes, *, address: str, public_key: str) -> _Verdict:
        """Count, log and return a refusal."""
        self.refused_count += 1
        if self._may_log():
            self._log.warning(
                "connection.refused",
                reason=text.decode("ascii"),
                address=address,
                public_key=public_key,
            )
        return _Verdict(b"400", text)
