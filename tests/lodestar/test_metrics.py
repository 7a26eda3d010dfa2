"""``--metrics`` of the verbs that run a server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from haservices import open_ha_services
from haservices.metrics import serve_metrics
from haservices.metrics.figures import INFO, LEFT_OUT, figure_of
from haservices.testing import LeaderServer, ServerConfig
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.deploy.serving import metrics_url, status_of
from tests.lodestar.publishing import Publisher
from tests.lodestar.running import Ask, Running, run


pytestmark = [pytest.mark.shells, pytest.mark.proves("F1")]


def test_server_proxy_and_node(tmp_path: Path) -> None:
    """Each serves its own metrics, and is ready once it says that it serves."""
    with Running(
        *("server", "--bind", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0"),
        *("--data-dir", str(tmp_path / "server")),
    ) as server:
        metrics = {"server": metrics_url(server)}
        url = server.out.next().removeprefix("serving ")
        with (
            Running("proxy", "--url", url, "--metrics", "0") as proxy,
            Running(
                *("node", "--url", url, "--metrics", ":0"),
                *("--data-dir", str(tmp_path / "node")),
            ) as node,
        ):
            metrics |= {"proxy": metrics_url(proxy), "node": metrics_url(node)}
            proxy.out.until("serving ")
            node.out.until("serving ")  # so the proxy leads
            for role, address in metrics.items():
                assert status_of(f"{address}/healthz") == 200
                with urllib.request.urlopen(f"{address}/metrics", timeout=60) as found:
                    text = found.read().decode()
                assert f"# TYPE lodestar_{role}_connections gauge\n" in text
            for role in ("proxy", "node"):
                assert status_of(f"{metrics[role]}/readyz") == 200
            taken = metrics["proxy"].removeprefix("http://")
            done = run("proxy", "--url", url, "--metrics", taken)
            assert (done.exit_code, done.out) == (2, "")
            assert f"cannot serve metrics at {taken}" in done.err.splitlines()[-1]


@pytest.mark.parametrize("verb", ["server", "proxy", "node"])
def test_an_address_that_is_none(verb: str, tmp_path: Path) -> None:
    """Is bad usage, and nothing was served."""
    at = {
        "server": ("--bind", "tcp://127.0.0.1:0"),
        "proxy": ("--url", "leaderserver://127.0.0.1:1"),
        "node": ("--data-dir", str(tmp_path), "--url", "leaderserver://127.0.0.1:1"),
    }
    done = run(verb, *at[verb], "--metrics", "nowhere")
    assert (done.exit_code, done.out) == (2, "")
    assert "write HOST:PORT" in done.err.splitlines()[-1]


STEADY = {
    *("is_undecided", "is_durable", "components", "contenders", "leaders"),
    *("leaderless", "store_watches", "grants_total", "failures_total"),
}
"""What the verb itself does not change, which is a client for a moment."""

AIRCRAFT = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("flights", AtomicType.INT),),
)


def scraped(address: str) -> dict[tuple[str, str], float]:
    """Return each sample by its name and its job, node or other label."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as found:
        text = found.read().decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_status_and_nodes_show_the_same(ask: Ask, tmp_path: Path) -> None:
    """What an operator reads in a terminal is what a graph shows."""
    config = ServerConfig(bind="tcp://127.0.0.1:0", data_dir=tmp_path / "data")
    with (
        LeaderServer(config) as server,
        open_ha_services(server.url) as ha,
        LocalStateCluster(ha, nodes=2, replicas=2) as cluster,
        serve_metrics(server, "0") as of_server,
        serve_metrics(cluster.proxies[0], "0") as of_proxy,
        serve_metrics(cluster.nodes[0], "0") as of_node,
    ):
        Publisher(ha, "flights", {"aircraft": AIRCRAFT}).write(
            {"aircraft": [("N1", 3)]}
        )
        told = json.loads(ask("status", "--json", "--url", server.url).out)
        (one, two) = json.loads(ask("nodes", "--json", "--url", server.url).out)
        found = scraped(of_server.url)
        proxy, node = scraped(of_proxy.url), scraped(of_node.url)
    for name, value in told.items():
        if name in INFO["server"] or name in LEFT_OUT["server"]:
            continue
        if name == "publisher_reached":
            continue  # of this client, not of the server
        metric = figure_of("server", name)
        assert metric is not None, name
        sample = found[metric[0], next(iter(metric[2].values()), "")]
        if name in STEADY:
            assert sample == value, name
        elif name.endswith("_total"):
            assert sample >= value, name
    assert found["lodestar_server_durable", ""] == told["is_durable"] == 1
    assert found["lodestar_server_leaders", ""] == told["leaders"] == 1
    copies = one["copy_counts"]["flights"] + two["copy_counts"]["flights"]
    assert proxy["lodestar_proxy_job_copies", "flights"] == copies == 256
    groups = one["key_group_counts"]["flights"] + two["key_group_counts"]["flights"]
    assert proxy["lodestar_proxy_job_key_groups", "flights"] == groups == 128
    behind = max(one["behind_counts"]["flights"], two["behind_counts"]["flights"])
    assert proxy["lodestar_proxy_job_entries_behind", "flights"] == behind == 0
    assert proxy["lodestar_proxy_nodes_present", ""] == 2
    names = [one["node_id"], two["node_id"]]
    held = one if names[0] == cluster.nodes[0].node_id else two
    assert node["lodestar_node_key_groups_held", ""] == held["copy_counts"]["flights"]
