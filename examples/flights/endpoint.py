"""Where a collector takes deliveries: a small HTTP server, one delivery at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar, Final, final

import msgspec

from examples.flights.messages import Accepted, Answer, PartitionSummary, Refused


__all__ = ["DELIVERY_PATH", "Endpoint"]

DELIVERY_PATH: Final = "/partitions"

_BODY_SIZE_BYTES_MAX: Final = 256 * 1024
_CONNECTION_TIMEOUT_SECONDS: Final = 2.0
_SHUTDOWN_POLL_SECONDS: Final = 0.05


@final
class Endpoint:
    """
    Serves on a free port of the loopback interface from its construction on.

    Deliveries are answered one after another on one thread: they change one set of
    totals, so there is nothing to gain from more, and no lock is needed.
    """

    def __init__(self, deliver: Callable[[PartitionSummary], Answer]) -> None:
        handler = type("_BoundHandler", (_Handler,), {"deliver": staticmethod(deliver)})
        self._server = HTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_SHUTDOWN_POLL_SECONDS,),
            name="endpoint",
            daemon=True,
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Return where it is reached."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Answer what has begun, and stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Turns a request into a delivery, and an answer into a response."""

    timeout: ClassVar[float] = _CONNECTION_TIMEOUT_SECONDS
    deliver: ClassVar[Callable[[PartitionSummary], Answer]]

    def do_POST(self) -> None:
        """Answer one delivery."""
        answer = self._answer()
        content = msgspec.json.encode(answer)
        match answer:
            case Accepted():
                self.send_response(HTTPStatus.OK)
            case Refused(reason="malformed"):
                self.send_response(HTTPStatus.BAD_REQUEST)
            case Refused():
                self.send_response(HTTPStatus.CONFLICT)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self) -> Answer:
        if self.path != DELIVERY_PATH:
            return Refused(reason="malformed", detail=f"deliver to {DELIVERY_PATH}")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return Refused(reason="malformed", detail="there is no Content-Length")
        if int(length) > _BODY_SIZE_BYTES_MAX:
            return Refused(
                reason="malformed",
                detail=f"a delivery has at most {_BODY_SIZE_BYTES_MAX} bytes",
            )
        try:
            summary = msgspec.json.decode(
                self.rfile.read(int(length)), type=PartitionSummary
            )
        except msgspec.DecodeError as error:
            return Refused(reason="malformed", detail=str(error))
        return type(self).deliver(summary)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as inherited
        """Say nothing: the collector reports what matters."""
