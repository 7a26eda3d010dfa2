from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from nameservice.ids import (
    COMPONENT_ID_LENGTH_MAX,
    DISPATCHER,
    QUERY_PROXY,
    RESOURCE_MANAGER,
    REST_ENDPOINT,
    check_component_id,
)


class TestCheckComponentId:
    @pytest.mark.parametrize(
        "text",
        [
            "j",
            "flights",
            "with space",
            "Ünïcödé 航班 ✈",
            "dots..and.",
            "%2F",
            "x" * COMPONENT_ID_LENGTH_MAX,
            RESOURCE_MANAGER,
            DISPATCHER,
            REST_ENDPOINT,
            QUERY_PROXY,
        ],
    )
    def test_printable_text_without_slash_is_taken_as_it_is(self, text: str) -> None:
        """1 to 255 printable characters without a slash are a component id."""
        assert check_component_id(text) == text

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "a component id must have 1 to 255 characters, not 0"),
            ("x" * 256, "a component id must have 1 to 255 characters, not 256"),
            ("a/b", "a component id must be printable and without '/', not 'a/b'"),
            ("a\n", "a component id must be printable and without '/', not 'a\\n'"),
            ("\0", "a component id must be printable and without '/', not '\\x00'"),
            (
                "\ud800",
                "a component id must be printable and without '/', not '\\ud800'",
            ),
            (b"job", "a component id must be text, not bytes"),
            (None, "a component id must be text, not NoneType"),
        ],
    )
    def test_anything_else_is_refused(self, text: str, why: str) -> None:
        """What is no component id is refused in words that say why."""
        with pytest.raises(ConfigurationError) as caught:
            check_component_id(text)
        assert str(caught.value) == why

    def test_refusal_names_the_setting(self) -> None:
        """The caller says what the text was meant to be."""
        with pytest.raises(ConfigurationError, match=r"^cluster_id must have 1 to 255"):
            check_component_id("", what="cluster_id")

    @given(st.text(max_size=300))
    def test_no_other_outcome(self, text: str) -> None:
        """Any text is either taken or refused as the rule says."""
        is_good = 1 <= len(text) <= 255 and text.isprintable() and "/" not in text
        try:
            taken = check_component_id(text)
        except ConfigurationError:
            assert not is_good
        else:
            assert is_good
            assert taken == text
