"""Where the errors of callbacks go: to the error handler of the same object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.errors import LocalProtocolError


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["call_back"]


def call_back(
    callback: Callable[[], None], tell_error: Callable[[Exception], None], *, what: str
) -> None:
    """
    Call *callback*; what it raises is told, and no thread of ours ends by it.

    Args:
        callback: Of a contender or a listener.
        tell_error: Must not raise.
        what: How the error names what has asked to exit, "the listener" for one.
    """
    try:
        callback()
    except Exception as error:  # noqa: BLE001 - its own fault is told to itself
        tell_error(error)
    except BaseException as exit_request:  # noqa: BLE001 - sys.exit() ends no thread of ours
        fault = LocalProtocolError(f"{what} raised {exit_request!r}")
        fault.__cause__ = exit_request
        tell_error(fault)
