"""
`Stager`: brings the rows of one task to their nodes, durably (rule W2).

`queryablestate.writer.stage_core` decides what is sent where, and when.  Here are the
connections and the clock.

Everything happens on the caller's thread, inside `add` and `finish`; in between,
libzmq's own thread goes on sending what it was given.  So a task computes its next
rows while the last ones travel.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from typing import TYPE_CHECKING, Final, Self, assert_never, final

import zmq

from nameservice import LocalProtocolError, NameServiceError, SystemClock
from nameservice.clock import NS_PER_MS
from queryablestate.connect.credentials import as_credentials, load_caller_keys
from queryablestate.wire.address import parse_address
from queryablestate.wire.codec import encode
from queryablestate.wire.records import STAGE_ID_SIZE_BYTES
from queryablestate.writer.connections import writer_connections
from queryablestate.writer.sending import StageLimits
from queryablestate.writer.stage_core import StageCore
from queryablestate.writer.stage_events import (
    CallerReturned,
    ChunkAnswered,
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
    from collections.abc import Callable

    from haservices import HAConfig
    from queryablestate.connect.credentials import Credentials
    from queryablestate.connect.node_link import NodeLink
    from queryablestate.writer.batches import StageMessage, WriteRun
    from queryablestate.writer.connections import WriterConnections
    from queryablestate.writer.rows import StateRows
    from queryablestate.writer.stage_events import StageEffect, StageEvent


__all__ = ["StageLimits", "Stager"]

# Over all stages of the process: an answer that an earlier stage did not wait for is
# never taken for another one's.
_request_ids: Final = itertools.count(1)


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
        find_node: Returns where a node is reached now, None while it is away, or
            `NO_PART` if it has no part in the job any more; asked
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
        self._core = StageCore(
            run,
            batch_id,
            stage_id=secrets.token_bytes(STAGE_ID_SIZE_BYTES),
            request_ids=_request_ids,
            limits=limits or StageLimits(),
            finds_nodes=find_node is not None,
            renews_grants=renew_grant is not None,
        )
        self._config = config
        self._credentials = as_credentials(credentials)
        self._find_node = find_node
        self._renew_grant = renew_grant
        self._connections = connections or writer_connections()
        self._clock = SystemClock()
        self._links: dict[int, NodeLink] = {}
        # Those whose connection the core knows to be there.
        self._opened: set[int] = set()
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
        self._step(CallerReturned())
        for cut in self._core.cut(state_number, rows, is_list=is_list):
            self._step(cut)
            self._work(lambda: self._core.has_room)

    def finish(self) -> StageMessage:
        """
        Wait until everything is on disk; return what the commit must know.

        Raises:
            NameServiceError: As `add` does.
        """
        self._check_open()
        self._step(CallerReturned())
        self._work(lambda: self._core.is_staged)
        message = self._core.message()
        self.close()
        return message

    def close(self) -> None:
        """Give the connections back.  Idempotent; what is staged stays."""
        self._is_closed = True
        for index in tuple(self._links):
            self._give_back(index, is_sound=self._core.is_settled(index))

    # -- parts -----------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise LocalProtocolError("this stage is over: make a new one")

    def _work(self, is_done: Callable[[], bool]) -> None:
        """Receive at least once, and until *is_done*."""
        wait_ms = 0
        while True:
            if wait_ms:
                self._wait(wait_ms)
            for index in tuple(self._links):
                self._receive(index)
            if is_done():
                return
            self._step(TimeWent())
            wait_ms = self._wait_ms()

    def _wait(self, wait_ms: int) -> None:
        """Wait until something arrives, at most that long."""
        sockets = [
            (socket, int(zmq.POLLIN))
            for link in self._links.values()
            for socket in link.sockets
        ]
        zmq.zmq_poll(sockets, wait_ms)

    def _wait_ms(self) -> int:
        """Return how long nothing need be done unless something arrives."""
        now_ns = self._clock.now_ns()
        due_ns = self._core.next_deadline_ns()
        wait_ns = 0 if due_ns is None else due_ns - now_ns
        return max(1, -(-wait_ns // NS_PER_MS))

    def _receive(self, index: int) -> None:
        """Take what a node has answered, then what happened to its connection."""
        link = self._links[index]
        is_over = link.is_over()
        if link.is_open and index not in self._opened:
            self._opened.add(index)
            self._step(LinkOpened(index))
        for reply in link.replies():
            self._step(ChunkAnswered(index, reply))
            if self._links.get(index) is not link:
                return
        if is_over:
            self._give_back(index, is_sound=False)
            self._step(LinkLost(index, link.problem))

    # -- the machine -----------------------------------------------------------------

    def _step(self, event: StageEvent) -> None:
        """Have *event* happen, and what comes of it; raise why the stage has failed."""
        events = deque([event])
        while events:
            now_ns = self._clock.now_ns()
            for effect in self._core.step(events.popleft(), now_ns=now_ns):
                come_of_it = self._perform(effect)
                if come_of_it is not None:
                    events.append(come_of_it)

    def _perform(self, effect: StageEffect) -> StageEvent | None:
        """Do *effect*; return what came of it at once, if anything."""
        match effect:
            case OpenLink(node=index, address=address):
                return self._open_link(index, address)
            case CloseLink(node=index):
                self._give_back(index, is_sound=False)
            case SendChunk(node=index, message=message, payload=payload):
                link = self._links.get(index)
                if link is None:
                    return None  # what waits for its answer goes again
                if not link.send(encode(message), payload) and link.is_open:
                    # libzmq has told its monitor before its socket, or is full.
                    return ChunkTurnedAway(index, message.request_id)
            case LookForNode(node=index, node_id=node_id):
                assert self._find_node is not None
                try:
                    return NodeLookedFor(index, self._find_node(node_id))
                except NameServiceError as error:
                    return NodeLookedFor(index, error)
            case RenewGrant(node=index):
                assert self._renew_grant is not None
                try:
                    return GrantRenewed(index, self._renew_grant())
                except NameServiceError as error:
                    return GrantRenewed(index, error)
            case FailStage(error=error):
                raise error
            case _:
                assert_never(effect)
        return None

    def _open_link(self, index: int, address: str) -> StageEvent | None:
        key_pair = self._credentials.load_key_pair()
        if self._config is not None:
            key_pair = load_caller_keys(
                self._credentials, self._config, parse_address(address)
            )
        link = self._connections.take_link(address, key_pair)
        self._links[index] = link
        if not link.is_open:
            return None
        self._opened.add(index)
        return LinkOpened(index)

    def _give_back(self, index: int, *, is_sound: bool) -> None:
        link = self._links.pop(index, None)
        self._opened.discard(index)
        if link is not None:
            self._connections.give_back(link, is_sound=is_sound)
