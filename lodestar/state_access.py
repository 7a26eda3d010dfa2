"""What the verbs about queryable state share: as whom, how long, and against what."""

from __future__ import annotations

import argparse
import contextlib
import os
from argparse import Namespace
from typing import TYPE_CHECKING, TypedDict

from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    load_config,
    positive_seconds,
)
from lodestar.verbs import near_name
from nameservice import (
    AuthenticationError,
    NameServiceError,
    NoLeaderError,
    UnreachableError,
)
from queryablestate import UnknownJobError, UnknownStateError
from queryablestate.client.client import QueryableStateClient
from queryablestate.connect.credentials import Credentials, credentials_of
from queryablestate.operations.state_operations import StateOperations
from queryablestate.schema.operator_states import RESERVED_STATE_PREFIX


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = [
    "add_least_options",
    "add_state_options",
    "least_arguments",
    "open_client",
    "open_operations",
]

_DEADLINE_SECONDS = 5.0
_KNOWN_COUNT_MAX = 8


class _Least(TypedDict):
    min_batch_id: int | None
    min_generation: int | None


def add_state_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who asks, how long, and at which name service."""
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=positive_seconds,
        default=_DEADLINE_SECONDS,
        help="how long each question may take in all (default: %(default)g)",
    )
    group = parser.add_argument_group(
        "access",
        "Needed where the proxy's configuration lists callers; see 'lodestar keygen'.",
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        default=os.environ.get("LODESTAR_TOKEN_FILE"),
        help="our token, readable by us alone (default: LODESTAR_TOKEN_FILE)",
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


def add_least_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that wait for a batch; see `least_arguments`."""
    parser.add_argument(
        "--min-batch",
        metavar="N",
        type=int,
        help="wait until this batch is visible, within the deadline",
    )
    parser.add_argument(
        "--min-generation",
        metavar="G",
        type=int,
        help="wait for a batch of this generation (default: the present one); "
        "'lodestar states' shows it, and it rises when another query takes a state "
        "over",
    )


def least_arguments(arguments: Namespace) -> _Least:
    """Return what `add_least_options` was told, as the client takes it."""
    return _Least(
        min_batch_id=arguments.min_batch, min_generation=arguments.min_generation
    )


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
        try:
            yield client
        except (UnknownJobError, UnknownStateError) as error:
            _add_known(error, client)
            raise
        except AuthenticationError as error:
            _add_options(error, arguments)
            raise


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
        try:
            yield operations
        except (UnknownJobError, UnknownStateError) as error:
            with QueryableStateClient(
                config, _credentials(arguments), deadline_seconds=arguments.deadline
            ) as client:
                _add_known(error, client)
            raise
        except AuthenticationError as error:
            _add_options(error, arguments)
            raise


@contextlib.contextmanager
def _no_proxy_is_unreachable(url: str) -> Iterator[None]:
    # "Not found" is about jobs, states and keys here: a caller who looks for one must
    # not take a proxy that is away for a key that is not there.
    try:
        yield
    except NoLeaderError as error:
        raise UnreachableError(
            f"queryable state at {url}",
            error.waited_seconds,
            "the name service answers, but no proxy serves queryable state; start one "
            "with 'lodestar proxy'",
        ) from error


def _add_known(
    error: UnknownJobError | UnknownStateError, client: QueryableStateClient
) -> None:
    """Say in *error* what may be meant, as far as we are told."""
    # What is wrong is known; what may be meant is worth one question, no second error.
    with contextlib.suppress(NameServiceError):
        if isinstance(error, UnknownStateError):
            name, known = _split(error.state_name, client.states(error.job_id))
        else:
            name, known = error.job_id, client.jobs()
        near = near_name(name, known)
        if near == name:
            return  # there is one by now
        if near is not None:
            error.add_note(f"did you mean {near!r}?")
        elif known:
            shown = ", ".join(repr(each) for each in known[:_KNOWN_COUNT_MAX])
            more = ", ..." if len(known) > _KNOWN_COUNT_MAX else ""
            error.add_note(f"there are {shown}{more}")


def _add_options(error: AuthenticationError, arguments: Namespace) -> None:
    """Say in *error* how to show who we are, where nothing was shown to a proxy."""
    is_shown = arguments.token_file or arguments.caller_secret_key_file
    if not is_shown and error.target.startswith("tcp://"):
        error.add_note("give --token-file, or --caller-secret-key-file")


def _split(name: str, known: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return *name* and those of its kind; published operator states by their own."""
    prefix = RESERVED_STATE_PREFIX
    if not name.startswith(prefix):
        return name, [each for each in known if not each.startswith(prefix)]
    own = [each.removeprefix(prefix) for each in known if each.startswith(prefix)]
    return name.removeprefix(prefix), own


def _credentials(arguments: Namespace) -> Credentials:
    return credentials_of(
        token_file=arguments.token_file,
        curve_public_key_file=arguments.caller_public_key_file,
        curve_secret_key_file=arguments.caller_secret_key_file,
    )
