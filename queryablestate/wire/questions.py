"""
What readers ask of state, on its way from the client over the proxy to a node and back.

A question is a frame with what the proxy must know, and a second frame, the *keys*,
that it passes on unopened (a result cache looks at it as bytes).  So is the answer: the
second frame, the *values*, is opened by the client only.

=============  ===============================  =======================================
operation      keys: a MessagePack array of     values: a MessagePack array of
=============  ===============================  =======================================
`GetValues`    storage keys                     stored values, nil where there is none
`GetItems`     storage keys                     arrays of items, nil where there is none
`GetEntries`   storage keys                     arrays of map key, value, map key, …;
                                                nil where there is none
`HasRows`      storage keys                     booleans
`ScanRows`,    nothing (an empty frame)         encoded key (with map key or index),
`WalkRows`                                      value, encoded key, …
`CountKeys`    nothing (an empty frame)         one integer
=============  ===============================  =======================================

Stored values come without the expiry that a state with TTL keeps before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "KINDS",
    "Answer",
    "Ask",
    "CancelQuestions",
    "CountKeys",
    "GetEntries",
    "GetItems",
    "GetValues",
    "HasRows",
    "Operation",
    "Question",
    "Reading",
    "Refusal",
    "ScanRows",
    "Told",
    "WalkRows",
    "size_bytes_of",
]

_RUN_SIZE_BYTES: Final = 128
"""Of a run of key groups, in memory."""

_RUN_COUNT_MAX: Final = 32_768
"""Key groups that a state may have (`rescaling.MAX_PARALLELISM_MAX`)."""


class GetValues(WireStruct, frozen=True, kw_only=True, tag="get"):
    """The values under some storage keys: value states, and entries of map states."""


class GetItems(WireStruct, frozen=True, kw_only=True, tag="items"):
    """
    The items of some lists.

    Attributes:
        start: The first item as a Python slice means it: from the end if negative.
        stop: Where it ends, excluded, likewise; None is the end.
    """

    start: int = 0
    stop: int | None = None


class GetEntries(WireStruct, frozen=True, kw_only=True, tag="entries"):
    """All entries of some maps, in the order of their map keys."""


class HasRows(WireStruct, frozen=True, kw_only=True, tag="has"):
    """Whether anything is kept under some keys, whatever the kind of the state."""


class ScanRows(WireStruct, frozen=True, kw_only=True, tag="scan"):
    """
    Rows in the order of their encoded keys, over all key groups of a node.

    Attributes:
        start: The least encoded key, included; without a key group.
        stop: The first encoded key that is left out, or None for no end.
        limit: How many rows at most, 1 to 10,000.
    """

    start: bytes
    stop: bytes | None
    limit: Annotated[int, Meta(ge=1, le=10_000)]


class WalkRows(WireStruct, frozen=True, kw_only=True, tag="walk"):
    """
    Rows of some key groups of a node, one key group after the other.

    That is how they are stored: a page costs what it returns, however many key groups
    there are.

    Attributes:
        key_groups: The first and the last one of each run, both included; sorted.
        start: The least storage key, included, with its key group; ``b""`` is the
            beginning.  `Answer.next_start` is such a key, too.
        limit: How many rows at most, 1 to 10,000.
    """

    key_groups: Annotated[tuple[tuple[int, int], ...], Meta(max_length=_RUN_COUNT_MAX)]
    start: bytes
    limit: Annotated[int, Meta(ge=1, le=10_000)]


class CountKeys(WireStruct, frozen=True, kw_only=True, tag="count"):
    """
    How many keys a node holds: lists and maps count once for each key.

    Attributes:
        schema: Of a map state, as `queryablestate.schema.schema_json` writes it: nodes
            know no schemas, and this one tells where in a row the key ends and the map
            key begins.  Without it the entries of maps are counted.
    """

    schema: str | None = None


Operation: TypeAlias = (
    GetValues | GetItems | GetEntries | HasRows | ScanRows | WalkRows | CountKeys
)

KINDS: Final[Mapping[type, str]] = {
    GetValues: "get",
    GetItems: "get",
    GetEntries: "get",
    HasRows: "exists",
    ScanRows: "scan",
    WalkRows: "scan",
    CountKeys: "count",
}
"""What kinds of questions are told apart where their duration is counted."""


def size_bytes_of(operation: Operation, keys: bytes) -> int:
    """
    Return about how much memory a question takes that waits.

    That is its second frame, and what of its first one may have any size.
    """
    size_bytes = len(keys)
    if isinstance(operation, ScanRows):
        size_bytes += len(operation.start) + len(operation.stop or b"")
    elif isinstance(operation, WalkRows):
        size_bytes += len(operation.start)
        size_bytes += len(operation.key_groups) * _RUN_SIZE_BYTES
    elif isinstance(operation, CountKeys):
        size_bytes += len(operation.schema or "")
    return size_bytes


class Ask(WireStruct, frozen=True, kw_only=True, tag="ask", omit_defaults=True):
    """
    A client asks one node, by way of the proxy.

    Attributes:
        request_id: Names the answer; unique within the session.
        session: The secret of the session (`Welcome`).
        state_number: Which state, as `StateDescription` says.
        assignment_version: The route table that led to *node_index*.
        node_index: Which node of that assignment.
        operation: What is asked.
        key_count: How many keys, or rows of a page at most.
        deadline_ms: How long an answer is worth something, from now; None leaves that
            to the proxy.
        min_batch_id: Wait until this batch is applied (rule Q2), or None.
        min_generation: Whose batch that is: one of a later generation is newer.  None
            is the present generation, as the proxy knows it when it is asked.
    """

    request_id: int
    session: bytes
    state_number: int
    assignment_version: int
    node_index: int
    operation: Operation
    key_count: Annotated[int, Meta(ge=0)]
    deadline_ms: Annotated[int, Meta(ge=1)] | None = None
    min_batch_id: int | None = None
    min_generation: int | None = None


class Question(
    WireStruct, frozen=True, kw_only=True, tag="question", omit_defaults=True
):
    """
    The same on its way from the proxy to the node; see `Ask`.

    Attributes:
        asker: Whose question it is, by a name that the proxy chooses: what a node has
            little of is shared fairly between askers (rule B2).
        copies: Key groups, the first and the last one of each run, both included,
            sorted: the node answers for exactly these, as one of those that have an
            in-sync copy (rule D4).  None asks it as the primary, for its key groups.
    """

    leader_epoch: int
    question_id: int
    state_number: int
    assignment_version: int
    operation: Operation
    deadline_ms: int
    asker: str = ""
    min_batch_id: int | None = None
    min_generation: int | None = None
    copies: tuple[tuple[int, int], ...] | None = None


class CancelQuestions(WireStruct, frozen=True, kw_only=True, tag="cancel-questions"):
    """
    The proxy tells a node that the answers to some questions are wanted no more.

    Each is answered or refused all the same, with the rows that it has read.
    """

    leader_epoch: int
    question_ids: tuple[int, ...]


class Reading(WireStruct, frozen=True, kw_only=True):
    """
    As of what an answer was read.

    Attributes:
        generation: Of the state.
        batch_id: The last batch applied, or None before the first.
        age_ms: How long ago that batch was decided.
        is_cached: Whether the proxy had the answer from before.
    """

    generation: int
    batch_id: int | None
    age_ms: int
    is_cached: bool = False


class Answer(WireStruct, frozen=True, kw_only=True, tag="answer", omit_defaults=True):
    """
    A node answers the proxy.

    Attributes:
        registration_id: Which registration of the node.
        question_id: To what.
        reading: As of what; everything in one answer was read at one moment.
        has_missing: Whether something asked for is not there: such an answer is not
            kept (rule Q3).
        valid_ms: Until a value in it expires, or None if none does.
        next_start: Where a scan goes on, or None at its end.
        row_count: How many rows were looked at for it: what rate limits count.
    """

    question_id: int
    reading: Reading
    has_missing: bool
    valid_ms: int | None = None
    next_start: bytes | None = None
    row_count: int = 0


class Told(WireStruct, frozen=True, kw_only=True, tag="told"):
    """The proxy answers the client; see `Answer`."""

    request_id: int
    reading: Reading
    next_start: bytes | None = None


class Refusal(WireStruct, frozen=True, kw_only=True, tag="refusal", omit_defaults=True):
    """
    There is no answer, and this is why: from node to proxy, and from there to clients.

    Attributes:
        request_id: The request, or the question, that is not answered; 0 if it could
            not be read.
        code: A code of `queryablestate.wire.refusals`.
        data: What the error of that code carries.
        row_count: How many rows a node has looked at before it gave up.
    """

    request_id: int
    code: str
    data: tuple[str | int | float | bool | tuple[int | str, ...] | None, ...] = ()
    row_count: int = 0
