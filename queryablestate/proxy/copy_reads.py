"""
What nodes with in-sync copies are asked in place of a primary; pure (rule D4).

Theory of operation.  The key groups of one node have their other copies on several
nodes.  So a question is divided into parts (`divide`), one for each of these nodes, and
their answers are put together (`unite`) as the one answer that the primary would have
given.  Only here does a proxy look into keys and values, and only into where each one
begins: values stay the bytes that they are.

An answer is of one moment (rule Q1).  Two nodes may be one batch apart; so parts are
united only if they are as of the same batch, and `behind` says which are to be asked
again for a newer one.  Nodes apply the same batches in the same order: what two of them
hold as of one batch is what one of them would hold.

A page of a walk over key groups goes to one node alone: it ends where that node has no
copy of the next key group, and says so.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec
from attrs import define, frozen

from nameservice import RemoteProtocolError
from queryablestate.schema.key_groups import group_of, group_start
from queryablestate.wire.codec import (
    decode_count,
    decode_keys,
    encode_payload,
)
from queryablestate.wire.questions import (
    Answer,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Operation,
    ScanRows,
    WalkRows,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation


__all__ = ["CopyPart", "behind", "divide", "is_by_key", "unite"]

_Runs: TypeAlias = "tuple[tuple[int, int], ...]"
_PAGE_SIZE_BYTES: Final = 1 << 20
"""A page may be that large, or as large as the largest of which it is united."""

_ROW_HEADERS_SIZE_BYTES: Final = 10
"""Of a key and a value in MessagePack, at most."""

_BY_KEY: Final = (GetValues, HasRows, GetItems, GetEntries)
_decode_parts: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


@final
@frozen
class CopyPart:
    """
    What one node is asked in place of the primary.

    Attributes:
        node: Its connection.
        runs: The key groups that it is asked about: first and last of each run.
        operation: What.
        keys: The second frame.
        places: Which keys of the whole question these are; empty for all of them.
        next_start: Where a walk goes on behind this part, or None at its end.
    """

    node: LinkId
    runs: _Runs
    operation: Operation
    keys: bytes
    places: tuple[int, ...] = ()
    next_start: bytes | None = None


@final
@define
class _Share:
    """The key groups, and the places of the keys, that go to one node."""

    key_groups: set[int]
    places: list[int]


def is_by_key(operation: Operation) -> bool:
    """Return whether *operation* looks keys up, and does not go over key groups."""
    return isinstance(operation, _BY_KEY)


def divide(
    location: KvStateLocation,
    node_index: int,
    operation: Operation,
    keys: bytes,
    *,
    is_unfit: Callable[[LinkId], bool],
) -> tuple[CopyPart, ...]:
    """
    Return what other nodes are asked in place of a primary.

    Args:
        location: The present route to the state.
        node_index: The primary, which is not asked.
        operation: What is asked.
        keys: The second frame.
        is_unfit: Says of a node that another one is asked rather.

    Returns:
        At most one part for each node; none if some of it has no other copy that can
        be asked, or if the keys are not the primary's.
    """
    by_group: dict[int, LinkId | None] = {}

    def copy_of(key_group: int) -> LinkId | None:
        if key_group not in by_group:
            by_group[key_group] = _copy_of(location, node_index, key_group, is_unfit)
        return by_group[key_group]

    if isinstance(operation, WalkRows):
        part = _walk_part(operation, copy_of)
        return () if part is None else (part,)
    if not is_by_key(operation):
        shares: dict[LinkId, _Share] = {}
        for key_group in location.key_groups[node_index]:
            node = copy_of(key_group)
            if node is None:
                return ()
            shares.setdefault(node, _Share(set(), [])).key_groups.add(key_group)
        return tuple(
            CopyPart(node, _runs(share.key_groups), operation, keys)
            for node, share in shares.items()
        )
    try:
        single = decode_keys(keys)
    except RemoteProtocolError:
        return ()  # the primary refuses them
    shares = {}
    for place, key in enumerate(single):
        key_group = group_of(key)
        node = copy_of(key_group)
        if node is None:
            return ()
        share = shares.setdefault(node, _Share(set(), []))
        share.key_groups.add(key_group)
        share.places.append(place)
    if len(shares) == 1:
        ((node, share),) = shares.items()
        return (CopyPart(node, _runs(share.key_groups), operation, keys),)
    return tuple(
        CopyPart(
            node,
            _runs(share.key_groups),
            operation,
            encode_payload([single[place] for place in share.places]),
            tuple(share.places),
        )
        for node, share in shares.items()
    )


def behind(answers: Sequence[Answer]) -> tuple[list[int], Answer]:
    """
    Return which of *answers* are older than the newest of them, and that.

    Args:
        answers: Of all parts of a question, in their order.
    """
    newest = max(answers, key=_batch_of)
    return [
        index
        for index, answer in enumerate(answers)
        if _batch_of(answer) != _batch_of(newest)
    ], newest


def unite(
    operation: Operation,
    parts: Sequence[CopyPart],
    answers: Sequence[Answer],
    payloads: Sequence[bytes | memoryview],
) -> tuple[Answer, bytes | memoryview]:
    """
    Return the answer to a question that was divided, and its second frame.

    Args:
        operation: What was asked.
        parts: What became of it.
        answers: To each part; all as of the same batch.
        payloads: Their second frames.

    Raises:
        RemoteProtocolError: If a node has answered something else.
    """
    first = answers[0]
    valid_ms = [one.valid_ms for one in answers if one.valid_ms is not None]
    answer = Answer(
        question_id=first.question_id,
        reading=msgspec.structs.replace(
            first.reading, age_ms=max(one.reading.age_ms for one in answers)
        ),
        has_missing=any(one.has_missing for one in answers),
        valid_ms=min(valid_ms, default=None),
        next_start=first.next_start,
        row_count=sum(one.row_count for one in answers),
    )
    if isinstance(operation, WalkRows) and first.next_start is None:
        return msgspec.structs.replace(answer, next_start=parts[0].next_start), (
            payloads[0]
        )
    if len(parts) == 1:
        return answer, payloads[0]
    match operation:
        case CountKeys():
            return answer, encode_payload(sum(map(decode_count, payloads)))
        case ScanRows(limit=limit):
            return _united_page(answer, answers, payloads, limit)
        case _:
            return answer, _united_values(parts, payloads)


def _batch_of(answer: Answer) -> tuple[int, int]:
    batch_id = answer.reading.batch_id
    return (answer.reading.generation, -1 if batch_id is None else batch_id)


def _copy_of(
    location: KvStateLocation,
    node_index: int,
    key_group: int,
    is_unfit: Callable[[LinkId], bool],
) -> LinkId | None:
    """Return a node that can be asked in place of the primary of *key_group*."""
    if key_group >= len(location.owners):
        return None
    primary, *others = location.owners[key_group]
    if primary != node_index:
        return None
    links = (location.copy_links[index] for index in others)
    here = [link for link in links if link is not None]
    fit = (link for link in here if not is_unfit(link))
    return next(fit, here[0] if here else None)


def _walk_part(
    walk: WalkRows, copy_of: Callable[[int], LinkId | None]
) -> CopyPart | None:
    """Return the first of a walk, as far as one node has it; or None."""
    position = group_of(walk.start) if walk.start else 0
    node: LinkId | None = None
    key_groups: list[int] = []
    for first, last in walk.key_groups:
        for key_group in range(max(first, position), last + 1):
            copy = copy_of(key_group)
            if copy is None and not key_groups:
                return None
            if node is None:
                node = copy
            if copy != node:
                assert node is not None
                runs = _runs(key_groups)
                part = msgspec.structs.replace(walk, key_groups=runs)
                return CopyPart(
                    node, runs, part, b"", next_start=group_start(key_group)
                )
            key_groups.append(key_group)
    if node is None:
        return None  # nothing is left to be walked over: the primary says so
    runs = _runs(key_groups)
    return CopyPart(node, runs, msgspec.structs.replace(walk, key_groups=runs), b"")


def _united_values(
    parts: Sequence[CopyPart], payloads: Sequence[bytes | memoryview]
) -> bytes:
    """Return the values of all parts, in the order of the keys of the question."""
    values: list[Any] = [None] * sum(len(part.places) for part in parts)
    for part, payload in zip(parts, payloads, strict=True):
        found = _raw_values(payload)
        if len(found) != len(part.places):
            raise RemoteProtocolError(
                "malformed", f"{len(found)} answers to {len(part.places)} keys"
            )
        for place, value in zip(part.places, found, strict=True):
            values[place] = value
    return encode_payload(values)


def _united_page(
    answer: Answer,
    answers: Sequence[Answer],
    payloads: Sequence[bytes | memoryview],
    limit: int,
) -> tuple[Answer, bytes]:
    """Return one page of several, in the order of encoded keys."""
    # Behind where one of them ends, others have more than it says.
    end = min(
        (one.next_start for one in answers if one.next_start is not None), default=None
    )
    rows: list[tuple[bytes, bytes]] = []
    for payload in payloads:
        flat = decode_keys(payload)
        if len(flat) % 2:
            raise RemoteProtocolError("malformed", "a page ends in mid-row")
        keys = flat[::2]
        count = len(keys) if end is None else bisect_left(keys, end)
        rows += zip(keys[:count], flat[1 : 2 * count : 2], strict=True)
    rows.sort(key=_key_of)
    size_bytes_max = max(_PAGE_SIZE_BYTES, *map(len, payloads))
    count = min(limit, _fitting(rows, size_bytes_max))
    if len(rows) > count:
        end = rows[count][0]
        del rows[count:]
    page = encode_payload(list(chain.from_iterable(rows)))
    return msgspec.structs.replace(answer, next_start=end), page


def _fitting(rows: Sequence[tuple[bytes, bytes]], size_bytes_max: int) -> int:
    """Return how many of *rows* fit a page of that size; at least one does."""
    size_bytes = 0
    for index, (key, value) in enumerate(rows):
        size_bytes += len(key) + len(value) + _ROW_HEADERS_SIZE_BYTES
        if size_bytes > size_bytes_max and index:
            return index
    return len(rows)


def _key_of(row: tuple[bytes, bytes]) -> bytes:
    return row[0]


def _raw_values(payload: bytes | memoryview) -> list[msgspec.Raw]:
    try:
        return _decode_parts(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError("malformed", str(error)) from error


def _runs(key_groups: Iterable[int]) -> _Runs:
    """Return *key_groups*, in any order, as runs."""
    runs: list[tuple[int, int]] = []
    for key_group in sorted(key_groups):
        if runs and key_group == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], key_group)
        else:
            runs.append((key_group, key_group))
    return tuple(runs)
