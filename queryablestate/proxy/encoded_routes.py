"""
`EncodedRoutes`: routes of wide jobs, as they are sent; pure.

A job of 32,768 key groups has a route of 32,768 numbers.  To encode it takes longer
than all else about a description, and it is the same for all who ask until the job has
another assignment (rule B2).  So it is encoded once, and copied into each answer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from attrs import frozen
from msgspec import Raw
from msgspec.structs import replace

from queryablestate.wire.clients import StateDescribed
from queryablestate.wire.codec import encode_payload


if TYPE_CHECKING:
    from queryablestate.wire.clients import StateDescription, StatesListed


__all__ = ["EncodedRoutes"]

_SIZE_BYTES_MAX: Final = 16 << 20
_REFERENCE_SIZE_BYTES: Final = 8
"""What one number of a route takes besides: small numbers are there once."""


@final
@frozen(eq=False)
class _Route:
    """A route, and its bytes."""

    owners: tuple[int, ...]
    encoded: Raw

    @property
    def size_bytes(self) -> int:
        return len(self.owners) * _REFERENCE_SIZE_BYTES + len(memoryview(self.encoded))


@final
class EncodedRoutes:
    """
    Of each job the route that was sent last, as long as there is room.

    A route is known by its identity: the control plane has one tuple for all who ask
    (`Job.primary_indexes`), and another one with another assignment.

    Args:
        size_bytes_max: Of all; the one that was not sent for longest goes first.

    Attributes:
        size_bytes: What is kept.
        encoded_count: How often a route had to be encoded.
    """

    def __init__(self, size_bytes_max: int = _SIZE_BYTES_MAX) -> None:
        self._size_bytes_max = size_bytes_max
        self._routes: OrderedDict[str, _Route] = OrderedDict()
        self.size_bytes = 0
        self.encoded_count = 0

    def with_routes(
        self, message: StateDescribed | StatesListed
    ) -> StateDescribed | StatesListed:
        """Return *message* with its routes encoded already; it can only be encoded."""
        if isinstance(message, StateDescribed):
            return replace(message, description=self._with_route(message.description))
        return replace(message, states=tuple(map(self._with_route, message.states)))

    def _with_route(self, description: StateDescription) -> StateDescription:
        owners = description.owners
        kept = self._routes.get(description.job_id)
        if kept is not None and kept.owners is owners:
            self._routes.move_to_end(description.job_id)
            return replace(description, owners=kept.encoded)
        self.encoded_count += 1
        route = _Route(owners, Raw(encode_payload(owners)))
        self._keep(description.job_id, route)
        return replace(description, owners=route.encoded)

    def _keep(self, job_id: str, route: _Route) -> None:
        self._remove(job_id)
        if route.size_bytes > self._size_bytes_max:
            return
        while self.size_bytes + route.size_bytes > self._size_bytes_max:
            self._remove(next(iter(self._routes)))
        self._routes[job_id] = route
        self.size_bytes += route.size_bytes

    def _remove(self, job_id: str) -> None:
        route = self._routes.pop(job_id, None)
        if route is not None:
            self.size_bytes -= route.size_bytes
