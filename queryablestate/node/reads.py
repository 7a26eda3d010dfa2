"""
From a question to what the store holds, and from there to an answer.

`read` runs in steps, on whichever thread the reader belongs to, `answer_of` and
`problem_of` in the node's loop; in between the node makes sure that it may answer
(`NodeCore.admit`).  Everything in one answer comes out of one snapshot (rule Q1).

Answers to all callers share one connection to the proxy, and a small one waits for what
is sent before it.  So what *several* keys hold is answered up to a mebibyte: a client
that asked for more asks for fewer at once, and others have their turns in between (rule
B2).  What one key holds goes whole, since it is of one moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final, assert_never, final

from attrs import define

from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
)
from nameservice.clock import US_PER_MS
from queryablestate.errors import StateUnavailableError
from queryablestate.schema.key_groups import GROUP_SIZE_BYTES, group_of
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema_json import parse_schema
from queryablestate.store.bounded_answer import Advice, fewer_than
from queryablestate.store.groups import groups_in, row_ranges
from queryablestate.store.pages import Page
from queryablestate.wire.codec import decode_keys, encode_payload
from queryablestate.wire.questions import (
    Answer,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Question,
    Reading,
    Refusal,
    ScanRows,
    WalkRows,
)
from queryablestate.wire.refusals import STALE_ROUTE, refusal_of
from queryablestate.wire.slices import Value, encode_in_slices


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.node.core.jobs import ServedJob
    from queryablestate.store.layout import Runs
    from queryablestate.store.pages import ScanRead
    from queryablestate.store.reader import Read, StoreReader
    from queryablestate.store.state_view import StateView
    from queryablestate.store.steps import ReadWork, Steps


__all__ = [
    "Found",
    "answer_of",
    "holds_rows",
    "is_long",
    "is_too_early",
    "problem_of",
    "read",
    "read_points",
]

_ARRAY_HEADER_SIZE_BYTES: Final = 5
_POINTS_SIZE_BYTES_MAX: Final = 32 << 10
"""Of keys: the loop looks up about as many in a millisecond or two."""
_KEYS_SIZE_BYTES_MAX: Final = 1_024
_KEY_GROUP_COUNT_MAX: Final = 1 << 16
_ENCODED_AT_ONCE_SIZE_BYTES: Final = 256 << 10
"""Encoding more than that takes a step of its own."""
_SEVERAL_SIZE_BYTES_MAX: Final = 1 << 20
_LOST_RETRY_SECONDS: Final = 10.0
_PREFIX_OF: Final[Callable[[bytes], bytes]] = itemgetter(slice(GROUP_SIZE_BYTES))


@final
@define
class Found:
    """
    What the store holds, as of one moment.

    Attributes:
        view: Of the state; None if there is no such state.
        keys: What was asked for; empty for a scan or a count.
        payload: The second frame of the answer.
        has_missing: Whether something asked for is not there.
        valid_until_us: When the first of it expires, or None.
        next_start: Where a scan goes on, or None.
        runs: The key groups that were walked over, if it was only some.
        is_elsewhere: Whether the node does not answer for all of these.
        row_count: How many rows were looked at.
    """

    view: StateView | None
    keys: list[bytes]
    payload: bytes | bytearray
    has_missing: bool
    valid_until_us: int | None = None
    next_start: bytes | None = None
    runs: Runs = ()
    is_elsewhere: bool = False
    row_count: int = 0


def is_long(question: Question, keys_payload: bytes) -> bool:
    """Return whether reading takes so long that the loop need not even begin."""
    match question.operation:
        case GetValues() | HasRows():
            return len(keys_payload) > _POINTS_SIZE_BYTES_MAX
        case GetItems() | GetEntries():
            return len(keys_payload) > _KEYS_SIZE_BYTES_MAX
        case _:
            return True


def holds_rows(question: Question) -> bool:
    """Return whether an answer may take much memory while it is read."""
    return not isinstance(question.operation, CountKeys | HasRows)


def read(  # noqa: PLR0917 (called for each question: keywords cost)
    reader: StoreReader,
    question: Question,
    keys_payload: bytes,
    key_groups: Sequence[int],
    now_us: int,
    size_bytes_max: int,
    work: ReadWork,
) -> Steps[Found]:
    """
    Return what the store holds of what is asked.

    Args:
        reader: Of this thread.
        question: What is asked.
        keys_payload: Its second frame.
        key_groups: Of the node, sorted: what a scan or a count goes over.
        now_us: The wall clock; what has expired by then is not there.
        size_bytes_max: How big the second frame of the answer may be; no more than
            that is read (rule B1).
        work: Is told what was done.

    Raises:
        RemoteProtocolError: If the keys are none.
        LocalProtocolError: If the answer would be too large.
        ConfigurationError: If a count names a schema that is none.
        StorageError: If the store cannot be read.
    """
    operation = question.operation
    number = question.state_number
    rows_max = size_bytes_max - _ARRAY_HEADER_SIZE_BYTES
    match operation:
        case GetValues():
            keys = decode_keys(keys_payload)
            size_bytes_max = _several(keys, size_bytes_max)
            values = yield from reader.get_values(
                number, keys, now_us, work, size_bytes_max=size_bytes_max
            )
            found = yield from _found(
                work, keys, values, size_bytes_max, fewer_than(keys)
            )
        case GetItems(start=start, stop=stop):
            keys = decode_keys(keys_payload)
            size_bytes_max = _several(keys, size_bytes_max)
            items = yield from reader.get_items(
                number,
                keys,
                (start, stop),
                now_us,
                work,
                size_bytes_max=size_bytes_max,
            )
            found = yield from _found(
                work, keys, items, size_bytes_max, Advice.LIST_SLICE
            )
        case GetEntries():
            keys = decode_keys(keys_payload)
            size_bytes_max = _several(keys, size_bytes_max)
            entries = yield from reader.get_entries(
                number, keys, now_us, work, size_bytes_max=size_bytes_max
            )
            found = yield from _found(
                work, keys, entries, size_bytes_max, Advice.MAP_PAGES
            )
        case HasRows():
            keys = decode_keys(keys_payload)
            has = yield from reader.has_rows(number, keys, now_us, work)
            found = Found(
                has.view,
                keys,
                encode_payload(has.values),
                not all(has.values),
                has.valid_until_us,
            )
        case ScanRows(start=begin, stop=end, limit=limit):
            part = Page(begin, end, limit, rows_max, rows_max)
            page = yield from reader.scan(number, key_groups, part, now_us, work)
            found = yield from _page(work, page, size_bytes_max)
        case WalkRows(key_groups=runs, start=begin, limit=limit):
            _check_runs(runs)
            part = Page(begin, None, limit, rows_max, rows_max)
            page = yield from reader.walk(number, row_ranges(runs), part, now_us, work)
            found = yield from _page(work, page, size_bytes_max)
            found.runs = runs
            found.is_elsewhere = not all(_has_run(key_groups, *run) for run in runs)
        case CountKeys(schema=schema):
            key_size_of = None if schema is None else _key_sizer(schema)
            view, count = yield from reader.count(
                number, key_groups, now_us, work, key_size_of
            )
            found = Found(view, [], encode_payload(count), has_missing=False)
        case _:
            assert_never(operation)
    found.row_count = work.row_count
    return found


def read_points(
    reader: StoreReader,
    question: Question,
    keys_payload: bytes,
    now_us: int,
    size_bytes_max: int,
) -> Found | None:
    """
    Return what `read` does, but at once, or None if that may take long.

    Most questions are for few short values, and bounds that steps keep cost as much as
    such a read.

    Raises:
        RemoteProtocolError: If the keys are none.
        StorageError: If the store cannot be read.
    """
    if type(question.operation) is not GetValues:
        return None
    keys = decode_keys(keys_payload)
    read_values = reader.get_short_values(
        question.state_number, keys, now_us, size_bytes_max=size_bytes_max
    )
    if read_values is None:
        return None
    values = read_values.values
    payload = encode_payload(values)
    if len(payload) > size_bytes_max:
        return None
    return Found(
        read_values.view,
        keys,
        payload,
        None in values,
        read_values.valid_until_us,
        row_count=len(keys),
    )


def problem_of(question: Question, found: Found, served: ServedJob) -> Refusal | None:
    """Return why *found* is no answer though the node may give one, or None."""
    is_here = served.prefixes.issuperset(map(_PREFIX_OF, found.keys))
    if found.is_elsewhere or not is_here:
        # By the right route it would have gone elsewhere; here it is not missing.
        return Refusal(request_id=question.question_id, code=STALE_ROUTE)
    assert found.view is not None
    if found.view.lost:
        asked: Sequence[int] = served.key_groups
        if found.runs:
            asked = [
                one for first, last in found.runs for one in range(first, last + 1)
            ]
        if found.keys:
            asked = sorted({group_of(key) for key in found.keys})
        lost = groups_in(found.view.lost, asked)
        if not lost:
            return None  # another node's, or sound ones beside them
        error = StateUnavailableError(
            served.job_id,
            None,
            lost,
            _LOST_RETRY_SECONDS,
            "its rows were lost with the disk of a node: run a batch that replaces "
            "the state, or drop it and begin anew",
        )
        return refusal_of(error, question.question_id)
    return None


def is_too_early(question: Question, found: Found) -> bool:
    """Return whether the batch that *question* waits for is not applied (rule Q2)."""
    batch_id_min = question.min_batch_id
    if batch_id_min is None:
        return False
    view = found.view
    if view is None or view.batch_id is None:
        return True
    # A proxy of before does not say whose batch it is.
    generation = question.min_generation
    if generation is not None and generation != view.generation:
        return view.generation < generation
    return view.batch_id < batch_id_min


def answer_of(question: Question, found: Found, now_us: int) -> Answer:
    """Return the first frame of the answer; `Found.payload` is the second."""
    view = found.view
    assert view is not None
    valid_us = found.valid_until_us
    return Answer(
        question_id=question.question_id,
        reading=Reading(
            generation=view.generation,
            batch_id=view.batch_id,
            age_ms=max(0, now_us - view.decided_at_us) // US_PER_MS,
        ),
        has_missing=found.has_missing,
        valid_ms=None if valid_us is None else max(0, valid_us - now_us) // US_PER_MS,
        next_start=found.next_start,
        row_count=found.row_count,
    )


def _found(
    work: ReadWork,
    keys: list[bytes],
    read_values: Read[bytes] | Read[list[bytes]],
    size_bytes_max: int,
    advice: Advice,
) -> Steps[Found]:
    values = read_values.values
    has_missing = None in values
    payload = yield from _encoded(work, values, size_bytes_max, advice)
    return Found(
        read_values.view, keys, payload, has_missing, read_values.valid_until_us
    )


def _page(work: ReadWork, page: ScanRead, size_bytes_max: int) -> Steps[Found]:
    advice = Advice.LARGER_ANSWERS
    payload = yield from _encoded(work, page.rows, size_bytes_max, advice)
    return Found(
        page.view,
        [],
        payload,
        has_missing=False,
        valid_until_us=page.valid_until_us,
        next_start=page.next_start,
    )


def _several(keys: list[bytes], size_bytes_max: int) -> int:
    """Return how big the answer to *keys* may be; see the module docstring."""
    return (
        min(_SEVERAL_SIZE_BYTES_MAX, size_bytes_max)
        if len(keys) > 1
        else size_bytes_max
    )


def _encoded(
    work: ReadWork, values: Sequence[Value], size_bytes_max: int, advice: Advice
) -> Steps[bytes | bytearray]:
    payload: bytes | bytearray
    if work.size_bytes > _ENCODED_AT_ONCE_SIZE_BYTES:
        yield
        # Of several keys one may be named twice; their answer is a mebibyte at most.
        payload = yield from encode_in_slices(values, is_consumed=len(values) == 1)
    else:
        payload = encode_payload(values)
    if len(payload) > size_bytes_max:
        raise LocalProtocolError(
            f"the answer takes {len(payload):,} bytes, and {size_bytes_max:,} are sent "
            f"at most: {advice.value}"
        )
    return payload


def _check_runs(runs: Runs) -> None:
    """Raise `RemoteProtocolError` unless *runs* of key groups are sorted."""
    beyond = 0
    for first, last in runs:
        if not beyond <= first <= last < _KEY_GROUP_COUNT_MAX:
            raise RemoteProtocolError("malformed", "key groups that are not sorted")
        beyond = last + 1


def _has_run(key_groups: Sequence[int], first: int, last: int) -> bool:
    """Return whether all from *first* to *last* are in *key_groups*, sorted."""
    begin = bisect_left(key_groups, first)
    end = begin + last - first
    return (
        end < len(key_groups) and key_groups[begin] == first and key_groups[end] == last
    )


@lru_cache(maxsize=256)
def _key_sizer(schema_text: str) -> Callable[[bytes], int]:
    """Return what tells how much of a row key of a map state is the key."""
    schema = parse_schema(schema_text)
    if not schema.map_key:
        raise ConfigurationError("only counting a map state takes a schema")
    return KeyCodec(schema.key, max_parallelism=1).size_of
