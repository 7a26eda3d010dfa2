"""L4: each field's range, and what is made of what is given."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from nameservice.fields import (
    ADDRESS_LENGTH_MAX,
    CLIENT_NAME_LENGTH_MAX,
    COMPONENT_ID_LENGTH_MAX,
    IDENTIFIER_LENGTH_MAX,
    INTEGER_MAX,
    STORE_PATH_LENGTH_MAX,
    as_client_name,
    check_address,
    check_epoch,
    check_identifier,
    check_leader_session_id,
    check_name,
    check_store_path,
    check_store_prefix,
    check_text,
    check_value,
    check_version,
    value_size_bytes,
)


if TYPE_CHECKING:
    from collections.abc import Callable


class Text(str):
    """Text that says another thing than it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"

    def __len__(self) -> int:
        return 1


class Data(bytes):
    """Bytes that say another size than they have."""

    def __len__(self) -> int:
        return 1


class Identity(UUID):
    """A UUID of a subclass."""


class Color(enum.IntEnum):
    """A number by name."""

    RED = 1


def _id(value: object) -> str:
    return check_identifier(value, what="a session id")


def _name(value: object) -> str:
    return check_name(value, what="a job id")


TEXTS: Final[list[tuple[Callable[[object], str], int]]] = [
    (_name, COMPONENT_ID_LENGTH_MAX),
    (_id, IDENTIFIER_LENGTH_MAX),
    (check_address, ADDRESS_LENGTH_MAX),
    (check_store_path, STORE_PATH_LENGTH_MAX),
]


class TestTexts:
    @pytest.mark.parametrize(("check", "length_max"), TEXTS)
    def test_length_is_1_to_the_most(
        self, check: Callable[[object], str], length_max: int
    ) -> None:
        """L4: the limits themselves are taken; one below and one above are not."""
        for length in (1, length_max):
            assert check("航" * length) == "航" * length
        for length in (0, length_max + 1):
            with pytest.raises(ConfigurationError, match=f"{length_max:,} "):
                check("航" * length)

    @pytest.mark.parametrize(("check", "length_max"), TEXTS)
    @pytest.mark.parametrize("bad", [None, 7, b"a", ["a"], "a\n", "\0", "\ud800"])
    def test_anything_but_printable_text_is_refused(
        self, check: Callable[[object], str], length_max: int, bad: object
    ) -> None:
        """L4: text that has no UTF-8, or does not show, is never sent."""
        with pytest.raises(ConfigurationError):
            check(bad)

    @pytest.mark.parametrize(("check", "length_max"), TEXTS)
    @pytest.mark.parametrize("kind", [np.str_, Text])
    def test_subclasses_become_what_they_hold(
        self,
        check: Callable[[object], str],
        length_max: int,
        kind: Callable[[str], str],
    ) -> None:
        """L4: what a subclass says of itself does not count."""
        taken = check(kind("a b"))
        assert (type(taken), taken) == (str, "a b")
        with pytest.raises(ConfigurationError):
            check(kind("x" * (length_max + 1)))

    def test_name_has_no_slash(self) -> None:
        """L4: a component is ``cluster/component`` on the wire."""
        with pytest.raises(ConfigurationError, match="without '/'"):
            _name("a/b")
        assert check_store_path("a/b") == "a/b"

    def test_prefix_may_be_empty_text_and_nothing_else(self) -> None:
        """L1: an empty prefix asks for all; None and 0 are mistakes."""
        assert check_store_prefix("") == ""
        assert check_store_prefix(np.str_("")) == ""
        assert check_store_prefix("a/") == "a/"
        bads: list[object] = [None, 0, b"", [], "x" * 256, "\n"]
        for bad in bads:
            with pytest.raises(ConfigurationError):
                check_store_prefix(bad)

    def test_text_of_any_content_is_exact(self) -> None:
        """L4: settings are checked by their own rules, and are exact all the same."""
        assert type(check_text(Text("a\n"), what="url")) is str
        with pytest.raises(ConfigurationError, match="url must be text, not int"):
            check_text(7, what="url")

    @given(st.text(max_size=400))
    def test_any_program_may_have_any_name(self, text: str) -> None:
        """L4: what names a client to operators is always fit to be sent."""
        name = as_client_name(text)
        assert len(name) <= CLIENT_NAME_LENGTH_MAX
        assert name.isprintable()
        assert name.encode()[:0] == b""


class TestNumbers:
    @pytest.mark.parametrize("check", [check_version, check_epoch])
    @pytest.mark.parametrize("number", [0, 1, 2**31, 2**32, INTEGER_MAX])
    def test_range_is_0_to_the_largest_signed_number(
        self, check: Callable[[object], int], number: int
    ) -> None:
        """L1, E2: both ends included."""
        assert check(number) == number

    @pytest.mark.parametrize("check", [check_version, check_epoch])
    @pytest.mark.parametrize(
        "bad", [-1, INTEGER_MAX + 1, 2**64, True, 1.0, "1", b"1", [1]]
    )
    def test_anything_else_is_refused(
        self, check: Callable[[object], int], bad: object
    ) -> None:
        """L4: the refusal names the range, however large the number is."""
        with pytest.raises(ConfigurationError, match=f"0 to {INTEGER_MAX}") as caught:
            check(bad)
        assert len(str(caught.value)) < 300

    def test_number_that_python_does_not_write_is_refused(self) -> None:
        """L4: more digits than Python turns into text."""
        with pytest.raises(ConfigurationError, match="a much larger int"):
            check_epoch(10**5000)

    @pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64])
    def test_integers_of_any_kind_are_numbers(self, kind: Callable[[int], Any]) -> None:
        """L4: what can be an index is a whole number."""
        for check in (check_version, check_epoch):
            assert type(check(kind(7))) is int
            assert check(kind(7)) == 7
        assert type(check_epoch(Color.RED)) is int

    def test_version_may_be_none_and_epoch_may_not(self) -> None:
        """L1: no version means any; there is always an epoch."""
        assert check_version(None) is None
        with pytest.raises(ConfigurationError):
            check_epoch(None)


class TestLeaderSessionId:
    def test_it_is_an_exact_uuid(self) -> None:
        """E2: a UUID of a subclass is the UUID that it holds."""
        drawn = uuid4()
        assert check_leader_session_id(drawn) is drawn
        taken = check_leader_session_id(Identity(int=drawn.int))
        assert (type(taken), taken) == (UUID, drawn)

    @pytest.mark.parametrize("bad", [None, str(UUID(int=7)), 7, UUID(int=7).bytes])
    def test_nothing_else_is_one(self, bad: object) -> None:
        """L4: neither its text nor its number."""
        with pytest.raises(ConfigurationError, match="leader_session_id"):
            check_leader_session_id(bad)


class TestValue:
    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"plain",
            Data(b"subclass"),
            np.bytes_(b"zero\0"),
            bytearray(b"buffer"),
            memoryview(b"every other byte")[::2],
            memoryview(bytearray(16)).cast("q"),
        ],
    )
    def test_buffers_are_bytes(self, value: Any) -> None:
        """L1: the size is known before anything is copied."""
        taken = check_value(value)
        assert type(taken) is bytes
        assert len(taken) == value_size_bytes(value)
        assert taken == bytes(memoryview(value).tobytes())

    def test_copy_is_not_changed_afterwards(self) -> None:
        """L1: what is being sent is what it was when it was given."""
        buffer = bytearray(b"one")
        taken = check_value(buffer)
        buffer[:] = b"two"
        assert taken == b"one"

    @pytest.mark.parametrize("bad", [None, "text", 7, [1], np.zeros(3)])
    def test_anything_else_is_refused(self, bad: object) -> None:
        """L4: an array is not a value: its bytes are."""
        with pytest.raises(ConfigurationError, match="a value is bytes"):
            check_value(bad)

    def test_released_buffer_is_refused(self) -> None:
        """L4: a view of nothing is no value."""
        view = memoryview(b"x")
        view.release()
        with pytest.raises(ConfigurationError, match="has none"):
            check_value(view)
