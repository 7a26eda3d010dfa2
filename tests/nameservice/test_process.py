from __future__ import annotations

from nameservice import ForkedClientError
from nameservice.process import ForkGuard
from tests.forking import run_in_child


class TestForkGuard:
    def test_passes_in_its_own_process(self) -> None:
        """E10: the process that made it may go on."""
        guard = ForkGuard()
        guard.check()
        assert not guard.is_inherited

    def test_raises_in_a_forked_child(self) -> None:
        """E10: a child that inherited it is told so."""
        guard = ForkGuard()
        assert run_in_child(lambda: guard.is_inherited) == "True"
        assert run_in_child(guard.check) == ForkedClientError.__name__
        guard.check()

    def test_child_may_make_its_own(self) -> None:
        """E10: what a child opens itself works there."""
        assert run_in_child(lambda: ForkGuard().check()) == "None"
