"""Staged rows that a node collects from others, over real sockets (S2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace
from structlog.testing import capture_logs

from haservices.testing.reserved_port import ReservedPort
from queryablestate.wire.job_assignment import CopySource, WriterFence
from queryablestate.wire.node_messages import CollectStages, StagesCollected
from queryablestate.wire.records import StageRecord, collected_stage_id
from tests.queryablestate.copying_nodes import ALL_GROUPS, JOB, CopyingNode, wait_until
from tests.queryablestate.node_entries import batch
from tests.queryablestate.proxy_for_nodes import TIMEOUT_SECONDS, rows, storage_key


pytestmark = pytest.mark.shells

VERSION = 5


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[CopyingNode, CopyingNode]]:
    """Return a node that rows are brought to, and one that collects them."""
    with CopyingNode("a", tmp_path) as a, CopyingNode("b", tmp_path) as b:
        for node in (a, b):
            node.register(node.assignment(held=ALL_GROUPS))
        yield a, b


def command(
    node: CopyingNode,
    *stages: StageRecord,
    sources: tuple[tuple[CopyingNode, tuple[int, ...]], ...],
    version: int = VERSION,
    timeout_ms: int = 20_000,
    verify_id: int = 1,
) -> CollectStages:
    """Return what *node* is told to collect of batch 1."""
    return CollectStages(
        leader_epoch=node.proxy.leader_epoch,
        verify_id=verify_id,
        job_id=JOB,
        query_id="q",
        writer_epoch=1,
        batch_id=1,
        assignment_version=version,
        stages=stages,
        sources=tuple(
            CopySource(
                node_id=source.name, address=source.node.address, key_groups=groups
            )
            for source, groups in sources
        ),
        timeout_ms=timeout_ms,
    )


def collect(node: CopyingNode, told: CollectStages) -> StagesCollected:
    """Return what *node* answers."""
    node.proxy.send(told)
    collected, _ = node.proxy.receive(StagesCollected)
    assert collected.verify_id == told.verify_id
    return collected


def kept(
    stage: StageRecord,
    node: CopyingNode,
    count: int,
    version: int = VERSION,
    *,
    key_groups: tuple[int, ...] = (0,),
) -> StageRecord:
    """Return how a decision names what *node* has collected of *stage*."""
    return StageRecord(
        stage_id=collected_stage_id(stage.stage_id, version, key_groups),
        chunk_counts={node.name: count},
        row_count=0,
    )


@contextmanager
def silent_node() -> Iterator[str]:
    """Yield where one listens that never answers."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    try:
        router.bind("tcp://127.0.0.1:0")
        yield router.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        router.close(0)
        context.term()


class TestCollecting:
    """S2: a copy that came in the middle of a batch gets its rows from others."""

    def test_what_was_collected_is_applied_like_what_was_brought(
        self, nodes: tuple[CopyingNode, CopyingNode]
    ) -> None:
        """Only rows of the key groups that are asked for, durably, in their order."""
        a, b = nodes
        stage = a.stage(
            1, rows(x=b"1", y=b"1"), rows(x=b"2"), rows(key_group=1, x=b"other")
        )
        said = collect(b, command(b, stage, sources=((a, (0,)),)))
        assert said.chunk_counts == (2,)
        assert said.missing == ()
        b.apply(batch(1, stages=(kept(stage, b, 2),)))
        found = b.get(storage_key("x"), storage_key("y"), storage_key("x", 1))
        assert found == [b"2", b"1", None]

    def test_several_stages_come_from_several_nodes(
        self, nodes: tuple[CopyingNode, CopyingNode], tmp_path: Path
    ) -> None:
        """Each from where it is; a stage that has no such rows has no chunks."""
        a, b = nodes
        with CopyingNode("c", tmp_path) as c:
            c.register(c.assignment(held=ALL_GROUPS))
            first = a.stage(1, rows(x=b"1"))
            c.stage(1, rows(key_group=1, x=b"2"), rows(key_group=1, y=b"3"))
            first = StageRecord(
                stage_id=first.stage_id, chunk_counts={"a": 1, "c": 2}, row_count=3
            )
            other = StageRecord(stage_id=b"z" * 16, chunk_counts={"b": 1}, row_count=1)
            told = command(b, first, other, sources=((a, (0,)), (c, (1,))))
            assert collect(b, told).chunk_counts == (3, 0)
            b.apply(batch(1, stages=(kept(first, b, 3, key_groups=(0, 1)),)))
            found = b.get(storage_key("x"), storage_key("x", 1), storage_key("y", 1))
            assert found == [b"1", b"2", b"3"]

    def test_to_collect_twice_is_to_collect_once(
        self, nodes: tuple[CopyingNode, CopyingNode]
    ) -> None:
        """One that asks again is told the same, and nothing is fetched again."""
        a, b = nodes
        stage = a.stage(1, rows(x=b"1"))
        told = command(b, stage, sources=((a, (0,)),))
        first = collect(b, told)
        a.node.close()
        assert collect(b, told) == first
        b.apply(batch(1, stages=(kept(stage, b, 1),)))
        assert b.get(storage_key("x")) == [b"1"]

    def test_what_is_not_there_is_named(
        self, nodes: tuple[CopyingNode, CopyingNode]
    ) -> None:
        """A source that lacks a chunk says so, and the proxy gives the batch up."""
        a, b = nodes
        stage = a.stage(1, rows(x=b"1"))
        more = StageRecord(stage_id=stage.stage_id, chunk_counts={"a": 2}, row_count=2)
        said = collect(b, command(b, more, sources=((a, (0,)),)))
        assert said.missing == (stage.stage_id,)
        assert said.chunk_counts == (0,)

    def test_what_was_collected_in_part_is_collected_anew(
        self, nodes: tuple[CopyingNode, CopyingNode], tmp_path: Path
    ) -> None:
        """Chunks of an attempt that came to nothing are never part of another."""
        a, b = nodes
        stage = a.stage(1, rows(key_group=1, wrong=b"1"), rows(key_group=1, y=b"1"))
        both = StageRecord(
            stage_id=stage.stage_id, chunk_counts={"a": 2, "c": 1}, row_count=3
        )
        told = command(b, both, sources=((a, (1,)),))
        with silent_node() as address:
            silent = CopySource(node_id="c", address=address, key_groups=(0,))
            b.proxy.send(replace(told, sources=(*told.sources, silent)))
            staged = kept(stage, b, 2, key_groups=(0, 1))
            assert wait_until(lambda: not b.store.missing_stages(JOB, 1, 1, [staged]))
        # Another command takes its place: fewer rows, from elsewhere.
        with CopyingNode("c", tmp_path) as c:
            c.register(c.assignment(held=ALL_GROUPS))
            c.stage(1, rows(x=b"1"))
            said = collect(b, command(b, both, sources=((c, (0, 1)),)))
        assert said.chunk_counts == (1,)
        b.apply(batch(1, stages=(kept(stage, b, 1, key_groups=(0, 1)),)))
        found = b.get(storage_key("x"), storage_key("wrong", 1))
        assert found == [b"1", None]

    def test_a_source_that_is_away_is_tried_until_it_is_back(
        self,
        nodes: tuple[CopyingNode, CopyingNode],
        tmp_path: Path,
        reserved: ReservedPort,
    ) -> None:
        """A node that restarts costs a batch some time, and no more."""
        _, b = nodes
        bind = f"tcp://127.0.0.1:{reserved.port}"
        with CopyingNode("c", tmp_path, bind=bind) as c:
            c.register(c.assignment(held=ALL_GROUPS))
            stage = c.stage(1, rows(x=b"1"))
            told = command(b, stage, sources=((c, (0,)),))
        b.proxy.send(told)
        with CopyingNode("c", tmp_path, bind=bind) as back:
            back.register(back.assignment(held=ALL_GROUPS))
            said, _ = b.proxy.receive(StagesCollected)
        assert said.chunk_counts == (1,)

    def test_in_vain_it_is_tried_for_its_time_only(
        self,
        nodes: tuple[CopyingNode, CopyingNode],
        tmp_path: Path,
        reserved: ReservedPort,
    ) -> None:
        """It is not told then: the proxy has given up as well."""
        _, b = nodes
        bind = f"tcp://127.0.0.1:{reserved.port}"
        with CopyingNode("c", tmp_path, bind=bind) as c:
            c.register(c.assignment(held=ALL_GROUPS))
            stage = c.stage(1, rows(x=b"1"))
            told = command(b, stage, sources=((c, (0,)),), timeout_ms=300)
        with capture_logs() as logs:
            b.proxy.send(told)
            assert wait_until(
                lambda: any(log["event"] == "collect.failed" for log in logs)
            )
        with pytest.raises(TimeoutError):
            b.proxy.receive(StagesCollected, 0.5)

    @pytest.mark.proves("W1", "S2")
    def test_a_run_that_is_over_collects_nothing(
        self, nodes: tuple[CopyingNode, CopyingNode]
    ) -> None:
        """W1, S2: rows of a zombie are not kept, by whatever way they come."""
        a, b = nodes
        stage = a.stage(1, rows(x=b"1"))
        told = command(b, stage, sources=((a, (0,)),), timeout_ms=500)
        fenced = threading.Event()
        assert b.node._running is not None
        writer = b.node._running._store.opened.writer

        def fence() -> None:
            b.store.fence([WriterFence(job_id=JOB, query_id="q", writer_epoch=9)])
            fenced.set()

        writer.run(fence)
        assert fenced.wait(TIMEOUT_SECONDS)
        b.proxy.send(told)
        with pytest.raises(TimeoutError):
            b.proxy.receive(StagesCollected, 1.0)
        assert b.store.missing_stages(JOB, 1, 1, [kept(stage, b, 1)])
