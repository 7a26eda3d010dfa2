"""
Answers that the proxy need not ask for again (C3, Q3); pure.

Theory of operation.  An answer is kept as bytes under everything that it depends on:
the state and its generation, the node that was asked, the operation and the keys.  It
is given again while three things hold: it is younger than the TTL of its rule, no row
in it has expired, and no newer batch than its own is known to be committed.  So a
commit invalidates by being known: entries from before it are thrown away when they are
asked for, or when room is needed, and nothing has to be done at the commit itself.

Answers that say that something is not there are never kept: who asks for what is
missing is usually waiting for it.  Scans and counts are not kept either, and fit no
key: they are large, seldom repeated, and say what is not there by leaving it out.

Size is bounded in bytes, what the bookkeeping costs included; the least recently used
goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias, final

import attrs

from nameservice import ConfigurationError, seconds_to_ns
from queryablestate.proxy.state_glob import StateGlob, to_state_glob
from queryablestate.wire.questions import GetEntries, GetItems, GetValues, HasRows


__all__ = [
    "ENTRY_OVERHEAD_BYTES",
    "CacheKey",
    "CacheRule",
    "CachedResult",
    "ResultCache",
]

CacheKey: TypeAlias = tuple[
    int, int, str, GetEntries | GetItems | GetValues | HasRows, bytes
]
"""State number, generation, node id, operation, keys."""

ENTRY_OVERHEAD_BYTES: Final = 768
"""What an entry costs beside its keys and values, in CPython, rounded up."""

_TTL_SECONDS_MAX: Final = 86_400
_TTL_COUNT_MAX: Final = 10_000


def _check_ttl(_: object, attribute: attrs.Attribute[float], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(
            f"{attribute.name} must be a number of seconds, not {value!r}"
        )
    if not 0 <= value <= _TTL_SECONDS_MAX:  # also refuses NaN
        raise ConfigurationError(
            f"{attribute.name} must be 0 (off) to {_TTL_SECONDS_MAX:,} seconds, "
            f"not {value!r}"
        )


@final
@attrs.frozen(kw_only=True)
class CacheRule:
    """
    How long answers about some states may be given again.

    Attributes:
        state: A glob of states; ``*/*`` by default.
        ttl_seconds: 0 to a day; 0 keeps nothing.

    Raises:
        ConfigurationError: On construction; says what to change.
    """

    state: StateGlob = attrs.field(default=StateGlob("*/*"), converter=to_state_glob)
    ttl_seconds: float = attrs.field(validator=_check_ttl)


@final
@attrs.frozen(kw_only=True)
class CachedResult:
    """
    An answer of a node, kept.

    Attributes:
        generation: Of the state, as of which it was read.
        batch_id: The last batch that the node had applied.
        decided_ns: When that batch was decided, by our clock.
        expires_ns: From when on it is not given any more.
        values: The values, as the node sent them.
    """

    generation: int
    batch_id: int
    decided_ns: int
    expires_ns: int
    values: bytes

    def age_ns(self, *, now_ns: int) -> int:
        """Return how old it is: what the node said, and the time since."""
        return now_ns - self.decided_ns


@final
class ResultCache:
    """
    Answers by what was asked, as long as they are right.

    Not thread-safe: one loop owns it.  Time must not fall from one call to the next.

    Attributes:
        hit_count: How many `get` have found something.
        miss_count: How many have not.
        size_bytes: How much is kept, bookkeeping included; at most *size_bytes_max*.
    """

    def __init__(self, rules: Iterable[CacheRule] = (), *, size_bytes_max: int) -> None:
        """
        Start empty.

        Args:
            rules: The first that matches a state counts; without one nothing is kept.
            size_bytes_max: 0 keeps nothing.
        """
        assert size_bytes_max >= 0
        self.hit_count = 0
        self.miss_count = 0
        self.size_bytes = 0
        self._size_bytes_max = size_bytes_max
        self._rules = tuple(rules)
        self._ttls_ns: dict[tuple[str, str], int] = {}
        self._entries: OrderedDict[CacheKey, CachedResult] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def reconfigure(self, rules: Iterable[CacheRule], *, size_bytes_max: int) -> None:
        """Replace the rules; other rules than before empty the cache."""
        assert size_bytes_max >= 0
        if tuple(rules) != self._rules:
            self._rules = tuple(rules)
            self._ttls_ns.clear()
            self.clear()
        self._size_bytes_max = size_bytes_max
        self._shrink(size_bytes_max)

    def ttl_ns(self, job_id: str, state_name: str) -> int:
        """Return how long an answer about that state may be kept; 0 for not at all."""
        ttl_ns = self._ttls_ns.get((job_id, state_name))
        if ttl_ns is None:
            ttl_ns = next(
                (
                    seconds_to_ns(rule.ttl_seconds)
                    for rule in self._rules
                    if rule.state.matches(job_id, state_name)
                ),
                0,
            )
            if len(self._ttls_ns) >= _TTL_COUNT_MAX:
                self._ttls_ns.clear()  # they are found again
            self._ttls_ns[job_id, state_name] = ttl_ns
        return ttl_ns

    def get(
        self, key: CacheKey, *, batch_id_known: int, now_ns: int
    ) -> CachedResult | None:
        """
        Return the answer that is kept under *key*, if it may still be given.

        Args:
            key: What is asked, of the state's present generation.
            batch_id_known: An answer from before this batch is not given: the last
                that is known to be committed, or the caller's ``min_batch_id`` if that
                is greater; -1 if there is neither.
            now_ns: The time.
        """
        found = self._entries.get(key)
        if found is not None:
            if now_ns >= found.expires_ns:
                self._remove(key)
            elif found.batch_id >= batch_id_known:
                self._entries.move_to_end(key)
                self.hit_count += 1
                return found
        self.miss_count += 1
        return None

    def put(
        self,
        key: CacheKey,
        *,
        generation: int,
        batch_id: int,
        age_ns: int,
        values: bytes,
        has_missing: bool,
        ttl_ns: int,
        valid_ns: int | None,
        batch_id_known: int,
        now_ns: int,
    ) -> bool:
        """
        Keep an answer, if it may be given again.

        Args:
            key: What was asked.
            generation: As of which it was read; refused if *key* says another.
            batch_id: The last batch that the node had applied when it answered.
            age_ns: How old that batch was, at *now_ns*.
            values: The values, as the node sent them.
            has_missing: Whether something that was asked for is not there.
            ttl_ns: As `ttl_ns` says of the state.
            valid_ns: When, from *now_ns*, a row in it expires; None if none does.
            batch_id_known: The last batch that is known to be committed.
            now_ns: The time.

        Returns:
            Whether it is kept.
        """
        lifetime_ns = ttl_ns if valid_ns is None else min(ttl_ns, valid_ns)
        size_bytes = ENTRY_OVERHEAD_BYTES + len(key[4]) + len(values)
        if (
            has_missing
            or lifetime_ns <= 0
            or batch_id < batch_id_known
            or generation != key[1]
            or size_bytes > self._size_bytes_max
        ):
            return False
        kept = self._entries.get(key)
        if kept is not None:
            if kept.batch_id > batch_id:
                return False  # this answer was overtaken by one that was asked later
            self._remove(key)
        self._shrink(self._size_bytes_max - size_bytes)
        self._entries[key] = CachedResult(
            generation=generation,
            batch_id=batch_id,
            decided_ns=now_ns - age_ns,
            expires_ns=now_ns + lifetime_ns,
            values=values,
        )
        self.size_bytes += size_bytes
        return True

    def clear(self) -> None:
        """Throw away everything; the counts go on."""
        self._entries.clear()
        self.size_bytes = 0

    def _shrink(self, size_bytes_max: int) -> None:
        """Throw away what was least recently used until *size_bytes_max* suffices."""
        while self.size_bytes > size_bytes_max:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: CacheKey) -> None:
        found = self._entries.pop(key)
        self.size_bytes -= ENTRY_OVERHEAD_BYTES + len(key[4]) + len(found.values)
