from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from queryablestate.proxy.rate_limit import (
    RateDecision,
    RateLimiter,
    RateLimitRule,
    RateLimitScope,
)
from queryablestate.proxy.state_glob import StateGlob


SECOND = 1_000_000_000

ALLOWED = RateDecision(is_allowed=True)


def rule(scope: str = "caller", **settings: Any) -> RateLimitRule:
    """Return a rule of ten keys per second, unless told otherwise."""
    settings.setdefault("keys_per_second", 10)
    return RateLimitRule(scope=RateLimitScope(scope), **settings)


def refused(retry_after_ns: int, limit: str = "caller") -> RateDecision:
    """Return that refusal."""
    return RateDecision(is_allowed=False, retry_after_ns=retry_after_ns, limit=limit)


class NaiveLimiter:
    """The rules to the letter, in exact fractions: a level and when it was so."""

    def __init__(self, rules: Iterable[RateLimitRule]) -> None:
        self.rules = list(rules)
        self.levels: dict[tuple[RateLimitRule, str], tuple[Fraction, int]] = {}

    def reconfigure(self, rules: Iterable[RateLimitRule]) -> None:
        """Go on with *rules*, and with the levels of those that stay."""
        self.rules = list(rules)
        self.levels = {k: v for k, v in self.levels.items() if k[0] in self.rules}

    def buckets(self, caller: str, state: str) -> list[tuple[RateLimitRule, str]]:
        """Return the buckets that a request takes from."""
        found = []
        for scope, name in (("caller", caller), ("state", state)):
            for one in self.rules:
                if one.scope.value == scope and one.matches(caller, *state.split("/")):
                    found.append((one, name))
                    break
        return found

    def level(self, bucket: tuple[RateLimitRule, str], now_ns: int) -> Fraction:
        """Return how many keys the bucket holds."""
        burst = Fraction(bucket[0].burst)
        level, since_ns = self.levels.get(bucket, (burst, now_ns))
        rate = Fraction(str(bucket[0].keys_per_second))
        return min(burst, level + rate * (now_ns - since_ns) / SECOND)

    def wait_ns(
        self, bucket: tuple[RateLimitRule, str], count: int, now_ns: int
    ) -> int:
        """Return how long until the bucket holds *count*, or is full."""
        lacking = min(count, bucket[0].burst) - self.level(bucket, now_ns)
        rate = Fraction(str(bucket[0].keys_per_second))
        return max(0, math.ceil(lacking * SECOND / rate))

    def take(
        self, caller: str, state: str, count: int, now_ns: int
    ) -> tuple[bool, int]:
        """Return whether the request passes, and otherwise how long to wait."""
        buckets = self.buckets(caller, state)
        wait_ns = max((self.wait_ns(b, count, now_ns) for b in buckets), default=0)
        if wait_ns == 0:
            self.charge(caller, state, count, now_ns)
        return wait_ns == 0, wait_ns

    def charge(self, caller: str, state: str, count: int, now_ns: int) -> None:
        """Take the keys, whatever is there."""
        for bucket in self.buckets(caller, state):
            self.levels[bucket] = (self.level(bucket, now_ns) - count, now_ns)

    def lacking_count(self, now_ns: int) -> int:
        """Return how many buckets are not full."""
        return sum(self.level(b, now_ns) < b[0].burst for b in self.levels)


rules = st.builds(
    RateLimitRule,
    scope=st.sampled_from(RateLimitScope),
    caller=st.sampled_from(["*", "a", "b"]),
    state=st.sampled_from(["*/*", "j/*", "*/x", "k/y"]),
    keys_per_second=st.one_of(
        st.integers(1, 50),
        st.sampled_from([0.001, 0.1, 1 / 3, 2.5, 1e9, 1e5 + 0.1]),
    ),
    burst=st.integers(1, 20),
)
rule_lists = st.lists(rules, max_size=4)
takes = st.tuples(
    st.just("take"),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["j/x", "j/y", "k/x", "k/y"]),
    st.integers(0, 30),
)
charges = takes.map(lambda step: ("charge", *step[1:]))
waits = st.tuples(
    st.just("wait"),
    st.one_of(st.integers(0, 3), st.integers(0, 3 * SECOND), st.integers(0, 10**13)),
)
steps = st.lists(st.one_of(takes, takes, takes, charges, waits), max_size=30)


class TestAgainstExactArithmetic:
    @pytest.mark.proves("C2")
    @given(rule_lists, steps)
    def test_it_decides_as_fractions_do(
        self, rule_list: list[RateLimitRule], step_list: list[tuple[Any, ...]]
    ) -> None:
        """C2: every decision and every time to wait is exact, in every history."""
        limiter, model, now_ns = RateLimiter(rule_list), NaiveLimiter(rule_list), 0
        for step in step_list:
            match step:
                case ("wait", duration_ns):
                    now_ns += duration_ns
                case ("charge", caller, state, count):
                    limiter.charge(caller, state, count, now_ns=now_ns)
                    model.charge(caller, state, count, now_ns)
                case (_, caller, state, count):
                    decision = limiter.take(caller, state, count, now_ns=now_ns)
                    expected = model.take(caller, state, count, now_ns)
                    assert (decision.is_allowed, decision.retry_after_ns) == expected
                    assert decision.is_allowed is (decision.limit == "")

    @pytest.mark.proves("C2")
    @given(rule_lists, steps, st.sampled_from(["j/x", "k/y"]), st.integers(1, 40))
    def test_the_time_to_wait_is_neither_too_long_nor_too_short(
        self,
        rule_list: list[RateLimitRule],
        step_list: list[tuple[Any, ...]],
        state: str,
        count: int,
    ) -> None:
        """C2: the same request passes at that very nanosecond, and not one earlier."""
        limiter, now_ns = RateLimiter(rule_list), 0
        for step in step_list:
            if step[0] == "wait":
                now_ns += step[1]
            else:
                limiter.charge(*step[1:], now_ns=now_ns)
        decision = limiter.take("a", state, count, now_ns=now_ns)
        if decision.is_allowed:
            return
        due_ns = now_ns + decision.retry_after_ns
        early = copy.deepcopy(limiter).take("a", state, count, now_ns=due_ns - 1)
        assert early == refused(1, early.limit)
        assert limiter.take("a", state, count, now_ns=due_ns) == ALLOWED

    @pytest.mark.proves("C4")
    @given(
        st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=5),
        st.lists(rules, min_size=5, max_size=5),
        st.lists(steps, min_size=5, max_size=5),
    )
    def test_rules_that_stay_keep_what_was_taken(
        self,
        choices: list[list[int]],
        pool: list[RateLimitRule],
        step_lists: list[list[tuple[Any, ...]]],
    ) -> None:
        """C4: new rules start full, old ones go on, wherever they stand in the list."""
        limiter, model, now_ns = RateLimiter(), NaiveLimiter(()), 0
        for choice, step_list in zip(choices, step_lists, strict=False):
            limiter.reconfigure(pool[index] for index in choice)
            model.reconfigure(pool[index] for index in choice)
            for step in step_list:
                if step[0] == "wait":
                    now_ns += step[1]
                else:
                    caller, state, count = step[1:]
                    decision = limiter.take(caller, state, count, now_ns=now_ns)
                    expected = model.take(caller, state, count, now_ns)
                    assert (decision.is_allowed, decision.retry_after_ns) == expected

    @given(rule_lists, steps, st.integers(2, 4))
    def test_forgetting_full_buckets_changes_nothing(
        self,
        rule_list: list[RateLimitRule],
        step_list: list[tuple[Any, ...]],
        bucket_count_max: int,
    ) -> None:
        """While no more buckets lack something than fit, the bound is not felt."""
        limiter = RateLimiter(rule_list, bucket_count_max=bucket_count_max)
        model, now_ns = NaiveLimiter(rule_list), 0
        for step in step_list:
            if step[0] == "wait":
                now_ns += step[1]
                continue
            caller, state, count = step[1:]
            expected = model.take(caller, state, count, now_ns)
            decision = limiter.take(caller, state, count, now_ns=now_ns)
            assert (decision.is_allowed, decision.retry_after_ns) == expected
            assert limiter.bucket_count <= bucket_count_max
            if model.lacking_count(now_ns) > bucket_count_max:
                return


class TestBuckets:
    @pytest.mark.proves("C2")
    def test_without_a_rule_there_is_no_limit(self) -> None:
        """C2: who is not limited is never told to wait, and nothing is remembered."""
        limiter = RateLimiter([rule(caller="other"), rule("state", state="other/*")])
        for _ in range(100):
            assert limiter.take("a", "j/x", 10**9, now_ns=0) == ALLOWED
        limiter.charge("a", "j/x", 10**9, now_ns=0)
        assert limiter.bucket_count == 0

    @pytest.mark.proves("C2")
    def test_a_burst_passes_and_then_the_rate_holds(self) -> None:
        """C2: ten at once, then one every tenth of a second."""
        limiter = RateLimiter([rule(burst=10)])
        assert limiter.take("a", "j/x", 10, now_ns=0) == ALLOWED
        assert limiter.take("a", "j/x", 1, now_ns=0) == refused(SECOND // 10)
        assert limiter.take("a", "j/x", 1, now_ns=SECOND // 10 - 1) == refused(1)
        assert limiter.take("a", "j/x", 1, now_ns=SECOND // 10) == ALLOWED
        assert limiter.take("a", "j/x", 10, now_ns=SECOND) == refused(SECOND // 10)

    @pytest.mark.proves("C2")
    def test_a_refusal_takes_nothing(self) -> None:
        """C2: asking too often does not make the wait longer."""
        limiter = RateLimiter([rule(burst=10), rule("state", keys_per_second=1)])
        assert limiter.take("a", "j/x", 1, now_ns=0) == ALLOWED
        for _ in range(50):
            assert limiter.take("a", "j/x", 1, now_ns=0) == refused(SECOND, "state")
        for _ in range(9):  # the caller's own nine are still there
            assert limiter.take("a", f"j/{_}", 1, now_ns=0) == ALLOWED
        assert limiter.take("a", "j/10", 1, now_ns=0) == refused(SECOND // 10)

    @pytest.mark.proves("C2")
    def test_a_request_above_the_burst_passes_alone(self) -> None:
        """C2: it waits for a full bucket, and leaves a debt, but not for ever."""
        limiter = RateLimiter([rule(burst=10)])
        assert limiter.take("a", "j/x", 1, now_ns=0) == ALLOWED
        assert limiter.take("a", "j/x", 50, now_ns=0) == refused(SECOND // 10)
        assert limiter.take("a", "j/x", 50, now_ns=SECOND // 10) == ALLOWED
        # forty keys of debt, and one to ask for
        assert limiter.take("a", "j/x", 1, now_ns=SECOND // 10) == refused(
            41 * SECOND // 10
        )

    @pytest.mark.proves("C2")
    def test_callers_do_not_disturb_each_other(self) -> None:
        """C2: in the scope of callers each has a bucket, for all states of the rule."""
        limiter = RateLimiter([rule(burst=1)])
        assert limiter.take("a", "j/x", 1, now_ns=0) == ALLOWED
        assert limiter.take("a", "j/y", 1, now_ns=0).limit == "caller"
        assert limiter.take("b", "j/x", 1, now_ns=0) == ALLOWED

    @pytest.mark.proves("C2")
    def test_callers_share_the_bucket_of_a_state(self) -> None:
        """C2: in the scope of states each has a bucket, for all callers of the rule."""
        limiter = RateLimiter([rule("state", burst=1)])
        assert limiter.take("a", "j/x", 1, now_ns=0) == ALLOWED
        assert limiter.take("b", "j/x", 1, now_ns=0).limit == "state"
        assert limiter.take("a", "j/y", 1, now_ns=0) == ALLOWED

    @pytest.mark.proves("C2")
    def test_the_longer_wait_is_told(self) -> None:
        """C2: a request has to pass both of its limits."""
        limiter = RateLimiter([rule(burst=1), rule("state", keys_per_second=1)])
        assert limiter.take("a", "j/x", 1, now_ns=0) == ALLOWED
        assert limiter.take("a", "j/x", 1, now_ns=0) == refused(SECOND, "state")
        assert limiter.take("a", "j/x", 1, now_ns=SECOND) == ALLOWED

    @pytest.mark.proves("C2")
    def test_the_first_rule_that_matches_counts(self) -> None:
        """C2: an exception stands before what it is an exception from."""
        limiter = RateLimiter([rule(caller="a", burst=100), rule(burst=1)])
        assert limiter.take("a", "j/x", 100, now_ns=0) == ALLOWED
        assert limiter.take("b", "j/x", 1, now_ns=0) == ALLOWED
        assert not limiter.take("b", "j/x", 1, now_ns=0).is_allowed

    @pytest.mark.proves("C2")
    def test_what_an_answer_had_can_be_charged_later(self) -> None:
        """C2: the rows of a scan count too; the next request pays for them."""
        limiter = RateLimiter([rule(burst=10)])
        assert limiter.take("a", "j/x", 1, now_ns=0) == ALLOWED
        limiter.charge("a", "j/x", 29, now_ns=0)
        assert limiter.take("a", "j/x", 1, now_ns=0) == refused(21 * SECOND // 10)
        assert limiter.take("a", "j/x", 0, now_ns=0) == refused(20 * SECOND // 10)
        assert limiter.take("a", "j/x", 0, now_ns=2 * SECOND) == ALLOWED

    @pytest.mark.proves("C2")
    def test_charging_what_was_never_asked_makes_a_debt(self) -> None:
        """C2: a charge needs no request before it."""
        limiter = RateLimiter([rule(burst=10)])
        limiter.charge("a", "j/x", 11, now_ns=0)
        assert limiter.take("a", "j/x", 1, now_ns=0) == refused(2 * SECOND // 10)

    def test_asking_for_nothing_is_remembered_by_nobody(self) -> None:
        """A bucket that stays full takes no room."""
        limiter = RateLimiter([rule()])
        assert limiter.take("a", "j/x", 0, now_ns=0) == ALLOWED
        assert limiter.bucket_count == 0


class TestBounds:
    def test_a_full_bucket_goes_first(self) -> None:
        """One that has its tokens back loses nothing by being forgotten."""
        limiter = RateLimiter([rule("state", burst=10)], bucket_count_max=2)
        limiter.take("a", "j/full", 1, now_ns=0)
        limiter.take("a", "j/empty", 10, now_ns=0)
        limiter.take("a", "j/next", 1, now_ns=SECOND // 10)
        assert limiter.bucket_count == 2
        assert not limiter.take("a", "j/empty", 10, now_ns=SECOND // 10).is_allowed
        assert not limiter.take("a", "j/next", 10, now_ns=SECOND // 10).is_allowed

    def test_then_the_one_that_is_full_soonest(self) -> None:
        """If something must be given away, it is the least, not the earliest."""
        limiter = RateLimiter([rule("state", burst=10)], bucket_count_max=2)
        limiter.take("a", "j/most", 1, now_ns=0)
        limiter.take("a", "j/most", 9, now_ns=0)  # its place in the order is outdated
        limiter.take("a", "j/least", 2, now_ns=0)
        limiter.take("a", "j/next", 3, now_ns=0)
        assert limiter.bucket_count == 2
        assert limiter.take("a", "j/most", 10, now_ns=0) == refused(SECOND, "state")
        assert (
            limiter.take("a", "j/next", 10, now_ns=0).retry_after_ns == 3 * SECOND // 10
        )
        assert limiter.take("a", "j/least", 10, now_ns=0) == ALLOWED

    def test_a_flood_of_names_costs_no_memory(self) -> None:
        """Neither buckets nor what is known of names grow beyond their bound."""
        limiter = RateLimiter([rule("state")], bucket_count_max=10)
        for index in range(1_000):
            limiter.take("a", f"j/{index}", 1, now_ns=index)
            assert limiter.bucket_count <= 10
        assert len(limiter._shares) <= 10
        assert len(limiter._heap) == limiter.bucket_count

    @pytest.mark.proves("C4")
    def test_rules_that_went_take_their_buckets_along(self) -> None:
        """C4: nothing of an old rule stays, nor counts against the bound."""
        limiter = RateLimiter([rule(), rule("state")])
        limiter.take("a", "j/x", 1, now_ns=0)
        assert limiter.bucket_count == 2
        limiter.reconfigure([rule("state")])
        assert limiter.bucket_count == len(limiter._heap) == 1
        limiter.reconfigure([])
        assert limiter.bucket_count == len(limiter._heap) == 0
        assert limiter.take("a", "j/x", 100, now_ns=0) == ALLOWED


class TestRules:
    @pytest.mark.proves("C2")
    def test_the_defaults_are_everybody_and_one_second(self) -> None:
        """C2: a rule needs a scope and a rate."""
        assert rule() == RateLimitRule(
            scope=RateLimitScope.CALLER,
            caller="*",
            state=StateGlob("*/*"),
            keys_per_second=10,
            burst=10,
        )
        assert rule(keys_per_second=2.1).burst == 3
        assert rule(keys_per_second=0.001).burst == 1

    @pytest.mark.proves("C4")
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"scope": "job"}, 'scope must be "caller" or "state", not \'job\''),
            ({"scope": ["caller"]}, "scope must be"),
            ({"caller": ""}, "caller must be a glob of callers' names"),
            ({"caller": 7}, "caller must be a glob of callers' names"),
            ({"caller": "a\n"}, "caller must be a glob of callers' names"),
            ({"caller": "a" * 601}, "caller must be a glob of callers' names"),
            ({"state": "flights"}, "must be JOB/STATE"),
            (
                {"keys_per_second": "10"},
                "must be a number of keys per second, not '10'",
            ),
            ({"keys_per_second": True}, "must be a number of keys per second"),
            ({"keys_per_second": 0}, "must be 0.001 to 1,000,000,000, not 0"),
            ({"keys_per_second": -1.5}, "must be 0.001 to 1,000,000,000, not -1.5"),
            ({"keys_per_second": math.nan}, "must be 0.001 to"),
            ({"keys_per_second": math.inf}, "must be 0.001 to"),
            ({"keys_per_second": 2e9}, "must be 0.001 to"),
            ({"burst": 0}, "burst must be 1 to 1,000,000,000 keys, not 0"),
            ({"burst": 10**9 + 1}, "burst must be 1 to 1,000,000,000 keys"),
            ({"burst": 1.5}, "burst must be a whole number of keys, not 1.5"),
            ({"burst": True}, "burst must be a whole number of keys, not True"),
        ],
    )
    def test_a_mistake_is_named(self, settings: dict[str, Any], match: str) -> None:
        """C4: an error names the setting and says what it should be."""
        with pytest.raises(ConfigurationError, match=match):
            RateLimitRule(**{"scope": "caller", "keys_per_second": 10, **settings})

    def test_a_rule_is_a_value(self) -> None:
        """A rule survives pickling, and equal rules are one."""
        one = rule(caller="a*", keys_per_second=0.1)
        again = pickle.loads(pickle.dumps(one))
        assert again == one
        assert hash(again) == hash(one)
        assert again.matches("abc", "j", "x")
        assert one.keys_per_second_exact == Fraction(1, 10)
