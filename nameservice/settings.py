"""
Validators that the settings of proxies and nodes share; pure.

Each raises a `ConfigurationError` that names the setting and says what it may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import Attribute


__all__ = [
    "check_count",
    "check_flag",
    "check_frame_size",
    "check_optional_text",
    "check_text",
    "seconds_between",
    "whole_between",
]

_COUNT_MAX: Final = 10_000_000
_FRAME_SIZE_BYTES_MIN: Final = 65_536
_FRAME_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024


def seconds_between(
    least: float, most: float
) -> Callable[[object, Attribute[float], object], None]:
    """Return what admits numbers of seconds from *least* to *most*."""

    def check(_: object, attribute: Attribute[float], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(
                f"{attribute.name} must be a number of seconds, not {value!r}"
            )
        if not least <= value <= most:  # also refuses NaN
            raise ConfigurationError(
                f"{attribute.name} must be {least:g} to {most:g} seconds, not {value!r}"
            )

    return check


def whole_between(
    least: int, most: int, *, unit: str = ""
) -> Callable[[object, Attribute[int], object], None]:
    """Return what admits whole numbers of *unit* from *least* to *most*."""

    def check(_: object, attribute: Attribute[int], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigurationError(
                f"{attribute.name} must be a whole number{unit and f' of {unit}'}, "
                f"not {value!r}"
            )
        if not least <= value <= most:
            raise ConfigurationError(
                f"{attribute.name} must be {least:,} to {most:,}"
                f"{unit and f' {unit}'}, not {value:,}"
            )

    return check


check_count: Final = whole_between(1, _COUNT_MAX)
"""Admits a number of things, one at least."""

check_frame_size: Final = whole_between(
    _FRAME_SIZE_BYTES_MIN, _FRAME_SIZE_BYTES_MAX, unit="bytes"
)
"""Admits a size that a frame may have."""


def check_text(_: object, attribute: Attribute[Any], value: object) -> None:
    """Admit printable text that is not empty."""
    if not (isinstance(value, str) and value and value.isprintable()):
        raise ConfigurationError(
            f"{attribute.name} must be printable text, not {value!r}"
        )


def check_optional_text(_: object, attribute: Attribute[Any], value: object) -> None:
    """Admit printable text, or None."""
    if value is not None:
        check_text(_, attribute, value)


def check_flag(_: object, attribute: Attribute[bool], value: object) -> None:
    """Admit true and false, and nothing that only counts as either."""
    if not isinstance(value, bool):
        raise ConfigurationError(
            f"{attribute.name} must be true or false, not {value!r}"
        )
