"""What the verbs about queryable state share: as whom, how long, and against what."""

from __future__ import annotations

import argparse
import contextlib
from argparse import Namespace
from typing import TYPE_CHECKING

from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    load_config,
    positive_seconds,
)
from nameservice import NoLeaderError, UnreachableError
from queryablestate.client import QueryableStateClient
from queryablestate.credentials import Credentials
from queryablestate.state_operations import StateOperations


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["add_state_options", "open_client", "open_operations"]

_DEADLINE_SECONDS = 5.0


def add_state_options(parser: argparse.ArgumentParser) -> None:
    """Let the caller say who it is, how long it waits, and which name service."""
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=positive_seconds,
        default=_DEADLINE_SECONDS,
        help="how long each question may take in all (default: %(default)g)",
    )
    group = parser.add_argument_group(
        "access", "Needed where the proxy has callers; see 'lodestar keygen'."
    )
    group.add_argument(
        "--token-file", metavar="FILE", help="our token, readable by us alone"
    )
    group.add_argument(
        "--caller-public-key-file", metavar="FILE", help="our own CURVE public key"
    )
    group.add_argument(
        "--caller-secret-key-file",
        metavar="FILE",
        help="our own CURVE secret key (default: the one for the name service)",
    )
    add_name_service_options(parser)
    add_log_option(parser, "error")


@contextlib.contextmanager
def open_client(arguments: Namespace) -> Iterator[QueryableStateClient]:
    """Yield a client as the options say; no proxy in time is "not reachable"."""
    config = load_config(arguments)
    with (
        _no_proxy_is_unreachable(config.url),
        QueryableStateClient(
            config, _credentials(arguments), deadline_seconds=arguments.deadline
        ) as client,
    ):
        yield client


@contextlib.contextmanager
def open_operations(arguments: Namespace) -> Iterator[StateOperations]:
    """Yield what operators use; no proxy in time is "not reachable"."""
    config = load_config(arguments)
    with (
        _no_proxy_is_unreachable(config.url),
        StateOperations(
            config, _credentials(arguments), deadline_seconds=arguments.deadline
        ) as operations,
    ):
        yield operations


@contextlib.contextmanager
def _no_proxy_is_unreachable(url: str) -> Iterator[None]:
    # "Not found" is about jobs, states and keys here: whoever looks for one must not
    # take a proxy that is away for a key that is not there.
    try:
        yield
    except NoLeaderError as error:
        raise UnreachableError(
            url,
            error.waited_seconds,
            "no proxy serves queryable state there; 'lodestar proxy' runs one",
        ) from error


def _credentials(arguments: Namespace) -> Credentials:
    return Credentials(
        token_file=arguments.token_file,
        curve_public_key_file=arguments.caller_public_key_file,
        curve_secret_key_file=arguments.caller_secret_key_file,
    )
