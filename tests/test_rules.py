"""
Every rule of docs/reference/rules.md has a proof, and every marker names a rule.

A test proves rules by ``@pytest.mark.proves("E4", …)`` on itself or on its class.  What
is read is the source, so that this takes a second and starts nothing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

from attrs import frozen


ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "rules.md"
NOT_BUILT = "## Not wholly built yet\n"

# Markers of what `make test` leaves to other verbs.
NIGHTLY = frozenset({"drill", "nightly", "tiny"})


@final
@frozen
class Proof:
    """A marker, and what it is at."""

    rule: str
    test: str
    is_nightly: bool


def rules_of(text: str) -> list[str]:
    """Return the rules of the tables in *text*, in order."""
    return re.findall(r"^\| ([A-Z]\d+) \|", text, flags=re.MULTILINE)


def marks_in(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Yield each ``pytest.mark.NAME`` in *node* with the texts that it is given."""
    called: dict[int, list[str]] = {}
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Attribute() as function, args=arguments):
                called[id(function)] = [
                    argument.value
                    for argument in arguments
                    if isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                ]
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="pytest"), attr="mark"), attr=name
            ):
                yield name, called.get(id(part), [])


def proofs_in(tree: ast.Module, path: str) -> Iterator[Proof]:
    """
    Yield what the tests in *tree* prove.

    A state machine is marked where its test case is named:
    ``TestCore = pytest.mark.proves("E1")(CoreMachine.TestCase)``.
    """
    of_module = [
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and "pytestmark" in _names(node)
        for mark in marks_in(node)
    ]
    yield from _proofs(tree.body, path, of_module)


def _proofs(
    body: Sequence[ast.stmt], where: str, outer: list[tuple[str, list[str]]]
) -> Iterator[Proof]:
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                parts: Sequence[ast.AST] = node.decorator_list
            case ast.AsyncFunctionDef(name=name):
                parts = node.decorator_list
            case ast.Assign():
                name = next(iter(_names(node)), "")
                parts = [node.value]
            case _:
                continue
        if not name.startswith(("Test", "test_")):
            continue
        # A case that only the nightly run has (`pytest.param`) is not all of a test.
        marks = outer + [
            mark
            for part in parts
            if "parametrize" not in ast.unparse(part)
            for mark in marks_in(part)
        ]
        if isinstance(node, ast.ClassDef):
            yield from _proofs(node.body, f"{where}::{name}", marks)
            continue
        is_nightly = any(mark in NIGHTLY for mark, _ in marks)
        for mark, rules in marks:
            if mark == "proves":
                for rule in rules:
                    yield Proof(rule, f"{where}::{name}", is_nightly)


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


@functools.cache
def all_files() -> Mapping[str, tuple[list[Proof], list[list[str]]]]:
    """Return what the tests in each file prove, and what each of its markers names."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "proves" in source:
            tree = ast.parse(source)
            name = path.relative_to(ROOT).as_posix()
            marks = [rules for mark, rules in marks_in(tree) if mark == "proves"]
            is_collected = path.name.startswith("test_")
            proofs = list(proofs_in(tree, name)) if is_collected else []
            found[name] = (proofs, marks)
    return found


def all_proofs() -> list[Proof]:
    """Return every proof that the tests name."""
    return [proof for proofs, _ in all_files().values() for proof in proofs]


PROMISED, PLANNED = map(rules_of, PAGE.read_text(encoding="utf-8").split(NOT_BUILT))


class TestRules:
    """The page and the tests."""

    def test_every_rule_stands_there_once(self) -> None:
        """
        Each series is without a gap: a rule that is dropped keeps its number.

        Rules are built in any order, so one may stand above a lower one that is not.
        """
        rules = PROMISED + PLANNED
        series: dict[str, list[int]] = {}
        for rule in rules:
            series.setdefault(rule[0], []).append(int(rule[1:]))
        assert "".join(sorted(series)) == "BCDEFHLNOQRSW"
        for numbers in series.values():
            assert sorted(numbers) == list(range(1, len(numbers) + 1))

    def test_every_rule_is_proven_before_a_change_is_taken(self) -> None:
        """A drill or a test of the night alone is too late, and too far away."""
        proven = {proof.rule for proof in all_proofs() if not proof.is_nightly}
        assert [rule for rule in PROMISED if rule not in proven] == []

    def test_every_marker_names_a_rule(self) -> None:
        """Nothing is proven that no page says."""
        rules = PROMISED + PLANNED
        unknown = [proof for proof in all_proofs() if proof.rule not in rules]
        assert unknown == []

    def test_every_marker_is_where_it_counts(self) -> None:
        """None is at a helper, or is given what is no text."""
        for name, (proofs, marks) in all_files().items():
            assert all(marks), name
            found = {proof.rule for proof in proofs}
            assert {rule for rules in marks for rule in rules} == found, name


class TestReading:
    """How the source of a test is read."""

    SOURCE = """
import pytest
pytestmark = pytest.mark.shells

@pytest.mark.proves("E1", "E2")
class TestOne:
    @pytest.mark.proves("E3")
    def test_both(self): ...

    @pytest.mark.nightly
    def test_long(self): ...

    def helper(self): ...

@pytest.mark.proves("R1")
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.nightly), 2])
async def test_some(n): ...

TestMachine = pytest.mark.proves("Q1")(Machine.TestCase)
"""

    def test_marks_of_a_class_are_those_of_its_tests(self) -> None:
        """What belongs to a drill or the night is told apart."""
        assert [
            (proof.rule, proof.test, proof.is_nightly)
            for proof in proofs_in(ast.parse(self.SOURCE), "a.py")
        ] == [
            ("E1", "a.py::TestOne::test_both", False),
            ("E2", "a.py::TestOne::test_both", False),
            ("E3", "a.py::TestOne::test_both", False),
            ("E1", "a.py::TestOne::test_long", True),
            ("E2", "a.py::TestOne::test_long", True),
            ("R1", "a.py::test_some", False),
            ("Q1", "a.py::TestMachine", False),
        ]

    def test_marks_of_a_file_are_those_of_its_tests(self) -> None:
        """A whole file may be a drill."""
        source = self.SOURCE.replace("mark.shells", "mark.drill")
        assert {p.is_nightly for p in proofs_in(ast.parse(source), "a.py")} == {True}

    def test_rules_are_the_first_cells_of_rows(self) -> None:
        """Other tables and the text name none."""
        assert rules_of(
            "| rule | says |\n|---|---|\n| E1 | x E2 |\n| a | b |\nE3\n"
        ) == ["E1"]
