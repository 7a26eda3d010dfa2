"""What the extra ``sql`` installs is all that a worker needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.lend_packages import lend


ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys

from queryablestate.sql import worker
from queryablestate.sql.engine import Engine

engine = Engine(64 << 20, 1)
engine.execute(
    "SELECT TIMESTAMPTZ '2026-03-01 12:00:00+00', [TIMESTAMPTZ '2026-03-01 12:00+00'],"
    " TIMESTAMP '2026-03-01 12:00:00', DATE '2026-03-01', INTERVAL 1 DAY, 'b'::BLOB,"
    " 1.5::DECIMAL(9, 2), {'a': 1}, MAP {'x': 1}, 'text', 1.5::DOUBLE",
    {},
)
((moment, *_),) = engine.fetch(1)
print(moment.isoformat(), "pandas" in sys.modules)
"""


@pytest.mark.proves("F6")
def test_rows_of_every_type_are_made_without_other_extras(tmp_path: Path) -> None:
    """The engine loads what it needs for a type when the first value of it comes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lend(tmp_path, [*project["dependencies"], *project["optional-dependencies"]["sql"]])
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "2026-03-01T12:00:00+00:00 False\n"
