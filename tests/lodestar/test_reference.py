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
