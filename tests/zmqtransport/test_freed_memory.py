"""When what was freed is worth returning (N3)."""

from __future__ import annotations

import pytest

from zmqtransport.freed_memory import FreedMemory


MIB = 1024 * 1024
LIMIT = 100 * MIB


@pytest.mark.proves("N3")
class TestFreedMemory:
    def test_a_small_process_keeps_what_it_has_freed(self) -> None:
        """N3: below two fifths of the limit there is room enough."""
        freed = FreedMemory()
        assert not freed.is_worth_returning(40 * MIB, LIMIT)
        assert freed.is_worth_returning(40 * MIB + 1, LIMIT)

    def test_only_what_has_grown_is_looked_at_again(self) -> None:
        """N3: each look takes milliseconds, and a large process is looked at often."""
        freed = FreedMemory()
        freed.returned(60 * MIB)
        assert not freed.is_worth_returning(68 * MIB, LIMIT)
        assert freed.is_worth_returning(68 * MIB + 1, LIMIT)

    def test_less_memory_is_the_new_measure(self) -> None:
        """N3: what was given back and is taken again has grown."""
        freed = FreedMemory()
        freed.returned(60 * MIB)
        assert not freed.is_worth_returning(45 * MIB, LIMIT)
        assert freed.is_worth_returning(53 * MIB + 1, LIMIT)

    def test_without_a_limit_it_is_the_business_of_others(self) -> None:
        """N3: a process that does other work may need what it has freed."""
        assert not FreedMemory().is_worth_returning(2**40, None)
