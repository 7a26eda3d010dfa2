"""C1: to bring rows to a node takes the right to write them, over real sockets."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from msgspec.structs import replace

from queryablestate import AccessDeniedError, Credentials
from queryablestate.client.calls import ProxyConnection
from queryablestate.proxy.access import AccessList, CallerEntry
from queryablestate.proxy.config import ProxyConfig
from queryablestate.schema.keys import KeyCodec
from queryablestate.writer.batches import WriteRun
from queryablestate.writer.rows import StateRows
from queryablestate.writer.stager import Stager
from queryablestate.writer.writer import StateWriter
from tests.queryablestate.proxy_stage import JOB, SCHEMA, STATE, ProxyStage
from tests.queryablestate.store_batches import counted_sizes
from zmqtransport import CurveKeyPair, write_key_pair


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 30.0
MAX_PARALLELISM = 128
NODE_TOKEN = "of the nodes"


class Cluster:
    """A proxy and a node with CURVE; two callers, each may write one job."""

    def __init__(self, directory: Path) -> None:
        pairs = {
            name: CurveKeyPair.generate()
            for name in ("proxy", "node", "owner", "neighbour")
        }
        files = {
            name: write_key_pair(pair, directory / name) for name, pair in pairs.items()
        }
        allow_list = directory / "nodes.toml"
        allow_list.write_text(
            "\n".join(
                f"[clients.{name}]\npublic_key = '{pairs[name].public_key}'\n"
                "roles = ['observe']"
                for name in ("owner", "neighbour")
            ),
            encoding="utf-8",
        )
        access = AccessList(
            callers=[
                CallerEntry(
                    name="owner",
                    public_key=pairs["owner"].public_key,
                    write=[f"{JOB}/*"],
                ),
                CallerEntry(
                    name="neighbour",
                    public_key=pairs["neighbour"].public_key,
                    read=["*/*"],
                    write=["trains/*"],
                ),
                CallerEntry(
                    name="node", public_key=pairs["node"].public_key, node=True
                ),
            ]
        )
        self.stage = ProxyStage(
            directory,
            ProxyConfig(
                access=access,
                curve_public_key_file=files["proxy"].public_file,
                curve_secret_key_file=files["proxy"].secret_file,
            ),
            curve_public_key_file=files["node"].public_file,
            curve_secret_key_file=files["node"].secret_file,
            allow_list_file=allow_list,
        )
        self.resources = ExitStack()
        self.owner, self.neighbour = (
            Credentials(curve_secret_key_file=files[name].secret_file)
            for name in ("owner", "neighbour")
        )

    def staged(self) -> dict[str, int]:
        """Return how many bytes of each job are staged at the node."""
        (node,) = self.stage.nodes
        assert node._running is not None
        return counted_sizes(node._running._store.opened.store)

    def writer(self, credentials: Credentials) -> StateWriter:
        """Return what asks the proxy as that caller."""
        proxy = ProxyConnection(self.stage.config, credentials)
        return StateWriter(self.resources.enter_context(proxy))

    def begin(self, credentials: Credentials, job_id: str) -> WriteRun:
        """Begin a batch."""
        return self.writer(credentials).begin(
            job_id,
            {STATE: SCHEMA},
            query_id=str(uuid.uuid4()),
            run_id=str(uuid.uuid4()),
            max_parallelism=MAX_PARALLELISM,
            on_new_query="refuse",
            timeout_seconds=TIMEOUT_SECONDS,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster, started."""
    cluster = Cluster(tmp_path)
    with cluster.stage, cluster.resources:
        yield cluster


def bring(
    run: WriteRun,
    credentials: Credentials,
    renew_grant: Callable[[], bytes] | None = None,
) -> None:
    """Stage one row."""
    key = KeyCodec(SCHEMA.key, max_parallelism=MAX_PARALLELISM).storage_key("N14228")
    with Stager(run, 0, credentials=credentials, renew_grant=renew_grant) as stager:
        rows = StateRows(keys=[key], values=[b"1"])
        stager.add(run.origin.state_numbers[0], rows, is_list=False)
        stager.finish()


@pytest.mark.proves("C1", "B4")
def test_who_may_not_write_a_job_stages_nothing_of_it(cluster: Cluster) -> None:
    """C1: neither without a grant, nor with that of another job, nor with a guess."""
    theirs = cluster.begin(cluster.owner, JOB)
    own = cluster.begin(cluster.neighbour, "trains")
    for grant in (b"", own.grant, bytes(16)):
        forged = evolve(theirs, grant=grant)
        with pytest.raises(AccessDeniedError):
            bring(forged, cluster.neighbour)
    higher = replace(theirs.origin, writer_epoch=theirs.origin.writer_epoch + 100)
    with pytest.raises(AccessDeniedError):
        bring(evolve(theirs, origin=higher), cluster.neighbour)
    assert cluster.staged() == {}
    bring(own, cluster.neighbour)
    bring(theirs, cluster.owner)
    assert sorted(cluster.staged()) == [JOB, "trains"]


@pytest.mark.proves("C1")
def test_the_proxy_gives_no_grant_to_who_may_not_write(cluster: Cluster) -> None:
    """C1: who asks for one as another caller's query is refused there as well."""
    theirs = evolve(cluster.begin(cluster.owner, JOB), grant=b"")
    renew = partial(
        cluster.writer(cluster.neighbour).renew_grant,
        theirs,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    with pytest.raises(AccessDeniedError, match="write"):
        bring(theirs, cluster.neighbour, renew)
    assert cluster.staged() == {}


@pytest.mark.proves("W2")
def test_who_may_write_gets_another_grant_where_one_is_refused(
    cluster: Cluster,
) -> None:
    """A batch that was begun with a proxy leader of long ago goes on."""
    run = evolve(cluster.begin(cluster.owner, JOB), grant=bytes(16))
    renew = partial(
        cluster.writer(cluster.owner).renew_grant, run, timeout_seconds=TIMEOUT_SECONDS
    )
    bring(run, cluster.owner, renew)
    assert list(cluster.staged()) == [JOB]
