"""
`Stager`: brings the rows of one task to their nodes, durably (rule W2).

Theory of operation.  Rows are settled, dealt out to the nodes that own their key
groups, and cut into chunks; each (stage, node) numbers its chunks from 0.  A chunk is
sent as soon as a window of unanswered ones has room, and is kept until its node has
said that it is on disk.  A node knows a chunk that it gets twice, so whatever goes
wrong on the way has one answer: send it again, over a new connection, until the node
has been silent for too long.

**Copies.**  A node that is away is given up after a moment if each of its key groups
has another node in the plan: the stage says so, and the node gets the rows from the
others before it may answer for them again (rule S4).  At least one node of each key
group gets all of its rows, whatever happens, or the stage fails.

**A batch that is decided** is not staged again: the rows are read for their digest, by
which the proxy leader tells a repetition from another batch of that number (rule W4).

Everything happens on the caller's thread, inside `add` and `finish`; in between,
libzmq's own thread goes on sending what it was given.  So a task computes its next
rows while the last ones travel.
"""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING, Final, Self, final

import zmq
from attrs import frozen

from nameservice import (
    NS_PER_SECOND,
    LocalProtocolError,
    NameServiceError,
    SystemClock,
    seconds_to_ns,
)
from nameservice.clock import NS_PER_MS
from queryablestate.connect.credentials import as_credentials, load_caller_keys
from queryablestate.errors import (
    AccessDeniedError,
    StaleWriterError,
    StateUnavailableError,
)
from queryablestate.wire.address import parse_address
from queryablestate.wire.batch_digest import digest_of, sum_of_rows
from queryablestate.wire.codec import encode
from queryablestate.wire.node_messages import ChunkStaged, StageChunk
from queryablestate.wire.questions import Refusal
from queryablestate.wire.records import STAGE_ID_SIZE_BYTES, StageRecord
from queryablestate.wire.refusals import error_of
from queryablestate.writer.batches import StageMessage
from queryablestate.writer.chunks import check_rows, chunk_payloads
from queryablestate.writer.connections import writer_connections
from queryablestate.writer.rows import StateRows, settle_rows, split_rows
from queryablestate.writer.sending import (
    OPEN_TIMEOUT_NS,
    REOPEN_PAUSE_NS,
    NodeSending,
    SentChunk,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices import HAConfig
    from queryablestate.connect.credentials import Credentials
    from queryablestate.writer.batches import WritePlan, WriteRun
    from queryablestate.writer.connections import WriterConnections


__all__ = ["StageLimits", "Stager"]

_RETRY_AFTER_SECONDS: Final = 1.0
_REFUSED_PAUSE_NS: Final = NS_PER_SECOND // 10

_TRANSIENT_CODES: Final = frozenset({"did-not-happen", "may-have-happened"})
"""The node could not keep a chunk now; it may be sent again."""

# Over all stages of the process: an answer that an earlier stage did not wait for is
# never taken for another one's.
_request_ids: Final = itertools.count(1)


@final
@frozen(kw_only=True)
class StageLimits:
    """
    How a `Stager` sends.

    Attributes:
        chunk_size_bytes_max: Rows of one chunk, as they travel.
        window_count: Chunks that one node may have unanswered.
        waiting_count_max: Chunks that wait for a window, over all nodes, before `add`
            waits for room.
        timeout_seconds: Silence of a node, while it owes an answer, after which the
            stage has failed.
        give_up_seconds: How long a node may be away before the stage goes on without
            it, if others get its rows.
    """

    chunk_size_bytes_max: int = 4 * 1024 * 1024
    window_count: int = 4
    waiting_count_max: int = 8
    timeout_seconds: float = 60.0
    give_up_seconds: float = 2.0


@final
class Stager:
    """
    Stages what one execution of a task brings.  Not thread-safe; a context manager.

    Every execution makes its own: it draws the stage id.

    Args:
        run: The run that writes.
        batch_id: The batch under which the rows are staged.
        config: The name service, whose CURVE keys are used where *credentials* have
            none; may be left out.
        credentials: Whom the nodes see.
        find_node: Returns where a node is reached now, or None while it is away; asked
            when the address in the plan does not answer.  Without it no node is taken
            for away before *limits* say so.
        renew_grant: Returns what nodes are to be shown now, for another proxy leader
            may lead since the run was bound.  Without it a refusal is final.
        limits: How to send.
    """

    def __init__(
        self,
        run: WriteRun,
        batch_id: int,
        *,
        config: HAConfig | None = None,
        credentials: str | Credentials | None = None,
        find_node: Callable[[str], str | None] | None = None,
        renew_grant: Callable[[], bytes] | None = None,
        limits: StageLimits | None = None,
        connections: WriterConnections | None = None,
    ) -> None:
        self._run = run
        self._plan: WritePlan = run.plan
        self._batch_id = batch_id
        self._config = config
        self._credentials = as_credentials(credentials)
        self._find_node = find_node
        self._renew_grant = renew_grant
        self._grant = run.grant
        self._limits = limits or StageLimits()
        self._timeout_ns = seconds_to_ns(self._limits.timeout_seconds)
        self._give_up_ns = seconds_to_ns(self._limits.give_up_seconds)
        self._connections = connections or writer_connections()
        self._stage_id = secrets.token_bytes(STAGE_ID_SIZE_BYTES)
        self._clock = SystemClock()
        self._nodes: dict[int, NodeSending] = {}
        self._row_count = 0
        self._sums = dict.fromkeys(run.origin.state_numbers, 0)
        # A batch that is decided is not staged again; its rows are only compared (W4).
        self._is_repetition = run.is_decided(batch_id)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, state_number: int, rows: StateRows, *, is_list: bool) -> None:
        """
        Send rows of a state on their way; waits only while too many are under way.

        Args:
            state_number: One of the run's.
            rows: In any order; see `settle_rows` for what becomes of duplicates.
            is_list: Whether the state is of lists.

        Raises:
            ConfigurationError: If a row is larger than `ROW_SIZE_BYTES_MAX`, or than
                a chunk that its node takes; then none of *rows* is sent (rule B3).
            AccessDeniedError: If the caller may not write the job (rule C1).
            StaleWriterError: If a newer run of the query writes.
            StateUnavailableError: If a node has been silent for too long.
            NameServiceError: What else a node refused a chunk with.
        """
        self._check_open()
        digested = rows.values if rows.digested is None else rows.digested
        total = sum_of_rows(rows.keys, digested)
        self._sums[state_number] = self._sums.get(state_number, 0) + total
        if self._is_repetition:
            return
        settled = settle_rows(rows, is_list=is_list)
        self._row_count += len(settled.keys)
        split = split_rows(settled, self._plan.owners)
        for index, dealt in split.items():
            check_rows(state_number, dealt, self._plan.nodes[index])
        for index, dealt in split.items():
            node = self._node(index)
            for payload in chunk_payloads(
                state_number,
                dealt,
                self._plan.nodes[index],
                size_bytes_max=self._limits.chunk_size_bytes_max,
            ):
                if node.is_given_up:
                    break
                if node.is_idle:
                    node.silent_since_ns = self._clock.now_ns()
                node.waiting.append(SentChunk(index=node.chunk_count, payload=payload))
                node.chunk_count += 1
                self._work(self._has_room)

    def finish(self) -> StageMessage:
        """
        Wait until everything is on disk; return what the commit must know.

        Raises:
            NameServiceError: As `add` does.
        """
        self._check_open()
        self._work(self._is_idle)
        given_up = {n.node_id for n in self._nodes.values() if n.is_given_up}
        stage = StageRecord(
            stage_id=self._stage_id,
            chunk_counts={
                node.node_id: node.chunk_count
                for node in self._nodes.values()
                if not node.is_given_up
            },
            row_count=self._row_count,
            given_up=tuple(sorted(given_up)),
        )
        self.close()
        return StageMessage(
            origin=self._run.origin,
            batch_id=self._batch_id,
            stage=stage,
            digests=tuple(
                digest_of(schema, self._sums[number])
                for schema, number in zip(
                    self._plan.schemas, self._run.origin.state_numbers, strict=True
                )
            ),
        )

    def close(self) -> None:
        """Give the connections back.  Idempotent; what is staged stays."""
        self._is_closed = True
        for node in self._nodes.values():
            if node.link is not None:
                self._connections.give_back(
                    node.link, is_sound=node.link.is_open and not node.unanswered
                )
                node.link = None

    # -- parts -----------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise LocalProtocolError("this stage is over: make a new one")

    def _node(self, index: int) -> NodeSending:
        node = self._nodes.get(index)
        if node is None:
            known = self._plan.nodes[index]
            node = self._nodes[index] = NodeSending(
                index=index,
                node_id=known.node_id,
                address=known.address,
                silent_since_ns=self._clock.now_ns(),
            )
        return node

    def _has_room(self) -> bool:
        waiting_count = sum(len(node.waiting) for node in self._nodes.values())
        return waiting_count <= self._limits.waiting_count_max

    def _is_idle(self) -> bool:
        return all(node.is_idle for node in self._nodes.values())

    def _work(self, is_done: Callable[[], bool]) -> None:
        """Send and receive at least once, and until *is_done*."""
        wait_ms = 0
        while True:
            sockets = [
                (socket, int(zmq.POLLIN))
                for node in self._nodes.values()
                if node.link is not None
                for socket in node.link.sockets
            ]
            if wait_ms:
                zmq.zmq_poll(sockets, wait_ms)
            now_ns = self._clock.now_ns()
            for node in self._nodes.values():
                self._receive(node, now_ns)
                self._send(node, now_ns)
            if is_done():
                return
            wait_ms = self._wait_ms(now_ns)

    def _wait_ms(self, now_ns: int) -> int:
        """Return how long nothing need be done unless something arrives."""
        moments: list[int] = []
        for node in self._nodes.values():
            if node.is_idle:
                continue
            if node.link is None:
                moments.append(node.due_ns)
            else:
                moments.append(node.silent_since_ns + self._timeout_ns)
                if not node.link.is_open:
                    moments.append(node.opening_since_ns + OPEN_TIMEOUT_NS)
            later_ns = [node.due_ns] if node.waiting else []
            if node.is_away:
                assert node.unreachable_since_ns is not None
                later_ns.append(node.unreachable_since_ns + self._give_up_ns)
            moments += [at_ns for at_ns in later_ns if at_ns > now_ns]
        wait_ns = min(moments, default=now_ns) - now_ns
        return max(1, -(-wait_ns // NS_PER_MS))

    def _receive(self, node: NodeSending, now_ns: int) -> None:
        """Take what *node* has answered, then what happened to its connection."""
        if node.link is None:
            return
        is_over = node.link.is_over()
        if node.link.is_open:
            node.reached()
        for reply in node.link.replies():
            chunk = node.unanswered.pop(reply.request_id, None)
            if chunk is None:
                continue  # of an earlier stage over this link
            node.silent_since_ns = now_ns
            node.pause_ns = REOPEN_PAUSE_NS
            if isinstance(reply, ChunkStaged):
                node.denied_since_ns = None
                continue
            error = error_of(Refusal(request_id=0, code=reply.code, data=reply.data))
            if isinstance(error, AccessDeniedError):
                self._denied(node, error, now_ns)
            elif reply.code not in _TRANSIENT_CODES:
                raise error
            node.problem = error
            node.waiting.appendleft(chunk)
            node.due_ns = now_ns + _REFUSED_PAUSE_NS
        if is_over:
            self._drop_link(node, now_ns)

    def _denied(self, node: NodeSending, error: AccessDeniedError, now_ns: int) -> None:
        """Get another grant: that of the run may be of an earlier proxy leader."""
        if self._renew_grant is None:
            raise error
        if node.denied_since_ns is None:
            node.denied_since_ns = now_ns
        if now_ns - node.denied_since_ns >= self._timeout_ns:
            raise error  # nor does the node know the present leader
        if node.due_ns > now_ns:
            return  # several chunks were refused at once
        try:
            self._grant = self._renew_grant()
        except (AccessDeniedError, StaleWriterError):
            raise
        except NameServiceError as problem:
            node.problem = problem

    def _send(self, node: NodeSending, now_ns: int) -> None:
        """Send *node* what may be sent, over a new connection if need be."""
        if node.is_idle:
            return
        is_silent = now_ns - node.silent_since_ns >= self._timeout_ns
        is_unreachable = is_silent and node.unreachable_since_ns is not None
        is_away = node.is_away and node.unreachable_ns(now_ns) >= self._give_up_ns
        if (is_away or is_unreachable) and self._others_have(node):
            self._give_up(node)
            return
        if is_silent:
            raise self._silence(node)
        if node.is_stuck(now_ns):
            self._drop_link(node, now_ns)
        if now_ns < node.due_ns:
            return
        if node.link is None:
            self._open_link(node, now_ns)
        while (
            node.link is not None
            and node.waiting
            and len(node.unanswered) < self._limits.window_count
        ):
            chunk = node.waiting[0]
            request_id = next(_request_ids)
            if not node.link.send(self._envelope(request_id, chunk), chunk.payload):
                if node.link.is_open:  # libzmq has told its monitor before its socket
                    node.due_ns = now_ns + NS_PER_MS
                return
            node.waiting.popleft()
            node.unanswered[request_id] = chunk

    def _envelope(self, request_id: int, chunk: SentChunk) -> bytes:
        origin = self._run.origin
        return encode(
            StageChunk(
                request_id=request_id,
                job_id=origin.job_id,
                query_id=origin.query_id,
                writer_epoch=origin.writer_epoch,
                batch_id=self._batch_id,
                stage_id=self._stage_id,
                chunk_index=chunk.index,
                assignment_version=origin.assignment_version,
                grant=self._grant,
            )
        )

    def _open_link(self, node: NodeSending, now_ns: int) -> None:
        node.look_for(now_ns)
        if node.address is None or node.pause_ns > REOPEN_PAUSE_NS:
            # It was away, or did not answer: it may have started again elsewhere.
            node.address = self._address_now(node) or node.address
        if node.address is None:
            node.pause(now_ns)
            return
        key_pair = self._credentials.load_key_pair()
        if self._config is not None:
            key_pair = load_caller_keys(
                self._credentials, self._config, parse_address(node.address)
            )
        node.link = self._connections.take_link(node.address, key_pair)
        node.opening_since_ns = now_ns

    def _address_now(self, node: NodeSending) -> str | None:
        """Return where *node* is reached, or None if that is not known."""
        node.is_away = False
        if self._find_node is None:
            return None
        try:
            address = self._find_node(node.node_id)
        except NameServiceError as error:
            node.problem = error
            return None
        node.is_away = address is None
        return address

    def _drop_link(self, node: NodeSending, now_ns: int) -> None:
        """Close the connection to *node*; all that was not answered goes again."""
        assert node.link is not None
        node.problem = node.link.problem or node.problem
        self._connections.give_back(node.link, is_sound=False)
        node.link = None
        node.waiting.extendleft(reversed(node.unanswered.values()))
        node.unanswered.clear()
        node.look_for(now_ns)
        node.pause(now_ns)

    def _others_have(self, node: NodeSending) -> bool:
        """Return whether all rows for *node* go to others, too."""
        lacking = {one.index for one in self._nodes.values() if one.is_given_up}
        lacking.add(node.index)
        return not any(
            node.index in holders and lacking.issuperset(holders)
            for holders in self._plan.owners
        )

    def _give_up(self, node: NodeSending) -> None:
        """Go on without *node*."""
        if node.link is not None:
            self._connections.give_back(node.link, is_sound=False)
            node.link = None
        node.give_up()

    def _silence(self, node: NodeSending) -> NameServiceError:
        """Return why *node* is given up."""
        detail = (
            f"node {node.node_id} at {node.address or '?'} has taken no rows for "
            f"{self._limits.timeout_seconds:.3g} s"
        )
        if node.problem is not None:
            detail += f" ({node.problem})"
        return StateUnavailableError(
            self._run.origin.job_id,
            None,
            self._plan.key_groups_of(node.index),
            _RETRY_AFTER_SECONDS,
            detail,
        )
