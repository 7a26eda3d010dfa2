"""
`PendingReads`: the reads that nodes were asked, and who was asked for each; pure.

A read is asked of its primary, of nodes with other copies, or of both (rule D4).  The
question to the primary has the number of the read; each part that another node is asked
has a number of its own.  A read is over with its first good answer: what other nodes
were asked for it is closed with it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, final

from attrs import define, field

from queryablestate.shares import Shares


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.cache import CacheKey
    from queryablestate.proxy.copy_reads import CopyPart
    from queryablestate.proxy.read_charges import Charge
    from queryablestate.proxy.read_parking import ParkedQuestion
    from queryablestate.wire.questions import Answer, Refusal


__all__ = ["CopyAttempt", "PendingRead", "PendingReads"]

# A compaction is due when this many, and most, of the deadlines are of the past.
_DEADLINES_STALE_MIN: Final = 1_000
_SIZE_BYTES_MAX: Final = 256 << 20
"""Of questions that wait for their answers: they are kept, to be asked of others."""


@final
@define
class CopyAttempt:
    """
    What nodes with other copies were asked in place of a primary, all at once.

    Attributes:
        parts: For each node what it was asked.
        question_ids: Under which numbers; None where the answer is there.
        asked_at_ns: When.
        answers: What came back; None where nothing has.
        payloads: The second frames of that.
    """

    parts: Sequence[CopyPart]
    question_ids: list[int | None]
    asked_at_ns: int
    answers: list[Answer | None] = field(init=False)
    payloads: list[bytes | memoryview] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.answers = [None] * len(self.parts)
        self.payloads = [b""] * len(self.parts)

    def waiting(self) -> list[tuple[LinkId, int]]:
        """Return who has not answered, and what."""
        return [
            (part.node, question_id)
            for part, question_id in zip(self.parts, self.question_ids, strict=True)
            if question_id is not None
        ]

    def first_waiting(self) -> LinkId:
        """Return the first that has not answered; there is one."""
        return self.waiting()[0][0]


@final
@define(eq=False)
class PendingRead:
    """
    A read that nodes were asked.

    Attributes:
        asked: The question as it came in.
        location: The route that it came by.
        cache_key: What its answer is kept under, or None.
        charge: Who pays.
        is_prompt: Whether an answer is due at once, so that the lack of one tells
            something.
        is_watched: Whether others are to be asked when it is late.
        node: The primary while it has yet to answer, else None.
        node_asked_at_ns: When the primary was asked, or None if it was not, or has gone
            since.
        attempt: What others were asked and have yet to answer, or None.
        attempt_count: How often others were asked.
        is_hedged: Whether a second one was asked since the first was late.
        refusal: What the primary has refused it with, while others are asked.
    """

    asked: ParkedQuestion
    location: KvStateLocation
    cache_key: CacheKey | None
    charge: Charge
    is_prompt: bool
    is_watched: bool
    node: LinkId | None = None
    node_asked_at_ns: int | None = None
    attempt: CopyAttempt | None = None
    attempt_count: int = 0
    is_hedged: bool = False
    refusal: Refusal | None = None


@final
class PendingReads:
    """
    Reads by number, by node and by client.

    Room is shared fairly between callers (`Shares`, rule B2).

    Args:
        count_max: How many there may be.

    Attributes:
        reads: By number, in the order in which they came; not to be changed.
    """

    def __init__(self, count_max: int) -> None:
        self.reads: dict[int, PendingRead] = {}
        self._shares: Shares[int] = Shares(
            count_max=count_max, size_bytes_max=_SIZE_BYTES_MAX
        )
        self._number = 0
        self._parts: dict[int, tuple[int, int]] = {}
        self._of_node: dict[LinkId, set[int]] = {}
        self._of_client: dict[LinkId, set[int]] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.reads)

    def limit(self, count_max: int) -> None:
        """Have *count_max* at most, from the next one on."""
        self._shares.limit(count_max)

    # -- questions -----------------------------------------------------------------

    def has_part(self, owner: str | LinkId, size_bytes: int) -> bool:
        """Return whether there is no room for so much more of *owner*."""
        return self._shares.has_part(owner, size_bytes)

    def count_of_client(self, client: LinkId) -> int:
        """Return how many reads *client* waits for."""
        return len(self._of_client.get(client, ()))

    def of_client(self, client: LinkId) -> list[int]:
        """Return the reads that *client* waits for, in the order in which they came."""
        return sorted(self._of_client.get(client, ()))

    def of_node(self, node: LinkId) -> list[int]:
        """Return what *node* was asked and has not answered, in that order."""
        return sorted(self._of_node.get(node, ()))

    def find(
        self, node: LinkId, question_id: int
    ) -> tuple[int, PendingRead, int | None] | None:
        """
        Return what *node* was asked under that number, or None if no read waits for it.

        Returns:
            The number of the read, the read, and which part of it, None for a primary.
        """
        questions = self._of_node.get(node)
        if questions is None or question_id not in questions:
            return None
        read = self.reads.get(question_id)
        if read is not None:
            return question_id, read, None
        read_id, index = self._parts[question_id]
        return read_id, self.reads[read_id], index

    def next_deadline_ns(self) -> int | None:
        """Return when `take_late` is worth calling: not after the first deadline."""
        return self._deadlines[0][0] if self._deadlines else None

    # -- what happens --------------------------------------------------------------

    def begin(self, read: PendingRead) -> tuple[int, list[int]]:
        """
        Take a read in.

        Returns:
            Its number; and those that there is no room for any more, which are to be
            closed, be it this one.
        """
        self._number = read_id = self._number + 1
        self.reads[read_id] = read
        client = read.asked.client
        own = self._of_client.get(client)
        if own is None:
            own = self._of_client[client] = set()
        own.add(read_id)
        heapq.heappush(self._deadlines, (read.asked.deadline_ns, read_id))
        asked = read.asked
        return read_id, self._shares.take(asked.owner, read_id, asked.size_bytes)

    def ask_primary(
        self, read_id: int, read: PendingRead, node: LinkId, *, now_ns: int
    ) -> None:
        """Note that the primary is asked, under the number of the read."""
        read.node = node
        read.node_asked_at_ns = now_ns
        self._note(node, read_id)

    def ask_copies(
        self, read_id: int, read: PendingRead, parts: Sequence[CopyPart], *, now_ns: int
    ) -> CopyAttempt:
        """Note that others are asked; return what, under which numbers."""
        attempt = CopyAttempt(parts, [None] * len(parts), now_ns)
        for index in range(len(parts)):
            self.ask_part(read_id, attempt, index)
        read.attempt = attempt
        read.attempt_count += 1
        return attempt

    def ask_part(self, read_id: int, attempt: CopyAttempt, index: int) -> int:
        """Note that a part is asked (again); return its number."""
        self._number = question_id = self._number + 1
        self._parts[question_id] = (read_id, index)
        attempt.question_ids[index] = question_id
        attempt.answers[index] = None
        self._note(attempt.parts[index].node, question_id)
        return question_id

    def primary_replied(self, read_id: int, read: PendingRead) -> None:
        """Note that nothing more is to come from the primary."""
        assert read.node is not None
        self._strike(read.node, read_id)
        read.node = None

    def part_replied(self, read: PendingRead, index: int) -> CopyAttempt:
        """Note that nothing more is to come to one part; return the whole attempt."""
        attempt = read.attempt
        assert attempt is not None
        question_id = attempt.question_ids[index]
        assert question_id is not None
        del self._parts[question_id]
        self._strike(attempt.parts[index].node, question_id)
        attempt.question_ids[index] = None
        return attempt

    def drop_copies(self, read: PendingRead) -> list[tuple[LinkId, int]]:
        """Wait for other copies no more; return who has not answered, and what."""
        attempt, read.attempt = read.attempt, None
        if attempt is None:
            return []
        waiting = attempt.waiting()
        for node, question_id in waiting:
            del self._parts[question_id]
            self._strike(node, question_id)
        return waiting

    def close(self, read_id: int) -> list[tuple[LinkId, int]]:
        """Forget a read; return who has not answered, and what."""
        read = self.reads[read_id]
        waiting = self.drop_copies(read) if read.attempt is not None else []
        if read.node is not None:
            waiting.append((read.node, read_id))
            self._strike(read.node, read_id)
        del self.reads[read_id]
        self._shares.free(read_id)  # what was turned away has no place any more
        client = read.asked.client
        own = self._of_client[client]
        own.remove(read_id)
        if not own:
            del self._of_client[client]
        stale_count = len(self._deadlines) - len(self.reads)
        if stale_count > max(_DEADLINES_STALE_MIN, 2 * len(self.reads)):
            self._deadlines = [
                (one.asked.deadline_ns, number) for number, one in self.reads.items()
            ]
            heapq.heapify(self._deadlines)
        return waiting

    def take_late(self, *, now_ns: int) -> list[int]:
        """Return the reads whose deadline has come, each once."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, read_id = heapq.heappop(self._deadlines)
            if read_id in self.reads:
                late.append(read_id)
        return late

    def clear(self) -> None:
        """Forget everything."""
        self.reads.clear()
        self._shares.clear()
        self._parts.clear()
        self._of_node.clear()
        self._of_client.clear()
        self._deadlines.clear()

    # -- parts ---------------------------------------------------------------------

    def _note(self, node: LinkId, question_id: int) -> None:
        questions = self._of_node.get(node)
        if questions is None:
            questions = self._of_node[node] = set()
        questions.add(question_id)

    def _strike(self, node: LinkId, question_id: int) -> None:
        questions = self._of_node[node]
        questions.remove(question_id)
        if not questions:
            del self._of_node[node]
