"""
How often states may be asked: token buckets, per caller and per state (C2); pure.

Theory of operation.  A rule names callers and states by globs, and how many keys per
second they may ask.  Of each scope the *first* rule that matches counts; a request has
to pass both, and takes from both or from neither.  In the scope ``caller`` every caller
has a bucket of its own, for all states of the rule; in the scope ``state`` every state
has one, which all callers of the rule share.

A bucket is one integer: when it will be full again, in units of time that are fine
enough to make every rule's rate a whole number.  So there is nothing to refill, no
rounding, and the time to wait is exact: the same request is admitted at that very
nanosecond, and not one earlier, if no other takes meanwhile.  A request larger than
the burst waits for a full bucket and leaves a debt; it would otherwise never be
admitted.

A bucket that is full is as good as none.  When there are too many, the one that is
full, or will be full first, is forgotten: that gives away the least.  Heap entries may
be too early, never too late, as in ``election.deadlines``.

Rejected: a level and the time it was taken at (two numbers and a rounding per request);
floats (they drift, and the time to wait is then a guess).
"""

from __future__ import annotations

import enum
import heapq
import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Final, TypeAlias, final

import attrs

from nameservice import ConfigurationError
from nameservice.clock import NS_PER_SECOND
from queryablestate.proxy.state_glob import (
    GLOB_LENGTH_MAX,
    StateGlob,
    compile_glob,
    to_state_glob,
)


__all__ = ["RateDecision", "RateLimitRule", "RateLimitScope", "RateLimiter"]

_RATE_MIN: Final = 0.001
_RATE_MAX: Final = 1_000_000_000


@final
class RateLimitScope(enum.Enum):
    """Whose bucket a rule is about."""

    CALLER = "caller"
    """Each caller has its own."""

    STATE = "state"
    """Each state has its own, which its callers share."""


def _to_scope(value: RateLimitScope | str) -> RateLimitScope:
    """Return the scope, or the one of that name."""
    try:
        return RateLimitScope(value)
    except ValueError as exc:
        raise ConfigurationError(
            f'scope must be "caller" or "state", not {value!r}'
        ) from exc


def _check_caller(_: object, attribute: attrs.Attribute[str], value: object) -> None:
    is_glob = (
        isinstance(value, str)
        and 0 < len(value) <= GLOB_LENGTH_MAX
        and value.isprintable()
    )
    if not is_glob:
        raise ConfigurationError(
            f'{attribute.name} must be a glob of callers\' names, e.g. "*", '
            f"not {value!r}"
        )


def _check_rate(_: object, attribute: attrs.Attribute[float], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(
            f"{attribute.name} must be a number of keys per second, not {value!r}"
        )
    if not _RATE_MIN <= value <= _RATE_MAX:  # also refuses NaN
        raise ConfigurationError(
            f"{attribute.name} must be {_RATE_MIN:g} to {_RATE_MAX:,}, not {value!r}"
        )


def _check_burst(_: object, attribute: attrs.Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(
            f"{attribute.name} must be a whole number of keys, not {value!r}"
        )
    if not 1 <= value <= _RATE_MAX:
        raise ConfigurationError(
            f"{attribute.name} must be 1 to {_RATE_MAX:,} keys, not {value:,}"
        )


@final
@attrs.frozen(kw_only=True)
class RateLimitRule:
    """
    How many keys per second some callers may ask of some states.

    Attributes:
        scope: Whether each caller has a bucket of its own, or each state.
        caller: A glob of callers' names; ``*`` by default.
        state: A glob of states; ``*/*`` by default.
        keys_per_second: How fast a bucket fills.
        burst: How many keys it holds; one second's worth by default.

    Raises:
        ConfigurationError: On construction; says what to change.
    """

    scope: RateLimitScope = attrs.field(converter=_to_scope)
    caller: str = attrs.field(default="*", validator=_check_caller)
    state: StateGlob = attrs.field(default=StateGlob("*/*"), converter=to_state_glob)
    keys_per_second: float = attrs.field(validator=_check_rate)
    burst: int = attrs.field(validator=_check_burst)

    _caller_pattern: re.Pattern[str] = attrs.field(init=False, eq=False, repr=False)

    @burst.default
    def _one_second(self) -> int:
        rate: object = self.keys_per_second
        if isinstance(rate, int | float) and 0 < rate <= _RATE_MAX:
            return math.ceil(rate)
        return 1  # the validator will refuse that rate

    @_caller_pattern.default
    def _compile_caller(self) -> re.Pattern[str]:
        return compile_glob(str(self.caller))

    @property
    def keys_per_second_exact(self) -> Fraction:
        """Return the rate as it was written: 0.1 is one tenth."""
        return Fraction(str(self.keys_per_second))

    def matches(self, caller: str, job_id: str, state_name: str) -> bool:
        """Return whether this caller and this state are meant."""
        return self._caller_pattern.match(caller) is not None and self.state.matches(
            job_id, state_name
        )


@final
@attrs.frozen(kw_only=True)
class RateDecision:
    """
    Whether a request is admitted.

    Attributes:
        is_allowed: Whether it is; the keys are taken then, and otherwise not.
        retry_after_ns: When the same request would be, from now; 0 if it is.
        limit: Which limit it was: the value of its `RateLimitScope`; empty if it is.
    """

    is_allowed: bool
    retry_after_ns: int = 0
    limit: str = ""


_ALLOWED: Final = RateDecision(is_allowed=True)

_BucketKey: TypeAlias = tuple[int, str]
"""The number of a rule, and the caller or state whose bucket it is."""

_Share: TypeAlias = tuple[_BucketKey, int, int, int, str]
"""
Where a request takes from: the bucket; how many units it gains per nanosecond, a key
costs and it holds; the name of its scope.
"""


@final
class RateLimiter:
    """
    Admits requests as the rules say.

    Two limiters given the same calls answer the same.  Not thread-safe: one loop owns
    it.  Time must not fall from one call to the next.
    """

    def __init__(
        self, rules: Iterable[RateLimitRule] = (), *, bucket_count_max: int = 100_000
    ) -> None:
        """
        Start with full buckets.

        Args:
            rules: In the order in which they are tried.
            bucket_count_max: How many buckets are remembered that are not full, and
                how many pairs of caller and state whose rules have been found.
        """
        assert bucket_count_max >= 1
        self._bucket_count_max = bucket_count_max
        self._numbers: dict[RateLimitRule, int] = {}
        self._number_last = 0
        self._full_at: dict[_BucketKey, int] = {}
        self._heap: list[tuple[int, _BucketKey, int]] = []
        self._shares: dict[tuple[str, str], tuple[_Share, ...]] = {}
        self.reconfigure(rules)

    @property
    def bucket_count(self) -> int:
        """Return how many buckets are remembered."""
        return len(self._full_at)

    def reconfigure(self, rules: Iterable[RateLimitRule]) -> None:
        """Replace the rules; what was taken under one that stays remains taken."""
        numbers: dict[RateLimitRule, int] = {}
        for rule in rules:
            if rule not in numbers:  # the same once more would never be the first
                number = self._numbers.get(rule)
                if number is None:
                    self._number_last += 1
                    number = self._number_last
                numbers[rule] = number
        self._numbers = numbers
        self._shares.clear()
        kept = set(numbers.values())
        self._heap = [entry for entry in self._heap if entry[1][0] in kept]
        heapq.heapify(self._heap)
        self._full_at = {
            key: full_at for key, full_at in self._full_at.items() if key[0] in kept
        }

    def limits(self, caller: str, state: str) -> bool:
        """Return whether a rule is about *caller* and *state*, ``JOB/STATE``."""
        shares = self._shares.get((caller, state))
        return bool(self._find_shares(caller, state) if shares is None else shares)

    def take(self, caller: str, state: str, count: int, *, now_ns: int) -> RateDecision:
        """
        Admit a request and take its keys, or say when to come again.

        Args:
            caller: The name of who asks.
            state: ``JOB/STATE``.
            count: How many keys; not negative.  0 passes where there is no debt.
            now_ns: Not before that of the last call.
        """
        shares = self._shares.get((caller, state))
        if shares is None:
            shares = self._find_shares(caller, state)
        if not shares:
            return _ALLOWED
        full_at_of = self._full_at
        retry_after_ns = 0
        limit = ""
        for key, units_per_ns, units_per_key, units_max, scope in shares:
            full_at = full_at_of.get(key)
            if full_at is None:
                continue
            room = units_max - count * units_per_key
            if room > 0:
                full_at -= room
            wait_ns = -(-full_at // units_per_ns) - now_ns
            if wait_ns > retry_after_ns:
                retry_after_ns = wait_ns
                limit = scope
        if limit:
            return RateDecision(
                is_allowed=False, retry_after_ns=retry_after_ns, limit=limit
            )
        self._take(shares, count, now_ns)
        return _ALLOWED

    def charge(self, caller: str, state: str, count: int, *, now_ns: int) -> None:
        """
        Take *count* more keys for a request that was admitted, be it into debt.

        For what is only known from the answer: how many rows a page of a scan has.
        """
        shares = self._shares.get((caller, state))
        if shares is None:
            shares = self._find_shares(caller, state)
        self._take(shares, count, now_ns)

    def _take(self, shares: tuple[_Share, ...], count: int, now_ns: int) -> None:
        if not count:
            return  # a bucket that is full need not be remembered
        full_at_of = self._full_at
        for key, units_per_ns, units_per_key, _, _ in shares:
            now_units = now_ns * units_per_ns
            full_at = full_at_of.get(key)
            if full_at is None:
                full_at = now_units + count * units_per_key
                self._remember(key, full_at, units_per_ns)
            elif full_at < now_units:
                full_at = now_units + count * units_per_key
            else:
                full_at += count * units_per_key
            full_at_of[key] = full_at

    def _find_shares(self, caller: str, state: str) -> tuple[_Share, ...]:
        """Return, and remember, where requests of *caller* for *state* take from."""
        job_id, _, state_name = state.partition("/")
        shares: list[_Share] = []
        for scope in RateLimitScope:
            for rule, number in self._numbers.items():
                if rule.scope is scope and rule.matches(caller, job_id, state_name):
                    name = caller if scope is RateLimitScope.CALLER else state
                    shares.append(_share((number, name), rule))
                    break
        if len(self._shares) >= self._bucket_count_max:
            self._shares.clear()  # they are found again: rarer than worth an order
        found = tuple(shares)
        self._shares[caller, state] = found
        return found

    def _remember(self, key: _BucketKey, full_at: int, units_per_ns: int) -> None:
        """Make room for one more bucket, and note when it will be full."""
        while len(self._full_at) >= self._bucket_count_max:
            early_ns, candidate, candidate_units = self._heap[0]
            candidate_ns = -(-self._full_at[candidate] // candidate_units)
            if candidate_ns > early_ns:
                heapq.heapreplace(
                    self._heap, (candidate_ns, candidate, candidate_units)
                )
            else:
                heapq.heappop(self._heap)
                del self._full_at[candidate]
        full_at_ns = -(-full_at // units_per_ns)
        heapq.heappush(self._heap, (full_at_ns, key, units_per_ns))


def _share(key: _BucketKey, rule: RateLimitRule) -> _Share:
    """Return how a request takes from the bucket *key* of *rule*."""
    rate = rule.keys_per_second_exact
    units_per_key = rate.denominator * NS_PER_SECOND
    return (
        key,
        rate.numerator,
        units_per_key,
        rule.burst * units_per_key,
        rule.scope.value,
    )
