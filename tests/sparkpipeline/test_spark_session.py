"""What is told of a Spark session before its tasks fail; no Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sparkpipeline.spark_session import python_problem


def fake_python(path: Path, script: str) -> Path:
    """Return an executable that stands for another Python."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


class TestPythonOfTasks:
    @pytest.mark.proves("N5")
    def test_one_without_what_lodestar_needs(self, tmp_path: Path) -> None:
        """N5: one line says what to set, and not sixty of a task that failed."""
        other = fake_python(
            tmp_path / "python3",
            "echo \"ModuleNotFoundError: No module named 'attrs'\" >&2; exit 1",
        )
        assert python_problem(str(other)) == (
            f"tasks of this session run {other}, which lacks what Lodestar needs "
            "(ModuleNotFoundError: No module named 'attrs'): set PYSPARK_PYTHON to "
            f"{sys.executable} before the session is made"
        )

    def test_one_that_has_it(self, tmp_path: Path) -> None:
        """Another environment with the same packages is as good."""
        other = fake_python(tmp_path / "python3", f'exec {sys.executable} "$@"')
        assert python_problem(str(other)) is None

    def test_our_own(self) -> None:
        """It need not be tried: it runs this."""
        assert python_problem(sys.executable) is None

    def test_one_that_is_not_there_or_does_not_run(self, tmp_path: Path) -> None:
        """Spark tells of that by itself."""
        assert python_problem(str(tmp_path / "none")) is None
        broken = tmp_path / "broken"
        broken.write_bytes(b"\x7fELF")
        broken.chmod(0o755)
        assert python_problem(str(broken)) is None
