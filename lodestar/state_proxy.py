"""The verb proxy: run a QueryStateProxyServer as a process of its own (design §5)."""

from __future__ import annotations

import queue
import threading
from argparse import Namespace
from signal import SIGHUP, Signals
from typing import TYPE_CHECKING, Any, Final

from haservices import open_ha_services
from haservices.interface import forgets_at_restart
from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    load_config,
)
from lodestar.exit_codes import ExitCode
from lodestar.metrics import add_metrics_option, metrics_of
from lodestar.output import write
from lodestar.signals import stop_signals
from nameservice import ConfigurationError, NameServiceError, get_logger
from nameservice.allocation import return_large_buffers
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.config_file import ProxyConfigFile
from queryablestate.proxy.config_toml import print_config
from queryablestate.proxy.server import QueryStateProxyServer


if TYPE_CHECKING:
    from haservices import HAServices
    from lodestar.verbs import Verbs


__all__ = ["add_verbs"]

_OVERRIDES: Final = ("bind", "advertised_host", "is_insecure_allowed")
"""Settings of `ProxyConfig` that options may set; they outweigh the file."""


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "proxy",
        _proxy,
        description="Run a QueryStateProxyServer until SIGTERM or SIGINT; the exit "
        "code is 0 then. It contends for QUERY_PROXY: the one that leads answers, "
        "further ones stand by. One line on standard output says where it listens, "
        "once it does. SIGHUP reads the configuration file again; one with a mistake "
        "changes nothing.",
        examples="lodestar proxy --print-config >proxy.toml\n"
        "lodestar proxy --config-file proxy.toml "
        "--url leaderserver://10.0.0.5:5170",
    )
    parser.add_argument(
        "--config-file",
        metavar="FILE",
        help="TOML file with callers, limits and cache rules (default: none of them)",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the configuration that would hold, with what each setting means, "
        "and end",
    )
    parser.add_argument(
        "--bind",
        metavar="tcp://HOST:PORT",
        help="where clients, writers and nodes connect (default: any free port of "
        "this machine alone)",
    )
    parser.add_argument(
        "--advertised-host",
        metavar="H",
        help="the host that is published to them instead of --bind's",
    )
    parser.add_argument(
        "--insecure",
        dest="is_insecure_allowed",
        action="store_true",
        default=None,
        help="let other machines in without CURVE keys and callers",
    )
    parser.add_argument(
        "--allow-volatile",
        action="store_true",
        help="publish over a name service that forgets when it is restarted, e.g. a "
        "LeaderServer without --data-dir",
    )
    add_metrics_option(parser)
    add_name_service_options(parser, contends=True)
    add_log_option(parser, "info")


def _proxy(arguments: Namespace) -> ExitCode:
    overrides = _overrides(arguments)
    file: ProxyConfigFile | None = None
    if arguments.config_file is not None:
        file = ProxyConfigFile(arguments.config_file, overrides=overrides)
    config = ProxyConfig(**overrides) if file is None else file.config
    if arguments.print_config:
        write(print_config(config).rstrip("\n"))
        return ExitCode.DONE

    return_large_buffers()
    ended: queue.SimpleQueue[Signals | None] = queue.SimpleQueue()
    with (
        stop_signals(ended.put, takes_hangup=file is not None),
        _lasting_services(arguments) as ha,
        metrics_of(arguments, proxy := QueryStateProxyServer(ha, config)),
        proxy,
    ):

        def wait_for_failure() -> None:
            proxy.join()
            ended.put(None)

        threading.Thread(
            target=wait_for_failure, name="proxy-waiter", daemon=True
        ).start()
        write(f"serving {proxy.address}")
        while ended.get() is SIGHUP and file is not None:
            _reload(proxy, file)
        failure = proxy.failure
        address = proxy.address
    if failure is not None:
        message = f"{address} is served no more: {failure}"
        raise NameServiceError(message) from failure
    return ExitCode.DONE


def _lasting_services(arguments: Namespace) -> HAServices:
    """
    Return the name service, open.

    Raises:
        ConfigurationError: If it forgets when it is restarted, unless that is accepted.
    """
    ha = open_ha_services(load_config(arguments))
    if forgets_at_restart(ha) and not arguments.allow_volatile:
        ha.close()
        message = (
            f"{ha.config.url} forgets what is stored when it is restarted, and state "
            "would be unavailable then: give 'lodestar server' a data directory "
            "(--data-dir), or accept it with --allow-volatile"
        )
        raise ConfigurationError(message)
    return ha


def _overrides(arguments: Namespace) -> dict[str, Any]:
    """Return the settings that options were given for."""
    return {
        name: value
        for name in _OVERRIDES
        if (value := getattr(arguments, name)) is not None
    }


def _reload(proxy: QueryStateProxyServer, file: ProxyConfigFile) -> None:
    """Go by what the file says now, or say why not and go on as before (rule C4)."""
    try:
        proxy.reconfigure(file.reload())
    except NameServiceError as error:
        log = get_logger(component="query-proxy")
        log.error("configuration.refused", error=str(error))  # noqa: TRY400 (no bug)
