"""
What a caller may hand in besides fields: timeouts and callbacks; pure.

Both fail late if they are not checked: a timeout that is not a number spins or waits
for ever, and a callback that cannot be called is missed when it is needed.
"""

from __future__ import annotations

import inspect
import math
from numbers import Real
from typing import Final

from nameservice.errors import ConfigurationError


__all__ = [
    "TIMEOUT_SECONDS_MAX",
    "check_action",
    "check_callbacks",
    "check_function",
    "check_seconds",
    "check_timeout_seconds",
]

TIMEOUT_SECONDS_MAX: Final = 1e9
"""Some thirty years; `threading` refuses what is much longer."""


def check_timeout_seconds(
    value: object, *, what: str = "timeout_seconds"
) -> float | None:
    """
    Return *value* as a timeout: None, or 0 to 1e9 seconds.

    Args:
        value: What the caller passed.
        what: How the error names it.

    Raises:
        ConfigurationError: If it is negative, not finite, or no number.
    """
    if value is None:
        return None
    return _seconds_of(
        value,
        f"{what} must be None or a number of seconds",
        ": pass None to wait for as long as it takes",
    )


def check_seconds(value: object, *, what: str) -> float:
    """
    Return *value* as a duration that has to be said: 0 to 1e9 seconds.

    Args:
        value: What the caller passed.
        what: How the error names it.

    Raises:
        ConfigurationError: If it is negative, not finite, or no number, as None.
    """
    return _seconds_of(value, f"{what} must be a number of seconds", "")


def _seconds_of(value: object, rule: str, advice: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigurationError(f"{rule}, not {value!r}")
    try:
        seconds = float(value)
    except OverflowError:  # an integer beyond every float
        seconds = math.inf
    if not 0 <= seconds <= TIMEOUT_SECONDS_MAX:  # also refuses NaN
        raise ConfigurationError(
            f"{rule} from 0 to {TIMEOUT_SECONDS_MAX:g}, not {value!r}{advice}"
        )
    return seconds


def check_callbacks(value: object, *methods: str, what: str) -> None:
    """
    Return if *value* has *methods* that can be called.

    Args:
        value: What the caller passed.
        methods: What will be called.
        what: How the error names it, e.g. ``"a contender"``.

    Raises:
        ConfigurationError: If it has not, is a class, or they are coroutines.
    """
    if isinstance(value, type):
        message = f"{what} must be an object: make one of the class {value.__name__}"
        raise ConfigurationError(message)
    for name in methods:
        method = getattr(value, name, None)
        if not callable(method):
            message = f"{what} needs a method {name}: {type(value).__name__} has none"
            raise ConfigurationError(message)
        _check_no_coroutine(method, what=f"{name} of {what}")


def check_function(value: object, *, what: str) -> None:
    """
    Return if *value* can be called, whatever it returns.

    Raises:
        ConfigurationError: If it cannot.
    """
    if not callable(value):
        message = f"{what} must be callable, not {type(value).__name__}"
        raise ConfigurationError(message)


def check_action(value: object, *, what: str) -> None:
    """
    Return if *value* can be called.

    Raises:
        ConfigurationError: If it cannot, or is a coroutine function.
    """
    check_function(value, what=what)
    _check_no_coroutine(value, what=what)


def _check_no_coroutine(value: object, *, what: str) -> None:
    if inspect.iscoroutinefunction(value):
        message = (
            f"{what} is called on a thread and not awaited: it must not be 'async def'"
        )
        raise ConfigurationError(message)
