"""Messages, events and effects as a person reads them."""

from __future__ import annotations

from enum import Enum
from uuid import UUID

import attrs
from msgspec import Struct


__all__ = ["describe"]

_UNSAID = ("secret", "nonce")
_EPOCH_COUNTER_BITS = 32


def describe(value: object) -> str:
    """Return *value* in one line, without what only machines can tell apart."""
    if isinstance(value, Struct):
        names = value.__struct_fields__
    elif attrs.has(type(value)):
        names = tuple(field.name for field in attrs.fields(type(value)))  # type: ignore[arg-type]
    else:
        return _plain(value)
    parts = [type(value).__name__]
    for name in names:
        field_value = getattr(value, name)
        if name in _UNSAID or field_value is None or field_value in ((), [], {}):
            continue
        if name in ("body", "message", "event", "effect"):
            parts.append(f"{describe(field_value)}")
        elif name in ("epoch", "epoch_seen", "epoch_ended") and field_value:
            parts.append(f"{name}={_epoch(field_value)}")
        else:
            parts.append(f"{name}={describe(field_value)}")
    text = " ".join(parts)
    return text if len(parts) == 1 else f"({text})"


def _plain(value: object) -> str:
    if isinstance(value, UUID):
        return value.hex[:8]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if isinstance(value, str):
        return value
    return repr(value)


def _epoch(epoch: int) -> str:
    """Return an epoch as incarnation and counter."""
    counter = epoch & ((1 << _EPOCH_COUNTER_BITS) - 1)
    return f"{epoch >> _EPOCH_COUNTER_BITS}.{counter}"
