"""Who speaks, and who makes room when too many do; no I/O."""

from __future__ import annotations

from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.proxy.access import ANONYMOUS_CALLER, Caller
from queryablestate.proxy.sessions import ProxySession, SessionTable


ALICE: Final = Caller(name="alice", credential="a")
BOB: Final = Caller(name="bob", credential="b")


def session(caller: Caller = ALICE, public_key: str | None = None) -> ProxySession:
    """Return a session of *caller*."""
    return ProxySession(caller=caller, public_key=public_key)


def secret(number: int) -> bytes:
    """Return the secret of one session."""
    return number.to_bytes(16, "big")


class TestSecrets:
    def test_a_session_is_found_by_its_secret_alone(self) -> None:
        """No other bytes will do."""
        table = SessionTable(10)
        table.open(secret(1), session())
        assert table.find(secret(1), public_key=None) == session()
        for other in (b"", secret(2), secret(1)[:-1], secret(1) + b"\0"):
            assert table.find(other, public_key=None) is None

    def test_a_stolen_secret_is_worth_nothing_under_another_key(self) -> None:
        """C1: it belongs to the key that the session was opened with."""
        table = SessionTable(10)
        table.open(secret(1), session(public_key="key of alice"))
        assert table.find(secret(1), public_key="key of mallory") is None
        assert table.find(secret(1), public_key=None) is None
        assert table.find(secret(1), public_key="key of alice") is not None

    def test_one_opened_without_a_key_is_not_good_with_one(self) -> None:
        """Nor the reverse: without CURVE there is no key at all."""
        table = SessionTable(10)
        table.open(secret(1), session())
        assert table.find(secret(1), public_key="a key") is None

    @pytest.mark.proves("D1")
    def test_each_has_a_number(self) -> None:
        """D1: by which clients are spread; one that is gone leaves none free."""
        table = SessionTable(2)
        for number in range(4):
            table.open(secret(number), session())
            found = table.find(secret(number), public_key=None)
            assert found is not None
            assert found.number == number


class TestGreetings:
    def test_one_that_is_repeated_opens_nothing(self) -> None:
        """Its second session would be used by none, and drive out another."""
        table = SessionTable(1)
        greeted = evolve(session(), greeting=(7, 1))
        assert table.open(secret(1), greeted) == secret(1)
        assert table.open(secret(2), greeted) == secret(1)
        assert table.find(secret(1), public_key=None) is not None
        assert table.find(secret(2), public_key=None) is None

    def test_another_one_opens_another_session(self) -> None:
        """Over another connection, with another number, or as another caller."""
        table = SessionTable(10)
        others = [
            evolve(session(), greeting=(7, 1)),
            evolve(session(), greeting=(8, 1)),
            evolve(session(), greeting=(7, 2)),
            evolve(session(BOB), greeting=(7, 1)),
            evolve(session(public_key="a key"), greeting=(8, 1)),
        ]
        for number, other in enumerate(others):
            assert table.open(secret(number), other) == secret(number)
        assert len(table) == len(others)

    def test_one_whose_session_is_over_opens_another(self) -> None:
        """And what was known of it goes with the session."""
        table = SessionTable(1)
        greeted = evolve(session(), greeting=(7, 1))
        table.open(secret(1), greeted)
        table.open(secret(2), evolve(session(), greeting=(8, 1)))
        assert table.open(secret(3), greeted) == secret(3)
        assert list(table._of_greeting) == [(7, 1)]


class TestLimits:
    def test_the_longest_silent_makes_room(self) -> None:
        """Use counts, not age."""
        table = SessionTable(2)
        table.open(secret(1), session(ANONYMOUS_CALLER))
        table.open(secret(2), session(ANONYMOUS_CALLER))
        assert table.find(secret(1), public_key=None) is not None
        table.open(secret(3), session(ANONYMOUS_CALLER))
        assert table.find(secret(2), public_key=None) is None
        assert table.find(secret(1), public_key=None) is not None
        assert len(table) == 2

    def test_who_opens_without_end_drives_out_itself(self) -> None:
        """Sessions of other callers stay, though they have been silent for longer."""
        table = SessionTable(10)
        table.open(secret(1), session(BOB))
        table.open(secret(2), session(BOB))
        for number in range(100, 1_000):
            table.open(secret(number), session(ALICE))
        assert table.find(secret(1), public_key=None) == session(BOB)
        assert table.find(secret(2), public_key=None) == session(BOB)
        assert table.find(secret(999), public_key=None) == session(ALICE)
        assert len(table) == 10

    def test_who_has_few_finds_room(self) -> None:
        """A caller that comes late is not the one that makes room for itself."""
        table = SessionTable(10)
        for number in range(100, 200):
            table.open(secret(number), session(ALICE))
        for number in range(5):
            table.open(secret(number), session(BOB))
        assert all(table.find(secret(n), public_key=None) for n in range(5))
        assert len(table) == 10

    def test_a_lower_limit_takes_effect_at_once(self) -> None:
        """C4: the longest silent go."""
        table = SessionTable(10)
        for number in range(10):
            table.open(secret(number), session())
        table.limit(3)
        found = [n for n in range(10) if table.find(secret(n), public_key=None)]
        assert found == [7, 8, 9]
        table.limit(20)
        for number in range(20, 40):
            table.open(secret(number), session())
        assert len(table) == 20

    @given(
        count_max=st.integers(1, 6),
        opened=st.lists(st.sampled_from("abcdefgh"), max_size=60),
        used=st.lists(st.integers(0, 59), max_size=60),
    )
    def test_the_limit_always_holds(
        self, count_max: int, opened: list[str], used: list[int]
    ) -> None:
        """Whichever opens, whatever is used: never more, and the newest is there."""
        table = SessionTable(count_max)
        for number, name in enumerate(opened):
            table.open(secret(number), session(Caller(name=name)))
            assert table.find(secret(number), public_key=None) is not None
            if number < len(used):
                table.find(secret(used[number]), public_key=None)
            assert len(table) <= count_max
            assert sum(map(len, table._of_caller.values())) == len(table)
            assert all(table._of_caller.values())
