"""
The API of queryable state as its users' type checkers see it; never run.

See `tests.typing.api`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from haservices import HAConfig, HAServices
from queryablestate import (
    AccessDeniedError,
    AsyncQueryableStateClient,
    Credentials,
    DeadlineExceededError,
    DrainInformation,
    LocalStateCluster,
    NodeConfig,
    PartialResult,
    ProxyConfig,
    QueryableStateClient,
    QueryableStateError,
    QueryStateProxyServer,
    RateLimitedError,
    RescalingInformation,
    StateEntry,
    StateInformation,
    StateNode,
    StateOperations,
    StateUnavailableError,
    UnknownKeyError,
)
from sparkpipeline import (
    AttachedState,
    AttachStatus,
    StateSpec,
    attach_state,
    publish_state,
    publish_states,
)


def ask(config: HAConfig) -> None:
    """Ask as business users do."""
    with QueryableStateClient(config, credentials=Credentials(token="t")) as client:
        assert_type(client.get("flights", "aircraft", "N14228"), Any)
        assert_type(client.get("flights", "aircraft", "N14228", default=None), Any)
        keys = ["N14228", "N24211"]
        assert_type(client.get_many("flights", "aircraft", keys), dict[Any, Any])
        assert_type(
            client.get_many("flights", "aircraft", keys, partial=True), PartialResult
        )
        assert_type(client.exists("flights", "aircraft", "N14228"), bool)
        entry = client.lookup("flights", "aircraft", "N14228", min_batch_id=7)
        assert_type(entry, StateEntry)
        assert_type(entry.generation, int)
        assert_type(entry.age_seconds, float)
        assert_type(entry.cached, bool)
        client.get_map_entry("flights", "delays", "N14228", "JFK")
        client.get_list("flights", "log", "N14228", start=-10)
        rows = client.scan("flights", "aircraft", prefix="N1", limit=10)
        assert_type(rows, Iterator[tuple[Any, dict[str, Any]]])
        assert_type(client.batches("flights", "aircraft"), Iterator[Any])
        client.table("flights", "aircraft", columns=["origin"], row_limit=10)
        assert_type(client.count("flights", "aircraft"), int)
        assert_type(client.jobs(), list[str])
        assert_type(client.states("flights"), list[str])
        assert_type(client.describe("flights", "aircraft"), StateInformation)


async def ask_async(config: HAConfig) -> None:
    """Ask from coroutines."""
    async with AsyncQueryableStateClient(config) as client:
        assert_type(await client.get("flights", "aircraft", "N14228"), Any)
        assert_type(
            await client.get_many("flights", "aircraft", ["N14228"]), dict[Any, Any]
        )
        rows = client.scan("flights", "aircraft", start="N1", stop="N2")
        assert_type(rows, AsyncIterator[tuple[Any, dict[str, Any]]])


def serve(ha: HAServices) -> None:
    """Run everything inside a program."""
    with (
        QueryStateProxyServer(ha, ProxyConfig()) as proxy,
        StateNode(ha, NodeConfig(data_dir="rows")) as node,
        LocalStateCluster(ha, nodes=2) as cluster,
    ):
        assert_type(proxy.address, str)
        assert_type(node.node_id, str)
        assert_type(cluster.nodes[0], StateNode)
        assert_type(cluster.add_node(), StateNode)
        assert_type(cluster.remove_node("node-1"), str | None)


def operate(config: HAConfig) -> None:
    """Move key groups."""
    with StateOperations(config, Credentials(token="t")) as operations:
        begun = operations.rescale("flights", node_count=2, replica_count=1)
        assert_type(begun, RescalingInformation)
        assert_type(begun.seconds_left, float | None)
        operations.wait_until_rescaled("flights", since=begun, timeout_seconds=60)
        drained = operations.drain("node-1")
        assert_type(drained, DrainInformation)
        assert_type(operations.wait_until_drained("node-1"), DrainInformation)


def publish(frame: DataFrame, config: HAConfig) -> None:
    """Publish from a streaming query."""
    writer = publish_state(
        frame,
        config,
        job_id="flights",
        state_name="aircraft",
        key=["tailnum"],
        kind="value",
        output_mode="update",
    )
    assert_type(writer, DataStreamWriter)
    specs = [StateSpec(state_name="aircraft", key=["tailnum"])]
    assert_type(
        publish_states(frame, config, specs, job_id="flights", output_mode="update"),
        DataStreamWriter,
    )


def attach(spark: SparkSession, config: HAConfig) -> None:
    """Publish what Spark keeps for a query."""
    with attach_state(
        spark, config, "checkpoint", job_id="flights", state_name="aircraft"
    ) as attached:
        assert_type(attached, AttachedState)
        assert_type(attached.status(), AttachStatus)
        assert_type(attached.status().lag_batches, int)


def tell_apart(client: QueryableStateClient) -> None:
    """Tell errors apart, and read their data."""
    try:
        client.get("flights", "aircraft", "N14228")
    except UnknownKeyError as error:
        assert_type(error.key, object)
    except StateUnavailableError as error:
        assert_type(error.key_groups, tuple[int, ...])
        assert_type(error.retry_after_seconds, float)
    except RateLimitedError as error:
        assert_type(error.retry_after_seconds, float)
    except (AccessDeniedError, DeadlineExceededError) as error:
        assert_type(error, AccessDeniedError | DeadlineExceededError)
    except QueryableStateError:
        raise
