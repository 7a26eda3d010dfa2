"""Fail unless every branch of every pure file was taken; run by ``make coverage``."""

from __future__ import annotations

import subprocess
import sys

from tests.test_layering import is_pure, source_files


def main() -> int:
    """Print what is not covered and return coverage's own exit code."""
    pure_files = [str(path) for path in source_files() if is_pure(path)]
    command = [sys.executable, "-m", "coverage", "report", "--fail-under=100"]
    return subprocess.run(
        [*command, f"--include={','.join(pure_files)}"], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
