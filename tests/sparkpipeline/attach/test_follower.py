"""
Two drivers that follow one checkpoint: who came later goes on, without Spark (W1).

The checkpoint is one of the test's own, and tells it when a follower looks at it: a
driver may sleep there for as long as it likes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from attrs import define

from haservices import HAConfig, open_ha_services
from queryablestate import LocalStateCluster, StaleWriterError
from queryablestate.client.calls import ProxyConnection
from queryablestate.connect.credentials import as_credentials
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.writer.connections import close_writer_connections
from queryablestate.writer.writer import StateWriter
from sparkpipeline.attach.checkpoint import Checkpoint
from sparkpipeline.attach.follower import StateFollower
from sparkpipeline.attach.layout import AttachedLayout, StateSource
from sparkpipeline.log.publication import LogStateFollower
from sparkpipeline.operators.publication import OperatorStatePublication
from sparkpipeline.state.options import StateLayout, StateSpec, WriteOptions
from tests.recording import WAIT_SECONDS


pytestmark = pytest.mark.shells

SPARK_QUERY = "of-spark"
SCHEMA = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("key", AtomicType.STRING),),
    value=(Field("number", AtomicType.BIGINT),),
)


def nothing() -> None:
    """Do not sleep."""


@define
class Committed:
    """A checkpoint, as far as a follower looks at it."""

    batch_ids: tuple[int, ...] = (0,)
    location: str = "nowhere"
    when_looked: Callable[[], None] = nothing

    def committed(self) -> list[int]:
        """Return the batches that were committed before the one who asks slept."""
        found = list(self.batch_ids)
        self.sleep()
        return found

    def is_committed(self, batch_id: int) -> bool:
        """Return whether a batch is."""
        return batch_id in self.batch_ids

    def committed_at_ms(self, _: int) -> int:
        """Return any time."""
        return 0

    def query_id(self) -> str:
        """Return the query."""
        return SPARK_QUERY

    def offsets(self, batch_id: int) -> list[str]:
        """Return the offset of a log."""
        return [json.dumps({"format_version": 1, "subtasks": [[["a", batch_id]]]})]

    def fed(self, _: int) -> set[int]:
        """Return that there is no feed."""
        return set()

    def sleep(self) -> None:
        """Do once what is done while a driver sleeps."""
        meanwhile, self.when_looked = self.when_looked, nothing
        meanwhile()


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Iterator[HAConfig]:
    """Yield a name service with a node, of the test's own."""
    config = HAConfig(url=f"embedded:{request.node.name}")
    with open_ha_services(config) as ha, LocalStateCluster(ha, nodes=1):
        yield config
        close_writer_connections()


@pytest.mark.proves("W1", "O5")
def test_who_slept_before_it_published_a_log_fences_no_later_one(
    config: HAConfig,
) -> None:
    """W1, O5: it would only find that the other one is ahead, and both would end."""
    checkpoint = Committed()

    def attach() -> LogStateFollower:
        return LogStateFollower(
            cast("Checkpoint", checkpoint),
            OperatorStatePublication(config=config, job_id="job"),
            state_name="offsets",
            source_index=0,
            spark_query_id=SPARK_QUERY,
        )

    slept, later = attach(), attach()

    def meanwhile() -> None:
        checkpoint.batch_ids = (0, 1)
        assert later.advance() is not None

    checkpoint.when_looked = meanwhile
    with pytest.raises(StaleWriterError):
        slept.advance()
    checkpoint.batch_ids = (0, 1, 2)
    published = later.advance()
    assert published is not None
    assert published.batch_id == 2
    for one in (slept, later):
        one.close()


class Other:
    """Another driver that follows the same state, and publishes nothing in it."""

    def __init__(self, proxy: ProxyConnection, query_id: str, run_id: str) -> None:
        self._writer = StateWriter(proxy)
        self._query_id = query_id
        self._run_id = run_id

    def publish(self, batch_id: int) -> None:
        """Publish a batch."""
        run = self._writer.begin(
            "job",
            {"totals": SCHEMA},
            query_id=self._query_id,
            run_id=self._run_id,
            max_parallelism=128,
            on_new_query="refuse",
            timeout_seconds=WAIT_SECONDS,
        )
        self._writer.commit(
            run.origin, batch_id, [], is_complete=True, timeout_seconds=WAIT_SECONDS
        )


class _NoSpark:
    """A session that runs no job."""

    defaultParallelism = 1  # noqa: N815 (Spark's name)

    @property
    def sparkContext(self) -> _NoSpark:  # noqa: N802 (Spark's name)
        """Return all that there is."""
        return self


@pytest.mark.proves("W1")
@pytest.mark.parametrize("suffix", ["", ":refill-0123"])
@pytest.mark.parametrize("has_looked", [True, False])
def test_who_slept_before_it_published_a_state_fences_no_later_one(
    config: HAConfig, monkeypatch: pytest.MonkeyPatch, suffix: str, *, has_looked: bool
) -> None:
    """W1: also where the owner is an id by which the state was filled again."""
    checkpoint = Committed()
    source = StateSource(operator_id=0, operator_name="any")
    layout = StateLayout(
        state_name="totals", schema=SCHEMA, order_by=(), delete=None, ttl=None
    )
    no_spark: Any = _NoSpark()
    slept = StateFollower(
        no_spark,
        config=config,
        credentials=as_credentials(None),
        options=WriteOptions(
            job_id="job",
            states=[StateSpec(state_name="totals", key="key")],
            output_mode="update",
        ),
        checkpoint=cast("Checkpoint", checkpoint),
        source=source,
        layout=AttachedLayout(layout=layout, parts=(), expiry=None),
        spark_query_id=SPARK_QUERY,
        value_names=None,
    )
    with ProxyConnection(config) as proxy:
        owner = f"{slept.query_id}{suffix}"
        Other(proxy, owner, "first").publish(0)
        later = Other(proxy, owner, "later")

        def meanwhile() -> None:
            checkpoint.batch_ids = (0, 1)
            later.publish(1)

        if has_looked:
            checkpoint.when_looked = meanwhile
        else:
            describe = slept._describe

            def described() -> Any:
                found = describe()
                meanwhile()
                return found

            monkeypatch.setattr(slept, "_describe", described)
        with pytest.raises(StaleWriterError):
            slept.advance()
        later.publish(2)
    slept.close()
