"""Who may import whom: the table of design §1 and the pure files of style §2."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import queryablestate.errors
import rescaling.errors


ROOT = Path(__file__).parent.parent

# design §1, to the letter: `nameservice` may be imported everywhere.
_NAME_SERVICE = frozenset(
    {
        "nameservice",
        "zmqtransport",
        "retrieval",
        "election",
        "leaderserver",
        "haservices",
    }
)
_ALL_BUT_THE_COMMAND_LINE = _NAME_SERVICE | {
    "rescaling",
    "queryablestate",
    "sparkpipeline",
}
MAY_IMPORT: dict[str, frozenset[str]] = {
    "nameservice": frozenset(),
    "zmqtransport": frozenset(),
    "retrieval": frozenset(),
    "election": frozenset({"retrieval"}),
    "leaderserver": frozenset({"zmqtransport", "election", "retrieval"}),
    "haservices": frozenset({"zmqtransport", "retrieval", "election", "leaderserver"}),
    "rescaling": frozenset(),
    "queryablestate": frozenset(
        {"zmqtransport", "haservices", "election", "retrieval", "rescaling"}
    ),
    "sparkpipeline": _ALL_BUT_THE_COMMAND_LINE,
    "pyspark_lodestar": frozenset({"sparkpipeline"}),
    "pyspark_lodestar_log": frozenset({"sparkpipeline"}),
    "lodestar": _ALL_BUT_THE_COMMAND_LINE,
}
OURS = frozenset(MAY_IMPORT)

# `nameservice` offers the errors of two packages, too.  It is the only file that knows
# them there: all others take them from the package whose they are.
_LENT_ERRORS = frozenset({"queryablestate.errors", "rescaling.errors"})
_LENT_NAMES = frozenset(
    f"nameservice.{name}"
    for errors in (queryablestate.errors, rescaling.errors)
    for name in errors.__all__
)

# The rooms of a package, and which others each may import.
_ROOM_BASE = frozenset({"schema", "wire"})
_CALLING = _ROOM_BASE | {"connect"}
ROOM_MAY_IMPORT: dict[str, dict[str, frozenset[str]]] = {
    "haservices": {
        "metrics": frozenset(),
        "testing": frozenset(),
        "zookeeper": frozenset(),
    },
    "leaderserver": {
        "client": frozenset(),
        "server": frozenset(),
    },
    "queryablestate": {
        "schema": frozenset(),
        "wire": frozenset({"schema"}),
        "store": _ROOM_BASE,
        "control": _ROOM_BASE,
        "proxy": _ROOM_BASE | {"control"},
        "connect": _ROOM_BASE,
        "client": _CALLING,
        "writer": _CALLING | {"client"},  # its calls go through the client's engine
        "operations": _CALLING | {"client"},
        "node": _CALLING | {"store"},
        "gateway": _CALLING | {"client", "operations"},
        "sql": _CALLING | {"client"},
    },
    "sparkpipeline": {
        "state": frozenset(),
        "attach": frozenset({"state"}),
        "operators": frozenset({"state"}),
        "log": frozenset({"attach", "operators", "state"}),
        "standby": frozenset({"state"}),
    },
}
# What stands above the rooms is what they share, so it imports none of them.
SHARED_ABOVE_ROOMS = frozenset(
    {
        "leaderserver/codec.py",
        "leaderserver/message_parts.py",
        "leaderserver/messages.py",
        "leaderserver/operator_messages.py",
        "leaderserver/store_messages.py",
        "queryablestate/errors.py",
        "queryablestate/hedging.py",
        "queryablestate/shares.py",
        "sparkpipeline/batch_guard.py",
        "sparkpipeline/checkpoint_files.py",
        "sparkpipeline/configuration.py",
        "sparkpipeline/failures.py",
        "sparkpipeline/lasting_errors.py",
        "sparkpipeline/run_births.py",
        "sparkpipeline/spark_session.py",
    }
)

# The machines of the control plane return what is to be done.  One file puts that in
# order, and no machine knows another.
SEQUENCER = "queryablestate/control/core.py"
MACHINES = frozenset(
    f"queryablestate.control.{stem}"
    for stem in (
        "commits",
        "draining",
        "membership",
        "moves",
        "restore_control",
        "snapshot_control",
        "state_drops",
        "tickets",
    )
)

# style §2: what decides opens nothing, waits for nothing, reads no clock, draws no
# random number, logs nothing.
PURE_FILES = frozenset(
    {
        "access",
        "callback_schedule",
        "codec",
        "component",
        "config",
        "core",
        "deadlines",
        "effects",
        "epochs",
        "events",
        "fields",
        "health",
        "holder",
        "json_values",
        "key_codec",
        "key_columns",
        "key_text",
        "leaderships",
        "liveness",
        "log_budget",
        "messages",
        "observation",
        "parameters",
        "patience",
        "peers",
        "sessions",
        "settings",
    }
)
PURE_FOLDERS = (
    "leaderserver/client/core/",
    "leaderserver/server/core/",
    "rescaling/",
    "queryablestate/schema/",
    "queryablestate/wire/",
    "queryablestate/control/",
    "queryablestate/node/core/",
    "queryablestate/sql/protocol/",
)
# Of rooms whose other files act.
PURE_ROOM_FILES = frozenset(
    {
        "haservices/metrics/figures.py",
        "haservices/zookeeper/contact.py",
        "haservices/zookeeper/feed_core.py",
        "haservices/zookeeper/holding_core.py",
        "haservices/zookeeper/holding_effects.py",
        "haservices/zookeeper/holding_events.py",
        "haservices/zookeeper/holding_publication.py",
        "haservices/zookeeper/operations_core.py",
        "haservices/zookeeper/packing.py",
        "haservices/zookeeper/queue_belief.py",
        "haservices/zookeeper/queue_core.py",
        "haservices/zookeeper/queue_effects.py",
        "haservices/zookeeper/queue_entry.py",
        "haservices/zookeeper/queue_events.py",
        "haservices/zookeeper/queue_leaving.py",
        "haservices/zookeeper/queue_questions.py",
        "haservices/zookeeper/renewals.py",
        "haservices/zookeeper/retrieval_core.py",
        "haservices/zookeeper/store_core.py",
        "leaderserver/message_parts.py",
        "leaderserver/operator_messages.py",
        "leaderserver/server/config.py",
        "leaderserver/store_messages.py",
        "queryablestate/client/call_flights.py",
        "queryablestate/client/coalescing.py",
        "queryablestate/client/core.py",
        "queryablestate/client/direct.py",
        "queryablestate/client/documents.py",
        "queryablestate/client/events.py",
        "queryablestate/client/floors.py",
        "queryablestate/client/operator_states.py",
        "queryablestate/client/key_flights.py",
        "queryablestate/client/page_reads.py",
        "queryablestate/client/reads.py",
        "queryablestate/client/requests.py",
        "queryablestate/client/results.py",
        "queryablestate/client/routes.py",
        "queryablestate/client/scanning.py",
        "queryablestate/client/session.py",
        "queryablestate/client/state_routes.py",
        "queryablestate/client/step.py",
        "queryablestate/gateway/config.py",
        "queryablestate/gateway/events.py",
        "queryablestate/gateway/headers.py",
        "queryablestate/gateway/openapi.py",
        "queryablestate/gateway/operations.py",
        "queryablestate/gateway/schemas.py",
        "queryablestate/gateway/openapi_page.py",
        "queryablestate/gateway/problems.py",
        "queryablestate/gateway/representations.py",
        "queryablestate/gateway/requests.py",
        "queryablestate/gateway/tags.py",
        "queryablestate/client/ways.py",
        "queryablestate/node/config.py",
        "queryablestate/node/copying/limits.py",
        "queryablestate/node/readers/gate.py",
        "queryablestate/node/readers/orders.py",
        "queryablestate/node/readers/page.py",
        "queryablestate/operations/move_progress.py",
        "queryablestate/operations/move_waiting.py",
        "queryablestate/operations/node_information.py",
        "queryablestate/operations/rescaling_information.py",
        "queryablestate/proxy/access.py",
        "queryablestate/proxy/cache.py",
        "queryablestate/proxy/cached_answers.py",
        "queryablestate/proxy/config.py",
        "queryablestate/proxy/config_toml.py",
        "queryablestate/proxy/copy_reads.py",
        "queryablestate/hedging.py",
        "queryablestate/proxy/node_questions.py",
        "queryablestate/proxy/node_reads.py",
        "queryablestate/proxy/pending_reads.py",
        "queryablestate/proxy/rate_limit.py",
        "queryablestate/proxy/read_answers.py",
        "queryablestate/proxy/read_charges.py",
        "queryablestate/proxy/read_parking.py",
        "queryablestate/proxy/read_questions.py",
        "queryablestate/proxy/read_watch.py",
        "queryablestate/proxy/requests.py",
        "queryablestate/proxy/sessions.py",
        "queryablestate/proxy/state_glob.py",
        "queryablestate/shares.py",
        "queryablestate/sql/analysis.py",
        "queryablestate/sql/catalog.py",
        "queryablestate/sql/catalog_rows.py",
        "queryablestate/sql/catalog_tables.py",
        "queryablestate/sql/config.py",
        "queryablestate/sql/parameters.py",
        "queryablestate/sql/points.py",
        "queryablestate/sql/selection.py",
        "queryablestate/sql/settings.py",
        "queryablestate/sql/statements.py",
        "queryablestate/sql/tables.py",
        "queryablestate/sql/turns.py",
        "queryablestate/store/hold_marks.py",
        "queryablestate/store/layout.py",
        "queryablestate/store/rows.py",
        "queryablestate/store/state_view.py",
        "queryablestate/store/steps.py",
        "queryablestate/writer/batches.py",
        "queryablestate/writer/chunks.py",
        "queryablestate/writer/commit_size.py",
        "queryablestate/writer/conversations.py",
        "queryablestate/writer/core.py",
        "queryablestate/writer/operator_states.py",
        "queryablestate/writer/rows.py",
        "queryablestate/writer/sending.py",
        "queryablestate/writer/stage_core.py",
        "queryablestate/writer/stage_events.py",
        "queryablestate/writer/tickets.py",
        "sparkpipeline/attach/rewinds.py",
        "sparkpipeline/attach/steps.py",
        "sparkpipeline/log/state.py",
        "sparkpipeline/operators/manifest.py",
        "sparkpipeline/standby/core.py",
        "zmqtransport/freed_memory.py",
        "zmqtransport/inflow.py",
        "zmqtransport/memory_growth.py",
    }
)
IMPURE = frozenset(
    {
        "asyncio",
        "kazoo",
        "pyspark",
        "random",
        "secrets",
        "socket",
        "structlog",
        "threading",
        "time",
        "zmq",
        # The same by another road.
        "nameservice.SystemClock",
        "nameservice.configure_logging",
        "nameservice.get_logger",
        "nameservice.log",
    }
)

# Text in, text out.
_HARMLESS = frozenset({"zmq.utils", "zmq.utils.z85"})

# Who alone may import a library, so that its types and errors stop there.
SPARK_PACKAGES = frozenset(
    {"sparkpipeline", "pyspark_lodestar", "pyspark_lodestar_log"}
)

ARROW_FILES = frozenset(
    {
        "queryablestate/client/arrow_columns.py",
        "queryablestate/connect/snapshot_files.py",
        "queryablestate/sql/engine.py",
    }
)


def imported_names(source: str) -> Iterator[str]:
    """
    Yield the dotted name of everything that *source* imports, wherever it does.

    ``from a import b`` yields ``a`` and ``a.b``: *b* may be a module.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Relative imports are ruff's to forbid (TID252): here all are absolute.
            assert node.module is not None
            assert node.level == 0
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_within(name: str, forbidden: frozenset[str]) -> bool:
    """Return whether *name* is one of *forbidden*, or inside one of them."""
    parts = name.split(".")
    return any(
        ".".join(parts[:length]) in forbidden for length in range(1, len(parts) + 1)
    )


def is_pure(path: Path) -> bool:
    """Return whether *path*, relative to the root, is a file that only decides."""
    name = path.as_posix()
    if name.startswith(PURE_FOLDERS) or name in PURE_ROOM_FILES:
        return True
    is_in_room = path.parts[1] in ROOM_MAY_IMPORT.get(path.parts[0], {})
    return not is_in_room and path.stem in PURE_FILES


def _forbidden_rooms(path: Path) -> frozenset[str]:
    """Return the rooms of its package that the file *path* may not import."""
    package, room = path.parts[:2]
    rooms = ROOM_MAY_IMPORT.get(package, {})
    if room in rooms:
        others = set(rooms) - rooms[room] - {room}
    elif path.as_posix() in SHARED_ABOVE_ROOMS:
        others = set(rooms)
    else:
        others = set()
    return frozenset(f"{package}.{other}" for other in others)


def _shell_around(path: Path) -> frozenset[str]:
    """Return the files beside the folder ``core`` that *path* is in."""
    if "core" not in path.parts[:-1]:
        return frozenset()
    shell = Path(*path.parts[: path.parts.index("core")])
    return frozenset(
        f"{'.'.join(shell.parts)}.{file.stem}"
        for file in (ROOT / shell).glob("*.py")
        if not is_pure(shell / file.name)
    )


def violations(path: Path, source: str) -> list[str]:
    """Return what *source* imports though *path*, relative to the root, may not."""
    package = path.parts[0]
    names = sorted(set(imported_names(source)))
    forbidden = OURS - MAY_IMPORT[package] - {package, "nameservice"}
    if package not in SPARK_PACKAGES:
        forbidden |= {"pyspark", "py4j"}
    if not (package == "haservices" and path.parts[1] == "zookeeper"):
        forbidden |= {"kazoo"}
    if not (package == "queryablestate" and path.parts[1] == "store"):
        forbidden |= {"lmdb"}
    if package not in SPARK_PACKAGES and path.as_posix() not in ARROW_FILES:
        forbidden |= {"pyarrow"}
    if path.as_posix() != "haservices/metrics/exposition.py":
        forbidden |= {"prometheus_client"}
    if not path.as_posix().startswith("queryablestate/gateway/"):
        forbidden |= {"starlette", "uvicorn"}
    if path.as_posix() != "queryablestate/sql/engine.py":
        forbidden |= {"duckdb"}
    if is_pure(path):
        forbidden |= IMPURE
    forbidden |= _forbidden_rooms(path) | _shell_around(path)
    if path.as_posix() != SEQUENCER:
        forbidden |= MACHINES - {".".join(path.with_suffix("").parts)}
    if path.parts[1] not in {"testing", "pytest_plugin.py"}:
        forbidden |= {"haservices.testing"}
    allowed = _HARMLESS
    if path.as_posix() == "nameservice/__init__.py":
        allowed = allowed | {name for name in names if _is_within(name, _LENT_ERRORS)}
    else:
        forbidden |= _LENT_NAMES
    return [
        name for name in names if _is_within(name, forbidden) and name not in allowed
    ]


def source_files() -> list[Path]:
    """Return every module of ours, relative to the root."""
    return sorted(
        path.relative_to(ROOT)
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
    )


@pytest.mark.parametrize("path", source_files(), ids=str)
def test_a_module_imports_only_what_the_table_allows(path: Path) -> None:
    """Every import of every module is in the table, and pure files stay pure."""
    source = (ROOT / path).read_text(encoding="utf-8")
    assert violations(path, source) == []


def test_every_package_is_in_the_table() -> None:
    """A new top-level package states in the table what it may import."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"tests", "examples", "benchmarks"} <= OURS


def import_graph() -> dict[str, set[str]]:
    """Return which modules of ours each module of ours imports, also only for types."""
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): path
        for path in source_files()
    }
    return {
        module: {
            name
            for name in imported_names((ROOT / path).read_text(encoding="utf-8"))
            # What a package's face offers is no import of the face by its own files.
            if name in modules and not f"{module}.".startswith(f"{name}.")
        }
        for module, path in modules.items()
    }


def test_no_file_imports_itself_by_way_of_others() -> None:
    """There is no circle of files, so each can be read without the ones above it."""
    try:
        graphlib.TopologicalSorter(import_graph()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("nameservice/ids.py", "import election"),
        ("nameservice/__init__.py", "import queryablestate.client.client"),
        ("nameservice/lazy.py", "import queryablestate.errors"),
        ("haservices/factory.py", "from nameservice import RateLimitedError"),
        ("lodestar/state_reads.py", "from nameservice import UnknownKeyError"),
        ("retrieval/service.py", "from zmqtransport import Loop"),
        ("haservices/factory.py", "import pyspark.sql"),
        ("leaderserver/client/link.py", "from kazoo.client import KazooClient"),
        ("leaderserver/client/link.py", "import leaderserver.server.server"),
        ("leaderserver/server/server.py", "from leaderserver.client import client"),
        ("haservices/factory.py", "from haservices.testing import TCPProxy"),
        ("lodestar/server.py", "import haservices.testing.reserved_port"),
        ("leaderserver/codec.py", "import leaderserver.client.core.exchanges"),
        ("leaderserver/server/core/topics.py", "from leaderserver.server import loop"),
        ("leaderserver/client/core/core.py", "import threading"),
        ("queryablestate/node/node.py", "import lmdb"),
        ("queryablestate/node/snapshots.py", "import pyarrow.fs"),
        ("queryablestate/client/frames.py", "import pyarrow"),
        ("haservices/metrics/serving.py", "import prometheus_client"),
        ("lodestar/gateway.py", "import uvicorn"),
        ("queryablestate/proxy/loop.py", "import queryablestate.gateway.server"),
        ("queryablestate/gateway/tags.py", "import asyncio"),
        ("queryablestate/sql/server.py", "import duckdb"),
        ("queryablestate/sql/protocol/messages.py", "import socket"),
        ("queryablestate/wire/codec.py", "import queryablestate.store.store"),
        ("queryablestate/control/core.py", "from queryablestate.proxy import loop"),
        ("queryablestate/control/moves.py", "import threading"),
        ("queryablestate/control/moves.py", "import queryablestate.control.commits"),
        ("queryablestate/control/chains.py", "import queryablestate.control.tickets"),
        ("queryablestate/node/core/jobs.py", "import secrets"),
        ("election/core.py", "from time import monotonic"),
        ("election/core.py", "def f():\n    import zmq.auth"),
        ("election/core.py", "from nameservice import get_logger"),
        ("rescaling/key_groups.py", "import random"),
    ],
)
def test_a_violation_is_seen(path: str, source: str) -> None:
    """The check finds what it is there for, inside functions too."""
    assert violations(Path(path), source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("nameservice/__init__.py", "from rescaling.errors import LogRecordError"),
        ("lodestar/state_reads.py", "from queryablestate import UnknownKeyError"),
        ("election/service.py", "import retrieval.core, random, threading"),
        ("election/core.py", "import timeit, nameservice"),
        ("haservices/zookeeper/backend.py", "import kazoo.client"),
        ("queryablestate/store/reader.py", "import lmdb"),
        ("queryablestate/connect/snapshot_files.py", "def f():\n    import pyarrow.fs"),
        ("sparkpipeline/state/sink.py", "from pyspark.sql import Row"),
    ],
)
def test_what_the_table_allows_is_no_violation(path: str, source: str) -> None:
    """The check forbids nothing beyond the table, nor names that only look alike."""
    assert violations(Path(path), source) == []
