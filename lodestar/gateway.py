"""The verb gateway: run a GatewayServer as a process of its own (rules F2 to F4)."""

from __future__ import annotations

import argparse
import queue
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
from nameservice import ConfigurationError, NameServiceError
from queryablestate.gateway.config import LEADERS, GatewayConfig


if TYPE_CHECKING:
    from lodestar.verbs import Verbs


__all__ = ["add_verbs", "gateway_config"]

_PREFIX: Final = "gateway_setting_"
_add: Final = partial(add_setting, _PREFIX)
"""Options with this prefix in their ``dest`` are settings of `GatewayConfig`."""

_LIMITS: Final = (
    ("deadline_seconds", "how long a question may take that does not say"),
    ("deadline_seconds_max", "how long one may say that it may take"),
    ("request_seconds", "within which head and body of a request have come"),
    ("idle_seconds", "after which a connection without a request ends"),
    ("write_seconds", "within which a client has read what waits for it"),
    ("drain_seconds", "how long requests under way may take when the gateway ends"),
    ("heartbeat_seconds", "after which a watcher hears that all is as it was"),
    ("park_seconds", "how long nodes are asked to wait for the next batch"),
    ("header_size_bytes_max", "of the head of a request"),
    ("body_size_bytes_max", "of the body of a request"),
    ("connection_count_max", "connections"),
    ("request_count_max", "requests that are answered at once, without watches"),
    ("caller_count_max", "callers that are connected to the proxy at once"),
    ("caller_idle_seconds", "after which the connection of a caller ends"),
    ("newcomer_count_max", "callers at once that the proxy has not yet taken"),
    ("watch_count_max", "watches of all callers"),
    ("watch_count_per_caller_max", "watches of one caller"),
    (
        "large_read_count_per_caller_max",
        "pages, counts, whole states and batches of keys that one caller reads at once",
    ),
    ("batch_size_bytes_max", "of the answer to one keys:batchGet"),
    ("batch_key_count_max", "keys of one keys:batchGet"),
)


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "gateway",
        _gateway,
        description="Serve queryable state and leaders over HTTP until SIGTERM or "
        "SIGINT; the exit code is 0 then. It keeps nothing: run as many as you like. "
        "Callers show the token that the proxy knows them by, as 'Authorization: "
        "Bearer TOKEN'. One line on standard output says where it listens; /docs there "
        "shows what can be asked.",
        examples="lodestar gateway --bind 127.0.0.1:8080\n"
        "lodestar gateway --bind '*:8443' --certificate-file chain.pem \\\n"
        "    --certificate-key-file key.pem --advertised-url https://state.example.com",
    )
    _add(
        parser,
        "bind",
        metavar="HOST:PORT",
        help="where it listens; port 0 takes any free one, * is every interface "
        f"(default: {_default('bind')})",
    )
    _add(
        parser,
        "advertised_url",
        metavar="URL",
        help="how others reach it, if not by --bind; it is announced",
    )
    _add(
        parser,
        "is_announced",
        option="--no-announcement",
        action="store_false",
        help="do not contend for REST_ENDPOINT, by which a gateway is found",
    )
    _add(
        parser,
        "leaders",
        choices=LEADERS,
        help="who is told of leaders: everybody, those whom the proxy takes, or no "
        "caller (default: open where the name service asks us for no keys, else off)",
    )
    _add(
        parser,
        "has_console",
        option="--no-console",
        action="store_false",
        help="no web pages: / leads to /docs instead of /console/",
    )
    add_metrics_option(parser)
    add_log_option(parser, "info")

    access = parser.add_argument_group("access")
    _add(
        access,
        "certificate_file",
        metavar="FILE",
        help="the chain of certificates for HTTPS, in PEM",
    )
    _add(access, "certificate_key_file", metavar="FILE", help="its key")
    _add(
        access,
        "is_insecure_allowed",
        option="--insecure",
        action="store_true",
        help="serve other machines without HTTPS: others on the way can read tokens",
    )

    limits = parser.add_argument_group("limits")
    for name, text in _LIMITS:
        is_seconds = "_seconds" in name
        _add(
            limits,
            name,
            metavar="SECONDS" if is_seconds else "N",
            type=positive_seconds if is_seconds else positive_count,
            help=f"{text} (default: {_default(name)})",
        )
    add_name_service_options(parser, stays=True, contends=True)


def _default(name: str) -> Any:
    value = attrs.fields_dict(GatewayConfig)[name].default
    return f"{value:g}" if isinstance(value, float) else value


def _gateway(arguments: argparse.Namespace) -> ExitCode:
    config = gateway_config(arguments)
    try:
        # Starlette and uvicorn are an extra, and help is told without them.
        from queryablestate.gateway.server import (  # noqa: PLC0415
            GatewayServer,
        )
    except ImportError as error:
        raise ConfigurationError(
            "the gateway needs starlette and uvicorn, which are not installed here: "
            "pip install 'spark-lodestar[http]'"
        ) from error
    ended: queue.SimpleQueue[Signals | None] = queue.SimpleQueue()
    with (
        stop_signals(ended.put),
        open_ha_services(load_config(arguments)) as ha,
        metrics_of(arguments, gateway := GatewayServer(ha, config)),
        gateway,
    ):

        def wait_for_failure() -> None:
            gateway.join()
            ended.put(None)

        threading.Thread(
            target=wait_for_failure, name="gateway-waiter", daemon=True
        ).start()
        write(f"serving {gateway.url}")
        ended.get()
        failure = gateway.failure
        url = gateway.url
    if failure is not None:
        raise NameServiceError(f"{url} is served no more: {failure}") from failure
    return ExitCode.DONE


def gateway_config(arguments: Namespace) -> GatewayConfig:
    """Return the configuration that the options add up to."""
    return GatewayConfig(**settings_of(arguments, _PREFIX))
