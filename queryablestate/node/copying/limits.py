"""How much nodes do for each other when rows travel between them; pure."""

from __future__ import annotations

from typing import final

from attrs import frozen

from nameservice.clock import NS_PER_SECOND


__all__ = ["CopyLimits"]


@final
@frozen(kw_only=True)
class CopyLimits:
    """
    How much nodes do for each other.

    Attributes:
        copies_max: Copies of key groups that are read at once; further ones are refused
            for now.
        stages_max: Likewise for rows that are staged: commits wait for these.
        requests_waiting_max: Messages of other nodes that wait; more are passed over.
        page_size_bytes: About how big a page is that a node asks for.
        pages_ahead_count: How many pages may be under way, or wait to be written.
        fetches_max: How many sources a node copies from at once.
        alive_ns: After so long without anything else, a source says that it is there.
        silence_ns: After so long without hearing anything, either side gives up.
        behind_ns: How long a node that has yet to apply an entry may keep another
            waiting.
        advance_ns: How often the core is told how far a copy is.
        retry_ns: Pause before staged rows are asked for again.
    """

    copies_max: int = 8
    stages_max: int = 256
    requests_waiting_max: int = 10_000
    page_size_bytes: int = 1 << 20
    pages_ahead_count: int = 8
    fetches_max: int = 4
    alive_ns: int = NS_PER_SECOND
    silence_ns: int = 15 * NS_PER_SECOND
    behind_ns: int = 30 * NS_PER_SECOND
    advance_ns: int = NS_PER_SECOND // 4
    retry_ns: int = NS_PER_SECOND // 4
