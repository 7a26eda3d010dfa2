from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodestar.health import (
    CheckEnded,
    HealthConfig,
    HealthCore,
    HealthEffect,
    KillCheck,
    StartCheck,
    TellFailing,
    TellPassing,
    TimeWentOn,
)


CONFIG = HealthConfig(interval_ns=100, timeout_ns=30, failure_count_max=3)


class Stage:
    """A core, and a clock that is set by hand."""

    def __init__(self, config: HealthConfig = CONFIG) -> None:
        self.now_ns = 0
        self.core = HealthCore(config, now_ns=0)

    def jump(self) -> tuple[HealthEffect, ...]:
        """Move time on until the core wants to be stepped."""
        deadline_ns = self.core.next_deadline_ns()
        assert deadline_ns is not None
        self.now_ns = max(self.now_ns, deadline_ns)
        return self.core.step(TimeWentOn(), now_ns=self.now_ns)

    def end(self, return_code: int) -> tuple[HealthEffect, ...]:
        """End the running check now."""
        return self.core.step(CheckEnded(return_code=return_code), now_ns=self.now_ns)

    def check(self, return_code: int) -> tuple[HealthEffect, ...]:
        """Run a check to its end; return what is told then."""
        assert self.jump() == (StartCheck(),)
        return self.end(return_code)

    def hang(self) -> tuple[HealthEffect, ...]:
        """Run a check that does not end by itself; return what is told then."""
        assert self.jump() == (StartCheck(),)
        kill, *told = self.jump()
        assert kill == KillCheck()
        assert self.core.next_deadline_ns() is None
        assert self.end(-9) == ()
        return tuple(told)


class TestConfig:
    @pytest.mark.parametrize("name", ["interval_ns", "timeout_ns", "failure_count_max"])
    def test_nothing_is_zero(self, name: str) -> None:
        """A check without a pause, or that may not fail at all, is a mistake."""
        values = {"interval_ns": 1, "timeout_ns": 1, "failure_count_max": 1}
        HealthConfig(**values)
        with pytest.raises(ValueError, match=name):
            HealthConfig(**(values | {name: 0}))


class TestHealthCore:
    def test_the_first_check_runs_at_once_and_decides(self) -> None:
        """Who has not been checked does not contend."""
        stage = Stage()
        assert stage.core.next_deadline_ns() == 0
        assert not stage.core.is_passing
        assert stage.check(0) == (TellPassing(),)
        assert stage.core.is_passing

    def test_one_that_has_never_passed_is_told_of_when_it_passes(self) -> None:
        """It failed from the beginning: there is nothing to tell before that."""
        stage = Stage()
        for _ in range(5):
            assert stage.check(1) == ()
        assert not stage.core.is_passing
        assert stage.check(0) == (TellPassing(),)

    def test_so_many_failures_in_a_row_are_told_of_once(self) -> None:
        """One pass between them begins the count anew."""
        stage = Stage()
        stage.check(0)
        assert [stage.check(1), stage.check(7), stage.check(0)] == [(), (), ()]
        assert [stage.check(1), stage.check(-9), stage.check(1)] == [
            (),
            (),
            (TellFailing(),),
        ]
        assert not stage.core.is_passing
        assert stage.core.failure_count == 3
        assert stage.check(1) == ()
        assert stage.check(0) == (TellPassing(),)
        assert stage.core.failure_count == 0

    def test_one_that_hangs_is_killed_and_has_failed(self) -> None:
        """It counts when it is killed, not when it is gone, and only once."""
        stage = Stage()
        stage.check(0)
        assert [stage.hang(), stage.hang(), stage.hang()] == [(), (), (TellFailing(),)]
        assert stage.core.failure_count == 3

    def test_one_that_passes_at_the_last_moment_has_passed(self) -> None:
        """The timeout is the time it may take."""
        stage = Stage()
        stage.jump()
        stage.now_ns += CONFIG.timeout_ns - 1
        assert stage.core.step(TimeWentOn(), now_ns=stage.now_ns) == ()
        assert stage.end(0) == (TellPassing(),)

    def test_the_interval_counts_from_the_end(self) -> None:
        """A slow check is not followed by the next at once."""
        stage = Stage()
        stage.jump()
        stage.now_ns += 20
        stage.end(0)
        assert stage.core.next_deadline_ns() == 120

    @given(
        interval_ns=st.integers(1, 50),
        timeout_ns=st.integers(1, 50),
        failure_count_max=st.integers(1, 5),
        before=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=8),
        after=st.lists(st.integers(0, 60), min_size=5, max_size=5),
    )
    def test_a_failure_is_told_of_within_the_documented_bound(
        self,
        interval_ns: int,
        timeout_ns: int,
        failure_count_max: int,
        before: list[tuple[int, bool]],
        after: list[int],
    ) -> None:
        """From when every check fails: N times the interval and the timeout."""
        stage = Stage(
            HealthConfig(
                interval_ns=interval_ns,
                timeout_ns=timeout_ns,
                failure_count_max=failure_count_max,
            )
        )

        def run(duration_ns: int, *, is_passed: bool) -> tuple[HealthEffect, ...]:
            assert stage.jump() == (StartCheck(),)
            if duration_ns >= timeout_ns:
                kill, *told = stage.jump()
                assert kill == KillCheck()
                stage.end(-9)
                return tuple(told)
            stage.now_ns += duration_ns
            return stage.end(0 if is_passed else 1)

        for duration_ns, is_passed in before:
            run(duration_ns, is_passed=is_passed)
        was_passing = stage.core.is_passing
        ill_since_ns = stage.now_ns
        told = [
            effect
            for duration_ns in after[:failure_count_max]
            for effect in run(duration_ns, is_passed=False)
        ]
        assert told == ([TellFailing()] if was_passing else [])
        bound_ns = failure_count_max * (interval_ns + timeout_ns)
        assert stage.now_ns <= ill_since_ns + bound_ns
