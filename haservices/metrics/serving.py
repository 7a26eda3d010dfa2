"""
`serve_metrics`: metrics and health of a server, proxy, node or gateway over HTTP.

==============  ======================================================================
``/metrics``    the text format of Prometheus
``/healthz``    200 if the process works: its loop has answered; else 503
``/readyz``     200 if it would answer; else 503, and the reason
==============  ======================================================================

However many ask, the loop that serves others is asked four times a second at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, final

from haservices.metrics.http import BoundedHTTPServer, HTTPAnswer
from nameservice import (
    ConfigurationError,
    ForkGuard,
    NameServiceError,
    SystemClock,
    get_logger,
)
from nameservice.clock import NS_PER_MS
from nameservice.uninterrupted import detached


if TYPE_CHECKING:
    from nameservice import Clock
    from nameservice.observation import Observable, Observation


__all__ = ["MetricsServer", "serve_metrics"]

_FRESH_NS: Final = 250 * NS_PER_MS
_LOOP_SECONDS_MAX: Final = 2.0
_STATE_COUNT_MAX: Final = 1_000


@final
class MetricsServer:
    """
    What `serve_metrics` returns.  A context manager.

    Attributes:
        url: Where it is reached: ``http://127.0.0.1:9400``, with the real port.
    """

    def __init__(
        self, observed: Observable, address: str, *, clock: Clock | None = None
    ) -> None:
        self._exposition = _exposition()
        self._observed = observed
        self._clock = SystemClock() if clock is None else clock
        self._guard = ForkGuard()
        self._fresh_until_ns = 0
        self._found: Observation | str = ""
        self._text: bytes | None = None
        self._server = BoundedHTTPServer(address, self._answer, self._clock)
        self.url = self._server.url
        get_logger(component="metrics").info("metrics.serving", url=self.url)

    def close(self) -> None:
        """End it.  Idempotent; silent in a forked child."""
        if not self._guard.is_inherited:
            self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in the thread of the HTTP server ----------------------------------------------

    def _answer(self, path: str) -> HTTPAnswer:
        if path not in {"/metrics", "/healthz", "/readyz"}:
            return HTTPAnswer(404, b"there are /metrics, /healthz and /readyz\n")
        found = self._observe()
        if isinstance(found, str):
            return HTTPAnswer(503, f"{found}\n".encode(errors="replace"))
        if path == "/metrics":
            if self._text is None:
                self._text = self._exposition.exposition(found)
            return HTTPAnswer(200, self._text, self._exposition.CONTENT_TYPE)
        if path == "/readyz" and found.problem is not None:
            return HTTPAnswer(503, f"{found.problem}\n".encode(errors="replace"))
        return HTTPAnswer(200, b"ok\n")

    def _observe(self) -> Observation | str:
        """Return what is observed, or why nothing is; at most a moment old."""
        if self._clock.now_ns() >= self._fresh_until_ns:
            self._text = None
            try:
                self._found = self._observed.observe(
                    timeout_seconds=_LOOP_SECONDS_MAX, state_count_max=_STATE_COUNT_MAX
                )
            except NameServiceError as error:
                self._found = f"it does not work: {error}"
            self._fresh_until_ns = self._clock.now_ns() + _FRESH_NS
        return self._found


def serve_metrics(observed: Observable, address: str) -> MetricsServer:
    """
    Serve metrics and health of a server that this program runs.

    There is no access control: who reaches the address reads names of jobs and states,
    and figures; no key, no value.  So it is the loopback address unless another is
    named.

    Args:
        observed: A `LeaderServer`, a `QueryStateProxyServer`, a `StateNode` or a
            `GatewayServer`; need not be started yet.  It stays its owner's.
        address: ``HOST:PORT``, ``:PORT`` or ``PORT`` (of 127.0.0.1), or ``*:PORT`` for
            every interface; port 0 takes any free one.

    Raises:
        ConfigurationError: If *address* is malformed or taken, or if prometheus-client
            is not installed; says what to do.
    """
    return detached(lambda: MetricsServer(observed, address), undo=MetricsServer.close)


def _exposition() -> Any:
    try:
        from haservices.metrics import exposition  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigurationError(
            "metrics need prometheus-client, which is not installed here: "
            "pip install 'spark-lodestar[metrics]'"
        ) from error
    return exposition
