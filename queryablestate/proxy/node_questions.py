"""`NodeQuestions`: which nodes are asked for a read, and what; pure (rule D4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from queryablestate.proxy.copy_reads import divide
from queryablestate.proxy.read_answers import Outgoing
from queryablestate.proxy.read_questions import question_of
from queryablestate.wire.questions import CancelQuestions


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.copy_reads import CopyPart
    from queryablestate.proxy.pending_reads import PendingRead, PendingReads
    from queryablestate.proxy.read_parking import ParkedQuestion
    from queryablestate.proxy.read_watch import ReadWatch
    from queryablestate.wire.questions import Reading


__all__ = ["NodeQuestions"]

_ATTEMPT_COUNT_MAX: Final = 3


@final
class NodeQuestions:
    """
    Asks the primary of a read, or nodes that have other copies.

    Args:
        pending: Takes note of what is asked.
        watch: Looks at what is late.
        is_unfit: Whether a node is asked only if no other one can be.
        asks_copies: Whether others than primaries are asked at all.

    Attributes:
        asks_copies: Likewise; may be changed.
    """

    def __init__(
        self,
        pending: PendingReads,
        watch: ReadWatch,
        *,
        is_unfit: Callable[[LinkId], bool],
        asks_copies: bool,
    ) -> None:
        self.asks_copies = asks_copies
        self._pending = pending
        self._watch = watch
        self._is_unfit = is_unfit
        self._locations: Mapping[int, KvStateLocation] = {}
        self._leader_epoch = 0

    # -- routes --------------------------------------------------------------------

    def lead(
        self, locations: Mapping[int, KvStateLocation], *, leader_epoch: int
    ) -> None:
        """Ask by *locations*, a view that stays up to date, from now on."""
        self._locations = locations
        self._leader_epoch = leader_epoch

    def stop_leading(self) -> None:
        """Forget all routes."""
        self._locations = {}

    def location_of(self, read: PendingRead) -> KvStateLocation | None:
        """Return the present route of what is read, or None if there is none."""
        return self._locations.get(read.location.state_number)

    def present(self, read: PendingRead) -> KvStateLocation | None:
        """Return the present route, if it is of the assignment that a read came by."""
        location = self._locations.get(read.asked.ask.state_number)
        version = read.location.assignment_version
        if location is None or location.assignment_version != version:
            return None
        return location

    def may_ask_copies(self, location: KvStateLocation) -> bool:
        """Return whether others may be asked in place of a primary."""
        return bool(location.owners) and self.asks_copies

    # -- questions -----------------------------------------------------------------

    def copies_of(
        self, location: KvStateLocation, asked: ParkedQuestion
    ) -> tuple[CopyPart, ...]:
        """Return what others can be asked in place of the primary; none if nothing."""
        if not self.may_ask_copies(location):
            return ()
        ask = asked.ask
        return divide(
            location,
            ask.node_index,
            ask.operation,
            asked.keys,
            is_unfit=self._is_unfit,
        )

    def ask_primary(
        self, read_id: int, read: PendingRead, node: LinkId, now_ns: int
    ) -> Outgoing:
        """Ask the primary."""
        self._pending.ask_primary(read_id, read, node, now_ns=now_ns)
        if read.is_watched:
            self._watch.begin(read_id, read, now_ns, is_first=True)
        asked = read.asked
        question = question_of(
            read_id,
            asked,
            read.location,
            leader_epoch=self._leader_epoch,
            now_ns=now_ns,
        )
        return Outgoing(node, question, asked.keys)

    def ask_copies(
        self,
        read_id: int,
        read: PendingRead,
        parts: tuple[CopyPart, ...],
        now_ns: int,
    ) -> list[Outgoing]:
        """Ask others, each for its part."""
        attempt = self._pending.ask_copies(read_id, read, parts, now_ns=now_ns)
        if read.is_watched and read.node is None:
            self._watch.begin(read_id, read, now_ns, is_first=True)
        return [
            self._part_question(question_id, read, part, None, now_ns)
            for part, question_id in zip(parts, attempt.question_ids, strict=True)
            if question_id is not None
        ]

    def ask_part(
        self,
        read_id: int,
        read: PendingRead,
        index: int,
        newest: Reading,
        now_ns: int,
    ) -> Outgoing:
        """Ask one of the others again; *newest* is what it is to wait for."""
        attempt = read.attempt
        assert attempt is not None
        question_id = self._pending.ask_part(read_id, attempt, index)
        part = attempt.parts[index]
        return self._part_question(question_id, read, part, newest, now_ns)

    def ask_other(self, read_id: int, read: PendingRead, now_ns: int) -> list[Outgoing]:
        """Ask those who were not asked yet, if there are any; nothing if not."""
        asked, location = read.asked, self.present(read)
        if location is None or location.problem is not None:
            return []
        if read.attempt is None and read.attempt_count < _ATTEMPT_COUNT_MAX:
            parts = self.copies_of(location, asked)
            if parts:
                return self.ask_copies(read_id, read, parts, now_ns)
        node = location.links[asked.ask.node_index]
        if read.node_asked_at_ns is None and node is not None:
            return [self.ask_primary(read_id, read, node, now_ns)]
        return []

    def cancel(self, waiting: Iterable[tuple[LinkId, int]]) -> list[Outgoing]:
        """Have nodes forget what they were asked: pairs of a node and a question."""
        by_node: dict[LinkId, list[int]] = {}
        for node, question_id in waiting:
            by_node.setdefault(node, []).append(question_id)
        return [
            Outgoing(
                node,
                CancelQuestions(
                    leader_epoch=self._leader_epoch, question_ids=tuple(question_ids)
                ),
            )
            for node, question_ids in by_node.items()
        ]

    # -- parts ---------------------------------------------------------------------

    def _part_question(
        self,
        question_id: int,
        read: PendingRead,
        part: CopyPart,
        newest: Reading | None,
        now_ns: int,
    ) -> Outgoing:
        """Return what a node is asked; *newest* is what it is to wait for."""
        question = question_of(
            question_id,
            read.asked,
            read.location,
            leader_epoch=self._leader_epoch,
            now_ns=now_ns,
            part=part,
            newest=newest,
        )
        return Outgoing(part.node, question, part.keys)
