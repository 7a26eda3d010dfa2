"""Which answers a `ResultCache` keeps, under what, and for whom they will do; pure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from queryablestate.proxy.read_answers import Outgoing
from queryablestate.proxy.read_questions import generation_asked
from queryablestate.wire.questions import (
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Reading,
    Told,
)


if TYPE_CHECKING:
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.cache import CacheKey, ResultCache
    from queryablestate.proxy.read_parking import ParkedQuestion
    from queryablestate.wire.questions import Answer, Ask


__all__ = ["cache_key_of", "find_answer", "keep_answer"]

_CacheableOperation: TypeAlias = GetValues | GetItems | GetEntries | HasRows
"""The answer to these may be given again."""
_KEYS_SIZE_BYTES_MAX: Final = 64 * 1024
"""What is asked with more than that is seldom asked again, and costs memory to know."""
_WAITED_NS_MAX: Final = NS_PER_SECOND
"""An answer that took longer is not kept: its age is not known well enough."""


def cache_key_of(
    cache: ResultCache, location: KvStateLocation, ask: Ask, keys: bytes
) -> CacheKey | None:
    """Return what the answer is kept under, or None if it is not."""
    if (
        not isinstance(ask.operation, _CacheableOperation)
        or len(keys) > _KEYS_SIZE_BYTES_MAX
        or not cache.ttl_ns(location.job_id, location.state_name)
    ):
        return None
    node_id = location.node_ids[ask.node_index]
    return (
        location.state_number,
        location.generation,
        node_id,
        ask.operation,
        keys,
    )


def find_answer(
    cache: ResultCache,
    asked: ParkedQuestion,
    location: KvStateLocation,
    cache_key: CacheKey,
    now_ns: int,
) -> Outgoing | None:
    """Return the answer that is kept, or None if a node must be asked."""
    ask = asked.ask
    found = cache.get(
        cache_key,
        batch_id_known=_batch_id_known(location, ask),
        now_ns=now_ns,
    )
    if found is None:
        return None
    reading = Reading(
        generation=found.generation,
        batch_id=found.batch_id,
        age_ms=found.age_ns(now_ns=now_ns) // NS_PER_MS,
        is_cached=True,
    )
    told = Told(request_id=ask.request_id, reading=reading)
    return Outgoing(asked.client, told, found.values)


def keep_answer(
    cache: ResultCache,
    cache_key: CacheKey,
    location: KvStateLocation,
    answer: Answer,
    values: bytes | memoryview,
    *,
    waited_ns: int,
    now_ns: int,
) -> None:
    """
    Keep what a node has answered, unless that took too long.

    Args:
        cache: Where.
        cache_key: Under what.
        location: The present route.
        answer: What the node says; no batch, and nothing is kept.
        values: Its second frame.
        waited_ns: How long ago the node was asked.
        now_ns: The time.
    """
    reading = answer.reading
    if reading.batch_id is None or waited_ns > _WAITED_NS_MAX:
        return
    cache.put(
        cache_key,
        generation=reading.generation,
        batch_id=reading.batch_id,
        # The node read it at any time since: never said to be too young.
        age_ns=reading.age_ms * NS_PER_MS + waited_ns,
        values=bytes(values),
        has_missing=answer.has_missing,
        ttl_ns=cache.ttl_ns(location.job_id, location.state_name),
        valid_ns=_valid_ns(answer, waited_ns),
        batch_id_known=_batch_id_known(location, None),
        now_ns=now_ns,
    )


def _batch_id_known(location: KvStateLocation, ask: Ask | None) -> int:
    """Return from which batch of the present generation on an answer is new enough."""
    known = -1 if location.batch_id is None else location.batch_id
    if ask is None or ask.min_batch_id is None:
        return known
    generation = generation_asked(location, ask)
    assert generation is not None
    if generation != location.generation:
        return known if generation < location.generation else sys.maxsize
    return max(known, ask.min_batch_id)


def _valid_ns(answer: Answer, waited_ns: int) -> int | None:
    """
    Return for how long no row in *answer* expires; None for ever (rule W6).

    The node counts from the moment at which it read: that was *waited_ns* ago at most.
    """
    if answer.valid_ms is None:
        return None
    return answer.valid_ms * NS_PER_MS - waited_ns
