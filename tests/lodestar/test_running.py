"""How a verb that went wrong is told in one line."""

from __future__ import annotations

from argparse import Namespace

import pytest

from lodestar.running import run
from nameservice import NameServiceError, RemoteProtocolError


def told(error: NameServiceError, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a verb that ends with *error*; return what is printed."""

    def verb(_: Namespace) -> int:
        raise error

    assert run(Namespace(run=verb, verb="leaders", log_level="error")) == 1
    return capsys.readouterr().err


@pytest.mark.proves("N5")
def test_what_the_other_side_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """N5: a verb that is newer than a proxy names what is to be done."""
    error = RemoteProtocolError("malformed", "Invalid value 'forget-node'")
    assert told(error, capsys) == (
        "lodestar leaders: Invalid value 'forget-node' (malformed); the other side may "
        "run an earlier version: upgrade it first\n"
    )


def test_another_mistake_of_a_peer(capsys: pytest.CaptureFixture[str]) -> None:
    """It has nothing to do with versions."""
    error = RemoteProtocolError("oversized", "too long")
    assert told(error, capsys) == "lodestar leaders: too long (oversized)\n"
