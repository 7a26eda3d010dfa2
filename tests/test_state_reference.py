"""What the reference says of queryable state is all there is, and is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import attrs
import pytest

import queryablestate
from queryablestate import (
    AsyncQueryableStateClient,
    PartialResult,
    QueryableStateClient,
    StateEntry,
    StateInformation,
    StatePage,
)
from queryablestate import errors as state_errors
from sparkpipeline import StateSpec, publish_state, publish_states
from sparkpipeline.state.options import WRITE_OPTION_NAMES
from sparkpipeline.state.reader import READ_OPTION_NAMES
from tests.test_layering import OURS


ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGE = (REFERENCE / "state-api.md").read_text("utf-8")
LOG_PAGE = (REFERENCE / "log-events.md").read_text("utf-8")
LOGGED = re.compile(r'\.(?:info|warning|error|exception)\(\s*"([a-z_]+\.[a-z_-]+)"')


def methods_of(client: type) -> dict[str, inspect.Signature]:
    """Return the public methods of *client*."""
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(client, inspect.isroutine)
        if not name.startswith("_")
    }


def logged_events() -> set[str]:
    """Return every event that is logged for somebody to see."""
    return {
        event
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        for event in LOGGED.findall(path.read_text("utf-8"))
    }


class TestPage:
    """docs/reference/state-api.md."""

    @pytest.mark.parametrize("name", sorted(queryablestate.__all__))
    def test_every_public_name_is_told_of(self, name: str) -> None:
        """What can be imported can be looked up."""
        assert re.search(rf"\b{name}\b", PAGE)

    @pytest.mark.parametrize("name", sorted(methods_of(QueryableStateClient)))
    def test_every_method_is_told_of(self, name: str) -> None:
        """With its arguments, but for those that all have."""
        assert f"`{name}(" in PAGE
        signature = methods_of(QueryableStateClient)[name]
        shared = {"self", "deadline_seconds", "min_batch_id", "min_generation"}
        for argument in signature.parameters.keys() - shared:
            assert re.search(rf"`{name}\([^`]*\b{argument}\b", PAGE), argument

    def test_both_clients_have_the_same_methods(self) -> None:
        """What is said of one is said of the other."""
        assert methods_of(AsyncQueryableStateClient).keys() == (
            methods_of(QueryableStateClient).keys()
        )

    @pytest.mark.parametrize(
        "result", [StateEntry, StatePage, PartialResult, StateInformation]
    )
    def test_every_part_of_a_result_is_told_of(self, result: type) -> None:
        """A caller that holds a result can look up what it has."""
        row = re.search(rf"^\| `{result.__name__}` \|.*$", PAGE, re.MULTILINE)
        assert row is not None
        for attribute in attrs.fields(result):
            assert f"`{attribute.name}`" in row[0]

    def test_every_argument_of_publishing_is_told_of(self) -> None:
        """By whatever way it is given: argument, `StateSpec` or option."""
        names = {
            *inspect.signature(publish_state).parameters,
            *(inspect.signature(publish_states).parameters.keys() - {"states"}),
            *(attribute.name for attribute in attrs.fields(StateSpec)),
            *WRITE_OPTION_NAMES,
            *READ_OPTION_NAMES,
        } - {"df", "config"}
        assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []

    @pytest.mark.parametrize(
        "name", sorted(set(state_errors.__all__) - {"QueryableStateError"})
    )
    def test_every_error_is_told_of(self, name: str) -> None:
        """An error that is not documented is no interface."""
        assert f"`{name}`" in PAGE


class TestLogEvents:
    """docs/reference/log-events.md."""

    @pytest.mark.parametrize("event", sorted(logged_events()))
    def test_every_event_is_told_of(self, event: str) -> None:
        """The reader of a log finds what a line means."""
        assert f"`{event}`" in LOG_PAGE

    def test_the_parts_that_speak(self) -> None:
        """What is logged can be told apart by its ``component``."""
        texts = (
            path.read_text("utf-8")
            for package in OURS
            for path in (ROOT / package).rglob("*.py")
        )
        speaking = {
            component
            for text in texts
            for component in re.findall(r'(?:component=|EventLoop\()"([a-z-]+)"', text)
        }
        table = LOG_PAGE.partition("| in | `component` |")[2].partition("\n\n")[0]
        assert set(re.findall(r"`([a-z-]+)`", table)) == speaking
