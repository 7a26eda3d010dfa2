"""
Two nodes under test, each with a proxy of its own that says what a test has it say.

Node ``a`` holds key groups of a job; node ``b`` is to copy them.  All between the two
is real: their stores, their ports, their threads.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from haservices import HAServices, open_ha_services
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.wire.codec import decode_values
from queryablestate.wire.job_assignment import CopySource, JobAssignment, JoiningGroup
from queryablestate.wire.node_messages import (
    AssignJob,
    KeyGroupsCopied,
    NodeHeartbeat,
    RegisterNode,
    ResetJob,
)
from queryablestate.wire.questions import Answer
from queryablestate.wire.staging_messages import ChunkStaged, StagedRows
from tests.queryablestate.node_entries import batch, question
from tests.queryablestate.proxy_for_nodes import TIMEOUT_SECONDS, NodeProxy, Writer


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from queryablestate.store.store import StateStore
    from queryablestate.wire.copy_messages import CopiedRows, CopiedStates
    from queryablestate.wire.questions import Operation
    from queryablestate.wire.records import Entry, StageRecord
    from zmqtransport import CurveKeyPair


JOB: Final = "job"
GROUP_COUNT: Final = 64
ALL_GROUPS: Final = tuple(range(GROUP_COUNT))
MANY: Final = 64_000
"""Rows of 250 bytes that take some time to be copied."""


def wait_until(condition: Callable[[], bool]) -> bool:
    """Return whether *condition* comes true in good time."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.005)
    return True


class CopyingNode:
    """One node with its proxy; a context manager."""

    def __init__(self, name: str, path: Path, **settings: object) -> None:
        self.name = name
        self._resources = ExitStack()
        self._settings = {
            "data_dir": path / name,
            "node_id": name,
            "is_durable": False,
            **settings,
        }
        self.version = 0
        self.writer_keys: CurveKeyPair | None = None
        self.proxy_keys: CurveKeyPair | None = None
        self.proxy: NodeProxy
        self._ha: HAServices
        self.node: StateNode

    def __enter__(self) -> Self:
        try:
            self._ha = self._resources.enter_context(open_ha_services("embedded:"))
            self.change_proxy("c")
            self._resources.callback(lambda: self.proxy.__exit__(None, None, None))
            config = NodeConfig(**self._settings)  # type: ignore[arg-type]  # a test names them
            self.node = self._resources.enter_context(StateNode(self._ha, config))
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def change_proxy(self, control_id: str) -> None:
        """Have another proxy lead, perhaps of another control plane."""
        if control_id != "c":
            self.proxy.__exit__(None, None, None)
        self.proxy = NodeProxy(
            self._ha,
            control_id=control_id,
            session_timeout_ms=2_500,  # heartbeats come soon
            key_pair=self.proxy_keys,
        ).__enter__()

    @property
    def store(self) -> StateStore:
        """Return its store."""
        assert self.node._running is not None
        return self.node._running._store.opened.store

    def begin_to_copy(self, source: CopyingNode) -> threading.Event:
        """Have it fetch everything, but write nothing until the event is set."""
        store, go = self.store, threading.Event()
        put_copied = store.put_copied

        def put_later(job_id: str, header: CopiedStates, page: CopiedRows) -> None:
            go.wait(TIMEOUT_SECONDS)
            put_copied(job_id, header, page)

        store.put_copied = put_later  # type: ignore[method-assign]  # a disk that is slow
        job = self.assignment(joining=ALL_GROUPS, since=1, source=source)
        self.register(job, begin=1)
        return go

    def assignment(
        self,
        *,
        held: tuple[int, ...] = (),
        joining: tuple[int, ...] = (),
        since: int = 0,
        source: CopyingNode | None = None,
        sequence: int = 0,
    ) -> JobAssignment:
        """Return what it holds from now on, and what it copies."""
        self.version += 1
        sources: tuple[CopySource, ...] = ()
        if source is not None:
            sources = (
                CopySource(
                    node_id=source.name,
                    address=source.node.address,
                    key_groups=joining,
                ),
            )
        return JobAssignment(
            job_id=JOB,
            assignment_version=self.version,
            max_parallelism=GROUP_COUNT,
            key_groups=held,
            fences=(),
            sequence=sequence,
            joining=tuple(JoiningGroup(one, since) for one in joining),
            sources=sources,
        )

    def register(self, job: JobAssignment, *, begin: int | None = None) -> None:
        """Take it in, and have it go on after entry *begin*, with nothing."""
        self.proxy.receive(RegisterNode)
        self.proxy.take_in(job)
        if begin is not None:  # before the heartbeat that says: that was all
            self.begin(begin)
        self.proxy.receive(NodeHeartbeat)
        self.node.wait_until_registered(TIMEOUT_SECONDS)

    def assign(self, job: JobAssignment) -> None:
        """Tell it what it holds from now on."""
        self.proxy.send(AssignJob(leader_epoch=self.proxy.leader_epoch, job=job))

    def begin(self, sequence: int) -> None:
        """Have it go on after *sequence*, with nothing."""
        self.proxy.send(
            ResetJob(
                leader_epoch=self.proxy.leader_epoch,
                job_id=JOB,
                sequence=sequence,
                state_numbers=(),
            )
        )

    def stage(self, batch_id: int, *chunks: StagedRows) -> StageRecord:
        """Bring it rows."""
        with Writer(
            self.node.address,
            stage_id=batch_id.to_bytes(16, "big"),
            batch_id=batch_id,
            key_pair=self.writer_keys,
        ) as writer:
            for chunk in chunks:
                assert writer.bring(chunk) == ChunkStaged(request_id=writer.request_id)
            return writer.stage(self.name)

    def write(self, sequence: int, *chunks: StagedRows, **settings: object) -> None:
        """Bring it rows, and have them decided and applied as entry *sequence*."""
        stage = self.stage(sequence, *chunks)
        self.apply(batch(sequence, stages=(stage,), **settings))  # type: ignore[arg-type]  # a test names them

    def apply(self, entry: Entry) -> None:
        """Have an entry applied."""
        applied = self.proxy.apply(entry, job_id=JOB)
        assert applied.failure is None
        assert applied.sequence == entry.sequence

    def copied(self, *key_groups: int) -> KeyGroupsCopied:
        """Return what it says when it has copied *key_groups* completely."""
        while True:
            said, _ = self.proxy.receive(KeyGroupsCopied)
            if said.key_groups == key_groups:
                return said

    def failed(self) -> str:
        """Return why an attempt to copy came to nothing."""
        while True:
            said, _ = self.proxy.receive(KeyGroupsCopied)
            if said.failure:
                return said.failure

    def ask(
        self,
        keys: list[bytes] | None = None,
        *,
        operation: Operation | None = None,
        state_number: int = 1,
    ) -> tuple[Answer, bytes]:
        """Return what it answers."""
        one = question(
            leader_epoch=self.proxy.leader_epoch,
            state_number=state_number,
            version=self.version,
            operation=operation,
        )
        answered = self.proxy.ask(one, keys)
        assert isinstance(answered, tuple), answered
        return answered

    def get(self, *keys: bytes, state_number: int = 1) -> list[bytes | None]:
        """Return the values under *keys*."""
        _, payload = self.ask(list(keys), state_number=state_number)
        return decode_values(payload)
