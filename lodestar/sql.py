"""The verb sql: run a SQLServer as a process of its own (rule F6)."""

from __future__ import annotations

import argparse
import queue
import re
import threading
from argparse import Namespace
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING, Any, Final

import attrs

from haservices import open_ha_services
from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    add_setting,
    load_config,
    positive_count,
    positive_seconds,
    settings_of,
)
from lodestar.exit_codes import ExitCode
from lodestar.metrics import add_metrics_option, metrics_of
from lodestar.output import write
from lodestar.signals import stop_signals
from nameservice import NameServiceError
from queryablestate.sql.config import SQLConfig


if TYPE_CHECKING:
    from lodestar.verbs import Verbs


__all__ = ["add_verbs", "sql_config"]

_PREFIX: Final = "sql_setting_"
_add: Final = partial(add_setting, _PREFIX)
"""Options with this prefix in their ``dest`` are settings of `SQLConfig`."""

_LIMITS: Final = (
    ("worker_count", "queries that run at once, each in a process of its own"),
    ("thread_count", "threads that compute one query"),
    ("login_timeout_seconds", "within which a session has begun"),
    ("connection_count_max", "sessions"),
    ("client_count_max", "callers whose connection to the proxy is kept"),
    ("message_size_bytes_max", "of a message of a tool"),
    ("text_size_max", "characters of a text of statements"),
)
_SIZE: Final = re.compile(r"(\d+)\s*(|[KMG]i?B?)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "sql",
        _sql,
        description="Serve queryable state as tables to tools that speak to "
        "Postgres, read only, until SIGTERM or SIGINT; the exit code is 0 then. A job "
        "is a schema, a state is a table. Where the proxy lists callers, the password "
        "is the caller's token. It keeps nothing: run as many as you like. One line on "
        "standard output says where it listens.",
        examples="lodestar sql --bind 127.0.0.1:5433\n"
        "lodestar sql --bind '0.0.0.0:5432' --certificate-file chain.pem \\\n"
        "    --certificate-key-file key.pem --memory-limit 2GiB",
    )
    _add(
        parser,
        "bind",
        metavar="HOST:PORT",
        help="where it listens; port 0 takes any free one "
        f"(default: {_default('bind')})",
    )
    add_metrics_option(parser)
    add_log_option(parser, "info")

    access = parser.add_argument_group("access")
    _add(
        access,
        "certificate_file",
        metavar="FILE",
        help="the chain of certificates for TLS, in PEM",
    )
    _add(access, "certificate_key_file", metavar="FILE", help="its key")
    _add(
        access,
        "is_insecure_allowed",
        option="--insecure",
        action="store_true",
        help="serve other machines without TLS: others on the way can read tokens",
    )

    limits = parser.add_argument_group("limits")
    _add(
        limits,
        "memory_limit_bytes",
        option="--memory-limit",
        metavar="SIZE",
        type=_size,
        help="memory that one query may take, e.g. 512MiB (the default)",
    )
    _add(
        limits,
        "statement_timeout_seconds",
        option="--statement-timeout",
        metavar="SECONDS",
        type=positive_seconds,
        help="how long a statement may take "
        f"(default: {_default('statement_timeout_seconds')})",
    )
    for name, text in _LIMITS:
        is_seconds = "_seconds" in name
        _add(
            limits,
            name,
            metavar="SECONDS" if is_seconds else "N",
            type=positive_seconds if is_seconds else positive_count,
            help=f"{text} (default: {_default(name)})",
        )
    add_name_service_options(parser, stays=True)


def _default(name: str) -> Any:
    value = attrs.fields_dict(SQLConfig)[name].default
    return f"{value:g}" if isinstance(value, float) else value


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write e.g. 512MiB")
    return int(match[1]) * _UNITS[match[2][:1].upper()]


def _sql(arguments: Namespace) -> ExitCode:
    # Asyncio and TLS are loaded when it runs: help is told without them.
    from queryablestate.sql.server import SQLServer  # noqa: PLC0415

    config = sql_config(arguments)
    ended: queue.SimpleQueue[Signals | None] = queue.SimpleQueue()
    with (
        stop_signals(ended.put),
        open_ha_services(load_config(arguments)) as ha,
        metrics_of(arguments, server := SQLServer(ha, config)),
        server,
    ):

        def wait_for_failure() -> None:
            server.join()
            ended.put(None)

        threading.Thread(
            target=wait_for_failure, name="sql-waiter", daemon=True
        ).start()
        write(f"serving {server.address}")
        ended.get()
        failure = server.failure
        address = server.address
    if failure is not None:
        raise NameServiceError(f"{address} is served no more: {failure}") from failure
    return ExitCode.DONE


def sql_config(arguments: Namespace) -> SQLConfig:
    """Return the configuration that the options add up to."""
    return SQLConfig(**settings_of(arguments, _PREFIX))
