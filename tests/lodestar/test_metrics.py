"""``--metrics`` of the verbs that run a server."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.deploy.serving import metrics_url, status_of
from tests.lodestar.running import Running, run


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
