"""
Log configuration: console lines on a terminal, JSON lines when piped.

A library keeps quiet: until the application configures structlog, only warnings and
worse are shown, on standard error.  structlog's configuration is the application's: it
is left alone, and what the application itself logs is shown as ever.

A line that cannot be written (standard error is a pipe without a reader, or a file on
a full disk, or the application's processor fails) is lost, and nothing else is: leaders
are told that they lead no more, and loops go on.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, final

import structlog


if TYPE_CHECKING:
    from structlog.typing import Processor


__all__ = ["Logger", "configure_logging", "get_logger"]

_QUIET: Final = structlog.make_filtering_bound_logger(logging.WARNING)


@final
class Logger:
    """
    Logs as the application has configured structlog by the time of each line.

    Until it has, shows warnings and worse on standard error.  Never raises.

    Args:
        name: Of the module that logs.
        values: What each line has.
    """

    __slots__ = ("_configured", "_name", "_named", "_values")

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        self._name = name
        self._values = values
        self._configured = structlog.get_logger(**values)
        self._named = structlog.get_logger(name, **values)

    def bind(self, **values: Any) -> Logger:
        """Return a logger that has *values*, too."""
        return Logger(self._name, {**self._values, **values})

    def debug(self, event: str, **values: Any) -> None:
        """Log what helps to find a mistake of ours."""
        self._log("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        """Log what happens in good times."""
        self._log("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log what somebody may have to see to."""
        self._log("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log what somebody has to see to."""
        self._log("error", event, values)

    def exception(self, event: str, **values: Any) -> None:
        """Log an error with the exception that is being handled."""
        self._log("exception", event, values)

    def _log(self, level_name: str, event: str, values: dict[str, Any]) -> None:
        try:
            if structlog.is_configured():
                logger = self._named if _has_names() else self._configured
            elif level_name in {"debug", "info"} or sys.stderr is None:
                return  # without standard error structlog would take standard output
            else:
                # Out of the box structlog prints to standard output, which belongs to
                # the application.  Looked up for each line: who replaces sys.stderr
                # wants the lines there.
                logger = structlog.wrap_logger(
                    structlog.PrintLogger(sys.stderr),
                    processors=[*_own_processors(), _for_people()],
                    wrapper_class=_QUIET,
                    **self._values,
                )
            getattr(logger, level_name)(event, **values)
        except Exception:  # noqa: BLE001, S110 - there is no other place to say it
            pass


def _has_names() -> bool:
    """
    Return whether the application has lines go through the standard library's loggers.

    structlog would name ours after the module that calls it, which is this one: so
    levels and handlers that are set for ``queryablestate`` would not be found.  Other
    factories of loggers need not take a name.
    """
    factory = structlog.get_config()["logger_factory"]
    return isinstance(factory, structlog.stdlib.LoggerFactory)


def _own_processors() -> list[Processor]:
    """Return what structlog does out of the box before it renders a line."""
    processors: list[Processor] = structlog.get_config()["processors"]
    return processors[:-1]


def _for_people() -> Processor:
    """
    Return what writes lines for people.

    Where rich is installed structlog would have it show the local variables of each
    function of a traceback: tokens are among them.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return structlog.dev.ConsoleRenderer(
        colors=is_terminal and not os.environ.get("NO_COLOR"),
        exception_formatter=structlog.dev.plain_traceback,
    )


def get_logger(**initial_values: Any) -> Logger:
    """Return a logger with *initial_values* bound; shells keep one per object."""
    module = sys._getframe(1).f_globals  # noqa: SLF001 (as logging itself finds it)
    return Logger(module.get("__name__", __name__), initial_values)


def configure_logging(level_name: str = "info") -> None:
    """
    Send log lines to standard error; programs call it once, libraries never.

    On a terminal they are coloured, unless ``NO_COLOR`` is set (https://no-color.org).

    Args:
        level_name: ``debug``, ``info``, ``warning`` or ``error``.
    """
    is_terminal = sys.stderr.isatty()
    renderer: Processor = (
        _for_people() if is_terminal else structlog.processors.JSONRenderer()
    )
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not is_terminal:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level_name.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
