"""Who may import whom: the table of design §1 and the pure files of style §2."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent

# design §1, to the letter: `nameservice` may be imported everywhere.
_NAME_SERVICE = frozenset(
    {"nameservice", "transport", "retrieval", "election", "leaderserver", "haservices"}
)
_ALL_BUT_THE_COMMAND_LINE = _NAME_SERVICE | {
    "rescaling",
    "queryablestate",
    "sparkpipeline",
}
MAY_IMPORT: dict[str, frozenset[str]] = {
    "nameservice": frozenset(),
    "transport": frozenset(),
    "retrieval": frozenset(),
    "election": frozenset({"retrieval"}),
    "leaderserver": frozenset({"transport", "election", "retrieval"}),
    "haservices": frozenset({"transport", "retrieval", "election", "leaderserver"}),
    "rescaling": frozenset(),
    "queryablestate": frozenset(
        {"transport", "haservices", "election", "retrieval", "rescaling"}
    ),
    "sparkpipeline": _ALL_BUT_THE_COMMAND_LINE,
    "pyspark_lodestar": frozenset({"sparkpipeline"}),
    "pyspark_lodestar_log": frozenset({"sparkpipeline"}),
    "lodestar": _ALL_BUT_THE_COMMAND_LINE,
}
OURS = frozenset(MAY_IMPORT)

# style §2: what decides opens nothing, waits for nothing, reads no clock, draws no
# random number, logs nothing.
PURE_FILES = frozenset(
    {
        "attach_steps",
        "config",
        "events",
        "effects",
        "core",
        "component",
        "sessions",
        "holder",
        "subscriptions",
        "messages",
        "move_progress",
        "move_waiting",
        "client_core",
        "client_contenders",
        "client_events",
        "client_outbox",
        "client_subscriptions",
        "client_table",
        "deadlines",
        "epochs",
        "exchanges",
        "failures",
        "inspection",
        "json_values",
        "key_codec",
        "key_columns",
        "key_text",
        "log_budget",
        "log_state",
        "batch_order",
        "chains",
        "codec",
        "commit_rows",
        "commit_verification",
        "commits",
        "control_changes",
        "control_core",
        "control_limits",
        "control_effects",
        "control_events",
        "control_state",
        "copy_limits",
        "copy_messages",
        "enrolment",
        "job_changes",
        "node_chunks",
        "node_command_checks",
        "node_config",
        "node_copies",
        "node_copy_table",
        "node_core",
        "node_effects",
        "node_events",
        "node_information",
        "node_job",
        "node_jobs",
        "node_limits",
        "node_refusals",
        "node_registration",
        "query_core",
        "query_events",
        "query_floors",
        "query_keys",
        "query_lanes",
        "query_outbox",
        "query_requests",
        "query_results",
        "query_routes",
        "query_session",
        "restore_control",
        "restored_states",
        "scanning",
        "snapshot_control",
        "snapshot_manifest",
        "snapshot_messages",
        "node_waiting",
        "operator_manifest",
        "operator_states",
        "peers",
        "schema",
        "setting_checks",
        "topics",
        "value_codec",
        "node_messages",
        "node_table",
        "paths",
        "questions",
        "records",
        "rescaling_information",
        "tickets",
        "writer_runs",
        "location",
        "assignment",
        "assignment_notes",
        "decisions",
        "access",
        "rate_limit",
        "cache",
        "proxy_config",
        "proxy_config_toml",
        "proxy_requests",
        "proxy_sessions",
        "read_answers",
        "read_parking",
        "state_glob",
        "store_layout",
        "store_rows",
    }
)
PURE_PACKAGES = frozenset({"rescaling"})
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

# Who alone may import a library, so that its types and errors stop there.
SPARK_PACKAGES = frozenset(
    {"sparkpipeline", "pyspark_lodestar", "pyspark_lodestar_log"}
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
    return path.stem in PURE_FILES or path.parts[0] in PURE_PACKAGES


def violations(path: Path, source: str) -> list[str]:
    """Return what *source* imports though *path*, relative to the root, may not."""
    package = path.parts[0]
    names = sorted(set(imported_names(source)))
    forbidden = OURS - MAY_IMPORT[package] - {package, "nameservice"}
    if package not in SPARK_PACKAGES:
        forbidden |= {"pyspark", "py4j"}
    if not (package == "haservices" and path.stem.startswith("zookeeper_")):
        forbidden |= {"kazoo"}
    if not (package == "queryablestate" and path.stem.startswith("store_")):
        forbidden |= {"lmdb"}
    is_of_snapshots = package == "queryablestate" and path.stem == "snapshot_files"
    if package not in SPARK_PACKAGES and not is_of_snapshots:
        forbidden |= {"pyarrow"}
    if is_pure(path):
        forbidden |= IMPURE
    return [name for name in names if _is_within(name, forbidden)]


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


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("nameservice/ids.py", "import election"),
        ("retrieval/service.py", "from transport import Loop"),
        ("haservices/factory.py", "import pyspark.sql"),
        ("leaderserver/client.py", "from kazoo.client import KazooClient"),
        ("queryablestate/node.py", "import lmdb"),
        ("queryablestate/node_snapshots.py", "import pyarrow.fs"),
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
        ("election/service.py", "import retrieval.core, random, threading"),
        ("election/core.py", "import timeit, nameservice"),
        ("haservices/zookeeper_backend.py", "import kazoo.client"),
        ("queryablestate/store_reader.py", "import lmdb"),
        ("queryablestate/snapshot_files.py", "def f():\n    import pyarrow.fs"),
        ("sparkpipeline/sink.py", "from pyspark.sql import Row"),
    ],
)
def test_what_the_table_allows_is_no_violation(path: str, source: str) -> None:
    """The check forbids nothing beyond the table, nor names that only look alike."""
    assert violations(Path(path), source) == []
