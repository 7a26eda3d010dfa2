"""What importing a public face loads: what is used of it, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
STATE_SERVERS = (
    "queryablestate.store",
    "queryablestate.node",
    "queryablestate.proxy",
    "queryablestate.control",
)
HEAVY = ("pyspark", "pyarrow", "pandas", "lmdb")


def loaded_after(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after *code*."""
    process = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sorted(sys.modules))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(process.stdout.splitlines()[-1].split())


def within(modules: set[str], *packages: str) -> list[str]:
    """Return those of *modules* that are one of *packages*, or inside one."""
    return sorted(
        module
        for module in modules
        if any(f"{module}.".startswith(f"{package}.") for package in packages)
    )


def load_verb(verb: str) -> str:
    """Return code that makes the parser of one verb, as ``lodestar VERB`` does."""
    return f"from lodestar.__main__ import make_parser; make_parser([{verb!r}])"


class TestPackages:
    """Importing a name from a package."""

    def test_the_client_of_states_loads_no_server(self) -> None:
        """No store, node, proxy or control plane, no LMDB and no Spark."""
        loaded = loaded_after("from queryablestate import QueryableStateClient")
        assert within(loaded, *STATE_SERVERS, *HEAVY) == []

    def test_an_error_type_loads_no_zeromq(self) -> None:
        """What only catches errors needs no ZeroMQ and no logging."""
        loaded = loaded_after("from nameservice import NoLeaderError")
        assert within(loaded, "zmq", "structlog", "kazoo", "zmqtransport", *HEAVY) == []

    def test_configuration_loads_no_backend(self) -> None:
        """A program that only makes an HAConfig loads no client of any backend."""
        loaded = loaded_after("from haservices import HAConfig, open_ha_services")
        assert within(loaded, "zmq", "kazoo", "leaderserver", *HEAVY) == []

    def test_a_client_of_a_leaderserver_loads_no_server(self) -> None:
        """Opening services over ZeroMQ needs neither the server nor SQLite."""
        loaded = loaded_after("import haservices.leaderserver_backend")
        servers = ("leaderserver.server", "sqlite3")
        assert within(loaded, *servers, "kazoo", *HEAVY) == []


class TestCommandLine:
    """What ``lodestar VERB`` loads before it begins."""

    def test_help_loads_no_verb(self) -> None:
        """The list of verbs is a table."""
        loaded = loaded_after("from lodestar.__main__ import make_parser")
        assert within(loaded, "lodestar") == [
            "lodestar",
            "lodestar.__main__",
            "lodestar.streams",
            "lodestar.verbs",
        ]
        assert within(loaded, "nameservice", "haservices", "zmq", "attrs") == []

    @pytest.mark.parametrize("verb", ["leader", "leaders", "watch", "contenders"])
    def test_asking_who_leads_loads_no_state(self, verb: str) -> None:
        """Verbs of the name service load no server, and of states only the errors."""
        loaded = loaded_after(load_verb(verb)) - {
            "queryablestate",
            "queryablestate.errors",
        }
        assert within(loaded, "queryablestate", "leaderserver", *HEAVY) == []

    def test_the_help_of_the_gateway_needs_no_extra(self) -> None:
        """What it needs is loaded when it serves; a node or a proxy never is."""
        loaded = loaded_after(load_verb("gateway"))
        assert within(loaded, "starlette", "uvicorn", *STATE_SERVERS, *HEAVY) == []

    def test_the_help_of_sql_needs_no_extra(self) -> None:
        """DuckDB is loaded when it serves, and in its workers."""
        loaded = loaded_after(load_verb("sql"))
        assert within(loaded, "duckdb", *STATE_SERVERS, *HEAVY) == []

    @pytest.mark.parametrize("verb", ["get", "states", "scan", "count"])
    def test_asking_a_state_loads_no_server(self, verb: str) -> None:
        """Verbs that read states load their client alone."""
        loaded = loaded_after(load_verb(verb))
        assert within(loaded, *STATE_SERVERS, *HEAVY) == []
