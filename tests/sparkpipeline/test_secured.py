"""Writers prove who they are, to proxy and nodes, in drivers and in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate import AccessDeniedError
from queryablestate.client.client import QueryableStateClient
from queryablestate.connect.credentials import Credentials
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.proxy.access import AccessList, CallerEntry
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from queryablestate.writer.connections import close_writer_connections
from sparkpipeline import publish_state, source_options
from tests.sparkpipeline.state_cluster import Feed, run_to_end
from zmqtransport import CurveKeyPair, KeyFiles, write_key_pair


pytestmark = [pytest.mark.spark, pytest.mark.shells]


@frozen(kw_only=True)
class Secured:
    """A name service, and who may do what."""

    config: HAConfig
    writer: KeyFiles
    reader: KeyFiles


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Yield a cluster with CURVE everywhere but in the name service."""
    directory = tmp_path_factory.mktemp("secured")
    names = ("proxy", "node", "writer", "reader")
    pairs = {name: CurveKeyPair.generate() for name in names}
    files = {name: write_key_pair(pairs[name], directory / name) for name in names}
    writers = directory / "writers.toml"
    # Z85 has neither quotes nor backslashes.
    key = pairs["writer"].public_key
    writers.write_text(
        f'[clients.writer]\npublic_key = "{key}"\nroles = ["observe"]\n',
        encoding="utf-8",
    )
    access = AccessList(
        callers=(
            CallerEntry(
                name="writer",
                public_key=pairs["writer"].public_key,
                write=("flights/*",),
                read=("flights/*",),
            ),
            CallerEntry(
                name="reader",
                public_key=pairs["reader"].public_key,
                read=("flights/*",),
            ),
            CallerEntry(name="node", public_key=pairs["node"].public_key, node=True),
        )
    )
    proxy_config = ProxyConfig(
        curve_public_key_file=str(files["proxy"].public_file),
        curve_secret_key_file=str(files["proxy"].secret_file),
        access=access,
    )
    node_config = NodeConfig(
        data_dir=directory / "rows",
        curve_public_key_file=files["node"].public_file,
        curve_secret_key_file=files["node"].secret_file,
        allow_list_file=writers,
    )
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        config = HAConfig(url=server.url)
        with (
            open_ha_services(config) as ha,
            QueryStateProxyServer(ha, proxy_config),
            StateNode(ha, node_config) as node,
        ):
            node.wait_until_registered(30)
            yield Secured(config=config, writer=files["writer"], reader=files["reader"])
            close_writer_connections()


def credentials(files: KeyFiles) -> Credentials:
    """Return what the holder of *files* shows."""
    return Credentials(curve_secret_key_file=files.secret_file)


def test_a_stream_is_published_by_who_may(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    """The keys travel, as names of files, to the tasks; who may not write is told."""
    feed = Feed(spark, tmp_path / "input", "k string, n long")
    feed.add({"k": "a", "n": 1})

    def publish(files: KeyFiles) -> None:
        writer = publish_state(
            feed.frame(),
            secured.config,
            job_id="flights",
            state_name="stream",
            key="k",
            output_mode="update",
            credentials=credentials(files),
        )
        run_to_end(writer, tmp_path / "checkpoint")

    with pytest.raises(AccessDeniedError, match="you are not allowed to"):
        publish(secured.reader)
    publish(secured.writer)
    with QueryableStateClient(secured.config, credentials(secured.reader)) as client:
        assert client.get("flights", "stream", "a") == {"n": 1}


def test_a_table_is_written_and_read_by_who_may(
    spark: SparkSession, secured: Secured
) -> None:
    """Options name the files; sessions of other callers are not taken for theirs."""
    frame = spark.range(10).selectExpr("id", "id * id as n")
    names = {"job_id": "flights", "state_name": "table"}
    common = source_options(secured.config) | names

    def keys(files: KeyFiles) -> dict[str, str]:
        return {"proxy_curve_secret_key_file": str(files.secret_file)}

    def save(files: KeyFiles) -> None:
        options = common | keys(files) | {"key": "id"}
        frame.write.format("lodestar").mode("overwrite").options(**options).save()

    with pytest.raises(PySparkException, match="you are not allowed to"):
        save(secured.reader)
    save(secured.writer)
    reader = spark.read.format("lodestar").options(**common)
    found = reader.options(**keys(secured.reader)).load()
    assert sorted(found.collect()) == sorted(frame.collect())
