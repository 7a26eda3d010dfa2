"""
Whether a client meets two LeaderServers behind one address (a part of `ClientCore`).

Two servers that answer at one address are two elections: after a rolling update that
overlaps, behind a balancer, on one port that two processes share.  A client meets the
second one when its next session is with another server.  That alone is no proof, for
the former may have died.  It is proven that both were alive at once if the new one had
been running for longer than the former had been silent.

What no client can see: a second server that it never has a session with.
"""

from __future__ import annotations

from typing import Final, final


__all__ = ["ServerWatch"]

# Both are durations on different clocks, whose rates differ by at most 5 %.
_UPTIME_PARTS: Final = 9
_SILENCE_PARTS: Final = 10


@final
class ServerWatch:
    """Which server a client had its last session with; empty if that told no id."""

    def __init__(self) -> None:
        self._server_id = ""

    def session_begins(
        self, server_id: str, *, uptime_ns: int, silence_ns: int
    ) -> str | None:
        """
        Record the server that opened a session.

        Args:
            server_id: Its id.
            uptime_ns: How long it had been running.
            silence_ns: How long ago that was sent which the former server answered
                last.

        Returns:
            How it is proven that there are two, or None.
        """
        former, self._server_id = self._server_id, server_id
        if not former or not server_id or former == server_id:
            return None
        if uptime_ns * _UPTIME_PARTS <= silence_ns * _SILENCE_PARTS:
            return None
        return (
            f"server {server_id} has been running for {uptime_ns / 1e9:.3f} s, and "
            f"server {former} answered what was sent {silence_ns / 1e9:.3f} s ago"
        )
