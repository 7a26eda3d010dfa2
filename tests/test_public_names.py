"""Every public name that README, docs and examples mention can be imported."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_documentation import CODE_BLOCK, DOCUMENTS, prose
from tests.test_layering import OURS


ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))

_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_DOTTED = re.compile(rf"(?<![\w./:-])((?:{'|'.join(sorted(OURS))})(?:\.[A-Za-z]\w*)+)")
# A variable in an example, the first word of a log event, and of Spark's settings.
_OTHER_WORDS = re.compile(r"(election|retrieval|lodestar)\.[a-z]")


def imported_names(source: str) -> Iterator[tuple[str, str]]:
    """Yield each module of ours that *source* imports from, and what it imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.partition(".")[0] in OURS:
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in OURS:
                    yield alias.name, ""


def mentioned_names(document: Path) -> Iterator[str]:
    """Yield each ``package.name`` in the prose of *document*."""
    for span in _CODE_SPAN.findall(prose(document)):
        for name in _DOTTED.findall(span):
            if not _OTHER_WORDS.match(name) and not name.endswith((".md", ".toml")):
                yield name


def resolve(module: str, name: str = "") -> object:
    """Return what *name* of *module* is, or raise as an import would."""
    home = importlib.import_module(module)
    if not name:
        return home
    if hasattr(home, name):
        return getattr(home, name)
    return importlib.import_module(f"{module}.{name}")


def resolve_dotted(dotted: str) -> object:
    """Return what *dotted* names: a module, a name in one, or a member of that."""
    package, *rest = dotted.split(".")
    value: object = importlib.import_module(package)
    for depth, part in enumerate(rest, start=1):
        if hasattr(value, part):
            value = getattr(value, part)
        else:
            value = importlib.import_module(".".join([package, *rest[:depth]]))
    return value


def code_of(document: Path) -> Iterator[str]:
    """Yield each block of Python in *document*."""
    for block in CODE_BLOCK.finditer(document.read_text(encoding="utf-8")):
        if block["language"] == "python":
            yield textwrap.dedent(block["code"])


DOCUMENTED = sorted(
    {
        (module, name)
        for document in DOCUMENTS
        for code in code_of(document)
        for module, name in imported_names(code)
    }
)
EXEMPLIFIED = sorted(
    {
        names
        for path in EXAMPLES
        for names in imported_names(path.read_text(encoding="utf-8"))
    }
)
MENTIONED = sorted({name for path in DOCUMENTS for name in mentioned_names(path)})


@pytest.mark.parametrize(("module", "name"), sorted({*DOCUMENTED, *EXEMPLIFIED}))
def test_what_documents_and_examples_import_is_there(module: str, name: str) -> None:
    """A reader who copies the line gets no ImportError."""
    resolve(module, name)


@pytest.mark.parametrize("dotted", MENTIONED)
def test_what_documents_mention_is_there(dotted: str) -> None:
    """A name in the prose, such as ``haservices.campaign``, leads to what it names."""
    resolve_dotted(dotted)


def test_there_are_such_names() -> None:
    """The tests above look at all three kinds of places."""
    assert ("sparkpipeline", "attach_state") in DOCUMENTED
    assert ("haservices.testing", "LeadershipControl") in EXEMPLIFIED
    assert "queryablestate.LocalStateCluster" in MENTIONED


def test_a_name_that_is_not_there_is_seen() -> None:
    """Neither an attribute nor a module: an ImportError, as a reader would get it."""
    with pytest.raises(ImportError):
        resolve("queryablestate", "writer_rows")
    with pytest.raises(ImportError):
        resolve_dotted("queryablestate.writer_rows")
