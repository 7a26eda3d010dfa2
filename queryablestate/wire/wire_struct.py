"""`WireStruct`: what all messages and records of queryable state share."""

from __future__ import annotations

from msgspec import Struct


__all__ = ["WireStruct"]


class WireStruct(Struct, frozen=True, forbid_unknown_fields=True):
    """A message or a record; its fields are keywords, and others are malformed."""
