"""
Where epochs come from (rule E2).

A `LeaderServer` cannot ask its predecessor which epochs it granted, so its epochs
carry the *incarnation* of the server in their high 31 bits and a counter in the low
32.  An embedded name service lives and dies with its process: one counter will do.
"""

from __future__ import annotations

from typing import Final, Protocol, final

from nameservice.errors import ConfigurationError


__all__ = [
    "COUNTER_BITS",
    "EVERY_COMPONENT",
    "INCARNATION_MAX",
    "EpochSource",
    "IncarnationEpochs",
    "ProcessEpochs",
    "incarnation_after",
    "incarnation_of",
]

COUNTER_BITS: Final = 32
EVERY_COMPONENT: Final = ""
"""What an epoch is recorded for that was granted, and is over, whatever component."""

INCARNATION_MAX: Final = 2**31 - 1
"""The highest that an epoch has room for."""

_AHEAD_SECONDS_MAX: Final = 24 * 60 * 60
_NS_PER_SECOND: Final = 1_000_000_000


def incarnation_of(epoch: int) -> int:
    """Return the incarnation of the server that granted *epoch*."""
    return epoch >> COUNTER_BITS


def incarnation_after(used: int, *, at_least: int) -> int:
    """Return an incarnation above *used*, whatever the clock says that it is."""
    return max(used + 1, at_least)


class EpochSource(Protocol):
    """Draws epochs, each above all that it drew or was told of."""

    def draw(self, *, above: int) -> int:
        """Return an epoch greater than *above* and than every epoch before."""

    def admits(self, epoch: int, *, now_ns: int) -> bool:
        """Return whether *epoch* may have been granted by somebody's clock."""

    def observe(self, epoch: int) -> None:
        """Record an admitted *epoch*: draw above it from now on."""

    @property
    def incarnation(self) -> int:
        """Return the incarnation that the next epoch will carry."""


@final
class IncarnationEpochs:
    """
    The epochs of one start of a LeaderServer.

    Args:
        incarnation: Above every earlier incarnation as far as it is known: at least
            the stored one plus 1, and the seconds since 2020.
        started_ns: When that was computed, on the clock of the core.

    Raises:
        ConfigurationError: If *incarnation* does not fit into 31 bits.
    """

    def __init__(self, incarnation: int, *, started_ns: int) -> None:
        if not 1 <= incarnation <= INCARNATION_MAX:
            message = (
                f"incarnation {incarnation} is not in 1 to {INCARNATION_MAX}: the "
                "clock or the data directory of this server is wrong"
            )
            raise ConfigurationError(message)
        self._first = incarnation
        self._started_ns = started_ns
        self._incarnation = incarnation
        self._counter = 0

    @property
    def incarnation(self) -> int:
        """Return the incarnation that the next epoch will carry."""
        return self._incarnation

    def draw(self, *, above: int) -> int:
        """Return an epoch greater than *above* and than every epoch before."""
        self.observe(above)
        self._counter += 1
        if self._counter >> COUNTER_BITS:
            self._incarnation += 1
            self._counter = 1
        return self._incarnation << COUNTER_BITS | self._counter

    def admits(self, epoch: int, *, now_ns: int) -> bool:
        """Return whether *epoch* is at most a day ahead of our own clock."""
        elapsed_seconds = (now_ns - self._started_ns) // _NS_PER_SECOND
        ceiling = self._first + elapsed_seconds + _AHEAD_SECONDS_MAX
        return incarnation_of(epoch) <= min(ceiling, INCARNATION_MAX - 1)

    def observe(self, epoch: int) -> None:
        """Go on in an incarnation of our own if *epoch* is above what we drew."""
        if epoch > (self._incarnation << COUNTER_BITS | self._counter):
            self._incarnation = max(self._incarnation, incarnation_of(epoch) + 1)
            self._counter = 0


@final
class ProcessEpochs:
    """The epochs of everything embedded in one process: one counter from 1."""

    def __init__(self) -> None:
        self._last = 0

    @property
    def incarnation(self) -> int:
        """Return 0: a process has one life."""
        return 0

    def draw(self, *, above: int) -> int:
        """Return an epoch greater than *above* and than every epoch before."""
        self.observe(above)
        self._last += 1
        return self._last

    def admits(self, epoch: int, *, now_ns: int) -> bool:
        """Return whether this process drew *epoch*."""
        return epoch <= self._last

    def observe(self, epoch: int) -> None:
        """Draw above *epoch* from now on."""
        self._last = max(self._last, epoch)
