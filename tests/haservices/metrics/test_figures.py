"""Every figure of a server is a metric, or left out with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservices import open_ha_services
from haservices.metrics.figures import (
    FAMILIES,
    FIGURES,
    INFO,
    LEFT_OUT,
    OTHERS,
    Figure,
    figure_of,
    metric_name,
)
from haservices.testing import LeaderServer, ServerConfig
from lodestar.driver_control import DriverWatch
from nameservice.observation import Observable
from queryablestate.gateway import GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.sql.config import SQLConfig
from queryablestate.sql.server import SQLServer


ROOT = Path(__file__).parents[3]
ROLES = sorted(FIGURES)

# Where each role counts what has no figure before it has happened once.
_COUNTING = {
    "server": ("leaderserver/server/**/*.py",),
    "proxy": ("queryablestate/proxy/loop.py", "queryablestate/proxy/port.py"),
    "node": ("queryablestate/node/server.py", "queryablestate/node/port.py"),
    "sql": ("queryablestate/sql/server.py",),
    "gateway": ("queryablestate/gateway/boundary.py",),
    "standby": ("lodestar/driver_control.py",),
}
_COUNTED = re.compile(r'(?:\.counts?|\._count|_counts)[\[(]f?"([a-z_]+?)_?(?:\{|")')
_PAGE = ROOT / "docs" / "reference" / "metrics.md"


def counted(role: str) -> set[str]:
    """Return what *role* counts, as its source says; of a family how it begins."""
    files = [file for name in _COUNTING[role] for file in ROOT.glob(name)]
    assert files
    return {
        f"{name}_total"
        for file in files
        for name in _COUNTED.findall(file.read_text(encoding="utf-8"))
    }


def is_told(role: str, figure: str) -> bool:
    """Return whether the table has a place for a figure."""
    return (
        figure in INFO[role]
        or figure in LEFT_OUT[role]
        or figure_of(role, figure) is not None
        or figure.removesuffix("total") in {one.prefix for one in FAMILIES[role]}
    )


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, set[str]]]:
    """Return the figures that a server of each role has when it has just begun."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
        open_ha_services(server.url) as ha,
        LocalStateCluster(ha, nodes=1) as cluster,
        GatewayServer(ha) as gateway,
        SQLServer(ha, SQLConfig(bind="127.0.0.1:0", worker_count=1)) as sql,
    ):
        observed: dict[str, Observable] = {
            "server": server,
            "proxy": cluster.proxies[0],
            "node": cluster.nodes[0],
            "gateway": gateway,
            "sql": sql,
            "standby": DriverWatch("flights", print),
        }
        yield {
            role: set(one.observe().figures) for role, one in sorted(observed.items())
        }


@pytest.mark.shells
@pytest.mark.proves("F1")
@pytest.mark.parametrize("role", ROLES)
class TestTable:
    """F1: the table is the code."""

    def test_every_figure_is_in_the_table(
        self, figures: dict[str, set[str]], role: str
    ) -> None:
        """Also those that are only there once something has happened."""
        found = figures[role] | counted(role)
        assert [one for one in sorted(found) if not is_told(role, one)] == []

    def test_the_table_has_nothing_else(
        self, figures: dict[str, set[str]], role: str
    ) -> None:
        """A figure that is gone is taken out of the table."""
        found = figures[role] | counted(role)
        told = {*FIGURES[role], *INFO[role], *LEFT_OUT[role]}
        assert sorted(told - found) == []


def metrics(role: str) -> dict[str, str]:
    """Return every metric of *role* with its help."""
    found = {
        metric_name(role, figure.name or name): figure.help
        for name, figure in FIGURES[role].items()
    }
    for family in FAMILIES[role]:
        found[metric_name(role, f"{family.name}_total")] = family.help
    for name, what in OTHERS[role].items():
        found[metric_name(role, name)] = what
    return found


@pytest.mark.proves("F1")
class TestNames:
    """F1: names, types, help and units."""

    @pytest.mark.parametrize("role", ROLES)
    def test_names_are_as_prometheus_wants_them(self, role: str) -> None:
        """Letters and underscores; base units; each name once; help is a sentence."""
        found = metrics(role)
        count = len(FIGURES[role]) + len(FAMILIES[role]) + len(OTHERS[role])
        assert len(found) == count
        for name, what in found.items():
            assert re.fullmatch(r"[a-z][a-z_]*", name)
            assert not re.search(r"_(ms|us|ns|kb|mb|count)(_|$)", name), name
            assert what[0].isupper() or what[0] == "1"
            assert what.endswith("."), what

    @pytest.mark.parametrize("role", ROLES)
    def test_no_label_is_one_that_prometheus_sets(self, role: str) -> None:
        """
        F1: what is served as ``job`` is ``exported_job`` there, and not found.

        The job of a standby was: `lodestar_standby_info{job="flights"}` matched none.
        """
        labels = {*INFO[role], *(family.label for family in FAMILIES[role])}
        assert labels & {"job", "instance"} == set()

    def test_no_figure_is_two_metrics(self) -> None:
        """A name of the table is not also one of a family."""
        for role in ROLES:
            for family in FAMILIES[role]:
                taken = [n for n in FIGURES[role] if n.startswith(family.prefix)]
                assert taken == []

    @pytest.mark.parametrize(
        ("role", "name", "expected"),
        [
            ("node", "jobs_failed", ("lodestar_node_jobs_failed", {})),
            (
                "node",
                "lease_remaining_ms",
                ("lodestar_node_lease_remaining_seconds", {}),
            ),
            (
                "server",
                "frames_wrong_magic_total",
                ("lodestar_server_frames_dropped_total", {"reason": "wrong_magic"}),
            ),
            (
                "node",
                "proxy_frames_full_total",
                ("lodestar_node_proxy_frames_dropped_total", {"reason": "full"}),
            ),
            ("proxy", "something", None),
            ("server", "frames_waiting", None),
        ],
    )
    def test_a_figure_has_a_metric(
        self, role: str, name: str, expected: tuple[str, dict[str, str]] | None
    ) -> None:
        """By its name, or by what its name begins with."""
        found = figure_of(role, name)
        if found is None:
            assert expected is None
            return
        metric, figure, labels = found
        assert isinstance(figure, Figure)
        assert (metric, labels) == expected

    @pytest.mark.parametrize("role", ROLES)
    def test_every_metric_is_told_of(self, role: str) -> None:
        """The page has a row for each, with what help says, and none beside."""
        rows = re.findall(
            rf"^\| `(lodestar_{role}_\w+)` \| .*? ?\| (.*) \|$",
            _PAGE.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        told = {name: what for name, what in rows if not name.endswith("_info")}
        assert told == metrics(role)
