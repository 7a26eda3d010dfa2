"""
Checks that the settings of servers, proxies and nodes share; pure.

Each raises a `ConfigurationError` that names the setting and says what it may be.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from attrs import Attribute


__all__ = [
    "FilePath",
    "check_all_or_none",
    "check_count",
    "check_flag",
    "check_frame_size",
    "check_optional_path",
    "check_optional_text",
    "check_path",
    "check_renamed",
    "check_text",
    "insecure_error",
    "renamed_settings",
    "seconds_between",
    "whole_between",
]

FilePath: TypeAlias = str | os.PathLike[str]

T = TypeVar("T")

_COUNT_MAX: Final = 10_000_000
_FRAME_SIZE_BYTES_MIN: Final = 65_536
_FRAME_SIZE_BYTES_MAX: Final = 60 << 20
"""Clients and nodes take 64 MiB: what one side admits, the other must pass on."""


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


def check_path(_: object, attribute: Attribute[Any], value: object) -> None:
    """Admit a path that is not empty."""
    if not (isinstance(value, str | os.PathLike) and os.fspath(value)):
        raise ConfigurationError(f"{attribute.name} must be a path, not {value!r}")


def check_optional_path(_: object, attribute: Attribute[Any], value: object) -> None:
    """Admit a path that is not empty, or None."""
    if value is not None:
        check_path(_, attribute, value)


def check_flag(_: object, attribute: Attribute[bool], value: object) -> None:
    """Admit true and false, and nothing that only counts as either."""
    if not isinstance(value, bool):
        raise ConfigurationError(
            f"{attribute.name} must be true or false, not {value!r}"
        )


def check_all_or_none(config: object, *names: str, what: str) -> None:
    """
    Return if all of these settings of *config* are set, or none.

    Args:
        config: What has them.
        names: Their names, two at least.
        what: What needs them.
    """
    missing = [name for name in names if getattr(config, name) is None]
    if 0 < len(missing) < len(names):
        every = "both" if len(names) == 2 else "all of"
        raise ConfigurationError(
            f"{what} needs {every} {_listed(names)}: set {' and '.join(missing)} too"
        )


def insecure_error(name: str, endpoint: object, needed: Iterable[str]) -> Exception:
    """
    Return why a server does not listen where other machines can connect.

    Args:
        name: The setting that says where.
        endpoint: Its value.
        needed: What would make it secure.
    """
    return ConfigurationError(
        f"{name} {endpoint} lets other machines in without proving who they are: set "
        f"{_listed(tuple(needed))} (lodestar keygen makes keys), bind to 127.0.0.1, or "
        "accept it with is_insecure_allowed (--insecure)"
    )


def check_renamed(settings: Iterable[str], new_names: Mapping[str, str]) -> None:
    """Refuse the names in *settings* that are old; *new_names* has the new ones."""
    for name in settings:
        if name in new_names:
            raise ConfigurationError(f"{name} is called {new_names[name]} now")


def renamed_settings(new_names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Have a class of settings answer old names with an error that has the new one."""

    def decorate(settings_class: type[T]) -> type[T]:
        init = settings_class.__init__

        @functools.wraps(init)
        def checked(self: T, *args: Any, **settings: Any) -> None:
            check_renamed(settings, new_names)
            init(self, *args, **settings)

        settings_class.__init__ = checked  # type: ignore[assignment]
        return settings_class

    return decorate


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
