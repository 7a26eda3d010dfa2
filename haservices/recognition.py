"""
What really is behind an address that does not speak as its URL says.

Asked only when opening has failed, and by plain sockets: each question is one short
connection.  Servers of other protocols answer what they do not understand in ways of
their own, or not at all; only what tells itself clearly is named.
"""

from __future__ import annotations

import socket
from enum import Enum
from typing import TYPE_CHECKING, Final

from haservices.config import Backend
from nameservice import WrongServiceError


if TYPE_CHECKING:
    from haservices.config import HAConfig, ServerAddress


__all__ = ["Service", "reach_problem", "recognize_service", "wrong_service"]

_TIMEOUT_SECONDS: Final = 0.5
_ADDRESS_COUNT_MAX: Final = 3
_ANSWER_SIZE_BYTES_MAX: Final = 256
# The signature that begins every greeting of ZMTP (RFC 37): both sides send it at once.
_ZMTP_SIGNATURE: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f"


class Service(Enum):
    """What may be recognized; the value is what an error calls it."""

    ZEROMQ = "a ZeroMQ server, as a LeaderServer is"
    ZOOKEEPER = "a ZooKeeper"
    HTTP = "an HTTP server"
    TLS = "a server that speaks TLS"
    SSH = "an SSH server"


_EXPECTED: Final = {
    Backend.LEADERSERVER: (Service.ZEROMQ, "a LeaderServer"),
    Backend.ZOOKEEPER: (Service.ZOOKEEPER, "a ZooKeeper"),
}


def wrong_service(config: HAConfig) -> WrongServiceError | None:
    """Return an error that names what is where *config* says, if that is another."""
    expected, name = _EXPECTED[config.backend]
    for address in config.server_addresses[:_ADDRESS_COUNT_MAX]:
        service = recognize_service(address)
        if service is Service.TLS and config.is_encrypted:
            continue
        if service is not None and service is not expected:
            return WrongServiceError(config.url, f"{address} is {service.value}", name)
    return None


def reach_problem(config: HAConfig) -> str:
    """Return why no address of *config* can be connected to; empty if one can."""
    problems = []
    for address in config.server_addresses[:_ADDRESS_COUNT_MAX]:
        problem = _problem_at(address)
        if not problem:
            return ""
        problems.append(problem)
    return "; ".join(problems)


def _problem_at(address: ServerAddress) -> str:
    try:
        socket.create_connection((address.host, address.port), _TIMEOUT_SECONDS).close()
    except socket.gaierror:
        return f"there is no host {address.host!r}: correct the name"
    except ConnectionRefusedError:
        return f"nothing listens at {address}: start it, or correct the port"
    except OSError as error:
        return f"no connection to {address}: {error.strerror or 'no answer'}"
    return ""


def recognize_service(address: ServerAddress) -> Service | None:
    """Return what takes connections at *address*, or None if it does not tell."""
    for question in (_ZMTP_SIGNATURE, b"srvr", b"HEAD / HTTP/1.0\r\n\r\n"):
        try:
            answer = _ask(address, question)
        except OSError:
            return None  # there is no server
        service = _service_of(answer)
        if service is not None:
            return service
    return None


def _ask(address: ServerAddress, question: bytes) -> bytes:
    """Return how an answer to *question* begins; empty if there is none in time."""
    with socket.create_connection(
        (address.host, address.port), _TIMEOUT_SECONDS
    ) as connection:
        answer = b""
        try:
            connection.sendall(question)
            while len(answer) < _ANSWER_SIZE_BYTES_MAX and _service_of(answer) is None:
                chunk = connection.recv(_ANSWER_SIZE_BYTES_MAX)
                if not chunk:
                    break
                answer += chunk
        except OSError:
            return answer  # it closed, or says no more
        return answer


def _service_of(answer: bytes) -> Service | None:
    if len(answer) >= len(_ZMTP_SIGNATURE) and answer[0] == 0xFF and answer[9] & 1:
        return Service.ZEROMQ
    if answer.startswith((b"Zookeeper version", b"srvr is not executed", b"This ZooK")):
        return Service.ZOOKEEPER
    if answer.startswith(b"HTTP/"):
        return Service.HTTP
    if answer.startswith(b"\x15\x03"):
        return Service.TLS
    if answer.startswith(b"SSH-"):
        return Service.SSH
    return None
