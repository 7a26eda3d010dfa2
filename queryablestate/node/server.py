"""
`QueryableStateServer`: serves the key groups of one node.

It has the store (`NodeStore`), answers questions about it (`QuestionAnswerer`), and
listens on a ROUTER of its own.  Writers bring chunks of rows there, which go to the
disk before they are acknowledged (rule W2); other nodes copy rows that they are to have
(rule S2), and show that they are nodes: who may bring rows may not read them for that
(rule C1).
Whatever else comes in there is counted, logged within a budget, and answered.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Final, TypeAlias, final

from nameservice import RemoteProtocolError, StorageError, get_logger
from nameservice.clock import NS_PER_SECOND, NS_PER_US
from queryablestate.node.answering import QuestionAnswerer, Reply
from queryablestate.node.core.chunks import chunk_refused
from queryablestate.node.core.effects import (
    CheckStages,
    CollectRows,
    HandleSnapshot,
    KeepCopySecret,
    SendToWriter,
    StageRows,
    TellJobPlan,
)
from queryablestate.node.core.events import ChunkReceived
from queryablestate.node.core.read_schedule import DropReason, ReadAsked
from queryablestate.node.reading import LongRead
from queryablestate.node.stores import NodeStore, StoreEffect
from queryablestate.store.threads import StageTask
from queryablestate.wire.address import StateAddress
from queryablestate.wire.codec import (
    FRAME_COUNT_MAX,
    decode_chunk,
    decode_to_copy_source,
    encode,
)
from queryablestate.wire.copy_messages import CopyRefused, OpenCopy, ReadStages
from queryablestate.wire.node_messages import (
    ChunkStaged,
    PlanTold,
    StagesCollected,
    StagesVerified,
)
from zmqtransport import (
    Authenticator,
    Port,
    SendOutcome,
    SocketLimits,
    connection_count_possible,
    connection_limit,
    load_key_files,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec
    import zmq

    from nameservice import Clock, NameServiceError
    from queryablestate.node.config import NodeConfig
    from queryablestate.node.core.core import Admission
    from queryablestate.node.core.events import NodeEvent, StoreOpened
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.steps import ReadWork, Steps
    from queryablestate.store.store import StateStore
    from queryablestate.wire.node_messages import (
        CollectStages,
        StageChunk,
        VerifyStages,
    )
    from queryablestate.wire.questions import Question
    from zmqtransport import AllowList, CurveKeyPair, Peer, PollLoop, ZMQContext


__all__ = ["QueryableStateServer", "ServerEffect"]

ServerEffect: TypeAlias = (
    StoreEffect
    | StageRows
    | CheckStages
    | CollectRows
    | KeepCopySecret
    | HandleSnapshot
    | TellJobPlan
    | SendToWriter
)
"""What of a node's effects concerns the store and the writers."""

# What lies between our limit and this multiple of it is refused with a reason; ZeroMQ
# ends the connection of whoever sends more.
_FRAME_SIZE_FACTOR: Final = 2
_CHUNKS_CHECKED_HERE_MAX: Final = 1_000
_CONTROL: Final = "control"
"""The asker of what the control plane wants; the proxy names none like that."""

_CHECK_NS_MAX: Final = 60 * NS_PER_SECOND


@final
class QueryableStateServer:
    """
    The store of one node, and the port that writers bring rows to.

    All of it belongs to the thread of *loop*.

    Args:
        config: Where it keeps its rows, where it listens, and its limits.
        registration_id: For what the proxy is told.
        loop: Serves the port.
        context: Of the port.
        clock: What deadlines are measured by.
        admit: Says whether a question about a state of that job may be answered now.
        reply: Sends a message, and a payload, over that connection to the proxy; 0 is
            the present one.
        is_congested: Says whether too much waits to be sent to it.
        on_event: Is told what happens.

    Attributes:
        address: Where it listens for writers.

    Raises:
        ConfigurationError: If the port or a key cannot be used.
        StorageError: If the data directory cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        registration_id: str,
        loop: PollLoop,
        context: ZMQContext,
        clock: Clock,
        admit: Callable[[Question, str | None], Admission],
        reply: Reply,
        is_congested: Callable[[], bool],
        on_event: Callable[[NodeEvent], None],
    ) -> None:
        self._config = config
        self._registration_id = registration_id
        self._loop = loop
        self._clock = clock
        self._reply = reply
        self._on_event = on_event
        self._log = get_logger(component="state-node")
        self._copy_secret = b""
        self._check_number = 0
        self._rows_arrived: zmq.Frame | None = None
        self._resources = ExitStack()
        try:
            key_pair, allow_list = load_key_files(
                config.curve_secret_key_file,
                config.curve_public_key_file,
                config.allow_list_file,
            )
            self._store = NodeStore(
                config,
                loop=loop,
                context=context,
                key_pair=key_pair,
                clock=clock,
                on_event=on_event,
                on_staged=self._staged,
                send_page=self._send_page,
            )
            self._resources.callback(self._store.close)
            self._answerer = QuestionAnswerer(
                self._store,
                answer_size_bytes_max=config.answer_size_bytes_max,
                clock=clock,
                admit=admit,
                reply=reply,
                is_congested=is_congested,
                defer=on_event,
            )
            self._listen(context, key_pair, allow_list)
        except BaseException:
            self._resources.close()
            raise

    def _listen(
        self,
        context: ZMQContext,
        key_pair: CurveKeyPair | None,
        allow_list: AllowList | None,
    ) -> None:
        config = self._config
        authenticator = Authenticator(
            context,
            allow_list,
            may_log=lambda: self._port.may_log("unauthorized"),
        )
        self._resources.callback(authenticator.close)
        self._authenticator = authenticator
        self._port = Port(
            context,
            config.bind_endpoint,
            SocketLimits(
                frame_size_bytes_max=config.chunk_size_bytes_max * _FRAME_SIZE_FACTOR
            ),
            key_pair,
            authenticator=authenticator,
            connections_max=connection_limit(
                config.connections_max,
                (
                    max(1, connection_count_possible() // 2),
                    "the system's limit of open files: raise ulimit -n",
                ),
                log=self._log,
            ),
            loop=self._loop,
            clock=self._clock,
            component="state-node",
            frame_count_max=1 + FRAME_COUNT_MAX,
            on_message=self._receive,
        )
        self._resources.callback(self._port.close)
        self.address = StateAddress(
            endpoint=self._port.endpoint,
            server_public_key=None if key_pair is None else key_pair.public_key,
        )

    def close(self) -> None:
        """Close the port and the store, when the loop ends."""
        self._resources.close()

    # -- questions -----------------------------------------------------------------

    @property
    def node_id(self) -> str:
        """Return the name of the node that the data directory belongs to."""
        return self._store.opened.store.node_id

    def store_opened(self) -> StoreOpened:
        """Return what the core is to know of the store."""
        return self._store.store_opened()

    def figures(self) -> dict[str, int]:
        """Return the figures of what was done here, by name."""
        return {
            **self._port.figures(),
            "questions_answered_total": self._answerer.answered_count,
            "questions_refused_total": self._answerer.refused_count,
            "copies_served": len(self._store.opened.copier),
            "reads_waiting": len(self._store.opened.reading),
            "reads_held_bytes": self._store.opened.reading.held_size_bytes,
        }

    def ask(
        self, question: Question, keys: bytes, *, asked_at_ns: int, link: int
    ) -> None:
        """Answer a question; see `QuestionAnswerer.ask`."""
        self._answerer.ask(question, keys, asked_at_ns=asked_at_ns, link=link)

    def cancel(self, question_ids: Sequence[int], *, link: int) -> None:
        """Read no more for these questions; see `QuestionAnswerer.cancel`."""
        self._answerer.cancel(question_ids, link=link)

    def cancel_all(self) -> None:
        """Read no more for anybody; see `QuestionAnswerer.cancel_all`."""
        self._answerer.cancel_all()

    def perform(self, effect: ServerEffect) -> None:
        """Do what the core wants done."""
        match effect:
            case StageRows(writer=writer, chunk=chunk):
                assert self._rows_arrived is not None
                self._store.stage(
                    StageTask(writer=writer, chunk=chunk, rows=self._rows_arrived)
                )
            case SendToWriter(writer=writer, message=message):
                self._port.count("chunks_refused")
                self._tell(writer, message)
            case CheckStages(command=command):
                self._check(command)
            case CollectRows(command=command):
                self._store.collect(command, partial(self._collected, command))
            case KeepCopySecret(secret=secret):
                self._copy_secret = secret
                self._store.show(secret)
            case TellJobPlan(job_id=job_id):
                self._tell_plan(job_id)
            case HandleSnapshot(command=command):
                self._store.snapshots.handle(
                    command,
                    registration_id=self._registration_id,
                    store=self._store.opened.store,
                    writer=self._store.opened.writer,
                    on_report=lambda report: self._reply(report, None, 0),
                )
            case _:
                self._store.perform(effect)

    # -- writers and other nodes ---------------------------------------------------

    def _receive(self, peer: Peer, frames: list[zmq.Frame]) -> None:
        """Take one message of a writer, or of another node."""
        writer = peer.routing_id
        if self._authenticator.principal_of(frames[0]) is None:
            self._drop("unauthorized", "the allow-list has this key no more")
            return
        try:
            if len(frames) < 1 + FRAME_COUNT_MAX:
                self._serve_copy(writer, frames)
                return
            chunk = self._decoded(frames)
        except RemoteProtocolError as error:
            self._port.drop(error)
            self._tell(writer, chunk_refused(error, 0))
            return
        self._rows_arrived = rows = frames[2]
        self._on_event(ChunkReceived(writer=writer, chunk=chunk, size_bytes=len(rows)))
        self._rows_arrived = None

    def _decoded(self, frames: Sequence[zmq.Frame]) -> StageChunk:
        if len(frames) != 1 + FRAME_COUNT_MAX:
            raise RemoteProtocolError(
                "malformed",
                f"a message has {len(frames) - 1} frames, a chunk {FRAME_COUNT_MAX}",
            )
        chunk = decode_chunk(frames[1].bytes)
        size_bytes, size_bytes_max = len(frames[2]), self._config.chunk_size_bytes_max
        if size_bytes > size_bytes_max:
            raise RemoteProtocolError(
                "oversized",
                f"a chunk has {size_bytes:,} bytes, at most {size_bytes_max:,} are "
                "taken: bring fewer rows at once",
            )
        return chunk

    def _serve_copy(self, peer: bytes, frames: Sequence[zmq.Frame]) -> None:
        """Take what another node says of rows that it copies."""
        envelope = frames[1].bytes if len(frames) > 1 else b""
        message = decode_to_copy_source(envelope)
        if isinstance(message, OpenCopy | ReadStages) and not self._is_shown(message):
            detail = "it does not show what the proxy gives to nodes"
            self._drop("unauthorized", detail)
            refused = CopyRefused(
                copy_id=message.copy_id, reason="not-allowed", detail=detail
            )
            self._tell(peer, refused)
        elif self._store.serve_copy(peer, message):
            self._port.count("copy_requests")
        else:
            # Whoever asked hears nothing, and asks again.
            self._drop("limit", "too many requests of other nodes wait")

    def _is_shown(self, message: OpenCopy | ReadStages) -> bool:
        """Return whether whoever asks was taken in by the proxy leader, as we were."""
        secret = self._copy_secret
        return bool(secret) and compare_digest(secret, message.secret)

    def _send_page(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send rows to another node, now; return whether that was possible."""
        return self._port.send(peer, *frames) is SendOutcome.SENT

    def _staged(self, task: StageTask, error: NameServiceError | None) -> None:
        """Tell a writer what became of its chunk."""
        request_id = task.chunk.request_id
        if error is None:
            self._port.count("chunks_staged")
            self._tell(task.writer, ChunkStaged(request_id=request_id))
        else:
            self._port.count("chunks_refused")
            if isinstance(error, StorageError) and self._port.may_log("storage"):
                self._log.error("stage.failed", error=str(error))
            self._tell(task.writer, chunk_refused(error, request_id))

    def _tell(self, writer: bytes, message: msgspec.Struct) -> None:
        """Answer a writer, now or not at all: it asks again."""
        self._port.send(writer, encode(message))

    # -- stages --------------------------------------------------------------------

    def _check(self, command: VerifyStages) -> None:
        """Tell the proxy which stages are not complete here."""
        opened = self._store.opened
        node_id = opened.store.node_id
        chunk_count = sum(
            stage.chunk_counts.get(node_id, 0) for stage in command.stages
        )

        if chunk_count <= _CHUNKS_CHECKED_HERE_MAX:
            self._verified(command, self._missing(opened.store, command))
            return

        def check(_: StoreReader, __: ReadWork) -> Steps[Sequence[bytes] | None]:
            yield
            return self._missing(opened.store, command)

        def done(missing: Sequence[bytes] | None) -> None:
            self._store.post(partial(self._verified, command, missing))

        def failed(error: NameServiceError, _: ReadWork) -> None:
            self._log.error("store.read_failed", error=str(error))

        def dropped(reason: DropReason, _: ReadWork) -> None:
            self._log.warning("stages.not_checked", reason=reason.value)

        self._check_number += 1
        opened.reading.read(
            LongRead(
                asked=ReadAsked(
                    read_id=(-1, self._check_number),
                    asker=_CONTROL,
                    deadline_ns=self._clock.now_ns() + _CHECK_NS_MAX,
                    holds_rows=False,
                ),
                begin=check,
                size_of=lambda _: 0,
                done=done,
                failed=failed,
                dropped=dropped,
            )
        )

    def _missing(
        self, store: StateStore, command: VerifyStages
    ) -> Sequence[bytes] | None:
        """Return the stages that are not complete, or None if nobody can tell."""
        received_since_us = 0
        if not command.is_decided:
            # What is said to be here must not be dropped before the decision comes.
            now_us = time.time_ns() // NS_PER_US
            received_since_us = now_us - self._config.stage_retention_us // 2
        try:
            return store.missing_stages(
                command.job_id,
                command.writer_epoch,
                command.batch_id,
                command.stages,
                received_since_us=received_since_us,
            )
        except StorageError as error:
            self._log.error("store.read_failed", error=str(error))
            return None

    def _verified(self, command: VerifyStages, missing: Sequence[bytes] | None) -> None:
        if missing is None:
            return  # "missing" would let the proxy give up what may well be there
        message = StagesVerified(
            registration_id=self._registration_id,
            verify_id=command.verify_id,
            missing=tuple(missing),
        )
        self._reply(message, None, 0)

    def _collected(
        self,
        command: CollectStages,
        chunk_counts: tuple[int, ...],
        missing: tuple[bytes, ...],
    ) -> None:
        message = StagesCollected(
            registration_id=self._registration_id,
            verify_id=command.verify_id,
            chunk_counts=chunk_counts,
            missing=missing,
        )
        self._reply(message, None, 0)

    # -- plans ---------------------------------------------------------------------

    def _tell_plan(self, job_id: str) -> None:
        """Tell the proxy what is kept of a job, once all is written that was to be."""
        opened = self._store.opened

        def tell() -> None:
            told, failure = None, None
            try:
                told = opened.store.told_plan(job_id)
            except StorageError as error:
                failure = str(error)
            message = PlanTold(
                registration_id=self._registration_id,
                job_id=job_id,
                sequence=0 if told is None else told.sequence,
                plan=None if told is None else told.plan,
                entries=() if told is None else told.entries,
                failure=failure,
            )
            self._store.post(partial(self._reply, message, None, 0))

        opened.writer.run(tell)

    # -- what comes to nothing -----------------------------------------------------

    def _drop(self, reason: str, detail: str) -> None:
        self._port.drop(RemoteProtocolError(reason, detail))
