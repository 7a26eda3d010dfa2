"""Who waits for a snapshot or a restore; pure."""

from __future__ import annotations

from attrs import frozen

from queryablestate.control.events import LinkId


__all__ = ["Waiter"]


@frozen(kw_only=True)
class Waiter:
    """An operator that waits for an answer."""

    link: LinkId
    request_id: int
