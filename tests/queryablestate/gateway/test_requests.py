from __future__ import annotations

import pytest

from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.requests import (
    bearer_token,
    check_names,
    flag,
    parameters_of,
    path_part,
    preferred,
    seconds,
    whole_number,
)


pytestmark = pytest.mark.proves("F2")


class TestPaths:
    @pytest.mark.parametrize(
        ("raw", "text"),
        [
            ("", ""),
            ("a", "a"),
            ("a%2Fb", "a/b"),
            ("%C3%BC", "ü"),
            ("+", "+"),
            ("%", "%"),
        ],
    )
    def test_a_part(self, raw: str, text: str) -> None:
        """Decoded once; a plus is a plus there."""
        assert path_part(raw) == text

    def test_what_is_no_utf8(self) -> None:
        """It is refused, not guessed at."""
        with pytest.raises(GatewayError):
            path_part("%FF")

    def test_names(self) -> None:
        """What nothing can be called is not there."""
        check_names("a", "b ü")
        for job, state in (("", "a"), ("a", ""), ("a", "\n"), ("x" * 256, "a")):
            with pytest.raises(GatewayError) as caught:
                check_names(job, state)
            assert caught.value.problem.status == 404


class TestParameters:
    def test_known_ones(self) -> None:
        """By name; what is empty is there."""
        found = parameters_of(b"a=1&b=&c=x+y%26", {"a", "b", "c", "d"})
        assert found == {"a": "1", "b": "", "c": "x y&"}
        assert parameters_of(b"", {"a"}) == {}

    @pytest.mark.parametrize(
        "query", [b"x=1", b"a=1&a=1", b"a=%FF", b"\xff=1", b"a=1&" * 30, b"=1"]
    )
    def test_others(self, query: bytes) -> None:
        """A name that is misspelt must not be left out in silence."""
        with pytest.raises(GatewayError) as caught:
            parameters_of(query, {"a"})
        assert caught.value.problem.status == 400

    @pytest.mark.parametrize("text", ["", "x", "1.0", "-1", "+1", " 1", "٣", "9" * 30])
    def test_what_is_no_whole_number(self, text: str) -> None:
        """Digits, and nothing else; in its range."""
        with pytest.raises(GatewayError) as caught:
            whole_number({"n": text}, "n", None)
        assert caught.value.problem.members == {"parameter": "n"}

    def test_whole_numbers(self) -> None:
        """From the least one to the largest; below 0 where that is meant."""
        assert whole_number({}, "n", 7) == 7
        assert whole_number({"n": "0"}, "n", None) == 0
        assert whole_number({"n": str(2**63 - 1)}, "n", None) == 2**63 - 1
        assert whole_number({"n": "-3"}, "n", None, least=None) == -3
        for text, limits in (("0", (1, 9)), ("10", (1, 9))):
            with pytest.raises(GatewayError):
                whole_number({"n": text}, "n", 1, least=limits[0], most=limits[1])
        with pytest.raises(GatewayError):
            whole_number({"n": "x"}, "n", None, least=None)

    def test_seconds(self) -> None:
        """From 10 ms to what is allowed."""
        assert seconds({}, "s", 5.0, most=60.0) == 5.0
        assert seconds({"s": "0.5"}, "s", 5.0, most=60.0) == 0.5
        for text in ("0", "-1", "61", "nan", "inf", "x", "", "0.001"):
            with pytest.raises(GatewayError):
                seconds({"s": text}, "s", 5.0, most=60.0)

    def test_flags(self) -> None:
        """True or false."""
        assert flag({"f": "true"}, "f")
        assert flag({"f": "1"}, "f")
        assert not flag({"f": "0"}, "f")
        assert not flag({}, "f")
        with pytest.raises(GatewayError):
            flag({"f": "yes"}, "f")


@pytest.mark.proves("F4")
class TestTokens:
    @pytest.mark.parametrize(
        ("value", "token"),
        [
            (b"Bearer abc", "abc"),
            (b"bearer  abc ", "abc"),
            (b"BEARER a.b-c_d~+/=", "a.b-c_d~+/="),
        ],
    )
    def test_a_token(self, value: bytes, token: str) -> None:
        """The scheme is in either case (RFC 9110)."""
        assert bearer_token([(b"host", b"x"), (b"authorization", value)]) == token

    def test_none(self) -> None:
        """Who shows nothing is anonymous."""
        assert bearer_token([(b"host", b"x")]) is None

    @pytest.mark.parametrize(
        "values",
        [
            [b""],
            [b"Bearer"],
            [b"Bearer "],
            [b"Basic abc"],
            [b"Bearer \xff"],
            [b"Bearer a\x00b"],
            [b"Bearer " + b"x" * 1_025],
            [b"Bearer a", b"Bearer a"],
        ],
    )
    def test_something_else(self, values: list[bytes]) -> None:
        """It is refused, and not repeated."""
        with pytest.raises(GatewayError) as caught:
            bearer_token([(b"authorization", value) for value in values])
        assert caught.value.problem.status == 401
        assert "abc" not in caught.value.problem.detail


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "a/x"),
        ("", "a/x"),
        ("*/*", "a/x"),
        ("b/y", "b/y"),
        ("b/*", "b/y"),
        ("B/Y", "b/y"),
        ("a/x;q=0.5, b/y", "b/y"),
        ("a/x;q=0.5, b/y;q=0.1", "a/x"),
        ("*/*;q=0.1, b/y", "b/y"),
        ("a/x;q=0, */*", "b/y"),
        ("c/z", None),
        ("a/x;q=0", None),
        ("a/x;q=x", None),
        ("a/x;q=7", None),
        (";;,,;q=", None),
        ("a/x;level=1", "a/x"),
    ],
)
def test_which_form_is_preferred(accept: str | None, expected: str | None) -> None:
    """What weighs most; of equals the first one that is offered."""
    assert preferred(accept, ("a/x", "b/y")) == expected
