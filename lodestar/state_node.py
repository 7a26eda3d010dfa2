"""
The verb node: run a StateNode as a process of its own (design §5).

SIGTERM means that the node is to go for good: it has its key groups taken over first
(rule S1), so that no reader notices.  Whatever comes after that, and SIGINT, ends it at
once: its rows stay where they are, and are asked again when it is back.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from argparse import Namespace
from enum import Enum
from functools import partial
from signal import SIGTERM, Signals
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from haservices import open_ha_services
from lodestar.arguments import (
    add_log_option,
    add_name_service_options,
    add_setting,
    count_or_zero,
    load_config,
    positive_count,
    seconds_or_zero,
    settings_of,
)
from lodestar.exit_codes import ExitCode
from lodestar.metrics import add_metrics_option, metrics_of
from lodestar.output import printable, write
from lodestar.signals import stop_signals
from lodestar.streams import discard
from nameservice import NS_PER_SECOND, NameServiceError, SystemClock, seconds_to_ns
from nameservice.allocation import return_large_buffers
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode


if TYPE_CHECKING:
    from collections.abc import Iterator

    from lodestar.verbs import Verbs


__all__ = ["add_verbs", "node_config", "switching_often"]

_PREFIX: Final = "node_setting_"
_add: Final = partial(add_setting, _PREFIX)
"""Options with this prefix in their ``dest`` are settings of `NodeConfig`."""

_LIMITS: Final = (
    (
        "stage_retention_seconds",
        "staged rows are dropped after this if no commit has named them",
    ),
    ("staged_bytes_per_job_max", "rows of one job that are staged and not decided"),
    ("chunk_size_bytes_max", "of one chunk of rows"),
    ("chunks_per_writer_max", "chunks of one writer that wait for the disk"),
    ("chunks_size_bytes_max", "all chunks that wait for the disk"),
    ("answer_size_bytes_max", "of one answer; below the proxy's frame_size_bytes_max"),
    ("questions_waiting_max", "questions that wait for a batch or for a scan's turn"),
    ("connections_max", "connections of writers and other nodes"),
    ("copies_max", "other nodes that may copy from this one at the same time"),
)


_REPORT_SECONDS: Final = 1.0
_SWITCH_SECONDS: Final = 0.0005
_ALONE_SECONDS: Final = 15.0
"""How long a node that leaves waits for a proxy: one that ends is replaced sooner."""


class _News(Enum):
    """What the verb waits for, beside signals."""

    REGISTERED = "registered"
    LEFT = "left"
    OVER = "over"


_End: TypeAlias = Signals | _News


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "node",
        _node,
        description="Run a StateNode until SIGTERM or SIGINT; the exit code is 0 then. "
        "After SIGTERM it first has other nodes take over its key groups; a second "
        "signal, or SIGINT, ends it at once. It keeps its rows in D, and registers "
        "with the proxy that leads. It prints one line when it is registered. Until "
        "then it tries again, and says on standard error what is in the way.",
        examples="lodestar node --data-dir /var/lib/lodestar-node "
        "--url leaderserver://10.0.0.5:5170\n"
        "lodestar node --data-dir D --bind 'tcp://*:0' --token-file node.token \\\n"
        "    --node-public-key-file n.key --node-secret-key-file n.key_secret \\\n"
        "    --allow-list writers.toml",
    )
    _add(
        parser,
        "data_dir",
        required=True,
        metavar="D",
        help="directory for its rows; made if it is not there; of one node only",
    )
    _add(
        parser,
        "bind",
        metavar="tcp://HOST:PORT",
        help="where writers connect; port 0 takes any free one "
        f"(default: {_default('bind')})",
    )
    _add(
        parser,
        "advertised_host",
        metavar="H",
        help="the host that writers are told instead of --bind's",
    )
    _add(
        parser,
        "node_id",
        metavar="N",
        help="its name, unique in the cluster (default: the data directory's)",
    )
    _add(
        parser,
        "size_bytes_max",
        metavar="N",
        type=positive_count,
        help=f"how big the data may grow (default: {_default('size_bytes_max'):,})",
    )
    _add(
        parser,
        "readers",
        metavar="N",
        type=count_or_zero,
        help="further processes that answer clients from its rows, at the ports after "
        "that of --bind (default: 0, the node answers by itself)",
    )
    _add(
        parser,
        "is_durable",
        option="--not-durable",
        action="store_false",
        help="do not wait for the disk: rows survive the process, not the machine",
    )
    _add(
        parser,
        "drain_timeout_seconds",
        option="--drain-timeout",
        metavar="SECONDS",
        type=seconds_or_zero,
        help="how long SIGTERM waits until other nodes have its key groups; 0 ends it "
        f"at once (default: {_default('drain_timeout_seconds'):g})",
    )
    add_metrics_option(parser)
    add_log_option(parser, "info")

    access = parser.add_argument_group(
        "access",
        "Without CURVE keys, every client that connects may bring rows. So "
        "the node\nlistens on loopback only, unless --insecure is given.",
    )
    _add(
        access,
        "token_file",
        metavar="FILE",
        help="the node's token, where the proxy has callers; see 'lodestar keygen'",
    )
    _add(
        access,
        "curve_public_key_file",
        option="--node-public-key-file",
        metavar="FILE",
        help="the node's own CURVE public key",
    )
    _add(
        access,
        "curve_secret_key_file",
        option="--node-secret-key-file",
        metavar="FILE",
        help="the node's own CURVE secret key",
    )
    _add(
        access,
        "allow_list_file",
        option="--allow-list",
        metavar="FILE",
        help="TOML file: which public keys may bring rows, whatever their roles",
    )
    _add(
        access,
        "is_insecure_allowed",
        option="--insecure",
        action="store_true",
        help="let other machines in without CURVE all the same",
    )

    limits = parser.add_argument_group("limits")
    for name, text in _LIMITS:
        is_seconds = name.endswith("_seconds")
        _add(
            limits,
            name,
            metavar="SECONDS" if is_seconds else "N",
            type=seconds_or_zero if is_seconds else positive_count,
            help=f"{text} (default: {_default(name):,})",
        )
    add_name_service_options(parser)


def _default(name: str) -> Any:
    return attrs.fields_dict(NodeConfig)[name].default


def node_config(arguments: Namespace) -> NodeConfig:
    """
    Return the configuration that the options add up to.

    Raises:
        ConfigurationError: If they do not; says which to change.
    """
    return NodeConfig(**settings_of(arguments, _PREFIX))


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    """
    Have threads of this process take turns ten times as often as by default.

    A node's loop answers small questions while another thread reads at length.  Each
    time that the loop wants to go on, it waits for that thread until this interval is
    over.
    """
    before_seconds = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before_seconds)


def _node(arguments: Namespace) -> ExitCode:
    config = node_config(arguments)
    return_large_buffers()
    news: queue.SimpleQueue[_End] = queue.SimpleQueue()
    with (
        stop_signals(news.put),
        switching_often(),
        open_ha_services(load_config(arguments)) as ha,
        metrics_of(arguments, node := StateNode(ha, config)),
        node,
    ):

        def wait_until_registered() -> None:
            with contextlib.suppress(NameServiceError):  # it is over
                node.wait_until_registered()
                news.put(_News.REGISTERED)

        def wait_for_failure() -> None:
            node.join()
            news.put(_News.OVER)

        for wait in (wait_until_registered, wait_for_failure):
            threading.Thread(target=wait, name="node-waiter", daemon=True).start()
        end = _wait_for_end(node, news, drain_seconds=config.drain_timeout_seconds)
        failure = node.failure
        node_id = node.node_id
    if end is _News.OVER and failure is not None:
        message = f"node {node_id} serves no more: {failure}"
        raise NameServiceError(message) from failure
    return ExitCode.DONE


def _wait_for_end(
    node: StateNode, news: queue.SimpleQueue[_End], *, drain_seconds: float
) -> _End:
    """Return what ends the node; SIGTERM does only when its key groups are gone."""
    is_known = is_leaving = False

    def leave() -> None:
        with contextlib.suppress(NameServiceError):  # it is over
            _tell(_left(node, drain_seconds))
            news.put(_News.LEFT)

    while True:
        end = news.get()
        if end is _News.REGISTERED:
            is_known = True
            write(f"serving {printable(node.node_id)} at {node.address}")
        elif end is SIGTERM and is_known and drain_seconds and not is_leaving:
            is_leaving = True
            threading.Thread(target=leave, name="node-leaver", daemon=True).start()
        else:
            return end


def _left(node: StateNode, drain_seconds: float) -> str:
    """Have the node emptied, and tell how far that is; return how it ended."""
    clock = SystemClock()
    now_ns = alone_ns = clock.now_ns()
    deadline_ns = now_ns + seconds_to_ns(drain_seconds)
    shown = _held_text(node)
    _tell(f"leaving, {shown}; a second signal ends it at once")
    while now_ns < deadline_ns:
        left_seconds = (deadline_ns - now_ns) / NS_PER_SECOND
        reason = node.leave(min(_REPORT_SECONDS, left_seconds))
        if reason == "nobody":
            return f"left, {_held_text(node)}: no other node can take them"
        if reason is not None:
            return "left"
        held = _held_text(node)
        if held != shown:
            shown = held
            _tell(f"leaving, {held}{_waiting_text(node)}")
        now_ns = clock.now_ns()
        if node.is_registered:
            alone_ns = now_ns
        elif now_ns - alone_ns >= seconds_to_ns(_ALONE_SECONDS):
            return f"left, {held}: no proxy leads"
    return f"left, {_held_text(node)}: --drain-timeout is over"


def _tell(text: str) -> None:
    """Write *text* for who still reads: a node leaves all the same."""
    try:
        write(text)
    except BrokenPipeError:
        discard(sys.stdout)


def _waiting_text(node: StateNode) -> str:
    """Return what a node that holds nothing any more waits for."""
    if node.status()["key_groups_held"]:
        return ""
    return "; batches that were begun before may have rows here"


def _held_text(node: StateNode) -> str:
    count = int(node.status()["key_groups_held"])
    return f"{count} key group{'' if count == 1 else 's'} left"
