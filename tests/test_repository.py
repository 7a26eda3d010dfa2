"""What must be true of the repository itself, whatever the code does."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.generate_sync import TWINS, Twin, twin_of
from scripts.oldest_releases import oldest_releases


ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VERBS = (
    "setup demo style types check-fast test nightly simulate drills traces twins bench"
    " bench-peers docs compat check clean lock"
)

# What the verbs of the Makefile make, and git ignores.
_MADE = {"__pycache__", "artifacts", "build", "dist", "results", "spark-warehouse"}
_HIDDEN_BUT_OURS = {".ci", ".gitignore"}
_SIZE_BYTES_MAX = 500_000


def text_files() -> Iterator[Path]:
    """Yield every file that could be committed and is not a lock file."""
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name not in _HIDDEN_BUT_OURS
            if hidden or path.name in _MADE or path.is_symlink():
                continue
            if path.is_dir():
                pending.append(path)
            elif path.name != "requirements.lock":
                yield path


def requirement_names(requirements: list[str]) -> set[str]:
    """Return the normalised names of *requirements*, without versions or extras."""
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


class TestFiles:
    """Every file that could be committed."""

    @pytest.mark.parametrize(
        "forbidden",
        [
            pytest.param(r"\b(pypi|pythonhosted|npmjs)\.(org|com)\b", id="registry"),
            pytest.param(r"(?<![\w.])/(home|root|work|Users)/\w", id="machine"),
        ],
    )
    def test_no_file_names_one_machine_or_registry(self, forbidden: str) -> None:
        """A checkout works anywhere: no path of one machine, no package registry."""
        found = [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for path in text_files()
            for number, line in enumerate(
                path.read_text(encoding="utf-8", errors="replace").splitlines(),
                start=1,
            )
            if re.search(forbidden, line)
        ]
        assert found == []

    def test_no_file_is_large(self) -> None:
        """The repository holds sources: data and results live elsewhere."""
        large = [path for path in text_files() if path.stat().st_size > _SIZE_BYTES_MAX]
        assert large == []

    def test_scripts_can_be_run(self) -> None:
        """A file that begins with ``#!`` is executable, and the other way round."""
        for path in text_files():
            is_script = path.read_bytes().startswith(b"#!")
            assert is_script == bool(path.stat().st_mode & 0o100), path


class TestTwins:
    """Synchronous files that are made from asynchronous ones."""

    @pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.target)
    def test_each_is_what_its_source_makes(self, twin: Twin) -> None:
        """``make twins`` would change nothing."""
        source = (ROOT / twin.source).read_text(encoding="utf-8")
        assert twin_of(twin, source) == (ROOT / twin.target).read_text(encoding="utf-8")

    def test_a_change_of_one_alone_is_found(self) -> None:
        """Another line is another twin; a passage that is gone is an error."""
        twin = Twin("a.py", "b.py", (("waits for", "is"),))
        source = '"""It waits for it."""\n\nX = 1\n'
        made = twin_of(twin, source)
        assert '"""It is it."""' in made
        assert twin_of(twin, source.replace("1", "2")) != made
        with pytest.raises(ValueError, match="waits for"):
            twin_of(twin, "X = 1\n")


class TestPackages:
    """The list of packages, wherever a tool needs one."""

    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))

    @pytest.mark.parametrize(
        "listed",
        [
            PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
            PROJECT["tool"]["coverage"]["run"]["source"],
        ],
        ids=["wheel", "coverage"],
    )
    def test_each_list_names_all_packages(self, listed: list[str]) -> None:
        """No package is forgotten in the wheel or in what is measured."""
        ours = set(self.packages) - {"tests", "examples", "benchmarks"}
        assert set(listed) == ours

    def test_imports_of_every_package_are_sorted_as_ours(self) -> None:
        """Ruff knows every package as first party, on every machine."""
        isort = PROJECT["tool"]["ruff"]["lint"]["isort"]
        assert set(self.packages) <= set(isort["known-first-party"])


class TestLock:
    """``requirements.lock``."""

    def test_it_names_every_requirement(self) -> None:
        """What pyproject.toml and requirements.in ask for is locked."""
        project = PROJECT["project"]
        tools = (ROOT / "requirements.in").read_text(encoding="utf-8")
        wanted = requirement_names(
            [
                *project["dependencies"],
                *(one for extra in EXTRAS.values() for one in extra),
                *PROJECT["build-system"]["requires"],
                *(line for line in tools.splitlines() if not line.startswith("#")),
            ]
        )
        locked = requirement_names(re.findall(r"^\S+==", LOCK, flags=re.MULTILINE))
        assert wanted - locked == set()

    def test_every_package_has_a_version_and_hashes(self) -> None:
        """Each entry is ``name==version`` followed by its hashes."""
        entries = re.findall(
            r"^[a-z0-9-]+==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+",
            LOCK,
            flags=re.MULTILINE,
        )
        packages = re.findall(r"^[^\s#].*$", LOCK, flags=re.MULTILINE)
        assert len(entries) == len(packages) > 0

    def test_it_says_nothing_about_where_from(self) -> None:
        """No address and no index: pip's own configuration decides that."""
        assert "://" not in LOCK
        assert not re.search(r"^--?\w", LOCK, flags=re.MULTILINE)


class TestOldestReleases:
    """Releases with which `make compat` runs the tests."""

    def test_each_dependency_has_its_lower_bound(self) -> None:
        """What the tests need beside it has the release of the lock."""
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        constraints = dict(line.split("==") for line in oldest_releases(project, LOCK))
        table = PROJECT["project"]
        ours = requirement_names(
            [
                *table["dependencies"],
                *EXTRAS["spark"],
                *EXTRAS["metrics"],
                *EXTRAS["http"],
                *EXTRAS["sql"],
            ]
        )
        assert ours < set(constraints)
        bounds = dict(re.findall(r'^    "([a-z\d-]+)>=([\d.]+)', project, re.MULTILINE))
        assert bounds == {name: constraints[name] for name in ours}
        for name in set(constraints) - ours:
            assert f"{name}=={constraints[name]} " in LOCK


class TestMakefile:
    """The verbs."""

    @pytest.mark.parametrize("verb", VERBS.split())
    def test_every_verb_is_there_and_explained(self, verb: str) -> None:
        """A comment above each verb says what it is for."""
        assert re.search(rf"^# .+\n{verb}:", MAKEFILE, flags=re.MULTILINE)

    @pytest.mark.parametrize("verb", VERBS.split())
    def test_no_verb_begins_with_a_warning(self, verb: str) -> None:
        """Every variable is set: the first thing that a newcomer sees is no warning."""
        shown = subprocess.run(
            ["make", "--dry-run", verb],
            check=True,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        assert "warning" not in shown.stderr


def test_the_changelog_knows_this_version() -> None:
    """The newest heading of the changelog is this version or what comes next."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changelog, flags=re.MULTILINE)
    assert PROJECT["project"]["version"] in headings or headings[0] == "Unreleased"
