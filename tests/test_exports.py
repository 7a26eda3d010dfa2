"""What a package exports: one sorted list, complete, and no name twice."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
PACKAGES = sorted(
    path.parent.name
    for path in ROOT.glob("*/__init__.py")
    if path.parent.name not in {"tests", "examples", "benchmarks"}
)


def sort_key(name: str) -> tuple[int, str]:
    """Order as ruff does (RUF022): CONSTANTS, then Classes, then functions."""
    if name.isupper():
        return (0, name)
    return (1 if name[0].isupper() else 2, name)


# The errors of two packages are public names of the vocabulary, too.
LENT = {"nameservice": ("queryablestate.errors", "rescaling.errors")}


def homes_in(package: str) -> dict[str, str]:
    """Return which module the ``__init__`` of *package* takes each name from."""
    source = (ROOT / package / "__init__.py").read_text(encoding="utf-8")
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and (
            node.module.partition(".")[0] == package
            or node.module in LENT.get(package, ())
        )
        and node.module != "nameservice.lazy"
        for alias in node.names
    }


@pytest.mark.parametrize("package", PACKAGES)
class TestPackage:
    """One package's ``__all__``."""

    def test_it_is_sorted_and_without_repetition(self, package: str) -> None:
        """``__all__`` exists and stands in the order in which people look."""
        exported = importlib.import_module(package).__all__
        assert list(exported) == sorted(set(exported), key=sort_key)

    def test_it_is_what_init_takes_from_the_modules(self, package: str) -> None:
        """``__init__`` imports what it exports, from this package, and nothing else."""
        exported = importlib.import_module(package).__all__
        assert sorted(exported) == sorted(homes_in(package))

    def test_each_name_is_loaded_from_where_it_is_imported_for_types(
        self, package: str
    ) -> None:
        """The table of a lazy face says the same as its imports for type checkers."""
        face = importlib.import_module(package)
        for name, module in homes_in(package).items():
            assert name in dir(face)
            if name in face.__all__:
                home = importlib.import_module(module)
                assert getattr(face, name) is getattr(home, name)

    def test_no_name_of_a_lazy_face_is_that_of_a_module(self, package: str) -> None:
        """The import system would put the module in the place of the public name."""
        face = importlib.import_module(package)
        modules = {path.stem for path in (ROOT / package).glob("*.py")}
        modules |= {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        if "__getattr__" in vars(face):
            assert not modules & set(face.__all__)

    def test_every_name_resolves_to_something_documented(self, package: str) -> None:
        """What is exported exists; classes and functions say what they are for."""
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                assert inspect.getdoc(value), name

    def test_it_has_types(self, package: str) -> None:
        """``py.typed`` tells a user's mypy to read our annotations."""
        assert (ROOT / package / "py.typed").is_file()


def test_no_two_packages_export_the_same_name() -> None:
    """One word, one meaning: a public name has one home, but for what Spark names."""
    homes: dict[str, set[str]] = {}
    for package in PACKAGES:
        for name, module in homes_in(package).items():
            if name != "DefaultSource":
                homes.setdefault(name, set()).add(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
