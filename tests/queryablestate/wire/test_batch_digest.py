"""What tells the rows of one batch from those of another (W4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.wire.batch_digest import (
    DIGEST_SIZE_BYTES,
    digest_of,
    is_rewritten,
    sum_of_digests,
    sum_of_rows,
)


SCHEMA = "a schema"
ROWS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=3), st.none() | st.binary(max_size=3)),
    max_size=6,
)


def digest(*rows: tuple[bytes, bytes | None]) -> bytes:
    """Return the digest of rows that one task was given."""
    return digest_of(SCHEMA, sum_of_rows([k for k, _ in rows], [v for _, v in rows]))


@pytest.mark.proves("W4")
class TestDigest:
    @given(ROWS, ROWS)
    def test_it_is_the_same_however_rows_are_dealt_out(
        self,
        some: list[tuple[bytes, bytes | None]],
        others: list[tuple[bytes, bytes | None]],
    ) -> None:
        """W4: a batch may be run again with another number of tasks."""
        whole = digest(*some, *others)
        assert len(whole) == DIGEST_SIZE_BYTES
        assert digest(*others, *some) == whole
        assert sum_of_digests([digest(*some), digest(*others)]) == whole
        assert not is_rewritten(whole, sum_of_digests([whole, digest()]))

    @given(ROWS, ROWS)
    def test_other_rows_have_another_one(
        self,
        some: list[tuple[bytes, bytes | None]],
        others: list[tuple[bytes, bytes | None]],
    ) -> None:
        """W4: keys, values, deletes and how often a row is there all count."""
        are_same = sorted(map(repr, some)) == sorted(map(repr, others))
        assert is_rewritten(digest(*some), digest(*others)) is not are_same

    def test_a_value_of_another_key_is_another_row(self) -> None:
        """W4: sums of parts do not hide where the parts were."""
        swapped = digest((b"a", b"2"), (b"b", b"1"))
        assert is_rewritten(digest((b"a", b"1"), (b"b", b"2")), swapped)
        assert is_rewritten(digest((b"a", b"")), digest((b"a", None)))
        assert is_rewritten(digest(), digest((b"a", None)))

    def test_what_cannot_be_compared_is_taken_for_a_repetition(self) -> None:
        """Decisions of before have no digest; a column was added, and rows differ."""
        known = digest((b"a", b"1"))
        other = digest_of("wider", sum_of_rows([b"a"], [b"2"]))
        assert not is_rewritten(b"", known)
        assert not is_rewritten(known, b"")
        assert not is_rewritten(known, other)
