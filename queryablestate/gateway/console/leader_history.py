"""Leaderships as this gateway has seen them: `LeaderHistory` is pure and bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from attrs import define

from nameservice import NameServiceError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from haservices import ComponentInformation
    from queryablestate.gateway.leader_watching import Leaders


__all__ = ["LeaderHistory", "SeenLeadership", "follow_leaders"]

_COMPONENT_COUNT_MAX: Final = 1_000
_LEADERSHIP_COUNT_MAX: Final = 20
_LOOK_SECONDS: Final = 1.0


@final
@define
class SeenLeadership:
    """
    One leadership, as far as it was seen.

    Attributes:
        address: Of the leader.
        epoch: Of the leadership.
        since: When it was seen first.
        until: When it was seen no more, or None while it is.
        is_older: Whether it was there at the first look: it began before *since*.
    """

    address: str
    epoch: int
    since: datetime
    until: datetime | None
    is_older: bool


@final
class LeaderHistory:
    """
    The last leaderships of each component; the newest comes last.

    Args:
        component_count_max: Components; the one that changed least recently goes.
        leadership_count_max: Leaderships of each; the oldest goes.
    """

    def __init__(
        self,
        *,
        component_count_max: int = _COMPONENT_COUNT_MAX,
        leadership_count_max: int = _LEADERSHIP_COUNT_MAX,
    ) -> None:
        self._component_count_max = component_count_max
        self._leadership_count_max = leadership_count_max
        self._seen: OrderedDict[str, deque[SeenLeadership]] = OrderedDict()
        self._began: datetime | None = None

    @property
    def began(self) -> datetime | None:
        """Return when the first look was, or None."""
        return self._began

    def observe(
        self, components: Sequence[ComponentInformation], now: datetime
    ) -> None:
        """Take note of who leads now."""
        is_first = self._began is None
        if self._began is None:
            self._began = now
        leaders = {
            one.component_id: one.leader for one in components if one.leader is not None
        }
        for component_id, seen in self._seen.items():
            last = seen[-1]
            leader = leaders.get(component_id)
            if last.until is None and (leader is None or leader.epoch != last.epoch):
                last.until = now
        for component_id, leader in leaders.items():
            seen = self._seen.setdefault(
                component_id, deque(maxlen=self._leadership_count_max)
            )
            if seen and seen[-1].until is None:
                seen[-1].address = leader.address
                continue
            seen.append(
                SeenLeadership(leader.address, leader.epoch, now, None, is_first)
            )
            self._seen.move_to_end(component_id)
        while len(self._seen) > self._component_count_max:
            self._seen.popitem(last=False)

    def of(self, component_id: str) -> Sequence[SeenLeadership]:
        """Return what was seen of a component, the oldest first."""
        return tuple(self._seen.get(component_id, ()))

    def component_ids(self) -> Sequence[str]:
        """Return every component of which something was seen, sorted."""
        return sorted(self._seen)


async def follow_leaders(leaders: Leaders, history: LeaderHistory) -> None:
    """Look who leads, once a second, until cancelled."""
    while True:
        # Who asks for the page is told what is wrong; here only what is known counts.
        with contextlib.suppress(NameServiceError):
            history.observe(await leaders.all(), datetime.now(UTC))
        await asyncio.sleep(_LOOK_SECONDS)
