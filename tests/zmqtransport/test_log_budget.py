from __future__ import annotations

from zmqtransport.log_budget import LogBudget


class TestLogBudget:
    def test_so_many_lines_are_granted_per_interval(self) -> None:
        """All kinds share one budget: rubbish of ten kinds is rubbish too."""
        budget = LogBudget(lines_max=2, interval_ns=10)
        assert budget.admits("a", now_ns=5)
        assert budget.admits("b", now_ns=6)
        assert not budget.admits("a", now_ns=7)
        assert not budget.admits("b", now_ns=14)

    def test_an_interval_begins_with_its_first_line(self) -> None:
        """The very end of an interval is the beginning of the next."""
        budget = LogBudget(lines_max=1, interval_ns=10)
        assert budget.admits("a", now_ns=5)
        assert not budget.admits("a", now_ns=14)
        assert budget.admits("a", now_ns=15)
        assert not budget.admits("a", now_ns=24)

    def test_what_was_refused_is_told_once_and_later(self) -> None:
        """A reader of the log learns how much is missing, when it is all over."""
        budget = LogBudget(lines_max=1, interval_ns=10)
        assert budget.take_suppressed(now_ns=0) == {}
        assert budget.admits("a", now_ns=0)
        for _ in range(3):
            assert not budget.admits("b", now_ns=1)
        assert not budget.admits("a", now_ns=2)
        assert budget.take_suppressed(now_ns=9) == {}
        assert budget.take_suppressed(now_ns=10) == {"a": 1, "b": 3}
        assert budget.take_suppressed(now_ns=10) == {}
