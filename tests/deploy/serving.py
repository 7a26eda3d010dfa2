"""Asking processes that serve metrics and health."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from tests.lodestar.running import Running


__all__ = ["metrics_url", "status_of"]


def metrics_url(running: Running) -> str:
    """Return where a process serves its metrics, as its log says."""
    found = re.search(r"http://127\.0\.0\.1:\d+", running.err.until("metrics.serving"))
    assert found is not None
    return found[0]


def status_of(url: str) -> int:
    """Return the status of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
