"""The verb server: run a LeaderServer as a process of its own (rule N2)."""

from __future__ import annotations

import contextlib
import queue
import resource
import threading
from argparse import Namespace
from functools import partial
from signal import SIGHUP, Signals
from typing import TYPE_CHECKING, Any, Final

import attrs

from leaderserver import LeaderServer, ServerConfig
from leaderserver.server.limits import load_limits
from lodestar.arguments import (
    add_log_option,
    add_setting,
    positive_count,
    positive_seconds,
    settings_of,
)
from lodestar.exit_codes import ExitCode
from lodestar.metrics import add_metrics_option, metrics_of
from lodestar.output import write
from lodestar.signals import stop_signals
from nameservice import NameServiceError, get_logger


if TYPE_CHECKING:
    from lodestar.verbs import Verbs


__all__ = ["add_verbs", "server_config"]

_log: Final = get_logger(component="leaderserver")

_PREFIX: Final = "server_"
_add: Final = partial(add_setting, _PREFIX)
"""Options with this prefix in their ``dest`` are settings of `ServerConfig`."""

_LIMITS: Final = (
    ("lease_seconds_min", "shorter leases are lengthened to this"),
    (
        "lease_seconds_max",
        "longer leases are shortened; for as long, a new server grants nothing",
    ),
    (
        "lease_seconds_unrecorded_max",
        "the longest lease of the server before, where no data directory tells it",
    ),
    ("session_timeout_seconds_min", "shorter session timeouts are lengthened to this"),
    ("session_timeout_seconds_max", "longer session timeouts are shortened to this"),
    ("frame_size_bytes_max", "of one request"),
    ("connections_max", "to each of the two ports"),
    ("sessions_max", "in all"),
    ("contenders_per_component_max", "for one job"),
    ("contenders_per_session_max", "of one client"),
    ("subscriptions_per_session_max", "jobs that one session hears of"),
    ("components_max", "jobs that are remembered"),
    ("queued_replies_per_peer_max", "messages that wait for one client to read"),
    ("store_bytes_max", "of all leader stores"),
    ("store_bytes_per_component_max", "of the leader store of one job"),
    ("memory_limit_bytes", "of the process; what clients may take is divided by it"),
)

_DEFAULTS: Final = {
    "store_bytes_max": "1 GiB with --data-dir, else a share of the memory limit",
    "store_bytes_per_component_max": "a quarter of --store-bytes-max",
}


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "server",
        _server,
        description="Run a LeaderServer until SIGTERM or SIGINT; the exit code is 0 "
        "then. SIGHUP has it read its files again: allow-list, keys, limits. One line "
        "on standard output says what is served, once it is. Clients find it "
        "at --url leaderserver://HOST:PORT.",
        examples="lodestar server --bind tcp://127.0.0.1:5170 "
        "--data-dir /var/lib/lodestar\n"
        "lodestar server --bind 'tcp://*:5170' --allow-list allow.toml \\\n"
        "    --curve-public-key-file server.key "
        "--curve-secret-key-file server.key_secret",
    )
    _add(
        parser,
        "bind",
        metavar="tcp://HOST:PORT",
        help="where clients connect; port 0 takes any free one "
        f"(default: {_default('bind')})",
    )
    _add(
        parser,
        "publish_bind",
        metavar="tcp://HOST:PORT",
        help="where changes are published (default: any free port of --bind's host)",
    )
    _add(
        parser,
        "publish_address",
        metavar="tcp://HOST:PORT",
        help="where clients reach --publish-bind, if not on the host of their URL",
    )
    _add(
        parser,
        "data_dir",
        metavar="D",
        help="keep epochs and leader stores here over restarts (default: in memory)",
    )
    add_metrics_option(parser)
    add_log_option(parser, "info")

    access = parser.add_argument_group(
        "access",
        "Without CURVE keys, every client that connects may do everything. So "
        "the\nserver listens on loopback only, unless --insecure is given.",
    )
    _add(
        access,
        "curve_public_key_file",
        metavar="FILE",
        help="the server's own public key, from 'lodestar keygen'",
    )
    _add(
        access,
        "curve_secret_key_file",
        metavar="FILE",
        help="the server's own secret key",
    )
    _add(
        access,
        "allow_list_file",
        option="--allow-list",
        metavar="FILE",
        help="TOML file: which public key has which name and roles",
    )
    _add(
        access,
        "is_insecure_allowed",
        option="--insecure",
        action="store_true",
        help="let other machines in without CURVE all the same",
    )

    limits = parser.add_argument_group(
        "limits",
        "An option outweighs the same limit in the file. SIGHUP has the file read"
        "\nagain; a limit that needs a restart is named in the log.",
    )
    limits.add_argument(
        "--limits",
        dest="limits_file",
        metavar="FILE",
        help="TOML file: limits by their names, as sessions_max = 20000",
    )
    for name, text in _LIMITS:
        is_seconds = "_seconds_" in name
        default = _default(name)
        shown = _DEFAULTS.get(name) if default is None else f"{default:,}"
        _add(
            limits,
            name,
            metavar="SECONDS" if is_seconds else "N",
            type=positive_seconds if is_seconds else positive_count,
            help=f"{text} (default: {shown})",
        )


def _default(name: str) -> Any:
    return attrs.fields_dict(ServerConfig)[name].default


def server_config(arguments: Namespace) -> ServerConfig:
    """
    Return the configuration that the limits file and the options add up to.

    Raises:
        ConfigurationError: If they do not; says which to change.
    """
    options = settings_of(arguments, _PREFIX)
    if arguments.limits_file is not None:
        options = load_limits(arguments.limits_file, overrides=options)
    return ServerConfig(**options)


def _raise_descriptor_limit() -> None:
    """Take as many file descriptors as the system allows: each client needs two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # less has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _server(arguments: Namespace) -> ExitCode:
    config = server_config(arguments)
    _raise_descriptor_limit()
    ended: queue.SimpleQueue[Signals | None] = queue.SimpleQueue()
    server = LeaderServer(config, is_alone=True)
    with (
        stop_signals(ended.put, takes_hangup=True),
        metrics_of(arguments, server),
        server,
    ):

        def wait_for_failure() -> None:
            server.join()
            ended.put(None)

        threading.Thread(
            target=wait_for_failure, name="server-waiter", daemon=True
        ).start()
        write(f"serving {server.url}")
        while ended.get() is SIGHUP:
            _reload(server, arguments)
        failure = server.failure
    if failure is not None:
        message = f"{server.url} is served no more: {failure}"
        raise NameServiceError(message) from failure
    return ExitCode.DONE


def _reload(server: LeaderServer, arguments: Namespace) -> None:
    """Read again what can be, all or nothing; say in the log what cannot."""
    try:
        has_file = arguments.limits_file is not None
        has_read = server.reload(server_config(arguments) if has_file else None)
    except NameServiceError as error:
        _log.error("server.reload_failed", error=str(error))
    else:
        if not has_read:
            _log.info(
                "server.nothing_to_reload",
                reason="there is neither an allow-list nor a file of limits",
            )
