"""
Metrics and health of servers, for Prometheus and for what restarts them.

* `serve_metrics`: serve those of a server that this program runs.
* `MetricsServer`: what it returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from haservices.metrics.serving import MetricsServer, serve_metrics


__all__ = ["MetricsServer", "serve_metrics"]

__getattr__, __dir__ = lazy_face(
    __name__, {"haservices.metrics.serving": ("MetricsServer", "serve_metrics")}
)
