"""
The drawings of docs/explanation/architecture.md say what tests/test_layering.py holds.

A drawing is a block of Mermaid below a comment, ``<!-- rooms of PACKAGE -->`` or ``<!--
packages -->``.  It leaves out what follows: A may import from C where A -> B -> C.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from tests.test_layering import MAY_IMPORT, ROOM_MAY_IMPORT


PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "architecture.md"

# Every package may import it: an arrow from each would hide the others.
_EVERYBODYS = frozenset({"nameservice"})

DRAWN = [package for package, rooms in ROOM_MAY_IMPORT.items() if any(rooms.values())]

Arrows = Mapping[str, AbstractSet[str]]


def drawings() -> dict[str, Arrows]:
    """Return the arrows of each drawing on the page, from each thing that is drawn."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(
        r"^<!-- (?P<of>[\w ]+) -->\n\n```mermaid\nflowchart \w+\n(?P<lines>.*?)^```$",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    return {drawing["of"]: arrows_of(drawing["lines"]) for drawing in found}


def arrows_of(lines: str) -> Arrows:
    """Return where arrows go from each thing in *lines* of ``a --> b``, or of ``a``."""
    arrows: dict[str, set[str]] = {}
    for line in lines.splitlines():
        source, _, target = line.strip().partition(" --> ")
        arrows.setdefault(source, set())
        if target:
            arrows[source].add(target)
            arrows.setdefault(target, set())
    return arrows


def reachable(arrows: Arrows, start: str) -> set[str]:
    """Return all that arrows lead to from *start*, by way of others too."""
    found: set[str] = set()
    pending = [start]
    while pending:
        new = arrows[pending.pop()] - found
        found |= new
        pending += new
    return found


def differences(drawn: Arrows, allowed: Arrows) -> list[str]:
    """Return in what a drawing is not what is allowed."""
    if drawn.keys() != allowed.keys():
        return [f"drawn or allowed only: {sorted(drawn.keys() ^ allowed.keys())}"]
    return [
        f"{source} --> {target} {how}"
        for source in sorted(allowed)
        for targets, how in (
            (drawn[source] - allowed[source], "is drawn and not allowed"),
            (allowed[source] - reachable(drawn, source), "is allowed and not drawn"),
        )
        for target in sorted(targets)
    ]


class TestDrawings:
    @pytest.mark.parametrize("package", DRAWN)
    def test_rooms_are_drawn_as_they_are(self, package: str) -> None:
        """Each package whose rooms import from each other has a drawing of them."""
        drawn = drawings()[f"rooms of {package}"]
        assert differences(drawn, ROOM_MAY_IMPORT[package]) == []

    def test_packages_are_drawn_as_they_are(self) -> None:
        """All packages, but for the one that every package may import."""
        allowed = {
            package: targets - _EVERYBODYS - {package}
            for package, targets in MAY_IMPORT.items()
            if package not in _EVERYBODYS
        }
        assert differences(drawings()["packages"], allowed) == []

    def test_nothing_else_is_drawn(self) -> None:
        """A drawing of what there is no more is taken away."""
        rooms = {f"rooms of {package}" for package in DRAWN}
        assert drawings().keys() == {"packages"} | rooms


@pytest.mark.parametrize(
    "room",
    [f"{name}/{room}" for name, rooms in ROOM_MAY_IMPORT.items() for room in rooms],
)
def test_every_room_is_named(room: str) -> None:
    """The page says what each folder is, and links to it."""
    assert f"](../../{room}/)" in PAGE.read_text(encoding="utf-8")


class TestReading:
    @pytest.mark.parametrize(
        ("lines", "expected"),
        [
            ("a --> b\nb --> c", []),
            ("a --> b\na --> c\nb --> c", []),
            ("a --> b\nc", ["a --> c is allowed and not drawn"]),
            ("a --> b\nb --> c\nc --> a", ["c --> a is drawn and not allowed"]),
            ("a --> b", ["drawn or allowed only: ['c']"]),
        ],
    )
    def test_a_wrong_drawing_is_seen(self, lines: str, expected: list[str]) -> None:
        """Arrows that are missing, too many, or of what is not there."""
        allowed: Arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
        assert differences(arrows_of(lines), allowed)[:1] == expected
