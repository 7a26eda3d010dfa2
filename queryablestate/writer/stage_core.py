"""
`StageCore`: how the rows of one task are brought to their nodes; pure (rule W2).

Theory of operation.  Rows are settled, dealt out to the nodes that own their key
groups, and cut into chunks; each (stage, node) numbers its chunks from 0.  A chunk is
sent as soon as a window of unanswered ones has room, and is kept until its node has
said that it is on disk.  A node knows a chunk that it gets twice, so whatever goes
wrong on the way has one answer: send it again, over a new connection, until the node
has been silent for too long.

**Time** counts while the shell listens.  Between two calls of `Stager` a task computes
rows, for longer than a node may be silent: what a node said meanwhile is heard later.

**Copies.**  A node that is away is given up after a moment if each of its key groups
has another node in the plan: the stage says so, and the node gets the rows from the
others before it may answer for them again (rule S4).  One that has no part in the job
any more is given up at once: each task of a batch would wait for a node that has died.
At least one node of each key group gets all of its rows, whatever happens, or the stage
fails.

**A batch that is decided** is not staged again: the rows are read for their digest, by
which the proxy leader tells a repetition from another batch of that number (rule W4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never, final

from nameservice import NS_PER_SECOND, NameServiceError, seconds_to_ns
from nameservice.clock import NS_PER_MS
from queryablestate.errors import (
    AccessDeniedError,
    StaleWriterError,
    StateUnavailableError,
)
from queryablestate.wire.batch_digest import digest_of, sum_of_rows
from queryablestate.wire.questions import Refusal
from queryablestate.wire.records import StageRecord
from queryablestate.wire.refusals import error_of
from queryablestate.wire.staging_messages import ChunkStaged, StageChunk
from queryablestate.writer.batches import StageMessage
from queryablestate.writer.chunks import check_rows, chunk_payloads
from queryablestate.writer.rows import StateRows, settle_rows, split_rows
from queryablestate.writer.sending import (
    NO_PART,
    REOPEN_PAUSE_NS,
    LinkState,
    NodeSending,
    SentChunk,
)
from queryablestate.writer.stage_events import (
    CallerReturned,
    ChunkAnswered,
    ChunkCut,
    ChunkTurnedAway,
    CloseLink,
    FailStage,
    GrantRenewed,
    LinkLost,
    LinkOpened,
    LookForNode,
    NodeLookedFor,
    OpenLink,
    RenewGrant,
    SendChunk,
    TimeWent,
)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from queryablestate.wire.staging_messages import ChunkRefused
    from queryablestate.writer.batches import WritePlan, WriteRun
    from queryablestate.writer.sending import StageLimits
    from queryablestate.writer.stage_events import StageEffect, StageEvent


__all__ = ["StageCore"]

_RETRY_AFTER_SECONDS: Final = 1.0
_REFUSED_PAUSE_NS: Final = NS_PER_SECOND // 10

_TRANSIENT_CODES: Final = frozenset({"did-not-happen", "may-have-happened"})
"""The node could not keep a chunk now; it may be sent again."""


@final
class StageCore:
    """
    One stage: what of it is where.

    Two cores given the same sequence of ``(event, now_ns)`` return the same effects.
    Not thread-safe: one shell drives it.

    Args:
        run: The run that writes.
        batch_id: The batch under which the rows are staged.
        stage_id: The number of this execution, which no other has.
        request_ids: Numbers that no other stage of the process uses.
        limits: How to send.
        finds_nodes: Whether the shell can find out where a node is now.  If not, no
            node is taken for away before *limits* say so.
        renews_grants: Whether the shell can get another grant.  If not, a refusal is
            final.
    """

    def __init__(
        self,
        run: WriteRun,
        batch_id: int,
        *,
        stage_id: bytes,
        request_ids: Iterator[int],
        limits: StageLimits,
        finds_nodes: bool,
        renews_grants: bool,
    ) -> None:
        self._run = run
        self._plan: WritePlan = run.plan
        self._batch_id = batch_id
        self._stage_id = stage_id
        self._request_ids = request_ids
        self._limits = limits
        self._timeout_ns = seconds_to_ns(limits.timeout_seconds)
        self._give_up_ns = seconds_to_ns(limits.give_up_seconds)
        self._open_timeout_ns = seconds_to_ns(limits.open_timeout_seconds)
        self._busy_ns = seconds_to_ns(limits.busy_seconds)
        self._finds_nodes = finds_nodes
        self._renews_grants = renews_grants
        self._grant = run.grant
        self._is_renewing = False
        self._now_ns = 0
        self._nodes: dict[int, NodeSending] = {}
        self._row_count = 0
        self._sums = dict.fromkeys(run.origin.state_numbers, 0)
        # A batch that is decided is not staged again; its rows are only compared (W4).
        self._is_repetition = run.is_decided(batch_id)
        self._effects: list[StageEffect] = []
        self._is_over = False

    # -- rows ------------------------------------------------------------------------

    def cut(
        self, state_number: int, rows: StateRows, *, is_list: bool
    ) -> Iterator[ChunkCut]:
        """
        Yield *rows* as chunks for their nodes, each to be given to `step` in order.

        Args:
            state_number: One of the run's.
            rows: In any order; see `settle_rows` for what becomes of duplicates.
            is_list: Whether the state is of lists.

        Raises:
            ConfigurationError: If a row is larger than `ROW_SIZE_BYTES_MAX`, or than
                a chunk that its node takes; then none of *rows* is yielded (rule B3).
        """
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
            for payload in chunk_payloads(
                state_number,
                dealt,
                self._plan.nodes[index],
                size_bytes_max=self._limits.chunk_size_bytes_max,
            ):
                if index in self._nodes and self._nodes[index].is_given_up:
                    break
                yield ChunkCut(index, payload)

    # -- queries ---------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Return whether few enough chunks wait for another one to be cut."""
        waiting_count = sum(len(node.waiting) for node in self._nodes.values())
        return waiting_count <= self._limits.waiting_count_max

    @property
    def is_staged(self) -> bool:
        """Return whether all chunks are on the disks of their nodes."""
        return all(node.is_idle for node in self._nodes.values())

    def is_settled(self, node: int) -> bool:
        """Return whether the connection to *node* is there and owes no answer."""
        sending = self._nodes[node]
        return sending.link is LinkState.OPEN and not sending.unanswered

    def message(self) -> StageMessage:
        """Return what the commit must know, once all `is_staged`."""
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

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        moments: list[int] = []
        for node in self._nodes.values():
            if node.is_idle:
                continue
            moments.append(node.silent_since_ns + self._timeout_ns)
            if node.link is LinkState.NONE and not node.is_looked_for:
                moments.append(node.due_ns)
            elif node.link is LinkState.OPENING:
                moments.append(node.opening_since_ns + self._open_timeout_ns)
            elif node.waiting and node.due_ns > self._now_ns:
                moments.append(node.due_ns)
            if node.is_away:
                assert node.unreachable_since_ns is not None
                given_up_ns = node.unreachable_since_ns + self._give_up_ns
                if given_up_ns > self._now_ns:
                    moments.append(given_up_ns)
        return min(moments, default=None)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        for node in self._nodes.values():
            assert len(node.unanswered) <= self._limits.window_count
            assert node.link is LinkState.OPEN or not node.unanswered
            assert not node.is_given_up or node.is_idle
            numbers = [one.index for one in (*node.waiting, *node.unanswered.values())]
            assert len(set(numbers)) == len(numbers)
            assert all(0 <= number < node.chunk_count for number in numbers)
        lacking = {one.index for one in self._nodes.values() if one.is_given_up}
        for holders in self._plan.owners:
            assert not lacking or not lacking.issuperset(holders)

    # -- the step --------------------------------------------------------------------

    def step(self, event: StageEvent, *, now_ns: int) -> tuple[StageEffect, ...]:
        """
        Move time on to *now_ns*, then take *event*; return what to do.

        After a `FailStage` nothing happens any more.
        """
        assert now_ns >= self._now_ns
        went_ns, self._now_ns = now_ns - self._now_ns, now_ns
        if self._is_over:
            return ()
        if isinstance(event, CallerReturned):
            for node in self._nodes.values():
                node.unheard(went_ns)
        elif isinstance(event, TimeWent):
            for node in self._nodes.values():
                self._tend(node)
        else:
            node = self._node(event.node)
            self._take(node, event)
            self._tend(node)
        effects, self._effects = self._effects, []
        if self._is_over:  # with the last of its effects
            return tuple(one for one in effects if isinstance(one, FailStage))
        return tuple(effects)

    def _take(self, node: NodeSending, event: StageEvent) -> None:
        match event:
            case ChunkCut(payload=payload):
                if node.is_idle:
                    node.silent_since_ns = self._now_ns
                if not node.is_given_up:
                    node.waiting.append(SentChunk(node.chunk_count, payload))
                    node.chunk_count += 1
            case LinkOpened():
                node.link = LinkState.OPEN
                node.reached()
            case LinkLost(problem=problem):
                node.problem = problem or node.problem
                self._drop_link(node)
            case ChunkAnswered(reply=reply):
                self._answered(node, reply)
            case ChunkTurnedAway(request_id=request_id):
                node.waiting.appendleft(node.unanswered.pop(request_id))
                node.due_ns = self._now_ns + NS_PER_MS
            case NodeLookedFor(found=found):
                self._looked_for(node, found)
            case GrantRenewed(grant=grant):
                self._renewed(node, grant)
            case CallerReturned() | TimeWent():
                pass
            case _:
                assert_never(event)

    def _node(self, index: int) -> NodeSending:
        node = self._nodes.get(index)
        if node is None:
            known = self._plan.nodes[index]
            node = self._nodes[index] = NodeSending(
                index=index,
                node_id=known.node_id,
                address=known.address,
                silent_since_ns=self._now_ns,
            )
        return node

    def _fail(self, error: NameServiceError) -> None:
        if not self._is_over:
            self._is_over = True
            self._effects.append(FailStage(error))

    # -- answers ---------------------------------------------------------------------

    def _answered(self, node: NodeSending, reply: ChunkStaged | ChunkRefused) -> None:
        chunk = node.unanswered.pop(reply.request_id, None)
        if chunk is None:
            return  # of an earlier stage over this link
        node.silent_since_ns = self._now_ns
        node.pause_ns = REOPEN_PAUSE_NS
        if isinstance(reply, ChunkStaged):
            node.denied_since_ns = node.busy_since_ns = None
            return
        error = error_of(Refusal(request_id=0, code=reply.code, data=reply.data))
        if isinstance(error, AccessDeniedError):
            self._denied(node, error)
        elif reply.code not in _TRANSIENT_CODES:
            self._fail(error)
        elif node.busy_since_ns is None:
            node.busy_since_ns = self._now_ns
        node.problem = error
        node.waiting.appendleft(chunk)
        node.due_ns = self._now_ns + _REFUSED_PAUSE_NS

    def _denied(self, node: NodeSending, error: AccessDeniedError) -> None:
        """Get another grant: that of the run may be of an earlier proxy leader."""
        now_ns = self._now_ns
        if node.denied_since_ns is None:
            node.denied_since_ns = now_ns
        if (
            not self._renews_grants
            # Nor does the node know the present leader.
            or now_ns - node.denied_since_ns >= self._timeout_ns
        ):
            self._fail(error)
        elif node.due_ns <= now_ns and not self._is_renewing:  # else several at once
            self._is_renewing = True
            self._effects.append(RenewGrant(node.index))

    def _renewed(self, node: NodeSending, grant: bytes | NameServiceError) -> None:
        self._is_renewing = False
        if isinstance(grant, bytes):
            self._grant = grant
        elif isinstance(grant, AccessDeniedError | StaleWriterError):
            self._fail(grant)
        else:
            node.problem = grant

    # -- sending ---------------------------------------------------------------------

    def _tend(self, node: NodeSending) -> None:
        """Send *node* what may be sent, over a new connection if need be."""
        now_ns = self._now_ns
        if node.is_idle or self._is_over:
            return
        is_silent = now_ns - node.silent_since_ns >= self._timeout_ns
        is_unreachable = is_silent and node.unreachable_since_ns is not None
        is_away = node.is_away and node.unreachable_ns(now_ns) >= self._give_up_ns
        is_busy = (
            node.busy_since_ns is not None
            and now_ns - node.busy_since_ns >= self._busy_ns
        )
        is_lacking = is_away or is_unreachable or node.is_out or is_busy
        if is_lacking and self._others_have(node):
            self._give_up(node)
            return
        if is_silent or is_busy:
            self._fail(self._silence(node, is_busy=is_busy))
            return
        if node.link is LinkState.OPENING and (
            now_ns - node.opening_since_ns >= self._open_timeout_ns
        ):
            self._effects.append(CloseLink(node.index))
            self._drop_link(node)
        if now_ns < node.due_ns:
            return
        if node.link is LinkState.NONE:
            self._open_link(node)
        while (
            node.link is LinkState.OPEN
            and node.waiting
            and len(node.unanswered) < self._limits.window_count
        ):
            self._send(node, node.waiting.popleft())

    def _send(self, node: NodeSending, chunk: SentChunk) -> None:
        request_id = next(self._request_ids)
        node.unanswered[request_id] = chunk
        origin = self._run.origin
        message = StageChunk(
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
        self._effects.append(SendChunk(node.index, message, chunk.payload))

    # -- connections -----------------------------------------------------------------

    def _open_link(self, node: NodeSending) -> None:
        if node.is_looked_for:
            return
        node.look_for(self._now_ns)
        # It was away, or did not answer: it may have started again elsewhere.
        is_doubtful = node.address is None or node.pause_ns > REOPEN_PAUSE_NS
        if is_doubtful and self._finds_nodes:
            node.is_away = node.is_out = False
            node.is_looked_for = True
            self._effects.append(LookForNode(node.index, node.node_id))
        else:
            self._connect(node)

    def _looked_for(
        self, node: NodeSending, found: str | NameServiceError | None
    ) -> None:
        node.is_looked_for = False
        if node.is_given_up:
            return
        if isinstance(found, NameServiceError):
            node.problem = found
        else:
            node.is_away = not found
            node.is_out = found == NO_PART
            node.address = found or node.address
        self._connect(node)

    def _connect(self, node: NodeSending) -> None:
        if node.address is None:
            node.pause(self._now_ns)
            return
        node.link = LinkState.OPENING
        node.opening_since_ns = self._now_ns
        self._effects.append(OpenLink(node.index, node.address))

    def _drop_link(self, node: NodeSending) -> None:
        """Record that there is no connection; what was not answered is sent again."""
        node.link = LinkState.NONE
        node.waiting.extendleft(reversed(node.unanswered.values()))
        node.unanswered.clear()
        node.look_for(self._now_ns)
        node.pause(self._now_ns)

    # -- nodes that are not there ----------------------------------------------------

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
        if node.link is not LinkState.NONE:
            self._effects.append(CloseLink(node.index))
        node.give_up()

    def _silence(self, node: NodeSending, *, is_busy: bool) -> NameServiceError:
        """Return why the stage has failed for *node*."""
        limits = self._limits
        waited_seconds = limits.busy_seconds if is_busy else limits.timeout_seconds
        detail = (
            f"node {node.node_id} at {node.address or '?'} has taken no rows for "
            f"{waited_seconds:.3g} s"
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
