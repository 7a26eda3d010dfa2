"""One suite, every backend: each test runs on all that promise what it needs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.conformance.backends import BACKENDS, Backend
from tests.conformance.harness import Harness
from tests.conformance.selection import takes_part


if TYPE_CHECKING:
    from collections.abc import Iterator


_cluster_numbers = itertools.count(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once on each backend that promises what it requires."""
    if "harness" in metafunc.fixturenames:
        names = [
            name
            for name, backend in BACKENDS.items()
            if takes_part(backend.guarantees, metafunc.function, metafunc.cls)
        ]
        assert names, f"{metafunc.function} runs on no backend at all"
        metafunc.parametrize(
            "harness",
            [pytest.param(name, marks=_marks(name, names)) for name in names],
            indirect=True,
        )


def _marks(name: str, names: list[str]) -> list[pytest.MarkDecorator]:
    """Return those of a backend; what holds over plain sockets is for CURVE's night."""
    if name == "leaderserver-curve" and "leaderserver" in names:
        return [pytest.mark.shells, pytest.mark.nightly]
    return [pytest.mark.shells]


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Backend]]:
    """The name services started so far; all are closed in the end."""
    started: dict[str, Backend] = {}
    yield started
    for backend in started.values():
        backend.close()


@pytest.fixture
def harness(
    request: pytest.FixtureRequest,
    backends: dict[str, Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Harness]:
    """A cluster of the test's own on the backend that it is parametrized with."""
    name: str = request.param
    if name not in backends:
        backends[name] = BACKENDS[name](tmp_path_factory.mktemp(name))
    with Harness(backends[name], f"test-{next(_cluster_numbers)}") as opened:
        yield opened
