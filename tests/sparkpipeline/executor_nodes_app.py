"""
A Spark application of two executors with nodes under them; run by its test.

Prints what it has found as one line of JSON.  A process of its own, because a process
has one Spark, and that of the other tests has no executors.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate.client.calls import ProxyConnection
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from queryablestate.wire.clients import ListNodes, NodesListed
from sparkpipeline import start_nodes
from sparkpipeline.state.executor_node_process import read_slots
from tests.recording import wait_until


TIMEOUT_SECONDS = 60.0


def addresses(proxy: ProxyConnection) -> dict[str, str | None]:
    """Return where the proxy knows each node to be."""
    answer = proxy.call(
        lambda request_id, session: ListNodes(request_id=request_id, session=session),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert isinstance(answer, NodesListed)
    return {node.node_id: node.address for node in answer.nodes}


def main(data_dir: Path) -> None:
    """Start nodes, stop them, start them again, kill an executor, end Spark."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.appName("executor-nodes")
        .master("local-cluster[2,1,1024]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .getOrCreate()
    )
    found: dict[str, object] = {}
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        config = HAConfig(url=server.url)
        with (
            open_ha_services(config) as ha,
            QueryStateProxyServer(ha, ProxyConfig()),
            ProxyConnection(ha) as proxy,
        ):
            with start_nodes(spark, config, data_dir=data_dir) as nodes:
                found["jvm_pids"] = [node.jvm_pid for node in nodes.nodes]
                found["node_ids"] = nodes.node_ids
                found["addresses"] = {
                    node.node_id: node.address for node in nodes.nodes
                }
                found["registered"] = addresses(proxy)
                again = start_nodes(spark, config, data_dir=data_dir, executor_count=2)
                found["is_same_again"] = again.nodes == nodes.nodes
            found["running_after_stop"] = len(read_slots(data_dir))
            nodes = start_nodes(spark, config, data_dir=data_dir, executor_count=2)
            found["node_ids_after_restart"] = nodes.node_ids
            killed, kept = nodes.nodes
            os.kill(killed.jvm_pid, signal.SIGKILL)
            wait_until(lambda: killed not in read_slots(data_dir))
            found["is_other_kept"] = kept in read_slots(data_dir)
            # Spark puts another executor in its place: so does the node.
            nodes = start_nodes(spark, config, data_dir=data_dir, executor_count=2)
            found["node_ids_after_death"] = nodes.node_ids
            found["is_executor_new"] = killed.jvm_pid not in {
                node.jvm_pid for node in nodes.nodes
            }
            found["is_kept_as_it_was"] = kept in nodes.nodes
            spark.stop()
            wait_until(lambda: not read_slots(data_dir))
            nodes.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
