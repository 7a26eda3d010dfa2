"""
What verbs have in common: how a name service is named, and how bad usage is told.

Every setting of `HAConfig` is an option of every verb that talks to a name service.
What is not given comes from the environment and the configuration file, as in a
program: the command line adds no defaults of its own.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from functools import partial
from typing import Any, Final

from haservices import Backend, HAConfig
from haservices.config import unknown_environment
from nameservice import ConfigurationError, check_component_id
from nameservice.fields import check_identifier, check_store_prefix
from nameservice.parameters import TIMEOUT_SECONDS_MAX


__all__ = [
    "add_json_option",
    "add_log_option",
    "add_name_service_options",
    "add_setting",
    "job_id",
    "load_config",
    "positive_count",
    "positive_seconds",
    "seconds_or_zero",
    "settings_of",
]

_PREFIX: Final = "setting_"
"""Options with this prefix in their ``dest`` are settings of `HAConfig`."""

_SECONDS_MIN: Final = 1e-9
"""Time is counted in nanoseconds: what is less would be none at all."""

_FILE_OPTIONS: Final = (
    ("curve_public_key_file", "our own CURVE public key (LeaderServer)"),
    ("curve_secret_key_file", "our own CURVE secret key (LeaderServer)"),
    ("curve_server_key_file", "the server's CURVE public key (LeaderServer)"),
    ("zookeeper_auth_file", "scheme:credential on one line (ZooKeeper)"),
    ("zookeeper_tls_ca_file", "whom to trust; turns TLS on (ZooKeeper)"),
    ("zookeeper_tls_cert_file", "our own certificate (ZooKeeper)"),
    ("zookeeper_tls_key_file", "its key (ZooKeeper)"),
)


def add_json_option(parser: argparse._ActionsContainer, what: str) -> None:
    """Add the option that asks for JSON; *what* says in which form it comes."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def add_log_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option that says how much is logged to standard error."""
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=default,
        help="how much to log to standard error (default: %(default)s)",
    )


def add_name_service_options(
    parser: argparse.ArgumentParser, *, stays: bool = False, contends: bool = False
) -> None:
    """
    Add the options that say which name service, and how to live with it.

    Args:
        parser: A verb's.
        stays: Whether the verb goes on long enough to be out of contact meanwhile.
        contends: Whether the verb contends for leadership.
    """
    group = parser.add_argument_group(
        "name service",
        "What is not given here comes from LODESTAR_* in the environment, then\nfrom "
        "the configuration file.",
    )

    add = partial(add_setting, _PREFIX, group)
    add(
        "url",
        metavar="URL",
        help="leaderserver://host:port or zookeeper://h1:2181,h2:2181/chroot",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings (default: LODESTAR_CONFIG, or lodestar.toml "
        "where there is one)",
    )
    add(
        "cluster_id",
        metavar="ID",
        help="which of the deployments that share the name service",
    )
    add(
        "connect_timeout_seconds",
        metavar="SECONDS",
        type=positive_seconds,
        help="how long connecting and each request may take",
    )
    add(
        "session_timeout_seconds",
        metavar="SECONDS",
        type=positive_seconds,
        help="silence after which the name service ends our session",
    )
    if contends:
        add(
            "lease_seconds",
            metavar="SECONDS",
            type=positive_seconds,
            help="how long a leader believes without an acknowledgement (LeaderServer)",
        )
        add(
            "confirm_timeout_seconds",
            metavar="SECONDS",
            type=positive_seconds,
            help="how long a granted contender may take to confirm",
        )
    if stays:
        add(
            "on_suspended",
            choices=("keep", "clear"),
            help="out of contact: forget the leader when the session is lost, or at "
            "once",
        )
    for name, text in _FILE_OPTIONS:
        add(name, metavar="FILE", help=text)


def add_setting(
    prefix: str,
    group: argparse._ActionsContainer,
    name: str,
    *,
    option: str = "",
    **options: Any,
) -> None:
    """
    Add an option for one setting; what is not given is left to its default.

    Args:
        prefix: What the names of such settings begin with in `settings_of`.
        group: What to add it to.
        name: The setting.
        option: What it is called on the command line, if not as the setting.
        options: For ``add_argument``.
    """
    group.add_argument(
        option or f"--{name.replace('_', '-')}",
        dest=prefix + name,
        default=argparse.SUPPRESS,
        **options,
    )


def settings_of(arguments: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """Return the settings that were given as options, by their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in vars(arguments).items()
        if name.startswith(prefix)
    }


def load_config(arguments: argparse.Namespace) -> HAConfig:
    """
    Return the configuration that options, environment and file add up to.

    Raises:
        ConfigurationError: If a setting is wrong, or names an embedded service.
    """
    config = HAConfig.load(arguments.config, **settings_of(arguments, _PREFIX))
    for name in unknown_environment(os.environ):
        print(f"lodestar: {name} is no setting, and is ignored", file=sys.stderr)
    if config.backend is Backend.EMBEDDED:
        message = (
            f"{config.url!r} is a name service inside one process: no other process, "
            "this one included, can see it; name a LeaderServer "
            "(leaderserver://host:port) or ZooKeeper (zookeeper://host:port) instead"
        )
        raise ConfigurationError(message)
    return config


def job_id(text: str) -> str:
    """Return *text* as a job id, or tell argparse why it is none."""
    try:
        return check_component_id(text, what="a job id")
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def store_prefix(text: str) -> str:
    """Return *text* as a prefix of store paths, or tell argparse why it is none."""
    try:
        return check_store_prefix(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def session_id(text: str) -> str:
    """Return *text* as a session id, or tell argparse why it is none."""
    try:
        return check_identifier(text, what="a session id")
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive_seconds(text: str) -> float:
    """Return *text* as a number of seconds above 0, or tell argparse why not."""
    return _seconds_of(text, _SECONDS_MIN, "above 0")


def seconds_or_zero(text: str) -> float:
    """Return *text* as a number of seconds from 0, or tell argparse why not."""
    return _seconds_of(text, 0.0, "from 0")


def _seconds_of(text: str, least: float, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= TIMEOUT_SECONDS_MAX:  # also refuses NaN
        message = (
            f"{text!r} is not a number of seconds {rule} and at most "
            f"{TIMEOUT_SECONDS_MAX:g}"
        )
        raise argparse.ArgumentTypeError(message)
    return value


def count_or_zero(text: str) -> int:
    """Return *text* as a whole number from 0, or tell argparse why not."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def positive_count(text: str) -> int:
    """Return *text* as a whole number from 1, or tell argparse why not."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        message = f"{text!r} is not a whole number from 1"
        raise argparse.ArgumentTypeError(message)
    return int(text)
