"""Run a verb that was parsed, and tell in one line how it went wrong."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from lodestar.exit_codes import ExitCode, exit_code_of
from lodestar.output import say
from lodestar.streams import discard
from lodestar.verbs import SERVING_VERBS
from nameservice import NameServiceError, RemoteProtocolError, configure_logging


if TYPE_CHECKING:
    import argparse


__all__ = ["run"]

_NOT_UNDERSTOOD: Final = frozenset({"malformed", "invalid"})
"""What a request is answered with that the other side does not know."""


def run(parsed: argparse.Namespace) -> int:
    """
    Run the verb of *parsed*.

    Returns:
        An `ExitCode`, or from ``elect`` and ``standby`` that of its command.
    """
    configure_logging(parsed.log_level)
    try:
        code: int = parsed.run(parsed)
    except BrokenPipeError:
        discard(sys.stdout)  # the reader is gone (`lodestar leaders | head -1`)
        # It has read what it wanted; a server that is heard by no one has failed.
        is_serving = parsed.verb in {"elect", "standby", *SERVING_VERBS}
        return ExitCode.FAILED if is_serving else ExitCode.DONE
    except KeyboardInterrupt as interrupt:
        notes = getattr(interrupt, "__notes__", ())
        say(parsed.verb, "; ".join(("interrupted", *notes)))
        return ExitCode.FAILED
    except (NameServiceError, OSError) as error:
        notes = [*getattr(error, "__notes__", ())]
        if isinstance(error, RemoteProtocolError) and error.reason in _NOT_UNDERSTOOD:
            notes.append("the other side may run an earlier version: upgrade it first")
        say(parsed.verb, "; ".join((_text_of(error), *notes)))
        return exit_code_of(error)
    return code


def _text_of(error: NameServiceError | OSError) -> str:
    """Return what *error* says, without the number that the system has for it."""
    if isinstance(error, NameServiceError) or error.strerror is None:
        return str(error)
    return (
        error.strerror
        if error.filename is None
        else f"{os.fsdecode(error.filename)}: {error.strerror}"
    )
