"""What the leader store holds."""

from __future__ import annotations

from attrs import frozen


__all__ = ["VersionedValue"]


@frozen(kw_only=True)
class VersionedValue:
    """
    A value of the store.

    Attributes:
        value: The bytes as they were put.
        version: 1 when the path was created, one more with each put since.
    """

    value: bytes
    version: int
