from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.gateway.events import event_bytes
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.tags import (
    EventId,
    LeaderEventId,
    digest,
    entity_tag,
    matches,
    page_token,
    parse_event_id,
    parse_leader_event_id,
    parse_page_token,
)


class TestEntityTags:
    """F2: ETag and If-None-Match."""

    pytestmark = pytest.mark.proves("F2")

    def test_what_makes_one(self) -> None:
        """The generation and each part; where a part ends counts."""
        tags = {
            entity_tag(1, b"a"),
            entity_tag(2, b"a"),
            entity_tag(None, b"a"),
            entity_tag(1, b"b"),
            entity_tag(1, b"a", b""),
            entity_tag(1, b"", b"a"),
        }
        assert len(tags) == 6
        assert entity_tag(1, b"a") == entity_tag(1, b"a")
        assert entity_tag(1, b"a").startswith('W/"')

    @pytest.mark.parametrize(
        ("header", "is_match"),
        [
            (None, False),
            ("", False),
            ("*", True),
            (' W/"x" ', True),
            ('"x"', True),
            ('"a", W/"x"', True),
            ('"X"', False),
            ("x", False),
            ('"a,x"', False),
            ('"' + "y" * 5_000 + '", "x"', False),
        ],
    )
    def test_what_matches(self, header: str | None, is_match: bool) -> None:
        """Weakly: whether a tag is a weak one does not count."""
        assert matches(header, 'W/"x"') is is_match


@pytest.mark.proves("F2")
class TestPageTokens:
    """F2: where the next page begins."""

    @given(st.binary(max_size=600), st.lists(st.none() | st.text(), max_size=6))
    def test_there_and_back(self, after: bytes, asked: list[str | None]) -> None:
        """For the same question, as text that a URL holds as it is."""
        token = page_token(after, asked)
        assert token.replace("-", "").replace("_", "").isalnum()
        assert parse_page_token(token, asked) == after
        with pytest.raises(GatewayError):
            parse_page_token(token, [*asked, "more"])

    @given(st.text())
    def test_what_is_none(self, text: str) -> None:
        """Whatever it is, it is refused."""
        with pytest.raises(GatewayError):
            parse_page_token(text, ["flights", "aircraft"])


@pytest.mark.proves("F3")
class TestEventIds:
    """F3: what was seen last."""

    @given(
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.just("-") | st.binary().map(digest),
    )
    def test_there_and_back(self, generation: int, batch_id: int, value: str) -> None:
        """Every gateway understands what another one has given."""
        event_id = EventId((generation, batch_id), value)
        assert parse_event_id(str(event_id)) == event_id
        leader_id = LeaderEventId(generation, value)
        assert parse_leader_event_id(str(leader_id)) == leader_id

    @given(st.text())
    def test_what_is_none(self, text: str) -> None:
        """What none of us has given means nothing, and is no error."""
        found = parse_event_id(text)
        assert found is None or str(found) == text
        assert parse_leader_event_id(text) is None or "." in text

    def test_nothing(self) -> None:
        """A first visit."""
        assert parse_event_id(None) is None
        assert parse_leader_event_id(None) is None


@pytest.mark.proves("F3")
class TestEvents:
    """F3: events as bytes."""

    @given(st.text(), st.none() | st.just("1.2.-"))
    def test_one_line_each(self, text: str, event_id: str | None) -> None:
        """Whatever a value holds, it ends no line, and no event."""
        data = event_bytes("value", {"v": text}, event_id)
        assert data.endswith(b"\n\n")
        lines = data[:-2].replace(b"\r", b"\n").split(b"\n")
        assert len(lines) == (2 if event_id is None else 3)
        assert lines[0] == b"event: value"
        assert lines[-1].startswith(b'data: {"v": ')
