"""
What the documents say about the repository is true.

Code that a document shows from a file is preceded by a comment that names it::

    <!-- from examples/one_leader.py -->

and the block below it must be consecutive lines of that file; indentation that the
whole block shares does not count.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import nameservice.errors
import queryablestate.errors
import rescaling.errors


ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            path
            for part in ("docs", "benchmarks", "examples", "tests")
            for path in (ROOT / part).rglob("*.md")
        ),
    ]
)

CODE_BLOCK = re.compile(
    r"(?:^<!-- from (?P<source>\S+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    flags=re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_PATH = re.compile(
    r"`((?:benchmarks|docs|examples|scripts|tests)/[\w./-]*\w\.(?:md|py|txt|toml))`"
)
# Words that leave open who does what.  They are out of the docstrings and comments of
# these folders, and stay out.
_VAGUE = re.compile(
    r"\b(nobody|whoever|whomever|let|lets|letting|so\s+many|shall)\b", re.IGNORECASE
)
# What is no prose: names and values of the code, and attributes that a docstring lists.
_QUOTED = re.compile(r"``?[^`]*``?|^ *\w+: ", re.MULTILINE)
PLAIN_FOLDERS = (
    "benchmarks",
    "election",
    "examples",
    "haservices",
    "leaderserver",
    "lodestar",
    "nameservice",
    "pyspark_lodestar",
    "pyspark_lodestar_log",
    "queryablestate",
    "rescaling",
    "retrieval",
    "scripts",
    "sparkpipeline",
    "zmqtransport",
)


def prose(document: Path) -> str:
    """Return the text of *document* without its blocks of code."""
    return CODE_BLOCK.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """Return the anchors of *document*'s headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", prose(document), flags=re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeated = sum(1 for one in found if re.fullmatch(rf"{anchor}(-\d+)?", one))
        found.add(f"{anchor}-{repeated}" if repeated else anchor)
    return found


def dead_links(document: Path) -> Iterator[str]:
    """Yield every link of *document* into the repository that leads nowhere."""
    for link in _LINK.finditer(prose(document)):
        target, _, anchor = unquote(link["target"]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (document.parent / target) if target else document
        is_alive = path.exists()
        if is_alive and anchor and path.suffix == ".md":
            is_alive = anchor in anchors(path)
        if not is_alive:
            yield link["target"]


def is_part(code: str, source: str) -> bool:
    """Return whether *code* is consecutive lines of *source*, indented or not."""
    wanted = textwrap.dedent(code).strip("\n").splitlines()
    lines = source.splitlines()
    return any(
        textwrap.dedent("\n".join(lines[first : first + len(wanted)])).splitlines()
        == wanted
        for first in range(len(lines) - len(wanted) + 1)
    )


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
class TestDocument:
    """One Markdown file."""

    def test_its_links_lead_somewhere(self, document: Path) -> None:
        """Every relative link has a file behind it, and every anchor a heading."""
        assert list(dead_links(document)) == []

    def test_the_files_it_names_exist(self, document: Path) -> None:
        """A path in backticks is a path from the root of the repository."""
        missing = [
            name
            for name in _PATH.findall(prose(document))
            if not (ROOT / name).exists()
        ]
        assert missing == []

    def test_the_verbs_it_names_exist(self, document: Path) -> None:
        """A reader told to type ``make something`` can."""
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        verbs = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
        text = document.read_text(encoding="utf-8")
        named = re.findall(r"(?:`|^|\$ )make ([a-z-]+)", text, flags=re.MULTILINE)
        assert set(named) - verbs == set()

    def test_its_code_is_the_code(self, document: Path) -> None:
        """A block that says where it is from stands there, word for word."""
        for block in CODE_BLOCK.finditer(document.read_text(encoding="utf-8")):
            if block["source"] is not None:
                source = (ROOT / block["source"]).read_text(encoding="utf-8")
                assert is_part(block["code"], source), block["source"]

    def test_its_python_is_python(self, document: Path) -> None:
        """Every block marked as Python can be parsed."""
        for block in CODE_BLOCK.finditer(document.read_text(encoding="utf-8")):
            if block["language"] == "python":
                ast.parse(textwrap.dedent(block["code"]))


def vague_words(source: str) -> Iterator[tuple[int, str]]:
    """Yield where a docstring or comment of *source* leaves open who does what."""
    texts = [
        (node.value.lineno, node.value.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    texts += [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for line, text in texts:
        for word in _VAGUE.findall(_QUOTED.sub("", text)):
            yield line, word


@pytest.mark.parametrize("folder", PLAIN_FOLDERS)
def test_docstrings_and_comments_say_who_does_what(folder: str) -> None:
    """A subject that is named tells more than "whoever", and is read once."""
    # What a hidden folder holds was installed there: it is not ours.
    paths = [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "/." not in path.relative_to(ROOT).as_posix()
    ]
    assert paths
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in paths
        for line, word in vague_words(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "document",
    # What was told of earlier releases stays as it is, and a simulation writes its own.
    [
        path
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md" and path.parent.name != "reports"
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_documents_say_who_does_what(document: Path) -> None:
    """As docstrings do: what a user reads is read by more."""
    assert _VAGUE.findall(re.sub(r"`[^`]*`", "", prose(document))) == []


class TestChecks:
    """The checks themselves."""

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ('"""Nobody waits."""\n', [(1, "Nobody")]),
            ("a = 1  # so many\n", [(1, "so many")]),
            ('def f():\n    """\n    Let it be.\n    """\n', [(2, "Let")]),
            ('a = "nobody"\n', []),
            ('"""Return ``nobody``."""\n', []),
            ('"""\nA.\n\n    nobody: Those.\n"""\n', []),
            ('"""Tell nobody_else, and deletes."""\n', []),
        ],
    )
    def test_a_vague_word_is_seen(
        self, source: str, expected: list[tuple[int, str]]
    ) -> None:
        """In docstrings and comments, and neither in code nor within other words."""
        assert list(vague_words(source)) == expected

    def test_a_dead_link_is_seen(self, tmp_path: Path) -> None:
        """Missing files and missing anchors are found; other sites are not asked."""
        document = tmp_path / "page.md"
        document.write_text(
            "# One page\n[a](#one-page) [b](#two) [c](none.md) [d](https://e.f/g)\n"
        )
        assert list(dead_links(document)) == ["#two", "none.md"]

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("b = 2\nif b:\n", True),
            ("c = 3\n", True),
            ("a = 1\nif b:\n", False),
            ("b = 3\n", False),
        ],
    )
    def test_changed_code_is_seen(self, code: str, *, expected: bool) -> None:
        """Only consecutive, unchanged lines are part of a file."""
        source = "a = 1\nb = 2\nif b:\n    c = 3\n"
        assert is_part(code, source) is expected


class TestTroubleshooting:
    """The page with errors, their causes and cures."""

    page = ROOT / "docs" / "howto" / "troubleshooting.md"

    def test_every_public_error_has_a_cure(self) -> None:
        """Each class of the tree stands there, most in a row of its own."""
        named = set(re.findall(r"`([A-Z]\w+Error)`", prose(self.page)))
        assert public_errors() - named == set()

    def test_it_names_no_other_error(self) -> None:
        """A class that is gone, or was never there, has no row."""
        rows = re.findall(
            r"^\| (`[A-Z]\w+Error`[^|]*) \|", prose(self.page), re.MULTILINE
        )
        named = {name for row in rows for name in re.findall(r"\w+Error", row)}
        assert len(named) > 30
        assert named - public_errors() == set()

    def test_every_row_says_what_to_do(self) -> None:
        """No cell of a cause or a cure is empty."""
        rows = re.findall(r"^\| `.*\|$", prose(self.page), re.MULTILINE)
        assert all(all(cell.strip() for cell in row.split("|")[1:-1]) for row in rows)


def public_errors() -> set[str]:
    """Return the names of all errors that users may catch."""
    return {
        name
        for module in (nameservice.errors, queryablestate.errors, rescaling.errors)
        for name in module.__all__
    }


class TestDrills:
    """The page with the drills: what is done to which process, and what must hold."""

    page = ROOT / "docs" / "howto" / "run-the-drills.md"

    def test_every_drill_is_told_of(self) -> None:
        """Each file of drills has a row, or stands with those that test the drills."""
        files = {path.name for path in (ROOT / "tests" / "drills").glob("test_*.py")}
        named = re.findall(r"`(test_\w+\.py)`", prose(self.page))
        assert sorted(named) == sorted(files)
