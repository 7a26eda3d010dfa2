from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from lodestar.__main__ import make_parser
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.config_toml import print_config


ROOT = Path(__file__).parent.parent.parent
REFERENCE = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every verb."""
    (verbs,) = (
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(verbs.choices)


class TestReference:
    """docs/reference/command-line.md says what the command line does."""

    @pytest.mark.parametrize("verb", sorted(parsers()))
    def test_every_verb_has_a_section(self, verb: str) -> None:
        """A reader finds each verb under a heading of its name."""
        assert f"\n## {verb}\n" in REFERENCE

    def test_the_list_at_the_top_is_complete(self) -> None:
        """Who looks for a verb finds all of them, and what each does."""
        top, _, _ = REFERENCE.partition("\n## ")
        listed = re.findall(r"^\| \[`([a-z-]+).*?`\]\(#([a-z-]+)\)", top, re.MULTILINE)
        assert sorted(listed) == [(verb, verb) for verb in sorted(parsers())]

    def test_an_option_of_some_verbs_names_them(self) -> None:
        """As ``--on-suspended`` does: others would refuse it."""
        found = re.findall(
            r"^\| `(--[a-z-]+) [^|]*?` \((.*?)\) \|",
            REFERENCE.replace(r"\|", "/"),
            re.MULTILINE,
        )
        assert len(found) == 3
        for option, verbs in found:
            assert sorted(re.findall("[a-z-]+", verbs)) == sorted(
                verb
                for verb, parser in parsers().items()
                if option in parser._option_string_actions
            )

    @pytest.mark.parametrize("verb", sorted(parsers()))
    def test_every_option_is_told_of(self, verb: str) -> None:
        """No option is there without being written down."""
        options = [
            option
            for action in parsers()[verb]._actions
            for option in action.option_strings
            if option.startswith("--")
        ]
        assert [each for each in options if each not in REFERENCE] == []

    def test_no_option_is_told_of_that_is_not_there(self) -> None:
        """What the page names can be typed."""
        known = {
            option
            for parser in (make_parser(), *parsers().values())
            for action in parser._actions
            for option in action.option_strings
        }
        named = set(re.findall(r"`(?:lodestar \w+ )?(--[a-z-]+)", REFERENCE))
        assert named - known == set()


class TestProxyConfiguration:
    """docs/reference/proxy-configuration.md shows the file as it is printed."""

    def test_the_file_is_the_one_that_is_printed(self) -> None:
        """C4: every setting stands on the page, with its default and its meaning."""
        page = (ROOT / "docs" / "reference" / "proxy-configuration.md").read_text()
        _, _, block = page.partition("```toml\n")
        assert block.partition("```")[0] == print_config(ProxyConfig())
