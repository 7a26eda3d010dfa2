"""The option ``--metrics`` of verbs that run a server (rule F1)."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from haservices.metrics import serve_metrics
from haservices.metrics.http import parse_address
from nameservice import ConfigurationError


if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nameservice.observation import Observable


__all__ = ["add_metrics_option", "metrics_of"]


def add_metrics_option(parser: argparse.ArgumentParser) -> None:
    """Offer ``--metrics``."""
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        type=_address,
        help="serve metrics for Prometheus, /healthz and /readyz over HTTP there, to "
        "everybody who reaches it; without HOST to this machine alone (default: no)",
    )


def _address(text: str) -> str:
    try:
        parse_address(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def metrics_of(
    arguments: argparse.Namespace, observed: Observable
) -> AbstractContextManager[object]:
    """
    Return what serves the metrics of *observed* for a ``with`` block, if it is to be.

    Raises:
        ConfigurationError: If the address is taken, or prometheus-client
            is not installed.
    """
    if arguments.metrics is None:
        return contextlib.nullcontext()
    return serve_metrics(observed, arguments.metrics)
