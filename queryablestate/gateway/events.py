"""Server-sent events as bytes (HTML Living Standard, 9.2); pure."""

from __future__ import annotations

import json
from typing import Any, Final


__all__ = ["BEGINNING", "HEARTBEAT", "event_bytes"]

BEGINNING: Final = b"retry: 1000\n\n"
"""Tells a browser to come back after a second when the connection breaks."""

HEARTBEAT: Final = b": still here\n\n"
"""A comment: it keeps the connection alive, and readers do not see it."""


def event_bytes(name: str, document: Any, event_id: str | None = None) -> bytes:
    """
    Return one event.

    Args:
        name: Of the event.
        document: Its data, as JSON on one line.
        event_id: What the reader shows when it comes back, or None to keep the last.
    """
    data = json.dumps(document, ensure_ascii=False)
    # JSON has no end of a line within a line: it escapes both kinds that readers know.
    identity = "" if event_id is None else f"id: {event_id}\n"
    return f"event: {name}\n{identity}data: {data}\n\n".encode(errors="replace")
