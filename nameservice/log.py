"""
Log configuration: console lines on a terminal, JSON lines when piped.

A library keeps quiet: until somebody configures structlog, only warnings and worse are
shown, on standard error.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import structlog


if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor


__all__ = ["configure_logging", "get_logger"]


if not structlog.is_configured():
    # Out of the box structlog prints everything to standard output, which belongs to
    # the application.  Whatever the application configures later takes the place of
    # this, for loggers that exist already, too.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # Looked up for each logger: who replaces sys.stderr wants the lines there.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(**initial_values: Any) -> FilteringBoundLogger:
    """Return a logger with *initial_values* bound; shells keep one per object."""
    logger: FilteringBoundLogger = structlog.get_logger(**initial_values)
    return logger


def configure_logging(level_name: str = "info") -> None:
    """
    Send log lines to standard error; programs call it once, libraries never.

    On a terminal they are coloured, unless ``NO_COLOR`` is set (https://no-color.org).

    Args:
        level_name: ``debug``, ``info``, ``warning`` or ``error``.
    """
    is_terminal = sys.stderr.isatty()
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))
        if is_terminal
        else structlog.processors.JSONRenderer()
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
