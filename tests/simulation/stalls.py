"""Stalls of the server that come again and again, as those of a slow disk do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import evolve, frozen

from tests.simulation.timeline import MS


if TYPE_CHECKING:
    from random import Random

    from tests.simulation.world import World


__all__ = ["Stalls"]

# Between two stalls there is some time to run in.
_RUN_NS_MIN: Final = 20 * MS


@final
@frozen(kw_only=True)
class Stalls:
    """
    One stall after the other.

    Attributes:
        stall_ns: How long each is.
        period_ns: How long it is from the beginning of one to the next.
    """

    stall_ns: int
    period_ns: int

    @classmethod
    def drawn(cls, rng: Random) -> Stalls:
        """Return stalls of 60 or 230 ms, 2 to 10 in a second as far as they fit."""
        stall_ns = rng.choice((60, 230)) * MS
        period_ns = rng.randint(100, 500) * MS
        return cls(stall_ns=stall_ns, period_ns=max(period_ns, stall_ns + _RUN_NS_MIN))

    def within(self, lease_ns: int) -> Stalls:
        """
        Return these stalls, none longer than half of *lease_ns*.

        While a server stalls for longer than a lease its holder cannot believe: then
        another may lead in time, and never be seen to.
        """
        return evolve(self, stall_ns=min(self.stall_ns, lease_ns // 2))

    def real_ns(self, running_ns: int) -> int:
        """Return how long it takes until the server has run for *running_ns*."""
        run_ns = self.period_ns - self.stall_ns
        return running_ns + (running_ns // run_ns + 1) * self.stall_ns

    def begin(self, world: World, *, until_ns: int) -> None:
        """Make the server that runs then stall, again and again until *until_ns*."""

        def stall() -> None:
            if world.timeline.now_ns >= until_ns:
                return
            server = world.host.process
            if server is not None and not server.is_paused:
                server.pause()
                world.timeline.after(
                    min(self.stall_ns, until_ns - world.timeline.now_ns), server.resume
                )
            world.timeline.after(self.period_ns, stall)

        stall()
