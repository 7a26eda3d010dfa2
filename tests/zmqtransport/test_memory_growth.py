"""When the connections of a server must be looked at, by the memory it takes (N3)."""

from __future__ import annotations

import pytest

from zmqtransport.memory_growth import CONNECTION_COST_BYTES, MemoryGrowth


MIB = 1024 * 1024
BASE = 50 * MIB


def is_unexplained(
    growth: MemoryGrowth, taken_bytes: int, connection_count: int
) -> bool:
    """Return whether connections must be looked at, where two mebibytes are much."""
    return growth.is_unexplained(
        taken_bytes, connection_count, growth_bytes_max=2 * MIB
    )


@pytest.mark.proves("N3")
class TestMemoryGrowth:
    def test_what_comes_in_is_noticed(self) -> None:
        """N3: at the same number of connections two mebibytes more are much."""
        growth = MemoryGrowth(BASE, 100)
        assert not is_unexplained(growth, BASE + 2 * MIB, 100)
        assert is_unexplained(growth, BASE + 2 * MIB + 1, 100)

    def test_new_connections_explain_what_they_take(self) -> None:
        """N3: thousands that come back at once are not looked at again and again."""
        growth = MemoryGrowth(BASE, 100)
        opened_bytes = 5_000 * CONNECTION_COST_BYTES
        for part in range(1, 51):
            resident_bytes = BASE + part * opened_bytes // 50
            assert not is_unexplained(growth, resident_bytes, 100 + part * 100)
        assert is_unexplained(growth, BASE + opened_bytes + 2 * MIB + 1, 5_100)

    def test_a_look_begins_anew(self) -> None:
        """N3: what was there then is known, connections among it."""
        growth = MemoryGrowth(BASE, 100)
        growth.looked(BASE + 20 * MIB, 300)
        assert not is_unexplained(growth, BASE + 22 * MIB, 300)
        assert is_unexplained(growth, BASE + 22 * MIB + 1, 300)

    def test_less_memory_is_the_new_measure(self) -> None:
        """N3: what was given back and is taken again has grown."""
        growth = MemoryGrowth(BASE, 100)
        assert not is_unexplained(growth, BASE - 10 * MIB, 100)
        assert is_unexplained(growth, BASE - 7 * MIB, 100)

    def test_coming_and_going_explains_nothing(self) -> None:
        """N3: the memory of a closed connection is used by the next."""
        growth = MemoryGrowth(BASE, 100)
        for _ in range(1_000):
            assert not is_unexplained(growth, BASE, 1)
            assert not is_unexplained(growth, BASE, 100)
        assert is_unexplained(growth, BASE + 2 * MIB + 1, 100)
