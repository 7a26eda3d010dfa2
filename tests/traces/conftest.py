"""The option by which `make traces` writes the stories anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rewrite-traces``; it is known when this folder is named to pytest."""
    parser.addoption(
        "--rewrite-traces",
        action="store_true",
        help="write what the cores do now into tests/traces/*.txt",
    )


@pytest.fixture
def is_rewriting(request: pytest.FixtureRequest) -> bool:
    """Return whether the stories are to be written anew rather than compared."""
    return bool(request.config.getoption("--rewrite-traces", default=False))
